"""`memtape compare`: its own snapshots differ in nothing; snapshots as torch.cuda.memory writes them, in layouts old and new, have
the sums that torch.cuda._memory_viz finds and the peaks that were counted; logs are read with the intervals that their rounding
leaves; bad files are refused, and nothing in a pickle is run."""
import json
import os
import pickle
import re
import struct
import sys
import tempfile
from pathlib import Path
sys.path.append(sys.path.pop(0))  # PyTorch imports Python's profile, and there is one here
sys.path.append(str(Path(__file__).parents[2] / "src" / "memtrack"))
from lib import check, documented_keys, done, equal, paths, refused, run  # noqa: E402
from recorded import recorded  # noqa: E402

FOLDER = Path(tempfile.mkdtemp())
GIB, MIB = 1 << 30, 1 << 20
PAGE = Path(__file__).parents[3] / "docs" / "compare.md"
GPT = ["gpt", "-l", 3, "-d", 32, "-a", 2, "-b", 2, "-s", 16, "--vocab", 50]
MLP = ["mlp", "-b", 8, "-s", 64, "-d", 128, "--act", "gelu"]


def compare(*args):
    p = run("compare", *args, "--json", "-")
    equal((p.returncode, p.stderr), (0, ""), f"compare {args}")
    return json.loads(p.stdout)


def written(name, content):
    path = FOLDER / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def dumped(name, snapshot, protocol=pickle.DEFAULT_PROTOCOL):
    return written(name, pickle.dumps(snapshot, protocol))


# ---- snapshots that memtape wrote ----

def own_snapshot_differs_in_nothing():
    for args in [["gpt2"], [*GPT, "--optimizer", "adamw"], ["gpt2", "--optimizer", "adamw", "--expandable-segments"], ["linear", "-b", 1, "-d", 16],
                 [*GPT, "--checkpoint", "full", "--dropout", 0.1], ["llama", "-l", 2, "--recipe", "fsdp2", "--dp", 2],
                 ["llama", "-l", 2, "-d", 64, "-a", 4, "--lora-rank", 2, "--qlora", "--dtype", "bf16", "--optimizer", "adamw"],
                 [*GPT, "--expandable-segments", "--granule", "64KiB", "--reclaim", "--optimizer", "adamw"]]:
        path = FOLDER / "own.pickle"
        p = run("profile", *args, "--device", "meta", "--snapshot", path, "--json", "-")
        equal(p.returncode, 0, f"profile {args}: {p.stderr}")
        s, steady, phases = compare(path, *args)["files"][0]["snapshot"], json.loads(p.stdout)["steady"], json.loads(p.stdout)["phases"]
        measured, predicted = s["measured"], s["predicted"]
        for key in ("peak", "end", "use", "streams", "events", "blocks"):
            equal(measured[key], predicted[key], f"{args}: {key}")
        equal((s["rows"], s["matched"]["by_size"]), ([], 0), f"{args}: tensors that only one side has")
        check(s["segments"] and all(r["measured"] == r["predicted"] and r["measured_free"] == r["predicted_free"] for r in s["segments"]),
              f"{args}: segments: {s['segments']}")
        equal(s["matched"]["by_op_bytes"], measured["peak"]["requested"], f"{args}: matched bytes")
        check(s["matched"]["by_op"] > 0 and measured["peak"]["requested"] > 0, f"{args}: something is compared")
        equal(measured["peak"]["requested"], max(steady["requested"], *(f["requested_peak"] for f in phases)), f"{args}: peak requested")
        equal(measured["peak"]["reserved"], max(steady["reserved"], *(f["reserved"] for f in phases)), f"{args}: peak reserved")
        text = run("compare", path, *args).stdout
        differences = re.findall(r"(?m)^  (?:peak|requested|allocated|active|reserved|by |waits|free|segments).* (-?[\d,]+)$", text)
        check(len(differences) == 15 and set(differences) == {"0"} and "\n  none\n" in text, f"{args}: differences in the text: {text}")


def workspace_is_known():
    path = FOLDER / "workspace.pickle"
    for gpu, n in ("h100", 32 * MIB), ("a100-80", 8519680):
        run("profile", *GPT, "--device", "meta", "-q", "--gemm-workspace", n, "--snapshot", path)
        row, = compare(path, *GPT, "--gpu", gpu)["files"][0]["snapshot"]["rows"]
        equal((row["bytes"], row["measured"], row["predicted"], row["known"]), (n, 2, 0, "cuBLAS's workspace: --gemm-workspace"), f"{gpu}'s, of two handles")


# ---- snapshots as PyTorch has them ----

def sums_of(snapshot):
    """What a reader finds that knows nothing of ours."""
    blocks = [(b, b.get("history", [{}])[0].get("real_size", b.get("requested_size", b["size"])))
              for s in snapshot["segments"] for b in s["blocks"] if b["state"] != "inactive"]
    alive = [(b, n) for b, n in blocks if b["state"] == "active_allocated"]
    return {"requested": sum(n for _, n in alive), "allocated": sum(b["size"] for b, _ in alive),
            "active": sum(b["size"] for b, _ in blocks), "reserved": sum(s["total_size"] for s in snapshot["segments"])}


def check_snapshot(path, snapshot, peak, what):
    s = compare(path, *MLP)["files"][0]["snapshot"]
    measured = s["measured"]
    equal(measured["end"], sums_of(snapshot), f"{what}: at the end")
    equal(measured["peak"], peak, f"{what}: peak")
    use = measured["use"]
    equal(use["reserved"], sum(use[k] for k in ("requested", "rounding", "pending", "free_split", "free_whole")), f"{what}: reserved is its parts")
    equal({k: sum(t[k] for t in measured["streams"]) for k in use}, use, f"{what}: and the sum of the streams")
    free = [b["size"] for t in snapshot["segments"] if len(t["blocks"]) > 1 for b in t["blocks"] if b["state"] == "inactive"]
    equal((use["free_split"], use["requested"]), (sum(free), measured["end"]["requested"]), f"{what}: fragmentation")
    equal(sum(r["difference"] for r in s["rows"]), peak["requested"] - s["predicted"]["peak"]["requested"], f"{what}: the rows' sum")
    for side in "measured", "predicted":
        equal(sum(r["bytes"] * r[side] for r in s["segments"]), s[side]["end"]["reserved"], f"{what}: segments by size, {side}")
        equal(sum(r[side + "_free"] for r in s["segments"]), s[side]["use"]["free_split"] + s[side]["use"]["free_whole"], f"{what}: free in them, {side}")
    both = s["matched"]["by_op_bytes"] + s["matched"]["by_size_bytes"]
    equal(both + sum(r["difference"] for r in s["rows"] if r["difference"] > 0), peak["requested"], f"{what}: what both have, and the rest")
    return s


def torch_snapshot_has_the_sums_of_its_viewer():
    if not recorded:
        print("skipped: no PyTorch")
        return
    for expandable in (False, True):
        r = recorded(*map(int, MLP[2:7:2]), expandable)
        path, what = FOLDER / "torch.pickle", f"torch, expandable {expandable}"
        r.dump(path)
        snapshot = pickle.loads(path.read_bytes())
        text = r.viewer.segsum(snapshot)
        end = sums_of(snapshot)
        for name, n in ("total_reserved", end["reserved"]), ("total_allocated", end["requested"]):
            check(f"{name}: {r.viewer.Bytes(n)}\n" in text, f"{what}: {name} of segsum")
        s = check_snapshot(path, snapshot, r.peak(0), what)
        equal([t["stream"] for t in s["measured"]["streams"]], [0, r.OTHER], f"{what}: streams")
        check(s["measured"]["use"]["pending"] > 0 and s["measured"]["end"]["active"] > end["allocated"], f"{what}: a block waits for a stream")
        # The parameters, the hidden layer and its activation are predicted.
        lacking = [r["bytes"] for r in s["rows"] if r["measured"] < r["predicted"]]
        for n in (4 * 128 * 512, 4 * 512, 4 * 8 * 64 * 512):
            check(n not in lacking, f"{what}: {n} bytes are on both sides: {s['rows']}")
        check(s["matched"]["by_op"] > 0, f"{what}: ops are recognised: {s['rows']}")
        half = len(r.after) // 2
        snapshot["device_traces"] = [snapshot["device_traces"][0][half:]]
        check_snapshot(dumped("half.pickle", snapshot), snapshot, r.peak(half), f"{what}: without the beginning of its trace")
        snapshot["device_traces"] = [[]]
        shown = check_snapshot(dumped("none.pickle", snapshot), snapshot, r.peak(len(r.after)), f"{what}: without a trace")
        equal(shown["measured"]["events"], 0, f"{what}: events")
        check("Nothing was recorded" in run("compare", FOLDER / "none.pickle", *MLP).stdout, f"{what}: the text says so")


def layouts_of_other_versions_are_read():
    if not recorded:
        print("skipped: no PyTorch")
        return
    r = recorded(*map(int, MLP[2:7:2]), False)
    for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1):
        check_snapshot(dumped("p.pickle", r.snapshot, protocol), r.snapshot, r.peak(0), f"protocol {protocol}")
    old = json.loads(json.dumps(r.snapshot))
    for s in old["segments"]:
        for key in ("is_expandable", "segment_pool_id", "requested_size", "frames", "device"):
            del s[key]
        for b in s["blocks"]:
            b["history"] = [{"addr": b.pop("address"), "real_size": b.pop("requested_size"), "frames": b.pop("frames")}] \
                if b["state"] != "inactive" else []
            b["state"] = b["state"].replace("active_pending_free", "active_awaiting_free")
    del old["allocator_settings"]
    check_snapshot(dumped("old.pickle", old), old, r.peak(0), "layout of 2.0")
    check_snapshot(dumped("bare.pickle", r.snapshot["segments"]), r.snapshot, r.peak(len(r.after)), "a bare list of segments")
    two = json.loads(json.dumps(r.snapshot))
    two["segments"] = [{**s, "device": 1} for s in two["segments"]] + [{**two["segments"][0], "total_size": 1, "blocks": []}]
    two["device_traces"] = [[{"action": "alloc", "addr": 5, "size": 1 << 40, "frames": []}], two["device_traces"][0]]
    s = compare(dumped("two.pickle", two), *MLP)["files"][0]["snapshot"]["measured"]
    equal((s["device"], s["other_devices"], s["peak"]), (1, 1, r.peak(0)), "the device that reserves most")


# ---- bad files ----

class Harmful:
    def __reduce__(self):
        return os.system, (f"touch {FOLDER}/harm",)


def bad_files_are_refused():
    good = FOLDER / "good.pickle"
    run("profile", *GPT, "--device", "meta", "-q", "--snapshot", good)
    data = good.read_bytes()
    ends = [n for n in range(2, len(data) - 1, len(data) // 60)] + [*range(2, 60), len(data) - 1]
    for n in ends:
        refused(["cut.pickle", f"of {n}: "], "compare", written("cut.pickle", data[:n]), *GPT, status=1)
    for protocol, words in (2, "0x63, GLOBAL (posix.system)"), (4, "0x93, STACK_GLOBAL (posix.system)"):
        refused(["harmful.pickle", words, "nothing else is read or run"], "compare",
                dumped("harmful.pickle", {"segments": [Harmful()]}, protocol), *GPT, status=1)
    check(not (FOLDER / "harm").exists(), "nothing was run")
    huge = {"text of 4 GiB": b"\x80\x04X\xff\xff\xff\xffab.", "text of 2^63 bytes": b"\x80\x04\x8d" + b"\xff" * 8 + b"ab.",
            "frame": b"\x80\x04\x95" + b"\xff" * 8 + b"}.", "integer": b"\x80\x04\x8b\xff\xff\xff\xffa.", "empty": b"\x80", "memo": b"\x80\x02}r\xff\xff\xff\xff.", "next of the memo": b"\x80\x02}q\x01.",
            "recall": b"\x80\x02h\x05.", "stack": b"\x80\x02a.", "mark": b"\x80\x02}u.", "list": b"\x80\x02K\x01K\x02a.", "key": b"\x80\x02}(K\x01u.",
            "protocol": b"\x80\x63}.", "big integer": b"\x80\x02\x8a\x0a" + b"\x7f" * 10 + b".", "tuple": b"\x80\x02\x87.", "opcode": b"\x80\x02\x01."}
    for name, content in huge.items():
        p = refused(["huge.pickle: byte "], "compare", written("huge.pickle", content), *GPT, status=1)
        check(len(p.stderr) < 400, f"{name}: {p.stderr}")
    itself = []
    itself.append(itself)
    segment = {"address": 4096, "total_size": 2 << 20, "stream": 0, "segment_type": "small", "blocks": [
        {"size": 2 << 20, "requested_size": 5, "state": "active_allocated", "frames": []}]}
    compare(dumped("good.pickle", {"segments": [segment], "device_traces": []}), *GPT)
    wrong = {"no list": 5, "segments": {"a": 1}, '"total_size"': {"segments": [{**segment, "total_size": -1}]}, '"address"': {"segments": [{}]},
             "not a dictionary": {"segments": itself}, "state": {"segments": [{**segment, "blocks": [{"size": 1, "state": "b"}]}]},
             "more than it has": {"segments": [{**segment, "total_size": 1}]}, '"size"': {"segments": [{**segment, "blocks": [itself]}]},
             "action": {"segments": [], "device_traces": [[itself]]}, '"addr"': {"segments": [], "device_traces": [[{"action": "alloc"}]]},
             "1024 streams": {"segments": [{**segment, "stream": i} for i in range(1100)]}}
    for words, value in wrong.items():
        if words in ("no list",):
            words = "neither a dictionary nor a list"
        if words == '"address"':
            words = '"total_size" is missing'
        refused(["wrong.pickle: not a memory snapshot of PyTorch", words], "compare", dumped("wrong.pickle", value), *GPT, status=1)
    refused(["cannot open"], "compare", FOLDER / "missing.pickle", *GPT, status=1)
    for content in "", "no figure here", "PK\x03\x04", "{}", "[1, 2", "\0" * 100:
        refused(["nothing.log: neither a memory snapshot"], "compare", written("nothing.log", content), *GPT, status=1)
    many = "\n".join(f'{{"a{i}": {{"max_memory_allocated": 5}}}},' for i in range(300))
    refused(["more than 256 names"], "compare", written("many.json", f"[{many[:-1]}]"), *GPT, status=1)
    refused(["FILE is missing", "FILE... MODEL"], "compare")
    refused(["FILE or MODEL is missing"], "compare", good)
    refused(["MODEL", "need JSON"], "compare", good, good)
    refused(["--html"], "compare", good, *GPT, "--html", "x")


# ---- logs ----

LOG = """[titan] - INFO - \x1b[31mstep:  1  \x1b[32mloss: 12.27  \x1b[36mmemory: 42.08GiB(44.27%)  \x1b[34mtps: 3,000\x1b[39m
[titan] - INFO - CUDA memory usage for model: 3.77GiB(3.97%)
[titan] - INFO - step: 10  loss: 10.12  memory: 49.59GiB(52.18%)  tps: 3,100
[titan] - INFO - step: 20  loss: 10.11  memory: 49.55GiB(52.1%)  tps: 3,100
[Rank 0] (after 1 iterations) memory (MB) | allocated: 18244.640625 | max allocated: 41299.50146484375 | reserved: 46764.0 | max reserved: 46766.0
max_memory_allocated: 3,456,789,012 bytes
all steps, step=7: print(torch.cuda.max_memory_reserved()) 123456
{"allocated_bytes.all.peak": 77, "step": 3}
| N/A   42C    P0    70W / 300W |  12345MiB / 81559MiB |      0%      Default |
Memory used: 13.98 GB
memory/max_active(GiB): 33.5
"""
WANTED = [("memory", 1, 1, "peak reserved", 42.075 * GIB, 42.085 * GIB), ("memory", 3, 10, "peak reserved", 49.585 * GIB, 49.595 * GIB),
          ("allocated", 5, 1, "allocated", 18244.640625 * MIB, 18244.640625 * MIB),
          ("max allocated", 5, 1, "peak allocated", 41299.50146484375 * MIB, 41299.50146484375 * MIB),
          ("reserved", 5, 1, "reserved", 46763.95 * MIB, 46764.05 * MIB), ("max reserved", 5, 1, "peak reserved", 46765.95 * MIB, 46766.05 * MIB),
          ("max_memory_allocated", 6, None, "peak allocated", 3456789012, 3456789012),
          ("max_memory_reserved", 7, 7, "peak reserved", 123456, 123456), ("allocated_bytes.all.peak", 8, 3, "peak allocated", 77, 77),
          ("nvidia-smi", 9, None, "used of the device", 12344.5 * MIB, 12345.5 * MIB),
          ("Memory used", 10, None, "peak allocated", 13.975e9, 13.985e9), ("max_active", 11, None, "peak active", 33.45 * GIB, 33.55 * GIB)]


def figures_of(content, *args):
    return compare(written("x.log", content), *(args or GPT))["files"][0]["figures"]


def logs_are_read_as_written():
    found = [(f["name"], f["line"], f["step"], f["kind"], f["low"], f["high"]) for f in figures_of(LOG)]
    equal([f[:4] for f in found], [w[:4] for w in WANTED], "figures of a log")
    for f, w in zip(found, WANTED):
        # Whole bytes within the interval, as many as there are.
        check(w[4] - 1e-3 <= f[4] < w[4] + 1 and w[5] - 1 < f[5] <= w[5] + 1e-3, f"{w[0]}: {f[4:]} for {w[4:]}")
    peft = {"run_info": {"train_config": {"batch_size": 4}}, "train_info": {"accelerator_memory_reserved_avg": 14229219940, "accelerator_memory_max": 24847056896}}
    equal([(f["name"], f["low"], f["line"]) for f in figures_of(json.dumps(peft, indent=1))], [("train_info.accelerator_memory_max", 24847056896, None)], "PEFT's JSON")
    series = {"1": 52700401664.0, "2": 5.5e10, "5": 60489064448.0, "9": 1}
    for golden in ({"mem-max-allocated-bytes": {"start_step": 1, "end_step": 9, "values": series}},
                   {"case": {"mem-max-allocated-bytes": [[int(k), v] for k, v in series.items()]}}):
        equal([(f["step"], f["low"], f["high"], f["kind"]) for f in figures_of(json.dumps(golden))],
              [(1, 52700401664, 52700401664, "peak allocated"), (5, 60489064448, 60489064448, "peak allocated")], "Megatron-LM's golden values")
    for line in "memory: 5", "memory: 5GiB", "my_max_memory_allocated: 5", "max_memory_allocated_avg: 5", "max_memory_allocated: many", "reserved: 5", "max_memory_allocated: 1e9":
        refused(["neither"], "compare", written("x.log", line), *GPT, status=1)


def differences_are_explained():
    p = {}
    for name, more in ("plain", []), ("expandable", ["--expandable-segments"]), ("workspace", ["--gemm-workspace", "32MiB"]):
        p[name] = json.loads(run("profile", "gpt2", *more, "--json", "-").stdout)
    steady, first = p["plain"]["steady"], max(f["peak"] for f in p["plain"]["phases"])
    f, = figures_of(f"step: 1 max_memory_allocated: {first}", "gpt2")
    equal((f["predicted"], f["difference"], f["otherwise"]), (first, 0, []), "the first step")
    f, = figures_of(f"max_memory_allocated: {steady['peak']}", "gpt2")
    equal((f["predicted"], f["difference"], f["otherwise"]), (steady["peak"], 0, []), "the steady step")
    for wanted, what in (p["expandable"]["steady"]["reserved"], "with --expandable-segments"), \
            (p["workspace"]["steady"]["reserved"], "with --gemm-workspace 32MiB (cuBLAS on an h100)"), \
            (max(f["reserved"] for f in p["plain"]["phases"]), "in the first step"):
        f, = figures_of(f"max_memory_reserved: {wanted}", "gpt2")
        equal(f["difference"], wanted - steady["reserved"], f"difference, {what}")
        equal(f["otherwise"][0], {"what": what, "predicted": wanted, "difference": 0}, f"explanation: {what}")
    f, = figures_of(f"max_memory_reserved: {p['plain']['steady']['reserved']}", "gpt2", "--expandable-segments")
    equal(f["otherwise"][0]["what"], "without --expandable-segments", "the other way round")
    outside = json.loads(run("profile", "gpt2", "--outside", "--json", "-").stdout)["outside"]
    context = sum(r["bytes"] for r in outside["rows"] if r["name"] == "CUDA context")
    wanted = p["workspace"]["steady"]["phases"][-1]["reserved"] + context
    f, = figures_of(f"| {wanted // MIB}MiB / 81559MiB |", "gpt2")
    equal([e["what"] for e in f["otherwise"] if not e["difference"]], ["with what --outside adds on an h100"], "nvidia-smi's figure")
    f, = figures_of(f"| {wanted // MIB}MiB / 81559MiB |", "gpt2", "--gemm-workspace", "32MiB")
    equal([e["what"] for e in f["otherwise"] if not e["difference"]], ["with what --outside adds on an h100"], "with workspaces that are asked for")
    f, = figures_of("max_memory_reserved: 5", "gpt2", "--gpu", "a100-80")
    check(any(e["what"] == "with --gemm-workspace 8519680 (cuBLAS on an a100-80)" for e in f["otherwise"]), f"another card: {f}")
    refused(["gpu", "h1000"], "compare", FOLDER / "x.log", "gpt2", "--gpu", "h1000", status=1)
    gib = steady["peak"] / GIB
    f, = figures_of(f"max_memory_allocated: {gib:.3f} GiB", "gpt2")
    check(f["difference"] == 0 and f["low"] < steady["peak"] < f["high"], f"within the rounding: {f}")
    f, = figures_of(f"max_memory_allocated: {gib:.3f} GB", "gpt2")
    equal([e["what"] for e in f["otherwise"] if not e["difference"]], ["if its unit is a power of 1024"], "GB that are GiB")
    text = run("compare", FOLDER / "x.log", "gpt2").stdout
    check("rounded: stands for" in text and "within the rounding" in text, f"the text says so: {text}")


def page_lists_the_keys():
    path = FOLDER / "own.pickle"
    run("profile", *GPT, "--device", "meta", "-q", "--snapshot", path)
    known = documented_keys("compare.md")
    found = compare(path, written("x.log", LOG), *GPT, "--checkpoint", "full")
    missing = sorted({key for key in paths(found) if not key.startswith("model.")} - known)
    equal(missing, [], "keys that compare.md lacks")
    low, high = re.search(r"42.08GiB for ([\d,]+) to ([\d,]+) bytes", " ".join(PAGE.read_text().split())).groups()
    f = found["files"][1]["figures"][0]
    equal((f["low"], f["high"]), (int(low.replace(",", "")), int(high.replace(",", ""))), "the page's interval")


def page_shows_what_is_printed():
    """Of each block with commands, what follows a command is in its output, in order."""
    (FOLDER / "run.log").write_text("max_memory_reserved: 2,399,141,888\n")
    blocks = re.findall(r"(?m)^    \$ memtape.*\n(?:^(?:    .*)?\n)*", PAGE.read_text())
    check(len(blocks) == 2, f"blocks of the page: {blocks}")
    for block in blocks:
        output = []
        for line in block.splitlines():
            if line.startswith("    $ "):
                p = run(*line.split()[2:], cwd=FOLDER)
                equal(p.returncode, 0, f"{line}: {p.stderr}")
                output = iter([" ".join(shown.split()) for shown in p.stdout.splitlines()])
            elif line.strip() not in ("", "..."):
                check(" ".join(line.split()) in output, f"the page's line: {line}")


for test in [own_snapshot_differs_in_nothing, workspace_is_known, torch_snapshot_has_the_sums_of_its_viewer, layouts_of_other_versions_are_read, bad_files_are_refused,
             logs_are_read_as_written, differences_are_explained, page_lists_the_keys, page_shows_what_is_printed]:
    test()
done()
