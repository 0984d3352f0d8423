"""`memtape demo` trains, compares the model with the baselines, and measures where memory goes."""
import hashlib
import os
import re
import shlex
import subprocess
import tempfile
from lib import MEMTAPE, check, done, equal, run

folder = tempfile.TemporaryDirectory()
TEXT = os.path.join(folder.name, "words.txt")
SAVE = os.path.join(folder.name, "demo.safetensors")
LONG = os.environ.get("MTT_LONG") == "1"
WORDS = ["relation", "notation", "alienate", "tonality", "national", "litation"]

# The next letter depends on more than the letter before it, so a bigram model predicts badly.
with open(TEXT, "w") as f:
    draws = hashlib.shake_256(b"words").digest(6000)
    f.write(" ".join(WORDS[d % len(WORDS)] for d in draws))

# ---- with too few steps it reports that it failed, and prints the rest as usual ----
p = run("demo", "--data", TEXT, "--steps", 2, "--save", SAVE)
equal(p.returncode, 1, "status when the bigram model is better")
check("do not beat the bigram" in p.stderr, "the failure is reported")

# ---- with enough steps, in the long form: almost a minute on a processor that OpenBLAS does not know ----
if LONG:
    p = run("demo", "--data", TEXT, "--steps", 120, "--save", SAVE)
    equal(p.returncode, 0, f"status: {p.stderr}")
score = {k: float(v) for k, v in re.findall(r"^  (uniform|unigram|bigram|memtape's llama) +([\d.]+)  ",
                                            p.stdout, re.M)}
equal(len(score), 4, "four scores")
equal(score.get("uniform"), 8.0, "score of the uniform model")
check(score["bigram"] < score["unigram"] < 8, f"the order of the baselines: {score}")
equal(score["memtape's llama"] < score["bigram"], LONG, f"whether the bigram is beaten: {score}")
rows = re.findall(r"^  (relu|gelu) +(flash|math) +([\d,]+) +([\d,]+) +([\d,]+) +yes", p.stdout, re.M)
equal([r[:2] for r in rows], [("relu", "flash"), ("gelu", "flash"), ("relu", "math"),
                              ("gelu", "math")], "four measurements")
saved = [int(r[2].replace(",", "")) for r in rows]
b, s, f, a, layers = 16, 64, 256, 4, 3
equal(saved[1] - saved[0], layers * 4 * b * s * f, "GELU keeps its input as well: 4bsf per layer")
equal(saved[3] - saved[2], saved[1] - saved[0], "the same difference with the other attention")
equal(saved[2] - saved[0], layers * (4 * a * b * s * s - 4 * a * b * s - 16),
      "math keeps the weights; flash keeps one f32 per row and its RNG state")
check("\nThe " in p.stdout.partition("It writes")[2], "a sample that goes on from a beginning")

# ---- every command that it suggests works ----
commands = re.findall(rf"^  ({re.escape(MEMTAPE)} .*)$", p.stdout, re.M)
check(len(commands) >= 4, f"suggestions: {commands}")
for command in commands:
    if "4096" in command:
        continue  # takes a second or more, and has a test of its own
    q = subprocess.run(shlex.split(command), capture_output=True, cwd=folder.name)
    equal(q.returncode, 0, f"status of the suggested {command}: {q.stderr[-300:]}")

# ---- on a machine too slow for its seconds it takes the fewest steps, which are enough with its own text ----
if LONG:
    p = run("demo", "--seconds", 1, "--quiet")
    equal(p.returncode, 0, f"status after the fewest steps: {p.stderr}")

# ---- it goes through a small text a few times, however much time there is; the steps are printed before they run ----
if LONG:
    with subprocess.Popen([MEMTAPE, "demo", "--data", TEXT, "--data", TEXT, "--seconds", "100000"], stdout=subprocess.PIPE, text=True) as long:
        shown = "".join(iter(long.stdout.readline, "\n"))
        long.kill()
    length, = (int(n.replace(",", "")) for n in re.findall(r"([\d,]+) bytes to learn from", shown))
    equal(re.findall(r"(?m)^run +(\d+) steps", shown), [str(8 * length // (b * s))], f"eight passes: {shown}")

# ---- without --data it learns sayings of fortunes, where they are installed, and goes on from a few; else from its own sources ----
fortunes = os.path.exists("/usr/share/games/fortunes/platitudes")
p = run("demo", "--steps", 2)
name = "fortunes" if fortunes else "memtape's own text"
check(f"\ntext   {name}, " in p.stdout, f"its text: {p.stdout[:300]}")
written = p.stdout.partition("It writes")[2].partition("Where one step")[0]
for beginning in ["A bird in the hand ", "Never ", "If you ", "Love is ", "The best "] if fortunes else ["/* "]:
    check("\n" + beginning in written, f"it goes on from {beginning!r}: {written}")
check("\n%" not in written, "a sample begins and ends where a saying does")

done()
