"""docs/tasks.md and docs/lessons/tape-in-python.md: each task's engines, in Python and in C, keep too much and are right; with the page's solution they have done it; with
a wrong backward they have not."""
import io
import json
import os
import re
import subprocess
import sys
import tempfile
from contextlib import redirect_stdout
from pathlib import Path
ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "tests" / "program" / "verbs"))
import memtape.events  # noqa: E402
from lib import check, done, equal  # noqa: E402

FILES = ROOT / "examples" / "engines"
PAGE = (ROOT / "docs" / "tasks.md").read_text()
FOLDER = Path(tempfile.mkdtemp())
TASKS = ["relu", "gelu", "dropout", "softmax", "frozen", "checkpoint"]
# What makes a gradient wrong, and changes no byte that is kept: (task, where, instead).
MISTAKES = {"tape.py": [("relu", "(g * m for g, m in", "(g for g, m in"), ("softmax", "a * (g - dot)", "a * g"), ("frozen", "dy[i * m + c] * w[j * m + c]", "dy[i * m + c] * w[c * k + j]")],
            "tape.c": [("gelu", "numbers(x)[i] * numbers(density)[i]", "numbers(density)[i]"), ("dropout", "numbers(n->grad)[i] * numbers(scale)[i]", "numbers(n->grad)[i]")]}


def section(task):
    return re.search(rf"^## {task}\n(.*?)(?=^## |\Z)", PAGE, re.S | re.M)[1]


def solution(task, language):
    return re.search(rf"```{language}\n(.*?)```", section(task), re.S)[1]


def solved(text, code, of_function):
    """The engine with functions of the same names replaced; new ones stand before the next one that has been there."""
    new = ""
    for part in re.split(r"\n\n(?=static |def )", code.strip()):
        name = re.search(r"(\w+)\(", part)[1]
        found = re.search(of_function.format(name=name), text, re.S | re.M)
        new += part + "\n\n"
        if found:
            text, new = text.replace(found[0], new.rstrip("\n") + "\n"), ""
    equal(new, "", "functions of a solution that have no place")
    return text


OF_PYTHON = r"^def {name}\(.*?\n(?=\n\n\S)"
OF_C = r"^static [^\n]*\b{name}\((?:[^\n]*\}}\n|[^\n;]*\n\{{\n.*?^\}}\n)"


def ran(name, text, task):
    """Runs an engine's step of a task in FOLDER."""
    (FOLDER / name).write_text(text)
    if name.endswith(".py"):
        words = [sys.executable, name]
    else:
        words = ["./tape"]
        built = subprocess.run([os.environ.get("CC", "cc"), "-std=c11", "-Wall", "-Wextra", "-Werror", "-o", "tape", name, "-lm"], cwd=FOLDER,
                               capture_output=True, text=True)
        equal((built.returncode, built.stderr), (0, ""), f"{name} for {task}")
    p = subprocess.run([*words, task], cwd=FOLDER, capture_output=True, text=True, timeout=60)
    equal((p.returncode, p.stderr), (0, ""), f"{name} {task}")


def graded(task):
    out = io.StringIO()
    with redirect_stdout(out):
        status = memtape.events.main([str(FOLDER / "events.jsonl"), "--task", str(FILES / "tasks" / f"{task}.json")])
    return status, out.getvalue()


def kept():
    return memtape.events.read(FOLDER / "events.jsonl")["saved"]["bytes"]


for file in [*FILES.glob("events.*"), *(FILES / "tasks").iterdir()]:
    if file.is_file():
        (FOLDER / file.name).write_bytes(file.read_bytes())
equal(sorted(path.stem for path in (FILES / "tasks").glob("*.json")), sorted(TASKS), "tasks")
table = re.findall(r"^\| \[(\w+)\]\(#\1\) \|.*\| ([\d,]+) \| ([\d,]+) \|$", PAGE, re.M)
equal([row[0] for row in table], TASKS, "tasks of the page")
for name, language, of_function in (("tape.py", "python", OF_PYTHON), ("tape.c", "c", OF_C)):
    engine = (FILES / "tasks" / name).read_text()
    for task, before, after in table:
        ran(name, engine, task)
        status, out = graded(task)
        check(status == 1 and out.startswith("not yet: ") and "the gradient of " not in out, f"{name} {task} before: {out}")
        equal(f"{kept():,}", before, f"{name} {task}: bytes before")
        hint = json.loads((FILES / "tasks" / f"{task}.json").read_text())["hint"]
        equal(out.splitlines()[-1], hint, "the hint")
        ran(name, solved(engine, solution(task, language), of_function), task)
        equal(graded(task)[0], 0, f"{name} {task} solved: {graded(task)[1]}")
        equal(f"{kept():,}", after, f"{name} {task}: bytes after")
    for task, right, wrong in MISTAKES[name]:
        equal(engine.count(right), 1, f"places of {right}")
        ran(name, engine.replace(right, wrong), task)
        status, out = graded(task)
        check(status == 1 and "the gradient of " in out, f"{name} {task} with {wrong}: {out}")
    ran(name, engine, "relu")
(FOLDER / "tape").unlink()
# The pages: commands print what is shown, and the page that builds the engine has its functions.
PYTHON_PAGE = (ROOT / "docs" / "lessons" / "tape-in-python.md").read_text()
n = 0
for block in re.findall(r"```console\n(.*?)```", PAGE + PYTHON_PAGE, re.S):
    for command, shown in re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", block, re.M):
        p = subprocess.run(["sh", "-c", command], cwd=FOLDER, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=60)
        equal(p.stdout[-len(shown[4:]):] if shown.startswith("...\n") else p.stdout, shown.removeprefix("...\n"), f"what {command} prints")
        n += 1
equal(n, 11, "commands of the pages")
blocks = re.findall(r"```python\n(.*?)```", PYTHON_PAGE, re.S)
for block in blocks:
    check(block in (FILES / "tasks" / "tape.py").read_text(), f"the engine does not have what the page shows: {block}")
equal(len(blocks), 5, "blocks of the page")
for words in ([sys.executable, "tape.py"], [sys.executable, "tape.py", "tanh"], ["./tape"], ["./tape", "relu, gelu"], ["./tape", "relu", "gelu"]):
    p = subprocess.run(words, cwd=FOLDER, capture_output=True, text=True)
    check(p.returncode in (1, 2) and "name a task: relu, gelu" in p.stderr, f"{words}: {p.returncode} {p.stderr}")
done()
