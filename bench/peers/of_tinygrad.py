"""of_tinygrad.py: the GPT's step in tinygrad on the processor: a TinyJit of loss, gradients and its AdamW, as its
examples have it, without BEAM's search for kernels, which takes minutes a kernel."""

import os

import loop


def build(shape):
    os.environ.setdefault("DEV", "CPU")
    from tinygrad import Context, Tensor, TinyJit
    from tinygrad.nn.optim import AdamW

    Tensor.manual_seed(1)
    p = {name: (Tensor.randn(*extents) * 0.02 if value is None else Tensor.full(extents, value)).contiguous().realize()
         for name, extents, value in shape.parameters()}

    def norm(name, x):
        return x.layernorm(eps=1e-5) * p[name + ".w"] + p[name + ".b"]

    def linear(name, x):
        return x.linear(p[name + ".w"].T, p[name + ".b"])

    def gelu(x):
        return x.gelu() if shape.is_tanh else 0.5 * x * (1 + (x * 0.5 ** 0.5).erf())

    def block(i, x):
        b, s, d = x.shape
        q, k, v = (t.reshape(b, s, shape.heads, d // shape.heads).transpose(1, 2)
                   for t in linear(f"{i}.qkv", norm(f"{i}.ln_1", x)).chunk(3, -1))
        y = q.scaled_dot_product_attention(k, v, is_causal=True)
        x = x + linear(f"{i}.proj", y.transpose(1, 2).reshape(b, s, d))
        return x + linear(f"{i}.out", gelu(linear(f"{i}.fc", norm(f"{i}.ln_2", x))))

    adamw = AdamW(list(p.values()), lr=1e-3, weight_decay=0.01)
    tokens, targets = (Tensor(rows) for rows in shape.tokens)

    @TinyJit
    def run(tokens, targets):
        adamw.zero_grad()
        x = p["wte"][tokens] + p["wpe"][:shape.seq]
        for i in range(shape.layers):
            x = block(i, x)
        loss = (norm("ln_f", x) @ p["wte"].T).sparse_categorical_crossentropy(targets)
        loss.backward()
        return loss.realize(*adamw.schedule_step())

    def step():
        with Context(TRAINING=1):
            return run(tokens, targets).item()
    return step, {}


if __name__ == "__main__":
    import importlib.metadata
    loop.serve(importlib.metadata.version("tinygrad"), build)
