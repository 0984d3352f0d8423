"""smoke.py WORKER PROGRAM: `./run bench --smoke` runs every section. A section that fails is named in the
result and fails the run, but the others still run. With MTT_LONG=1 also with a
worker that dies, and with PyTorch, if it can be imported."""

import json
import math
import os
import subprocess
import sys
import tempfile
from types import SimpleNamespace

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")
sys.path.insert(0, f"{ROOT}/bench")
import others  # noqa: E402
import precision  # noqa: E402
import products  # noqa: E402
import show  # noqa: E402
from cases import GPTS  # noqa: E402
from measure import machine_limits  # noqa: E402
from scaling import fits  # noqa: E402
SECTIONS = ["gpt", "precision", "segments", "tiny", "memory", "parts", "meta", "ranks", "scaling"]

# Passes everything on to the worker, except for one fault: an unknown row, or an early end.
STAND_IN = '''#!{python}
import os, subprocess, sys
fault, real = "{fault}", "{real}"
if sys.argv[1] != "ops":
    os.execv(real, [real, *sys.argv[1:]])
worker = subprocess.Popen([real, *sys.argv[1:]], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                          text=True, bufsize=1)
print(worker.stdout.readline(), end="", flush=True)
for line in sys.stdin:
    if fault == "death" and line.startswith("load gelu f:32x1024"):
        sys.exit(3)
    if fault == "row" and line == "rows\\n":
        print("row nobody")
    worker.stdin.write(line)
    for answer in worker.stdout:
        print(answer, end="", flush=True)
        if answer == "done\\n":
            break
worker.stdin.close()
'''


def bench(folder, worker, program, *options):
    """(status, result, text, standard error) of a run with the build folder `folder`"""
    for name, target in (("bench/memtape_bench", worker), ("memtape", program)):
        os.makedirs(os.path.dirname(f"{folder}/{name}"), exist_ok=True)
        os.symlink(target, f"{folder}/{name}")
    got = subprocess.run([sys.executable, f"{ROOT}/bench/bench.py", "--smoke", "--program",
                          f"{folder}/bench/memtape_bench", *options],
                         capture_output=True, text=True, check=False, cwd=ROOT)
    with open(f"{folder}/bench/result.json", encoding="utf-8") as f:
        result = json.load(f)
    with open(f"{folder}/bench/result.txt", encoding="utf-8") as f:
        text = f.read()
    assert text in got.stdout + "\n", (text, got.stdout)
    return got.returncode, result, text, got.stderr


class MadeUp(SimpleNamespace):
    """A side, its worker and their settings: products of these rates."""
    gemm_sides, threads, greeting = [64, 128], 1, []
    start = rounds = lambda self, *_: self
    stop = lambda self: None

    def ask(self, word, _, n=1):
        return [["", self.rates.get(word, 1) * n]]


def check_peaks():
    """"Of peak" is of the best product of both sides, in every dtype; whichever side is the faster one."""
    slow, fast = {"f32": 2, "bf16": 3, "gemm": 1}, {"f32": 4, "bf16": 5}
    for ours, theirs in (slow, fast), (fast, slow), ({"gemm": 4, "bf16": 5}, slow):
        best = {}
        machine_limits([MadeUp(name="memtape", rates=ours), MadeUp(name="torch", rates=theirs)], MadeUp(), best)
        assert (best["gemm_gflops"], best["bf16_gflops"]) == (4 * 128, 5 * 128), best


class Scripted(MadeUp):
    """A side that writes down what it is asked, and whose steps take so many ns."""

    def ask(self, word, n, side=0):
        self.asked.append((word, n, side))
        if word == "plain":
            return [["plain", str(self.step), "0", "0", str(5 - 0.01 * i)] for i in range(n)]
        return [["", self.rates.get(word, 100)]]

    __eq__ = object.__eq__
    with_words = lambda self, *_: Scripted(**vars(self))
    end = lambda self: None


def check_slow():
    """A peer with far slower products makes a few small ones, once, and no long steps; the text says so."""
    mine = Scripted(name="memtape", rates={}, asked=[], step=10**6)
    theirs = Scripted(name="torch", rates={"bf16": 1}, asked=[], step=3 * 10**8)
    s, limits = MadeUp(gemm_sides=[1024, 3072], smoke=False, brief=False, effort=1), {}
    s.rounds = lambda n: n
    for _ in range(2):
        machine_limits([mine, theirs], s, limits)
    of = [side for word, _, side in theirs.asked if word == "bf16"]
    assert of and max(of) <= 512 and len(of) == len(set(of)), theirs.asked
    assert 3072 in [side for word, _, side in theirs.asked if word == "f32"], theirs.asked
    assert limits["torch_bf16_gflops"] == 1 and limits["slow"] == ["torch_bf16_gflops"], limits
    assert "torch 1.00 (far slower" in show.show_limits(limits, ""), show.show_limits(limits, "")
    theirs.asked = []
    rows = precision.rows([mine, theirs], [gpt for gpt in GPTS if gpt.name in ("d64", "d384")], s, limits)
    times = {(row["name"], row["precision"]): row for row in rows}
    assert times["d64", "f32"]["eager"]["n"] > 2 and not times["d64", "f32"]["left_out"], times
    assert times["d64", "bf16"]["eager"]["n"] == 2 and times["d64", "bf16"]["eager"]["brief"], times
    assert times["d384", "bf16"]["left_out"] == ["eager", "compiled"] and "eager" in times["d384", "f32"], times
    text = precision.show(rows)
    assert "300*" in text and "slow: not measured" in text, text


def check_products():
    """Rows of products.def are of the library with the best rates in a range; oneDNN is not for small ones."""
    def row(form, side, **rates):
        return {"form": form, "m": side, "n": side, "k": side, **{
            library: {tiles: rate * (1 if tiles < 8 else 0.9) for tiles in ((1, 2, 4, 8) if side > 128 else (1,))}
            for library, rate in rates.items()}}

    rows = [row(form, side, openblas=small if side < 512 else large, onednn=70)
            for form, small, large in (("nt", 50, 80), ("nn", 90, 90), ("tn", 40, 40))
            for side in (64, 128, 256, 512, 1024)]
    entries = products.entries({"processor": "SOME", "libraries": ["openblas", "onednn"], "rows": rows})
    assert entries == [  # oneDNN is not asked for 2^21 multiply-adds, though it is the fastest there
        "PRODUCTS(SOME, MT_F32, NT, 0, 16777215, OPENBLAS, 1)",
        "PRODUCTS(SOME, MT_F32, NT, 16777216, 134217727, ONEDNN, 4)",
        "PRODUCTS(SOME, MT_F32, NT, 134217728, MOST, OPENBLAS, 4)",
        "PRODUCTS(SOME, MT_F32, NN | TT, 0, MOST, OPENBLAS, 4)",
        "PRODUCTS(SOME, MT_F32, TN, 0, 16777215, OPENBLAS, 1)",
        "PRODUCTS(SOME, MT_F32, TN, 16777216, MOST, ONEDNN, 4)"], entries
    entries = products.entries({"processor": "SOME", "libraries": ["openblas"], "rows": rows})  # a build without oneDNN
    assert entries == [f"PRODUCTS(SOME, MT_F32, {forms}, 0, MOST, OPENBLAS, 4)" for forms in ("NT", "NN | TT", "TN")], entries


def check_others():
    """A side that is slow at one size is left out of those that would take too long; cells that lack a figure are empty."""
    def of(ms):
        return {"least": ms, "median": 2 * ms, "allocated": 1 << 20, "analysis": 3 << 20}

    first = {"name": "small", "memtape": of(1), "jax": of(2), "mlx": of(600)}
    assert not others.too_slow("mlx", of(100), []) and not others.too_slow("jax", of(100), [first])
    assert others.too_slow("mlx", of(100), [first]) and others.too_slow("magnetron", of(1), [first])
    text = others.show({"sides": ["memtape", "jax", "mlx"], "missing": ["torch"],
                        "rows": [first, {"name": "large", "memtape": of(100), "jax": of(50)}]})
    lines = [line.split() for line in text.splitlines()]
    for line in (["small", "1.00", "2.00", "2.00x", "600", "600.00x"], ["large", "100", "50.0", "0.50x"],
                 ["large", "200", "100", "0.50x"], ["small", "1.00", "3.00", "3.00x"], ["Not", "there:", "torch"]):
        assert line in lines, (line, text)


def check_scaling(scaling):
    """The counts of sweeps, which no clock changes; and slopes of times that are made up."""
    points = {(row["swept"], row["value"]): row["points"] for row in scaling["points"]}
    assert all(len({(point["flop"], point["bytes"]) for point in of}) == 1 for of in points.values()), points
    one, two = (points["b", b][0] for b in (1, 2))
    assert two["flop"] == 2 * one["flop"] and one["bytes"] < two["bytes"] < 2 * one["bytes"], (one, two)
    assert len(scaling["fits"]) == len({(fit["swept"], fit["side"], fit["threads"]) for fit in scaling["fits"]})
    made_up = [{"swept": "b", "points": [{"threads": 1, "flop": n, "bytes": n * n, "ms": {"memtape": 2e-6 * n}}]}
               for n in (1e6, 2e6, 8e6)]
    fit, = fits(made_up)
    assert all(math.isclose(fit[key], value, abs_tol=1e-9) for key, value in
               (("over_flop", 1), ("over_bytes", 0.5), ("fixed_ms", 0), ("gflops", 0.5))), fit
    alone, beside = scaling["busy"]
    assert alone["took"] == 0 < beside["took"] and (alone["others"], beside["others"]) == (0, 1), scaling["busy"]


def whole(folder, worker, program, *options):
    status, result, text, errors = bench(folder, worker, program, *options)
    assert status == 0 and not result["failed"], (status, result["failed"], errors)
    assert [name for name in SECTIONS if result[name]] == SECTIONS, list(result)
    limits = result["machine"]["limits"]
    assert all(limits[f"{side}_{dtype}_gflops"] > 0 for side in result["machine"]["sides"] for dtype in ("f32", "bf16")), limits
    assert "FAILED" not in text, text
    for step in result["traced"]["d64-b1-s32"].values():
        names = {(part["op"], part["module"]) for part in step["parts"]}
        assert names >= {("linear", "attn.qkv"), ("linear", "lm_head"), ("adamw", "-")}, names
        assert sum(part["forward_ns"] + part["backward_ns"] for part in step["parts"]) < step["total_ns"]
    assert {row["op"] for row in result["tiny"]} >= {"add", "all_gather", "recv"}
    assert {row["division"] for row in result["rank_steps"]} == {"one", "dp", "dp_after", "zero3", "zero3_ahead", "tp", "pp"}
    check_scaling(result["scaling"])
    own, expandable, fine, reclaimed = result["segments"][0]["rows"]
    assert len({row["allocated_peak"] for row in result["segments"][0]["rows"]}) == 1, result["segments"]
    assert own["reserved_peak"] % (2 << 20) == expandable["reserved_peak"] % (2 << 20) == 0, result["segments"]
    assert expandable["reserved_peak"] > fine["reserved_peak"] > reclaimed["reserved_peak"] >= own["allocated_peak"]
    return result


def planted(folder, worker, program, fault, section, reason):
    stand_in = f"{folder}/stand-in"
    os.makedirs(folder)
    with open(stand_in, "w", encoding="utf-8") as f:
        f.write(STAND_IN.format(python=sys.executable, fault=fault, real=worker))
    os.chmod(stand_in, 0o755)
    status, result, text, errors = bench(folder, stand_in, program, "--no-peer")
    assert status == 1, status
    failed = result["failed"]
    assert list(failed) == [section] and reason in failed[section], failed
    assert f"FAILED: section {section}" in text, text
    assert errors.endswith(f"bench: failed: {section}\n"), errors
    assert [name for name in SECTIONS if result.get(name)] == [n for n in SECTIONS if n != section]


def main():
    worker, program = map(os.path.abspath, sys.argv[1:3])
    long = os.environ.get("MTT_LONG") == "1"
    check_peaks()
    check_slow()
    check_products()
    check_others()
    with tempfile.TemporaryDirectory() as folder:
        whole(f"{folder}/alone", worker, program, "--no-peer")
        status, result, text, errors = bench(f"{folder}/products", worker, program, "--no-peer", "--only", "products")
        assert status == 0 and "PRODUCTS(" in text, (status, text, errors)
        assert all(max(row[library].values()) > 0 for library in result["products"]["libraries"]
                   for row in result["products"]["rows"]), result["products"]
        planted(f"{folder}/row", worker, program, "row", "tiny",
                "rows without a case in src/ops/op_cases.def: nobody")
        if long:
            planted(f"{folder}/death", worker, program, "death", "memory", "ended with status 3")
        if long and whole(f"{folder}/peer", worker, program)["machine"]["peer"]:
            print("beside PyTorch, too")


if __name__ == "__main__":
    main()
