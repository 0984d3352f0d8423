"""What the lessons quote of the program is what the program prints: each line of it, and each figure of
the table of published ones."""
import json
import re
import shlex
from pathlib import Path
from lib import check, done, equal, run

LESSONS = Path(__file__).parent.parent.parent / "docs" / "lessons"
# Without training and without times.
QUOTED = ["parallel.md", "planning.md", "slips.md"]


def plain(line):
    return " ".join(line.split())


def quotations(text):
    """(command, lines quoted after it) of the indented blocks."""
    found, open_one = [], False
    for line in re.sub(r"\\\n\s+", "", text).splitlines():
        if line.startswith("    memtape "):
            found.append((line[4:], []))
            open_one = True
        elif line.startswith("    ") and open_one:
            found[-1][1].append(plain(line))
        elif line.strip():  # prose: what is indented after it is no output
            open_one = False
    return found


def figures():
    """(command, formula, measured) of the table; "the same, `-b 16`" is the row before with that."""
    command, rows = "", []
    for line in (LESSONS / "planning.md").read_text().splitlines():
        cells = [cell.strip() for cell in line.split("|")[1:-1]]
        if len(cells) != 5 or "`" not in cells[0]:
            continue
        quoted = re.search("`(.*)`", cells[0])[1]
        command = re.sub(r" -b \d+", "", command) + " " + quoted if "the same" in cells[0] else quoted
        rows.append((command, cells[2], cells[3]))
    return rows


for name in QUOTED:
    quoted = quotations((LESSONS / name).read_text())
    check(len(quoted) > 2 and sum(len(lines) for _, lines in quoted) > 15, f"{name}: {len(quoted)} commands")
    for command, lines in quoted:
        p = run(*shlex.split(command)[1:])
        equal(p.returncode, 0, f"{name}: status of {command}: {p.stderr}")
        printed = {plain(line) for line in p.stdout.splitlines()}
        for line in lines:
            check(line in printed, f"{name}: {command} does not print: {line}")


def is_either(command, formula, measured, j):
    """Whether one item of the plan has this formula's value and this measurement."""
    def same(text, value):
        days = "." in text
        return abs(value / 86400 - float(text)) <= 0.005 if days else value == int(text.replace(",", ""))

    value = formula.split(": ")[-1]  # after an expression, if there is one
    if j["time"] and "." in value:
        return same(value, j["time"]["formula_s"]) and same(measured, j["time"]["measured_s"])
    return any(same(value, item["value"]) and same(measured, item["measured"]) for item in j["formulas"])


rows = figures()
check(len(rows) > 15, f"rows of figures: {len(rows)}")
for command, formula, measured in rows:
    p = run(*shlex.split(command), "--json", "-")
    equal(p.returncode, 0, f"status of {command}: {p.stderr}")
    check(is_either(command, formula, measured, json.loads(p.stdout)),
          f"planning.md: {command}: not {formula} by formula and {measured} measured")
done()
