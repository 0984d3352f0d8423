"""A model that the machine cannot hold is refused before it is made, in little time and memory. The refusal
says how much it takes, how much there is, and names `--device meta`. Here the limit is the process's
address space (ulimit -v), so nothing depends on the machine."""
import json
import os
import re
import resource
import struct
import subprocess
import tempfile
from lib import MEMTAPE, check, done, equal, profile, run

GIB = 2**30
MOST = 200 * 1024  # KiB resident; the refused models take terabytes
HERE = os.path.abspath(__file__)


def within(addresses, *args):
    """Status, output, errors and resident KiB of a run with this many bytes of address space."""
    limit = (lambda: resource.setrlimit(resource.RLIMIT_AS, (addresses, addresses))) if addresses else None
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        p = subprocess.Popen([MEMTAPE, *map(str, args)], stdout=out, stderr=err, preexec_fn=limit)
        _, status, used = os.wait4(p.pid, 0)
        p.returncode = os.waitstatus_to_exitcode(status)
        out.seek(0), err.seek(0)
        return p.returncode, out.read(), err.read(), used.ru_maxrss


def too_large(needed, addresses, *args):
    """The run is refused, and the message gives `needed` bytes (None: any number)."""
    status, out, err, resident = within(addresses, *args)
    equal((status, out), (1, ""), f"status and output of {args}: {err}")
    message = re.search(r"takes ([\d,]+) bytes \([\d.]+ .*\) at its peak, and cpu has room for [\d.]+ .*; .*--device meta",
                        err)
    check(message, f"{args} says how much it takes: {err!r}")
    if message and needed is not None:
        equal(int(message[1].replace(",", "")), needed, f"bytes of {args}")
    check(resident < MOST, f"{args}: {resident} KiB resident")


def highest(*args):
    """The highest peak of both steps of a profile, measured on meta with the CPU's scratch."""
    p = profile(*[a for a in args if a not in ("--device", "cpu")], "--device", "meta", "--recipe", "plain:scratch=cpu")
    return max(at["peak"] for at in [*p["phases"], p["steady"]])


def every_verb():
    huge = ["megatron-1t", "-s", 16, "--device", "cpu", "--threads", 1]
    for optimizer in ["none", "adamw"]:
        model = [*huge, "--optimizer", optimizer]
        too_large(highest(*model), None, "profile", *model)
        too_large(highest(*model), None, "sweep", *model, "--over", "checkpoint=none,full")
    too_large(None, None, "explain", *huge)
    too_large(None, None, "sweep", "gpt", "--row", "small:", "--row", "large: --hidden 65536 --layers 1000")
    too_large(None, None, "train", "--data", HERE, "-d", 65536, "-l", 1000)
    p = run("train", "--data", HERE, "-d", 65536, "-l", 1000, "--device", "meta", "--steps", 2)
    check(p.returncode == 0 and "bytes allocated" in p.stdout, f"on meta there is room: {p.stderr}")


def room_is_what_the_process_may_use():
    if within(2 * GIB, "--version")[0] != 0:
        print("skipped: a program with sanitizers needs more addresses")
        return
    model = ["gpt2-medium", "-s", 64, "-b", 1, "--dtype", "f32", "--optimizer", "none", "--device", "cpu", "--threads", 1]
    too_large(highest(*model), 2 * GIB, "profile", *model)
    equal(within(2 * GIB, "profile", *model[:-4], "--device", "meta")[0], 0, "the same on meta")
    equal(within(2 * GIB, "profile", "gpt")[0], 0, "status of a model for which there is room")
    status, out, err, _ = within(2 * GIB, "profile", *model, "--capacity", "100MB")
    equal(status, 1, f"status when --capacity, which the machine has, is too small: {err}")
    check("capacity of" in err and "Who held what" in out, f"the report lists who filled the capacity: {err}")
    too_large(3 * GIB, 2 * GIB, "profile", *model, "--batch", 64, "--capacity", "3GiB")


def a_file_that_claims_a_large_model():
    """Whichever check comes first, of the file's size or of its shapes, no memory is taken for the claim."""
    with tempfile.TemporaryDirectory() as folder:
        name = os.path.join(folder, "model.safetensors")
        p = run("train", "--data", HERE, "-d", 32, "-l", 1, "--steps", 1, "--save", name)
        equal(p.returncode, 0, f"status of training: {p.stderr}")
        with open(name, "rb") as f:
            data = f.read()
        size = struct.unpack("<Q", data[:8])[0]
        header = json.loads(data[8 : 8 + size])
        config = json.loads(header["__metadata__"]["config"])
        for key in ("hidden", "ffn"):
            config[key] = 2**17
        header["__metadata__"]["config"] = json.dumps(config)
        text = json.dumps(header).encode()
        with open(name, "wb") as f:
            f.write(struct.pack("<Q", len(text)) + text + data[8 + size :])
        status, out, err, resident = within(None, "generate", "--model", name)
        equal((status, out), (1, ""), f"a file that claims a large model: {err}")
        check(resident < MOST, f"{resident} KiB resident: {err}")


every_verb()
room_is_what_the_process_may_use()
a_file_that_claims_a_large_model()
done()
