"""`memtape sweep`: rows and lists, bytes that equal the formulas, gradients that are the same or not, the
picture, and refusals."""
import json
import os
import re
import tempfile
import xml.etree.ElementTree as xml
from lib import check, documented_keys, done, equal, paths, profile, refused, run, worth


def sweep(*args):
    p = run("sweep", *args, "--json", "-")
    check(p.returncode == 0, f"sweep {args}: status {p.returncode}: {p.stderr.strip()}")
    return {r["row"]: r for r in json.loads(p.stdout)["rows"]} if p.returncode == 0 else {}


B, S, D, A = 2, 64, 64, 4
BSD, ABSS = B * S * D, A * B * S * S
SIZE = ["-b", B, "-s", S, "-d", D, "-a", A]
NORMS = 2 * 2 * 4 * B * S  # mean and rstd of two norms, f32
INT8 = 1 + 4 / 128  # bytes per element: one code, and one scale per 128 elements

# ---- the table of docs/lessons/12-spending-less.md, small: bytes with == ----
rows = sweep("block", *SIZE, "--dtype", "bf16", "--attention", "math", "--dropout", "0.1",
             "--row", "none:", "--row", "selective: --checkpoint selective",
             "--row", "full: --checkpoint full", "--row", "offload: --offload cpu",
             "--row", "disk: --offload disk", "--row", "8-bit: --compress 8bit",
             "--row", "mask bits: --compress bits", "--row", "mask seed: --compress seed",
             "--row", "ReLU: --act relu", "--row", "LeakyReLU: --act leaky_relu",
             "--row", "LeakyReLU in place: --act leaky_relu --inplace")
wanted = {"none": 34 * BSD + 5 * ABSS + NORMS,
          "selective": 34 * BSD + NORMS,
          "full": 2 * BSD,
          "offload": 2 * BSD + NORMS,  # the caller's input, and tensors too small to move
          "disk": 2 * BSD + NORMS,
          "8-bit": 16 * INT8 * BSD + 2 * BSD + (2 * INT8 + 1) * ABSS + NORMS,
          "mask bits": (32 + 2 / 8) * BSD + (4 + 1 / 8) * ABSS + NORMS,
          "mask seed": 32 * BSD + 4 * ABSS + NORMS,
          "ReLU": 26 * BSD + 5 * ABSS + NORMS,
          "LeakyReLU": 34 * BSD + 5 * ABSS + NORMS,
          "LeakyReLU in place": 26 * BSD + 5 * ABSS + NORMS}
equal({k: r["saved"] for k, r in rows.items()}, {k: int(v) for k, v in wanted.items()}, "saved bytes")
for name, r in rows.items():
    f = r["formula"]
    equal(r["saved"], f["bytes"] + sum(t["bytes"] for t in f["residual"]), f"{name}: formula")
    equal(worth(f["text"], b=B, s=S, h=D, a=A), f["bytes"], f"{name}: value of the formula's text")
    equal([t["bytes"] for t in f["residual"]], [NORMS] if name != "full" else [],
          f"{name}: the norms' statistics")
    check(0 < r["saved"] <= r["asked"] < r["peak"] <= r["reserved"], f"{name}: order of figures")
    check(r["step_seconds"] > 0, f"{name}: time")
    g = r["gradients"]
    equal((g["alone"], g["compared"]), (0, rows["none"]["gradients"]["compared"]), f"{name}: gradients")
exact = ["none", "selective", "full", "offload", "disk", "mask bits", "mask seed"]
equal([k for k, r in rows.items() if r["gradients"]["same_bits"]], exact, "rows with the same bits")
equal([rows[k]["gradients"]["relative"] for k in exact], [0.0] * len(exact), "their relative difference")
check(0 < rows["8-bit"]["gradients"]["relative"] < 0.05, "8-bit gradients are near")
check(rows["ReLU"]["gradients"]["relative"] > 0.05, "another activation's gradients are not near")
equal(rows["none"]["recompute_flops"], 0, "nothing recomputed")
check(rows["full"]["recompute_flops"] > rows["selective"]["recompute_flops"] > 0, "recomputed")
check(rows["offload"]["peak"] < rows["none"]["peak"], "offload lowers the peak")

# ---- a row that runs out of memory is reported, and the other rows are measured ----
rows = sweep("block", *SIZE[2:], "--capacity", "3MiB", "--over", "batch=1,64")
equal([r["out_of_memory"] for r in rows.values()], [False, True], "rows out of memory")
check("saved" not in rows["batch=64"] and rows["batch=1"]["saved"] > 0, "only the row that ran has figures")
p = run("sweep", "block", *SIZE[2:], "--capacity", "3MiB", "--over", "batch=64,1")
check(p.returncode == 0 and "out of memory" in p.stdout, f"the first row out of memory: {p.stderr}")

# ---- the second step is compared; on meta nothing is timed ----
ROW = ["gpt", "--optimizer", "adamw", "-l", 3, "-b", 4]
seen = set()
for device in ["cpu", "meta"]:
    swept = sweep(*ROW, "--over", f"device={device}", "--over", "checkpoint=none,full",
                  *(["--steps", 1] if device == "cpu" else []))
    for preset in ["none", "full"]:
        r = swept[f"device={device} checkpoint={preset}"]
        steady = profile(*ROW, "--device", device, "--checkpoint", preset)["steady"]
        equal(r["steady"], {key: steady[key] for key in ("requested", "peak", "active", "reserved", "by_category")},
              f"{device}, {preset}: the second step")
        equal((r["peak"], r["reserved"]), (steady["peak"], steady["reserved"]), f"{device}, {preset}: peak")
        equal(sum(r["steady"]["by_category"].values()), r["peak"], f"{device}, {preset}: categories")
        equal(r["step_seconds"] is None, device == "meta", f"{device}: only meta has no time")
        equal(r["loss"] is None, device == "meta", f"{device}: only meta has no loss")
        seen |= {"rows[]." + path for path in paths(r)}
seen |= {"rows[]." + path for path in paths(sweep("gpt", "--row", "--lora-rank 2", "--steps", 1)["--lora-rank 2"])}
documented = {key for key in documented_keys("profile-json.md") if key.startswith("rows")}
equal(sorted(seen ^ documented), [], "keys written or documented, but not both")

# ---- lists multiply, and the last list changes fastest; a row is what profile measures ----
rows = sweep("mlp", "--over", "act=relu,gelu", "--over", "hidden=8,16", "--steps", 1)
equal(list(rows), ["act=relu hidden=8", "act=relu hidden=16", "act=gelu hidden=8",
                   "act=gelu hidden=16"], "order of the rows")
for act in ["relu", "gelu"]:
    for d in [8, 16]:
        r = rows[f"act={act} hidden={d}"]
        equal(r["saved"], profile("mlp", "--act", act, "-d", d)["saved"]["bytes"], f"{act} {d}")
equal(rows["act=relu hidden=16"]["gradients"]["compared"], 0, "gradients of other shapes are not compared")
rows = sweep("block", "--row", "a: --act=relu", "--row", "b:", "--over", "inplace=no", "--steps", 1)
equal(list(rows), ["a inplace=no", "b inplace=no"], "named rows times lists")
rows = sweep("mlp", "--over", "model=mlp,block,tiny", "--over", "checkpoint=none,full", "--steps", 1)
equal([rows[f"model={m} checkpoint=full"]["gradients"]["same_bits"] for m in ["mlp"]], [True], "models")
rows = sweep("gpt", "--over", "checkpoint=none,full,sqrt", "--dropout", "0.1", "-l", 4, "--steps", 1,
             "--optimizer", "adamw")
equal(len({r["loss"] for r in rows.values()}), 1, "checkpoints do not change the loss")
check(all(r["gradients"]["same_bits"] for r in rows.values()), "checkpoints do not change the gradients")
rows = sweep("gpt", "--over", "device=cpu,meta", "--steps", 1)
equal(rows["device=meta"]["gradients"], None, "no data, no gradients")
equal(rows["device=meta"]["saved"], rows["device=cpu"]["saved"], "saved bytes on meta and on cpu")
rows = sweep("gpt", "--over", "amp=none,bf16", "--row", "full:", "--row", "LoRA: --lora-rank 2",
             "--steps", 1)
check(rows["LoRA amp=none"]["formula"] is None, "there is no formula for LoRA")
check(rows["LoRA amp=none"]["gradients"]["alone"] > 0, "gradients that only one row has are counted")

rows = sweep("block", "--over", "act=relu,leaky_relu", "--over", "inplace=no,yes", "--dtype", "bf16",
             "--steps", 1)
equal(rows["act=relu inplace=yes"]["gradients"]["same_bits"], True, "ReLU in place, bit for bit")
rows = sweep("block", "--act", "leaky_relu", "--over", "inplace=no,yes", "--dtype", "bf16", "--steps", 1)
equal(rows["inplace=yes"]["gradients"]["same_bits"], True, "LeakyReLU in place, bit for bit")
equal(rows["inplace=no"]["saved"] - rows["inplace=yes"]["saved"], 2 * 32 * 4 * 64 * 2, "its saving")

# ---- ranks: each row is the profile of that rank ----
def ranked(over, *args):
    p = run("sweep", "gpt", "-l", 4, *args, "--over", over, "--device", "meta", "--json", "-")
    equal(p.returncode, 0, f"sweep --over {over}: {p.stderr}")
    return {row["row"]: row for row in json.loads(p.stdout)["rows"]}


for option, values, more in [("zero", "0,1,2,3", ["--dp", 4, "--dtype", "bf16"]), ("tp", "1,2,4", ["--sp"]),
                             ("pp", "1,2,4", []), ("dp", "1,3", ["--zero", 2]),
                             ("rank", "0,1,2,3", ["--pp", 4]), ("microbatches", "1,4", ["--tp", 2])]:
    rows = ranked(f"{option}={values}", *more)
    equal(len(rows), len(values.split(",")), f"rows over {option}")
    for value in values.split(","):
        if (option, value) in (("tp", "1"), ("dp", "1")):
            continue  # a profile refuses --sp and --zero there; a sweep ignores them
        alone = profile("gpt", "-l", 4, *more, f"--{option}", value, "--device", "meta")
        row = rows[f"{option}={value}"]
        equal((row["saved"], row["steady"]["peak"]), (alone["saved"]["bytes"], alone["steady"]["peak"]),
              f"a rank with {option} {value}")
peaks = [row["steady"]["peak"] for row in ranked("zero=0,1,2,3", "--dp", 4, "--dtype", "bf16").values()]
check(peaks == sorted(peaks, reverse=True) and len(set(peaks)) > 1, f"each stage of ZeRO takes less: {peaks}")

# ---- text and picture ----
with tempfile.TemporaryDirectory() as folder:
    picture = os.path.join(folder, "x.svg")
    p = run("sweep", "block", "--over", "checkpoint=none,full", "--row", "a<b>&\"c\":", "--svg", picture,
            "--steps", 1)
    equal(p.returncode, 0, f"status: {p.stderr}")
    check("34bsh" not in p.stdout and "64bsh" in p.stdout, "formulas use this element size")
    check("0 (same bits)" in p.stdout and "\x1b" not in p.stdout, "the table")
    root = xml.parse(picture).getroot()
    texts = [t.text for t in root.iter("{http://www.w3.org/2000/svg}text")]
    check('a<b>&"c" checkpoint=full' in texts, "labels are spelt out")
    check(any("KiB" in t for t in texts), "the scale has units")
    bars = [r for r in root.iter("{http://www.w3.org/2000/svg}rect") if "y" in r.attrib]
    check(len(bars) == 2 + 4, "two bars per row, and four in the legend")
    for bar in bars:
        right = float(bar.get("x")) + float(bar.get("width"))
        check(right < float(root.get("width")), "bars end within the picture")
p = run("sweep", "mlp", "--svg", "/nonexistent/x.svg", "--steps", 1)
equal(p.returncode, 1, "status when the picture cannot be written")

# ---- refused ----
refused(["act=relu,gelu"], "sweep", "mlp", "--over", "act")
refused(["act=relu,gelu"], "sweep", "mlp", "--over", "=x")
refused(["--act", "nonsense", "relu", "sigmoid"], "sweep", "mlp", "--over", "act=relu,nonsense")
refused(["--nonsense"], "sweep", "mlp", "--over", "nonsense=1")
refused(["--json"], "sweep", "mlp", "--over", "json=a,b")
refused(["--heads", "mlp"], "sweep", "mlp", "--over", "heads=1,2")
refused(["inplace=maybe"[8:], "yes or no"], "sweep", "mlp", "--over", "inplace=maybe")
refused(["--checkpoint", "every=K"], "sweep", "block", "--row", "x: --checkpoint some")
refused(["not an option"], "sweep", "block", "--row", "x: checkpoint full")
alike = [sweep("block", "--device", "meta", "--row", "none:", "--row", row, "--row", "--checkpoint full")
         for row in ("full: --checkpoint full", "full:--checkpoint full")]
check(alike[0] == alike[1], "a name's colon with and without a space")
equal(list(alike[1]), ["none", "full", "--checkpoint full"], "names of rows")
refused(["not an option"], "sweep", "block", "--row", "full:checkpoint full")
refused(["needs a value"], "sweep", "block", "--row", "x: --checkpoint")
refused(["more than 256"], "sweep", "mlp", "--over", "seed=" + ",".join(map(str, range(20))),
        "--over", "hidden=" + ",".join(map(str, range(1, 21))))
refused(["row \"in place\"", "gelu"], "sweep", "mlp", "--row", "in place: --inplace")
refused(["MODEL is missing"], "sweep", "--over", "act=relu")
done()
