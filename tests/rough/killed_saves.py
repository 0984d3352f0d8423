"""kill -9 at random moments of `memtape train --save`: killed_saves.py [SECONDS [SEED]].

A run that saves at every step is killed at a moment that the seed decides, until SECONDS
are spent. The file that survives is, byte for byte, one that an undisturbed run wrote, and going
on from it leads, bit for bit, where that run ended."""
import os
import random
import subprocess
import sys
import time
from rough import (ENVIRONMENT, MEMTAPE, SMALL, check, contents, done, equal, line, make_text, memtape,
                   path, read, seconds_given, seed_given)

SECONDS = seconds_given(sys.argv[1:], short=4, long=45)
SEED = seed_given(sys.argv[2:])
STEPS = 40
TEXT = make_text()
TRAIN = ["train", "--data", TEXT, *SMALL, "-d", 48, "--dropout", 0.1, "--steps", STEPS, "--save-every", 1]
SAVE = os.path.join(path("killed"), "run.safetensors")


def undisturbed():
    """The bytes after each step, and how long it all takes."""
    os.mkdir(path("whole"))
    start = time.monotonic()
    p = memtape(*TRAIN, "--save", path("whole"))
    took = time.monotonic() - start
    equal(p.returncode, 0, f"status of the undisturbed run: {p.stderr}")
    return {n: read(path(f"whole/step-{n}.safetensors")) for n in range(1, STEPS + 1)}, took


def kill_after(seconds):
    """The bytes of the file that is left, none if there is none; None if the run had ended."""
    p = subprocess.Popen([MEMTAPE, *map(str, TRAIN), "--save", SAVE], env=ENVIRONMENT,
                         stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    time.sleep(seconds)
    p.kill()
    if p.wait() == 0:
        return None
    return read(SAVE) if os.path.exists(SAVE) else b""


def go_on(wanted, step, what):
    on = path("on.safetensors")
    args = ["train", "--data", TEXT, "-q", "--resume", SAVE, "--save", on]
    p = memtape(*args)
    if check(p.returncode == 0, f"{what}: going on from step {step}: {p.stderr}: {line(args)}"):
        check(contents(on) == wanted, f"{what}: another end after going on from step {step}")


os.mkdir(path("killed"))
print(f"seed {SEED}")
states, took = undisturbed()
with open(path("end.safetensors"), "wb") as f:
    f.write(states[STEPS])
end, draw = contents(path("end.safetensors")), random.Random(SEED)
kills, at, until, gone_on = 0, {}, time.monotonic() + SECONDS, set()
while time.monotonic() < until or kills < 5:
    for name in os.listdir(path("killed")):
        os.unlink(os.path.join(path("killed"), name))
    seconds = draw.random() * took
    left = kill_after(seconds)
    if left is None:
        continue
    kills += 1
    step = next((n for n, whole in states.items() if whole == left), None) if left else 0
    at[step] = at.get(step, 0) + 1
    what = f"killed after {seconds:.4f} s"
    if check(step is not None, f"{what}: {len(left)} bytes that no undisturbed run wrote"):
        if 0 < step < STEPS and step not in gone_on:
            gone_on.add(step)
            go_on(end, step, what)
check(any(at), "no kill left a file")
print(f"{kills} kills; files of {len([s for s in at if s])} steps survived, {at.get(0, 0)} times none; "
      f"went on from {len(gone_on)}")
done()
