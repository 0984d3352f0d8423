"""Every row of docs/experiments.md: its command is run, what the row shows is printed, and the article's
figure is equal to it or differs, as the row says. `--table` prints the rows with what came out."""
import os
import re
import shlex
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from lib import MEMTAPE, check, done, equal, worth

ROOT = Path(__file__).parents[3]
EXAMPLES = os.environ.get("EXAMPLES", str(ROOT / "build" / "examples"))
PAGE = ROOT / "docs" / "experiments.md"
UNITS = {"K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "P": 1e15, "GiB": 2**30,
         "days": 1}
NUMBER = r"(?<![\w.^-])\d[\d,]*(?:\.\d+)?(?:e\+?\d+)?(?![\w^-])(?: (?:GiB|days|[KMGTP])\b)?"


@dataclass
class Row:
    document: str
    claim: str
    command: str
    pieces: list  # of the command's output
    verdict: str

    def figures(self):
        return re.findall(r"\*\*(.+?)\*\*", self.claim)

    def kind(self):
        return re.split(r"[;:]", self.verdict)[0].strip()

    def name(self):
        return f"{self.claim} [{self.command}]"


def rows():
    found, document = [], ""
    for line in PAGE.read_text().splitlines():
        if line.startswith("## "):
            document = line[3:]
        cells = [cell.strip() for cell in line.split("|")[1:-1]]
        if len(cells) != 4 or cells[1] in ("command", "---"):
            continue
        command = found[-1].command if cells[1] == "the same" else cells[1].strip("`")
        found.append(Row(document, cells[0], command, re.findall("`(.+?)`", cells[2]), cells[3]))
    return found


def run(command):
    """What the command prints, a line at a time and each with single spaces; and its status."""
    words = shlex.split(command)
    program = MEMTAPE if words[0] == "memtape" else os.path.join(EXAMPLES, words[0])
    p = subprocess.run([program, *words[1:]], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                       cwd=ROOT, timeout=600, env={**os.environ, "OMP_NUM_THREADS": "1"})
    return [" ".join(line.split()) for line in p.stdout.splitlines()], p.returncode


def shown(piece, lines):
    """Whether a line has this piece, and not as a part of a longer word or number."""
    return any(re.search(rf"(?<![\w.,]){re.escape(piece)}(?![\w]|[.,]\d)", line) for line in lines)


def value(text):
    """(number, one of its last digit; 0 if it is exact)"""
    number, _, unit = text.strip().partition(" ")
    number = number.replace(",", "")
    digits, _, exponent = number.partition("e")
    scale = UNITS.get(unit, 1) * 10 ** int(exponent or 0)
    rounded = unit or exponent or "." in digits
    return float(digits) * scale, (10 ** -len(digits.partition(".")[2]) * scale) if rounded else 0


def figure_of(piece):
    numbers = list(re.finditer(NUMBER, piece))
    return (numbers[0] if numbers[0].start() == 0 else numbers[-1])[0]


def letters(lines):
    """The sizes in the heading: "block b=2 sequences of s=32 tokens, width h=64, ...". Some articles call
    the width d and the vocabulary V."""
    sizes = {letter: int(n) for letter, n in re.findall(r"\b([a-zA-Z])=(\d+)", lines[0])}
    return {**sizes, "d": sizes.get("h"), "V": sizes.get("v")}


def same(figure, piece, lines):
    printed, slack = value(figure_of(piece))
    if re.search("[a-z]", figure) and not re.fullmatch(NUMBER, figure):
        return abs(worth(figure, **letters(lines)) - printed) <= slack / 2
    claimed, last_digit = value(figure)
    return claimed == printed or abs(claimed - printed) < last_digit


def check_row(row, lines, status):
    equal(status == 0, row.kind() != "outside", f"{row.name()}: status {status}")
    check(row.kind() in ("equal", "differs", "outside"), f"{row.name()}: verdict {row.verdict!r}")
    check(row.kind() == "equal" or ": " in row.verdict, f"{row.name()}: no reason")
    check(row.pieces, f"{row.name()}: shows nothing")
    for piece in row.pieces:
        check(shown(piece, lines), f"{row.name()}: does not print: {piece}")
    figures = row.figures()
    check(len(figures) <= len(row.pieces), f"{row.name()}: a figure without a piece")
    if figures:
        found = all(same(figure, piece, lines) for figure, piece in zip(figures, row.pieces))
        equal("equal" if found else "differs", row.kind(), f"{row.name()}: figures against {row.pieces}")


def print_table(table, printed):
    document = command = ""
    for row in table:
        if row.document != document:
            document = row.document
            print(f"\n{document}\n{'=' * len(document)}")
        if row.command != command:
            command = row.command
            print(f"\n$ {command if command.startswith('memtape') else 'build/examples/' + command}")
        print(f"  {row.claim.replace('*', '')}")
        for piece in row.pieces:
            print(f"    {'' if shown(piece, printed[row.command][0]) else 'NOT PRINTED: '}{piece}")
        print(f"    -> {row.verdict}")
    print()


table = rows()
commands = sorted({row.command for row in table})
with ThreadPoolExecutor(os.cpu_count()) as pool:
    printed = dict(zip(commands, pool.map(run, commands)))
if "--table" in sys.argv:
    print_table(table, printed)
for row in table:
    check_row(row, *printed[row.command])
kinds = [row.kind() for row in table]
summary = (f"{len(table)} rows: {kinds.count('equal')} equal, {kinds.count('differs')} differ, "
           f"{kinds.count('outside')} outside.")
print(summary)
check(summary in PAGE.read_text().splitlines(), f"{PAGE.name} does not say: {summary}")
done()
