"""torch_side.py: PyTorch on the device, with the same commands as memtape_gpu.

    torch_side.py kernels DEVICE                       see kernels.c
    torch_side.py gpt DEVICE DTYPE L D A V B S HOW     see gpt.c; HOW: eager, compile, or offload:
                                                       save_on_cpu with page-locked memory
    torch_side.py limits DEVICE BYTES SIDE             "copy GB/s" and "gemm TFLOP/s", measured
    torch_side.py warm DEVICE DTYPE L D A V B S        compiles one step, for the cache
    torch_side.py snapshot DEVICE DTYPE L D A V B S FILE [expandable]
                                                       two steps, recorded: writes the snapshot, prints the memory
                                                       after each phase and its own figures (see step_snapshot.py)
"""

import contextlib
import os
import sys
import time
from statistics import median

import torch
import torch.nn.functional as F

sys.path.append(os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
from peer import Gpt, tokens_of  # noqa: E402

DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}


class Device:
    def __init__(self, name):
        self.name = name
        self.is_gpu = name == "cuda"
        if self.is_gpu:
            torch.backends.cuda.matmul.allow_tf32 = False

    def sync(self):
        if self.is_gpu:
            torch.cuda.synchronize()

    def rest(self):
        if self.is_gpu:
            torch.cuda.empty_cache()

    def timed(self, n, call):
        """ns from an idle device to an idle device"""
        self.sync()
        start = time.perf_counter_ns()
        for _ in range(n):
            call()
        self.sync()
        return time.perf_counter_ns() - start


# ---- inputs: see inputs.c ----------------------------------------------------------------------

TABLE = 1000003


def values(shape, k, dtype, device, positive=False):
    n = 1
    for extent in shape:
        n *= extent
    n_table = min(n, TABLE)
    h = torch.arange(1, n_table + 1, dtype=torch.int64) * 2654435761 + k * 40503 * 65537
    table = (((h % (1 << 32)) >> 13) & 255).to(torch.float64)
    table = ((table - 128) / 128 + (1.5 if positive else 0)).to(dtype).to(device)
    return table.repeat((n + n_table - 1) // n_table)[:n].view(shape)


def make_input(spec, k, dtype, device):
    kind, _, text = spec.partition(":")
    shape = [int(extent) for extent in text.split("x")]
    if kind[0] == "i":
        n = 1
        for extent in shape:
            n *= extent
        ids = (torch.arange(n, dtype=torch.int64) * 7919 + 104729) % int(kind[1:])
        return ids.view(shape).to(device)
    if kind == "b":
        return make_input(f"i2:{text}", k, dtype, device).bool()
    return values(shape, k, dtype, device, kind == "p").requires_grad_()


def sample(x):
    """The elements of a tensor that kernels.c prints."""
    x = x.detach().contiguous()
    rows = 256
    while x.numel() % rows:
        rows //= 2
    x = x.view(rows, -1)
    shown = [x[:, x.shape[1] // 3], x[:, -1]]
    print("sample", *(f"{v:.9g}" for column in shown for v in column.double().tolist()))


# ---- kernels -----------------------------------------------------------------------------------


def attention(dropout):
    return lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True,
                                                          dropout_p=dropout)


TABLES = {}  # rope's cosines and sines, made once, as models do


def rope_tables(s, d, x):
    key = (s, d, x.dtype)
    if key not in TABLES:
        frequency = 10000.0 ** (-torch.arange(0, d, 2, dtype=torch.float64) / d)
        angles = torch.outer(torch.arange(s, dtype=torch.float64), frequency)
        angles = torch.cat((angles, angles), -1)
        TABLES[key] = [f(angles).to(x.dtype).to(x.device) for f in (torch.cos, torch.sin)]
    return TABLES[key]


def rope(x):
    """As in Hugging Face's LLaMA."""
    cosine, sine = rope_tables(*x.shape[-2:], x)
    low, high = x.chunk(2, -1)
    return x * cosine + torch.cat((-high, low), -1) * sine


def through_int8(x):
    """Composed of PyTorch's operations, as none of them does it alone."""
    blocks = x.detach().view(-1, 128).float()
    scale = blocks.abs().amax(-1, keepdim=True) / 127
    codes = (blocks / scale).round().to(torch.int8)
    return (codes * scale).to(x.dtype).view(x.shape)


NF4 = (-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453, -0.28444138169288635,
       -0.18477343022823334, -0.09105003625154495, 0.0, 0.07958029955625534, 0.16093020141124725,
       0.24611230194568634, 0.33791524171829224, 0.44070982933044434, 0.5626170039176941,
       0.7229568362236023, 1.0)


def through_nf4(x):
    levels = torch.tensor(NF4, device=x.device)
    blocks = x.detach().view(-1, 64).float()
    scale = blocks.abs().amax(-1, keepdim=True)
    codes = torch.bucketize(blocks / scale, (levels[1:] + levels[:-1]) / 2).to(torch.uint8)
    return (levels[codes.int()] * scale).to(x.dtype).view(x.shape)


FUNCTIONS = {
    "clone": torch.clone, "add": torch.add, "mul": torch.mul, "affine": lambda x: x * -1.75 + 0.5,
    "relu": F.relu, "gelu": F.gelu, "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "silu": F.silu, "to_f32": lambda x: x.to(torch.float32),
    "contiguous": lambda x: x.t().contiguous(), "dropout": lambda x: F.dropout(x, 0.1),
    "whole_softmax": lambda x: F.softmax(x, -1), "log_softmax": lambda x: F.log_softmax(x, -1),
    "layer_norm": lambda x, w, b: F.layer_norm(x, w.shape, w, b),
    "sum": torch.sum, "sum_rows": lambda x: torch.sum(x, 0),
    "pow": lambda x: x.pow(3), "swiglu": lambda gate, up: F.silu(gate) * up,
    "batch_norm": lambda x, w, b: F.batch_norm(x, None, None, w, b, True),
    "topk/8": lambda x: torch.topk(x, 8)[0],
    "where": torch.where, "max": lambda x: x.max(-1)[0], "rope": rope,
    "rms_norm": lambda x, w: F.rms_norm(x, w.shape, w, 1e-5),
    "through_int8": through_int8, "through_nf4": through_nf4,
    "linear_cross_entropy": lambda x, w, target: F.cross_entropy(F.linear(x, w), target),
    "cross_entropy": F.cross_entropy, "embedding": F.embedding, "linear": F.linear,
    "flash_attention": attention(0.0), "flash_dropout": attention(0.1),
}


class Recorded:
    """An op and its backward, through autograd."""

    def __init__(self, fn, inputs):
        self.fn, self.inputs = fn, inputs
        self.leaves = [x for x in inputs if x.requires_grad]
        self.y = fn(*inputs)
        self.dy = values(self.y.shape, 9, self.y.dtype, self.y.device)

    def forward(self):
        self.fn(*self.inputs)

    def backward(self):
        return torch.autograd.grad(self.y, self.leaves, self.dy, retain_graph=True)

    def show(self):
        """The reference for memtape's results: the same op and inputs in a wider dtype, f64 for f32 and f32 for
        the others."""
        wide = torch.float64 if self.leaves[0].dtype == torch.float32 else torch.float32
        inputs = [x.detach().to(wide).requires_grad_() if x.requires_grad else x
                  for x in self.inputs]
        y = self.fn(*inputs)
        sample(y)
        if not y.requires_grad:
            return
        leaves = [x for x in inputs if x.requires_grad]
        for gradient in torch.autograd.grad(y, leaves, self.dy.to(y.dtype)):
            sample(gradient)


class Products(Recorded):
    """What cuBLAS reaches alone: the products of a linear and nothing else, into existing memory."""

    def __init__(self, inputs):
        super().__init__(F.linear, inputs)
        x, w = (t.detach() for t in inputs[:2])
        self.x, self.w, self.out = x, w, torch.empty_like(self.y.detach())
        self.dx, self.dw = torch.empty_like(x), torch.empty_like(w)

    def forward(self):
        torch.mm(self.x, self.w.t(), out=self.out)

    def backward(self):
        torch.mm(self.dy, self.w, out=self.dx)
        torch.mm(self.dy.t(), self.x, out=self.dw)


class AdamW:
    def __init__(self, spec, count, dtype, device):
        self.parameters = [make_input(spec, k, dtype, device) for k in range(count)]
        for k, parameter in enumerate(self.parameters):
            parameter.grad = make_input(spec, k + 1, dtype, device).detach()
        fused = device == "cuda" or None
        self.optimizer = torch.optim.AdamW(self.parameters, lr=0.1, weight_decay=0.01, fused=fused)
        self.optimizer.step()

    def forward(self):
        self.optimizer.step()

    def show(self):
        sample(self.parameters[0])


class Kernels:
    def __init__(self, name):
        self.device, self.case = Device(name), None

    def load(self, name, dtype, *specs):
        self.case = None
        whole, (name, _, figure) = name, name.partition("/")
        dtype = DTYPES[dtype]
        if name == "adamw":
            self.case = AdamW(specs[0], int(figure), dtype, self.device.name)
        else:
            inputs = [make_input(spec, k, dtype, self.device.name) for k, spec in enumerate(specs)]
            self.case = Products(inputs) if figure == "products" else Recorded(
                FUNCTIONS.get(whole) or FUNCTIONS[name], inputs)
        self.case.show()

    def forward(self, n):
        print("ns", self.device.timed(int(n), self.case.forward))

    def backward(self, n):
        print("ns", self.device.timed(int(n), self.case.backward))

    def rest(self):
        self.case = None
        self.device.rest()


def kernels(name):
    worker = Kernels(name)
    obey(worker)


def obey(worker):
    print("version", torch.__version__)
    print("ready", flush=True)
    for line in sys.stdin:
        word, *rest = line.split()
        if word == "end":
            break
        getattr(worker, word)(*rest)
        print("done", flush=True)


# ---- GPT ---------------------------------------------------------------------------------------


class Trained:
    def __init__(self, name, dtype, layers, d, heads, vocab, batch, seq, how):
        self.device = Device(name)
        torch.manual_seed(1)
        model = Gpt(layers, d, heads, vocab, seq, "tanh").to(name, DTYPES[dtype])
        self.tokens, self.targets = (tokens_of(batch, seq, vocab, shift).to(name)
                                     for shift in (0, 1))
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.01,
                                           fused=True)

        def loss_of(tokens, targets):
            return F.cross_entropy(model(tokens).view(-1, vocab), targets.view(-1))

        self.loss_of = torch.compile(loss_of, dynamic=False) if how == "compile" else loss_of
        self.offloads = how == "offload"

    def save_on_cpu(self):
        return torch.autograd.graph.save_on_cpu(pin_memory=True)

    def step(self, hooks=None):
        hooks = hooks or (self.save_on_cpu if self.offloads else contextlib.nullcontext)
        self.optimizer.zero_grad(set_to_none=True)
        with hooks():
            self.loss = self.loss_of(self.tokens, self.targets)
        self.loss.backward()
        self.optimizer.step()

    def steps(self, n):
        print("ns", self.device.timed(int(n), self.step))
        print("loss", self.loss.item())

    def rest(self):
        self.loss = None
        self.device.rest()

    def tell(self):
        if self.device.is_gpu:
            print("memory", torch.cuda.max_memory_allocated(), torch.cuda.max_memory_reserved())
        if self.offloads:
            self.tell_moved()

    def tell_moved(self):
        """Bytes of the tensors that save_on_cpu packs, and that it unpacks."""
        n_bytes = {"out": 0, "in": 0}

        def count(way):
            def one(tensor):
                n_bytes[way] += tensor.numel() * tensor.element_size()
                return tensor
            return one

        self.step(lambda: torch.autograd.graph.saved_tensors_hooks(count("out"), count("in")))
        for way, n in n_bytes.items():
            print(way, n)


def gpt(name, dtype, *rest):
    trained = Trained(name, dtype, *map(int, rest[:6]), rest[6])
    obey(trained)
    trained.tell()


def warm(name, dtype, *rest):
    start = time.perf_counter()
    Trained(name, dtype, *map(int, rest), "compile").step()
    print(f"compiled {time.perf_counter() - start:.1f}")


# ---- what the allocator does in two steps ------------------------------------------------------


def snapshot(name, dtype, *rest):
    """The workspaces of products stay for good, forward's and those of backward's thread: they are asked for first, so
    that their bytes are known."""
    record = torch.cuda.memory
    if rest[7:]:
        record._set_allocator_settings("expandable_segments:True")
    record._record_memory_history(context=None, max_entries=10 ** 7)

    def now():
        torch.cuda.synchronize()
        return torch.cuda.memory_allocated()

    before = now()
    x = torch.ones(16, 16, dtype=DTYPES[dtype], device=name, requires_grad=True)
    F.linear(torch.mm(x, x), x, x[0]).sum().backward()
    del x
    print("workspace", now() - before, flush=True)
    trained = Trained(name, dtype, *map(int, rest[:6]), "eager")
    optimizer = trained.optimizer
    print("phase init", now())
    for step in (1, 2):
        optimizer.zero_grad(set_to_none=True)
        loss = trained.loss_of(trained.tokens, trained.targets)
        print("phase forward", now())
        loss.backward()
        print("phase backward", now())
        optimizer.step()
        del loss
        print("phase step", now())
    steps = [state["step"] for state in optimizer.state.values()]
    print("counters", sum(512 for t in steps if torch.is_tensor(t) and t.is_cuda))
    stats = torch.cuda.memory_stats()
    for key, value in stats.items():
        if key.endswith((".all.current", ".all.peak")):
            print("stat", key, value)
    record._dump_snapshot(rest[6])


# ---- limits ------------------------------------------------------------------------------------


def limits(name, n_bytes, side):
    """Medians of seven measurements, each much longer than a launch."""
    device = Device(name)
    x = values([int(n_bytes) // 2], 0, torch.bfloat16, name)
    y = torch.empty_like(x)
    a, b = (values([int(side), int(side)], k, torch.bfloat16, name) for k in (0, 1))
    out = torch.empty_like(a)
    for word, work, call in (("copy", 2 * int(n_bytes), lambda: y.copy_(x)),
                             ("gemm", 2 * int(side) ** 3, lambda: torch.mm(a, b, out=out))):
        device.timed(3, call)
        rates = sorted(10 * work / device.timed(10, call) for _ in range(7))
        print(word, median(rates), rates[0], rates[-1])  # bytes, flop per ns


if __name__ == "__main__":
    {"kernels": kernels, "gpt": gpt, "warm": warm, "limits": limits,
     "snapshot": snapshot}[sys.argv[1]](*sys.argv[2:])
