"""Every figure of docs/published.md: each command is run, once, and its bytes are those of the page; formulas are worked
out, rows added up, and ratios and the first line follow from the bytes and from what was published. With --write the
figures that are computed are written into the page, and into the sentence of README that sums it up."""
import functools
import math
import re
import shlex
import struct
import sys
from pathlib import Path
from lib import check, done, equal, profile, run, worth

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "published.md"
README = ROOT / "README.md"
GIB, MIB, GB = 2**30, 2**20, 10**9
UNITS = {"GiB": GIB, "MiB": MIB, "GB": GB, "bytes": 1}
RUN = re.compile(r"\| \d+ \| [^|]+ \| [0-9.,]+ (?:GiB|MiB|GB|bytes) \|")


def cells_of(line):
    return [cell.strip().strip("`") for cell in line.split("|")[1:-1]]


def tables():
    """The rows of each table, by the heading above it: lists of cells, without their code marks."""
    found, heading = {}, None
    for line in PAGE.read_text().splitlines():
        if line.startswith("#"):
            heading = line.lstrip("# ")
        cells = cells_of(line)
        if cells and not re.fullmatch(r"-*", cells[0]):
            found.setdefault(heading, []).append(cells)
    return found


def number(text):
    return int(text.replace(",", ""))


@functools.cache
def measured(command):
    words = shlex.split(command)
    check(words[0] == "memtape" and words[1] in ("profile", "explain"), f"begin of: {command}")
    paths = [str(ROOT / word) if ".json" in word else word for word in words[2:]]
    if words[1] == "profile":
        return profile(*paths)
    p = run("explain", *paths)
    equal(p.returncode, 0, f"status of {command}: {p.stderr}")
    shapes = dict(shape.split("=") for shape in words[words.index("--shapes") + 1].split(","))
    return {"elements": {name: math.prod(map(int, shape.split("x"))) for name, shape in shapes.items()},
            "peaks": [number(line.split()[-1]) for line in p.stdout.splitlines()[-3:]]}


def phase(p, name):
    return next(phase for phase in p["phases"] if phase["name"] == name)


# What the page calls each figure, as the command's result has it.
FIGURES = {
    "reserved": lambda p: p["steady"]["reserved"],
    "active": lambda p: p["steady"]["peak"],
    "reserved, first step": lambda p: max(phase["reserved_peak"] for phase in p["phases"]),
    "forward peak": lambda p: phase(p["steady"], "forward")["peak"],
    "forward peak, first step": lambda p: phase(p, "forward")["peak"],
    "held": lambda p: phase(p["steady"], "backward")["allocated"],
    "held, flat": lambda p: phase(p["steady"], "backward")["requested"],
    "forward": lambda p: p["peaks"][0],
    "step": lambda p: p["peaks"][1],
    "retained": lambda p: p["peaks"][2],
}


def letters(p):
    if "elements" in p:
        return p["elements"]
    model = p["model"]
    return {"b": model["batch"], "s": model["seq"], "h": model["hidden"], "a": model["heads"],
            "k": (model["kv_heads"] or 0) * model["hidden"] // (model["heads"] or 1), "L": model["layers"], "v": model["vocab"], "E": model.get("experts", 0),
            "f": model["ffn"], "P": p["params"]["count"], "N": p["parallel"]["dp"] if p["parallel"] else 1}


def exact(bytes, figure, unit):
    """Whether the published figure is these bytes; MiB are published as a 32-bit float."""
    as_float = struct.pack("f", bytes / MIB)
    return bytes == figure if unit == "bytes" else unit == "MiB" and as_float == struct.pack("f", figure)


def computed(cells, commands, formulas):
    """The last cells of a run's row (bytes, rows, with these rows, ratio), and how far it is off: None, to the byte."""
    published, kind, named = cells[2], cells[3], cells[5]
    figure, unit = float(published.split()[0].replace(",", "")), published.split()[1]
    p = measured(commands[cells[0]])
    bytes = total = FIGURES[kind](p)
    if named:
        total = p["steady"]["peak"] if kind == "reserved" else bytes
        total += int(sum(worth(formulas[name], **letters(p)) for name in named.split(", ")))
    off = total / (figure * UNITS[unit]) - 1
    same = exact(total, figure, unit)
    ratio = "=" if same else f"{1 + off:.3f}"
    return [f"{bytes:,}", named, f"{total:,}" if named else "", ratio], (None if same else off)


def near(offs, limit):
    return sum(off is None or abs(off) <= limit for off in offs)


def summary(offs, impossible):
    return (f"**{len(offs) + impossible} measurements: {near(offs, 0.01)} within 1 %, {near(offs, 0.02)} within 2 %, "
            f"{near(offs, 0.05)} within 5 %, {len(offs) - near(offs, 0.05)} not; {offs.count(None)} of them are equal to the "
            f"byte, and {impossible} are impossible.**")


def short(offs, impossible):
    """What README says of it."""
    return (f"Of {len(offs) + impossible} peaks that others measured on GPUs and [published](docs/published.md), memtape predicts "
            f"{near(offs, 0.01)} within 1 % and {near(offs, 0.05)} within 5 %.")


def follow(cells, bytes, published, name):
    """GiB, ratio and verdict are those that the bytes give."""
    equal(cells, [f"{bytes / GIB:.2f}", f"{bytes / GIB / published:.2f}",
                  "yes" if abs(bytes / GIB / published - 1) <= 0.05 else "no"], f"{name}: GiB, ratio, verdict")


def check_impossible(rows):
    """A published figure below the sum of parameters, gradients and moments."""
    for _, published, command, formula, bytes, over in rows:
        p = measured(command)
        equal(number(bytes), worth(formula, **letters(p)), f"{command}: {formula}")
        figure = float(published.split()[0]) * GB
        equal(over, f"{(number(bytes) - figure) / GB:.2f} GB", f"{command}: more than was published")
        check(number(bytes) > figure, f"{command}: {published} is not impossible")


def check_constants(rows, parameters):
    """What Megatron-LM's case with full recomputation holds beside 18 bytes for each parameter, row by row."""
    *parts, total = [[number(cell) for cell in cells[1:]] for cells in rows]
    equal([sum(column) for column in zip(*parts)], total, "sums of Megatron-LM's constants")
    equal([18 * parameters + constants for constants in total], [1234585088, 1259751936], "with 18 bytes a parameter")


def check_page(page, write):
    commands = {numbers: cells[1] for cells in page["Commands"] for numbers in cells[0].split(", ")}
    formulas = {name: formula for name, formula, _ in page["Rows"][1:]}
    text, offs, used = PAGE.read_text().splitlines(), [], set()
    for i, line in enumerate(text):
        if not RUN.match(line):
            continue
        cells = cells_of(line)
        check(cells[0] in commands, f"row {cells[0]}: no command")
        last, off = computed(cells, commands, formulas)
        offs.append(off)
        used |= {cells[0], *cells[5].split(", ")}
        if write:
            text[i] = "| " + " | ".join(cells[:4] + last) + " |"
        else:
            equal(cells[4:], last, f"row {cells[0]}: bytes, rows, bytes with them, ratio")
    equal({*commands, *formulas} - used, set(), "commands or rows of no run")
    impossible = page["Impossible"][1:]
    check_impossible(impossible)
    check_constants(page["Constants"][1:], measured(commands["51"])["params"]["count"])
    line = summary(offs, len(impossible))
    print(line)
    for limit, least in ((0.01, 60), (0.02, 75), (math.inf, 90)):
        check(near(offs, limit) >= least, f"{near(offs, limit)} runs within {limit:.0%}, wanted {least}")
    if write:
        text = [line if each.startswith("**") and "measurements:" in each else each for each in text]
        PAGE.write_text("\n".join(text) + "\n")
        README.write_text(re.sub(r"^Of \d+ peaks .* within 5 %\.", short(offs, len(impossible)), README.read_text(), flags=re.M))
    else:
        check(line in text, f"{PAGE.name} does not say: {line}")
        check(short(offs, len(impossible)) in README.read_text(), f"README does not say: {short(offs, len(impossible))}")
    published = {cells[0]: float(cells[2].split()[0]) for name in page for cells in page[name]
                 if len(cells) == 8 and cells[2].endswith(" GiB")}
    for row, bytes, *rest in page["With expandable segments"][1:]:
        p = measured(commands[row] + " --expandable-segments")
        equal(number(bytes), p["steady"]["reserved"], f"row {row}, expandable: bytes reserved")
        follow(rest, number(bytes), published[row], f"row {row}, expandable")
    return commands, published


def near_fsdp2(commands, published):
    """torchtitan's runs whose segments are known, and the first step of one, in which the moments are made."""
    for row, kind, within in [("1", "reserved", 0.01), ("2", "reserved", 0.01), ("29", "reserved", 0.003),
                              ("30", "reserved, first step", 0.003)]:
        bytes = FIGURES[kind](measured(commands[row]))
        check(abs(bytes / GIB / published[row] - 1) <= within, f"row {row}: {bytes / GIB:.2f} GiB for {published[row]}")


near_fsdp2(*check_page(tables(), "--write" in sys.argv))
done()
