#!/usr/bin/env python3
"""`memtape train`: whatever an option keeps from step to step is in the file that --save writes, and --eval-every
changes none of it. The program tells the choices of an option, so that a new one is tried too."""
import hashlib
import os
import tempfile
from lib import check, done, equal, names_of, run

folder = tempfile.TemporaryDirectory()
TEXT = os.path.join(folder.name, "text.txt")
words = [hashlib.sha256(str(i).encode()).hexdigest()[: 2 + i % 5] for i in range(50)]
with open(TEXT, "w") as f:
    f.write(" ".join(words[(i * i + i // 7) % 50] for i in range(1500)))


def path(name):
    return os.path.join(folder.name, name)


def content(name):
    with open(path(name), "rb") as f:
        return f.read()


def choices(option, usual):
    """All values of an option but the usual one."""
    names = names_of(option)
    check(len(names) > 1 and usual in names, f"choices of --{option}: {names}")
    return [name for name in names if name not in ("none", usual)]


# Blocks of 128 values cover these widths.
BASE = ["--data", TEXT, "-b", 4, "-s", 32, "-d", 128, "-a", 2, "-l", 1, "--lr", 0.01, "--optimizer", "adamw:min-lr=0.01,warmup=1",
        "--seed", 7, "-q"]
MIXTURE = ["--preset", "moe-tiny", "-d", 64, "-a", 2, "--ffn", 32, "-l", 2]


def trained(name, steps, *options):
    p = run("train", *BASE, *options, "--steps", steps, "--save", path(name))
    equal(p.returncode, 0, f"status of {options}: {p.stderr}")


def try_options(*options):
    trained("whole", 4, *options)
    trained("half", 2, *options)
    p = run("train", "--data", TEXT, "--resume", path("half"), "--steps", 4, "--save", path("resumed"), "-q")
    equal(p.returncode, 0, f"status of resuming {options}: {p.stderr}")
    check(content("resumed") == content("whole"), f"{options}: a resumed run saves other bytes")
    trained("evaluated", 4, *options, "--eval-every", 1)
    check(content("evaluated") == content("whole"), f"{options}: --eval-every changes what is saved")


try_options("--dropout", 0.2, "--accumulate", 2, "--optimizer", "adamw:clip=0.5")
for form in choices("linear", "native"):
    try_options("--linear", form)
try_options("--linear", "te-delayed", "--amp", "bf16", "--accumulate", 2, "--dropout", 0.1, "--checkpoint", "full")
try_options("--linear", "te-delayed", *MIXTURE, "--recipe", "plain:router=sigmoid", "--preset", "moe-tiny:mtp-layers=1")
for name in choices("optimizer", "adamw"):
    try_options("--optimizer", name)
    try_options("--optimizer", name, "--dtype", "bf16", "--master-weights", "--recipe", "plain:f32-gradients", "--linear", "te-delayed")
for scale in ("dynamic", 1024):  # the first steps overflow: what is skipped counts
    try_options("--dtype", "f16", "--loss-scale", scale)
try_options("--amp", "f16", "--loss-scale", "dynamic", "--linear", "te-delayed", "--optimizer", "sgd-momentum")
for scores in choices("router", "softmax"):
    try_options("--experts", 4, "--ffn", 32, "--recipe", f"plain:router={scores}")
try_options(*MIXTURE)
for form in choices("expert-form", "grouped"):
    try_options(*MIXTURE, "--recipe", f"plain:expert-form={form}", "--preset", "moe-tiny:balance-loss=0.01")
for loss in choices("loss", "native"):
    try_options("--loss", loss, "--dtype", "bf16")
for how in choices("compress", "none"):
    try_options("--compress", how, "--dropout", 0.1)

trained("base", 2)
trained("base-delayed", 2, "--linear", "te-delayed")
for name in ("base", "base-delayed"):
    for options in ([], ["--recipe", "plain:lora-dropout=0.1"], ["--qlora"]):
        if name == "base-delayed" and options == ["--qlora"]:
            continue
        words = ["--data", TEXT, "--from", path(name), "--lora-rank", 2, "-b", 4, "-s", 32, "--optimizer", "adamw:warmup=1", *options, "-q"]
        for file, more in (("whole", [4]), ("half", [2]), ("evaluated", [4, "--eval-every", 1])):
            p = run("train", *words, "--steps", *more, "--save", path(file))
            equal(p.returncode, 0, f"status of {options}: {p.stderr}")
        run("train", "--data", TEXT, "--resume", path("half"), "--steps", 4, "--save", path("resumed"), "-q")
        check(content("resumed") == content("whole"), f"adapters {name} {options}: a resumed run saves other bytes")
        check(content("evaluated") == content("whole"), f"adapters {name} {options}: --eval-every changes what is saved")

# The record of a training's rows is not that of an evaluation.
recorded = [*MIXTURE, "--steps", 4, "--record-routing"]
run("train", *BASE, *recorded, path("with"), "--eval-every", 1)
run("train", *BASE, *recorded, path("without"))
check(content("with") == content("without"), "--eval-every changes what --record-routing writes")
done()
