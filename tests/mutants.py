"""Which tests notice a wrong token: mutants.py FOLDER [N [SEED]]. Changes one token of src, models or lab at a time, builds, and runs
the tests that ./run test runs on the CPU, until one fails: first those of the token's room, then of its storey, then the other compiled
ones, then scripts.

FOLDER gets a copy of the tree, as it is committed, and its build, which a later run uses again. N mutants (60) are drawn by SEED (0).
A line for each: killed by which test, or survived. What no compiler accepts is drawn anew. Exit status 1 if one survived. Tests that
fail without a mutant, too, or need PyTorch, are left out. Some minutes each: best under `nice`."""
import json
import os
import random
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
STOREYS = ("src", "models", "lab")
# What stands for what; a number becomes the next one.
OTHER = {"<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "!=": "==", "&&": "||", "||": "&&", "+": "-", "-": "+", "+=": "-=",
         "-=": "+=", "++": "--", "--": "++", "true": "false", "false": "true", "min": "max", "break": "continue"}
SKIPPED = re.compile(r'/\*.*?\*/|//[^\n]*|^[ \t]*#(?:[^\n\\]|\\.)*|"(?:[^"\\\n]|\\.)*"|\'(?:[^\'\\]|\\.)+\'', re.S | re.M)
TOKEN = re.compile(r"->|<<=?|>>=?|&&|\|\||[-+<>=!]=|\+\+|--|[-+<>]|\b\d+\b(?![.\w])|\b(?:true|false|min|max|break)\b")


def candidates(text):
    """(start, end, replacement) of each token that has another."""
    bare = SKIPPED.sub(lambda m: re.sub(r"[^\n]", " ", m[0]), text)
    for m in TOKEN.finditer(bare):
        other = str(int(m[0]) + 1) if m[0].isdigit() else OTHER.get(m[0])
        if other:
            yield m.start(), m.end(), other


def drawn(tree, seed):
    """Mutants without end: (path, line, token, replacement, mutated text). Every token is as likely as any other."""
    files = [path for storey in STOREYS for path in sorted((tree / storey).rglob("*.c"))]
    texts = {path: path.read_text() for path in files}
    all_of_them = [(path, *spot) for path in files for spot in candidates(texts[path])]
    draw = random.Random(seed)
    while True:
        path, start, end, other = draw.choice(all_of_them)
        text = texts[path]
        yield path, text.count("\n", 0, start) + 1, text[start:end], other, text[:start] + other + text[end:]


def call(tree, *words, **more):
    return subprocess.run(words, cwd=tree, capture_output=True, text=True, errors="replace", **more)


def prepare(folder):
    tree = folder / "tree"
    if not tree.exists():
        folder.mkdir(parents=True, exist_ok=True)
        subprocess.run(["git", "clone", "-q", str(ROOT), str(tree)], check=True)
        subprocess.run(["meson", "setup", "build", "--buildtype=release", "-Doptimization=1", "-Dbench=false", "-Dcuda=disabled"],
                       cwd=tree, check=True, stdout=subprocess.DEVNULL)
    for words in ("fetch", str(ROOT), "HEAD"), ("reset", "--hard", "FETCH_HEAD"):  # a run that was stopped has left its mutant
        subprocess.run(["git", words[0], "-q", *words[1:]], cwd=tree, check=True)
    return tree


def suites(tree):
    """[(name, its file below tests, is a script)] of the tests that may run."""
    needs_torch = re.compile(r"PyTorch|Transformers|^python |^tokens (huggingface|wheels)|^bench|^gpu|^repository")
    rows = json.loads((tree / "build/meson-info/intro-tests.json").read_text())
    for row in rows:
        kinds = {suite.rpartition(":")[2] for suite in row["suite"]}
        if not kinds & {"long", "cudasim", "anew"} and not needs_torch.search(row["name"]):
            files = [os.path.relpath(os.path.abspath(word), root) for word in row["cmd"] for root in (tree, tree / "build")]
            yield row["name"], next((file for file in files if file.startswith("tests/")), ""), "script" in kinds


def first_failure(tree, names):
    """The name of a test that fails; None if all pass. Only what they need is built."""
    needed = call(tree, sys.executable, "tests/programs.py", "build", *names).stdout.split()
    built = call(tree, "ninja", "-C", "build", *needed)
    if built.returncode:
        return "the compiler: " + next((line for line in built.stdout.splitlines() if "error:" in line), built.stdout[-200:])
    log = tree / "build/meson-logs/testlog.json"
    log.unlink(missing_ok=True)
    # Time limits are for mutants that hang, not for a busy machine.
    call(tree, "meson", "test", "-C", "build", "--no-rebuild", "--maxfail", "1", "--timeout-multiplier", "5", *names)
    results = [json.loads(line) for line in log.read_text().splitlines()]
    return next((f"{r['name'].rpartition(' / ')[2]} ({r['result']})" for r in results if r["result"] not in ("OK", "SKIP", "EXPECTEDFAIL", "INTERRUPT")), None)


def verdict_of(path, mutated, tree, tests, sound):
    """What kills the mutant; None if nothing does. `sound`: tests that passed without a mutant."""
    text = path.read_text()
    for group in groups_of(path, tree, tests):
        while group:
            path.write_text(mutated)
            try:
                verdict = first_failure(tree, group)
            finally:
                path.write_text(text)
            if not verdict:
                break
            name = verdict.rpartition(" (")[0]
            if verdict.startswith("the compiler") or name in sound or not first_failure(tree, [name]):
                sound.add(name)
                return verdict
            print(f"left out, as it fails without a mutant, too: {name}", flush=True)
            tests[:] = [test for test in tests if test[0] != name]
            group = [other for other in group if other != name]
    return None


def groups_of(path, tree, tests):
    """The tests in the order in which they are tried: of the room, of the storey, compiled, scripts."""
    place = ("tests", *path.relative_to(tree).parts[:-1])
    groups = [], [], [], []
    for name, file, script in tests:
        parts = tuple(file.split("/"))
        groups[3 if script else 0 if parts[:3] == place[:3] else 1 if parts[:2] == place[:2] else 2].append(name)
    return [group for group in groups if group]


def main(folder="-", n=60, seed=0):
    if folder.startswith("-"):
        print(__doc__)
        return 2
    tree = prepare(Path(folder).resolve())
    tests = list(suites(tree))
    assert len(tests) > 100, f"only {len(tests)} tests"
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    os.environ["MTT_SIMULATOR"] = "0"
    killed = survived = 0
    mutants, sound = drawn(tree, int(seed)), set()
    while killed + survived < int(n):
        path, line, token, other, mutated = next(mutants)
        verdict = verdict_of(path, mutated, tree, tests, sound)
        if not (verdict or "").startswith("the compiler"):
            killed, survived = killed + bool(verdict), survived + (not verdict)
            print(f"{path.relative_to(tree)}:{line}: {token} -> {other}: {'killed by ' + verdict if verdict else 'survived'}", flush=True)
    print(f"{killed} of {killed + survived} mutants were killed")
    return int(survived > 0)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
