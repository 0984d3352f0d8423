"""Whole programs in which one request for memory fails: refused_memory.py REFUSE_SO [SECONDS [SEED]].

Each verb runs once to count its requests, then repeatedly with another request refused (refuse.c), in an
order that the seed decides, for its share of SECONDS; with 0, every request is tried. The program must end
by itself, with status 0, 1 or 2. With 0 it prints what it always prints, otherwise a reason; and it leaves its
output complete or absent."""
import itertools
import json
import os
import random
import re
import sys
import time
import xml.etree.ElementTree
from rough import SMALL, check, done, line, make_text, memtape, path, read, \
    seconds_given, seed_given

LIBRARY = os.path.abspath(sys.argv[1])
SECONDS = seconds_given(sys.argv[2:], short=4, long=50)
SEED = seed_given(sys.argv[3:])
ENDS = 20  # number of first and of last requests that are always tried

TEXT = make_text()
BASE = path("base.safetensors")
OUT = os.path.join(path("out"), "file")
ADAPTER = ["--from", BASE, "--lora-rank", 2]
VERBS = {
    "help": ["help"],
    "wrong": ["profile", "block", "--act", "nothing"],
    "profile": ["profile", "block", "--act", "relu", "--json", OUT],
    "svg": ["profile", "gpt", "-l", 1, "--optimizer", "adamw", "--device", "meta", "--svg", OUT],
    "html": ["profile", "gpt", "-l", 1, "--optimizer", "adamw", "--device", "meta", "--html", OUT],
    "explain": ["explain", "mlp", "--act", "gelu"],
    "sweep": ["sweep", "mlp", "--over", "act=relu,gelu", "--device", "meta"],
    "plan": ["plan", "gpt", "-b", 2, "--json", OUT],
    "rank": ["profile", "gpt", "-l", 2, "--tp", 2, "--device", "meta", "--json", OUT],
    "fit": ["fit", "gpt", "-l", 2, "--gpus", 2, "--gpu", "h100", "--json", OUT],
    "serve": ["serve", "gpt", "-l", 1, "--capacity", "6MiB", "--weights", "nf4", "--kv-cache", "8bit", "--json", OUT],
    "train": ["train", "--data", TEXT, *SMALL, "--steps", 2, "--save", OUT],
    "resume": ["train", "--data", TEXT, "-q", "--resume", BASE, "--steps", 3, "--save", OUT],
    "adapt": ["train", "--data", TEXT, *ADAPTER, "-q", "--steps", 2, "-b", 2, "-s", 8,
              "--save-adapter", OUT],
    "offload": ["train", "--data", TEXT, *SMALL, "--steps", 1, "--offload", "disk", "--checkpoint",
                "selective", "--amp", "bf16", "--save", OUT],
    "expandable": ["train", "--data", TEXT, *SMALL, "--steps", 2, "--expandable-segments", "--recipe", "plain:granule=4KiB",
                   "--recipe", "plain:reclaim", "--save", OUT],
    "generate": ["generate", "--model", BASE, "--tokens", 4, "-q", "--prompt", "ab"],
}
TIMED = ["profile", "svg", "html", "sweep", "rank", "fit"]  # they print times


def run(args, **environment):
    if os.path.exists(OUT):
        os.unlink(OUT)
    p = memtape(*args, timeout=60, **environment)
    return p, read(OUT) if os.path.exists(OUT) else None


def is_whole(args, output, wanted, status):
    """Whether the output is complete. A failed step may leave a report and a picture, but a failed run leaves
    no model."""
    if output is None:
        return status != 0 or wanted is None
    try:
        if "--json" in args:
            json.loads(output)
        elif "--svg" in args:
            xml.etree.ElementTree.fromstring(output)
        elif "--html" in args:
            for part in ("report", "more"):
                json.loads(re.search(rb'id="%b">(.*?)</script>' % part.encode(), output, re.S).group(1))
            return output.endswith(b"</html>\n") and (status != 0 or output == wanted)
        else:
            return output == wanted
    except (AttributeError, ValueError, xml.etree.ElementTree.ParseError):
        return False
    return status != 0 or "--json" in args or output == wanted


def is_right(args, wanted, stdout, n):
    """wanted, stdout: from a run without a refusal; stdout is None if it differs from run to run."""
    p, output = run(args, LD_PRELOAD=LIBRARY, REFUSE_AT=str(n))
    again = f"REFUSE_AT={n} LD_PRELOAD={LIBRARY} OMP_NUM_THREADS=1 {line(args)}"
    ok = check(p.returncode in (0, 1, 2), f"status {p.returncode}: {again}: {p.stderr[-300:]}")
    if p.returncode == 0:
        other = [new for old, new in itertools.zip_longest((stdout or p.stdout).splitlines(),
                                                           p.stdout.splitlines()) if new != old]
        ok &= check(not other, f"another output, {other[:2]}: {again}")
    else:
        ok &= check(p.stderr.strip() != "", f"status {p.returncode} without a message: {again}")
    ok &= check(is_whole(args, output, wanted, p.returncode), f"an incomplete output: {again}")
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
    check(stdout is None or stdout == second.stdout, f"two runs print different text: {line(args)}")
    check("--json" in args or output == output2, f"two runs write different files: {line(args)}")
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
