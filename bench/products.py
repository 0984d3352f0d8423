"""products.py: which library makes products of f32 faster, and in how many tiles; the rows of
src/backends/cpu/products/products.def that follow."""

import math
from dataclasses import dataclass

from cases import GPTS
from measure import started
from show import number, table

TILES = (1, 2, 4, 8)
FORMS = ("nt", "nn", "tn")
SIDES = (64, 256, 1024)
CUBES = (128, 512, 2048)
ONEDNN_ABOVE = 2 << 20  # multiply-adds; oneDNN asks the heap for memory
SHARED_FROM = 1 << 20  # from here on there is more than one tile (gemm.c)
NEAR = 0.95  # more tiles are for more threads: the most whose rate is so near the best one's
WORTH = 0.02  # a further row must make products faster by this, in the mean of those it is for


@dataclass(frozen=True)
class Shape:
    form: str
    m: int
    n: int
    k: int

    @property
    def macs(self):
        return self.m * self.n * self.k


def shapes(gpts, is_small):
    """Those of the models' linear layers, forward (nt) and of both gradients (nn and tn), and a grid of all forms."""
    found = set()
    for gpt in gpts:
        rows, d = gpt.b * gpt.s, gpt.d
        for wide, deep in ((3 * d, d), (d, d), (4 * d, d), (d, 4 * d), (gpt.vocab, d)):
            if rows * wide * deep <= 1 << 30:
                found |= {Shape("nt", rows, wide, deep), Shape("nn", rows, deep, wide), Shape("tn", wide, deep, rows)}
    sides = SIDES[:1] if is_small else SIDES
    grid = [(m, n, k) for m in sides for n in sides for k in sides]
    grid += [] if is_small else [(n, n, n) for n in CUBES]
    return sorted(found | {Shape(form, *of) for form in FORMS for of in grid}, key=lambda s: (s.form, s.macs, s.m, s.n))


def measure(sides, s):
    """{"processor", "libraries", "rows": [{"form", "m", "n", "k", library: {tiles: GFLOP/s}}]}. In processor time of one thread: a
    tile is one serial call, and this is what other work on the machine disturbs least."""
    rows = []
    with started([sides[0].changed(BENCH_CLOCK="cpu")], "products", 1) as (worker,):
        of = {words[0]: words[1:] for words in worker.greeting}
        for shape in shapes([g for g in GPTS if g.name in s.gpts], s.smoke):
            row = {"form": shape.form, "m": shape.m, "n": shape.n, "k": shape.k}
            took = 2 * shape.macs / 50  # ns, at a low rate
            for library in of["libraries"]:
                row[library] = {}
                for tiles in TILES:
                    if tiles > 1 and shape.macs < SHARED_FROM * tiles:
                        continue
                    ns = 0 if s.smoke else int(s.effort * max(3e7, 10 * took))
                    got = worker.ask("time", *(shape.form, shape.m, shape.n, shape.k), library, tiles, ns)
                    row[library][tiles] = float(got[0][1])
            rows.append(row)
        worker.end()
    return {"processor": of["processor"][0], "libraries": of["libraries"], "rows": rows}


# ---- the rows ----


def macs(row):
    return row["m"] * row["n"] * row["k"]


def best(row, library):
    """The best rate of a library in several tiles, if there are several."""
    rates = row[library]
    return max(rate for tiles, rate in rates.items() if tiles > 1 or len(rates) == 1)


def gain(rows, library):
    """The sum of the logarithms of its rates, or nothing if it may not make one of them."""
    if library == "onednn" and any(macs(row) <= ONEDNN_ABOVE for row in rows):
        return -math.inf
    return sum(math.log(best(row, library)) for row in rows)


def ranges(rows, libraries):
    """[(rows, library)], by multiply-adds: of all divisions into ranges the one with the greatest rates, each further
    range paid for."""
    groups = {}
    for row in rows:
        groups.setdefault(macs(row), []).append(row)
    groups = [groups[key] for key in sorted(groups)]
    reached = [(0, [])]  # for the first i groups
    for end in range(1, len(groups) + 1):
        options = []
        for begin in range(end):
            within = sum(groups[begin:end], [])
            for library in libraries:
                options.append((reached[begin][0] + gain(within, library) - WORTH * len(rows),
                                reached[begin][1] + [(within, library)]))
        reached.append(max(options, key=lambda option: option[0]))
    return reached[-1][1]


def tiles_for(rows, library):
    """The most tiles whose rate, in the mean of logarithms, is near the best; 1 where nothing is divided."""
    rates = {}
    for tiles in TILES[1:]:
        of = [row[library][tiles] / best(row, library) for row in rows if tiles in row[library]]
        if of:
            rates[tiles] = math.exp(sum(map(math.log, of)) / len(of))
    return max((tiles for tiles, rate in rates.items() if rate >= NEAR * max(rates.values())), default=1)


def bound(below, above):
    """A round number from which on a range is another: the largest power of two that divides them, or the first."""
    power = 1 << (above.bit_length() - 1)
    return power if power > below else above


def entries(measured):
    """The rows of products.def, as text."""
    out = []
    for form in FORMS:
        found, begins = ranges([row for row in measured["rows"] if row["form"] == form], measured["libraries"]), 0
        for i, (rows, library) in enumerate(found):
            last = i + 1 == len(found)
            end = None if last else bound(max(map(macs, rows)), min(map(macs, found[i + 1][0])))
            forms = "NT" if form == "nt" else f"{form.upper()} | TT" if form == "nn" else form.upper()
            out.append(f"PRODUCTS({measured['processor']}, MT_F32, {forms}, {begins}, "
                       f"{'MOST' if last else end - 1}, {library.upper()}, {tiles_for(rows, library)})")
            begins = end
    return out


def show(measured):
    lines = []
    for row in measured["rows"]:
        cells = [f"{row['m']}x{row['n']}x{row['k']}", row["form"], number(macs(row) / 1e6)]
        for library in measured["libraries"]:
            cells += [number(row[library].get(tiles)) for tiles in TILES]
        lines.append(cells)
    heads = [f"{library}, {tiles}" if tiles == 1 else str(tiles) for library in measured["libraries"] for tiles in TILES]
    return "\n".join([
        "Products of f32 on one thread, GFLOP/s of processor time: by each library in so many tiles at most",
        table(["m x n x k", "form", "million", *heads], lines, 2), "",
        "The rows of src/backends/cpu/products/products.def that follow", *(f"  {entry}" for entry in entries(measured))])
