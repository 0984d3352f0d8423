"""A program that uses the library may have set a locale with a decimal comma, or with a mark of several bytes: what is
printed, written and read is the same, byte by byte."""
import json
import os
import re
import struct
import subprocess
import tempfile
from lib import MEMTAPE, check, done, equal

folder = tempfile.TemporaryDirectory()
os.chdir(folder.name)


def make_locale(name, mark):
    """The C library's file for LC_NUMERIC, as localedef writes it: no locale has to be installed."""
    mark, between = mark.encode() + b"\0", b"\0"
    after = -(32 + len(mark) + 1) % 4
    grouping = 32 + len(mark) + 1 + after
    offsets = [32, 32 + len(mark), grouping, grouping + 4, grouping + 8, grouping + 12]
    data = mark + between + b"\0" * after + b"\xff\0\0\0" + struct.pack("<II", ord(mark[:-1].decode()), 0) + b"UTF-8\0"
    os.makedirs(f"locales/{name}")
    with open(f"locales/{name}/LC_NUMERIC", "wb") as f:
        f.write(struct.pack("<8I", 0x20031114, 6, *offsets) + data)


MARKS = {"comma": ",", "arabic": "\u066b"}
for name, mark in MARKS.items():
    make_locale(name, mark)


def program(locale, *words):
    """Its status, and what it prints."""
    env = dict(os.environ, LOCPATH=os.path.abspath("locales"))
    if locale:
        env.update(LD_PRELOAD=os.environ["SET_LOCALE"], NUMBERS_LOCALE=locale)
    p = subprocess.run([MEMTAPE, *map(str, words)], env=env, capture_output=True, check=False, timeout=300)
    return p.returncode, p.stdout.decode("utf-8", "replace"), p.stderr.decode()


def has_mark(locale):
    """That the locale is there at all, by a program that is not ours."""
    env = dict(os.environ, LOCPATH=os.path.abspath("locales"), LC_NUMERIC=locale)
    env.pop("LC_ALL", None)
    p = subprocess.run(["/usr/bin/env", "printf", "%.2f", "1"], env=env, capture_output=True, check=False)
    return p.returncode == 0 and p.stdout.decode() == f"1{MARKS[locale]}00"


def contents(name):
    with open(name, "rb") as f:
        return f.read()


CONFIG = {"model_type": "gpt2", "n_embd": 16, "n_head": 2, "n_layer": 2, "vocab_size": 300, "n_positions": 64,
          "layer_norm_epsilon": 1.5e-5, "resid_pdrop": 0.25, "embd_pdrop": 0.25, "attn_pdrop": 0.25}
with open("config.json", "w", encoding="utf-8") as f:
    json.dump(CONFIG, f)
with open("gpus.json", "w", encoding="utf-8") as f:
    json.dump({"h100": {"memory": "79.5GiB", "flops": 312.5e12}}, f)
with open("text", "w", encoding="utf-8") as f:
    f.write("".join(chr(97 + i * i % 23) for i in range(3000)))
with open("run.log", "w", encoding="utf-8") as f:
    f.write("step: 1  memory: 42.08GiB(44.27%)\nmax_memory_allocated: 0.5 GB\n")
with open("run.json", "w", encoding="utf-8") as f:
    f.write('{"max_memory_reserved": 2097152.0}')

# Nothing in these is measured in seconds.
SAME = [
    "profile mlp -b 2 -s 64 -d 64 --dropout 0.25 --device meta",
    "profile mlp -b 2 -s 64 -d 64 --dropout 0.25 --device meta --json -",
    "profile mlp -b 2 -s 64 -d 64 --dropout 0.25 --device meta --timeline --html out.html --svg out.svg --trace out.trace",
    "profile config.json -b 2 -s 64 --device meta --capacity 1.5GiB --json -",
    "profile config.json -b 2 -s 64 --device meta --dtype f16 --optimizer adamw --loss-scale 1024.5 --json -",
    "profile config.json -b 2 -s 64 --device meta --lora-rank 2 --snapshot out.pickle",
    "explain block -b 2 -s 16 -d 16 --dropout 0.5",
    "explain --expr x*0.5+1e-3 --shapes x=4,4",
    "sweep block -b 2 -s 16 --over dropout=0.25,0.5 --device meta",
    "sweep block -b 2 -s 16 --over dropout=0.25,0.5 --device meta --svg out.svg --html out.html --json -",
    "plan gpt2", "plan gpt2 -b 8 --html out.html --json -",
    "plan gpt2 --tokens 1.5e9 --flops-rate 312.5T --utilisation 0.45",
    "fit config.json --gpus 2 --gpu h100 --gpus-file gpus.json",
    "fit config.json --gpus 1 --gpu h100:price=2.5 --json -",
    "serve config.json --gpu h100 -s 64", "serve config.json --gpu h100 -s 64 --json -", "compare run.log config.json -b 2 -s 64",
    "compare run.log run.json config.json -b 2 -s 64 --json -",
    # Refusals, which quote numbers.
    "profile mlp --dropout 1.5", "profile mlp --dropout 0,5", "train --lr 1.5e9", "profile mlp --capacity 1,5GiB",
    "profile mlp --loss-scale 0.5", "explain --expr x*0,5 --shapes x=4",
]


def same_everywhere(locale):
    for line in SAME:
        outputs = [w for w in line.split() if w.startswith("out.")]
        results = []
        for l in None, locale:
            results.append([program(l, *line.split()), *map(contents, outputs)])
            results[-1][0] = (results[-1][0][0], *(re.sub(r"tried in [\d.]+ s|_seconds\": [\d.e-]+", "", t)
                                                   for t in results[-1][0][1:]))
        names = ["what is printed", *outputs]
        for name, plain, other in zip(names, *results):
            check(plain == other, f"{locale}: {line}: {name}: {first_difference(plain, other)}")


def first_difference(a, b):
    a, b = (t if isinstance(t, bytes) else repr(t).encode() for t in (a, b))
    at = next((i for i, (x, y) in enumerate(zip(a, b)) if x != y), min(len(a), len(b)))
    return f"{a[max(0, at - 40):at + 40]!r} without the locale, {b[max(0, at - 40):at + 40]!r} with it"


def runs_are_saved_and_read(locale):
    """A run's file and its adapters', written with the locale, are those written without, and each reads the other's."""
    base = ["--from", "plain.safetensors", "--lora-rank", 2, "--dropout", "0.25"]
    train = ["train", "--data", "text", "-l", 1, "-d", 16, "-a", 2, "-s", 16, "-b", 2, "--dropout", "0.25", "--lr", "2.5e-3"]
    for l in "plain", locale:
        use = None if l == "plain" else l
        for more in (["--save", f"{l}.safetensors", "--steps", 6],
                     ["--save", f"{l}.lora-run", "--save-adapter", f"{l}.adapter", "--steps", 6, *base]):
            status, out, err = program(use, *(train if "--from" not in more else ["train", "--data", "text"]), *more)
            equal(status, 0, f"{l}: status of train {more}: {err}")
            wrong = re.search(r"\d\u066b|\d,\d{1,2}(?!\d)|\d,\d{4}", out + err)
            check(not wrong, f"{l}: train prints {wrong}")
    for kind in "safetensors", "lora-run", "adapter":
        plain, other = contents(f"plain.{kind}"), contents(f"{locale}.{kind}")
        check(plain == other, f"{kind}: {first_difference(plain, other)}")
    for use, of in (None, locale), (locale, "plain"):
        words = ["generate", "--tokens", 8, "--temperature", "0.5", "--seed", 3]
        for more in (["--model", f"{of}.safetensors"], ["--model", f"{of}.lora-run", "--adapter", f"{of}.adapter"]):
            status, _, err = program(use, *words, *more)
            equal(status, 0, f"status of generate {more} with {use}: {err}")
        status, _, err = program(use, *train, "--resume", f"{of}.safetensors", "--steps", 8)
        equal(status, 0, f"status of a resumed run of {of} with {use}: {err}")


for name in MARKS:
    if not has_mark(name):
        print(f"skipped: this C library has no locale from a file ({name})")
        continue
    same_everywhere(name)
    runs_are_saved_and_read(name)
done()
