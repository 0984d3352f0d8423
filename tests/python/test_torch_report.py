"""What one does with a step's report: reading it, advice, differences, a bound, a baseline under pytest. Exit status 77 if PyTorch is
not installed."""
import json
import pickle
import sys
import tempfile
from pathlib import Path
sys.path.append(str(Path(__file__).parent.parent / "program" / "verbs"))
from lib import check, done, equal  # noqa: E402

try:
    import torch
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)
import memtape.torch  # noqa: E402
sys.path.append(str(Path(__file__).parent.parent / "parity"))
from at_once import forked  # noqa: E402
from counting import Allocator  # noqa: E402
from refusals import refused  # noqa: E402
from torch import nn  # noqa: E402

WIDTH = 64


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.act, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        return x + self.down(self.act(self.up(x)))


class Tower(nn.Module):
    def __init__(self, layers):
        super().__init__()
        self.layers = nn.ModuleList([Block() for _ in range(layers)])

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x.square().mean()


def given(layers=12, rows=512, make=torch.optim.AdamW):
    model = Tower(layers)
    return model, torch.randn(rows, WIDTH), make(model.parameters())


def a_print_is_short_and_says_what_holds_the_peak():
    report = memtape.torch.profile(*given())
    lines = str(report).splitlines()
    text, details = "\n".join(lines), report.details()
    equal(len(lines), 20, "lines")
    for said in (f"({report['steady']['peak']:,} bytes)", "What holds it", "Tower.layers.*.act", "(12 storages)", "all else", "print(report.details())"):
        check(said in text, f"{said!r} in {text}")
    check(text.index("What holds it") < text.index("Saved for backward"), "the peak first")
    check("layers.3" not in text.replace("reached in", ""), "alike layers are folded")
    check(lines[-2] == f"{details[details.index('Saved for'):].splitlines()[0].partition(', alike')[0]} in {report['saved']['storages']} storages",
          f"what is saved, in a line: {lines[-2]}")
    check(lines[:7] == details.splitlines()[:7] and len(details.splitlines()) > 20 and "alike layers together" in details, f"more: {details}")
    short = memtape.torch.profile(*given(1)).details()
    check("Tower.layers.0.act" in short, "a single layer is shown by its name in what is saved")


def no_print_is_longer():
    """Whatever else there is to say above the tables."""
    report = memtape.torch.profile(*given(), timeline=True)
    values, notes = report.to_dict(), [f"what one must know, {i}" for i in range(5)]
    values["model"]["attention"] = "flash"
    values["steady"]["streams"] = [{"name": "default", "reserved": 1 << 20}]
    crowded = memtape.Report(values, report.title, notes=notes)
    equal(len(str(crowded).splitlines()), 20, f"{crowded}")
    check("4 more notes" in str(crowded) and all(note in crowded.details() for note in notes), "the notes")
    forward = memtape.torch.profile(Tower(9), torch.randn(4, WIDTH))
    for shown, notes in ((forward, []), (memtape.Report(forward.to_dict(), forward.title, notes=notes), notes)):
        check(len(str(shown).splitlines()) <= 20 and "all, each once" in str(shown), f"a forward: {shown}")
    check("Tower.layers.3.act" in str(memtape.torch.profile(Tower(4), torch.randn(4, WIDTH))), "what fits is not folded")


def advice_is_measured():
    model, x, optimizer = given()
    before = [p.clone() for p in model.parameters()]
    advices = memtape.torch.advise(model, x, optimizer)
    text = str(advices)
    for said in ("checkpoint layers.0 to layers.11", "AdamW(fused=True)", "AdamW(foreach=False)", "bf16", "two microbatches"):
        check(said in text, f"{said!r} in {text}")
    peak = advices.before["steady"]["peak"]
    for one in advices:
        equal(one.less, peak - one.report["steady"]["peak"], one.text)
    equal([one.less for one in advices], sorted((one.less for one in advices), reverse=True), "most first")
    by_text = {one.text.split()[0]: one for one in advices}

    class Checkpointed(Tower):
        def forward(self, x):
            for layer in self.layers:
                x = torch.utils.checkpoint.checkpoint(layer, x, use_reentrant=False)
            return x.square().mean()
    by_hand = Checkpointed(12)
    report = memtape.torch.profile(by_hand, x, torch.optim.AdamW(by_hand.parameters()))
    equal(by_text["checkpoint"].report["steady"]["peak"], report["steady"]["peak"], "checkpoints, as one writes them")
    fused = memtape.torch.profile(model, x, torch.optim.AdamW(model.parameters(), fused=True))
    equal(by_text["AdamW(fused=True)"].report["steady"]["peak"], fused["steady"]["peak"], "a fused optimizer")
    product = 2 * 512 * WIDTH * 4 * WIDTH  # each layer's two; backward has two of each, less the gradient of the batch
    equal(advices.before["flops"], {"forward": 24 * product, "backward": 47 * product, "recompute": 0}, "multiply-adds")
    # A checkpoint stops once it has what backward asks for: it leaves the last product out.
    equal(by_text["checkpoint"].report["flops"], {"forward": 24 * product, "backward": 47 * product, "recompute": 12 * product}, "of checkpoints")
    equal((by_text["checkpoint"].more, by_text["AdamW(fused=True)"].more, by_text["two"].more), (12 / 71, 0, 0), "shares of them")
    check("+16.9 %  checkpoint" in text and "arithmetic, not measured" in text, f"said so: {text}")
    check(all(map(torch.equal, before, model.parameters())) and all("forward" not in vars(layer) for layer in model.layers), "nothing is changed")
    equal([(g["fused"], g["foreach"]) for g in optimizer.param_groups], [(None, None)], "nor is the optimizer")
    odd = memtape.torch.advise(model, torch.randn(3, WIDTH), optimizer, autocast=torch.bfloat16)
    check("microbatches" not in str(odd) and "torch.autocast" not in str(odd), "what does not apply is not said")


def a_loss_in_chunks_is_advised():
    """Where Transformers makes the logits; beside the same written out."""
    try:
        import transformers
    except ImportError as error:
        print(f"skipped: {error}")
        return
    config = transformers.LlamaConfig(hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=64, vocab_size=4096,
                                      max_position_embeddings=64, use_cache=False, attn_implementation="eager")
    model, ids = transformers.LlamaForCausalLM(config), torch.randint(4096, (2, 32))
    optimizer = torch.optim.AdamW(model.parameters())
    advices = memtape.torch.advise(model, {"input_ids": ids, "labels": ids}, optimizer)
    found = [one for one in advices if "head and loss in 8 chunks" in one.text]
    equal(len(found), 1, f"{advices}")

    def by_hand(model, batch):
        hidden = model.model(input_ids=batch["input_ids"], use_cache=False).last_hidden_state.flatten(0, 1)
        labels = nn.functional.pad(batch["labels"], (0, 1), value=-100)[..., 1:].flatten()

        def part(h, y):
            return nn.functional.cross_entropy(model.lm_head(h).float(), y, reduction="sum")
        parts = [torch.utils.checkpoint.checkpoint(part, h, y, use_reentrant=False) for h, y in zip(hidden.chunk(8), labels.chunk(8))]
        return torch.stack(parts).sum() / (labels != -100).sum()
    report = memtape.torch.profile(model, {"input_ids": ids, "labels": ids}, optimizer, loss=by_hand)
    equal(found[0].report["steady"]["peak"], report["steady"]["peak"], "the peak")
    head = 2 * 64 * 32 * 4096
    equal((found[0].less > 3 * 4 * 64 * 4096 // 4, found[0].report["flops"]["recompute"]), (True, head), "what it saves, and the head once more")
    check("forward" not in vars(model.lm_head) and "_loss_function" not in vars(model), "nothing is changed")


def reports_are_subtracted():
    small, large = memtape.torch.profile(*given(2)), memtape.torch.profile(*given(3))
    added = large - small
    equal(added["peak"], large["steady"]["peak"] - small["steady"]["peak"], "the peak")
    equal(added["saved"], large["saved"]["bytes"] - small["saved"]["bytes"], "what is saved")
    equal(sum(n for name, n in added.items() if name.startswith("peak.")), added["peak"], "the categories sum up to it")
    check(f"{added['peak']:+,}" in str(added) and "difference" in str(added), f"{added}")
    check(added["peak.communication"] == 0 and "communication" not in str(added), f"a category that neither has is 0, and not a row: {added}")
    model = Tower(2)
    forward = memtape.torch.profile(model, torch.randn(512, WIDTH))
    equal(dict(forward - forward), {"saved": 0}, "reports of a forward alone")
    refused("a number", "unsupported operand", lambda: large - 1, TypeError)


def a_peak_may_have_a_bound():
    report = memtape.torch.profile(*given(2))
    peak = report["steady"]["peak"]
    equal(memtape.torch.assert_peak_below(peak + 1, report), report, "the report comes back")
    equal(memtape.torch.assert_peak_below("1GiB", *given(2))["steady"]["peak"], peak, "of a step")
    refused("the peak itself", "0 over", lambda: memtape.torch.assert_peak_below(peak, report), AssertionError)
    refused("too much", "What holds it", lambda: memtape.torch.assert_peak_below("1 KB", report), AssertionError)
    for text, n in (("8GiB", 8 << 30), ("1.5 kb", 1500), ("512", 512), ("2MiB", 2 << 20), ("3g", 3 * 10**9)):
        equal(memtape._text.parsed(text), n, text)
    refused("no size", "is not a size", lambda: memtape.torch.assert_peak_below("8 apples", report), ValueError)
    refused("no step", "not of a step", lambda: memtape.torch.assert_peak_below("1GiB", Tower(1), torch.randn(1, WIDTH)), TypeError)


def most_of(snapshot):
    """The most bytes that were allocated at once, by the events of a snapshot."""
    now = most = 0
    for event in snapshot["device_traces"][0]:
        now += {"alloc": event["size"], "free_requested": -event["size"]}.get(event["action"], 0)
        most = max(most, now)
    return most


def a_step_is_written_as_pytorch_s_snapshot():
    report = memtape.torch.profile(*given(2), timeline=True)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "step.pickle"
        equal(report.write_snapshot(path), False, "without a capacity memory does not run out")
        whole = pickle.loads(path.read_bytes())
        equal(most_of(whole), max(p["requested_peak"] for p in (*report["phases"], *report["steady"]["phases"])), "the peak, by its events")
        reserved = report["steady"]["reserved"]
        equal(sum(s["total_size"] for s in whole["segments"]), reserved, "segments")
        equal(report.write_snapshot(path, capacity=reserved), False, "as much as it reserves")
        equal(report.write_snapshot(path, capacity=reserved - 1), True, "a byte less")
        failed = pickle.loads(path.read_bytes())
        events = failed["device_traces"][0]
        equal([e["action"] for e in events].index("oom"), len(events) - 1, "it ends with what was refused")
        check(sum(s["total_size"] for s in failed["segments"]) < reserved, "and within the capacity")
        frames = [frame["name"] for frame in events[-1]["frames"]]
        check(frames and frames[0], f"which says who asked: {frames}")
        refused("no events", "lists no events of a training step", lambda: memtape.torch.profile(*given(2)).write_snapshot(path))
        refused("no size", "is not a size", lambda: report.write_snapshot(path, capacity="much"), ValueError)
        refused("no such folder", "/no/such", lambda: report.write_snapshot("/no/such/folder/step.pickle"))


def a_loop_is_watched():
    class Loop:
        def __init__(self, microbatches=1):
            torch.manual_seed(0)
            self.model, self.n = Tower(3), microbatches
            self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9, foreach=False)

        def step(self, rows):
            x = torch.ones(rows, WIDTH)
            for _ in range(self.n):
                loss = self.model(x)
                if self.n > 1:
                    loss = loss / self.n
                loss.backward()
                del loss
            self.optimizer.step()
            self.optimizer.zero_grad()
    for n in (1, 2):
        plain, watched = Loop(n), Loop(n)
        for rows in (64, 64, 32, 64):
            plain.step(rows)
        with memtape.torch.watch(watched.model, watched.optimizer) as w:
            for rows in (64, 64, 32, 64):
                watched.step(rows)
        check(all(map(torch.equal, plain.model.parameters(), watched.model.parameters())), "the same bits")
        equal([s.number for s in w.steps], [1, 2, 3, 4], "steps")
        equal([s.predicted - s.measured for s in w.steps], [0] * 4, f"predicted and measured, {n} forwards a step")
        equal(len({id(s.report) for s in w.steps}), 2, "a profile for each shape")
        check(w.steps[0].measured < w.steps[1].measured, "the first step has no momenta yet")
        check(f"{w.steps[1].measured:,}" in str(w) and "predicted" in str(w), f"{w}")
    model, x, optimizer = given(2)
    with memtape.torch.watch(model, optimizer) as w:
        pass
    equal(w.steps, [], "no step")
    refused("a second entry", "entered once", w.__enter__)
    refused("no optimizer", "need a torch.nn.Module", lambda: memtape.torch.watch(model, x), TypeError)
    try:
        with memtape.torch.watch(model, optimizer) as w:
            raise KeyError("mine")
    except KeyError:
        equal(len(model._forward_pre_hooks), 0, "hooks are taken off after an error")


def a_loop_that_runs_out_of_memory():
    """As on CUDA, whose allocator is played here: it tells the observer, and the error comes after."""
    model, x, optimizer = given(2)
    told, recorded = [], []
    plays = [(torch.cuda, "max_memory_allocated", lambda device=None: 4096), (torch.cuda, "reset_peak_memory_stats", lambda device=None: None),
             (torch.cuda.memory, "_record_memory_history", lambda *a, **how: recorded.append(how.get("enabled", "all"))),
             (torch.cuda.memory, "_snapshot", lambda: {"segments": [], "device_traces": [[len(told)]]}),
             (torch._C, "_cuda_attach_out_of_memory_observer", told.append), (torch._C, "_cuda_isHistoryEnabled", lambda: False),
             (memtape._watch, "_device_of", lambda model: torch.device("cuda"))]
    own = [(owner, name, getattr(owner, name, None)) for owner, name, _ in plays]

    def step():
        model(x).backward()
        optimizer.step()
        optimizer.zero_grad()
    try:
        for owner, name, play in plays:
            setattr(owner, name, play)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "oom.pickle"
            for _ in range(2):
                try:
                    with memtape.torch.watch(model, optimizer, snapshot=path) as w:
                        step()
                        told[0](0, 1 << 20, 0, 0)  # a request that someone does without
                        step()
                        model(x)
                        told[0](0, 3 << 20, 0, 0)
                        raise torch.cuda.OutOfMemoryError("CUDA out of memory")
                except torch.cuda.OutOfMemoryError:
                    told.append("the error went on")
                equal((len(w.steps), w.failed.number, w.failed.measured), (2, 3, 4096), "the step that failed")
                equal(w.failed.predicted, w.steps[1].predicted, "its prediction")
                check("3,145,728 bytes more were asked for" in str(w) and "oom.pickle" in str(w), f"{w}")
                equal(pickle.loads(path.read_bytes())["device_traces"], [[len(told) - 1]], "the snapshot of the last request")
                report = json.loads(path.with_suffix(".json").read_text())
                equal((len(report["timeline"]) > 0, report["steady"]["peak"]), (True, w.failed.predicted), "the report for memtape compare")
                path.unlink()
        equal(len(told), 3, "one observer, and two errors")
        equal(recorded, ["all", None] * 2, "recorded in the loops only")
        with memtape.torch.watch(model, optimizer, snapshot=None) as w:
            step()
        equal(recorded, ["all", None] * 2, "not recorded where no snapshot is wanted")
    finally:
        for owner, name, function in own:
            if function is None:
                delattr(owner, name)
            else:
                setattr(owner, name, function)


def in_parallel(model, view):
    """Wraps a model, and says what that left allocated: the median of five tries, as gloo's thread may give back the parameters that
    it broadcast only in the try after."""
    left = []
    for _ in range(5):
        wrapped = None  # the one before gives its buckets back before the count begins
        with Allocator() as made:
            wrapped = nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=view, bucket_cap_mb=1)
        left.append(made.left)
    return wrapped, sorted(left)[2]


def a_data_parallel_model_has_its_buckets():
    """Beside what PyTorch's allocator says of a group of one process."""
    import torch.distributed as dist
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    try:
        found, wanted = {}, {}
        for view in (None, False, True):
            torch.manual_seed(0)
            model, x = Tower(3), torch.randn(4, WIDTH)
            if view is not None:
                model, left = in_parallel(model, view)
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1, foreach=False)
            report = memtape.torch.profile(model, x, optimizer)
            for _ in range(2):
                with Allocator() as step:
                    loss = model(x)
                    loss.backward()
                    del loss
                    optimizer.step()
                    optimizer.zero_grad()
            wanted[view] = step.peak
            found[view] = report["steady"]["requested"] - report["phases"][-1]["requested"]
            if view is False:
                n = 4 * sum(p.numel() for p in model.parameters())
                flags = 4 * len(list(model.parameters()))  # of parameters that were used
                equal(report["phases"][0]["by_category"]["communication"], sum(-(-size // 512) * 512 for size in (n, flags)),
                      "one bucket, which has room for all gradients")
                check(abs(left - n) < 1024, f"the allocator says {left}, with some bytes of gloo's own thread")
        for view in (False, True):  # gloo's own thread takes and frees some bytes of the host's
            more, by_allocator = found[view] - found[None], wanted[view] - wanted[None]
            check(abs(more - by_allocator) < 64, f"the step beside a plain one's, view {view}: {more} bytes, the allocator says {by_allocator}")
        check(found[True] < found[False], "gradients in the buckets take nothing beside")
    finally:
        dist.destroy_process_group()


TEST = """
import torch
from torch import nn

def test_a_model(memtape_baseline):
    model = nn.Sequential(nn.Linear(8, WIDTH), nn.Linear(WIDTH, 8))
    memtape_baseline(model, torch.randn(4, 8), torch.optim.AdamW(model.parameters()), loss=lambda model, x: model(x).sum())
"""


def pytest_in(folder, width, *options):
    import pytest
    (folder / "test_model.py").write_text(TEST.replace("WIDTH", str(width)))
    status, text, errors = forked(lambda: int(pytest.main(["-q", "-p", "memtape.pytest_plugin", "-p", "no:cacheprovider", *options])), folder)
    return status, text + errors


def a_baseline_is_a_regression_test():
    try:
        import pytest  # noqa: F401
    except ImportError as error:
        print(f"skipped: {error}")
        return
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        status, text = pytest_in(folder, 16)
        check(status == 1 and "run pytest --memtape-update" in text, f"no baseline: {text[-500:]}")
        status, text = pytest_in(folder, 16, "--memtape-update")
        equal(status, 0, f"an update: {text[-500:]}")
        steps = json.loads((folder / "memtape.json").read_text())
        equal((steps["schema"], list(steps["steps"])), ("memtape.baseline/1", ["test_model.py::test_a_model"]), "the file")
        from memtape.pytest_plugin import Baseline
        for width in (16, 8):  # as much, or less
            model = nn.Sequential(nn.Linear(8, width), nn.Linear(width, 8))
            baseline = Baseline(folder / "memtape.json", "test_model.py::test_a_model", False)
            report = baseline(model, torch.randn(4, 8), torch.optim.AdamW(model.parameters()), loss=lambda model, x: model(x).sum())
        refused("a second step without a name", "give each step", lambda: baseline(report))
        status, text = pytest_in(folder, 400)
        check(status == 1 and "bytes more than memtape.json says" in text and "peak.parameter" in text, f"more: {text[-1500:]}")
        (folder / "memtape.json").write_text("[1]")
        refused("another file", "not a baseline of memtape", lambda: Baseline(folder / "memtape.json", "a", False)(report))
        (folder / "memtape.json").write_text("{")
        refused("no JSON", "not JSON", lambda: Baseline(folder / "memtape.json", "a", False)(report))


# The first one forks, which is for before PyTorch has threads.
for test in [a_baseline_is_a_regression_test, a_print_is_short_and_says_what_holds_the_peak, no_print_is_longer, advice_is_measured, a_loss_in_chunks_is_advised, reports_are_subtracted,
             a_peak_may_have_a_bound, a_step_is_written_as_pytorch_s_snapshot, a_loop_is_watched, a_loop_that_runs_out_of_memory, a_data_parallel_model_has_its_buckets]:
    test()
done()
