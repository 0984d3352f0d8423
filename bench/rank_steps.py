"""rank_steps.py: training steps of a GPT: ranks that are threads of one process, of one thread each; one process with as
many threads; and PyTorch's DDP and FSDP over gloo, in turn."""

import os

from ranks import run, run_gloo
from show import number, table
from worker import Failed

MODEL = (4, 256, 4, 4096, 8, 128)  # layers, width, heads, vocabulary, sequences of a step, tokens in each
SMALL = (4, 32, 4, 64, 8, 16)
DIVISIONS = ("dp", "dp_after", "zero3", "zero3_ahead", "tp", "pp")
PEERS = {"dp": "ddp", "zero3_ahead": "fsdp"}
NAMES = {"one": "one process", "dp": "dp, DDP", "dp_after": "dp, sums after", "zero3_ahead": "zero3 ahead, FSDP"}

FIGURES = ("comms", "comms_ns", "hidden_ns", "sent", "peak")


def words_of(text):
    return {words[0]: [float(word) for word in words[1:]] for words in map(str.split, text.splitlines())}


def summed_up(of_ranks):
    """What each process printed, as one row: times are rank 0's, memory is all processes'."""
    first = of_ranks[0]
    row = {"min_ns": first["step"][0], "median_ns": first["step"][1], "loss": first["loss"][0],
           "grown_kib": sum(high - start for start, high in (rank["memory"] for rank in of_ranks))}
    return row | {name: first[name][0] if name in first else None for name in FIGURES}


def environment(threads):
    return dict(os.environ, **{f"{name}_NUM_THREADS": str(threads) for name in ("OMP", "OPENBLAS", "MKL")})


def check_losses(rows, side):
    """The same steps of the same model end with the same loss, however they are divided."""
    losses = [row[side]["loss"] for row in rows if row[side]]
    if losses and max(losses) - min(losses) > 1e-3 * abs(losses[0]):
        raise Failed(f"{side}: losses of the same steps differ: {losses}")


def steps(sides, s):
    """[{"division", "ranks", "memtape", "torch"}]: divisions among 2 and 4 ranks after "one", one process with as many
    threads; a side that does not have the division is None."""
    peer, rows = len(sides) > 1, []
    model = [str(n) for n in (SMALL if s.smoke else MODEL)]
    rounds = str(s.rounds(max(3, round(10 * s.effort))))

    def add(division, ranks, threads, kind, theirs):
        env, words = environment(threads), [str(threads), *model, rounds]
        mine = run([s.program, "rank_steps", kind, str(ranks), *words], env, words_of)
        torch = peer and theirs and summed_up(run_gloo("ddp.py", ranks, [theirs, *words], env, words_of))
        rows.append({"division": division, "ranks": ranks * threads, "memtape": summed_up([mine]), "torch": torch or None})
    for n in (1, 2) if s.smoke else (1, 2, 4):
        add("one", 1, n, "dp", "ddp")
        for division in DIVISIONS if n > 1 else ():
            add(division, n, 1, division, PEERS.get(division))
    for side in ("memtape", "torch"):
        check_losses(rows, side)
    return rows


def show(rows, s):
    """Medians of rank 0; ratios are PyTorch's time over memtape's."""
    layers, d, _, vocab, batch, seq = SMALL if s.smoke else MODEL
    lines = []

    def of(row, key, unit, digits=number):
        return digits(row[key] / unit) if row and row[key] is not None else ""

    def percent(x):
        return f"{x:.0f} %"
    for row in rows:
        mine, torch = row["memtape"], row["torch"]
        lines.append([NAMES.get(row["division"], row["division"]), row["ranks"], of(mine, "median_ns", 1e6),
                      of(torch, "median_ns", 1e6), f"{torch['median_ns'] / mine['median_ns']:.2f}x" if torch else "",
                      of(mine, "comms", 0.01, percent), of(torch, "comms", 0.01, percent), of(mine, "comms_ns", 1e6),
                      of(mine, "hidden_ns", 1e6), of(mine, "sent", 1 << 20), of(mine, "peak", 1 << 20),
                      of(mine, "grown_kib", 1 << 10), of(torch, "grown_kib", 1 << 10)])
    return (f"Training steps of a GPT of {layers} layers, d = {d}, {vocab} classes, {batch} sequences of {seq}\n"
            + table(["division", "ranks", "ms", "torch's", "", "in comms", "DDP's", "ms in comms", "ms hidden",
                     "MiB sent", "peak MiB", "process MiB", "torch's"], lines))
