"""packed.py OBJECTS PACK: reads `meson introspect --tests` from standard input and selects the tests that take
their device from MTT_DEVICE, each once: the simulator's other orders do not apply to a GPU. Prints the tests'
programs, relative to OBJECTS, copies the scripts of `./run gpu` and what they read to PACK, where they look for it, and
writes PACK/pack.json, which names what is left out, too:
  scripts  they run the program on the simulator
  ranks    several ranks in one process share GPU 0, which NCCL refuses, however many GPUs there are; a group
           of one rank is in `kernels link`
  large    they would take the time of all others"""

import glob
import json
import os
import shutil
import subprocess
import sys

objects, pack = sys.argv[1:]
ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
SCRIPTS = ("run", "README.md", "bench/*.py", "bench/gpu/*.py", "docs/results/predictions.json", "python/memtape/*.py")


def first_line(*command):
    got = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    return (got.splitlines() or ["unknown"])[0]


def commit():
    changed = first_line("git", "status", "--porcelain", "--", "src", "models", "lab", "program", "include", "bench", "tests")
    return first_line("git", "rev-parse", "--short=12", "HEAD") + (
        "" if changed == "unknown" else " with changes")


def release(text):
    return text.split("release ")[-1].split(",")[0]


def copy_scripts():
    for pattern in SCRIPTS:
        for path in glob.glob(os.path.join(ROOT, pattern)):
            to = os.path.join(pack, os.path.relpath(path, ROOT))
            os.makedirs(os.path.dirname(to), exist_ok=True)
            shutil.copy(path, to)


LEFT_OUT = {"script", "ranks", "large"}
tests, seen, left_out = [], [], set()
for test in json.load(sys.stdin):
    if test["env"].get("MTT_DEVICE") != "cudasim":
        continue
    program, *arguments = test["cmd"]
    name = test["name"].removeprefix("cudasim ")
    # meson has a suite as "project:suite"
    if LEFT_OUT & {suite.split(":")[-1] for suite in test["suite"]}:
        left_out.add(name)
        continue
    if (program, arguments) in seen or os.path.relpath(program, objects).startswith(".."):
        continue
    seen.append((program, arguments))
    tests.append({"name": name,
                  "program": os.path.join("tests", os.path.basename(program)),
                  "arguments": arguments})
nvcc = [line for line in subprocess.run(["nvcc", "--version"], capture_output=True, text=True,
                                        check=False).stdout.splitlines() if "release" in line]
with open(os.path.join(pack, "pack.json"), "w", encoding="utf-8") as f:
    json.dump({"commit": commit(), "tests": tests, "left_out": sorted(left_out),
               "compiler": f"{first_line('cc', '--version')}, nvcc "
                           f"{release(nvcc[0]) if nvcc else 'unknown'}"}, f, indent=1)
    f.write("\n")
copy_scripts()
print("\n".join(sorted({os.path.relpath(program, objects) for program, _ in seen})))
