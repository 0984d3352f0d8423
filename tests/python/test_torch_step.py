"""memtape.torch.profile(model, batch, optimizer): each figure beside a count of another kind (counting.py), and what it leaves
behind. Exit status 77 if PyTorch is not installed."""
import functools
import re
import sys
import types
import warnings
from pathlib import Path
sys.path.append(str(Path(__file__).parent.parent / "program" / "verbs"))
from lib import check, done, equal  # noqa: E402

try:
    import torch
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)
import memtape.torch  # noqa: E402
from counting import of_report, step_by_hand  # noqa: E402
from memtape import _autocast, _kernels  # noqa: E402
from refusals import refused  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

SGD = functools.partial(torch.optim.SGD, foreach=False)


def mlp():
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 32))


def summed(model, x):
    return model(x).float().sum()


# ---- autocast ----

def of_names(name):
    """Whether it is an overload for dimensions that have names, which PyTorch 2.13 has no more."""
    return "dimname" in name.lower() or "names_" in name


def autocast_s_lists_are_those_of_cuda():
    ours = {name: i for i, (names, _) in enumerate(_autocast._POLICIES) for name in _autocast.of_this_version(names)}
    theirs = set()
    for schema in torch._C._jit_get_all_schemas():
        name = schema.name + (f".{schema.overload_name}" if schema.overload_name else "")
        try:
            if name.startswith("aten::") and torch._C._dispatch_has_kernel_for_dispatch_key(name, "AutocastCUDA"):
                theirs.add(name[len("aten::"):])
        except RuntimeError:  # not an operation of the dispatcher
            continue
    if torch.__version__.startswith("2.13."):
        equal(sorted(ours), sorted(name for names, _ in _autocast._POLICIES for name in names), "all of them, in the version of the lists")
    theirs = {name for name in theirs if not of_names(name)} - {"_cudnn_rnn"}  # which counts as its cells
    equal(sorted(ours), sorted(theirs), "operations that CUDA's autocast looks at")
    header = Path(torch.__file__).parent / "include" / "ATen" / "autocast_mode.h"
    if not header.exists():
        print("skipped: PyTorch was installed without ATen/autocast_mode.h")
        return
    text = header.read_text().replace("\\\n", " ")
    for macro, names in (("LOWER_PRECISION_FP", _autocast.LOWER), ("FP32", _autocast.F32), ("FP32_SET_OPT_DTYPE", _autocast.F32_BY_DTYPE),
                         ("PROMOTE", _autocast.WIDEST)):
        body = re.search(rf"#define AT_FORALL_{macro}\(_\)(.*)", text).group(1)
        listed = {re.sub(r",\s*", ".", name) for name in re.findall(r"_\(([\w, ]+)\)", body) if not of_names(name)}
        own = set(_autocast.of_this_version(names)) - {"cudnn_convolution", "cudnn_convolution_transpose"}
        equal(sorted(own), sorted(listed), f"the header's list {macro}")


def drawn(device, lower):
    return [torch.empty(shape, device=device, dtype=dtype) for shape, dtype in (
        ((8, 8), torch.float32), ((8, 8), lower), ((8,), torch.float32), ((1, 8, 8), torch.float32))]


def autocast_casts_as_cuda_s_own_does():
    """Beside PyTorch's kernels for CUDA's autocast, on tensors that pretend to lie there."""
    from torch._subclasses import FakeTensorMode
    calls = [lambda a, b, c, d: F.linear(a, b), lambda a, b, c, d: a @ b.float(), lambda a, b, c, d: a.exp(), lambda a, b, c, d: F.layer_norm(b, (8,)),
             lambda a, b, c, d: F.softmax(b, 1), lambda a, b, c, d: b.log_softmax(0), lambda a, b, c, d: b.sum(), lambda a, b, c, d: b.norm(),
             lambda a, b, c, d: b.norm(2, 1), lambda a, b, c, d: F.mse_loss(a.to(b.dtype), b), lambda a, b, c, d: torch.addcmul(a, a, b), lambda a, b, c, d: b.cumsum(0),
             lambda a, b, c, d: F.gelu(b), lambda a, b, c, d: a + b, lambda a, b, c, d: b.mean(), lambda a, b, c, d: F.scaled_dot_product_attention(a, a, a),
             lambda a, b, c, d: b.pow(2), lambda a, b, c, d: a.double() @ a.double(), lambda a, b, c, d: torch.einsum("ij,jk->ik", a, b),
             lambda a, b, c, d: F.rms_norm(b, (8,)), lambda a, b, c, d: torch.cat((a, b)), lambda a, b, c, d: b.prod(), lambda a, b, c, d: F.prelu(a, c),
             lambda a, b, c, d: F.smooth_l1_loss(a, b), lambda a, b, c, d: b.softmax(0, dtype=torch.float64), lambda a, b, c, d: torch.bilinear(a, b, d, None)]
    for lower in (torch.bfloat16, torch.float16):
        theirs, ours = [], []
        with FakeTensorMode(), torch.no_grad():
            given = drawn("cuda", lower)
            torch.set_autocast_enabled("cuda", True)
            torch.set_autocast_dtype("cuda", lower)
            try:
                theirs = [call(*given).dtype for call in calls]
            finally:
                torch.set_autocast_enabled("cuda", False)
        given = drawn("meta", lower)
        with _autocast.as_on_cuda(), torch.autocast("cuda", lower):
            ours = [call(*given).dtype for call in calls]
        equal(ours, theirs, f"dtypes of results, {lower}")
        with _autocast.as_on_cuda(), torch.autocast("cuda", lower):
            refused("binary_cross_entropy", "unsafe to autocast", lambda: F.binary_cross_entropy(given[0], given[0]), RuntimeError)


class Inside(nn.Module):
    """A model that enters autocast by itself."""

    def __init__(self, device):
        super().__init__()
        self.net, self.device = mlp(), device

    def forward(self, x):
        with torch.autocast(self.device or x.device.type, torch.bfloat16):
            return self.net(x).float().sum()


def in_autocast(device, model, x):
    with torch.autocast(device, torch.bfloat16):
        return model(x).float().sum()


def wrapped():
    """As Accelerate prepares a model."""
    model = mlp()
    inner = torch.autocast("cpu", torch.bfloat16)(type(model).forward)
    model.forward = types.MethodType(inner, model)
    return model


def autocast_counts_wherever_it_is_entered():
    x = torch.randn(16, 32)
    for make in (functools.partial(SGD, lr=0.1), functools.partial(torch.optim.AdamW, foreach=True)):
        model = mlp()
        wanted = step_by_hand(model, x, make(model.parameters()), functools.partial(in_autocast, "cpu"))
        found = {}
        for device in ("cuda", "cpu", None):
            model = Inside(device)
            found[f"in forward, {device}"] = memtape.torch.profile(model, x, make(model.parameters()))
        for device in ("cuda", "cpu"):
            model = mlp()
            found[f"in the loss, {device}"] = memtape.torch.profile(model, x, make(model.parameters()), loss=functools.partial(in_autocast, device))
        model = wrapped()
        found["Accelerate's"] = memtape.torch.profile(model, x, make(model.parameters()), loss=summed)
        model = mlp()
        found["asked for"] = memtape.torch.profile(model, x, make(model.parameters()), loss=summed, autocast=torch.bfloat16)
        by_hand = wrapped()  # its region ends before the sum
        accelerated = step_by_hand(by_hand, x, make(by_hand.parameters()), summed)
        for what, report in found.items():
            saved, phases = of_report(report)
            equal(saved, wanted[0], f"saved, autocast {what}")
            equal(phases, (accelerated if what == "Accelerate's" else wanted)[1], f"the six figures, autocast {what}")
    plain = memtape.torch.profile(model, x, make(model.parameters()), loss=summed)
    check(plain["saved"]["bytes"] > wanted[0], "without autocast it keeps more")
    equal([torch.is_autocast_enabled(device) for device in ("cuda", "cpu")], [False, False], "nothing is left entered")
    check(torch.is_autocast_enabled.__name__ == "is_autocast_enabled" and not _autocast._places, "nothing is left replaced")


def a_region_that_pytorch_has_disabled_is_named():
    """A decorator for "cuda" that is made without a GPU; not one for "cpu", nor what forward makes and disables itself."""
    def quiet(device, **options):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            return torch.autocast(device, torch.bfloat16, **options)

    def disabled_within(model, x):
        with torch.autocast("cuda", enabled=False):
            return summed(model, x)

    found = {}
    for what, of_module, loss in (("a module's", quiet("cuda"), summed), ("a loss's", None, quiet("cuda")(summed)), ("cpu", quiet("cpu"), summed),
                                  ("within", None, disabled_within)):
        model = mlp()
        if of_module is not None:
            model[0].forward = of_module(model[0].forward)
        report = memtape.torch.profile(model, torch.randn(16, 32), SGD(model.parameters(), lr=0.1), loss=loss)
        found[what] = [note.partition(" enters")[0] for note in report.notes]
        check(all("before the profile" in note for note in report.notes), f"{what}: {report.notes}")
    equal(found, {"a module's": [] if torch.cuda.is_available() else ["Sequential.0"], "a loss's": [] if torch.cuda.is_available() else ["the loss"],
                  "cpu": [], "within": []}, "who enters a region that is disabled")
    check(not hasattr(torch.autocast.__enter__, "__wrapped__") and not _autocast._places, "nothing is left replaced")


def weights_are_cast_once_in_a_region():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(32, 32, bias=False)

        def forward(self, x):
            return self.fc(self.fc(x)).sum()
    x, w = 4 * 16 * 32, 4 * 32 * 32
    model = Twice()
    given = torch.randn(16, 32, requires_grad=True)
    report = memtape.torch.profile(model, given, SGD(model.parameters(), lr=0.1), autocast=torch.bfloat16)
    equal(report["saved"]["bytes"], x // 2 * 2 + w // 2, "two inputs and one copy of the weight, in bf16")

    def without_cache(model, x):
        with torch.autocast("cuda", torch.bfloat16, cache_enabled=False):
            return model(x)
    report = memtape.torch.profile(model, given, SGD(model.parameters(), lr=0.1), loss=without_cache)
    equal(report["saved"]["bytes"], x // 2 * 2 + w, "two copies without the cache")


# ---- what a step refers to ----

def a_loss_that_closes_over_the_model_runs_the_same():
    model, x = mlp(), torch.randn(16, 32)
    for make in (torch.optim.AdamW, functools.partial(SGD, lr=0.1)):
        given = memtape.torch.profile(model, x, make(model.parameters()), loss=summed)
        closed = memtape.torch.profile(model, x, make(model.parameters()), loss=lambda _, batch: model(batch).float().sum())
        taken = memtape.torch.profile(model, {}, make(model.parameters()), loss=lambda _, batch: model(x).float().sum())
        equal(of_report(closed), of_report(given), "a loss that closes over the model")
        equal([f["peak"] for f in taken["steady"]["phases"]], [f["peak"] for f in given["steady"]["phases"]], "and over the batch")


mT = nn.Linear(32, 32)  # with which y.mT has nothing to do


def an_attribute_is_not_a_global_of_its_name():
    model, x = mlp(), torch.randn(16, 32)
    transposed, plain = (memtape.torch.profile(model, x, SGD(model.parameters(), lr=0.1), loss=loss)
                         for loss in (lambda model, x: model(x).mT.sum(), lambda model, x: model(x).transpose(0, 1).sum()))
    equal(of_report(transposed), of_report(plain), "a step whose loss says .mT")


class Note:
    __slots__ = ("said",)

    def __init__(self, said):
        self.said = said

    def __call__(self, what):
        self.said.append(what)


def everything_is_as_it_was():
    class Remembering(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc, self.norm, self.table = nn.Linear(32, 32), nn.BatchNorm1d(32), torch.arange(32.0)
            self.calls, self.outputs, self.last = 0, [], None

        def forward(self, x):
            self.calls += 1
            self.last = self.norm(self.fc(x * self.table))
            self.outputs.append(self.last)
            return self.last.sum()
    model, x = Remembering(), torch.randn(16, 32, requires_grad=True)
    optimizer = torch.optim.AdamW(model.parameters())
    model(x).backward()
    optimizer.step()
    model.outputs.clear()
    seen = []  # a plain list of a closure would be as it was, too
    note = Note(seen)
    model.fc.weight.register_hook(lambda grad: note(grad.device.type))
    handle = model.fc.bias.register_post_accumulate_grad_hook(lambda p: note(p.grad.device.type))

    def state():
        tensors = [*model.parameters(), *model.buffers(), x, model.table, *(p.grad for p in model.parameters()),
                   *(t for s in optimizer.state.values() for t in s.values())]
        return [(t.device.type, t.data_ptr(), t.clone()) for t in tensors], model.calls, model.last, list(model.outputs), \
            [sorted(g) for g in optimizer.param_groups], [g["foreach"] for g in optimizer.param_groups], torch.get_rng_state()
    before = state()
    ids = [id(p) for p in model.parameters()]
    memtape.torch.profile(model, x, optimizer)
    after = state()
    check(all(a[:2] == b[:2] and torch.equal(a[2], b[2]) for a, b in zip(before[0], after[0])), "the same bits in the same places")
    equal(before[1:6], after[1:6], "attributes and settings")
    check(torch.equal(before[6], after[6]), "random numbers")
    equal(ids, [id(p) for p in model.parameters()], "the same parameters")
    equal(sorted(set(seen)), ["meta"], "hooks ran on meta")
    seen.clear()
    model(x).backward()
    equal(sorted(seen), ["cpu", "cpu"], "and run as before")
    handle.remove()
    seen.clear()
    model(x).backward()
    equal(seen, ["cpu"], "until they are taken off")

    class Failing(nn.Linear):
        def forward(self, x):
            self.tried = True
            raise ValueError("no")
    lazy = nn.LazyLinear(2)
    refused("a lazy module", "run the model once", lambda: memtape.torch.profile(lazy, x, SGD(lazy.parameters(), lr=1)))
    failing = Failing(2, 2)
    refused("the model's own error", "no", lambda: memtape.torch.profile(failing, x, SGD(failing.parameters(), lr=1)), ValueError)
    equal((failing.weight.device.type, hasattr(failing, "tried")), ("cpu", False), "after an error")


def optimizers_in_backward_are_counted():
    """Each parameter's own, in a hook: its gradient is gone before the next one's is made."""
    def hooked(model):
        optimizers = {p: SGD([p], lr=0.1, momentum=0.9) for p in model.parameters()}

        def step(p):
            optimizers[p].step()
            optimizers[p].zero_grad()
        for p in model.parameters():
            p.register_post_accumulate_grad_hook(step)
        return optimizers
    x = torch.randn(16, 32)
    by_hand, counted = mlp(), mlp()
    hooked(by_hand)
    optimizers = hooked(counted)
    outer = SGD(by_hand.parameters(), lr=0.1)
    wanted = step_by_hand(by_hand, x, outer, summed)
    report = memtape.torch.profile(counted, x, SGD(counted.parameters(), lr=0.1), loss=summed)
    equal(of_report(report), wanted, "optimizers in backward")
    states = sum(-(-4 * p.numel() // 512) * 512 for p in counted.parameters())
    equal(report["steady"]["phases"][2]["by_category"]["optimizer"], states, "their momenta")
    equal(report["steady"]["phases"][1]["by_category"]["gradient"], 0, "gradients after backward")
    check(all(not o.state for o in optimizers.values()), "their states are not touched")


def a_teacher_and_a_criterion_are_parameters():
    student, teacher, x = mlp(), nn.Linear(32, 32), torch.randn(16, 32)
    criterion = nn.CrossEntropyLoss(weight=torch.rand(32))
    labels = torch.randint(32, (16,))

    def distill(model, batch):
        with torch.no_grad():
            wanted = teacher(batch)
        out = model(batch)
        return (out - wanted).pow(2).mean() + criterion(out, labels)
    report = memtape.torch.profile(student, x, SGD(student.parameters(), lr=0.1), loss=distill)
    at_init = report["phases"][0]
    both = 4 * sum(p.numel() for m in (student, teacher) for p in m.parameters()) + 4 * 32
    equal(at_init["requested"], both + 4 * 16 * 32, "parameters of both, the criterion's weights and the batch")
    equal(at_init["by_category"]["activation"], 0, "none is an activation")
    equal(report["phases"][1]["by_category"]["parameter"], at_init["by_category"]["parameter"] + 512, "and labels that the loss has by itself")
    equal([t["shape"] for t in report.tensors() if t["shape"] == [32]], [], "the weights are not saved activations")
    equal((teacher.weight.device.type, criterion.weight.device.type, labels.device.type), ("cpu",) * 3, "they are back")


def an_average_after_the_step_is_counted():
    """A hook of the optimizer, as one keeps an average of weights."""
    model, x = nn.Linear(32, 32), torch.randn(4, 32)
    averaged = torch.optim.swa_utils.AveragedModel(model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9))
    plain, hooked = (SGD(model.parameters(), lr=0.1) for _ in range(2))
    hooked.register_step_post_hook(lambda *_: averaged.update_parameters(model))
    reports = [memtape.torch.profile(model, x, o, loss=lambda model, x: model(x).sum()) for o in (plain, hooked)]
    before, after = (report["phases"][0]["by_category"]["parameter"] for report in reports)
    equal(after - before, before + 512, "the average's weights, and how many it is of")
    equal((int(averaged.n_averaged), averaged.module.weight.device.type), (0, "cpu"), "the user's own is as it was")


def what_a_loss_could_use_but_does_not_is_not_counted():
    model, x, dataset = mlp(), torch.randn(16, 32), [torch.randn(1000, 32) for _ in range(3)]

    def loss(model, x):
        return (model(x) + (dataset[0][:16] if x is None else 0)).sum()
    report = memtape.torch.profile(model, x, SGD(model.parameters(), lr=0.1), loss=loss)
    equal(of_report(report), of_report(memtape.torch.profile(model, x, SGD(model.parameters(), lr=0.1), loss=lambda m, x: (m(x) + 0).sum())),
          "a data set at which it only may look")
    equal([t.device.type for t in dataset], ["cpu"] * 3, "which is as it was")


def accelerate_s_objects_are_counted():
    try:
        from accelerate import Accelerator
    except ImportError as error:
        print(f"skipped: {error}")
        return
    x, plain = torch.randn(16, 32), mlp()
    wanted = memtape.torch.profile(plain, x, torch.optim.AdamW(plain.parameters()), loss=summed, autocast=torch.bfloat16)
    model = mlp()
    model, optimizer = Accelerator(mixed_precision="bf16", cpu=True).prepare(model, torch.optim.AdamW(model.parameters()))
    report = memtape.torch.profile(model, x, optimizer, loss=summed)
    equal((report["saved"]["bytes"], of_report(report)[1][1:]), (wanted["saved"]["bytes"], of_report(wanted)[1][1:]), "saved, backward and step")
    equal(report["model"]["optimizer"], "AdamW", "the optimizer within")


def a_batch_that_holds_a_tensor_twice_counts_once():
    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = nn.Linear(32, 32)

        def forward(self, a, b):
            return self.fc(a + b).sum()
    model, x = Two(), torch.randn(16, 32)
    for batch, n in (({"a": x, "b": x}, 1), ((x, x[:]), 1), ({"a": x, "b": x.clone()}, 2), ((x[:8], x[8:]), 1)):
        report = memtape.torch.profile(model, batch, SGD(model.parameters(), lr=0.1))
        equal(report["phases"][0]["by_category"]["input"], n * 4 * 16 * 32, f"a batch in {n} storages")


def compiled_parts_are_named():
    model, x = mlp(), torch.randn(16, 32)
    plain = memtape.torch.profile(model, x, SGD(model.parameters(), lr=0.1), loss=summed)
    inner = mlp()
    inner[0].compile()
    for compiled in (torch.compile(mlp()), inner):
        report = memtape.torch.profile(compiled, x, SGD(compiled.parameters(), lr=0.1), loss=summed)
        equal(of_report(report), of_report(plain), "as eager")
        check("as eager" in str(report) and "as eager" in report.title, f"says so: {report.title}")
    report = memtape.torch.profile(model, x, SGD(model.parameters(), lr=0.1), loss=torch.compile(summed))
    equal(of_report(report), of_report(plain), "a compiled loss, as eager")
    check("as eager" in str(report) and "as eager" not in str(plain), "says so, and only then")


def what_every_step_leaves_is_said():
    class Hoarding(nn.Module):
        def __init__(self, most):
            super().__init__()
            self.fc, self.kept, self.most = nn.Linear(32, 32), [], most

        def forward(self, x):
            y = self.fc(x)
            self.kept = [*self.kept, y.detach()][-self.most:]
            return y.sum()
    x = torch.randn(16, 32)
    for most, grows in ((100, True), (1, False), (2, False)):
        model = Hoarding(most)
        report = memtape.torch.profile(model, x, torch.optim.AdamW(model.parameters()))
        said = [note for note in report.notes if "2,048 bytes more" in note and "Hoarding.fc addmm" in note]
        equal(len(report.notes), len(said), f"nothing else: {report.notes}")
        equal(len(said), int(grows), f"a module that keeps the last {most}")
        equal(said[0] in str(report) if said else False, grows, "printed")


def cudnn_s_reserve_is_named_as_unknown():
    class Recurrent(nn.Module):
        def __init__(self):
            super().__init__()
            self.lstm = nn.LSTM(8, 8)

        def forward(self, x):
            return self.lstm(x)[0].sum()
    model = Recurrent()
    report = memtape.torch.profile(model, torch.randn(5, 2, 8), SGD(model.parameters(), lr=0.1))
    kept = sum(t["bytes"] for t in report.tensors() if t["module"] == "Recurrent.lstm")
    said = f"Recurrent.lstm (LSTM) counts as its cells, which keep {kept:,} bytes"
    check(said in str(report) and kept > 0 and "unknown without a GPU. A guess: 1,600 bytes" in str(report), f"an LSTM: {report.notes}")
    plain = nn.RNN(8, 8)
    report = memtape.torch.profile(plain, torch.randn(5, 2, 8), SGD(plain.parameters(), lr=0.1), loss=lambda model, x: model(x)[0].sum())
    check("RNN (RNN) counts as its cells" in str(report) and "guess" not in str(report), "no size of an RNN is known")
    lstm, gru = (memtape._step._kernels.reserve_numbers(kind, 4) for kind in ("LSTM", "GRU"))
    equal(lstm * 864_000_000, gru * 736_000_000, "two sizes that cuDNN asked for, of four layers: their ratio")


def an_rms_norm_is_cuda_s():
    for dtype, weight in ((torch.float32, True), (torch.bfloat16, True), (torch.bfloat16, False)):
        e, rows = dtype.itemsize, 4 * 16
        model = nn.Sequential(nn.Linear(32, 32, bias=False), nn.RMSNorm(32, elementwise_affine=weight)).to(dtype)
        report = memtape.torch.profile(model, torch.randn(16, 32, dtype=dtype), SGD(model.parameters(), lr=0.1), loss=lambda model, x: model(x).sum())
        equal([(t["bytes"], t["op"], t["name"]) for t in report.tensors()],
              [(16 * 32 * e, "mm", "self"), (16 * 32 * e, "fused_rms_norm", "input"), (rows, "fused_rms_norm", "result1")], f"{dtype}, weight {weight}")
        x, w, n = 16 * 32 * e, 32 * 32 * e, 32 * e * weight
        equal(report["steady"]["phases"][0]["requested"], x + w + n + x + rows + e, "the end of forward")
        # The norm's output gradient is expanded; its input's and its weight's are there with what is saved.
        equal(report["steady"]["phases"][1]["requested_peak"] >= x + w + n + x + rows + x, True, "backward")
    mixed = nn.Sequential(nn.Linear(32, 32).bfloat16(), nn.RMSNorm(32))
    report = memtape.torch.profile(mixed, torch.randn(16, 32).bfloat16(), SGD(mixed.parameters(), lr=0.1), loss=lambda model, x: model(x).sum())
    check("fused_rms_norm" not in [t["op"] for t in report.tensors()], "several operations where the weight has another dtype")


def microbatches_and_clipping_are_counted():
    x = torch.randn(16, 32)

    def by_hand(model, batch, n, clip):
        def loss(model, x):
            for _ in range(n - 1):
                (model(x).float().sum() / n).backward()
            return model(x).float().sum() / n
        optimizer = SGD(model.parameters(), lr=0.1)
        step = optimizer.step

        def clipped():
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
            step()
        if clip:
            optimizer.step = clipped
        return step_by_hand(model, batch, optimizer, loss)[1]
    for n, clip in ((1, None), (1, 1.0), (3, None), (2, 1.0)):
        model = mlp()
        report = memtape.torch.profile(model, x, SGD(model.parameters(), lr=0.1), loss=summed, accumulate=n, clip=clip)
        wanted = by_hand(mlp(), x, n, clip)
        found = [(p["requested_peak"], p["requested"]) for p in report["steady"]["phases"]]
        equal(len(found), 2 * n + 1, "phases")
        equal(found[-3:] if n == 1 else [found[-2], found[-1]], wanted if n == 1 else wanted[1:], f"{n} microbatches, clip {clip}")


# ---- on meta ----

def what_is_made_quickly_is_what_pytorch_makes():
    """Of arguments of many kinds: the same tensor, or none, and then PyTorch is asked."""
    aten, made, left = torch.ops.aten, set(), set()
    x, y, z, bias, scalar, empty = (torch.empty(shape, device="meta") for shape in ((4, 6), (6, 5), (2, 4, 6), (5,), (), (0, 3)))
    wide, half, whole = x.t().contiguous().t(), x.half(), torch.empty(4, 6, dtype=torch.long, device="meta")
    calls = [(aten.mm.default, (a, b), {}) for a in (x, y, wide, half, z) for b in (y, x, bias)]
    calls += [(aten.addmm.default, (b, x, y), {}) for b in (bias, scalar, bias[:1], bias[:3], bias.half())]
    calls += [(aten.sum.dim_IntList, (t, *more), kwargs) for t in (x, wide, z, half, whole, scalar, empty)
              for more in (([0],), ([-1], True), ([0, 1],), ([1, 0], True), ([],), (None,), ([5],), ([0, 0],), ([0, -2],))
              for kwargs in ({}, {"dtype": torch.float64})]
    calls += [(aten.zeros_like.default, (t,), kwargs) for t in (x, wide, z, half, whole, scalar, empty, nn.Parameter(x))
              for kwargs in ({}, {"memory_format": torch.preserve_format, "pin_memory": False}, {"dtype": torch.float64}, {"device": "cpu"})]
    calls += [(aten.mul.Tensor, (a, b), {}) for a in (x, wide, half, scalar) for b in (x, half, scalar, 2.0)]
    for func, args, kwargs in calls:
        try:
            wanted = func(*args, **kwargs)
        except (RuntimeError, IndexError, ValueError):
            wanted = None
        found = _kernels.quickly(func, args, kwargs)
        (left if found is None else made).add(func)
        if found is not None:
            looks = [(t.shape, t.stride(), t.dtype, t.device) for t in (found, wanted) if t is not None]
            equal(looks[0], looks[-1] if wanted is not None else None, f"{func} of {[getattr(a, 'shape', a) for a in args]}, {kwargs}")
    equal(made, left, "functions that are known, and asked of what is not")
    equal(made, {aten.mm.default, aten.addmm.default, aten.sum.dim_IntList, aten.zeros_like.default, aten.mul.Tensor}, "functions")


for test in [autocast_s_lists_are_those_of_cuda, autocast_casts_as_cuda_s_own_does, autocast_counts_wherever_it_is_entered,
             a_region_that_pytorch_has_disabled_is_named, weights_are_cast_once_in_a_region, a_loss_that_closes_over_the_model_runs_the_same,
             an_attribute_is_not_a_global_of_its_name, everything_is_as_it_was,
             optimizers_in_backward_are_counted, a_teacher_and_a_criterion_are_parameters, a_batch_that_holds_a_tensor_twice_counts_once,
             an_average_after_the_step_is_counted, what_a_loss_could_use_but_does_not_is_not_counted, accelerate_s_objects_are_counted, what_every_step_leaves_is_said, cudnn_s_reserve_is_named_as_unknown, an_rms_norm_is_cuda_s, compiled_parts_are_named, microbatches_and_clipping_are_counted,
             what_is_made_quickly_is_what_pytorch_makes]:
    test()
done()
