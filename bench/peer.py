"""peer.py: the benchmark's other side, PyTorch: the same work, told in the same words.

It is given every advantage eager PyTorch has: fused attention, fused AdamW,
gradients set to None, as many threads as memtape.
"""

import os
import sys
import time

import torch
import torch.nn.functional as F


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
    """Training steps of a GPT; see gpt.c."""
    layers, d, heads, vocab, batch, seq, context = map(int, arguments[:7])
    act = {"gelu": "none", "gelu_tanh": "tanh"}[arguments[7]]
    torch.set_num_threads(int(arguments[8]))
    start = status_kib("VmRSS")
    torch.manual_seed(1)
    model = Gpt(layers, d, heads, vocab, context, act)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.01, fused=True)
    tokens, targets = (tokens_of(batch, seq, vocab, shift) for shift in (0, 1))
    run = torch.compile(model) if "compile" in arguments[9:] else model

    def step():
        begin = now_ns()
        optimizer.zero_grad(set_to_none=True)
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


def causal_softmax(x):
    """PyTorch has no causal softmax: its users add a mask they made once."""
    key = tuple(x.shape[-2:])
    if key not in causal_softmax.masks:
        causal_softmax.masks[key] = torch.full(key, float("-inf")).triu(1 + key[1] - key[0])
    return F.softmax(x + causal_softmax.masks[key], -1)


causal_softmax.masks = {}

def rope_tables(s, d):
    """Made once, as models do."""
    if (s, d) not in rope_tables.made:
        frequency = 10000.0 ** (-torch.arange(0, d, 2, dtype=torch.float64) / d)
        angles = torch.outer(torch.arange(s, dtype=torch.float64), frequency)
        rope_tables.made[s, d] = [f(torch.cat((angles, angles), -1)).float()
                                  for f in (torch.cos, torch.sin)]
    return rope_tables.made[s, d]


rope_tables.made = {}


def rope(x):
    """As in Hugging Face's LLaMA."""
    cosine, sine = rope_tables(*x.shape[-2:])
    low, high = x.chunk(2, -1)
    return x * cosine + torch.cat((-high, low), -1) * sine


FUNCTIONS = {
    "add": torch.add, "sub": torch.sub, "mul": torch.mul, "div": torch.div,
    "affine": lambda x: x * 1.5 + 0.5,
    "relu": F.relu, "relu_inplace": lambda x: (x * 2).relu_(),
    "leaky_relu": lambda x: F.leaky_relu(x, 0.2),
    "leaky_relu_inplace": lambda x: F.leaky_relu_(x * 2, 0.2),
    "gelu": F.gelu, "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"), "silu": F.silu,
    "tanh": torch.tanh, "sigmoid": torch.sigmoid, "exp": torch.exp, "log": torch.log,
    "sqrt": torch.sqrt, "pow": lambda x: x.pow(3),
    "swiglu": lambda gate, up: F.silu(gate) * up,
    "where": lambda mask, a, b: torch.where(mask.bool(), a, b),
    "rms_norm": lambda x, w: F.rms_norm(x, w.shape, w, 1e-5), "rope": rope,
    "max": lambda x: x.max(-1)[0], "cast": lambda x: x.to(torch.bfloat16),
    "matmul": torch.matmul, "linear": F.linear,
    "softmax": causal_softmax, "log_softmax": lambda x: F.log_softmax(x, -1),
    "layer_norm": lambda x, w, b: F.layer_norm(x, w.shape, w, b),
    "dropout": lambda x: F.dropout(x, 0.1),
    "embedding": F.embedding, "cross_entropy": lambda x, t: F.cross_entropy(
        x.view(-1, x.shape[-1]), t.view(-1)),
    "linear_cross_entropy": lambda x, w, t: F.cross_entropy(F.linear(x, w), t),
    "mse": F.mse_loss, "sum": torch.sum, "mean": torch.mean,
    "permute": lambda x: x.permute(1, 0), "slice": lambda x: x[:, 2:6],
    "expand": lambda x: x.expand(4, 8), "reshape": lambda x: x.reshape(8, 4),
    "contiguous": lambda x: x.t().contiguous(), "clone": torch.clone,
    "split": lambda x: x.split(4, 1)[1], "cat": lambda x, y: torch.cat((x, y)),
    "flash_attention": lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True),
    # With one rank a collective is a copy, or where memtape gives a view, a view.
    "all_gather": torch.clone, "reduce_scatter": torch.clone, "all_reduce": torch.clone,
    "replicate": lambda x: x.view_as(x), "send": lambda x: x.view_as(x), "recv": torch.clone,
    "heads": heads, "embed": lambda index, w, positions: F.embedding(index, w) + positions,
}


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
        name, _, parameter = name.partition("/")
        fn = FUNCTIONS[name]
        self.fn = (lambda *inputs: fn(*inputs, int(parameter))) if parameter else fn
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
        for name in FUNCTIONS:
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


if __name__ == "__main__":
    {"gpt": gpt, "ops": ops}[sys.argv[1]](sys.argv[2:])
