"""Standard streams that the caller has closed: what is printed goes nowhere, and never into a file."""
import os
import pickle
import subprocess
import tempfile
from lib import MEMTAPE, check, done, equal

folder = tempfile.TemporaryDirectory()
os.chdir(folder.name)
with open("text", "w") as f:
    f.write("".join(chr(97 + i * i % 23) for i in range(3000)))
TRAIN = ["train", "--data", "text", "-l", "1", "-d", "16", "-a", "2", "-s", "16", "-b", "2", "--steps", "6"]


def written(closed, *args):
    """Runs the program with these descriptors closed; its status and what it printed elsewhere."""
    shell = "".join(f" {fd}{'<' if fd == 0 else '>'}&-" for fd in closed)
    p = subprocess.run(["bash", "-c", f'exec "$@"{shell}', "-", MEMTAPE, *args], stdin=subprocess.DEVNULL,
                       capture_output=True, text=True, timeout=300, check=False)
    return p.returncode, p.stdout, p.stderr


def contents(name):
    with open(name, "rb") as f:
        return f.read()


def files_hold_only_what_is_theirs():
    """--snapshot's file is open while the run prints; a standard stream's descriptor must not be its."""
    equal(written([], *TRAIN, "--save", "open.safetensors", "--snapshot", "open.pickle")[0], 0, "with all streams")
    actions = [e["action"] for e in pickle.loads(contents("open.pickle"))["device_traces"][0]]
    for closed in [[0], [1], [2], [0, 1], [1, 2], [0, 1, 2]]:
        status, out, err = written(closed, *TRAIN, "--save", "a.safetensors", "--snapshot", "a.pickle")
        equal(status, 1 if 1 in closed else 0, f"status with {closed} closed: {err}")
        check("standard output" in err or 1 not in closed or 2 in closed, f"{closed}: {err}")
        check("held out" in out or 1 in closed, f"{closed}: {out}")
        equal(contents("a.safetensors"), contents("open.safetensors"), f"the model with {closed} closed")
        try:
            trace = pickle.loads(contents("a.pickle"))["device_traces"][0]
            equal([e["action"] for e in trace], actions, f"the snapshot's events with {closed} closed")
        except Exception as e:  # whatever text in it makes of it
            check(False, f"the snapshot with {closed} closed: {e}")


files_hold_only_what_is_theirs()
done()
