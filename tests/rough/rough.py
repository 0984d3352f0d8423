"""Shared by the rough tests: a text, small runs, reading files without memtape, and printing the command that
repeats a failure."""
import hashlib
import json
import os
import shlex
import struct
import subprocess
import sys
import tempfile

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "program", "verbs"))
from lib import MEMTAPE, check, done, equal  # noqa: E402, F401

# One thread, so that requests for memory have the same order in each run.
ENVIRONMENT = {**os.environ, "OMP_WAIT_POLICY": "passive", "OMP_NUM_THREADS": "1"}
LONG = os.environ.get("MTT_LONG") == "1"
folder = tempfile.TemporaryDirectory()
SMALL = ["-b", 2, "-s", 8, "-d", 12, "-a", 3, "-l", 2, "--seed", 7, "-q"]


def seconds_given(words, short, long):
    """The number of seconds: from the command line, or of the short or long form (tests/meson.build)."""
    return float(words[0]) if words else long if LONG else short


def seed_given(words):
    return int(words[0]) if words else 20260801


def path(name):
    return os.path.join(folder.name, name)


def make_text():
    words = [hashlib.sha256(str(i).encode()).hexdigest()[: 2 + i % 5] for i in range(50)]
    with open(path("text.txt"), "w") as f:
        f.write(" ".join(words[(i * i + i // 7) % 50] for i in range(1000)))
    return path("text.txt")


def read(name):
    with open(name, "rb") as f:
        return f.read()


def contents(name):
    """Tensors and metadata of a safetensors file."""
    data = read(name)
    size = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8 : 8 + size])
    body = data[8 + size :]
    metadata = header.pop("__metadata__")
    return {k: body[v["data_offsets"][0] : v["data_offsets"][1]] for k, v in header.items()}, metadata


def memtape(*args, timeout=60, **environment):
    """The finished process; its status is None if it did not end in time."""
    command = [MEMTAPE, *map(str, args)]
    try:
        return subprocess.run(command, capture_output=True, timeout=timeout, text=True,
                              errors="replace", env={**ENVIRONMENT, **environment})
    except subprocess.TimeoutExpired as late:
        return subprocess.CompletedProcess(command, None, "", f"no end in {late.timeout} s")


def line(args):
    return "memtape " + " ".join(shlex.quote(str(a)) for a in args)
