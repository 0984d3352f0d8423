"""ranks.py: collectives among ranks of one thread each on this machine: threads of one process, processes over
MPI, and PyTorch's gloo, in turn. The runs that rank_steps.py has, too."""

import os
import shutil
import subprocess
import sys
import tempfile

from show import number, table
from worker import Failed

SIZES = (64 << 10, 1 << 20, 16 << 20)
RANKS = (2, 4)
OWN = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}


def figures(text):
    rows = {}
    for line in text.splitlines():
        name, n_bytes, least, middle = line.split()
        rows[name, int(n_bytes)] = {"min_ns": int(least), "median_ns": int(middle)}
    return rows


def run(words, env, read=figures):
    got = subprocess.run(words, capture_output=True, text=True, env=env, timeout=300, check=False)
    if got.returncode:
        raise Failed(f"{' '.join(words)}: status {got.returncode}: {got.stderr.strip()}")
    return read(got.stdout)


def run_gloo(script, ranks, words, env, read=figures):
    """[what each rank prints, read]"""
    with tempfile.TemporaryDirectory() as folder:
        children = [subprocess.Popen([sys.executable, f"bench/{script}", str(r), str(ranks), *words, f"{folder}/meet"],
                                     env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
                    for r in range(ranks)]
        done = [child.communicate(timeout=300) for child in children]
    for child, (_, errors) in zip(children, done):
        if child.returncode:
            raise Failed(f"{script}: status {child.returncode}: {errors.strip()[-400:]}")
    return [read(out) for out, _ in done]


def collectives(sides, s):
    """[{"ranks", "op", "bytes", "threads", "mpi", "gloo"}]; a side that is not there is None."""
    env = dict(os.environ, **OWN)
    mpi, peer = shutil.which("mpirun"), len(sides) > 1
    module = os.path.join(os.path.dirname(s.program), "..", "libmemtape-mpi.so")
    env["MEMTAPE_MPI_MODULE"] = os.path.abspath(module)
    mpi = mpi if os.path.exists(module) else None
    rows = []
    for ranks in RANKS[:1] if s.smoke else RANKS:
        for n_bytes in SIZES[:1] if s.smoke else SIZES:
            rounds = s.rounds(max(5, round(s.effort * min(400, (256 << 20) // n_bytes))))
            words = [str(ranks), str(n_bytes), str(rounds)]
            got = {"threads": run([s.program, "ranks", "threads", *words], env),
                   "mpi": mpi and run([mpi, "-n", str(ranks), s.program, "ranks", "mpi", *words], env),
                   "gloo": run_gloo("gloo.py", ranks, words[1:], env)[0] if peer else None}
            for op, n in got["threads"]:
                rows.append({"ranks": ranks, "op": op, "bytes": n,
                             **{side: of and of[op, n] for side, of in got.items()}})
    return rows


def show(rows):
    """Medians; a ratio is gloo's time over memtape's. A bus carries 2(n-1)/n of the bytes for a sum that all get,
    (n-1)/n for the others."""
    lines = []
    for row in rows:
        ms = {side: row[side] and row[side]["median_ns"] / 1e6 for side in ("threads", "mpi", "gloo")}
        share = (row["ranks"] - 1) / row["ranks"] * (2 if row["op"] == "all_reduce" else 1)

        def versus(side):
            return f"{ms['gloo'] / ms[side]:.2f}x" if ms["gloo"] and ms[side] else ""
        lines.append([row["op"], row["ranks"], f"{row['bytes'] >> 10} KiB",
                      *(number(ms[side]) for side in ("threads", "mpi", "gloo")), versus("threads"), versus("mpi"),
                      number(share * row["bytes"] / row["mpi"]["median_ns"]) if row["mpi"] else ""])
    return ("Collectives, median ms of a call, ranks of one thread each\n"
            + table(["op", "ranks", "bytes", "threads", "MPI", "gloo", "threads vs gloo", "MPI vs gloo", "MPI GB/s"],
                    lines))
