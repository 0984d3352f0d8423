#!/usr/bin/env python3
"""mtp.py LIBMEMTAPE_CASES: multi-token prediction beside PyTorch: the modules of DeepSeek-V3's report (2.2), written
out here as Megatron-Core's multi_token_prediction.py has them, after a gpt, a llama and a mixture of experts with
the same weights: the loss and the gradient of every parameter. Exit status 77 without PyTorch."""

import sys

try:
    import torch
    import torch.nn.functional as F
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

import memtape
from harness import MODEL_TOLERANCE, far

B, S, V, HIDDEN, HEADS = 2, 11, 31, 24, 4
SIZES = dict(hidden=HIDDEN, heads=HEADS, layers=2, vocab=V, context=S, dtype="f64")
LLAMA = SIZES | dict(kind="llama", ffn=40, rope_theta=500.0)
CASES = [
    SIZES | dict(kind="gpt", act="gelu", mtp_layers=1),
    SIZES | dict(kind="gpt", act="gelu", untied=True, mtp_layers=3, mtp_loss=0.7),
    LLAMA | dict(mtp_layers=2),
    LLAMA | dict(mtp_layers=1, tied=True, loss="chunked"),
    LLAMA | dict(mtp_layers=2, loss="fused", rope="unfused"),
    LLAMA | dict(experts=4, experts_per_token=2, norm_topk=True, mtp_layers=2, mtp_loss=0.3),
]


class Model:
    """w: tensors by memtape's names."""

    def __init__(self, config, w):
        self.c, self.w, self.llama = config, w, config["kind"] == "llama"

    def linear(self, x, name):
        return F.linear(x, self.w[name + ".weight"], self.w.get(name + ".bias"))

    def norm(self, x, name):
        if self.llama:
            return F.rms_norm(x, x.shape[-1:], self.w[name + ".weight"], 1e-6)
        return F.layer_norm(x, x.shape[-1:], self.w[name + ".weight"], self.w[name + ".bias"], 1e-5)

    def turned(self, x):
        half = x.shape[-1] // 2
        angles = torch.outer(torch.arange(S).double(), self.c["rope_theta"] ** (-torch.arange(half).double() / half))
        cos, sin, a, b = angles.cos(), angles.sin(), x[..., :half], x[..., half:]
        return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)

    def attention(self, x, name):
        qkv = [self.linear(x, f"{name}.{n}") for n in "qkv"] if self.llama else self.linear(x, name + ".qkv").chunk(3, -1)
        q, k, v = (t.view(B, S, HEADS, -1).transpose(1, 2) for t in qkv)
        if self.llama:
            q, k = self.turned(q), self.turned(k)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.linear(y.transpose(1, 2).reshape(B, S, -1), name + ".proj")

    def mlp(self, x, name):
        if not self.llama:
            return self.linear(F.gelu(self.linear(x, name + ".fc")), name + ".proj")
        if "experts" not in self.c:
            return self.linear(F.silu(self.linear(x, name + ".gate")) * self.linear(x, name + ".up"), name + ".down")
        p, chosen = F.softmax(self.linear(x, name + ".router"), -1).topk(self.c["experts_per_token"])
        p, y = p / p.sum(-1, keepdim=True), torch.zeros_like(x)
        for e in range(self.c["experts"]):
            gate, up = F.linear(x, self.w[name + ".experts_gate_up.weight"][e]).chunk(2, -1)
            out = F.linear(F.silu(gate) * up, self.w[name + ".experts_down.weight"][e])
            y = y + out * (p * (chosen == e)).sum(-1, keepdim=True)
        return y

    def block(self, x, name):
        x = x + self.attention(self.norm(x, name + ".ln_1"), name + ".attn")
        return x + self.mlp(self.norm(x, name + ".ln_2"), name + ".mlp")

    def embed(self, tokens, positions):
        y = self.w["wte.weight"][tokens]
        return y if self.llama else y + self.w["wpe.weight"][positions]

    def head_loss(self, h, target):
        logits = F.linear(h, self.w.get("lm_head.weight", self.w["wte.weight"]))
        return F.cross_entropy(logits.view(-1, V), target.reshape(-1), ignore_index=-100)

    def loss(self, tokens, target):
        positions, n = torch.arange(S), self.c["mtp_layers"]
        h = self.embed(tokens, positions)
        for i in range(self.c["layers"]):
            h = self.block(h, f"h.{i}")
        h = self.norm(h, "ln_f")
        loss, ahead = self.head_loss(h, target), 0
        for k in range(n):  # what is rolled out at the end is 0, or ignored
            tokens, target, positions = (torch.roll(t, -1, -1) for t in (tokens, target, positions))
            tokens[:, -1], target[:, -1], positions[-1] = 0, -100, 0
            name = f"mtp.{k}"
            e = self.norm(self.embed(tokens, positions), name + ".enorm")
            h = self.linear(torch.cat([e, self.norm(h, name + ".hnorm")], -1), name + ".eh_proj")
            h = self.norm(self.block(h, name + ".block"), name + ".ln")
            ahead = ahead + self.head_loss(h, target)
        return loss + self.c.get("mtp_loss", 0.1) * ahead / n


def faults(library, config):
    ours = memtape.Model(library, **config)
    generator = torch.Generator().manual_seed(41)
    library.mt_set_grad_mode(False)
    for p in ours.parameters.values():
        t = torch.randn(p.shape, generator=generator, dtype=torch.float64)
        data = (t * p.shape[-1] ** -0.5 if len(p.shape) > 1 else 1 + 0.1 * t).view(torch.uint8).numpy()
        library.check(library.mt_copy_from_host(p.pointer, data.ctypes.data, data.nbytes))
    library.mt_set_grad_mode(True)
    theirs = {name: p.torch().clone().requires_grad_() for name, p in ours.parameters.items()}
    x, target = (torch.randint(0, V, (B, S), generator=generator) for _ in range(2))
    target[0, 4] = -100
    there = Model(config, theirs).loss(x, target)
    there.backward()
    here = ours.loss(library.tensor(x), library.tensor(target))
    here.backward(library.tensor(torch.ones((), dtype=torch.float64)))
    if abs(here.torch().item() - there.item()) > 1e-12:
        yield f"the loss is {here.torch().item()}, there {there.item()}"
    for name, p in ours.parameters.items():
        fault = far(p.grad and p.grad.torch(), theirs[name].grad, MODEL_TOLERANCE[torch.float64])
        if fault:
            yield f"gradient of {name}: {fault}"


def main(path):
    torch.set_num_threads(1)
    library, failed = memtape.Library(path), 0
    for config in CASES:
        found = list(faults(library, config))
        for fault in found:
            print(f"FAILED: {config}: {fault}")
        failed += bool(found)
    print(f"{len(CASES)} models compared, {failed} failed")
    return failed > 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
