"""measure.py: the measurements. The two sides alternate, so that a busy moment of the machine affects both; the
least and the median of every figure are kept."""

import math
import time
from contextlib import contextmanager
from statistics import median

from cases import GPTS, RANDOM, adamw_bytes, memory
from worker import Failed

MS = 1e6  # ns


SLOW = 20  # a peer whose products take so many times as long as memtape's is asked for small ones only
PROBES = ((256, 10), (512, 5))  # sides of these small ones, and how often each is made


def is_slow(worker, dtype, mine):
    """Its best rate of small products, if those of every size are slow beside memtape's best one; else None."""
    best = 0
    for side, times in PROBES:
        rate = float(worker.ask(dtype, times, side)[0][1])
        if SLOW * rate >= mine:
            return None
        best = max(best, rate)
    return best


def machine_limits(sides, settings, best):
    """Raises the limits in `best` (products of each side and of OpenBLAS, multiply-adds on registers, copies) to the
    rates reached now; best["slow"] names those of a peer that were measured briefly. Returns the description that
    memtape's worker gives of its software."""
    def raise_to(key, worker, word, times, more=()):
        now = float(worker.ask(word, settings.rounds(times), *more)[0][1])
        best[key] = max(now, best.get(key, 0))

    slow = best.setdefault("slow", [])
    with started(sides, "machine", settings.threads) as workers:
        for dtype in ("f32", "bf16"):
            for side, worker in zip(sides, workers):
                key = f"{side.name}_{dtype}_gflops"
                rate = None
                if side is not sides[0] and key not in best:
                    rate = is_slow(worker, dtype, best[f"{sides[0].name}_{dtype}_gflops"])
                if rate is not None:
                    best[key] = rate
                    slow.append(key)
                for n in settings.gemm_sides if key not in slow else ():
                    raise_to(key, worker, dtype, 4, (n,))
        for n in settings.gemm_sides:
            raise_to("openblas_gflops", workers[0], "gemm", 4, (n,))
        raise_to("fma_gflops", workers[0], "fma", 8)
        raise_to("copy_gbs", workers[0], "copy", 8)
        best["gemm_gflops"] = max(best["openblas_gflops"], *(best[f"{side.name}_f32_gflops"] for side in sides))
        best["bf16_gflops"] = max(best[f"{side.name}_bf16_gflops"] for side in sides)
        return {words[0]: " ".join(words[1:]) for words in workers[0].greeting}


# ---- one op ----


def check_against_peer(name, mine, theirs):
    """The results and gradients of the two sides must be the same, except for rounding."""
    row = name.partition("/")[0]
    if row in RANDOM:
        return
    pairs = list(zip(mine[1::2], mine[2::2]))
    if len(pairs) != len(theirs) - 1:
        raise Failed(f"{name}: {len(pairs)} results, the peer has {len(theirs) - 1}")
    for (value, norm), other in zip(pairs, theirs[1:]):
        value, norm, other = float(value), float(norm), float(other)
        if norm < 0 and math.isnan(other):
            continue  # no gradient on either side
        if not abs(value - other) <= 1e-3 * (norm + 1e-6):
            raise Failed(f"{name}: memtape gives {value:.6g}, the peer {other:.6g}")


def time_op(workers, spec, seconds, rounds, words=("forward", "both")):
    """ns per op for each worker and word: {"forward": [memtape, peer], ...}"""
    probes = [worker.ask("load", spec)[0] for worker in workers]
    if len(probes) == 2:
        check_against_peer(spec.split()[0], *probes)
    per_run = seconds / rounds / len(workers) / len(words)

    def run(worker, word, n):
        return int(worker.ask(word, n)[0][1]) / n

    counts = {}
    for index, worker in enumerate(workers):
        for word in words:
            run(worker, word, 1)
            guess = max(run(worker, word, 3), 100.0)
            counts[index, word] = max(1, int(per_run * 1e9 / guess))
    got = {word: [[] for _ in workers] for word in words}
    for _ in range(rounds):
        for index, worker in enumerate(workers):
            for word in words:
                got[word][index].append(run(worker, word, counts[index, word]))
    return {word: [{"min": min(series), "median": median(series)} for series in got[word]]
            for word in words}


@contextmanager
def started(sides, *arguments):
    """Workers of each side, which are stopped at the end of the block, even if it fails."""
    workers = []
    try:
        for side in sides:
            workers.append(side.start(*arguments))
        yield workers
    finally:
        for worker in workers:
            worker.stop()


def tiny_cases(worker):
    """{row: (its name with parameters, its inputs)}, as src/ops/op_cases.def has them."""
    return {words[1].partition("/")[0]: (words[1], " ".join(words[2:]))
            for words in worker.ask("cases")}


def check_rows(workers, cases):
    """Each row of memtape's op table must have a case, and a function on every side."""
    rows = {words[1] for words in workers[0].ask("rows")}
    lacking = {"src/ops/op_cases.def": rows - set(cases)}
    for worker in workers[1:]:
        lacking[worker.name] = rows - {words[1] for words in worker.ask("rows")}
    if any(lacking.values()):
        raise Failed("; ".join(f"rows without a case in {where}: {', '.join(sorted(names))}"
                               for where, names in lacking.items() if names))


def with_parameters(spec, cases):
    """"affine f:4x8" with the parameters of the row's case, for both sides."""
    name, _, inputs = spec.partition(" ")
    return f"{cases[name][0] if name in cases else name} {inputs}"


def tiny_ops(sides, settings):
    seconds = 0.12 * settings.effort
    with started(sides, "ops", settings.threads) as workers:
        cases = tiny_cases(workers[0])
        check_rows(workers, cases)
        return [{"op": row, "inputs": inputs,
                 **time_op(workers, f"{name} {inputs}", seconds, settings.rounds(5))}
                for row, (name, inputs) in cases.items()]


def memory_ops(sides, settings):
    """Copies are timed before and after each op, since what else uses the memory of a shared machine changes."""
    out = []
    with started(sides, "ops", settings.threads) as workers, \
            started(sides[:1], "machine", settings.threads) as (machine,):
        cases = tiny_cases(workers[0])

        def copy_rate():
            return float(machine.ask("copy", settings.rounds(8))[0][1])

        rate = copy_rate()
        for row, inputs, forward, both in memory(settings.memory_rows):
            times = time_op(workers, with_parameters(f"{row} {inputs}", cases),
                            1.5 * settings.effort, settings.rounds(3))
            unit = 4 * 1024 * settings.memory_rows
            n_bytes = {"forward": unit * forward, "both": unit * both if both else None}
            before, rate = rate, copy_rate()
            out.append({"op": row, "inputs": inputs, "bytes": n_bytes, "copy_gbs": max(before, rate), **times})
    return out


def gpt_parts(sides, gpt, settings):
    out = []
    with started(sides, "ops", settings.threads) as workers:
        cases = tiny_cases(workers[0])
        for name, times, spec, flop in gpt.parts():
            got = time_op(workers, with_parameters(spec, cases), 0.5 * settings.effort,
                          settings.rounds(3), ("both",))
            out.append({"part": name, "times": times, "case": spec, "flop": flop,
                        "both": got["both"]})
    return out


# ---- the parts of a step, timed inside it ----


def traced_step(side, gpt, dtype, settings):
    """The fastest of many steps whose kernels were timed: its parts, and what is not within a kernel. The cost of
    the clocks is what steps beside it took less, by the median of pairs."""
    with started([side], "gpt", *gpt.arguments, settings.threads, dtype) as (worker,):
        took = min(map(sum, steps_of(worker.ask("plain", 3), "plain"))) / 1e9
        pairs = max(settings.rounds(3), min(300, int(2 * settings.effort / took)))
        lines = worker.ask("traced", pairs)
        flop = int(worker.end()["flops"][0])
    off, on = ([sum(step) for step in steps_of(lines, word)] for word in ("off", "on"))
    total = sum(steps_of(lines, "best")[0])
    parts = [{"op": words[1], "module": words[2], "forward_ns": int(words[3]), "backward_ns": int(words[4]),
              "flop": int(words[5]), "bytes": int(words[6]), "kernels": int(words[7])}
             for words in lines if words[0] == "part"]
    for part in parts:
        if part["op"] == "adamw":
            part["bytes"] = adamw_bytes(gpt, dtype)
    inside = sum(part["forward_ns"] + part["backward_ns"] for part in parts)
    if not 0 < inside <= total:
        raise Failed(f"{gpt.name}, {dtype}: its kernels took {inside} ns of a step of {total} ns")
    if sum(part["flop"] for part in parts) != flop:
        raise Failed(f"{gpt.name}, {dtype}: its parts do not have the {flop} FLOPs of a step")
    return {"total_ns": total, "outside_ns": total - inside, "pairs": pairs, "parts": parts,
            "clocks_ns": median(b - a for a, b in zip(off, on))}


# ---- GPT steps ----


def summary(steps):
    """steps: (forward, backward, optimizer) in ns"""
    totals = [sum(step) for step in steps]
    parts = {name: median(step[i] for step in steps) / MS
             for i, name in enumerate(("forward", "backward", "optimizer"))}
    return {"min": min(totals) / MS, "median": median(totals) / MS, "n": len(steps), **parts}


def steps_of(lines, word):
    return [tuple(map(int, words[1:4])) for words in lines if words[0] == word]


def check_losses(name, losses):
    if not all(map(math.isfinite, losses)) or not losses[-1] < losses[0]:
        raise Failed(f"{name}: the loss went from {losses[0]} to {losses[-1]}")


def gpt_steps(sides, gpt, settings):
    """Rounds of plain steps on each side, and of pairs of memtape's steps with and without the ledger."""
    with started(sides, "gpt", *gpt.arguments, settings.threads) as workers:
        return steps_of_workers(workers, [side.name for side in sides], gpt, settings)


def steps_of_workers(workers, names, gpt, settings):
    plain, losses, pairs = [[] for _ in workers], [[] for _ in workers], []

    def run(index, n):
        lines = workers[index].ask("plain", n)
        losses[index] += [float(words[4]) for words in lines]
        return steps_of(lines, "plain")

    counts = []
    for index in range(len(workers)):
        took = min(map(sum, run(index, 3 if gpt.name != "gpt2" else 2)[1:])) / 1e9
        counts.append(max(1, min(200, int(gpt.share * settings.gpt_seconds / 24 / took))))
    stop = time.monotonic() + gpt.share * settings.gpt_seconds
    rounds = 0
    while rounds < settings.rounds(2) or (time.monotonic() < stop and rounds < 40):
        for index in range(len(workers)):
            plain[index] += run(index, counts[index])
        lines = workers[0].ask("ledger", max(1, counts[0]))
        losses[0] += [float(words[4]) for words in lines]
        pairs += zip(steps_of(lines, "off"), steps_of(lines, "on"))
        rounds += 1
    out = {"name": gpt.name, "text": gpt.text, "parameters": gpt.n_parameters, "rounds": rounds}
    for index, worker in enumerate(workers):
        last = worker.end()
        check_losses(f"{gpt.name}, {names[index]}", losses[index])
        out[names[index]] = summary(plain[index]) | {
            "loss": [losses[index][0], losses[index][-1]],
            "start_kib": int(last["memory"][0]), "peak_kib": int(last["memory"][1])}
        if index == 0:
            out["memtape"] |= dict(zip(("allocated_peak", "reserved_peak"), map(int, last["books"])))
            out["flop"] = int(last["flops"][0])
    off, on = ([sum(pair[i]) for pair in pairs] for i in (0, 1))
    out["ledger"] = {"pairs": len(pairs), "off_ms": median(off) / MS, "on_ms": median(on) / MS,
                     "min_ratio": min(on) / min(off),
                     "median_ratio": median(b / a for a, b in zip(off, on))}
    return out


def all_gpts(sides, settings):
    return [gpt_steps(sides, gpt, settings) for gpt in GPTS if gpt.name in settings.gpts]


SEGMENTS = ("", "0", "4096", "4096 reclaim")  # bench/gpt.c: BENCH_SEGMENTS


def segments(side, gpt, settings):
    """Peaks of the allocator's books with segments of several kinds, and the least step of each; one process
    after the other."""
    rows = []
    for words in SEGMENTS:
        with started([side.changed(BENCH_SEGMENTS=words)], "gpt", *gpt.arguments, settings.threads) as (worker,):
            first = steps_of(worker.ask("plain", 3), "plain")
            n = int(gpt.share * settings.gpt_seconds / 10 / (min(map(sum, first)) / 1e9))
            steps = steps_of(worker.ask("plain", max(2, min(500, n))), "plain")
            allocated, reserved = map(int, worker.end()["books"])
        rows.append({"words": words, "allocated_peak": allocated, "reserved_peak": reserved,
                     "ms": min(map(sum, steps)) / MS})
    return {"name": gpt.name, "rows": rows}


def all_segments(sides, settings):
    return [segments(sides[0], gpt, settings) for gpt in GPTS if gpt.name in settings.gpts]
