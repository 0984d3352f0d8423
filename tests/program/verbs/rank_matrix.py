"""Every way to divide training among 2 ranks (MTT_LONG=1: also among 4 and 8) by --tp, --cp, --dp and --pp, with each stage
of ZeRO (among 8 ranks, which take longest, one stage of each way): every rank's saved bytes, peak and segments are those predicted, and the loss is that of one process."""
import hashlib
import itertools
import json
import os
import re
import tempfile
from lib import check, done, equal, run, turn
from several import together

SIZES = (2, 4, 8) if os.environ.get("MTT_LONG") == "1" else (2,)
LONGEST = 280  # seconds of a run, on a machine with much else to do
ROUNDING = 1.01e-4  # the last of four printed decimals
folder = tempfile.TemporaryDirectory()
TEXT = os.path.join(folder.name, "text.txt")
with open(TEXT, "w") as out:
    out.write(" ".join(hashlib.sha256(str(i * i % 40).encode()).hexdigest()[: 2 + i % 5] for i in range(2000)))
WORDS = ["train", "--data", TEXT, "--steps", 4, "-b", 8, "-s", 16, "-d", 32, "-a", 8, "-l", 8, "--lr", 0.003,
         "--optimizer", "adamw:clip=0.5,warmup=1", "--accumulate", 4, "--val-fraction", 0]
SPENT = [[], ["--checkpoint", "full"], ["--checkpoint", "selective"], ["--offload", "cpu"], ["--checkpoint", "every=3"]]


def ways(n):
    """(tp, cp, dp, pp, zero) with a product of n ranks."""
    for tp, cp, dp in itertools.product((1, 2, 4, 8), repeat=3):
        if n % (tp * cp * dp) == 0:
            stages = range(4 if cp * dp > 1 else 1)
            for zero in stages if n < 8 else stages[(tp + 2 * cp + dp) % len(stages):][:1]:
                yield tp, cp, dp, n // (tp * cp * dp), zero


def alone(*more):
    p = run(*WORDS, *more)
    equal(p.returncode, 0, f"one process {more}: {p.stderr}")
    return float(re.findall(r"^step 4/4  loss ([\d.]+)", p.stdout, re.M)[0])


losses = {dropout: alone("--dropout", dropout) for dropout in (0, 0.1)}
check(losses[0] != losses[0.1], f"masks matter: {losses}")
name = os.path.join(folder.name, "ranks.json")


def as_predicted(what, loss, n, *words):
    """How many figures of n ranks are."""
    p = together(n, *words, "--json", name, "-q", seconds=LONGEST)
    if not equal((p.returncode, p.err), (0, ""), what):
        return 0
    with open(name) as f:
        ranks = json.load(f)["ranks"]
    equal(len(ranks), n, f"{what}: ranks")
    for r in ranks:
        equal({key: r[key] for key in r["predicted"]}, r["predicted"], f"{what}: books of rank {r['parallel']['rank']}")
        check(abs(r["loss"] - loss) <= ROUNDING, f"{what}: {r['loss']} and {loss}")
    os.remove(name)
    return sum(r[key] == value for r in ranks for key, value in r["predicted"].items())


figures = runs = nth = 0
for n in SIZES:
    for tp, cp, dp, pp, zero in ways(n):
        dropout = 0 if cp > 1 else 0.1  # shards of sequences draw none
        division = [word for option, value in (("--tp", tp), ("--cp", cp), ("--dp", dp), ("--pp", pp)) if value > 1
                    for word in (option, value)]
        division += ["--zero", zero] if cp * dp > 1 else []
        division += ["--sp"] if tp > 1 and nth % 2 else []
        division += ["--recipe", "plain:interleave=2"] if pp in (2, 4) and nth % 3 else []
        division += SPENT[nth % 5]
        nth += 1
        if not turn(nth):
            continue
        figures += as_predicted(f"{n} ranks: {' '.join(map(str, division))}", losses[dropout], n, *WORDS, "--dropout", dropout, *division)
        runs += 1
for preset, divisions in (("deepseek-tiny", (["--dp", 2, "--zero", 3], ["--pp", 2])),
                          ("moe-tiny", (["--dp", 2, "--zero", 3], ["--pp", 2], ["--cp", 2, "--zero", 1], ["--tp", 2, "--sp"]))):
    EXPERTS = ["train", "--data", TEXT, "--preset", preset, "--steps", 4, "-b", 8, "-s", 16, "--val-fraction", 0, "--accumulate", 2]
    p = run(*EXPERTS)
    equal(p.returncode, 0, f"experts in one process: {p.stderr}")
    loss = float(re.findall(r"^step 4/4  loss ([\d.]+)", p.stdout, re.M)[0])
    for division in divisions:
        nth += 1
        if not turn(nth):
            continue
        figures += as_predicted(f"{preset}, {division}", loss, 2, *EXPERTS, *division)
        runs += 1
for division in (["--dp", 2, "--ep", 2, "--zero", 2], ["--cp", 2, "--ep", 2]):
    nth += 1
    if not turn(nth):
        continue
    what = f"divided experts, {division}"
    q = together(2, *EXPERTS, *division, "--json", name, seconds=LONGEST)
    if equal((q.returncode, q.err), (0, ""), what):
        with open(name) as f:
            ranks = json.load(f)["ranks"]
        check(all(abs(r["loss"] - loss) <= ROUNDING for r in ranks), f"{what}: {ranks[0]['loss']} and {loss}")
        # what routing takes from one rank it gives to the other
        equal(sum(r["saved"] for r in ranks), sum(r["predicted"]["saved"] for r in ranks), what)
        check("2 have 4 of the 8 experts each" in q.out and "balanced routing" in q.out, q.out)
        os.remove(name)
    runs += 1
print(f"{runs} ways to divide training: {figures} figures of ranks are as predicted")
done()
