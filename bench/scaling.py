"""scaling.py: how the time of a step grows: with the batch, the sequence, the width and the layers, against its FLOPs
and bytes, on one thread and on all; and what other work on the machine does to it."""

import math
import os
import subprocess
import sys
import time
from contextlib import contextmanager

from cases import BUSY_GPTS, SMOKE_SWEEPS, SWEEPS, adamw_bytes, swept
from measure import started, steps_of
from show import number, ratio, table

SPIN = "2000"  # a GOMP_SPINCOUNT that PyTorch's users would have to know of
# Ends with this process, however that ends.
OTHER_WORK = """import os
parent = os.getppid()
print(flush=True)
while os.getppid() == parent:
    sum(range(1 << 16))
"""


SETTLED = 0.02  # so little apart are the least steps of a side's two best turns
MOST_ROUNDS = 12


def is_settled(turns):
    best = sorted(map(min, turns))
    return len(best) > 1 and best[1] <= (1 + SETTLED) * best[0]


def taking_turns(workers, seconds, rounds, losses=None):
    """The time of every step in ns, for each worker; to losses[i] those of worker i are added."""
    return [sum(turns, []) for turns in turns_of(workers, seconds, rounds, losses)]


def turns_of(workers, seconds, rounds, losses=None, settle=False):
    """The same, turn by turn. To settle: until every side's two best turns agree, each after a step that is not timed,
    since the others had the caches and the threads were asleep."""
    def run(worker, n):
        lines = worker.ask("plain", n)
        if losses:
            losses[workers.index(worker)] += [float(words[4]) for words in lines]
        return [sum(step) for step in steps_of(lines, "plain")]
    each = 1e9 * seconds / rounds / len(workers)
    counts = [max(1, min(1000, int(each / min(run(worker, 3))))) for worker in workers]
    turns = [[] for _ in workers]
    while len(turns[0]) < rounds or (settle and len(turns[0]) < MOST_ROUNDS and not all(map(is_settled, turns))):
        for worker, n, own in zip(workers, counts, turns):
            own.append(run(worker, n + settle)[settle:])
    return turns


# ---- sweeps ----


def measure_point(sides, gpt, threads, s):
    sides = [side.changed(threads) for side in sides]
    with started(sides, "gpt", *gpt.arguments, threads) as workers:
        # Turns of a tenth of a second: in shorter ones the system has not yet spread the threads over the cores.
        seconds = 0.5 * s.effort if s.smoke else max(0.4, 0.5 * s.effort)
        turns = turns_of(workers, seconds * len(sides), s.rounds(4), settle=not s.smoke)
        series = [sum(of_side, []) for of_side in turns]
        last = [worker.end() for worker in workers][0]
    return {"threads": threads, "flop": int(last["flops"][0]),
            "bytes": int(last["moved"][0]) + adamw_bytes(gpt, "f32"),
            "ms": {side.name: min(times) / 1e6 for side, times in zip(sides, series)}}


def sweeps(sides, s):
    """[{"swept", "value", "points"}], a point for each number of threads; one that several sweeps share is measured
    once."""
    rows, known = [], {}
    for name, values in (SMOKE_SWEEPS if s.smoke else SWEEPS).items():
        for value in values:
            gpt = swept(name, value)
            if gpt.arguments not in known:
                known[gpt.arguments] = [measure_point(sides, gpt, n, s) for n in sorted({1, s.threads})]
            rows.append({"swept": name, "value": value, "points": known[gpt.arguments]})
    return rows


def slope(xs, ys):
    """Of the line through the points, by least squares."""
    x, y = sum(xs) / len(xs), sum(ys) / len(ys)
    return sum((a - x) * (b - y) for a, b in zip(xs, ys)) / sum((a - x) ** 2 for a in xs)


def fits(rows):
    """[{"swept", "side", "threads", ...}]: the slopes of log time over log FLOPs and log bytes, and the line
    time = fixed + FLOPs / rate."""
    out = []
    for name in dict.fromkeys(row["swept"] for row in rows):
        series = list(zip(*(row["points"] for row in rows if row["swept"] == name)))
        for side in series[0][0]["ms"]:
            for points in series:
                ms = [point["ms"][side] for point in points]
                flop, moved = ([point[key] for point in points] for key in ("flop", "bytes"))
                logs = [[math.log(x) for x in xs] for xs in (ms, flop, moved)]
                per_flop = slope(flop, ms)
                out.append({"swept": name, "side": side, "threads": points[0]["threads"],
                            "over_flop": slope(logs[1], logs[0]), "over_bytes": slope(logs[2], logs[0]),
                            "fixed_ms": sum(ms) / len(ms) - per_flop * sum(flop) / len(flop),
                            "gflops": 1e-6 / per_flop})
    return out


def show_sweeps(rows, fitted):
    threads = [point["threads"] for point in rows[0]["points"]]
    names = list(rows[0]["points"][0]["ms"])
    lines = []
    for row in rows:
        first, last = row["points"][0], row["points"][-1]
        line = [f"{row['swept']} = {row['value']}", number(last["flop"] / 1e9), number(last["bytes"] / 1e6)]
        for name in names:
            line += [number(point["ms"][name]) for point in row["points"]]
            if len(threads) > 1:
                line.append(ratio(last["ms"][name], first["ms"][name]))
        line.append(number(last["flop"] / last["ms"][names[0]] / 1e6))
        if len(names) > 1:
            line += [ratio(*(point["ms"][name] for name in names)) for point in row["points"]]
        lines.append(line)
    heads = ["", "GFLOP", "MB"]
    for name in names:
        heads += [f"{name} on {n}" for n in threads] + ["gain"] * (len(threads) > 1)
    heads += [f"GFLOP/s on {threads[-1]}"] + [f"ratio on {n}" for n in threads] * (len(names) > 1)
    slopes = [[fit["swept"], fit["side"], fit["threads"], f"{fit['over_flop']:.2f}", f"{fit['over_bytes']:.2f}",
               number(fit["fixed_ms"]) if fit["fixed_ms"] >= 0 else f"-{number(-fit['fixed_ms'])}", number(fit["gflops"])]
              for fit in fitted]
    base = swept("b", 4)
    return "\n".join([
        f"A step where one thing grows and the others stay ({base.text}, {base.d // base.heads} wide heads), least ms on "
        f"{' and '.join(map(str, threads))} threads, gain of the last over the first",
        table(heads, lines), "",
        "How its time grows: the slopes of log time over log FLOPs and over log bytes (1: in proportion), and the line "
        "time = fixed + FLOPs / rate",
        table(["", "", "threads", "over FLOPs", "over bytes", "fixed ms", "GFLOP/s"], slopes, 2)])


# ---- beside other work ----


@contextmanager
def other_work(n, took):
    """n processes that only compute; at the end took[0] is the processor time that they got, in seconds a second."""
    began, children = time.perf_counter(), []
    try:
        for _ in range(n):
            children.append(subprocess.Popen([sys.executable, "-c", OTHER_WORK], stdout=subprocess.PIPE))
            children[-1].stdout.readline()
        yield
    finally:
        used, wall = 0, time.perf_counter() - began
        for child in children:
            child.kill()
            child.stdout.close()
            _, _, of = os.wait4(child.pid, 0)
            child.returncode = 0
            used += of.ru_utime + of.ru_stime
        took.append(used / wall)


def busy(sides, s):
    """[{"gpt", "others", "took", "fair", "ms"}]: the mean step of each side, PyTorch's also with a shorter waiting of
    libgomp's; fair: how much longer it lasts if all threads on the machine get the same share of it."""
    ways = {side.name: side for side in sides}
    ways |= {f"{side.name}, short": side.changed(GOMP_SPINCOUNT=SPIN) for side in sides[1:]}
    cores, rows = len(os.sched_getaffinity(0)), []
    for gpt in BUSY_GPTS[:1] if s.smoke else BUSY_GPTS:
        with started(ways.values(), "gpt", *gpt.arguments, s.threads) as workers:
            for n in (0, 1) if s.smoke else sorted({0, 1, cores, 2 * cores}):
                took = []
                with other_work(n, took):
                    series = taking_turns(workers, 1.5 * len(ways) * s.effort, s.rounds(3))
                rows.append({"gpt": gpt.name, "others": n, "took": took[0], "fair": max(1, (s.threads + n) / cores),
                             "ms": {way: sum(times) / len(times) / 1e6 for way, times in zip(ways, series)}})
            for worker in workers:
                worker.end()
    return rows


def show_busy(rows):
    lines, alone = [], None
    for row in rows:
        alone = row if row["others"] == 0 else alone
        line = [row["gpt"], row["others"], number(row["took"]), f"{row['fair']:.2f}x"]
        for way, ms in row["ms"].items():
            line += [number(ms), f"{ms / alone['ms'][way]:.2f}x"]
        lines.append(line)
    heads = ["", "others", "they took", "fair"]
    for way in rows[0]["ms"]:
        heads += [way, ""]
    return ("A step beside other processes that only compute, mean ms and how much longer than alone; short: with "
            f"GOMP_SPINCOUNT={SPIN}\n" + table(heads, lines))
