"""others.py: training steps of GPTs beside the other engines that python3 can import: PyTorch as it is and compiled, JAX,
MLX, tinygrad and magnetron, each driven as its own documentation does, and llm.c's loops (peers/)."""

import importlib.util
import math
import os
import sys

from cases import GPTS
from measure import check_losses, started
from scaling import taking_turns
from show import number, ratio, table
from worker import Failed, Side

NAMES = ("jax", "mlx", "tinygrad", "magnetron")
LONGEST = 10  # seconds: a side whose step would take longer is left out from that size on
SAME = 0.02  # first losses may differ by so much of memtape's: the weights are drawn by other generators


def all_sides(sides, s):
    """memtape, PyTorch's two forms, and whatever else there is; and what there is not."""
    found = [sides[0]]
    for side in sides[1:]:
        compiled = side.with_words("f32", "compile")
        side, compiled.name = side.with_words("f32"), "torch.compile"
        found += [side, compiled]
    missing = [] if len(found) > 1 else ["torch"]
    loops = os.path.join(os.path.dirname(s.program), "peer_llmc")
    if os.access(loops, os.X_OK):
        found.append(Side("llm.c", [loops], s))
    else:
        missing.append("llm.c")
    for name in NAMES:
        if importlib.util.find_spec(name):
            found.append(Side(name, [sys.executable, f"bench/peers/of_{name}.py"], s))
        else:
            missing.append(name)
    return found, missing


def one(side, gpt, s):
    """{"least", "median", "peak_kib", ...} of a side alone: others' waiting threads must not disturb it."""
    losses = [[]]
    with started([side], "gpt", *gpt.arguments, s.threads) as (worker,):
        times = sorted(taking_turns([worker], 2 * s.effort, s.rounds(3), losses)[0])
        last = worker.end()
        version = dict(words[:2] for words in worker.greeting).get("version")
    check_losses(f"{gpt.name}, {side.name}", losses[0])
    out = {"least": times[0] / 1e6, "median": times[len(times) // 2] / 1e6, "n": len(times), "version": version,
           "loss": losses[0][0], "peak_kib": int(last["memory"][1])}
    for name, key in ("books", "allocated"), ("analysis", "analysis"):
        if name in last:
            out[key] = int(last[name][0])
    return out


def too_slow(name, mine, rows):
    """Whether a step would take too long, by the size before, from which it grows as memtape's does."""
    if not rows:
        return False
    if name not in rows[-1]:
        return True
    return rows[-1][name]["least"] * mine["least"] / rows[-1]["memtape"]["least"] > 1e3 * LONGEST


def measure(sides, s):
    found, missing = all_sides(sides, s)
    rows = []
    for gpt in (g for g in GPTS if g.name in s.gpts):
        row = {"name": gpt.name}
        for side in found:
            if side.name == "memtape" or not too_slow(side.name, row["memtape"], rows):
                row[side.name] = one(side, gpt, s)
        mine = row["memtape"]["loss"]
        for side in found:
            theirs = row.get(side.name, row["memtape"])["loss"]
            if not math.isclose(theirs, mine, rel_tol=SAME):
                raise Failed(f"{gpt.name}: the first loss is {mine} here, {theirs} in {side.name}")
        rows.append(row)
    return {"sides": [side.name for side in found], "missing": missing, "rows": rows}


def cell(row, name, key):
    if name not in row:
        return ""
    mine, theirs = row["memtape"][key], row[name][key]
    return number(theirs) if name == "memtape" else f"{number(theirs)} {ratio(mine, theirs):>7}"


def show(measured):
    names, rows = measured["sides"], measured["rows"]
    text = ["One training step of a GPT in f32, ms, beside other engines, and how many times memtape's it is; nothing "
            f"where a step would take more than {LONGEST} s"]
    for key in ("least", "median"):
        text.append(table([key, *names], [[row["name"], *(cell(row, name, key) for name in names)] for row in rows]))
    if measured["missing"]:
        text.append(f"Not there: {', '.join(measured['missing'])}")
    peaks = [[row["name"], *(number(row[name][key] / 2 ** 20) for name, key in (("memtape", "allocated"), ("jax", "analysis"))),
              ratio(row["memtape"]["allocated"], row["jax"]["analysis"])] for row in rows if "jax" in row]
    if peaks:
        text += ["Peak of a step, MiB: what memtape's allocator counted, what JAX's memory_analysis() says of its program",
                 table(["", "memtape", "jax", "ratio"], peaks)]
    return "\n\n".join(text)
