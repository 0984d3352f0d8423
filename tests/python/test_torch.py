"""memtape.torch on models that memtape does not have: equal to counts by hand, storage by storage; and it changes and
keeps nothing. Exit status 77 if PyTorch is not installed."""
import contextlib
import gc
import sys
import tempfile
import weakref
from pathlib import Path
sys.path.append(str(Path(__file__).parent.parent / "program" / "verbs"))
from lib import check, documented_keys, done, equal, paths  # noqa: E402

try:
    import torch
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)
import memtape.torch  # noqa: E402
from refusals import refused  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402


def saved(report):
    return [(t["bytes"], t["module"], f"{t['op']} {t['name']}", t["role"]) for t in report.tensors()]


def also(report):
    return [f"{s['op']} {s['name']}" for t in report.tensors() for s in t["also"]]


# ---- counts by hand ----

def convolutions():
    return nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(512, 10))


def convolutions_are_counted_as_by_hand():
    model = convolutions()
    with memtape.torch.Ledger(model) as ledger:
        loss = F.cross_entropy(model(torch.randn(2, 3, 16, 16)), torch.tensor([1, 2]))
    report = ledger.report(loss)
    equal(saved(report), [
        (2 * 3 * 16 * 16 * 4, "Sequential.0", "convolution input", "input"),
        (2 * 8 * 16 * 16 * 4, "Sequential.1", "relu result", "output"),  # and what the pool reads
        (2 * 8 * 8 * 8 * 8, "Sequential.2", "max_pool2d_with_indices result1", "aux"),  # an i64 for each output
        (2 * 512 * 4, "Sequential.4", "addmm mat1", "input"),  # a view of the pool's output
        (2 * 10 * 4, "", "log_softmax result", "output"),
        (2 * 8, "", "nll_loss target", "input"),
        (4, "", "nll_loss total_weight", "aux")], "a convolutional net")
    equal(also(report), ["max_pool2d_with_indices self", "nll_loss self"], "who else keeps them")
    equal(report["saved"]["bytes"], 6144 + 16384 + 8192 + 4096 + 80 + 16 + 4, "saved bytes")
    equal(report["saved"]["storages"], 7, "storages")
    equal(report["params"], {"count": 8 * 27 + 8 + 5120 + 10, "bytes": 4 * (8 * 27 + 8 + 5120 + 10)}, "parameters")


class Recurrence(nn.Module):
    """h_t = a_t h_(t-1) + x_t with a = sigmoid(gate(x)): Mamba's scan with a state of one, step by step."""

    def __init__(self, d):
        super().__init__()
        self.gate, self.out = nn.Linear(d, d), nn.Linear(d, d, bias=False)

    def forward(self, x):
        a, h, states = torch.sigmoid(self.gate(x)), torch.zeros_like(x[:, 0]), []
        for t in range(x.shape[1]):
            h = a[:, t] * h + x[:, t]
            states.append(h)
        return self.out(torch.stack(states, 1) * F.silu(x))


def recurrence_is_counted_as_by_hand():
    b, s, d = 2, 5, 6
    whole, step = b * s * d * 4, b * d * 4
    for dtype in (torch.float32, torch.bfloat16):
        e = dtype.itemsize
        report = memtape.torch.profile(Recurrence(d).to(dtype), torch.randn(b, s, d, dtype=dtype))
        # gate's input; a, once, for sigmoid and all products; s - 1 states (the first h is 0 and wants no gradient, so
        # its product keeps h alone: one more); silu(x) for the gradient of the states, and the input of out.
        equal(report["saved"]["bytes"], (whole + whole + s * step + whole + whole) * e // 4, f"a recurrence, {dtype}")
        equal(report["saved"]["storages"], 4 + s, "storages")
        sharers = [x for x in also(report) if x == "mul self"]
        equal(len(sharers), s - 1, "products that keep a")


class Attending(nn.Module):
    """One of T5's self-attentions: no scale, and a bias by relative position that is learned."""

    def __init__(self, d, heads, s):
        super().__init__()
        self.heads, self.qkv, self.out = heads, nn.Linear(d, 3 * d, bias=False), nn.Linear(d, d, bias=False)
        self.bias = nn.Embedding(2 * s - 1, heads)
        self.register_buffer("far", torch.arange(s)[:, None] - torch.arange(s)[None] + s - 1)

    def forward(self, x):
        q, k, v = (t.unflatten(2, (self.heads, -1)).transpose(1, 2) for t in self.qkv(x).chunk(3, 2))
        weights = (q @ k.transpose(2, 3) + self.bias(self.far).permute(2, 0, 1)).softmax(-1)
        return self.out((weights @ v).transpose(1, 2).flatten(2))


def attention_is_counted_as_by_hand():
    b, s, d, a = 2, 7, 12, 3
    report = memtape.torch.profile(Attending(d, a, s), torch.randn(b, s, d))
    x, weights = b * s * d * 4, b * a * s * s * 4
    # x; q, k and v as dense copies, which the batched products make and keep; the weights, once, for softmax and
    # product; the heads, merged by a copy, for the last product. The table's indices are a buffer, which is not counted.
    equal(report["saved"]["bytes"], x + 3 * x + weights + x, "an attention with relative positions")
    equal(report["saved"]["storages"], 6, "storages")
    check("embedding indices" not in [row[2] for row in saved(report)], "buffers are not counted")


# ---- rules ----

class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(4, 4, bias=False)
        self.second = nn.Linear(4, 4, bias=False)
        self.second.weight = self.first.weight

    def forward(self, x):
        h = self.first(x).exp()
        return self.second(h) + h[:, :2].exp().sum() + h.t()[1].tanh().sum()


def storages_are_counted_once_and_whole():
    report = memtape.torch.profile(Tied(), torch.randn(3, 4, requires_grad=True))
    equal(saved(report), [(48, "Tied.first", "mm self", "input"), (48, "Tied", "exp result", "output"),
                          (24, "Tied", "exp result", "output"), (12, "Tied", "tanh result", "output")], "storages")
    equal(also(report), ["mm self"], "exp's result is the second product's input")
    equal(report["params"], {"count": 16, "bytes": 64}, "a tied parameter once")
    a = torch.randn(8, requires_grad=True)
    report = memtape.torch.profile(nn.Softmax(0), a.expand(3, 8)[1, 2:5] * a[:1])
    equal([row[0] for row in saved(report)], [12], "softmax of a slice keeps its own result")

    class Half(nn.Module):
        def forward(self, x):
            return x[:, ::2] * torch.ones(3, 2, requires_grad=True)
    report = memtape.torch.profile(Half(), torch.randn(3, 4, requires_grad=True))
    equal([row[0] for row in saved(report)], [24, 48], "a saved view costs its whole storage")


def a_graph_that_is_gone_is_not_counted():
    class Forgetting(nn.Module):
        def forward(self, x):
            torch.exp(x).sum()
            with torch.no_grad():
                torch.sigmoid(x)
            return x.tanh()
    x = torch.randn(10, requires_grad=True)
    report = memtape.torch.profile(Forgetting(), x)
    equal(saved(report), [(40, "Forgetting", "tanh result", "output")], "what is kept")

    class Hoarding(nn.Module):
        def forward(self, x):
            self.other = torch.exp(x).sum()
            return x.tanh()
    model = Hoarding()
    report = memtape.torch.profile(model, x)
    equal(saved(report), [(40, "Hoarding", "unknown unknown", "aux"), (40, "Hoarding", "tanh result", "output")],
          "a graph that the output does not come from")
    with memtape.torch.Ledger(model) as ledger:
        y = model(x)
    equal(saved(ledger.report({"y": [y]}, model.other))[0], (40, "Hoarding", "exp result", "output"), "all outputs given")


class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        y = x * x
        ctx.save_for_backward(x, y)
        return y

    @staticmethod
    def backward(ctx, dy):
        x, _ = ctx.saved_tensors
        return 2 * x * dy


class Custom(nn.Module):
    def forward(self, x):
        return Square.apply(x).exp()


def functions_of_the_user_are_named():
    report = memtape.torch.profile(Custom(), torch.randn(5, requires_grad=True))
    equal(saved(report), [(20, "Custom", "square tensors[0]", "aux"), (20, "Custom", "square tensors[1]", "aux"),
                          (20, "Custom", "exp result", "output")], "a Function")


class Layers(nn.Module):
    def __init__(self, recompute, reentrant):
        super().__init__()
        self.layers = nn.ModuleList([nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 4)) for _ in range(3)])
        self.recompute, self.reentrant, self.calls = recompute, reentrant, 0

    def forward(self, x):
        for layer in self.layers:
            self.calls += 1
            x = checkpoint(layer, x, use_reentrant=self.reentrant) if self.recompute else layer(x)
        return x


def checkpoints_keep_their_inputs():
    x = torch.randn(2, 4, requires_grad=True)
    for reentrant, op in [(False, "checkpoint input"), (True, "checkpoint_function tensors[0]")]:
        model = Layers(True, reentrant)
        with memtape.torch.Ledger(model) as ledger:
            loss = model(x).sum()
        report = ledger.report(loss)
        equal([row[::2] for row in saved(report)], [(32, op)] * 3, f"checkpoints, reentrant {reentrant}")
        loss.backward()  # nothing has been unpacked twice
        check(x.grad is not None and model.layers[0][0].weight.grad is not None, "gradients through checkpoints")
    plain = memtape.torch.profile(Layers(False, False), x)
    equal(plain["saved"]["bytes"], 3 * (32 + 128), "without: each layer's input and tanh's result")


# ---- it changes and keeps nothing ----

def values_and_gradients_are_the_same():
    torch.manual_seed(3)
    model, x = Recurrence(6), torch.randn(2, 5, 6, requires_grad=True)

    def gradients(counted):
        ledger = memtape.torch.Ledger(model)
        if counted:
            with ledger:
                y = model(x)
            ledger.report(y)
        else:
            y = model(x)
        first, = torch.autograd.grad(y.sum(), x, create_graph=True)
        return [y, first, *torch.autograd.grad(first.pow(2).sum(), [x, model.gate.weight])]
    for a, b in zip(gradients(False), gradients(True)):
        check(torch.equal(a, b), "values, gradients and second gradients are the same bits")


def hooks_are_taken_off():
    model, x = convolutions(), torch.randn(1, 3, 16, 16)
    before = [(len(m._forward_hooks), len(m._forward_pre_hooks)) for m in model.modules()]
    memtape.torch.profile(model, x)
    try:
        memtape.torch.profile(model, torch.randn(1, 4, 16, 16))
        check(False, "a bad input is refused")
    except RuntimeError as error:
        check("channels" in str(error), f"PyTorch's own error: {error}")
    equal([(len(m._forward_hooks), len(m._forward_pre_hooks)) for m in model.modules()], before, "hooks of the modules")
    y = model(x)
    packed = [value for _, value in memtape._ledger._raw_saves(y.grad_fn)]
    check(packed and not any(isinstance(value, memtape._ledger._Packed) for value in packed), "hooks on saved tensors")


def nothing_is_kept_alive():
    for model, shape in [(convolutions(), (2, 3, 16, 16)), (Custom(), (7,)), (Layers(True, False), (2, 4)),
                         (Layers(True, True), (2, 4))]:
        x = torch.randn(shape, requires_grad=True)
        with memtape.torch.Ledger(model) as ledger:
            y = model(x)
        report = ledger.report(y)
        alive = [weakref.ref(save.packed()) for save in ledger._saves]
        gc.disable()  # no cycle may hold them
        del y
        equal([ref for ref in alive if ref() is not None], [], f"saved tensors of {type(model).__name__} after the output")
        gc.enable()
        check(report["saved"]["storages"] > 0, "a report outlives them")


def meta_counts_as_the_cpu_does():
    for make, shape in [(convolutions, (2, 3, 16, 16)), (lambda: Recurrence(6), (2, 5, 6)), (lambda: Attending(12, 3, 7), (2, 7, 12))]:
        cpu = memtape.torch.profile(make(), torch.randn(shape))
        with torch.device("meta"):
            meta = memtape.torch.profile(make(), torch.randn(shape))
        equal(meta["device"], "meta", "device")
        equal(meta.tensors(), cpu.tensors(), f"saved on meta and on the CPU, {shape}")


class Grouped(nn.Module):
    """Attention by scaled_dot_product_attention, of 4 heads of queries and `kv` of keys and values."""

    def __init__(self, width, kv, **options):
        super().__init__()
        self.width, self.options = width, {"enable_gqa": kv != 4, **options}
        self.q, self.k, self.v, self.out = (nn.Linear(4 * width, n * width) for n in (4, kv, kv, 4))

    def forward(self, x, mask=None):
        q, k, v = (layer(x).unflatten(2, (-1, self.width)).transpose(1, 2) for layer in (self.q, self.k, self.v))
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, **self.options)
        return self.out(y.transpose(1, 2).flatten(2))


def attention_on(device, dtype, width, kv, mask, s, attention, **options):
    """(kernels, tensors) of a report, or the refusal."""
    with torch.device(device):
        model, x = Grouped(width, kv, **options).to(dtype), torch.randn(2, s, 4 * width, dtype=dtype)
        masks = {"bool": lambda: torch.ones(s, s, dtype=torch.bool), "float": lambda: torch.zeros(2, 1, s, s, dtype=dtype)}
        given = {} if mask is None else {"mask": masks[mask]()}
    try:
        report = memtape.torch.profile(model, x, attention=attention, **given)
    except memtape.MemtapeError as error:
        return str(error)
    return report["model"]["attention"], report.tensors()


def attention_counts_as_cuda_runs_it():
    f32, f64, bf16 = torch.float32, torch.float64, torch.bfloat16
    for dtype, width, kv, mask, options, wanted in [
            (bf16, 8, 4, None, {}, "flash"), (torch.float16, 8, 4, None, {"is_causal": True}, "flash"),
            (bf16, 8, 2, None, {"is_causal": True}, "flash"), (bf16, 8, 4, None, {"dropout_p": 0.25}, "flash"),
            (bf16, 6, 4, None, {"is_causal": True}, "flash"), (bf16, 256, 4, None, {}, "flash"),
            (bf16, 264, 4, None, {}, "efficient"), (bf16, 264, 2, None, {}, "math"),
            (bf16, 8, 4, "bool", {}, "efficient"), (bf16, 8, 4, "float", {"dropout_p": 0.25}, "efficient"),
            (bf16, 8, 2, "bool", {}, "math"), (bf16, 6, 4, "bool", {}, "math"),
            (f32, 8, 4, None, {"is_causal": True}, "efficient"), (f32, 8, 4, None, {"dropout_p": 0.25}, "efficient"),
            (f32, 8, 4, "bool", {}, "efficient"), (f32, 6, 4, None, {}, "math"), (f32, 8, 2, None, {"is_causal": True}, "math"),
            (f64, 8, 4, None, {}, "math"), (f64, 8, 4, "float", {"dropout_p": 0.25}, "math")]:
        for s in (16, 17):
            what = f"{dtype}, width {width}, kv {kv}, mask {mask}, {options}, s {s}"
            for attention in ("cuda", "math", "flash", "efficient"):
                cpu, meta = (attention_on(device, dtype, width, kv, mask, s, attention, **options) for device in ("cpu", "meta"))
                equal(cpu, meta, f"{attention} on the CPU and on meta: {what}")
                if attention == "cuda":
                    equal(cpu[0], wanted, f"what CUDA runs: {what}")
                elif attention in ("math", wanted):
                    equal(cpu[0], attention, f"asked for: {what}")
    for kernel, other in [("flash", "efficient"), ("efficient", "math")]:
        with torch.nn.attention.sdpa_kernel([torch.nn.attention.SDPBackend.EFFICIENT_ATTENTION, torch.nn.attention.SDPBackend.MATH]
                                            if other == "efficient" else [torch.nn.attention.SDPBackend.MATH]):
            equal(attention_on("meta", bf16, 8, 4, None, 16, "cuda")[0], other, f"where {kernel} is disabled")
    b, s, d, e = 2, 16, 32, 2
    for attention, more in [
            # Beside x and what the heads are merged from, which is the output: queries, keys, values.
            ("flash", 4 * b * 4 * s + 16 + 8),  # log-sum-exp; the generator's state, and what is left of an older one
            ("efficient", 4 * b * 4 * 32 + 8 + 8)]:  # log-sum-exp of sequences up to a multiple of 32
        _, tensors = attention_on("meta", bf16, 8, 4, None, s, attention)
        equal(sum(t["bytes"] for t in tensors), 5 * b * s * d * e + more, f"{attention}, by hand")
    for s, row in [(16, 16), (17, 24)]:  # a bool mask becomes a bias, whose rows are of multiples of 8 elements
        _, tensors = attention_on("meta", bf16, 8, 4, "bool", s, "cuda")
        equal([t["bytes"] for t in tensors if t["name"] == "attn_bias"], [s * row * 2], f"the bias of a mask, s {s}")
    refusals = [("flash", f32, None, "not torch.float32"), ("flash", bf16, "bool", "takes no mask"), ("efficient", f64, None, "f32")]
    for attention, dtype, mask, said in refusals:
        check(said in str(attention_on("cpu", dtype, 8, 4, mask, 16, attention)), f"{attention} of {dtype}, mask {mask}")
    refused("a kernel that is not known", "choose cuda, flash", lambda: memtape.torch.Ledger(nn.Linear(1, 1), "flsh"))


def dropout_on_meta_is_cuda_s():
    x = torch.randn(6, 10, device="meta", dtype=torch.bfloat16, requires_grad=True)
    for attention, wanted in [("cuda", [(60, "", "native_dropout result1", "aux")]), ("device", [(120, "", "mul other", "input")])]:
        model = nn.Dropout(0.5)
        report = memtape.torch.profile(model, x, attention=attention)
        equal([(row[0], *row[2:]) for row in saved(report)], [(row[0], *row[2:]) for row in wanted], f"a mask, {attention}")
        equal(saved(memtape.torch.profile(model.eval(), x, attention=attention)), [], "none in evaluation")


def attention_s_values_stay():
    for options in ({}, {"is_causal": True}, {"dropout_p": 0.25}):
        for attention in ("cuda", "math", "device"):
            torch.manual_seed(5)
            model, x = Grouped(8, 4, **options), torch.randn(2, 17, 32, requires_grad=True)
            results = []
            for counted in (False, True):
                torch.manual_seed(6)
                with memtape.torch.Ledger(model, attention) if counted else contextlib.nullcontext():
                    y = model(x)
                results.append([y, *torch.autograd.grad(y.pow(2).sum(), [x, *model.parameters()])])
            check(all(map(torch.equal, *results)), f"the same bits: {attention}, {options}")
    equal(torch._C._dispatch_has_kernel_for_dispatch_key("aten::scaled_dot_product_attention", "AutogradCPU"), False,
          "nothing is left registered for the CPU")
    for device in ("cpu", "meta"):  # a checkpoint runs again after the ledger, and must keep as many tensors
        with torch.device(device):
            model, x = Grouped(8, 4, is_causal=True), torch.randn(2, 17, 32, requires_grad=True)
            with memtape.torch.Ledger(model) as ledger:
                y = checkpoint(model, x, use_reentrant=False)
            equal([row[2] for row in saved(ledger.report(y))], ["checkpoint input"], "a checkpoint around an attention")
            y.sum().backward()


# ---- steps ----

class Batched(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.norm, self.out = nn.Embedding(11, 8), nn.BatchNorm1d(8), nn.Linear(8, 11)

    def forward(self, ids, targets):
        if not (ids[:, -1] == 0).all():  # a branch by a value
            ids = torch.cat((ids, ids[ids > 3][None].expand(len(ids), -1)), 1)
        y = self.out(self.norm(self.embed(ids).transpose(1, 2)).transpose(1, 2))
        return {"loss": F.cross_entropy(y.mean(1), targets)}


def a_step_is_counted_as_by_hand():
    f, n = 4 * 1024, 1 << 18  # bytes of a row; elements of the weight: 1 MiB
    model, x = nn.Linear(1024, 256, bias=False), torch.randn(64, 1024)
    before, touched = model.weight.clone(), (model.weight.grad, dict(model.named_buffers()))
    for make, states, temporary in [(lambda p: torch.optim.SGD(p), 0, 0), (lambda p: torch.optim.SGD(p, momentum=0.9), 1, 0),
                                    (lambda p: torch.optim.AdamW(p), 2, 1),  # its denominators
                                    (lambda p: torch.optim.AdamW(p, foreach=False), 2, 2)]:  # and their square roots
        optimizer = make(model.parameters())
        losses = 0 if temporary else 4 + 4  # the loss and its gradient, within backward
        report = memtape.torch.profile(model, x, optimizer, loss=lambda model, x: model(x).sum())
        base = 4 * n + 64 * f
        init, forward, backward, step = report["phases"]
        equal([init["requested"], backward["requested"]], [base, base + 4 * n], f"before and after backward, {optimizer}")
        equal(forward["requested"], base + 4, "the loss; what was summed is gone")
        equal(forward["requested_peak"], base + 64 * 1024 + 4, "the product beside it")
        equal(step["requested"], base + 4 * n * states, "the optimizer's state")
        for key, wanted in [("parameter", 4 * n), ("optimizer", 4 * n * states), ("input", 64 * f), ("gradient", 4 * n)]:
            equal(report["steady"]["phases"][2]["at_peak"][key], wanted, f"{key} in the second step")
        equal(report["steady"]["requested"], base + 4 * n * (1 + states + temporary) + losses, f"the peak, {optimizer}")
        equal(report["saved"], {**report["saved"], "bytes": 64 * f, "allocated": 64 * f, "storages": 1}, "what is saved")
        equal(sum(report["steady"]["by_category"].values()), report["steady"]["peak"], "categories at the peak")
        equal(report["peak"]["phase"], "step" if temporary else "backward", "where the peak is")
        equal(sum(row["allocated"] for row in report["peak"]["largest"]), report["steady"]["peak"], "who holds it")
        equal(len(optimizer.state), 0, "the optimizer is not touched")
    check(torch.equal(before, model.weight) and touched == (model.weight.grad, dict(model.named_buffers())), "nor is the model")
    large = nn.Linear(1 << 20, 1 << 15, device="meta", dtype=torch.bfloat16)  # 64 GiB
    report = memtape.torch.profile(large, (torch.empty(1, 1 << 20, device="meta", dtype=torch.bfloat16),), torch.optim.Adam(large.parameters()),
                                   loss=lambda model, batch: model(*batch).sum())
    equal(report["steady"]["phases"][2]["by_category"]["optimizer"], 2 * 2 * ((1 << 35) + (1 << 15)), "a state of 128 GiB")


def fused_optimizers_take_nothing_in_a_step():
    """As their kernels do on CUDA, where they keep their count of steps, too. PyTorch itself still asks for such a device."""
    n, x = 4 * 64 * 256, torch.ones(8, 64)
    for make, states in ((torch.optim.AdamW, 2), (torch.optim.Adam, 2), (torch.optim.SGD, 0), (torch.optim.Adagrad, 1)):
        model = nn.Linear(64, 256, bias=False)
        report = memtape.torch.profile(model, x, make(model.parameters(), fused=True), loss=lambda model, x: model(x).sum())
        count = 512 if states else 0
        step = report["phases"][3]
        equal((step["allocated"], step["peak"]), (n * (1 + states) + 4 * 8 * 64 + count, n * (2 + states) + 4 * 8 * 64 + count), f"{make.__name__}, fused")
    on_meta = torch.optim.AdamW(nn.Linear(2, 2, device="meta").parameters(), fused=True)
    on_meta.param_groups[0]["params"][0].grad = torch.empty(2, 2, device="meta")
    try:
        on_meta.step()
        check(False, "PyTorch refuses it on meta")
    except RuntimeError as error:
        check("fused=True" in str(error), f"{error}")


class Picked(nn.Module):
    """Rows of a weight, picked by `how`."""
    def __init__(self, how):
        super().__init__()
        self.w, self.f, self.how = nn.Parameter(torch.randn(100, 64)), nn.Linear(64, 64), how

    def forward(self, i):
        return self.f(self.how(self.w, i)).square().sum()


def an_index_by_whole_numbers_is_an_embedding():
    """Its shape depends on no value. Its backward adds into zeros in place, as PyTorch's does where no mode watches it."""
    found = []
    for how in (lambda w, i: F.embedding(i, w), lambda w, i: w[i], lambda w, i: w[i, :], lambda w, i: w[i, ...]):
        model = Picked(how)
        report = memtape.torch.profile(model, torch.tensor([[1, 2], [3, 3]]), torch.optim.SGD(model.parameters()))
        found.append((report["saved"]["bytes"], report["steady"]["peak"], [(f["name"], f["peak"], f["allocated"]) for f in report["phases"]]))
    for other in found[1:]:
        equal(other, found[0], "the six figures of a step")
    rows = 4 * 4 * 64
    equal(found[0][0], 8 * 4 + 2 * rows, "whole numbers, the picked rows, and what is squared")
    model = Picked(lambda w, i: w[w[:, 0] > 0])
    refused("a mask of what is not computed", "by index.Tensor", lambda: memtape.torch.profile(model, torch.tensor([1]), torch.optim.SGD(model.parameters())))
    model = Picked(lambda w, i: w[i > 2])
    report = memtape.torch.profile(model, torch.arange(100), torch.optim.SGD(model.parameters()))
    check(4 * 97 * 64 in [t["bytes"] for t in report.tensors()], f"a mask of the batch's numbers: {[t['bytes'] for t in report.tensors()]}")


def steps_know_values_of_whole_numbers():
    model = Batched()
    counts = []
    for ids in ([[1, 0], [2, 0]], [[5, 1], [7, 9]]):  # the second keeps a row more for each of three that are above 3
        report = memtape.torch.profile(model, {"ids": torch.tensor(ids), "targets": torch.tensor([1, 2])},
                                       torch.optim.Adam(model.parameters()))
        counts.append([t["shape"] for t in report.tensors() if t["op"] == "embedding"])
    equal(counts, [[[2, 2]], [[2, 5]]], "what the embedding keeps")
    equal(int(model.norm.num_batches_tracked), 0, "buffers")

    class Asking(nn.Linear):
        def forward(self, x):
            y = super().forward(x)
            return y.sum() if y.sum() > 0 else y.mean()
    asking, sgd = Asking(2, 2), torch.optim.SGD
    refused("a branch by what is not computed", "asks for a value that is not computed on meta, at " + __file__,
            lambda: memtape.torch.profile(asking, torch.ones(1, 2), sgd(asking.parameters())))
    linear = nn.Linear(2, 2)
    for what, said, call, kind in [
            ("no loss", "need loss=function", lambda: memtape.torch.profile(linear, torch.ones(1, 2), sgd(linear.parameters())), memtape.MemtapeError),
            ("another model's optimizer", "not the model's", lambda: memtape.torch.profile(linear, torch.ones(1, 2), sgd(asking.parameters())), memtape.MemtapeError),
            ("two inputs", "need one batch", lambda: memtape.torch.profile(linear, 1, 2, sgd(linear.parameters())), TypeError),
            ("a loss alone", "without an optimizer", lambda: memtape.torch.profile(linear, torch.ones(1, 2), loss=len), TypeError),
            ("a batch in the model's place", "the model is a Tensor; need", lambda: memtape.torch.profile(torch.ones(1, 2), linear, sgd(linear.parameters())), TypeError),
            ("a name for an optimizer", "the optimizer is 'adamw'; need", lambda: memtape.torch.profile(linear, torch.ones(1, 2), optimizer=["adamw"]), TypeError),
            *((f"{name}={value}", f"{name} is {value!r}; need {need}",
               lambda name=name, value=value: memtape.torch.profile(linear, torch.ones(1, 2), sgd(linear.parameters()), **{name: value}), memtape.MemtapeError)
              for name, value, need in (("accumulate", 0, "a whole number"), ("accumulate", 1.5, "a whole number"), ("clip", -1, "the norm"), ("clip", "1", "the norm"),
                                        ("autocast", "bf16", "torch.bfloat16 or"), ("autocast", torch.float32, "torch.bfloat16 or"))),
            ("the device's attention", "choose cuda, flash, efficient, math",
             lambda: memtape.torch.profile(linear, torch.ones(1, 2), sgd(linear.parameters()), attention="device"), memtape.MemtapeError)]:
        refused(what, said, call, kind)


def print_shows_a_table():
    model, x = convolutions(), torch.randn(2, 3, 16, 16)
    text = str(memtape.torch.profile(model, x))
    for said in ("Sequential on cpu", "Sequential.1    relu", "16,384", "all, each once", "34,816 bytes"):
        check(said in text, f"{said!r} in {text}")
    text = str(memtape.torch.profile(model, x, torch.optim.SGD(model.parameters()), loss=lambda model, x: model(x).sum()))
    check("The peak of a training step: " in text and "parameter" in text and "reached in " in text, text)
    for context, said in [(torch.no_grad(), "ran under torch.no_grad()"), (torch.inference_mode(), "ran under torch.inference_mode()")]:
        with context:
            report = memtape.torch.profile(model, x)
        check(said in str(report) and report["saved"]["bytes"] == 0, f"nothing is kept: {report}")
    check("no output requires a gradient" in str(memtape.torch.profile(nn.ReLU(), x)), "a model without parameters")
    with torch.no_grad():
        refused("a step under no_grad", "has no backward", lambda: memtape.torch.profile(model, x, torch.optim.SGD(model.parameters())))
    frozen = convolutions().requires_grad_(False)
    refused("a step of a frozen model", "no output requires a gradient", lambda: memtape.torch.profile(
        frozen, x, torch.optim.SGD(frozen.parameters()), loss=lambda model, x: model(x).sum()))


def misuse_is_refused():
    model, x = convolutions(), torch.randn(1, 3, 16, 16)
    with memtape.torch.Ledger(model) as ledger:
        y = model(x)
        refused("a report within", "after the Ledger's `with`", lambda: ledger.report(y))
    refused("a second entry", "entered once", ledger.__enter__)
    y.sum().backward()
    refused("a report after backward", "before backward", lambda: ledger.report(y))
    refused("no module", "need a torch.nn.Module", lambda: memtape.torch.Ledger(torch.exp), TypeError)
    refused("before", "after the Ledger's `with`", lambda: memtape.torch.Ledger(model).report(y))

    class Sparse(nn.Module):
        def forward(self, x):
            return torch.sparse.mm(torch.eye(4).to_sparse(), x)
    refused("a sparse tensor", "layout torch.sparse_coo", lambda: memtape.torch.profile(Sparse(), torch.randn(4, 4, requires_grad=True)))


# ---- the report ----

def report_has_the_documented_keys():
    documented = documented_keys("profile-json.md")
    values = memtape.torch.profile(convolutions(), torch.randn(1, 3, 16, 16)).to_dict()
    for path in paths(values):
        check(path in documented or any(key.startswith(path + ".") or key.startswith(path + "[") for key in documented),
              f"{path} is not in docs/profile-json.md")
    missing = {key.split(".")[0].split("[")[0] for key in documented if not key.startswith("rows")} - set(values)
    equal(missing, set(), "sections that the report lacks")
    equal([key for key, value in values.items() if value is None], list(memtape._ledger.OTHER_KEYS), "sections that are null")


def page_opens_without_an_error():
    sys.path.append(str(Path(__file__).parent.parent / "program" / "report"))
    import browser
    if browser.missing():
        print(f"skipped: {', '.join(browser.missing())} not installed")
        return
    report = memtape.torch.profile(convolutions(), torch.randn(2, 3, 16, 16))
    path = Path(tempfile.mkdtemp()) / "r.html"
    report.write_html(path)
    with browser.Browser() as window:
        window.open(path)
        window.click("#saved .leaf .fold")
        story = window.js("return document.querySelector('#saved .story').innerText")
        check("Goes back" in story and "not recorded" in story, f"a storage's story: {story}")
        window.click("button[data-value=list]")
        equal(len(window.js("return [...document.querySelectorAll('#saved tr.leaf')].map(r => r.dataset.op)")), 4, "rows")
        equal(window.console(), [], "errors in the console")
        text = window.js("return document.getElementById('page').innerText")
        shown = [int(n) for n in window.js("return [...document.querySelectorAll('#page data')].map(d => d.value)")]
        check(report["saved"]["bytes"] in shown, "the page shows the saved bytes")
        check("Saved for backward" in text and "Sequential" in text, f"the page: {text[:200]}")
        model = convolutions()
        report = memtape.torch.profile(model, torch.randn(2, 3, 16, 16), torch.optim.Adam(model.parameters()),
                                       loss=lambda model, x: model(x).sum())
        report.write_html(path)
        window.open(path)
        equal(window.console(), [], "errors in the console, of a step")
        text = window.js("return document.getElementById('page').innerText")
        check(f"{report['steady']['peak']:,}" in text and "A step in the steady state" in text, f"the page of a step: {text[:300]}")


for test in [convolutions_are_counted_as_by_hand, recurrence_is_counted_as_by_hand, attention_is_counted_as_by_hand,
             storages_are_counted_once_and_whole, a_graph_that_is_gone_is_not_counted, functions_of_the_user_are_named,
             checkpoints_keep_their_inputs, values_and_gradients_are_the_same, hooks_are_taken_off, nothing_is_kept_alive,
             meta_counts_as_the_cpu_does, attention_counts_as_cuda_runs_it, dropout_on_meta_is_cuda_s, attention_s_values_stay,
             a_step_is_counted_as_by_hand, fused_optimizers_take_nothing_in_a_step, an_index_by_whole_numbers_is_an_embedding, steps_know_values_of_whole_numbers, print_shows_a_table, misuse_is_refused, report_has_the_documented_keys, page_opens_without_an_error]:
    test()
done()
