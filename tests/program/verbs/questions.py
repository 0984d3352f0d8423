"""Every question of docs/questions.md: its command is run, and its answer is what the page says and what is known: a verdict, or a
figure within 3 %; but for those that the page lists as not answered rightly yet, which are not. Questions come in turns (lib.case); those whose turn it is not count as the page has them. With --write all are
asked, and the answers written into the page."""
import functools
import json
import re
import shlex
import sys
from pathlib import Path
from lib import LONG, case, check, done, equal, run

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "questions.md"
UNITS = {"GiB": 2**30, "MiB": 2**20, "GB": 10**9}
# In the long form alone: a search of half a minute in which nothing fits, as in others that take a second.
DEAR = {"memtape fit llama-3.1-70b --gpus 8 --gpu a100-80"}
ROW = re.compile(r"\| \d+ \|.*\|")


@functools.cache
def answered(command):
    """The status, the object and the text of a command."""
    words = shlex.split(command)[1:]
    p = run(*words, *(["--json", "-"] if "--json" not in words else []), cwd=ROOT)
    check(p.returncode in (0, 1) and (p.returncode == 0 or not p.stdout or p.stdout[0] == "{"), f"{command}: {p.stderr}")
    return p.returncode, json.loads(p.stdout) if p.stdout else {}


def known(text):
    """A verdict, or the number that a formula or a figure with its unit stands for."""
    if text in ("fits", "does not fit"):
        return text
    number, _, unit = text.rpartition(" ") if text.split()[-1] in UNITS else (text, "", "")
    return eval(re.sub(r"[^0-9.+*/() -]", "", number.replace(",", "").replace(" x ", " * ")), {"__builtins__": {}}) * UNITS.get(unit, 1)


def peak_of(j):
    return max(j["steady"]["peak"], *(f["peak"] for f in j["phases"]))


def states_of(j, *, phase=3):
    at = j["phases"][phase]["at_peak"]
    return at["parameter"] + at["gradient"] + at["optimizer"]


def without(command, *names):
    """The command without these options and their values."""
    for name in names:
        command = re.sub(rf" --{name}( [^-]\S*)?(?= |$)", "", command)
    return command


def left_out(command):
    """The bytes of what the answer says it does not count."""
    j = answered(command)[1]
    rows = j["left_out"] if "left_out" in j else j["model"].get("left_out", []) if isinstance(j.get("model"), dict) else []
    return sum(row["bytes"] or 0 for row in rows)


def room(j):
    """What is left in the capacity that is asked for."""
    if "setups" in j:
        return j["capacity"] - j["setups"][0]["reserved"]
    return j["capacity"] - max(f["reserved_peak"] for f in [*j["phases"], *j["steady"]["phases"]])


def field(command, name):
    status, j = answered(command)
    name, *rest = name.split()
    if name == "verdict" and not status and left_out(command) and left_out(command) > room(j):
        return "too close"
    if name == "verdict":
        return "fits" if status == 0 else "does not fit"
    if name == "adapters":
        return j["params"]["count"] - answered(without(command, "lora-rank", "lora-targets"))[1]["params"]["count"]
    if name == "saved" and rest:
        return j["saved"]["bytes"] - answered(command.replace("--act gelu", "--act relu"))[1]["saved"]["bytes"]
    if name in ("served", "cache"):
        rows = [r for r in j["rows"] if r["cache"] == "preallocated" and (r["weights"] == rest[0] if name == "served" else r["positions"] == int(rest[0]))]
        return rows[0]["weight_bytes"] if name == "served" else rows[0]["cache_bytes"] // rows[0]["sequences"]
    return {"weights": lambda: j["params"]["bytes"], "states": lambda: states_of(j), "kept": lambda: sum(
        j["phases"][3]["by_category"][c] for c in ("parameter", "optimizer")) + j["phases"][3]["at_peak"]["gradient"],
            "peak": lambda: peak_of(j), "loaded": lambda: j["phases"][0]["reserved"], "saved": lambda: j["saved"]["bytes"],
            "checkpoints": lambda: j["memory_options"]["checkpoint"]["between"], "output": lambda: j["ops"][-1]["keeps"][-1]["bytes"]}[name]()


def answer(cells):
    """The cells of a row with what its command says; a ninth says why it is not right yet."""
    number, question, what, source, command, name = cells[:6]
    found, wanted = field(command.strip("`"), name), known(what)
    is_verdict = isinstance(wanted, str)
    ratio, said = 1 if is_verdict else found / wanted, left_out(command.strip("`"))
    right = found in (wanted, "too close") if is_verdict else 0.97 <= ratio <= 1.03
    if not is_verdict and not right and 0.97 <= (found + said) / wanted <= 1.03:
        return [*cells[:6], f"{found:,} + {said:,} that it says", f"{(found + said) / wanted:.3f}"]
    equal(right, len(cells) == 8, f"question {number}: {question}: {found} for {wanted}, ratio {ratio:.3f}: right")
    shown = [found, ""] if is_verdict else [f"{found:,}", "=" if found == wanted else f"{ratio:.3f}"]
    return [*cells[:6], *shown, *cells[8:]]


lines, verdicts, figures, exact, wrong = PAGE.read_text().splitlines(), 0, 0, 0, 0
for i, line in enumerate(lines):
    if not ROW.fullmatch(line):
        continue
    cells = [c.strip() for c in line.split("|")[1:-1]]
    asked = "--write" in sys.argv or case(int(cells[0])) and (LONG or cells[4].strip("`") not in DEAR)
    now = answer(cells) if asked else cells
    wrong += len(now) > 8
    verdicts += len(now) == 8 and not now[7]
    figures += len(now) == 8 and bool(now[7])
    exact += now[7] == "="
    equal(int(cells[0]), verdicts + figures + wrong, "the questions' numbers")
    if "--write" in sys.argv:
        lines[i] = "| " + " | ".join(now) + " |"
    else:
        equal(cells[6:8], now[6:8], f"question {cells[0]}: answer and ratio")
said = (f"**{verdicts + figures + wrong} questions: {verdicts} verdicts that are right and {figures} figures within 3 %, {exact} of them equal to the byte; "
        f"{wrong} that {'is' if wrong == 1 else 'are'} not answered rightly yet.**")
if "--write" in sys.argv:
    at = next(i for i, line in enumerate(lines) if re.fullmatch(r"\*\*.*questions.*\*\*", line))
    lines[at] = said
    PAGE.write_text("\n".join(lines) + "\n")
else:
    check(said in lines, f"questions.md does not say: {said}")
done()
