"""Runs that are cut and resumed with other options: resumes.py [SECONDS [SEED]].

Options that change no bit may change when a run is resumed: threads, checkpoints, offload, exact compression.
Each run (plain, with amp, 16-bit parameters, adapters, lossy compression) is made once without a cut and saved
at each step. Then it is cut at a step and resumed with some options changed, perhaps several times; it must
end with the bits of the run without a cut. First every single change is tried at one cut of every run, in the
long form all of them, then random ones for SECONDS; the seed decides which. Options that do change bits must give other bits."""
import os
import random
import sys
import time
from rough import LONG, check, contents, done, equal, line, make_text, memtape, path, \
    seconds_given, seed_given

SECONDS = seconds_given(sys.argv[1:], short=3, long=50)
SEED = seed_given(sys.argv[2:])
STEPS = 6
TEXT = make_text()
BASE = path("base.safetensors")
# Every step updates the loss scale and the schedule, so a run that is resumed wrongly ends with other bits.
COMMON = ["--data", TEXT, "--steps", STEPS, "--lr", 0.0123, "--optimizer", "adamw:warmup=2", "--accumulate", 2,
          "--dropout", 0.1]
BATCH = ["-b", 4, "-s", 16, "--seed", 7, "-q"]
WIDTHS = ["-d", 24, "-a", 3, "-l", 2]
MODEL = [*BATCH, *WIDTHS, *COMMON]
ADAPTED = [*BATCH, *COMMON, "--from", BASE, "--lora-rank", 2]

THREADS = [["--threads", n] for n in (1, 2, 3)]
CHECKPOINTS = [["--checkpoint", c] for c in ("none", "full", "selective", "ops", "every=2", "sqrt")]
OFFLOADS = [["--offload", o] for o in ("none", "cpu", "disk")]
EXACT = [["--compress", c] for c in ("none", "seed", "signs", "seed+signs")]
ALL = [THREADS, CHECKPOINTS, OFFLOADS, EXACT]
# Lossy compression packs other tensors under a checkpoint, which changes the numbers by design.
LOSSY = [THREADS, OFFLOADS]
RUNS = {
    "plain": (MODEL, ALL),
    "relu": ([*MODEL, "--act", "relu"], ALL),
    "math attention": ([*MODEL, "--attention", "math"], ALL),
    "llama": ([*MODEL, "--preset", "llama-tiny", "-d", 16, "-a", 2], ALL),
    "amp": ([*MODEL, "--amp", "bf16"], ALL),
    "amp with a scale": ([*MODEL, "--amp", "f16", "--loss-scale", "dynamic"], ALL),
    "16-bit parameters": ([*MODEL, "--dtype", "bf16", "--master-weights"], ALL),
    "adapters": (ADAPTED, ALL),
    "adapters on 4 bits": ([*ADAPTED, "--qlora"], ALL),
    "some adapters on 4 bits": ([*ADAPTED, "--lora-targets", "qkv,mlp.proj", "--qlora", "--recipe", "plain:qlora-double"], ALL),
    "adapters on 8 bits": ([*ADAPTED, "--qlora", "--recipe", "plain:codes=int8"], ALL),
    "8 bits": ([*MODEL, "--compress", "8bit"], LOSSY),
}


def whole(name):
    """Tensors and metadata at the end of the run without a cut; its saves are in a folder of its own."""
    args, _ = RUNS[name]
    os.mkdir(path(name))
    p = memtape("train", *args, "--save-every", 1, "--save", path(name), timeout=120)
    if check(p.returncode == 0, f"{name}: the whole run: {p.stderr}: {line(['train', *args])}"):
        return contents(saved(name, STEPS))
    return None


def saved(name, step):
    return os.path.join(path(name), f"step-{step}.safetensors")


def state_of(metadata):
    """The metadata that decide how a run continues, without the options that may change."""
    return {k: v for k, v in metadata.items() if k != "run"}


def end_after(name, cuts):
    """The end of a run with these cuts, a list of (step, changed options); None if a run failed."""
    at = saved(name, cuts[0][0])
    for i, (step, changed) in enumerate(cuts):
        until = cuts[i + 1][0] if i + 1 < len(cuts) else STEPS
        on = path(f"on-{i % 2}.safetensors")
        args = ["train", "--data", TEXT, "-q", "--resume", at, *changed, "--save", on]
        if until != STEPS:
            args += ["--save-every", 1]
        if not resume_to(name, args, until, on):
            return None
        at = on
    return contents(at)


def is_same(a, b):
    return bool(a) and a[0] == b[0] and state_of(a[1]) == state_of(b[1])


def try_cuts(name, end, cuts):
    return check(is_same(end_after(name, cuts), end), f"{name}: other bits after {cuts}")


def resume_to(name, args, until, on):
    """A run's schedule depends on its planned end, so the run goes to its end, and the save at step `until`
    is taken from a folder."""
    if until == STEPS:
        p = memtape(*args, timeout=120)
        return check(p.returncode == 0, f"{name}: {p.stderr}: {line(args)}")
    way = path("way")
    os.makedirs(way, exist_ok=True)
    for left in os.listdir(way):
        os.unlink(os.path.join(way, left))
    args = [way if a == on else a for a in args]
    p = memtape(*args, timeout=120)
    if not check(p.returncode == 0, f"{name}: {p.stderr}: {line(args)}"):
        return False
    os.replace(os.path.join(way, f"step-{until}.safetensors"), on)
    return True


def any_change(draw, changes):
    return [word for of in changes if draw.random() < 0.7 for word in draw.choice(of)]


def any_cuts(draw, changes):
    steps = sorted(draw.sample(range(1, STEPS), draw.choice((1, 1, 2, 3))))
    return [(step, any_change(draw, changes)) for step in steps]


print(f"seed {SEED}")
p = memtape("train", "--data", TEXT, *BATCH, *WIDTHS, "--steps", 2, "--save", BASE)
equal(p.returncode, 0, f"status of making a base: {p.stderr}")
until, draw = time.monotonic() + SECONDS, random.Random(SEED)
ends = {name: whole(name) for name in RUNS}
names = [name for name in RUNS if ends[name]]
for changed in (["--compress", "8bit"], ["--lr", 0.0124], ["--amp", "bf16"]):
    other = end_after("plain", [(3, changed)])
    check(other and not is_same(other, ends["plain"]), f"{changed} changed no bit")
tried = wrong = 0
plain = [(name, [(draw.randrange(1, STEPS), change)])
         for name in names for of in RUNS[name][1] for change in of]
draw.shuffle(plain)
while (time.monotonic() < until or tried < 20 or (LONG and plain)) and wrong < 10:
    if plain:
        name, cuts = plain.pop()
    else:
        name = draw.choice(names)
        cuts = any_cuts(draw, RUNS[name][1])
    wrong += not try_cuts(name, ends[name], cuts)
    tried += len(cuts)
print(f"{tried} cuts of {len(names)} runs, {wrong} with other bits; {len(plain)} single changes not tried")
done()
