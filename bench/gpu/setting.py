"""setting.py: what the steps of `./run gpu` share: the options that gpu.py passes on, and how a step says what it
finds: at once, one JSON object per line, so that a step that is cut off keeps its earlier results."""

import argparse
import json
import os
import subprocess
import sys
import time

import shapes

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.append(os.path.join(HERE, ".."))
from worker import Failed, Worker  # noqa: E402

TORCH_SIDE = os.path.join(HERE, "torch_side.py")
# The simulator as strict as a GPU, a Hopper: kernels are waited for, memory is page-locked, and little of it may be.
STRICT = {"CUDASIM_GPU": "9.0", "MTT_WAITING": "1", "CUDASIM_MOST_PINNED": "1000", "CUDASIM_SHARED_GPU": "0"}


def say(**row):
    print(json.dumps(row), flush=True)


def plan(labels):
    say(plan=list(labels))


def environment(libs, cuda_libs):
    """The variables for memtape's programs, besides the inherited ones, which may name the driver's folder."""
    paths = [libs, os.environ.get("LD_LIBRARY_PATH", "")]
    found = {"LD_LIBRARY_PATH": ":".join(filter(None, paths))}
    return found | ({"MEMTAPE_CUDA_LIBS": cuda_libs} if cuda_libs else {})


class Setting:
    """The options that gpu.py passes on."""

    def __init__(self, steps):
        p = argparse.ArgumentParser()
        p.add_argument("step", choices=steps)
        p.add_argument("--pack", required=True)
        p.add_argument("--results", required=True, help="folder for files that a step leaves")
        p.add_argument("--libs", required=True, help="folder of libraries this machine lacks")
        p.add_argument("--cuda-libs", default="")
        p.add_argument("--kind", required=True, help="memtape's device")
        p.add_argument("--torch", default="", help="PyTorch's device, if it is there")
        p.add_argument("--gpu-bytes", type=int, default=0, help="the GPU's memory, if PyTorch sees one")
        p.add_argument("--seconds", type=float, required=True)
        p.add_argument("--toy", action="store_true")
        self.__dict__.update(vars(p.parse_args()))
        self.plan = shapes.TOY if self.toy else shapes.REAL
        self.until = time.monotonic() + self.seconds
        self.program = os.path.join(self.pack, "bin", "memtape_gpu")
        self.environment = environment(self.libs, self.cuda_libs)

    def time_for(self, seconds):
        return time.monotonic() + seconds < self.until

    def memtape(self, *arguments, environment=None):
        return Worker([self.program], *arguments, environment=self.environment | (environment or {}))

    def peer(self, *arguments):
        return Worker([sys.executable, TORCH_SIDE], *arguments)

    def lines(self, *arguments, environment=None):
        """Runs memtape_gpu to its end: its lines as lists of words."""
        got = subprocess.run([self.program, *map(str, arguments)], capture_output=True, text=True,
                             check=False, env=os.environ | self.environment | (environment or {}))
        if got.returncode:
            raise Failed(got.stderr.strip() or f"status {got.returncode}")
        return [line.split() for line in got.stdout.splitlines()]
