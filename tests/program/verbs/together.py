"""Several ranks of the program under mpirun: one table and one object of all, and every way in which a
rank may fail: all end, at once, with one message that names the rank and the cause."""
import json
import os
import pty
import signal
import subprocess
import sys
import tempfile
import time
from lib import MEMTAPE, check, done, equal, profile, turn
from several import MPIRUN, ends, finish, refused, start, together, workers

LONG = os.environ.get("MTT_LONG") == "1"
MODEL = ["profile", "gpt", "-l", "2", "-d", "64", "-a", "4", "-s", "32", "-b", "2", "--vocab", "256"]
LASTING = ["profile", "gpt", "-l", "6", "-d", "512", "-a", "8", "-s", "512", "-b", "8", "--dp", "2"]


def ranks_of(p, n, what):
    equal((p.returncode, p.err), (0, ""), what)
    whole = json.loads(p.out)
    equal((whole["schema"], len(whole["ranks"])), ("memtape.ranks/1", n), f"{what}: the object")
    for i, r in enumerate(whole["ranks"]):
        equal((r["schema"], r["parallel"]["rank"]), ("memtape.profile/1", i), f"{what}: rank {i}")
        equal(r["growth"]["residual"], 0, f"{what}: the books of rank {i}")
    return whole["ranks"]


# ---- on meta: each rank is the one that a profile of its own shows ----
for division in (["--tp", 2, "--dp", 2, "--zero", 1], ["--pp", 2, "--dp", 2, "--microbatches", 4]):
    what = f"{' '.join(map(str, division))} on meta"
    for i, r in enumerate(ranks_of(together(4, *MODEL, *division, "--device", "meta", "--json", "-"), 4, what)):
        alone = profile(*MODEL[1:], *division, "--rank", i, "--device", "meta")
        for key in ("saved", "steady", "phases", "params"):
            check(r[key] == alone[key], f"{what}: {key} of rank {i} is not what it is in a profile of its own")

# ---- on the CPU: what each rank has is what meta predicted ----
DIVISIONS = [(3, "--dp", 3, "--zero", 2), (4, "--tp", 2, "--dp", 2),
             (2, "--tp", 2, "--sp", "--dropout", 0.1, "--checkpoint", "full"),
             (2, "--dp", 2, "--microbatches", 2, "--amp", "bf16"),
             (2, "-l", 4, "--pp", 2, "--recipe", "plain:interleave=2", "--checkpoint", "full"),
             (2, "--dp", 2, "--zero", 2, "--expandable-segments", "--recipe", "plain:granule=64KiB", "--recipe", "plain:reclaim"),
             (2, "--tp", 2, "--dropout", 0.1, "--attention", "math", "--compress", "seed+bits"),
             (4, "--pp", 2, "--dp", 2, "--zero", 3, "--microbatches", 3)]
MORE = [(2, "--dp", 2), (4, "--dp", 4, "--zero", 1), (4, "--dp", 4, "--zero", 3), (2, "--pp", 2, "--microbatches", 5, "--dropout", 0.1),
        (2, "--dp", 2, "--dropout", 0.1, "--compress", "seed"), (2, "--tp", 2, "--sp", "--expandable-segments"),
        (2, "--pp", 2, "--microbatches", 8, "--expandable-segments", "--recipe", "plain:granule=4KiB", "--recipe", "plain:reclaim")]
n_equal = 0
for n, *division in DIVISIONS + MORE if LONG else filter(lambda division: turn(DIVISIONS.index(division)), DIVISIONS):
    what = " ".join(map(str, division))
    for r in ranks_of(together(n, *MODEL, *division, "--json", "-"), n, what):
        got = {"saved": r["saved"]["bytes"], "peak": r["steady"]["peak"],
               "reserved": r["steady"]["reserved"]}
        equal(got, r["predicted"], f"{what}: rank {r['parallel']['rank']}")
        check(r["sent"] > 0, f"{what}: nothing sent")
        n_equal += len(got)
print(f"{n_equal} figures of ranks are as predicted")
p = together(2, *MODEL, "--dp", 2)
equal((p.returncode, p.err), (0, ""), "two ranks as text")
equal(p.out.count("reserved"), 2, "rows of two ranks")
for word in ("2 ranks on cpu", "measured", "predicted", "difference"):
    check(word in p.out, f"no {word!r} in {p.out!r}")

# ---- Open MPI gives ranks a terminal of its own, whatever its output is ----
for more, coloured in (({}, True), ({"OMPI_COMM_WORLD_SIZE": "1"}, False)):
    ours, theirs = pty.openpty()
    p = subprocess.Popen([MEMTAPE, *MODEL, "--device", "meta"], stdout=theirs, env={**os.environ, **more, "TERM": "xterm", "NO_COLOR": ""})
    os.close(theirs)
    screen = b""
    try:
        while some := os.read(ours, 65536):
            screen += some
    except OSError:
        pass  # so a terminal ends
    os.close(ours)
    equal((p.wait(), b"\x1b[" in screen), (0, coloured), f"colours with {more}: {screen!r}")

# ---- how all of them are started wrongly ----
refused(["--tp 2", "mpirun has started 3"], together(3, *MODEL, "--tp", 2), 2, "3 ranks of 2")
refused(["mpirun has started 2"], together(2, *MODEL), 2, "nothing to divide")
refused(["only profile, with --tp"], together(2, "sweep", "gpt"), 2, "a verb without ranks")
refused(["unrecognized", "--tpp"], together(2, *MODEL, "--tpp", 2), 2, "an unknown option")
refused(["--html"], together(2, *MODEL, "--dp", 2, "--html", "x"), 2, "a report of one rank")
refused(["--rank"], together(2, *MODEL, "--dp", 2, "--rank", 1), 2, "a rank of several")
refused(["verb: unknown", "profil"], together(2, "profil"), 2, "an unknown verb")
equal(together(2, "--version").out.count("memtape"), 1, "versions")
equal(together(2, "profile", "--help").out.count("Usage"), 1, "helps")
refused(["out of memory"], together(2, *MODEL, "--dp", 2, "--capacity", "1MiB"), 1, "no room")
refused(["/nowhere/x"], together(2, *MODEL, "--dp", 2, "--json", "/nowhere/x"), 1, "no such folder")

# ---- a launcher of another MPI, or a variable of one that is gone ----
for ranks, rank in (("PMI_SIZE", "PMI_RANK"), ("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK")):
    for own in (MODEL, [*MODEL, "--dp", "2"], ["train", "--data", __file__], ["train", "--data", __file__, "--dp", "2"],
                ["train", "--data", __file__, "--tp", "2", "--zero", "1"], ["sweep", "gpt"], ["--version"]):
        for at in "01":
            p = subprocess.run([MEMTAPE, *own], env={**os.environ, ranks: "2", rank: at}, capture_output=True, text=True, timeout=60)
            equal((p.returncode, p.stdout), (1, ""), f"{own} with {ranks}=2: {p.stderr}")
            for word in (f"rank {at} of 2: ", f"{ranks} says 2 ranks", "another MPI's mpirun", f"unset {ranks}"):
                check(word in p.stderr, f"{own} with {ranks}=2: no {word!r} in {p.stderr!r}")

# ---- a program between that does not hand on mpirun's pipe ----
if any("mpich" in word for word in MPIRUN):
    between = [sys.executable, "-c", "import os, sys; os.close(int(os.environ['PMI_FD'])); os.execv(sys.argv[1], sys.argv[1:])"]
    p = finish(start((2, between, [*MODEL, "--dp", 2])), "no pipe to mpirun")
    check(p.returncode != 0 and "write_line" not in p.err, f"no pipe to mpirun: {p.returncode}, {p.err}")
    for word in ("of 2: PMI_FD, the pipe to mpirun, is not open", "unset PMI_SIZE"):
        check(word in p.err, f"no pipe to mpirun: no {word!r} in {p.err!r}")

# ---- one rank of them ----
p = start((1, [], [*MODEL, "--dp", 2]), (1, [], [*MODEL, "--dp", 4]))
refused(['--dp of rank 1 is "4", of rank 0 "2"'], finish(p, "other values"), 2, "other values")
p = start((1, [], [*MODEL, "--dp", 2, "--zero", 1]), (1, [], [*MODEL, "--dp", 2]))
refused(["of rank 1", '"--zero"'], finish(p, "other options"), 2, "other options")
p = start((1, [], [*MODEL, "--dp", 2]), (1, [], ["sweep", "gpt"]))
refused(["argument 1", '"sweep"'], finish(p, "another verb"), 2, "another verb")
with tempfile.TemporaryDirectory() as folder:
    own = ["profile", "./config.json", "-s", 32, "-b", 1, "--dp", 2]
    configs = []
    for layers in (2, 3):
        os.mkdir(f"{folder}/{layers}")
        with open(f"{folder}/{layers}/config.json", "w") as f:
            json.dump({"model_type": "gpt2", "n_layer": layers, "n_embd": 64, "n_head": 4,
                       "n_positions": 64, "vocab_size": 256}, f)
        configs.append((1, ["sh", "-c", f'cd {folder}/{layers} && exec "$0" "$@"'], own))
    refused(["the model of rank 1", "need the same"], finish(start(*configs), "other files"), 1,
            "another file")
small = ["sh", "-c", 'ulimit -v 100000; exec "$0" "$@"']
p = finish(start((1, [], LASTING), (1, small, LASTING)), "too little to start")
check(p.returncode != 0 and p.err.count("out of memory") == 1, f"too little to start: {p.err}")
for mib in range(120, 520, 20 if LONG else 60):
    limited = ["sh", "-c", f'ulimit -v {mib << 10}; exec "$0" "$@"']
    p = finish(start((2, limited, [*MODEL, "--dp", 2])), f"{mib} MiB of addresses")
    check(p.returncode in (0, 1) and "Assertion" not in p.err, f"{mib} MiB of addresses: {p.returncode}, {p.err}")
    check(p.returncode == 0 or "memtape" in p.err or "shared object" in p.err, f"{mib} MiB: no reason: {p.err}")
limited = ["sh", "-c", 'ulimit -v 700000; exec "$0" "$@"']
big = ["profile", "gpt", "-l", 4, "-d", 512, "-a", 8, "-s", 512, "-b", 8, "--dp", 2]
p = finish(start((1, [], big), (1, limited, big)), "no memory")
refused(["rank 1 of 2", "memory"], p, 1, "one rank without memory")


# ---- one that is killed ----
for after in (0, 0.5):  # while they start; in the run
    for who in (0, 1):
        p = start((2, [], LASTING))
        pairs = workers(p, 2)
        time.sleep(after)
        if check(p.poll() is None, "the run is over already") and 1 in pairs:
            os.kill(pairs[1][who], signal.SIGKILL)
        finish(p, f"killed after {after} s")
        check(p.returncode != 0, "a killed rank, and success")
        if who == 1:
            equal(p.err.count("memtape: rank 1 of 2 was killed by signal 9"), 1, f"killed: {p.err!r}")
        print(f"{'rank' if who else 'watcher'} killed after {after} s: all ended in {p.took:.2f} s")
        for pair in pairs.values():
            for pid in pair:
                check(ends(pid), f"process {pid} is left")
done()
