"""What the lessons quote of the program, and of their own programs in examples/, is what these print: each
line of it, and each figure of the table of published ones. Pictures are what the programs draw. Code that names
its file ("```c src/ops/ops.def") stands there as it is quoted. `write` draws the pictures anew; `page FILE` only lists
what is compared."""
import functools
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path
from lib import check, done, equal, run

ROOT = Path(__file__).parent.parent.parent
LESSONS = ROOT / "docs" / "lessons"
# All of their commands but trainings that do not run on meta. "…" in a line is what differs from
# one machine to the next; "..." is lines left out. A command that runs out of memory ends with status 1.
QUOTED = ["1-what-is-saved.md", "2-three-numbers.md", "3-a-transformer-block.md", "4-hooks.md", "audit.md", "budget.md",
          "checkpoints.md", "dtypes.md", "expressions.md", "gradients.md", "kv-cache.md", "lora.md", "meta.md",
          "mixed-precision.md", "optimizer.md", "own-backend.md", "own-op.md", "parallel.md", "planning.md", "slips.md",
          "spending-less.md", "step.md", "timeline.md", "views.md", "walk.md", "workspaces.md"]
PICTURES = {"one_tensor": "staircase.svg", "optimizer_steps": "optimizer-steps.svg", "walk": "tape.svg",
            "gelu_or_relu": "storages.svg", "views": "views.svg"}


LONG = os.environ.get("MTT_LONG") == "1"
# The backend of own-backend.md, which the program does not find beside itself.
os.environ["MEMTAPE_TALLY_MODULE"] = str(Path(os.environ["EXAMPLES"]) / "libmemtape-tally.so")
DRAWN = Path(tempfile.mkdtemp())
drawn = set()


def keep(picture, status, command):
    """Holds a picture of the lessons against what has just been drawn; with "write" as an argument, replaces it."""
    equal(status, 0, f"status of {command}")
    new = (DRAWN / picture).read_text() if (DRAWN / picture).exists() else ""
    if "write" in sys.argv[1:]:
        (LESSONS / picture).write_text(new)
    check(new == (LESSONS / picture).read_text(), f"{picture} is not what this draws (lessons.py write): {command}")


def run_example(name, *args):
    return subprocess.run([Path(os.environ["EXAMPLES"]) / name, *args], stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE, text=True, timeout=600)


@functools.cache
def run_quoted(command):
    """With a picture of these lessons: compares it, or writes it anew."""
    words = shlex.split(command)
    if not LONG and words[:2] == ["memtape", "sweep"] and "meta" not in words:
        words += ["--steps", "1"]  # of its medians no figure is quoted
    if "--svg" in words:
        at = words.index("--svg") + 1
        picture, words[at] = words[at], str(DRAWN / words[at])
        drawn.add(picture)
        p = run(*words[1:])
        keep(picture, p.returncode, command)
        return p
    return run(*words[1:], cwd=LESSONS.parent.parent) if words[0] == "memtape" else run_example(Path(words[0]).name, *words[1:])


def plain(line):
    return " ".join(line.split())


def quotations(text):
    """(command, lines quoted after it, figure after a "#" in its line) of the indented blocks."""
    found, open_one = [], False
    for line in re.sub(r"\\\n\s+", "", text).splitlines():
        if re.match(r" {4,}(\$ )?(memtape (?!train (?!.*--device meta)|generate)|build/examples/)", line):
            command, _, figure = line.strip(" $").partition("  # ")
            found.append((command, [], figure))
            open_one = True
        elif line.startswith("    ") and open_one:
            found[-1][1].extend([plain(line)] if line.strip() not in ("", "...") else [])
        elif line.strip():  # prose: indented lines after it are not output
            open_one = False
    return found


def figures():
    """(command, formula, measured) for each row; "the same, `-b 16`" adds -b 16 to the row before."""
    command, rows = "", []
    for line in (LESSONS / "planning.md").read_text().splitlines():
        cells = [cell.strip() for cell in line.split("|")[1:-1]]
        if len(cells) != 5 or "`" not in cells[0]:
            continue
        quoted = re.search("`(.*)`", cells[0])[1]
        command = re.sub(r" -b \d+", "", command) + " " + quoted if "the same" in cells[0] else quoted
        rows.append((command, cells[2], cells[3]))
    return rows


def figures_page(docs):
    """Each command of the lessons, and what of its output is compared; `docs` is where its links find the folder."""
    lines = ["# The figures of the lessons, and what checks them", "",
             "Every command below is run by the tests, and every line that the lesson quotes of it is compared with what it prints;",
             "a picture is drawn again and compared byte for byte. `meson test 'program lessons'` does it",
             "(`tests/cli/lessons.py`; with `write` it draws the pictures anew). The articles' figures are",
             f"on [a page of their own]({docs}/experiments.md), which `./run experiments` checks, and the published measurements on",
             f"[another]({docs}/published.md)."]
    for lesson in QUOTED:
        text = (LESSONS / lesson).read_text()
        title = text.splitlines()[0].strip("# ")
        lines += ["", f"## [{title}]({docs}/lessons/{lesson})", "", "| command | compared |", "|---|---|"]
        for command, quotes, figure in quotations(text):
            picture = re.search(r"--svg (\S+)", command)
            what = [f"[{name}]({docs}/lessons/{name})" for name in picture.groups()] if picture else []
            what += [figure] * bool(figure)
            what += [f"{len(quotes)} line{'s' * (len(quotes) > 1)}"] * bool(quotes)
            lines.append(f"| `{command}` | {', '.join(what) or 'its status'} |")
        lines += [f"| `build/examples/{program} {picture}` | [{picture}]({docs}/lessons/{picture}) |"
                  for program, picture in PICTURES.items() if f"({picture})" in text]
        if lesson == "planning.md":
            lines += [f"| `{command} --json -` | {formula}, {measured} |" for command, formula, measured in figures()]
    return "\n".join(lines) + "\n"


if sys.argv[1:2] == ["page"]:
    page = Path(sys.argv[2])
    page.write_text(figures_page(os.path.relpath(LESSONS.parent, page.parent)))
    sys.exit()

for name in QUOTED:
    quoted = quotations((LESSONS / name).read_text())
    lines_of_it = sum(len(lines) for _, lines, _ in quoted)
    check(quoted and lines_of_it > 1, f"{name}: {len(quoted)} commands, {lines_of_it} lines")
    for command, lines, figure in quoted:
        p = run_quoted(command)
        equal(p.returncode, int("Out of memory" in "".join(lines[:1])), f"{name}: status of {command}: {p.stderr}")
        printed = [plain(line) for line in p.stdout.splitlines()]
        if figure:
            check(f" {int(figure):,} " in p.stdout, f"{name}: {command} does not print {figure}")
        for line in lines:
            wanted = re.compile(re.escape(line).replace("…", ".*"))
            check(any(map(wanted.fullmatch, printed)), f"{name}: {command} does not print: {line}")


for page in sorted(LESSONS.glob("*.md")):
    for file, code in re.findall(r"^```c (\S+)\n(.*?)^```$", page.read_text(), re.S | re.M):
        check(code and code in (ROOT / file).read_text(), f"{page.name}: not in {file}:\n{code}")


def is_either(command, formula, measured, j):
    """Whether one item of the plan has this formula's value and this measurement."""
    def same(text, value):
        days = "." in text
        return abs(value / 86400 - float(text)) <= 0.005 if days else value == int(text.replace(",", ""))

    value = formula.split(": ")[-1]  # after an expression, if there is one
    if j["time"] and "." in value:
        return same(value, j["time"]["formula_s"]) and same(measured, j["time"]["measured_s"])
    return any(same(value, item["value"]) and same(measured, item["measured"]) for item in j["formulas"])


for program, picture in PICTURES.items():
    keep(picture, run_example(program, DRAWN / picture).returncode, program)
equal({p.name for p in LESSONS.glob("*.svg")} - drawn, set(PICTURES.values()), "pictures that nothing draws")

rows = figures()
check(len(rows) > 15, f"rows of figures: {len(rows)}")
for command, formula, measured in rows:
    p = run(*shlex.split(command), "--json", "-")
    equal(p.returncode, 0, f"status of {command}: {p.stderr}")
    check(is_either(command, formula, measured, json.loads(p.stdout)),
          f"planning.md: {command}: not {formula} by formula and {measured} measured")
done()
