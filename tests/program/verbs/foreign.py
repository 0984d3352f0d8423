"""Foreign text: whatever bytes an option, a name of a file or a generated text has, the program prints none that a terminal
would obey, and its JSON, HTML, SVG, trace and snapshot files can be read."""
import json
import os
import pickle
import re
import subprocess
import tempfile
import xml.etree.ElementTree
from concurrent.futures import ThreadPoolExecutor
from lib import MEMTAPE, VERBS, check, done, equal, options_of
from terminal import Terminal

# C0, DEL, C1 in UTF-8, orders and marks of bidirectional text, bytes that are not UTF-8; no "/", which ends a name.
HOSTILE = b"n\x1b]0;t\x07\x7f\x08\r\xc2\x9b31m\xc2\x85\xe2\x80\xae\xe2\x81\xa6\xe2\x80\x8f\xd8\x9c\xff\xc3(\xed\xa0\x80 z"
OBEYED = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")
SMALL = {"profile": "linear -b 2 --ffn 8 -d 8", "explain": "linear -b 2 --ffn 8 -d 8", "plan": "tiny",
         "sweep": "linear -b 2 --ffn 8 -d 8 --over act=relu", "fit": "tiny --gpus 1 --gpu h100",
         "serve": "tiny --gpu h100", "compare": "run.log tiny"}
LONG = os.environ.get("MTT_LONG") == "1"
folder = tempfile.TemporaryDirectory()
os.chdir(os.fsencode(folder.name))


def program(*words):
    """Its status, and what it printed, of which nothing may be obeyed."""
    words = [w if isinstance(w, bytes) else str(w).encode() for w in words]
    p = subprocess.run([MEMTAPE, *words], stdin=subprocess.DEVNULL, capture_output=True, timeout=300, check=False)
    for name, printed in ("standard output", p.stdout), ("standard error", p.stderr):
        try:
            obeyed = OBEYED.search(printed.decode())
        except UnicodeDecodeError as e:
            obeyed = e
        check(not obeyed, f"{words}: {name} has {obeyed}: {printed[:400]!r}")
    return p.returncode, p.stdout.decode("utf-8", "replace"), p.stderr.decode("utf-8", "replace")


def any_word(pool):
    """As every verb, every option's value, in the two ways to write it, an option's name, a letter, an argument."""
    runs = [(HOSTILE,), ("help", HOSTILE), ("--" + "x", HOSTILE), (b"--" + HOSTILE,), (b"-" + HOSTILE,)]
    for verb in VERBS:
        model = SMALL.get(verb, "").split()
        options = [f"--{name}" for name, row in options_of(verb).items() if row["argument"]]
        check(len(options) > 1, f"{verb}: options: {options}")
        runs += [(verb, HOSTILE), (verb, *model, HOSTILE), (verb, *model, b"--" + HOSTILE), (verb, *model, b"-\x1b"),
                 (verb, *model, b"-\xff"), (verb, *model, b"--quiet=" + HOSTILE), (verb, *model, b"--" + HOSTILE + b"=1")]
        for option in options if LONG else options[::3]:
            runs.append((verb, *model, option.encode() + b"=" + HOSTILE))
            if LONG:
                runs += [(verb, *model, option, HOSTILE), (verb, *model, option.encode() + b"=1" + HOSTILE)]
            if verb == "sweep":
                runs += [(verb, *model, "--over", option[2:].encode() + b"=" + HOSTILE),
                         (verb, *model, "--row", option.encode() + b" " + HOSTILE.replace(b" ", b""))]
        if verb in ("demo", "train"):  # would run: refused once the words before it were read
            runs = [(*r, "--steps", "none") if r[0] == verb else r for r in runs]
    statuses = list(pool.map(lambda words: program(*words)[0], runs))
    check(statuses.count(2) > len(runs) / 2, f"{len(runs)} runs, {statuses.count(2)} of them refused")


def models():
    """A folder and files of that name, read and written."""
    os.mkdir(HOSTILE)
    with open(HOSTILE + b"/config.json", "w") as f:
        json.dump({"model_type": "gpt2", "n_embd": 16, "n_head": 2, "n_layer": 1, "vocab_size": 300, "n_positions": 1024,
                   "odd\u202e\x9b": "\u2066"}, f)
    for verb, more in ("profile", []), ("explain", []), ("plan", []), ("fit", ["--gpus", 1, "--gpu", "h100"]), \
            ("serve", ["--gpu", "h100"]), ("sweep", ["--over", "act=relu"]), ("sweep", ["--row", HOSTILE + b": --act relu"]):
        words = [verb, HOSTILE, *more, *(["--device", "meta"] if verb in ("profile", "sweep") else [])]
        status, out, err = program(*words)
        equal(status, 0, f"status of {words}: {err}")
        if verb == "explain":
            continue
        report = json.loads(program(*words, "--json", "-")[1])
        check("n\x1b]0;" not in json.dumps(report), "escapes stay escapes")
        program(*words, "--json", HOSTILE + b".json")
        with open(HOSTILE + b".json", encoding="utf-8") as f:
            equal(json.load(f)["schema"], report["schema"], f"the schema that {verb} writes")
            f.seek(0)
            check(not OBEYED.search(f.read()), f"{verb}: its JSON is obeyed by a terminal")
    for verb, more, option in ("profile", ["--device", "meta"], "--svg"), ("sweep", ["--over", "act=relu,gelu"], "--svg"), \
            ("profile", ["--device", "meta"], "--html"), ("sweep", ["--over", "act=relu,gelu"], "--html"), \
            ("sweep", ["--row", b"a\xff\xc2\x9b\x1b\xe2\x80\xae: --act relu"], "--svg"), ("plan", [], "--html"), \
            ("profile", ["--device", "meta"], "--trace"), ("profile", ["--device", "meta"], "--snapshot"):
        status, _, err = program(verb, HOSTILE, *more, option, HOSTILE + b".out")
        equal(status, 0, f"status of {verb} {option}: {err}")
        with open(HOSTILE + b".out", "rb") as f:
            data = f.read()
        try:
            if option == "--snapshot":
                pickle.loads(data)
                continue
            text = data.decode()
            if option == "--svg":
                xml.etree.ElementTree.fromstring(text)
            if option == "--trace":
                json.loads(text)
            obeyed = OBEYED.search(text.split("<script")[0])
            check(not obeyed, f"{verb} {more} {option}: {obeyed}")
        except Exception as e:  # whatever a reader says
            check(False, f"{verb} {more} {option}: {e}")


def measurements():
    """Files of that name, with such names and lines in them."""
    frame = {"filename": HOSTILE.decode("utf-8", "replace") + ".py", "line": 3, "name": HOSTILE.decode("latin-1")}
    block = {"size": 2 << 20, "requested_size": 5, "state": "active_allocated", "frames": [frame]}
    snapshot = {"segments": [{"address": 4096, "total_size": 2 << 20, "stream": 0, "segment_type": "small", "blocks": [block]}]}
    for content, figures in (pickle.dumps(snapshot), 0), (HOSTILE + b" max_memory_allocated: 5 " + HOSTILE + b"MiB\n", 1), \
            (json.dumps({HOSTILE.decode("latin-1"): {"max_memory_allocated": 5}}).encode(), 1), \
            (pickle.dumps({HOSTILE: 1, "segments": os.system}), None), (HOSTILE, None):
        with open(HOSTILE + b".log", "wb") as f:
            f.write(content)
        status, _, err = program("compare", HOSTILE + b".log", "gpt", "-v")
        equal(status, 0 if figures is not None else 1, f"compare with {content[:40]}: {err}")
        if figures is not None:
            found = json.loads(program("compare", HOSTILE + b".log", "gpt", "--json", "-")[1])["files"][0]
            equal(len(found["figures"]), figures, f"figures of {content[:40]}")


def texts():
    """Text that is learnt and written. A pipe gets it as it is; a terminal does not."""
    learnt = ("".join(chr(97 + i * i % 23) for i in range(600)).encode() + HOSTILE) * 8
    with open(HOSTILE + b".txt", "wb") as f:
        f.write(learnt)
    train = ["train", "--data", HOSTILE + b".txt", "-l", 1, "-d", 16, "-a", 2, "-s", 16, "-b", 2, "--steps", 3]
    status, _, err = program(*train, "--save", HOSTILE + b".safetensors")
    equal(status, 0, f"train: {err}")
    program(*train, "--resume", HOSTILE + b".safetensors", "--steps", 4)
    generate = [MEMTAPE, "generate", "--model", HOSTILE + b".safetensors", "--tokens", "400", "--temperature", "40", "--prompt",
                HOSTILE + "\u00e9\u20ac\U0001f600".encode()]
    piped = subprocess.run(generate, capture_output=True, check=False, timeout=300)
    check(piped.stdout.startswith(generate[-1]), f"a pipe does not get the bytes: {piped.stdout[:80]!r}")
    for term in "xterm", "dumb":
        terminal = Terminal(generate, columns=200, TERM=term)
        written = ""
        terminal.screen.feed = lambda text: None
        while terminal.process.poll() is None:
            written += terminal.read(0.05)
        written += terminal.read(0.2)
        own = re.sub(r"\x1b\[[\d;]*m|\r\n", "", written)
        check(not OBEYED.search(own), f"a terminal ({term}) is sent {OBEYED.search(own)}: {own[:200]!r}")
        check("\u00e9\u20ac\U0001f600" in own, f"letters of several bytes: {own[:200]!r}")


with open("run.log", "w") as log:
    log.write("max_memory_allocated: 5000000\n")
with ThreadPoolExecutor(2) as threads:
    any_word(threads)
os.mkdir("named")
os.chdir("named")
models()
measurements()
texts()
done()
