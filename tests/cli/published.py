"""Every figure of docs/published.md: each row's command is run, and its bytes are those of the page; formulas are
worked out, rows added up, and ratios, GiB and verdicts follow from the bytes and from what was published."""
import re
import shlex
from pathlib import Path
from lib import check, done, equal, profile, worth

ROOT = Path(__file__).parent.parent.parent
PAGE = ROOT / "docs" / "published.md"
GIB = 2**30


def tables():
    """The rows of each table, by the heading above it: lists of cells, without their code marks."""
    found, heading = {}, None
    for line in PAGE.read_text().splitlines():
        if line.startswith("#"):
            heading = line.lstrip("# ")
        cells = [cell.strip().strip("`") for cell in line.split("|")[1:-1]]
        if cells and re.fullmatch(r"\d+", cells[0]):
            found.setdefault(heading, []).append(cells)
    return found


def number(text):
    return int(text.replace(",", ""))


def measured(command):
    words = shlex.split(command)
    equal(words[:2], ["memtape", "profile"], f"begin of: {command}")
    paths = [str(ROOT / word) if word.endswith(".json") else word for word in words[2:]]
    return profile(*paths)


def letters(p):
    model = p["model"]
    return {"b": model["batch"], "s": model["seq"], "h": model["hidden"], "a": model["heads"],
            "k": model["kv_heads"] * model["hidden"] // model["heads"], "L": model["layers"], "v": model["vocab"],
            "f": model["ffn"], "P": p["params"]["count"], "N": p["parallel"]["dp"] if p["parallel"] else 1}


def follow(cells, bytes, published, name):
    """GiB, ratio and verdict are those that the bytes give."""
    equal(cells, [f"{bytes / GIB:.2f}", f"{bytes / GIB / published:.2f}",
                  "yes" if abs(bytes / GIB / published - 1) <= 0.05 else "no"], f"{name}: GiB, ratio, verdict")


def check_page(page):
    commands = dict(page["Commands"])
    predicted, published, profiles, verdicts = {}, {}, {}, {}
    for row, _, figure, kind, bytes, *rest in page["Predicted"]:
        name = f"row {row}"
        check(row in commands, f"{name}: no command")
        p = profiles[row] = measured(commands.pop(row))
        equal(number(bytes), p["steady"][{"reserved": "reserved", "active": "peak"}[kind]], f"{name}: bytes {kind}")
        predicted[row], published[row], verdicts[row] = p["steady"]["peak"], float(figure), rest[-1]
        follow(rest, number(bytes), published[row], name)
    check(not commands, f"commands of no row: {commands}")
    for row, formula, bytes, _ in page["Known differences, in rows"]:
        sign, formula = (-1, formula[1:]) if formula.startswith("-") else (1, formula)
        equal(number(bytes), sign * worth(formula, **letters(profiles[row])), f"row {row}: {formula}")
        predicted[row] += number(bytes)
    for row, bytes, *rest in page["With expandable segments"]:
        p = measured(dict(page["Commands"])[row] + " --expandable-segments")
        equal(number(bytes), p["steady"]["reserved"], f"row {row}, expandable: bytes reserved")
        follow(rest, number(bytes), published[row], f"row {row}, expandable")
    added = [cells[0] for cells in page["Known differences, in rows"]]
    equal([cells[0] for cells in page["With these rows"]], sorted(set(added), key=int), "measurements with rows")
    for row, bytes, *rest, left in page["With these rows"]:
        equal(number(bytes), predicted[row], f"row {row}: its peak with its rows")
        follow(rest, number(bytes), published[row], f"row {row} with its rows")
        equal(left, f"{published[row] - number(bytes) / GIB:.2f}", f"row {row}: what is left")
        verdicts[row] = rest[-1]
    yes = list(verdicts.values()).count("yes")
    summary = f"{len(verdicts)} measurements: {yes} within 5 %, {len(verdicts) - yes} not."
    print(summary)
    check(summary in PAGE.read_text().splitlines(), f"{PAGE.name} does not say: {summary}")


def near_fsdp2(page):
    """torchtitan's runs whose segments are known, and the first step of one, in which the moments are made."""
    published = {row: (float(figure), int(number(bytes))) for row, _, figure, _, bytes, *_ in page["Predicted"]}
    for row, within in [("1", 0.01), ("2", 0.01), ("29", 0.003)]:
        figure, bytes = published[row]
        check(abs(bytes / GIB / figure - 1) <= within, f"row {row}: {bytes / GIB:.2f} GiB for {figure}")
    first = max(phase["reserved_peak"] for phase in measured(dict(page["Commands"])["29"])["phases"])
    check(f"{first:,} bytes, {first / GIB:.2f} GiB" in " ".join(PAGE.read_text().split()), f"row 29's first step: {first:,}")
    check(abs(first / GIB / 42.08 - 1) <= 0.003, f"row 29's first step: {first / GIB:.2f} GiB for 42.08")


check_page(tables())
near_fsdp2(tables())
done()
