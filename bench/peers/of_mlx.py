"""of_mlx.py: the GPT's step in MLX on the processor: one compiled function of loss, gradients and AdamW, as its
documentation's page on compilation has it."""

import loop


def build(shape):
    from functools import partial

    import mlx.core as mx
    from mlx import nn, optimizers

    mx.set_default_device(mx.cpu)
    mx.random.seed(1)

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            d = shape.d
            self.ln_1, self.ln_2 = nn.LayerNorm(d), nn.LayerNorm(d)
            self.qkv, self.proj = nn.Linear(d, 3 * d), nn.Linear(d, d)
            self.fc, self.out = nn.Linear(d, 4 * d), nn.Linear(4 * d, d)

        def __call__(self, x):
            b, s, d = x.shape
            q, k, v = (t.reshape(b, s, shape.heads, -1).transpose(0, 2, 1, 3)
                       for t in mx.split(self.qkv(self.ln_1(x)), 3, -1))
            y = mx.fast.scaled_dot_product_attention(q, k, v, scale=(d // shape.heads) ** -0.5, mask="causal")
            x = x + self.proj(y.transpose(0, 2, 1, 3).reshape(b, s, d))
            gelu = nn.gelu_approx if shape.is_tanh else nn.gelu
            return x + self.out(gelu(self.fc(self.ln_2(x))))

    class Gpt(nn.Module):
        def __init__(self):
            super().__init__()
            self.wte, self.wpe = nn.Embedding(shape.vocab, shape.d), nn.Embedding(shape.context, shape.d)
            self.h = [Block() for _ in range(shape.layers)]
            self.ln_f = nn.LayerNorm(shape.d)

        def __call__(self, tokens):
            x = self.wte(tokens) + self.wpe.weight[:shape.seq]
            for block in self.h:
                x = block(x)
            return self.wte.as_linear(self.ln_f(x))

    def start(x):
        """Matrices as GPT-2's; biases are zero and norms one, as memtape has them."""
        return mx.random.normal(x.shape) * 0.02 if x.ndim == 2 else x

    model = Gpt()
    model.apply(start)
    model.apply_to_modules(lambda _, m: m.update({"bias": mx.zeros_like(m.bias)}) if isinstance(m, nn.Linear) else None)
    adamw = optimizers.AdamW(learning_rate=1e-3, weight_decay=0.01, bias_correction=True)
    adamw.init(model.trainable_parameters())
    tokens, targets = (mx.array(rows) for rows in shape.tokens)
    state = [model.state, adamw.state]
    loss_and_gradients = nn.value_and_grad(
        model, lambda a, b: nn.losses.cross_entropy(model(a), b, reduction="mean"))

    @partial(mx.compile, inputs=state, outputs=state)
    def run(a, b):
        loss, gradients = loss_and_gradients(a, b)
        adamw.update(model, gradients)
        return loss

    def step():
        loss = run(tokens, targets)
        mx.eval(loss, state)
        return loss.item()
    mx.eval(state)
    return step, {}


if __name__ == "__main__":
    import importlib.metadata
    loop.serve(importlib.metadata.version("mlx"), build)
