"""kill -9 at random moments of `memtape train --save`: killed_saves.py [SECONDS [SEED]].

A run that saves at every step is killed at a moment that the seed decides; this is repeated for SECONDS. The
file that is left has the bytes of one that an undisturbed run wrote, and a run resumed from it ends with the
bits of the undisturbed run."""
import os
import random
import subprocess
import sys
import time
from rough import (ENVIRONMENT, MEMTAPE, SMALL, check, contents, done, equal, line, make_text, memtape,
                   path, read, seconds_given, seed_given)

SECONDS = seconds_given(sys.argv[1:], short=3, long=20)
SEED = seed_given(sys.argv[2:])
STEPS = 40
TEXT = make_text()
TRAIN = ["train", "--data", TEXT, *SMALL, "-d", 48, "--dropout", 0.1, "--steps", STEPS, "--save-every", 1]
SAVE = os.path.join(path("killed"), "run.safetensors")


def undisturbed():
    """The bytes of the file after each step, and the duration of the run."""
    os.mkdir(path("whole"))
    start = time.monotonic()
    p = memtape(*TRAIN, "--save", path("whole"))
    took = time.monotonic() - start
    equal(p.returncode, 0, f"status of the undisturbed run: {p.stderr}")
    return {n: read(path(f"whole/step-{n}.safetensors")) for n in range(1, STEPS + 1)}, took


def kill_after(seconds):
    """The bytes of the file that is left (b"" without a file); None if the run had ended before."""
    p = subprocess.Popen([MEMTAPE, *map(str, TRAIN), "--save", SAVE], env=ENVIRONMENT,
                         stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    time.sleep(seconds)
    p.kill()
    if p.wait() == 0:
        return None
    return read(SAVE) if os.path.exists(SAVE) else b""


def resume(wanted, step, what):
    on = path("on.safetensors")
    args = ["train", "--data", TEXT, "-q", "--resume", SAVE, "--save", on]
    p = memtape(*args)
    if check(p.returncode == 0, f"{what}: resuming from step {step}: {p.stderr}: {line(args)}"):
        check(contents(on) == wanted, f"{what}: another end after resuming from step {step}")


os.mkdir(path("killed"))
print(f"seed {SEED}")
states, took = undisturbed()
with open(path("end.safetensors"), "wb") as f:
    f.write(states[STEPS])
end, draw = contents(path("end.safetensors")), random.Random(SEED)
kills, at, until, resumed = 0, {}, time.monotonic() + SECONDS, set()
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
        if 0 < step < STEPS and step not in resumed:
            resumed.add(step)
            resume(end, step, what)
check(any(at), "no kill left a file")
print(f"{kills} kills; files of {len([s for s in at if s])} steps survived, {at.get(0, 0)} times none; "
      f"resumed from {len(resumed)}")
done()
