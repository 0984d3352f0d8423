"""`mpirun -n N memtape train`: the curve of one process, the books that meta predicted, and what is
refused. MTT_LONG=1: more divisions and more steps."""
import hashlib
import json
import os
import re
import shlex
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from lib import check, done, equal, refused as refused_alone, run, turn
from several import ends, finish, refused, start, together, workers

LONG = os.environ.get("MTT_LONG") == "1"
LONGEST = 280  # seconds of a run, on a machine with much else to do
folder = tempfile.TemporaryDirectory()
TEXT = os.path.join(folder.name, "text.txt")
words = [hashlib.sha256(str(i).encode()).hexdigest()[: 2 + i % 5] for i in range(50)]
with open(TEXT, "w") as out:
    out.write(" ".join(words[(i * i + i // 7) % 50] for i in range(4000)))

STEPS = 50 if LONG else 24
SINGLE = ["train", "--data", TEXT, "--steps", STEPS, "-b", 4, "-s", 32, "-d", 32, "-a", 4, "-l", 2,
          "--dropout", 0.1, "--lr", 0.003, "--optimizer", "adamw:clip=0.5", "--eval-every", STEPS // 2]
SMALL = [*SINGLE, "--accumulate", 2]
# The last of four printed decimals. The largest difference of the last losses that was seen was 2e-6.
ROUNDING = 1.01e-4


def curve(text):
    """The losses that are printed, and the bits per byte."""
    return ([float(x) for x in re.findall(r"^step \d+/\d+  loss ([\d.]+)", text, re.M)],
            [float(x) for x in re.findall(r"bits per byte ([\d.]+)", text)])


def close(a, b, what):
    for x, y in zip(a, b):
        equal(len(x), len(y), f"{what}: figures")
        check(len(x) > 0 and max(abs(p - q) for p, q in zip(x, y)) <= ROUNDING, f"{what}: {x} and {y}")


def trained(n, *own, what=None):
    """(curve, objects of the ranks)"""
    name = os.path.join(folder.name, "ranks.json")
    p = together(n, *own, "--json", name, seconds=LONGEST)
    if not equal((p.returncode, p.err), (0, ""), what or own):
        return ([], []), []
    with open(name) as f:
        whole = json.load(f)
    equal((whole["schema"], len(whole["ranks"])), ("memtape.ranks/1", n), f"{what}: the object")
    for i, r in enumerate(whole["ranks"]):
        equal((r["schema"], r["parallel"]["rank"]), ("memtape.train/1", i), f"{what}: rank {i}")
        equal({key: r[key] for key in r["predicted"]}, r["predicted"], f"{what}: books of rank {i}")
        equal(r["loss"], whole["ranks"][0]["loss"], f"{what}: the loss of rank {i}")
        check(0 < r["saved"] < r["peak"] <= r["reserved"], f"{what}: figures of rank {i}: {r}")
        check(r["sent"] > 0, f"{what}: rank {i} took no part")
        check(r["in_comms_s"] > 0 and r["hidden_s"] >= 0, f"{what}: seconds of rank {i}: {r}")
    equal(p.out.count("reserved"), n, f"{what}: rows of the ranks")
    return curve(p.out), whole["ranks"]


def alone(*more):
    p = run(*SMALL, *more)
    equal(p.returncode, 0, f"one process {more}: {p.stderr}")
    return curve(p.stdout)


SHORT = ["--steps", 10, "--eval-every", 5]


def repeated():
    one = alone()
    division = ["--tp", 2, "--dp", 2, "--sp", "--zero", 1]
    first, ranks = trained(4, *SMALL, *division, what="tp 2, dp 2, sp, zero 1")
    close(first, one, "tp 2, dp 2, sp, zero 1")
    check(one[0][-1] < (0.8 if LONG else 0.9) * one[0][0], f"it learns: {one[0]}")
    again, same = trained(4, *SMALL, *division, what="the same again")
    equal((again, [r["loss"] for r in same]), (first, [r["loss"] for r in ranks]), "a repeated run")


def curves():
    few = alone(*SHORT)
    for n, *division in ((2, "--dp", 2, "--zero", 3), (2, "--tp", 2, "--checkpoint", "full")):
        close(trained(n, *SMALL, *SHORT, *division)[0], few, " ".join(map(str, division)))
    lion = [*SHORT, "--optimizer", "lion"]
    close(trained(2, *SMALL, *lion, "--dp", 2, "--zero", 2)[0], alone(*lion), "lion")
    if not LONG:
        return
    one = alone()
    for n, *division in ((4, "--tp", 4), (2, "--tp", 2, "--sp"), (4, "--dp", 4), (4, "--dp", 4, "--zero", 1),
                         (4, "--dp", 4, "--zero", 2), (4, "--dp", 4, "--zero", 3), (4, "--tp", 2, "--dp", 2),
                         (4, "--tp", 2, "--dp", 2, "--zero", 2), (4, "--tp", 2, "--sp", "--dp", 2, "--zero", 3),
                         (2, "--dp", 2, "--checkpoint", "selective"), (2, "--tp", 2, "--offload", "cpu"),
                         (2, "--dp", 2, "--checkpoint", "full", "--zero", 3), (2, "--dp", 2, "--optimizer", "adamw:clip=0")):
        other = alone("--optimizer", "adamw:clip=0") if "adamw:clip=0" in division else one
        close(trained(n, *SMALL, *division)[0], other, " ".join(map(str, division)))
    llama = ["--preset", "llama-tiny", "-d", 32, "-a", 4, "-l", 2, "--ffn", 48, "--kv-heads", 2]
    close(trained(4, *SMALL, *llama, "--tp", 2, "--dp", 2, "--sp", "--zero", 3)[0], alone(*llama), "llama")


GATHERED = ([], ["--recipe", "plain:fsdp=block"], ["--recipe", "plain:fsdp=ahead"], ["--recipe", "plain:fsdp=ahead+keep-last", "--recipe", "plain:rs-buffers=2"])
SUMMED = ([], ["--recipe", "plain:reduce=backward"], ["--recipe", "plain:reduce=after"])
BEHIND = [(GATHERED, 2, "--dp", 2, "--zero", 3), (SUMMED, 2, "--dp", 2, "--zero", 1),
          (GATHERED, 4, "--cp", 2, "--pp", 2, "--zero", 3, "--microbatches", 2, "--dropout", 0),
          (SUMMED, 4, "--cp", 2, "--pp", 2, "--microbatches", 2, "--dropout", 0)]


def ahead():
    """Blocks that are gathered as one, and while another computes, and gradients that are summed so: the same losses, the same
    file."""
    for hows, n, *division in BEHIND[: len(BEHIND) if LONG else 2]:
        first = None
        for how in hows if LONG else hows[::len(hows) - 1]:
            if "--pp" in division and "plain:fsdp=ahead+keep-last" in how:
                continue
            name, what = inside("behind.safetensors"), f"{n} ranks: {division} {how}"
            got, ranks = trained(n, *(SINGLE if "--pp" in division else SMALL), *SHORT, *division, *how, "--save", name, what=what)
            found = got, [r["loss"] for r in ranks], hashlib.sha256(content(name)).hexdigest()
            first = first or found
            equal(found, first, f"{what}: losses and weights")
    refused(["--recipe plain:fsdp=keep-last", "block or ahead"], together(2, *SMALL, "--dp", 2, "--zero", 3, "--recipe", "plain:fsdp=keep-last"), 2, "keep-last alone")
    refused(["plain:reduce", "--zero 2 and 3"], together(2, *SMALL, "--dp", 2, "--zero", 2, "--recipe", "plain:reduce=after"), 2, "reduce with pieces")
    refused(["plain:reduce", "--dp or --cp"], together(2, *SMALL, "--tp", 2, "--recipe", "plain:reduce=after"), 2, "reduce of one rank")
    refused(["plain:fsdp", "--zero 3"], together(2, *SMALL, "--dp", 2, "--zero", 2, "--recipe", "plain:fsdp=ahead"), 2, "fsdp of what is whole")
    refused(["--recipe plain:fsdp=pytorch", "f32-shards"], together(2, *SMALL, "--dp", 2, "--zero", 3, "--dtype", "bf16", "--recipe", "plain:fsdp=pytorch"), 2,
            "fsdp with f32 shards")


# Interleaved stages need as many layers as they have parts, and pieces of sequences draw no masks.
DEEP, DRY = ["-l", 4], ["--dropout", 0]


def staged():
    """Pipelines, and pieces of sequences: --microbatches is one process's --accumulate."""
    cases = [(4, DEEP, SHORT, "--pp", 2, "--recipe", "plain:interleave=2", "--dp", 2, "--zero", 1, "--checkpoint", "full"),
             (2, DRY, SHORT, "--cp", 2), (4, DRY, SHORT, "--cp", 2, "--pp", 2, "--offload", "cpu")]
    if LONG:
        cases += [(n, more, [], *division) for n, more, *division in (
            (2, ["--preset", "tiny:mtp-layers=2"], "--pp", 2), (4, DEEP, "--pp", 4, "--checkpoint", "selective"), (2, DEEP, "--pp", 2, "--recipe", "plain:interleave=2"),
            (4, [], "--pp", 2, "--dp", 2, "--zero", 2), (4, [], "--pp", 2, "--dp", 2, "--zero", 3), (2, [], "--pp", 2, "--compress", "seed"),
            (4, [], "--pp", 2, "--tp", 2, "--sp"), (2, DRY, "--cp", 2, "--checkpoint", "full"),
            (4, DRY, "--cp", 4, "--zero", 3), (4, DRY, "--cp", 2, "--dp", 2, "--zero", 1), (4, DRY, "--cp", 2, "--tp", 2, "--sp"),
            (8, [], "--pp", 2, "--tp", 2, "--sp", "--dp", 2, "--zero", 2),
            (8, [*DEEP, *DRY], "--pp", 2, "--recipe", "plain:interleave=2", "--cp", 2, "--dp", 2, "--zero", 1),
            (8, [*DEEP, *DRY], "--pp", 4, "--cp", 2, "--zero", 3))]
    alones = {}
    for n, more, length, *division in cases:
        words = tuple(map(str, [*more, *length]))
        alones[words] = alones.get(words) or alone(*words, "--accumulate", 4)
        named = f"{n} ranks: {' '.join(map(str, division))}"
        close(trained(n, *SINGLE, *words, "--microbatches", 4, *division, what=named)[0], alones[words], named)


# Sums of 16-bit products differ among divisions, so these are not held to one process's curve.
def sixteen_bits():
    # Each thread of a 16-bit product has scratch memory of its own.
    trained(2, *SINGLE, "--amp", "bf16", "-b", 8, "-s", 128, "-d", 64, "--steps", 4, "--dp", 2, "--threads", 4, what="threads that are given")
    for more in (["--amp", "bf16"], ["--dtype", "bf16", "--master-weights", "--recipe", "plain:f32-gradients"],
                 ["--amp", "f16", "--loss-scale", "dynamic"])[0 if LONG else 2 :]:
        got = trained(2, *SMALL, "--steps", 10, "--dp", 2, "--zero", 2, *more)[0][0]
        other = alone("--steps", 10, *more)[0]
        check(len(got) == 10 and max(abs(a - b) for a, b in zip(got, other)) < 0.02, f"{more}: {got} and {other}")


# Adapters beside weights of a file: their curve is one process's, and so is where they go on.
def adapters():
    base, other = inside("base.safetensors"), inside("other.txt")
    with open(other, "w") as out:
        out.write("the quick brown fox jumps over the lazy dog\n" * 200)
    p = run(*SMALL, "--steps", 30, "--eval-every", 0, "-q", "--save", base)
    equal(p.returncode, 0, f"a base: {p.stderr}")
    tuned = ["train", "--data", other, "--from", base, "-b", 4, "-s", 32, "--lr", 0.03, "--accumulate", 2, "--eval-every", 10,
             "--steps", 20]
    four_bits = ["--qlora", "--recipe", "plain:qlora-double"]
    cases = [(2, ["--lora-rank", 4], "--tp", 2, "--sp"), (4, ["--lora-rank", 3, "--lora-targets", "qkv,mlp.proj"], "--tp", 2, "--dp", 2, "--zero", 2),
             (2, ["--lora-rank", 4, *four_bits], "--pp", 2)]
    if LONG:
        cases += [(4, ["--lora-rank", 4, *more], *division) for division in (
            ("--dp", 4, "--zero", 1), ("--pp", 2, "--dp", 2, "--zero", 2), ("--cp", 2, "--dp", 2, "--checkpoint", "full"))
            for more in ([], four_bits, ["--amp", "bf16"])]
        cases += [(n, ["--lora-rank", 4], *division) for n, *division in (
            (4, "--dp", 4, "--zero", 3), (4, "--tp", 4, "--checkpoint", "selective"), (2, "--tp", 2, "--offload", "cpu"),
            (8, "--tp", 2, "--sp", "--pp", 2, "--dp", 2, "--zero", 3))]
    for n, own, *division in cases:
        own = [*own, *DRY] if "--cp" in division else own
        p = run(*tuned, *own)
        equal(p.returncode, 0, f"one process {own}: {p.stderr}")
        one, named = curve(p.stdout), f"{n} ranks: {' '.join(map(str, [*own, *division]))}"
        check(one[0][-1] < one[0][0] - 0.1, f"adapters learn: {one[0]}")
        got = trained(n, *tuned, *own, *division, what=named)[0]
        close(got, one, named) if "--amp" not in own else check(abs(got[0][-1] - one[0][-1]) < 0.02, named)
    own = ["--lora-rank", 4]
    os.makedirs(inside("tuned"))
    p = run(*tuned, *own, "--save", inside("tuned"), "--save-every", 10)
    equal(p.returncode, 0, f"one process: {p.stderr}")
    resume = ["train", "--data", other, "--resume", inside("tuned", "step-10.safetensors")]
    files = lambda name: ["--save", inside(name), "--save-adapter", inside(f"{name} adapters")]
    same = run(*resume, "--steps", 10, *files("passed"))  # no step: what was read is written
    kept = together(4, *resume, "--steps", 10, "--tp", 2, "--dp", 2, "--zero", 3, *files("passed by ranks"), "-q", seconds=LONGEST)
    equal((same.returncode, kept.returncode, kept.err), (0, 0, ""), "a file that ranks pass on")
    check(content(inside("passed by ranks")) == content(inside("passed")), "the run is not the one that was read")
    check(content(inside("passed by ranks adapters")) == content(inside("passed adapters")), "the adapters are not those that were read")
    on = trained(4, *resume, "--pp", 2, "--tp", 2, *files("gone on"), what="one process, then pp 2, tp 2")[0]
    close(on, rest(curve(p.stdout), 10), "one process, then pp 2, tp 2")
    for model in (["--model", inside("gone on")], ["--model", base, "--adapter", inside("gone on adapters")]):
        written = run("generate", *model, "--prompt", "a", "-n", 8)
        equal(written.returncode, 0, f"generate {model}: {written.stderr}")
    refused(["--qlora, among ranks of --tp", "--dp, --cp or --pp"], together(2, *tuned, *own, "--qlora", "--tp", 2), 1, "codes and tp")
    refused(["--zero 3 gathers floats"], together(2, *tuned, *own, "--qlora", "--dp", 2, "--zero", 3), 1, "codes and zero 3")
    refused(["has adapters", "one process"], together(2, *tuned, "--from", inside("gone on"), "--dp", 2), 1, "--from with adapters")
    refused(["among the first stage's 1 layers"], together(2, *tuned, *own, "--lora-targets", "h.1.*", "--pp", 2), 1, "a first stage without")


def inside(*names):
    return os.path.join(folder.name, *names)


def content(name):
    with open(name, "rb") as f:
        return f.read()


def saving(name, *own, n=1):
    """Trains with a file each 4 steps in a folder of this name; returns the curve."""
    os.makedirs(inside(name), exist_ok=True)
    more = [*own, "--save", inside(name), "--save-every", 4]
    if n > 1:
        return trained(n, *more, what=name)[0]
    p = run(*more)
    equal(p.returncode, 0, f"{name}: {p.stderr}")
    return curve(p.stdout)


def rest(whole, after):
    return whole[0][after:], whole[1][-1:]


# One file whatever the ranks: each goes on from what others wrote as one process would.
def files():
    new = [*SMALL, "--steps", 20, "--eval-every", 0]
    resume = lambda name, step: ["train", "--data", TEXT, "--resume", inside(name, f"step-{step}.safetensors")]
    one = saving("one", *new)
    close(saving("tp", *resume("one", 4), "--tp", 2, "--sp", n=2), rest(one, 4), "one process, then tp 2")
    close(saving("pp", *resume("tp", 8), "--pp", 2, "--dp", 2, n=4), rest(one, 8), "tp 2, then pp 2, dp 2")
    close(saving("dp", *resume("pp", 12), "--dp", 4, "--zero", 3, n=4), rest(one, 12), "pp 2, then dp 4, zero 3")
    close(saving("back", *resume("dp", 16)), rest(one, 16), "dp 4, zero 3, then one process")
    dry = saving("dry", *new, *DRY)
    close(saving("cp", *resume("dry", 8), "--cp", 2, "--pp", 2, n=4), rest(dry, 8), "one process, then cp 2, pp 2")
    close(saving("wet", *resume("cp", 12)), rest(dry, 12), "cp 2, pp 2, then one process")
    both = ["--tp", 2, "--dp", 2, "--zero", 2]
    last = "step-20.safetensors"
    for name, layout in (("both", both), ("stages", ["--pp", 2, "--dp", 2, "--zero", 1]))[: 2 if LONG else 1]:
        saving(name, *new, *layout, n=4)
        saving(name + " again", *resume(name, 8), *layout, n=4)
        check(content(inside(name, last)) == content(inside(name + " again", last)), f"{name}: the same ranks go on bit for bit")
    names = [os.path.join(d, f) for d, _, fs in os.walk(folder.name) for f in fs if ".tmp-" in f]
    equal(names, [], "temporary files")
    written = run("generate", "--model", inside("both", last), "--prompt", "a", "-n", 8)
    equal(written.returncode, 0, f"generate: {written.stderr}")
    base = ["--from", inside("one", last), "-b", 4, "-s", 32, "--steps", 5, "--eval-every", 0]
    p = run("train", "--data", TEXT, *base)
    equal(p.returncode, 0, f"--from: {p.stderr}")
    close(trained(2, "train", "--data", TEXT, *base, "--tp", 2, what="--from")[0], curve(p.stdout), "--from")


def quotation():
    """The lesson's run prints what the lesson quotes, memory and all."""
    page = (Path(__file__).parents[3] / "docs" / "lessons" / "20-parallel.md").read_text()
    block = re.search(r"\n\$ (mpirun -n 4 memtape train .*)\n((?s:.*?))```", page)
    words = shlex.split(block[1])[5:]
    p = together(4, "train", *[TEXT if w == "FILE" else w for w in words], seconds=LONGEST)
    equal((p.returncode, p.err), (0, ""), "the lesson's run")
    lines = [" ".join(line.split()) for line in p.out.splitlines()]
    quoted = [" ".join(line.split()) for line in block[2].splitlines() if line.strip() not in ("", "...")]
    check(len(quoted) > 10, f"the lesson quotes {quoted}")
    for line in quoted:
        wanted = re.compile(re.escape(line).replace("…", ".*"))
        check(any(map(wanted.fullmatch, lines)), f"the lesson quotes {line!r}: {p.out}")


def refusals():
    refused_alone(["mpirun -n 4 memtape train --tp 2 --dp 2"], *SMALL, "--tp", 2, "--dp", 2)
    refused_alone(["mpirun -n 12 memtape train --pp 2 --cp 2 --dp 3"], *SMALL, "--cp", 2, "--dp", 3, "--pp", 2)
    refused_alone(["and ask for 1", "--accumulate"], *SINGLE, "--microbatches", 1, "--tp", 1)
    refused_alone(["--microbatches 3 and --accumulate 2", "the same number"], *SMALL, "--microbatches", 3, "--pp", 2)
    refused_alone(["plain:interleave", "--pp of 2"], *SMALL, "--recipe", "plain:interleave=2")
    refused_alone(["--json", "--tp, --pp, --cp or --dp"], *SMALL, "--json", "-")
    for words, *own in ((["--batch 4", "--dp 3"], "--dp", 3), (["tensor is 3", "heads"], "--tp", 3, "-b", 3)):
        refused(words, together(3, *SMALL, *own), 2, own)
    for words, *own in ((["pipeline is 2", "divisor of microbatches, 3"], "--pp", 2, "--recipe", "plain:interleave=2", "-l", 4, "--accumulate", 3),
                        (["pipeline times interleave is 2", "layers, 1"], "--pp", 2, "-l", 1),
                        (["--cp: --seq 33", "--cp 2"], "--cp", 2, "-s", 33, *DRY),
                        (["--cp 2 with --dropout 0.1", "--dropout 0"], "--cp", 2),
                        (["--tp: ", "--seq 33", "--dropout 0.1", "multiple of 4"], "--tp", 2, "-s", 33),
                        (["--dp: ", "--seq 17", "--batch 2"], "--dp", 2, "-b", 2, "-s", 17, "-d", 30, "-a", 3)):
        refused(words, together(2, *SMALL, *own), 2, own)
    for words, *own in ((["--budget", "--checkpoint"], "--budget", "2MB"), (["--snapshot", "of one device"], "--snapshot", "x")):
        refused(words, together(2, *SMALL, "--dp", 2, *own), 2, own)
    refused(["too short"], together(2, *SMALL, "--dp", 2, "-s", 100000), 1, "a short text")


# ---- faults ----
ENDLESS = [*SMALL, "--steps", 10**6, "--dp", 2, "-q"]


def until(holds, what):
    end = time.monotonic() + LONGEST
    while time.monotonic() < end and not holds():
        time.sleep(0.05)
    return check(holds(), f"{what}: not within {LONGEST} s")


def goes_on(name):
    """The step of a file that is whole: a run begins from it."""
    with open(name, "rb") as f:
        step = json.loads(f.read(int.from_bytes(f.read(8), "little")))["__metadata__"]["memtape.step"]
    p = run("train", "--data", TEXT, "--resume", name, "--steps", int(step) + 1, "-q")
    equal(p.returncode, 0, f"{name}: {p.stderr}")
    return int(step)


def killed(number=signal.SIGKILL):
    name = inside(f"killed-{number}.safetensors")
    p = start((2, [], [*ENDLESS, "--save", name, "--save-every", 3]))
    pairs = {}
    if until(lambda: os.path.exists(name), "the first save"):
        pairs = workers(p, 2)
        os.kill(pairs[1][1], number)
    finish(p, "killed in a step")
    check(p.returncode != 0, "a killed rank, and success")
    equal(p.err.count(f"memtape: rank 1 of 2 was killed by signal {number}"), 1, f"killed: {p.err!r}")
    for pid in (pid for pair in pairs.values() for pid in pair):
        check(ends(pid), f"process {pid} is left")
    equal(goes_on(name) % 3, 0, "the step of the file")
    print(f"a rank killed by {number} in a step: all ended in {p.took:.2f} s")


def interrupted(*numbers):
    """By signals that follow each other at once; mpirun's status is that of one process."""
    name = inside("interrupted.safetensors")
    if os.path.exists(name):
        os.remove(name)
    p = start((2, [], [*ENDLESS, "--save", name, "--save-every", 3]))
    if until(lambda: os.path.exists(name), "the first save"):
        for number in numbers:
            p.send_signal(number)
    finish(p, "Ctrl-C")
    check(p.returncode in (128 + numbers[0], 128 + signal.SIGTERM), f"status after {numbers}: {p.returncode}")
    check(len(re.findall(r"stopped by signal (?:2|15) ", p.err)) == 1, f"Ctrl-C: {p.err!r}")  # Open MPI's mpirun sends 15
    at = re.search(r"after step (\d+); the run is saved", p.err)
    check(at and goes_on(name) == int(at[1]), f"Ctrl-C saves: {p.err!r}")
    print(f"Ctrl-C: all ended in {p.took:.2f} s")


def interrupted_before_it_is_measured():
    """A run that ends after its first step is not compared with what meta predicts of two."""
    p = start((2, [], ["train", "--data", TEXT, "--dp", 2, "--steps", 3, "-b", 8, "-s", 256, "-d", 256, "-a", 4, "-l", 4]))
    for line in p.stdout:
        if line.startswith("ranks"):
            break
    p.send_signal(signal.SIGINT)
    finish(p, "Ctrl-C in the first step", LONGEST)
    steps = len(re.findall(r"step [1-3]/3", p.out))
    check(steps < 3, f"Ctrl-C in the first step: {p.out}")
    equal(p.out.count("stopped before"), 6 * (steps == 1), f"rows after {steps} steps: {p.out}")


def catches(pid, number):
    status = Path(f"/proc/{pid}/status").read_text()
    return int(re.search(r"SigCgt:\s*(\w+)", status)[1], 16) >> (number - 1) & 1


def without_a_reader():
    """`mpirun ... | head -1`: mpirun is killed by SIGPIPE, and what watches over the ranks after it."""
    name = inside("unread.safetensors")
    p = start((2, [], [*ENDLESS[:-1], "--save", name]))
    p.stdout.readline()
    pairs = workers(p, 2)
    # A rank that doesn't train yet ends with the process that watches over it.
    until(lambda: all(catches(pid, signal.SIGTERM) for _, pid in pairs.values()), "ranks that catch signals")
    time.sleep(0.5)  # what follows in the program is a line
    p.stdout.close()
    p.kill()
    p.wait()
    p.stderr.close()
    if until(lambda: os.path.exists(name), "the file of a run that nobody reads"):
        check(goes_on(name) >= 0, "a file without a step")
    for pid in (pid for pair in pairs.values() for pid in pair):
        check(ends(pid), f"process {pid} is left")


def no_room():
    """For a file, on one rank; for the model, on one rank."""
    name = inside("full.safetensors")
    own = [*SMALL, "-d", 256, "-s", 8, "--steps", 1, "--dp", 2, "--zero", 2, "--eval-every", 0, "--save", name, "-q"]
    equal(together(2, *own, seconds=LONGEST).returncode, 0, "a file to be replaced")
    before = content(name)
    limited = ["sh", "-c", 'ulimit -f 16384; exec "$0" "$@"']
    p = finish(start((1, [], own), (1, limited, own)), "no room for a file", LONGEST)
    refused(["memtape train: rank 1 of 2: ", "full.safetensors: cannot write: "], p, 1, "no room for a file")
    check(content(name) == before, "the file is what it was")
    check(not [f for f in os.listdir(folder.name) if ".tmp-" in f], "a temporary file is left")
    refused(["memtape train: rank 0 of 2: /dev/full: cannot write: No space left"],
            together(2, *own, "--save", "/dev/full", seconds=LONGEST), 1, "a full disk")
    limited = ["sh", "-c", 'ulimit -v 700000; exec "$0" "$@"']
    big = [*SMALL, "-b", 8, "-s", 512, "-d", 512, "-l", 4, "--dp", 2]
    refused(["rank 1 of 2", "cpu has room for"], finish(start((1, [], big), (1, limited, big)), "no memory"), 1,
            "one rank without memory")


def shared_room():
    """Two ranks of which each would fit, and both do not, in what /proc/meminfo says to them."""
    need = 211_074_560  # of each
    small = inside("meminfo")
    with open("/proc/meminfo") as f, open(small, "w") as g:
        text = re.sub(r"(SwapFree: *)\d+", r"\g<1>0", f.read())
        g.write(re.sub(r"(MemAvailable: *)\d+", rf"\g<1>{need * 3 // 2 // 1024}", text))
    pretend = ["unshare", "-m", "sh", "-c", f'mount --bind {small} /proc/meminfo && exec "$0" "$@"']
    if subprocess.run([*pretend, "true"], capture_output=True, check=False).returncode:
        print("skipped: nobody may mount here")
        return
    model = ["-l", 4, "-d", 512, "-a", 4, "-s", 128, "-b", 2, "--dp", 2]
    for own in (["train", "--data", TEXT, "--steps", 2, *model], ["profile", "gpt", *model]):
        p = finish(start((2, pretend, own)), "room of a machine")
        refused(["by 2 ranks of one machine, takes", "cpu has room for 301.9"], p, 1, own)


def other_files():
    """One rank's file to resume is another one."""
    parts = []
    for i in range(2):
        os.makedirs(inside(str(i)), exist_ok=True)
        p = run(*SMALL, "--steps", 3 + i, "--optimizer", "adamw:warmup=1", "--eval-every", 0, "-q", "--save", inside(str(i), "run.safetensors"))
        equal(p.returncode, 0, f"a file to resume: {p.stderr}")
        own = ["train", "--data", TEXT, "--resume", "run.safetensors", "--steps", 9, "--dp", 2]
        parts.append((1, ["sh", "-c", f'cd {folder.name}/{i} && exec "$0" "$@"'], own))
    refused(["the run of rank 1", "step 4", "step 3"], finish(start(*parts), "other files"), 1, "another file to resume")


def other_texts():
    parts = []
    for i in range(2):
        os.makedirs(inside(str(i)), exist_ok=True)
        with open(TEXT) as f, open(os.path.join(folder.name, str(i), "own.txt"), "w") as g:
            g.write(f.read()[i:])
        own = [x if x != TEXT else "own.txt" for x in SMALL]
        parts.append((1, ["sh", "-c", f'cd {folder.name}/{i} && exec "$0" "$@"'], [*own, "--dp", 2]))
    refused(["the text (--data) of rank 1", "hash"], finish(start(*parts), "other texts"), 1, "another text")


refusals()
other_texts()
other_files()
no_room()
shared_room()
for fault in [signal.SIGKILL, signal.SIGSEGV, *([signal.SIGBUS, signal.SIGFPE, signal.SIGABRT] if LONG else [])]:
    killed(fault)
for nth in range(10 if LONG else 8):
    if turn(nth):
        interrupted([signal.SIGINT, signal.SIGTERM][nth % 2])
interrupted_before_it_is_measured()
without_a_reader()
for nth, part in enumerate((repeated, files, adapters, curves, quotation, staged, ahead, sixteen_bits)):
    if turn(nth):
        part()
done()
