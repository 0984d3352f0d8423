"""peer.py: the benchmark's other side, PyTorch: the same work, with the same commands.

It uses all advantages of eager PyTorch: fused attention, fused AdamW, gradients set to
None, as many threads as memtape.
"""

import os
import sys
import time

import torch
import torch.nn.functional as F

from torch_rows import PLAIN


now_ns = time.process_time_ns if os.environ.get("BENCH_CLOCK") == "cpu" else time.perf_counter_ns


def status_kib(name):
    with open("/proc/self/status", encoding="ascii") as status:
        for line in status:
            if line.startswith(name + ":"):
                return int(line.split()[1])
    return -1


# ---- GPT -------------------------------------------------------------------------------------


class Block(torch.nn.Module):
    def __init__(self, d, heads, act):
        super().__init__()
        self.heads, self.act = heads, act
        self.ln_1, self.ln_2 = torch.nn.LayerNorm(d), torch.nn.LayerNorm(d)
        self.qkv, self.proj = torch.nn.Linear(d, 3 * d), torch.nn.Linear(d, d)
        self.fc, self.out = torch.nn.Linear(d, 4 * d), torch.nn.Linear(4 * d, d)

    def forward(self, x):
        b, s, d = x.shape
        q, k, v = self.qkv(self.ln_1(x)).split(d, dim=2)
        q, k, v = (t.view(b, s, self.heads, d // self.heads).transpose(1, 2) for t in (q, k, v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(y.transpose(1, 2).reshape(b, s, d))
        return x + self.out(F.gelu(self.fc(self.ln_2(x)), approximate=self.act))


class Gpt(torch.nn.Module):
    def __init__(self, layers, d, heads, vocab, context, act):
        super().__init__()
        self.wte, self.wpe = torch.nn.Embedding(vocab, d), torch.nn.Embedding(context, d)
        self.h = torch.nn.ModuleList(Block(d, heads, act) for _ in range(layers))
        self.ln_f = torch.nn.LayerNorm(d)
        for parameter in self.parameters():
            if parameter.dim() == 2:
                torch.nn.init.normal_(parameter, 0, 0.02)

    def forward(self, tokens):
        x = self.wte(tokens) + self.wpe.weight[: tokens.shape[1]]
        for block in self.h:
            x = block(x)
        return F.linear(self.ln_f(x), self.wte.weight)


def tokens_of(batch, seq, vocab, shift):
    """The same ids as gpt.c's."""
    ids = torch.arange(shift, shift + batch * seq, dtype=torch.int64)
    return ((ids * 7919 + 104729) % vocab).view(batch, seq)


def gpt(arguments):
    """Training steps of a GPT; see gpt.c. Its last words: f32, bf16 or autocast, and compile."""
    layers, d, heads, vocab, batch, seq, context = map(int, arguments[:7])
    act = {"gelu": "none", "gelu_tanh": "tanh"}[arguments[7]]
    torch.set_num_threads(int(arguments[8]))
    start = status_kib("VmRSS")
    torch.manual_seed(1)
    model = Gpt(layers, d, heads, vocab, context, act)
    if "bf16" in arguments[9:]:
        model.to(torch.bfloat16)
    autocast = "autocast" in arguments[9:]
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.01, fused=True)
    tokens, targets = (tokens_of(batch, seq, vocab, shift) for shift in (0, 1))
    run = torch.compile(model) if "compile" in arguments[9:] else model

    def step():
        begin = now_ns()
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            loss = F.cross_entropy(run(tokens).view(-1, vocab), targets.view(-1))
        value = loss.item()
        forward = now_ns()
        loss.backward()
        backward = now_ns()
        optimizer.step()
        end = now_ns()
        print("plain", forward - begin, backward - forward, end - backward, value)

    print("ready", flush=True)
    for line in sys.stdin:
        word, *rest = line.split()
        if word != "plain":
            break
        for _ in range(int(rest[0])):
            step()
        print("done", flush=True)
    print("memory", start, status_kib("VmHWM"))


# ---- ops: see ops.c and functions.c ------------------------------------------------------------


def heads(qkv, n):
    b, s, d = qkv.shape[0], qkv.shape[1], qkv.shape[2] // 3
    q, k, v = (t.view(b, s, n, d // n).transpose(1, 2) for t in qkv.split(d, dim=2))
    y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    return y.transpose(1, 2).reshape(b, s, d)


def softmax(scale, causal):
    assert scale == 1
    return causal_softmax if causal else lambda x: F.softmax(x, -1)


def causal_softmax(x):
    """PyTorch has no causal softmax: its users add a mask, which they make once."""
    key = tuple(x.shape[-2:])
    if key not in causal_softmax.masks:
        causal_softmax.masks[key] = torch.full(key, float("-inf")).triu(1 + key[1] - key[0])
    return F.softmax(x + causal_softmax.masks[key], -1)


causal_softmax.masks = {}


def rope(start, theta):
    """As in Hugging Face's LLaMA, with tables made once, as models do."""
    made = {}

    def tables(s, d):
        if (s, d) not in made:
            frequency = theta ** (-torch.arange(0, d, 2, dtype=torch.float64) / d)
            angles = torch.outer(torch.arange(start, start + s, dtype=torch.float64), frequency)
            made[s, d] = [f(torch.cat((angles, angles), -1)).float()
                          for f in (torch.cos, torch.sin)]
        return made[s, d]

    def turn(x):
        cosine, sine = tables(*x.shape[-2:])
        low, high = x.chunk(2, -1)
        return x * cosine + torch.cat((-high, low), -1) * sine
    return turn


FUNCTIONS = {
    **PLAIN,
    "embed": lambda index, w, positions: F.embedding(index, w) + positions,
    "all_to_all": lambda x, sent, received: x.clone(),  # with one rank
}

# Functions of the parameters of the case in src/ops/op_cases.def, in their order there.
WITH_PARAMETERS = {
    "affine": lambda scale, shift: lambda x: x * scale + shift,
    "leaky_relu": lambda slope: lambda x: F.leaky_relu(x, slope),
    "leaky_relu_inplace": lambda slope: lambda x: F.leaky_relu_(x * 2, slope),
    "clamp": lambda low, high: lambda x: x.clamp(low, high),
    "pow": lambda exponent: lambda x: x.pow(exponent),
    "softmax": softmax,
    "layer_norm": lambda eps: lambda x, w, b: F.layer_norm(x, w.shape, w, b, eps),
    "batch_norm": lambda training, eps: lambda x, w, b: F.batch_norm(x, None, None, w, b, bool(training), 0, eps),
    "rms_norm": lambda eps: lambda x, w: F.rms_norm(x, w.shape, w, eps),
    "rope": rope,
    "dropout": lambda p: lambda x: F.dropout(x, p),
    "cross_entropy": lambda ignore: lambda x, t: F.cross_entropy(
        x.view(-1, x.shape[-1]), t.view(-1), ignore_index=ignore),
    "cross_entropy_lse": lambda ignore: lambda x, t: F.cross_entropy(
        x.view(-1, x.shape[-1]), t.view(-1), ignore_index=ignore),
    "linear_cross_entropy": lambda ignore, chunk: lambda x, w, t: F.cross_entropy(
        F.linear(x, w), t, ignore_index=ignore),
    "linear_cross_entropy_early": lambda ignore, chunk, wide: lambda x, w, t: F.linear_cross_entropy(
        x, w, t, ignore_index=ignore, options=torch.nn.LinearCrossEntropyOptions()),
    "sum": lambda keep: torch.sum, "mean": lambda keep: torch.mean,
    "max": lambda keep, dim: lambda x: x.max(dim)[0],
    "gather": lambda dim: lambda x, index: x.gather(dim, index),
    "dispatch": lambda groups: lambda x, index: x[index.flatten().sort(stable=True)[1] // index.shape[-1]],
    "combine": lambda rows: lambda x, index: x.new_zeros(rows, x.shape[1]).scatter_add(0, index[:, None].expand_as(x), x),
    "topk": lambda k: lambda x: x.topk(k)[0],
    "cast": lambda dtype: lambda x: x.to(DTYPES[dtype]),
    "permute": lambda *order: lambda x: x.permute(order),
    "slice": lambda dim, start, length: lambda x: x.narrow(dim, start, length),
    "expand": lambda *shape: lambda x: x.expand(shape),
    "reshape": lambda *shape: lambda x: x.reshape(shape),
    "split": lambda dim, part, *sizes: lambda x: x.split(sizes, dim)[part],
    "cat": lambda dim: lambda x, y: torch.cat((x, y), dim),
    "flash_attention": lambda scale, causal, p: lambda q, k, v: F.scaled_dot_product_attention(
        q, k, v, dropout_p=p, is_causal=bool(causal), scale=scale or None),
    # With one rank a collective is a copy, or a view where memtape gives a view.
    "all_gather": lambda dim, ranks: torch.clone, "reduce_scatter": lambda dim, ranks: torch.clone,
    "all_reduce": lambda ranks: torch.clone, "recv": lambda ranks: torch.clone,
    "replicate": lambda ranks: lambda x: x.view_as(x), "send": lambda ranks: lambda x: x.view_as(x),
    "heads": lambda n: lambda qkv: heads(qkv, n),
}
DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16]  # in the order of mt_dtype


def function(name):
    """The function for "gelu" or "affine/-1.75,0.5"."""
    row, _, text = name.partition("/")
    if row in FUNCTIONS:
        return FUNCTIONS[row]
    numbers = map(float, text.split(","))
    return WITH_PARAMETERS[row](*(int(x) if x == int(x) else x for x in numbers))


def elements(shape, k, positive=False):
    n = 1
    for extent in shape:
        n *= extent
    values = (torch.arange(n, dtype=torch.int64) * 7919 + k * 104729) % 1024
    return (values.to(torch.float64) / 512 - (-0.5 if positive else 1)).view(shape)


def make_input(spec, k):
    kind, _, text = spec.partition(":")
    shape = [int(extent) for extent in text.split("x")] if text else []
    if kind[0] == "i":
        n = 1
        for extent in shape:
            n *= extent
        return ((torch.arange(n, dtype=torch.int64) * 7919 + 104729) % int(kind[1:])).view(shape)
    return elements(shape, k, kind == "p").to(torch.float32).requires_grad_()


def probe(x):
    x = x.detach().to(torch.float64).reshape(-1)
    return float((x * torch.cos(torch.arange(x.numel(), dtype=torch.float64))).sum())


class Case:
    def load(self, name, *specs):
        self.fn = function(name)
        self.inputs = [make_input(spec, k) for k, spec in enumerate(specs)]
        self.leaves = [x for x in self.inputs if x.requires_grad]
        y = self.fn(*self.inputs)
        self.dy = elements(y.shape, 9).to(y.dtype)
        y.backward(self.dy)
        print("probe", probe(y), *(float("nan") if x.grad is None else probe(x.grad)
                                   for x in self.inputs))
        self.drop_gradients()

    def drop_gradients(self):
        for x in self.leaves:
            x.grad = None

    def forward(self, n):
        fn, inputs = self.fn, self.inputs
        start = now_ns()
        for _ in range(int(n)):
            fn(*inputs)
        print("ns", now_ns() - start)

    def both(self, n):
        fn, inputs, leaves, dy = self.fn, self.inputs, self.leaves, self.dy
        start = now_ns()
        for _ in range(int(n)):
            fn(*inputs).backward(dy)
            for x in leaves:
                x.grad = None
        print("ns", now_ns() - start)

    def rows(self):
        for name in (*FUNCTIONS, *WITH_PARAMETERS):
            print("row", name)


def ops(arguments):
    torch.set_num_threads(int(arguments[0]))
    case = Case()
    print("version", torch.__version__)
    print("ready", flush=True)
    for line in sys.stdin:
        word, *rest = line.split()
        getattr(case, word)(*rest)
        print("done", flush=True)


def product_rate(dtype, n, times):
    """flop per ns of one product of side n, best of `times`; as machine.c has it."""
    a = torch.randn(n, n).to({"f32": torch.float32, "bf16": torch.bfloat16}[dtype])
    best = 0
    for _ in range(times):
        start = now_ns()
        torch.matmul(a, a)
        best = max(best, 2.0 * n ** 3 / (now_ns() - start))
    return best


def machine(arguments):
    torch.set_num_threads(int(arguments[0]))
    print("ready", flush=True)
    for line in sys.stdin:
        dtype, times, n = line.split()
        print("gflops", product_rate(dtype, int(n), int(times)))
        print("done", flush=True)


if __name__ == "__main__":
    {"gpt": gpt, "ops": ops, "machine": machine}[sys.argv[1]](sys.argv[2:])
