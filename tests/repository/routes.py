"""The course: each of its three routes is numbered without a gap, its lessons are there, and the last lines of each lesson
lead on to the next one of every route that it is on. Links of the index lead somewhere. Each lesson ends with exercises, and
each exercise with an answer by a command, which tests/cli/lessons.py runs."""
import re
import sys
from pathlib import Path

LESSONS = Path(__file__).resolve().parents[2] / "docs" / "lessons"
INDEX = (LESSONS / "README.md").read_text()
NAMES = ("Student", "Engineer", "Hacker")
faults = []


def check(ok, text):
    if not ok:
        faults.append(text)


def headings(path):
    """The anchors of a page, for the kind of headings that these pages have."""
    return {re.sub(r"[^\w -]", "", line.strip("# ").lower()).replace(" ", "-")
            for line in path.read_text().splitlines() if line.startswith("#")}


def route(name):
    """The files of a route's lessons, in order."""
    body = re.search(rf"^## {name}\n(.*?)(?=^## )", INDEX, re.S | re.M)[1]
    items = re.findall(r"^(\d+)\. \[[^\]]*\]\(([^)]*)\)", body, re.M)
    check([int(n) for n, _ in items] == list(range(1, len(items) + 1)), f"{name}: numbers {[n for n, _ in items]}")
    check(len(items) > 3 and len({file for _, file in items}) == len(items), f"{name}: lessons {items}")
    return [file for _, file in items]


routes = {name: route(name) for name in NAMES}
on_a_route = {file for files in routes.values() for file in files}
for target in re.findall(r"\]\(([^)]*)\)", INDEX):
    file, _, anchor = target.partition("#")
    path = LESSONS / file
    check(path.exists(), f"the index: {target} is not there")
    check(not anchor or path.suffix != ".md" or anchor in headings(path), f"the index: {target} has no such heading")
for file in sorted(file for file in on_a_route if (LESSONS / file).exists()):
    paragraphs = (LESSONS / file).read_text().strip().split("\n\n")
    found = dict(re.findall(r"(\w+): \[[^\]]*\]\(([^)]*)\)", paragraphs[-1])) if paragraphs[-1].startswith("Next, ") else {}
    wanted = {}
    for name, files in routes.items():
        if file in files:
            wanted[name.lower()] = [*files, f"README.md#{name.lower()}"][files.index(file) + 1]
    check(found == wanted, f"{file}: leads on to {found}; its routes, to {wanted}")
    check(sum(p.startswith("Next") for p in paragraphs) == 1, f"{file}: one paragraph leads on")
for file in sorted(on_a_route):
    text = (LESSONS / file).read_text()
    exercises = re.split(r"^\d+\. ", text.partition("\n## Exercises\n")[2], flags=re.M)[1:]
    check(exercises, f"{file}: no exercises")
    for exercise in exercises:
        question, _, answer = exercise.partition("<details><summary>Answer</summary>\n\n")
        command = re.match(r" {7}(memtape|build/examples/\w+)", answer)
        check(question.strip() and command and "</details>" in answer, f"{file}: no answer by a command: {question}")
others = {path.name for path in LESSONS.glob("*.md")} - on_a_route - {"README.md"}
check(others == set(re.findall(r"\]\(([\w-]+\.md)\)", INDEX)) - on_a_route, f"lessons on no route: {others}, all to be named")
print("\n".join(faults) if faults else "all passed")
sys.exit(bool(faults))
