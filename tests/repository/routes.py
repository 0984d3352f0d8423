"""The course: each of its three routes is numbered without a gap and its lessons are there. Each lesson has the title that the index gives, says in its first lines
where it stands on every route that it is on, with a link back, and in its last lines what comes next: with "write" as an
argument, both are written from the index. Links of the pages lead somewhere. Each lesson ends with exercises, and each exercise
with an answer by a command, which tests/program/verbs/lessons.py runs."""
import re
import sys
from pathlib import Path

DOCS = Path(__file__).resolve().parents[2] / "docs"
LESSONS = DOCS / "lessons"
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
    """The lessons of a route in order: (title, file)."""
    body = re.search(rf"^## {name}\n(.*?)(?=^## )", INDEX, re.S | re.M)[1]
    items = re.findall(r"^(\d+)\. \[([^\]]*)\]\(([^)]*)\)", body, re.M)
    check([int(n) for n, _, _ in items] == list(range(1, len(items) + 1)), f"{name}: numbers {[n for n, _, _ in items]}")
    check(len(items) > 3 and len({file for _, _, file in items}) == len(items), f"{name}: lessons {items}")
    return [(title, file) for _, title, file in items]


def link(place):
    return f"[{place[0]}]({place[1]})"


def led(file):
    """The paragraphs with which a lesson begins and ends: where it stands on each route, and what comes next."""
    first, last = [], []
    for name, places in routes.items():
        files = [f for _, f in places]
        if file in files:
            at = files.index(file)
            index = ("the routes", f"README.md#{name.lower()}")
            back = places[at - 1] if at else index
            first.append(f"*{name}, {at + 1} of {len(files)}.* Back: {link(back)}.")
            last.append(f"{name.lower()}: {link(places[at + 1] if at + 1 < len(files) else ('the end', index[1]))}")
    return "\\\n".join(first), "Next, " + ";\n".join(last)


def check_led(path):
    paragraphs = path.read_text().rstrip("\n").split("\n\n")
    first, last = led(path.name)
    title = next(title for places in routes.values() for title, file in places if file == path.name)
    if "write" in sys.argv[1:]:
        paragraphs[0] = f"# {title}"
        paragraphs[1:2] = [first] if paragraphs[1].startswith("*") else [first, paragraphs[1]]
        paragraphs[-1:] = [last] if paragraphs[-1].startswith("Next, ") else [paragraphs[-1], last]
        path.write_text("\n\n".join(paragraphs) + "\n")
    check(paragraphs[0] == f"# {title}", f"{path.name}: its title is not the index's, {title!r} (routes.py write)")
    check(paragraphs[1] == first, f"{path.name}: begins with {paragraphs[1]!r}, not {first!r} (routes.py write)")
    check(paragraphs[-1] == last, f"{path.name}: ends with {paragraphs[-1]!r}, not {last!r} (routes.py write)")


def check_links(path):
    text = re.sub(r"^ *```.*?^ *```$", "", path.read_text(), flags=re.S | re.M)
    for target in re.findall(r"\]\(([^)\s]*)\)", text):
        file, _, anchor = target.partition("#")
        page = path.parent / file if file else path
        if not re.match(r"[a-z]+:", target):
            check(page.exists(), f"{path.name}: {target} is not there")
            if anchor and page.suffix == ".md" and page.exists():
                check(anchor in headings(page), f"{path.name}: {target} has no such heading")


routes = {name: route(name) for name in NAMES}
on_a_route = {file for places in routes.values() for _, file in places}
check({file for _, file in routes["Student"]} == {f for f in on_a_route if int(f[:2]) <= len(routes["Student"])},
      "the student's lessons have the first numbers")
check([f for _, f in routes["Student"]] == sorted(f for _, f in routes["Student"]), "the student's lessons are numbered in order")
check(sorted(f[:2] for f in on_a_route) == [f"{n:02}" for n in range(1, len(on_a_route) + 1)],
      f"numbers in the files' names: {sorted(f[:2] for f in on_a_route)}")
for file in sorted(on_a_route):
    path = LESSONS / file
    if not path.exists():
        check(False, f"{file} is not there")
        continue
    check_led(path)
    exercises = re.split(r"^\d+\. ", path.read_text().partition("\n## Exercises\n")[2], flags=re.M)[1:]
    check(exercises, f"{file}: no exercises")
    for exercise in exercises:
        question, _, answer = exercise.partition("<details><summary>Answer</summary>\n\n")
        command = re.match(r" {3}```console\n {3}\$ (memtape|build/examples/\w+)", answer)
        check(question.strip() and command and "</details>" in answer, f"{file}: no answer by a command: {question}")
for path in [*LESSONS.glob("*.md"), *DOCS.glob("*.md"), DOCS.parent / "README.md"]:
    check_links(path)
others = {path.name for path in LESSONS.glob("*.md")} - on_a_route - {"README.md"}
check(others == set(re.findall(r"\]\(([\w-]+\.md)\)", INDEX)) - on_a_route, f"lessons on no route: {others}, all to be named")
print("\n".join(faults) if faults else "all passed")
sys.exit(bool(faults))
