"""The events of two training steps, replayed by an allocator that knows PyTorch's rules and nothing of ours
(c10/cuda/CUDACachingAllocator.cpp): after each event the bytes requested, allocated (memory_allocated: whole blocks), active
and reserved must be equal, and so must their peaks in every phase. A stream has pools of its own. Without MTT_LONG=1 most deep models
have eight layers."""
import os
import sys
from pathlib import Path
sys.path.insert(0, str(Path(__file__).parents[2] / "program" / "verbs"))
from caching import FIGURES, Allocator  # noqa: E402
from lib import check, done, equal, profile  # noqa: E402


def replay(events, expandable, what):
    """The figures after each event; and what of `allocated` is rests."""
    allocator, blocks, after, rests = Allocator(expandable), {}, [], 0
    for i, e in enumerate(events):
        if e["kind"] == "alloc":
            b = blocks[e["storage"]] = allocator.alloc(e["bytes"], e.get("stream", "default"))
            equal(e["allocated"], b.size, f"{what}: the block of event {i}")
        elif e["kind"] == "free":
            allocator.release(blocks.pop(e["storage"]))
        now = allocator.now
        if not equal([e["current"], e["reserved"]], [now["allocated"], now["reserved"]], f"{what}: allocated, reserved at event {i}"):
            break
        after.append({**now, "by_stream": dict(allocator.reserved)})
        rests = max(rests, now["allocated"] - now["requested"])
    return after, rests


def figures_of(phase):
    return {"requested": (phase["requested"], phase["requested_peak"]), "allocated": (phase["allocated"], phase["peak"]),
            "active": (phase["active"], phase["active_peak"]), "reserved": (phase["reserved"], phase["reserved_peak"])}


def compare_phases(p, after, what):
    """Each phase begins with what the one before it left."""
    events, steady, before = p["timeline"], p["steady"]["event"], dict.fromkeys(FIGURES, 0)
    for first, end, phases in [(0, steady, p["phases"]), (steady, len(events), p["steady"]["phases"])]:
        for phase in phases:
            own = [after[i] for i in range(first, end) if events[i]["phase"] == phase["name"]] or [before]
            wanted = {f: (own[-1][f], max(before[f], *(a[f] for a in own))) for f in FIGURES}
            equal(figures_of(phase), wanted, f"{what}: {phase['name']}")
            before = own[-1]
            equal(phase["allocated"], sum(phase["by_category"].values()), f"{what}: categories after {phase['name']}")
            equal(phase["peak"], sum(phase["at_peak"].values()), f"{what}: categories at the peak of {phase['name']}")
    s, second = p["steady"], [figures_of(phase) for phase in p["steady"]["phases"]]
    equal({"requested": s["requested"], "allocated": s["peak"], "active": s["active"], "reserved": s["reserved"]},
          {f: max(phase[f][1] for phase in second) for f in FIGURES}, f"{what}: the steady step")


def compare_streams(p, after, what):
    """At the event of the steady step with the most reserved and, of those, the most allocated."""
    steady = after[p["steady"]["event"]:]
    most = max(steady, key=lambda a: (a["reserved"], a["allocated"]))
    streams = p["steady"].get("streams", [])
    equal({s["name"]: s["reserved"] for s in streams}, most["by_stream"] if len(most["by_stream"]) > 1 else {}, f"{what}: streams")
    for s in streams:
        equal(s["free"], s["reserved"] - s["allocated"], f"{what}: what is free of {s['name']}")
    equal(sum(s["allocated"] for s in streams), most["allocated"] * bool(streams), f"{what}: allocated by streams")
    return len(streams) > 1


def compare_growth(p, what):
    g = p["growth"]
    equal(g["measured"], g["saved"] - g["before"] + sum(g[k] for k in ("rounding", "rests", "output", "input", "workspace",
                                                                       "gathered")), f"{what}: the growth")
    equal(g["measured"], p["phases"][1]["allocated"] - p["phases"][0]["allocated"], f"{what}: what it is")


def holders(p):
    """Who held most at the peak. Storages of one size in every layer are one row, although their blocks may differ in rests."""
    return p["peak"]["event"], sorted(str({**h, "allocated": None}) for h in p["peak"]["largest"] if h["storages"] > 1)


RUNS = [["gpt2", "-b", 4, "-s", 1024, "--optimizer", "adafactor"], ["gpt2-xl", "-b", 4, "-s", 1024, "--optimizer", "adafactor"],
        ["gpt2-medium", "--optimizer", "adamw", "--checkpoint", "full"],
        ["gpt2", "-b", 8, "-s", 512, "--optimizer", "adamw", "--amp", "bf16", "--dropout", 0.1, "--attention", "math"],
        ["llama-7b", "-b", 1, "-s", 777, "--dtype", "bf16", "--optimizer", "adafactor", "--recipe", "plain:step-in-backward"],
        ["llama-7b", "-b", 2, "-s", 500, "--dtype", "bf16", "--lora-rank", 8, "--qlora", "--optimizer", "adamw"],
        ["gpt2-large", "--tp", 2, "--pp", 2, "--microbatches", 4, "--dp", 2, "--zero", 2, "--optimizer", "adamw"],
        ["mlp", "-b", 3, "-s", 1000, "-d", 1000, "--act", "relu", "--optimizer", "sgd-momentum"]]
FSDP2 = ["--recipe", "fsdp2", "--dp"]
STREAMS = [["gpt2", *FSDP2, 2], ["gpt2-medium", "-b", 4, *FSDP2, 4, "--checkpoint", "full"], ["gpt2-xl", "-b", 1, "-s", 333, *FSDP2, 8],
           ["llama-7b", "-b", 1, "-s", 512, *FSDP2, 8, "--checkpoint", "ops"], ["llama-3.1-8b", "-b", 1, "-s", 1024, *FSDP2, 128],
           ["llama-3.1-8b", "-b", 2, "-s", 500, *FSDP2, 2, "--loss", "lse"], ["gpt2", "-b", 2, *FSDP2, 3, "--tp", 2],
           ["gpt2", "-b", 4, *FSDP2, 2, "--microbatches", 2], ["gpt2-large", *FSDP2, 5, "--offload", "cpu"],
           ["gpt2", "-b", 8, "-s", 512, *FSDP2, 2, "--dropout", 0.1],
           ["gpt2", *FSDP2, 8, "--recipe", "plain:fsdp=ahead+keep-root+f32-shards", "--recipe", "plain:replicas=2", "--recipe", "plain:reshard=2"],
           ["llama-7b", "-l", 4, "-b", 1, "-s", 256, *FSDP2, 4, "--recipe", "plain:fsdp=torchtitan-grouped+reduce-last", "--microbatches", 2, "--recipe", "plain:rs-buffers=2"]]
FEW = [] if os.environ.get("MTT_LONG") == "1" else ["-l", 8]
with_rests = with_streams = 0
for run in RUNS + STREAMS:
    run = [*run, *(FEW if run[0] not in ("gpt2", "gpt2-large", "mlp") and "-l" not in run else [])]
    held = []
    for expandable in (False, True):
        what = " ".join(map(str, [*run, *["--expandable-segments"] * expandable]))
        p = profile(*run, "--device", "meta", "--timeline", *["--expandable-segments"] * expandable)
        after, rests = replay(p["timeline"], expandable, what)
        if len(after) == len(p["timeline"]):
            compare_phases(p, after, what)
            with_streams += compare_streams(p, after, what)
        compare_growth(p, what)
        check(not expandable or rests < 512 * len(after), f"{what}: all rests are split off")
        held.append(holders(p))
        with_rests += not expandable and p["growth"]["rests"] > 0
        print(f"{what}: {len(after)} events, peak {p['steady']['peak']} of whole blocks, {p['steady']['requested']} requested")
    check(held[0] == held[1] or held[0][0] != held[1][0], f"{what}: who held most, with rests and without: {held}")
check(with_rests >= 3, f"{with_rests} runs have rests that were not split off after forward")
equal(with_streams, 2 * len(STREAMS), "runs with several streams")
done()
