"""of_magnetron.py: the GPT's step in magnetron, by its own modules and AdamW; it has no compiler, no fused attention and
a cross-entropy of one-hot targets."""

import loop


def build(shape):
    import magnetron as mag
    from magnetron import Tensor, nn, optim

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            d = shape.d
            self.ln_1, self.ln_2 = nn.LayerNorm(d), nn.LayerNorm(d)
            self.qkv, self.proj = nn.Linear(d, 3 * d), nn.Linear(d, d)
            self.fc, self.out = nn.Linear(d, 4 * d), nn.Linear(4 * d, d)
            self.gelu = nn.GeLU(shape.is_tanh)

        def forward(self, x, hidden):
            b, s, d = x.shape
            q, k, v = (t.reshape(b, s, shape.heads, d // shape.heads).transpose(1, 2)
                       for t in self.qkv(self.ln_1(x)).split(d, -1))
            scores = (q @ k.transpose(2, 3)) * (d // shape.heads) ** -0.5
            y = scores.masked_fill(hidden, float("-inf")).softmax() @ v
            x = x + self.proj(y.transpose(1, 2).reshape(b, s, d))
            return x + self.out(self.gelu(self.fc(self.ln_2(x))))

    class Gpt(nn.Module):
        def __init__(self):
            super().__init__()
            self.wte, self.wpe = nn.Embedding(shape.vocab, shape.d), nn.Embedding(shape.context, shape.d)
            self.h = nn.ModuleList([Block() for _ in range(shape.layers)])
            self.ln_f = nn.LayerNorm(shape.d)

        def forward(self, tokens, positions, hidden):
            x = self.wte(tokens) + self.wpe(positions)
            for block in self.h:
                x = block(x, hidden)
            return self.ln_f(x) @ self.wte.weight.T

    model = Gpt()
    for name, x in model.named_parameters():
        if x.rank == 2:
            x.normal_(0.0, 0.02)
        elif name.endswith("bias"):
            x.zero_()
    adamw = optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.01)
    rows, answers = shape.tokens
    tokens = Tensor(rows, dtype=mag.dtype.int64)
    targets = Tensor(answers, dtype=mag.dtype.int64).reshape(shape.batch * shape.seq).one_hot(shape.vocab)
    targets = targets.cast(mag.dtype.float32)
    positions = Tensor([list(range(shape.seq))], dtype=mag.dtype.int64)
    hidden = Tensor([[j > i for j in range(shape.seq)] for i in range(shape.seq)], dtype=mag.dtype.boolean)
    loss_of = nn.CrossEntropyLoss()

    def step():
        loss = loss_of(model(tokens, positions, hidden).reshape(shape.batch * shape.seq, shape.vocab), targets)
        value = loss.item()
        loss.backward()
        adamw.step()
        adamw.zero_grad()
        return value
    return step, {}


if __name__ == "__main__":
    import importlib.metadata
    loop.serve(importlib.metadata.version("magnetron"), build)
