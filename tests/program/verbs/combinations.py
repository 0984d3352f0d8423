"""Every pair of options of `profile` on meta: each works, with balanced books and no unexplained byte, or is
refused with a reason; so many work, and so many are refused. The short form takes an eighth of them, and of two mixtures of
experts a forty-eighth, where the long form takes a sixth. `page FILE` writes the table of all of them, `all` does the same for the other models and takes every pair that a sweep or a plan knows, too."""
import concurrent.futures
import itertools
import json
import os
import pickle
import sys
import tempfile
import xml.etree.ElementTree as xml
from pathlib import Path
from lib import check, done, equal, options_of, placed, run, sums_its_terms

SIZES = ["-b", "2", "-s", "16", "-d", "32", "-a", "4"]
MODELS = {"gpt": ["gpt", *SIZES, "-l", "4"], "llama": ["llama", *SIZES, "-l", "4", "--kv-heads", "2"],
          "bert": ["bert", *SIZES, "-l", "4"], "block": ["block", *SIZES], "moe-tiny": ["moe-tiny", *SIZES, "-l", "4"],
          "deepseek-tiny": ["deepseek-tiny", "-b", "2", "-s", "16", "-l", "4"]}
# What is combined, with what it needs: a row and a column each.
CHOICES = """--tp 2
--tp 2 --sp
--pp 2
--pp 2 --recipe plain:interleave=2
--pp 2 --rank 1
--microbatches 3
--cp 4
--cp 4 --zero 3
--dp 3
--dp 3 --zero 1
--dp 3 --zero 2
--dp 3 --zero 3
--dp 3 --zero 3 --dtype bf16 --recipe plain:fsdp=f32-reduce
--dp 3 --zero 3 --recipe plain:fsdp=keep-root
--dp 3 --zero 3 --recipe plain:fsdp=ahead
--dp 3 --zero 3 --recipe plain:fsdp=block+keep-last
--optimizer none
--optimizer sgd
--optimizer sgd-momentum
--optimizer adamw
--dtype bf16 --optimizer adamw-16bit
--dtype bf16 --optimizer adamw --master-weights
--optimizer adamw-8bit
--optimizer adafactor
--dtype bf16 --recipe plain:f32-gradients
--optimizer adamw --recipe plain:step-in-backward
--amp bf16
--optimizer adamw --loss-scale dynamic
--lora-rank 3
--lora-rank 3 --lora-targets attn.*
--dtype bf16 --lora-rank 3 --recipe plain:f32-adapters
--lora-rank 3 --recipe plain:lora-dropout=0.5
--lora-rank 3 --qlora
--lora-rank 3 --qlora --recipe plain:qlora-double
--lora-rank 3 --qlora --recipe plain:codes=int8
--offload cpu
--offload disk
--offload cpu --recipe plain:offload-modules=core_attn
--compress 8bit
--compress bits
--compress seed
--checkpoint full
--checkpoint selective
--checkpoint ops
--recipe plain:recompute-modules=core_attn+layernorm
--checkpoint every=3
--checkpoint sqrt
--budget 1GB
--capacity 1GB
--expandable-segments
--expandable-segments --recipe plain:granule=16KiB,reclaim
--recipe plain:gemm-workspace=1MiB
--recipe plain:scratch=cpu
--dropout 0.1
--attention math
MODEL:untied
MODEL:mtp-layers=2
--loss fused
--loss lse
--loss chunked
--dtype bf16 --loss unfused
--act relu --inplace
--inference
--timeline
--svg FILE
--html FILE
--trace FILE
--snapshot FILE""".splitlines()

# Of all pairs, and of the short form's eighth: how many work, how many are refused.
COUNTS = {1: (2176, 91), 8: (333, 12)}


def options(choice):
    """{"--tp": "2", "--sp": None}; of a key {"plain:fsdp": "ahead"}"""
    found, words = {}, choice.split()
    for word in words:
        if word.startswith("--"):
            name = word
            found[name] = None
        elif word.startswith(("plain:", "MODEL:")):
            found.pop("--recipe", None)
            found |= {word[:6] + key.partition("=")[0]: key.partition("=")[2] or None for key in word[6:].split(",")}
        else:
            found[name] = word
    return found


def joined(a, b):
    """The words of both; None if they give one option two values."""
    both = dict(options(a))
    for name, value in options(b).items():
        if both.get(name, value) != value:
            return None
        both[name] = value
    keys = [["--recipe"] * name.startswith("plain:") + [name + (f"={value}" if value else "")]
            for name, value in both.items() if not name.startswith("--")]
    return [word for pair in [*(pair for pair in both.items() if pair[0].startswith("--")), *keys] for word in pair if word is not None]


def bytes_balance(name, p):
    """Whether every byte of the profile is accounted for."""
    formula, steady = p["formula"], p["steady"]
    return (equal(p["growth"]["residual"], 0, f"{name}: growth") and
            equal(formula and formula["unexplained"], formula and 0, f"{name}: formula") and
            check(not formula or sums_its_terms(formula), f"{name}: {formula and formula['text']} is not the sum of its terms") and
            equal(sum(steady["by_category"].values()), steady["peak"], f"{name}: the steady peak") and
            equal(steady["peak"], max(phase["peak"] for phase in steady["phases"]), f"{name}: its phases") and
            equal(p["left"]["given_back"], 0, f"{name}: bytes left") and
            equal(p["out_of_memory"], None, f"{name}: out of memory"))


def look(model, words, folder):
    """("f" or "b", the profile), or ("refused", the reason)."""
    name = " ".join([model, *words])
    files = {}
    for i, word in enumerate(words):
        if word == "FILE":
            files[words[i - 1]] = str(Path(folder, f"{len(os.listdir(folder))}-{id(words)}{words[i - 1]}"))
    given = [files.get(words[i - 1], word) if word == "FILE" else word for i, word in enumerate(words)]
    p = run("profile", *placed(*MODELS[model], *given), "--device", "meta", "--json", "-")
    if p.returncode == 2:
        reason = p.stderr.strip().removeprefix("memtape profile: ").splitlines()[0]
        named = any(word.lstrip("-") in reason for word in words)
        check(p.stdout == "" and named, f"{name}: the reason names none of the options: {reason}")
        return "refused", reason
    if not equal(p.returncode, 0, f"status of {name}: {p.stderr}"):
        return "refused", "?"
    result = json.loads(p.stdout)
    bytes_balance(name, result)
    if "--svg" in files:
        check(xml.parse(files["--svg"]).getroot().tag.endswith("svg"), f"{name}: no picture")
    if "--html" in files:
        check(Path(files["--html"]).read_text().endswith("</html>\n"), f"{name}: no page")
    if "--trace" in files:
        check(json.loads(Path(files["--trace"]).read_text())["traceEvents"], f"{name}: no trace")
    if "--snapshot" in files:
        check(pickle.loads(Path(files["--snapshot"]).read_bytes())["segments"], f"{name}: no snapshot")
    return ("f" if result["formula"] else "b"), result


def look_at_pairs(model, part=1):
    """{(i, j): what look() found}, of each choice alone and of a part of the pairs; None where one option would have two
    values."""
    found = {}
    with tempfile.TemporaryDirectory() as folder, concurrent.futures.ThreadPoolExecutor(2) as pool:
        for n, (i, j) in enumerate(itertools.combinations_with_replacement(range(len(CHOICES)), 2)):
            if i != j and n % part:
                continue
            words = joined(CHOICES[i], CHOICES[j])
            found[i, j] = words and pool.submit(look, model, words, folder)
        return {pair: job and job.result() for pair, job in found.items()}


def counts(found):
    """(how many pairs work, how many are refused)"""
    kinds = [result[0] for result in found.values() if result]
    return len(kinds) - kinds.count("refused"), kinds.count("refused")


def page(found):
    """The table, with a letter for each reason."""
    reasons = []
    cells = {}
    for (i, j), result in found.items():
        if result is None:
            cells[i, j] = " "
        elif result[0] == "refused":
            if result[1] not in reasons:
                reasons.append(result[1])
            cells[i, j] = chr(ord("a") + reasons.index(result[1]))
        else:
            cells[i, j] = {"f": "=", "b": "+"}[result[0]]
    worked, refused = counts(found)
    lines = ["# Which options go together", "",
             "Every pair of options of `memtape profile gpt --device meta` was run by `tests/program/verbs/combinations.py`, which",
             f"wrote this page. {worked} pairs work, {refused} are refused.", "",
             "- `=` works: the allocator's growth, the phases and the steady peak add up to the byte, and what is kept",
             "  is the closed formula and its named rows, with nothing left over",
             "- `+` works: the books balance in the same way; there is no closed formula for these choices",
             "- a letter: refused, for the reason below",
             "- blank: one option would have two values", "",
             "The same holds for `llama`, `bert`, `block` and two mixtures of experts (`tests/program/verbs/combinations.py all`),",
             "except that a block has no layers to group or to divide among stages, no loss to scale, and no `--budget`.",
             "`sweep` takes the same rows, and measures the same bytes.", ""]
    head = "      " + "".join(str(j + 1)[-2:].rjust(3) for j in range(len(CHOICES)))
    lines += ["    " + head]
    for i, choice in enumerate(CHOICES):
        row = "".join(cells[min(i, j), max(i, j)].rjust(3) for j in range(i + 1))
        lines.append("    " + f"{i + 1:>4}  " + row.ljust(3 * len(CHOICES)) + "  " + choice)
    lines += ["", "## Refused", "", "| | why |", "|---|---|"]
    lines += [f"| {chr(ord('a') + k)} | {reason} |" for k, reason in enumerate(reasons)]
    return "\n".join(lines) + "\n"


def in_sweeps(found):
    """The pairs that a sweep knows, as its rows: the same bytes as the profiles'."""
    without = {"--inference", "--timeline", "--trace", "--snapshot", "--svg", "--html", "--budget"}
    pairs = [(joined(CHOICES[i], CHOICES[j]), result[1]) for (i, j), result in found.items()
             if result and result[0] != "refused"]
    pairs = [(words, result) for words, result in pairs if not without & set(words)]
    refused_on_meta = {"--loss-scale"}  # a sweep compares values, a profile shows the options' books
    pairs = [(words, result) for words, result in pairs if not refused_on_meta & set(words)]
    for at in range(0, len(pairs), 200):
        some = pairs[at:at + 200]
        rows = [word for i, (words, _) in enumerate(some) for word in ("--row", f"{i}: --model " + " ".join(placed("gpt", *words)))]
        p = run("sweep", *MODELS["gpt"], "--device", "meta", *rows, "--json", "-")
        if not equal(p.returncode, 0, f"a sweep over pairs: {p.stderr}"):
            continue
        for row, (words, result) in zip(json.loads(p.stdout)["rows"], some):
            equal((row["saved"], row["steady"]["peak"]), (result["saved"]["bytes"], result["steady"]["peak"]),
                  f"a sweep's row {' '.join(words)}")


def in_plans():
    """Every pair that a plan knows: formulas and measurements agree, or it is refused."""
    known = options_of("plan")
    some = [c for c in CHOICES if all(name.removeprefix("--") in known for name in options(c))
            and "FILE" not in c]
    worked = 0
    for a, b in itertools.combinations(some, 2):
        words = joined(a, b)
        if words is None:
            continue
        p = run("plan", *placed(*MODELS["gpt"], *words), "--json", "-")
        name = "plan " + " ".join(words)
        check(p.returncode == 0 or (p.returncode == 2 and any(w in p.stderr for w in words)),
              f"status of {name}: {p.returncode}: {p.stderr}")
        worked += p.returncode == 0
    check(worked > len(some), f"plans: only {worked} pairs of {len(some)} options work")


def main(what="", file=None):
    part = 1 if what or os.environ.get("MTT_LONG") == "1" else 8
    found = look_at_pairs("gpt", part)
    if file:
        Path(file).write_text(page(found))
    equal(counts(found), COUNTS[part], "pairs that work, and that are refused")
    if what != "page":
        in_sweeps(found)
        for model in ("moe-tiny", "deepseek-tiny"):
            worked, refused = counts(look_at_pairs(model, 6 * part))
            check(worked > 3 * refused, f"of {model} {worked} pairs work, {refused} are refused")
    if what == "all":
        in_plans()
        for model in ("llama", "bert", "block", "moe-tiny", "deepseek-tiny"):
            print(f"{model}: {counts(look_at_pairs(model))[0]} pairs work")
    done()


main(*sys.argv[1:])
