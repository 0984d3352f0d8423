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
                 [*GPT, "--expandable-segments", "--recipe", "plain:granule=64KiB", "--recipe", "plain:reclaim", "--optimizer", "adamw"]]:
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


def a_report_stands_for_the_model():
    """Its events, asked of the allocator again, are the run that it is of; what is none is refused."""
    for args in [[*GPT, "--optimizer", "adamw"], [*GPT, "--optimizer", "adamw", "--expandable-segments"], [*MLP],
                 ["llama", "-l", 2, "--recipe", "fsdp2", "--dp", 2]]:
        snapshot, report, log = FOLDER / "own.pickle", FOLDER / "own.json", FOLDER / "own.log"
        equal(run("profile", *args, "--device", "meta", "--snapshot", snapshot, "--timeline", "--json", report).returncode, 0, f"profile {args}")
        steady = json.loads(report.read_text())["steady"]
        log.write_text(f"max_memory_allocated: {steady['peak']}\nmax_memory_reserved: {steady['reserved']}\n")
        found = compare(snapshot, log, report)
        s, figures = found["files"][0]["snapshot"], found["files"][1]["figures"]
        for key in ("peak", "end", "use", "streams", "events", "blocks"):
            equal(s["measured"][key], s["predicted"][key], f"{args}: {key}")
        equal((found["model"], s["rows"], s["matched"]["by_size"]), (None, [], 0), f"{args}: tensors that only one side has")
        equal([f["predicted"] for f in figures], [steady["peak"], steady["reserved"]], f"{args}: figures of a log")
    values = json.loads(report.read_text())
    refused("--batch: does not apply beside a report", "compare", snapshot, report, "--batch", 2)
    (FOLDER / "error.txt").write_text(oom_text(*REPORTS[0][2]))
    refused("give the snapshot of that instant", "compare", FOLDER / "error.txt", report, status=1)
    first = values["timeline"][0]
    for words, timeline in (("lists no events of a training step", None), ("timeline[0]: frees a storage that is not there", [{**first, "kind": "free"}]),
                            ('timeline[0]: "bytes" is not a number above 0', [{**first, "bytes": -1}]), ("timeline[0]: is not an event", [7])):
        refused(words, "compare", snapshot, written("bad.json", json.dumps({**values, "timeline": timeline})), status=1)


def workspace_is_known():
    path = FOLDER / "workspace.pickle"
    for gpu, n in ("h100", 32 * MIB), ("a100-80", 8519680):
        run("profile", *GPT, "--device", "meta", "-q", "--recipe", f"plain:gemm-workspace={n}", "--snapshot", path)
        row, = compare(path, *GPT, "--gpu", gpu)["files"][0]["snapshot"]["rows"]
        equal((row["bytes"], row["measured"], row["predicted"], row["known"]), (n, 2, 0, "cuBLAS's workspace: --recipe plain:gemm-workspace"), f"{gpu}'s, of two handles")


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
    for only in (good, "llama-3.1-8b"):
        refused(["FILE or MODEL is missing", "such as snapshot.pickle llama-3.1-8b"], "compare", only)
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
    for name, more in ("plain", []), ("expandable", ["--expandable-segments"]), ("workspace", ["--recipe", "plain:gemm-workspace=32MiB"]):
        p[name] = json.loads(run("profile", "gpt2", *more, "--json", "-").stdout)
    steady, first = p["plain"]["steady"], max(f["peak"] for f in p["plain"]["phases"])
    f, = figures_of(f"step: 1 max_memory_allocated: {first}", "gpt2")
    equal((f["predicted"], f["difference"], f["otherwise"]), (first, 0, []), "the first step")
    f, = figures_of(f"max_memory_allocated: {steady['peak']}", "gpt2")
    equal((f["predicted"], f["difference"], f["otherwise"]), (steady["peak"], 0, []), "the steady step")
    for wanted, what in (p["expandable"]["steady"]["reserved"], "with --expandable-segments"), \
            (p["workspace"]["steady"]["reserved"], "with --recipe plain:gemm-workspace=32MiB (cuBLAS on an h100)"), \
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
    f, = figures_of(f"| {wanted // MIB}MiB / 81559MiB |", "gpt2", "--recipe", "plain:gemm-workspace=32MiB")
    equal([e["what"] for e in f["otherwise"] if not e["difference"]], ["with what --outside adds on an h100"], "with workspaces that are asked for")
    f, = figures_of("max_memory_reserved: 5", "gpt2", "--gpu", "a100-80")
    check(any(e["what"] == "with --recipe plain:gemm-workspace=8519680 (cuBLAS on an a100-80)" for e in f["otherwise"]), f"another card: {f}")
    refused(["gpu", "h1000"], "compare", FOLDER / "x.log", "gpt2", "--gpu", "h1000")
    gib = steady["peak"] / GIB
    f, = figures_of(f"max_memory_allocated: {gib:.3f} GiB", "gpt2")
    check(f["difference"] == 0 and f["low"] < steady["peak"] < f["high"], f"within the rounding: {f}")
    f, = figures_of(f"max_memory_allocated: {gib:.3f} GB", "gpt2")
    equal([e["what"] for e in f["otherwise"] if not e["difference"]], ["if its unit is a power of 1024"], "GB that are GiB")
    text = run("compare", FOLDER / "x.log", "gpt2").stdout
    check("rounded: stands for" in text and "within the rounding" in text, f"the text says so: {text}")


# ---- the message that memory ran out ----

def oom_text(asked, total, free, allocated, unallocated, old=False):
    if old:
        return (f"RuntimeError: CUDA out of memory. Tried to allocate {asked} (GPU 0; {total} total capacity; {allocated} already allocated; "
                f"{free} free; {unallocated} reserved in total by PyTorch) If reserved memory is >> allocated memory try setting max_split_size_mb")
    return (f"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {asked}. GPU 0 has a total capacity of {total} of which {free} is free. "
            f"Process 41 has 17179869184.00 GiB memory in use. Including non-PyTorch memory, this process has 21.39 GiB memory in use. 22.00 GiB allowed; "
            f"Of the allocated memory {allocated} is allocated by PyTorch, with 2.00 MiB allocated in private pools (e.g., CUDA Graphs), and {unallocated} "
            "is reserved by PyTorch but unallocated. If reserved but unallocated memory is large try setting PYTORCH_ALLOC_CONF=expandable_segments:True")


def oom_of(content, *args):
    return compare(written("oom.txt", content), *args)["files"][0]["out_of_memory"]


def near(span, value, what):
    check(span is not None and span["low"] <= value <= span["high"], f"{what}: {span} for {value}")


def oom_messages_of_every_form_are_read():
    new = oom_text("896.00 MiB", "21.99 GiB", "611.44 MiB", "20.52 GiB", "577.13 MiB")
    old = oom_text("896.00 MiB", "21.99 GiB", "611.44 MiB", "20.52 GiB", "21.08 GiB", old=True)
    forms = {"new": new, "old": old, "2.1": new.replace("capacity", "capacty"), "HIP": new.replace("CUDA out", "HIP out"),
             "cached": old.replace("reserved in total by PyTorch", "cached"), "wrapped": new.replace(" is", "\n is").replace("Tried to ", "Tried to\n    "),
             "of a rank": "[rank3]: Traceback\n" + new.replace("torch.Out", "[rank3]: torch.cuda.Out"), "of a terminal": new.replace("896", "\x1b[31m896")}
    for name, text in forms.items():
        m = oom_of(text, "gpt2")
        equal((m["asked"]["low"] <= 896 * MIB <= m["asked"]["high"], m["messages"], m["line"]), (True, 1, 2 if name == "of a rank" else 1), name)
        for key, value in ("allocated", 20.52 * GIB), ("free", 611.44 * MIB), ("total", 21.99 * GIB):
            near(m[key], value, f"{name}: {key}")
        near(m["unallocated"], 577.13 * MIB if "allocated memory 20" in text else 0.56 * GIB, f"{name}: unallocated")
        equal(m["capacity"] // MIB, sum(int((m[k]["low"] + m[k]["high"]) / 2) for k in ("allocated", "unallocated", "free")) // MIB, f"{name}: capacity")
    mps = "RuntimeError: MPS backend out of memory (MPS allocated: 8.00 GB, other allocations: 384.00 KB, max allowed: 9.07 GB). Tried to allocate 256.00 MB on private pool."
    m = oom_of(mps, "gpt2")
    equal([m[k] and m[k]["high"] // 10**6 for k in ("asked", "allocated", "total", "free")], [256, 8005, 9075, None], "MPS")
    m = oom_of("CUDA out of memory. Tried to allocate 20.00 MiB", "gpt2")
    equal((m["capacity"], m["fits"], m["refusal"], m["changes"]), (None, None, None, []), "a first line alone")
    check("does not say how much was allocated" in run("compare", FOLDER / "oom.txt", "gpt2").stdout, "and the text says so")
    m = oom_of(f"{new}\nstep 3 max_memory_allocated: 77\n{old}\n", "gpt2")
    equal((m["messages"], m["line"]), (2, 1), "two messages")
    f, = compare(FOLDER / "oom.txt", "gpt2")["files"][0]["figures"]
    equal((f["low"], f["line"], f["step"]), (77, 2, 3), "and a figure between them")
    p = run("oom", "-", "gpt2", "--json", "-", input=new)
    equal((p.returncode, json.loads(p.stdout)["files"][0]["out_of_memory"]["asked"]), (0, oom_of(new, "gpt2")["asked"]), "pasted")


def oom_is_where_the_prediction_fails():
    args = ["gpt2", "-b", 4, "--attention", "math", "--optimizer", "adamw"]
    for capacity in ("4GiB", "1900MiB", "700MiB"):
        p = run("profile", *args, "--capacity", capacity, "--json", "-")
        own = json.loads(p.stdout)["out_of_memory"]
        asked, rest = -(-own["requested"] // (2 * MIB)) * 2, int(capacity[:-3]) * (GIB if "GiB" in capacity else MIB) - own["allocated"]
        m = oom_of(oom_text(f"{asked}.00 MiB", "80.00 GiB", f"{rest / MIB:.2f} MiB", f"{own['allocated'] / MIB:.2f} MiB", "0 bytes"), *args)
        again = json.loads(run("profile", *args, "--capacity", m["capacity"], "--json", "-").stdout)["out_of_memory"]
        equal(m["refusal"], {k: again[k] for k in m["refusal"]}, f"{capacity}: refused as a profile in as much memory is")
        equal((m["refusal"]["event"], m["refusal"]["requested"]), (own["event"], own["requested"]), f"{capacity}: the same request")
        check(any((a["op"], a["phase"], a["bytes"]) == (own["op"], own["phase"], own["requested"]) for a in m["askers"]), f"{capacity}: it is listed: {m['askers']}")
        for t in m["changes"]:
            p = run("profile", *args, *t["change"].split(), "--capacity", m["capacity"], "--json", "-")
            equal(p.returncode == 0, t["fits"], f"{capacity}: {t['change']}: {p.stderr}")
            if not t["fits"]:
                p = run("profile", *args, *t["change"].split(), "--json", "-")
            d = json.loads(p.stdout)
            equal(t["allocated"], max(d["steady"]["peak"], *(f["peak"] for f in d["phases"])), f"{capacity}: {t['change']}: needs")
        equal(any(t["fits"] for t in m["changes"]), capacity != "700MiB", f"{capacity}: something helps: {m['changes']}")


# From public reports: what was typed, the message's numbers, what is known of the size that was asked for.
REPORTS = [
    ("mistral-finetune issue 69", "mistral-7b -b 1 -s 32768 --lora-rank 64 --checkpoint full",
     ("896.00 MiB", "21.99 GiB", "611.44 MiB", "20.52 GiB", "577.13 MiB"), "b x s x f x 2 bytes", "swiglu"),
    ("nanoGPT issue 208", "gpt2-xl -b 1 -s 1024 --dtype f32 --amp f16 --attention math",
     ("100.00 MiB", "23.69 GiB", "47.69 MiB", "21.67 GiB", "22.02 GiB"), "b x s x a x s x 4 bytes, or b x s x v x 2 bytes", "softmax"),
    ("LLaMA-Factory issue 1221", "llama-7b -b 1 -s 512 --dp 8 --recipe zero2",
     ("3.14 GiB", "31.75 GiB", "1.96 GiB", "28.28 GiB", "28.28 GiB"), "all parameters / dp x 4 bytes", None),
]


def reports_are_understood():
    for source, words, numbers, product, op in REPORTS:
        m = oom_of(oom_text(*numbers, old=source != "mistral-finetune issue 69"), *words.split())
        equal(m["product"], product, f"{source}: the size")
        equal(op is None or any(a["op"] == op for a in m["askers"]), True, f"{source}: {m['askers']}")
        if op == "swiglu":
            equal((m["fits"], m["refusal"]["requested"]), (False, 896 * MIB), f"{source}: refused at the same size")


def the_beginning_of_a_prediction_stands_for_a_shorter_run():
    """--first-step and --forward: the events until then, and the figures of those phases."""
    args = [*GPT, "--optimizer", "adamw"]
    path, steady = FOLDER / "whole.pickle", run("profile", *args, "--device", "meta", "--snapshot", FOLDER / "whole.pickle", "--json", "-")
    phases = {f["name"]: f for f in json.loads(steady.stdout)["phases"]}
    whole = compare(path, *args)["files"][0]["snapshot"]["predicted"]
    for word, last in ("--first-step", "step"), ("--forward", "forward"):
        s = compare(path, *args, word)["files"][0]["snapshot"]["predicted"]
        check(s["events"] < whole["events"], f"{word}: {s['events']} of {whole['events']} events")
        equal((s["end"]["requested"], s["end"]["reserved"]), (phases[last]["requested"], phases[last]["reserved"]), f"{word}: at the end")
        names = list(phases)[:list(phases).index(last) + 1]
        equal(s["peak"]["requested"], max(phases[n]["requested_peak"] for n in names), f"{word}: peak")
        f, = figures_of(f"max_memory_allocated: {max(phases[n]['peak'] for n in names)}", *args, word)
        equal(f["difference"], 0, f"{word}: a figure")
        equal(compare(path, *args, "--recipe", f"plain:until={word[2:]}")["files"][0]["snapshot"]["predicted"], s, f"{word} as a key")
    refused("forward", "compare", path, *args, "--recipe", "plain:until=backward")


def differences_of_trainer_sum_to_a_peak():
    """init and train_mem_gpu_*, in bytes as JSON has them or in whole MiB, rounded down, as the log has them."""
    n = 7_000_000, 500_000, 90_000_000
    names = "init_mem_gpu_alloc_delta", "train_mem_gpu_alloc_delta", "train_mem_gpu_peaked_delta"
    for text, low, high in ((json.dumps(dict(zip(names, n)), indent=1), sum(n), sum(n)), (str(dict(zip(names, n))), sum(n), sum(n)),
                            ("\n".join(f"  {k:27}= {v >> 20:6}MB" for k, v in zip(names, n)), sum(v >> 20 << 20 for v in n), sum((v >> 20 << 20) + MIB - 1 for v in n))):
        f, = figures_of(text)
        equal((f["kind"], f["low"], f["high"]), ("peak allocated", low, high), text)
        check(f["low"] <= sum(n) <= f["high"], f"{text}: it stands for {sum(n)}")
    refused(["init_mem_gpu_alloc_delta", "line 2"], "compare", written("x.log", "\ntrain_mem_gpu_alloc_delta: 5, train_mem_gpu_peaked_delta: 7"), *GPT, status=1)


def what_is_there_before_the_first_step_is_compared():
    p = json.loads(run("profile", *GPT, "--device", "meta", "--json", "-").stdout)
    init = p["phases"][0]
    weights, loaded = (init["by_category"]["parameter"] / GIB, init["reserved"] / GIB)
    vllm = "model weights take {:.6f}GiB; non_torch_memory takes 0.09GiB; PyTorch activation peak memory takes 1.26GiB; the rest of the memory reserved for KV Cache is 53.29GiB."
    for line in (f"Loading model weights took {weights:.6f} GB", f"Model loading took {weights:.6f} GiB and 3.2 seconds", vllm.format(weights)):
        f, = figures_of(line)
        equal((f["kind"], f["difference"]), ("weights", 0), line)
    found = compare(written("x.log", vllm.format(weights)), *GPT)["files"][0]
    check("`memtape serve` has them" in found["unclear"], f"what is a server's: {found['unclear']}")
    a, b = figures_of(f"GPU memory usage after model load: {weights:.6f}GB (+{loaded - weights:.6f}GB cache, +1.374GB misc)")
    equal((a["kind"], a["difference"], b["kind"]), ("weights", 0, "reserved after loading"), "axolotl's, after loading")
    check(abs(b["difference"]) < 2048, f"what is reserved: {b}")
    a, b = figures_of("[2023-11-02] GPU memory usage while training: 13.270GB (+56.066GB cache, +1.374GB misc)")
    for f, kind, gib in (a, "allocated", 13.27), (b, "reserved", 69.336):
        equal(f["kind"], kind, "axolotl's, while training")
        near(f, gib * GIB, f"{kind}, whose GB are GiB")


def figures_as_people_print_them():
    lines = {"Peak GPU memory allocated: 3.00 GiB": ("peak allocated", 3 * GIB), "Maximum memory allocated: 4521.3 (MB)": ("peak allocated", 4521.3e6),
             "peak memory allocated: 33277 MiB": ("peak allocated", 33277 * MIB), "peak memory reserved: 45000 MiB": ("peak reserved", 45000 * MIB),
             "Peak reserved memory = 7.535 GB.": ("peak reserved", 7.535e9), "Peak memory usage: 75422.02MiB": ("peak allocated", 75422.02 * MIB),
             "GPU memory allocated: 3 GiB": ("allocated", 3 * GIB),
             "peak memory: 5.2 / 23.6 GiB": ("peak allocated", 5.2 * GIB), "memory/peak_reserved_mem: 33.2": ("peak reserved", 33.2e9),
             "max_memory_allocated (MiB): 33277.5": ("peak allocated", 33277.5 * MIB)}
    for line, (kind, value) in lines.items():
        f, = figures_of(line)
        check(f["kind"] == kind and f["low"] <= value <= f["high"], f"{line}: {f}")
    shown = run("compare", written("x.log", "Maximum memory allocated: 4521.3 (MB)"), *GPT).stdout
    check("memory allocated 4521.3 MB " in shown, f"a unit in brackets, as it is shown: {shown}")
    speed = "MA 14.96 GB         Max_MA 28.1 GB         CA 29.03 GB         Max_CA 29 GB"
    equal([(f["kind"], f["low"] <= v * GIB <= f["high"]) for f, v in zip(figures_of(speed), (14.96, 28.1, 29.03, 29), strict=True)],
          [(k, True) for k in ("allocated", "peak allocated", "reserved", "peak reserved")], "DeepSpeed's")
    rows = "\n".join(f"| {name:21} | {now:>6} MiB | {most:>6} MiB |  10240 MiB |   5120 MiB |" for name, now, most in (
        ("Allocated memory", 5120, 6144), ("      from large pool", 5119, 6143), ("Active memory", 5121, 6145), ("Requested memory", 5110, 6134),
        ("GPU reserved memory", 8192, 8194), ("Non-releasable memory", 1, 2)))
    equal([(f["kind"], f["low"], f["high"]) for f in figures_of(rows)],
          [(k, n * MIB, (n + 1) * MIB - 1) for k, n in (("allocated", 5120), ("peak allocated", 6144), ("peak active", 6145), ("peak requested", 6134),
                                                        ("reserved", 8192), ("peak reserved", 8194))], "memory_summary()")
    for line in "reserved: 5 GiB", "GPU = Tesla T4. Max memory = 14.741 GB.":
        refused(["neither"], "compare", written("x.log", line), *GPT, status=1)
    refused(["line 2: max_memory_allocated 4521.3", "no unit"], "compare", written("x.log", "\nmax_memory_allocated: 4521.3"), *GPT, status=1)
    d = compare(written("x.log", "max_memory_allocated: 4521.3\nmax_memory_reserved: 5"), *GPT)["files"][0]
    equal((len(d["figures"]), "4521.3" in d["unclear"]), (1, True), "what is not understood is said")


def page_lists_the_keys():
    path = FOLDER / "own.pickle"
    run("profile", *GPT, "--device", "meta", "-q", "--snapshot", path)
    known = documented_keys("compare.md")
    found = compare(path, written("x.log", LOG), written("error.txt", oom_text("2.00 MiB", "1.00 GiB", "1.00 MiB", "2.00 MiB", "1.00 MiB")),
                    *GPT, "--checkpoint", "full")
    missing = sorted({key for key in paths(found) if not key.startswith("model.")} - known)
    equal(missing, [], "keys that compare.md lacks")
    low, high = re.search(r"42.08GiB for ([\d,]+) to ([\d,]+) bytes", " ".join(PAGE.read_text().split())).groups()
    f = found["files"][1]["figures"][0]
    equal((f["low"], f["high"]), (int(low.replace(",", "")), int(high.replace(",", ""))), "the page's interval")


def page_shows_what_is_printed():
    """Of each block with commands, what follows a command is in its output, in order."""
    (FOLDER / "run.log").write_text("max_memory_reserved: 2,399,141,888\n")
    (FOLDER / "error.txt").write_text(oom_text(*REPORTS[0][2]))
    blocks = re.findall(r"(?m)^    \$ memtape.*\n(?:^(?:    .*)?\n)*", PAGE.read_text())
    check(len(blocks) == 3, f"blocks of the page: {blocks}")
    for block in blocks:
        output = []
        for line in block.splitlines():
            if line.startswith("    $ "):
                p = run(*line.split()[2:], cwd=FOLDER)
                equal(p.returncode, 0, f"{line}: {p.stderr}")
                output = iter([" ".join(shown.split()) for shown in p.stdout.splitlines()])
            elif line.strip() not in ("", "..."):
                check(" ".join(line.split()) in output, f"the page's line: {line}")


for test in [own_snapshot_differs_in_nothing, a_report_stands_for_the_model, workspace_is_known, torch_snapshot_has_the_sums_of_its_viewer, layouts_of_other_versions_are_read, bad_files_are_refused,
             logs_are_read_as_written, differences_are_explained, oom_messages_of_every_form_are_read, oom_is_where_the_prediction_fails, reports_are_understood, the_beginning_of_a_prediction_stands_for_a_shorter_run,
             differences_of_trainer_sum_to_a_peak, what_is_there_before_the_first_step_is_compared, figures_as_people_print_them,
             page_lists_the_keys, page_shows_what_is_printed]:
    test()
done()
