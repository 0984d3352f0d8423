"""The memory snapshot of --snapshot, read by plain pickle and, where PyTorch is installed, by the functions of
torch.cuda._memory_viz: what it says was allocated, at the peak and reserved is what --json says, to the byte."""
import collections
import json
import os
import pickle
import pickletools
import sys
import tempfile
from pathlib import Path
sys.path.insert(0, str(Path(__file__).parent.parent / "verbs"))
from lib import check, done, equal, run  # noqa: E402

try:
    from torch.cuda import _memory_viz as viewer
except ImportError as error:
    viewer = None
    print(f"skipped: torch.cuda._memory_viz: {error}")

FOLDER = Path(tempfile.mkdtemp())
GPT = ["gpt", "-l", 3, "-d", 32, "-a", 2, "-b", 2, "-s", 16, "--vocab", 50]
RECLAIMED = ["--expandable-segments", "--recipe", "plain:granule=64KiB", "--recipe", "plain:reclaim"]
TEXT = FOLDER / "text"
TEXT.write_text("some text to learn from, again and again. " * 40)
# The opcodes that the viewer's own reader knows (MemoryViz.js).
KNOWN = {"PROTO", "EMPTY_DICT", "EMPTY_LIST", "MARK", "SETITEMS", "APPENDS", "BINUNICODE", "BINPUT", "LONG_BINPUT",
         "BINGET", "LONG_BINGET", "BININT", "BININT1", "BININT2", "LONG1", "BINFLOAT", "NEWTRUE", "NEWFALSE", "TUPLE2",
         "STOP"}


def write(*args, status=0):
    """The snapshot and the report of a profile."""
    path = FOLDER / "snapshot.pickle"
    p = run("profile", *args, "--timeline", "--snapshot", path, "--json", "-")
    equal(p.returncode, status, f"status of {args}: {p.stderr}")
    data = path.read_bytes()
    path.unlink()
    return pickle.loads(data), json.loads(p.stdout), data


def live(snapshot):
    return [b for s in snapshot["segments"] for b in s["blocks"] if b["state"] == "active_allocated"]


def mapped(segments, at, size):
    """Parts of expandable segments, {address: size}, with these addresses, too."""
    before = next((a for a, n in segments.items() if a + n == at), at)
    end = at + size + segments.pop(at + size, 0)
    segments[before] = end - before


def unmapped(segments, at, size, what):
    """And without them."""
    whole = next((a for a, n in segments.items() if a <= at and at + size <= a + n), None)
    if check(whole is not None, f"{what}: nothing was mapped at {at}"):
        end = whole + segments.pop(whole)
        segments |= {a: n for a, n in [(whole, at - whole), (at + size, end - at - size)] if n}


def replay(entries, what):
    """Live blocks and segments after the entries, and the highest of requested and reserved bytes."""
    blocks, segments, now, highest = {}, {}, collections.Counter(), collections.Counter()
    for e in entries:
        action = e["action"]
        if action == "alloc":
            check(e["addr"] not in blocks, f"{what}: two blocks at {e['addr']}")
            blocks[e["addr"]] = e
            now["requested"] += e["size"]
        elif action == "free_completed":
            size = blocks.pop(e["addr"])["size"]
            equal(e["size"], size, f"{what}: size of what is freed")
            now["requested"] -= size
        elif action == "segment_alloc":
            segments[e["addr"]] = e["size"]
            now["reserved"] += e["size"]
        elif action == "segment_free":
            now["reserved"] -= segments.pop(e["addr"])
        elif action == "segment_map":
            mapped(segments, e["addr"], e["size"])
            now["reserved"] += e["size"]
        elif action == "segment_unmap":
            unmapped(segments, e["addr"], e["size"], what)
            now["reserved"] -= e["size"]
        for name, n in now.items():
            highest[name] = max(highest[name], n)
    return blocks, segments, highest


def compare(args, status=0):
    what = " ".join(map(str, args))
    snapshot, report, data = write(*args, status=status)
    entries = snapshot["device_traces"][0]
    blocks, segments, highest = replay(entries, what)
    equal(len(snapshot["device_traces"]), 1, f"{what}: devices")
    equal({op.name for op, _, _ in pickletools.genops(data)} - KNOWN, set(), f"{what}: opcodes")

    events = collections.Counter(e["kind"] for e in report["timeline"])
    actions = collections.Counter(e["action"] for e in entries)
    for action, kind in [("alloc", "alloc"), ("free_requested", "free"), ("free_completed", "free"), ("oom", "oom")]:
        equal(actions[action], events[kind], f"{what}: entries {action}")
    last, whole = report["timeline"][-1], {e["storage"]: e["allocated"] for e in report["timeline"] if e["kind"] == "alloc"}
    for e in report["timeline"]:
        if e["kind"] == "free":
            del whole[e["storage"]]
    equal(sorted(b["size"] for b in live(snapshot)), sorted(whole.values()), f"{what}: whole blocks at the end")
    equal([sum(s["allocated_size"] for s in snapshot["segments"]), sum(s["active_size"] for s in snapshot["segments"]),
           sum(s["total_size"] for s in snapshot["segments"])], [last["current"], last["current"], last["reserved"]],
          f"{what}: allocated, active and reserved at the end")
    equal({s["address"]: s["total_size"] for s in snapshot["segments"]}, segments, f"{what}: segments")
    equal({b["address"]: (b["requested_size"], b["frames"]) for b in live(snapshot)},
          {a: (e["size"], e["frames"]) for a, e in blocks.items()}, f"{what}: blocks")
    for s in snapshot["segments"]:
        at = s["address"]
        for b in s["blocks"]:
            equal(b["address"], at, f"{what}: blocks follow each other")
            at += b["size"]
        equal(at, s["address"] + s["total_size"], f"{what}: blocks fill their segment")
        used = [b for b in s["blocks"] if b["state"] == "active_allocated"]
        equal([s["allocated_size"], s["requested_size"]], [sum(b["size"] for b in used), sum(b["requested_size"] for b in used)],
              f"{what}: sums of a segment")
        check(all(a["state"] != b["state"] or a["state"] != "inactive" for a, b in zip(s["blocks"], s["blocks"][1:])),
              f"{what}: free neighbours are one block")
        check(all(blocks[b["address"]]["stream"] == s["stream"] for b in used), f"{what}: a block is of its segment's stream")
    if not status:
        steady, phases = report["steady"], report["phases"]
        reserved = [sum(s["total_size"] for s in snapshot["segments"] if s["stream"] == i)
                    for i in range(1 + max(s["stream"] for s in snapshot["segments"]))]
        equal(reserved, [s["reserved"] for s in steady.get("streams", [{"reserved": reserved[0]}])], f"{what}: by stream")
        equal(highest["requested"], max(steady["requested"], *(p["requested_peak"] for p in phases)), f"{what}: requested")
        check("plain:reclaim" in args or sum(s["total_size"] for s in snapshot["segments"]) == highest["reserved"],
              f"{what}: nothing went back")
        equal(highest["reserved"], max(steady["reserved"], *(p["reserved"] for p in phases)), f"{what}: reserved")
    expands = "--expandable-segments" in args
    equal({s["is_expandable"] for s in snapshot["segments"]}, {expands}, f"{what}: is_expandable")
    equal(snapshot["allocator_settings"]["expandable_segments"], expands, f"{what}: the setting")
    check({s["segment_type"] for s in snapshot["segments"]} <= {"small", "large"} and
          all((s["segment_type"] == "small") == (s["total_size"] == 2 << 20) for s in snapshot["segments"] if not expands),
          f"{what}: types of segments")
    if viewer:
        look(snapshot, what)
    return snapshot, report


def look(snapshot, what):
    """Both summaries check their own sums, and raise an error where they differ."""
    text = viewer.segsum(snapshot)
    reserved, allocated = sum(s["total_size"] for s in snapshot["segments"]), sum(b["requested_size"] for b in live(snapshot))
    for name, n in [("total_reserved", reserved), ("total_allocated", allocated)]:
        check(f"{name}: {viewer.Bytes(n)}\n" in text, f"{what}: {name} of segsum")
    lines = viewer.trace(snapshot).splitlines()
    actions = collections.Counter(e["action"] for e in snapshot["device_traces"][0])
    equal(sum(" = cudaMalloc(" in line for line in lines), actions["segment_alloc"], f"{what}: segments of trace")
    equal(sum(line.startswith("del ") for line in lines), actions["free_requested"], f"{what}: frees of trace")
    for plot in [viewer.trace_plot, viewer.segment_plot]:
        check("add_local_files" in plot(snapshot), f"{what}: {plot.__name__}")
    flames = []
    viewer.memory(snapshot, format_flamegraph=flames.append)
    weights = [int(line.rsplit(" ", 1)[1]) for line in flames[0].splitlines() if "<gaps>" not in line]
    equal(sum(weights), allocated, f"{what}: bytes of the flame graph")


def totals_equal_those_of_json():
    for args in [["gpt2", "--device", "meta"], ["gpt2-medium", "--device", "meta", "--optimizer", "adamw", "--checkpoint", "full"],
                 [*GPT, "--optimizer", "adamw"], [*GPT, "--device", "cpu", "--offload", "cpu"],
                 [*GPT, "--device", "meta", "--dropout", 0.1, "--compress", "seed", "--amp", "bf16", "--optimizer", "adamw"],
                 [*GPT, "--device", "meta", "--tp", 2, "--pp", 3, "--dp", 2, "--zero", 3],
                 [*GPT, "--device", "meta", "--recipe", "plain:gemm-workspace=8519680", "--inference"],
                 ["llama", "-l", 2, "-d", 64, "-a", 4, "--device", "meta", "--lora-rank", 2, "--qlora", "--dtype", "bf16",
                  "--optimizer", "adamw"], ["llama-65b", "--device", "meta", "--dtype", "bf16"],
                 ["llama", "-l", 2, "--device", "meta", "--recipe", "fsdp2", "--dp", 2],
                 ["linear", "-b", 1, "-d", 16], [*GPT, "--device", "cpu", "--expandable-segments"],
                 ["gpt2", "--device", "meta", "--optimizer", "adamw", "--expandable-segments"],
                 [*GPT, "--optimizer", "adamw", "--expandable-segments", "--recipe", "plain:granule=16KiB"],
                 ["gpt2", "--device", "meta", "--optimizer", "adamw", *RECLAIMED]]:
        compare(args)
    _, report, _ = write("gpt2", "--device", "meta", "--optimizer", "adamw", *RECLAIMED)
    equal(report["expandable_segments"], {"small": 65536, "large": 65536, "reclaim": True}, "the options, in the report")
    check(report["steady"]["reserved"] < 1.001 * report["steady"]["peak"], f"reclaimed: {report['steady']}")


def refused_step_ends_in_an_oom():
    snapshot, report = compare(["gpt", "-l", 3, "-d", 64, "-a", 2, "-b", 8, "-s", 128, "--device", "meta", "--capacity", "13MB"],
                               status=1)
    entries = snapshot["device_traces"][0]
    at = max(i for i, e in enumerate(entries) if e["action"] == "oom")
    check("addr" not in entries[at], "an oom has no address")
    equal(entries[at]["size"], report["out_of_memory"]["requested"], "bytes asked for")
    _, segments, _ = replay(entries[:at], "up to the refusal")
    equal(entries[at]["device_free"], 13_000_000 - sum(segments.values()), "bytes that were left")
    snapshot, _ = compare(["gpt", "-l", 3, "-d", 64, "-a", 2, "-b", 8, "-s", 128, "--device", "meta", "--capacity", "16.6MB",
                           "--optimizer", "adamw", "--expandable-segments", "--recipe", "plain:granule=64KiB"], status=1)
    check(any(e["action"] == "segment_unmap" for e in snapshot["device_traces"][0]), "granules go back before the refusal")


def frames_name_op_and_modules():
    snapshot, _ = compare(["gpt2", "--device", "meta", "--optimizer", "adamw", "--dtype", "f32"])
    stacks = {tuple((f["filename"], f["name"]) for f in e["frames"]) for e in snapshot["device_traces"][0] if e["action"] == "alloc"}
    wanted = (("gpt.h.3.mlp.act", "gelu_tanh"), ("gpt.h.3.mlp.act", "act"), ("gpt.h.3.mlp", "mlp"), ("gpt.h.3", "3"),
              ("gpt.h", "h"), ("gpt", "gpt"), ("phase", "forward"))
    check(wanted in stacks, f"frames of an activation: {[s for s in stacks if s and s[0][0] == wanted[0][0]]}")
    blocks = {b["frames"][0]["filename"]: b["requested_size"] for b in live(snapshot) if b["frames"][-1]["name"] == "init"}
    equal(blocks["wte.weight"], 50257 * 768 * 4, "bytes of a parameter, by its name")


def devices_agree():
    """But for the time, and the scratch memory of the CPU's kernels, which meta counts if told so."""
    def plain(snapshot):
        return [{k: v for k, v in e.items() if k != "time_us"} for e in snapshot["device_traces"][0]], snapshot["segments"]
    for options in [[*RECLAIMED], ["--expandable-segments"], []]:
        cpu, _, _ = write(*GPT, "--optimizer", "adamw", "--device", "cpu", "--threads", 2, *options)
        meta, _, _ = write(*GPT, "--optimizer", "adamw", "--device", "meta", "--recipe", "plain:scratch=cpu", "--threads", 2, *options)
        check(plain(cpu) == plain(meta), f"cpu and meta write the same: {options}")
    equal([cpu["memtape"]["device"], meta["memtape"]["device"]], ["cpu", "meta"], "devices")
    times = [e["time_us"] for e in cpu["device_traces"][0]]
    check(times == sorted(times) and times[0] == 0 and times[-1] > 0, "times are measured, and in order")
    equal(meta["memtape"]["time"], "not measured: a microsecond for each event", "time of meta")


def simulated_gpu_writes_what_meta_does():
    """The CUDA backend on its simulator; scratch memory is its own."""
    if "MEMTAPE_CUDASIM_MODULE" not in os.environ:
        print("skipped: no CUDA simulator")
        return
    def of_model(snapshot):
        return [(e["size"], e["frames"]) for e in snapshot["device_traces"][0] if e["action"] == "alloc"
                and e["frames"][-1]["name"] == "init"]
    cuda, report = compare([*GPT, "--optimizer", "adamw", "--device", "cudasim"])
    meta, of_meta = compare([*GPT, "--optimizer", "adamw", "--device", "meta"])
    equal(of_model(cuda), of_model(meta), "what is made of the model, in order")
    check(of_model(cuda), "a model is made")
    equal(report["saved"]["bytes"], of_meta["saved"]["bytes"], "bytes that the tape keeps")


def training_writes_as_it_goes():
    path = FOLDER / "train.pickle"
    args = ["train", "--data", TEXT, "-l", 2, "-d", 16, "-a", 2, "-s", 16, "-b", 2, "-q"]
    sizes = []
    for steps in [2, 20]:
        p = run(*args, "--steps", steps, "--snapshot", path)
        equal(p.returncode, 0, f"status: {p.stderr}")
        snapshot = pickle.loads(path.read_bytes())
        blocks, segments, _ = replay(snapshot["device_traces"][0], "train")
        equal({b["address"]: b["requested_size"] for b in live(snapshot)}, {a: e["size"] for a, e in blocks.items()},
              "blocks of a run of training")
        equal({s["address"]: s["total_size"] for s in snapshot["segments"]}, segments, "its segments")
        if viewer:
            look(snapshot, "train")
        sizes.append(len(snapshot["device_traces"][0]))
    check(sizes[1] > 5 * sizes[0], f"entries of 2 and of 20 steps: {sizes}")
    p = run(*args, "--steps", 2, "--device", "meta", "--snapshot", path)
    equal(p.returncode, 0, f"status on meta: {p.stderr}")
    equal(pickle.loads(path.read_bytes())["memtape"]["device"], "meta", "device")


def full_disk_is_an_error_and_training_goes_on():
    if not os.path.exists("/dev/full"):
        print("skipped: /dev/full")
        return
    p = run("profile", *GPT, "--snapshot", "/dev/full")
    equal(p.returncode, 1, "status of a profile on a full disk")
    check("/dev/full: cannot write: No space left" in p.stderr, p.stderr)
    saved = FOLDER / "saved"
    p = run("train", "--data", TEXT, "-l", 2, "-d", 16, "-a", 2, "-s", 16, "-b", 2, "--steps", 30, "--save", saved,
            "--snapshot", "/dev/full")
    equal(p.returncode, 1, "status of a training on a full disk")
    check("/dev/full: cannot write: No space left" in p.stderr, p.stderr)
    check(saved.exists() and "held-out" in p.stdout, f"the run is saved and evaluated: {p.stdout}")
    p = run("profile", *GPT, "--snapshot", FOLDER / "no" / "s.pickle")
    equal(p.returncode, 1, "status where there is no folder")


for test in [totals_equal_those_of_json, refused_step_ends_in_an_oom, frames_name_op_and_modules, devices_agree, simulated_gpu_writes_what_meta_does,
             training_writes_as_it_goes, full_disk_is_an_error_and_training_goes_on]:
    test()
done()
