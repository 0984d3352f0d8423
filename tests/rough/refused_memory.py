"""Whole programs of which one request for memory fails: refused_memory.py REFUSE_SO [SECONDS [SEED]].

Each verb is run once to count its requests, then again and again with another one of them refused
(refuse.c), in an order that the seed decides, until its share of SECONDS is spent; 0
takes every one. Whatever is refused, the program ends by itself, with status 0, 1 or 2; says
something if not 0, prints what it always prints if 0; and leaves its output whole or not at all."""
import itertools
import json
import os
import random
import sys
import time
import xml.etree.ElementTree
from rough import SMALL, check, done, line, make_text, memtape, path, read, \
    seconds_given, seed_given

LIBRARY = os.path.abspath(sys.argv[1])
SECONDS = seconds_given(sys.argv[2:], short=6, long=100)
SEED = seed_given(sys.argv[3:])
ENDS = 20  # so many of the program's first requests, and of its last, are all refused

TEXT = make_text()
BASE = path("base.safetensors")
OUT = os.path.join(path("out"), "file")
ADAPTER = ["--from", BASE, "--lora-rank", 2]
VERBS = {
    "help": ["help"],
    "wrong": ["profile", "block", "--act", "nothing"],
    "profile": ["profile", "block", "--act", "relu", "--json", OUT],
    "svg": ["profile", "gpt", "-l", 1, "--optimizer", "adamw", "--device", "meta", "--svg", OUT],
    "explain": ["explain", "mlp", "--act", "gelu"],
    "audit": ["audit", "relu"],
    "sweep": ["sweep", "mlp", "--over", "act=relu,gelu", "--device", "meta"],
    "plan": ["plan", "gpt", "-b", 2, "--json", OUT],
    "rank": ["profile", "gpt", "-l", 2, "--tp", 2, "--device", "meta", "--json", OUT],
    "train": ["train", "--data", TEXT, *SMALL, "--steps", 2, "--save", OUT],
    "resume": ["train", "--data", TEXT, "-q", "--resume", BASE, "--steps", 3, "--save", OUT],
    "adapt": ["train", "--data", TEXT, *ADAPTER, "-q", "--steps", 2, "-b", 2, "-s", 8,
              "--save-adapter", OUT],
    "offload": ["train", "--data", TEXT, *SMALL, "--steps", 1, "--offload", "disk", "--checkpoint",
                "selective", "--amp", "bf16", "--save", OUT],
    "generate": ["generate", "--model", BASE, "--tokens", 4, "-q", "--prompt", "ab"],
}
TIMED = ["profile", "svg", "sweep", "rank"]  # they print milliseconds


def run(args, **environment):
    if os.path.exists(OUT):
        os.unlink(OUT)
    p = memtape(*args, timeout=60, **environment)
    return p, read(OUT) if os.path.exists(OUT) else None


def is_whole(args, output, wanted, status):
    """Of a step that failed there may be a report and a picture; of a model there may not."""
    if output is None:
        return status != 0 or wanted is None
    try:
        if "--json" in args:
            json.loads(output)
        elif "--svg" in args:
            xml.etree.ElementTree.fromstring(output)
        else:
            return output == wanted
    except (ValueError, xml.etree.ElementTree.ParseError):
        return False
    return status != 0 or "--json" in args or output == wanted


def is_right(args, wanted, stdout, n):
    """wanted, stdout: of the run that was refused nothing; no stdout where it differs each time."""
    p, output = run(args, LD_PRELOAD=LIBRARY, REFUSE_AT=str(n))
    again = f"REFUSE_AT={n} LD_PRELOAD={LIBRARY} OMP_NUM_THREADS=1 {line(args)}"
    ok = check(p.returncode in (0, 1, 2), f"status {p.returncode}: {again}: {p.stderr[-300:]}")
    if p.returncode == 0:
        other = [new for old, new in itertools.zip_longest((stdout or p.stdout).splitlines(),
                                                           p.stdout.splitlines()) if new != old]
        ok &= check(not other, f"printed something else, {other[:2]}: {again}")
    else:
        ok &= check(p.stderr.strip() != "", f"status {p.returncode} without a word: {again}")
    ok &= check(is_whole(args, output, wanted, p.returncode), f"half an output: {again}")
    left = sorted(set(os.listdir(path("out"))) - {"file"})
    ok &= check(not left, f"left {left}: {again}")
    for name in left:
        os.unlink(os.path.join(path("out"), name))
    return ok


def try_verb(name, args, seconds):
    count = path("count")
    first, output = run(args, LD_PRELOAD=LIBRARY, REFUSE_COUNT=count)
    second, output2 = run(args)
    wrong = 2 if name == "wrong" else 0
    if not check(first.returncode == wrong, f"status {first.returncode} of {line(args)}: {first.stderr}"):
        return
    n = int(read(count))
    stdout = None if name in TIMED else first.stdout
    check(stdout is None or stdout == second.stdout, f"prints something else each time: {line(args)}")
    check("--json" in args or output == output2, f"another output each time: {line(args)}")
    at = sorted(range(1, n + 1), key=lambda i: min(i, n + 1 - i))
    ends, rest = at[:2 * ENDS], at[2 * ENDS:]
    random.Random(f"{SEED} {name}").shuffle(rest)
    end, tried, bad = time.monotonic() + seconds, 0, 0
    for i in ends + rest:
        if seconds and time.monotonic() > end:
            break
        tried += 1
        bad += not is_right(args, output, stdout, i)
        if bad == 5:
            break
    print(f"{name}: {tried} of {n} requests refused, {bad} wrong", flush=True)


os.mkdir(path("out"))
print(f"seed {SEED}")
p = memtape("train", "--data", TEXT, *SMALL, "--steps", 2, "--save", BASE)
check(p.returncode == 0, f"status of making a model: {p.stderr}")
only = os.environ.get("ONLY", "").split()
chosen = {k: v for k, v in VERBS.items() if not only or k in only}
for name, args in chosen.items():
    try_verb(name, args, SECONDS / len(chosen))
done()
