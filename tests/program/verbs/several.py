"""Several ranks of the program under mpirun: starting them, how they ended, finding one to kill."""
import itertools
import os
import subprocess
import time
from lib import MEMTAPE, check, equal

MPIRUN = os.environ["MPIRUN"].split()  # with the flags that it needs here
SECONDS = 20  # by then all ranks must have ended
os.environ["OMP_NUM_THREADS"] = "1"
NUMBERS = itertools.count()


def start(*parts):
    """parts: lists (number, words before the program, its words), or a plain (number, words)."""
    words = [*MPIRUN]
    for i, (n, before, own) in enumerate(parts):
        words += ([":"] if i else []) + ["-n", str(n), *before, MEMTAPE, *map(str, own)]
    # Which run a rank belongs to: those of the run before may still be ending.
    run = f"{os.getpid()}.{next(NUMBERS)}"
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                               stdin=subprocess.DEVNULL, env={**os.environ, "MTT_RUN": run})
    process.run = run.encode()
    return process


def finish(process, what, seconds=SECONDS):
    began = time.monotonic()
    try:
        out, err = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        check(False, f"{what}: some rank has not ended within {seconds} s")
        out, err = process.communicate()
    process.out, process.err, process.took = out, err, time.monotonic() - began
    return process


def together(n, *own, seconds=SECONDS):
    return finish(start((n, [], own)), " ".join(map(str, own)), seconds)


def refused(wanted, p, status, what, n=1):
    """n lines that say this."""
    equal(p.returncode, status, f"status of {what}: {p.err}")
    lines = [line for line in p.err.splitlines() if line.startswith("memtape")]
    equal(len(lines), n, f"messages of {what}: {p.err!r}")
    for word in wanted:
        check(word in p.err, f"{what}: no {word!r} in {p.err!r}")


def workers(process, n):
    """rank -> (pid of who watches, pid of who works), once all n are there."""
    until = time.monotonic() + SECONDS
    while time.monotonic() < until and process.poll() is None:
        found = {}
        for pid in filter(str.isdigit, os.listdir("/proc")):
            try:
                with open(f"/proc/{pid}/environ", "rb") as f:
                    environ = dict(x.split(b"=", 1) for x in f.read().split(b"\0") if b"=" in x)
                with open(f"/proc/{pid}/stat") as f:
                    parent = int(f.read().rsplit(")", 1)[1].split()[1])
                if os.readlink(f"/proc/{pid}/exe") == os.path.realpath(MEMTAPE):
                    found[int(pid)] = (parent, environ)
            except OSError:
                continue
        pairs = {int(environ.get(b"PMI_RANK") or environ[b"OMPI_COMM_WORLD_RANK"]): (parent, pid)
                 for pid, (parent, environ) in found.items() if parent in found and environ.get(b"MTT_RUN") == process.run}
        if len(pairs) == n:
            return pairs
        time.sleep(0.01)
    check(False, "the ranks have not begun")
    return {}


def ends(pid):
    until = time.monotonic() + SECONDS
    while os.path.exists(f"/proc/{pid}/fd/0") and time.monotonic() < until:
        time.sleep(0.01)
    return not os.path.exists(f"/proc/{pid}/fd/0")
