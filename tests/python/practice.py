"""Modules as practitioners write them, for zoo.py: each entry makes (model, batch, the loss of both or None)."""
import math

import torch
import transformers
from torch import nn
from torch.nn import functional as F

WORDS, TOKENS = 64, 16


class TimedResidual(nn.Module):
    """A block of a diffusion model's UNet: two convolutions, told the time between them."""

    def __init__(self, width, out):
        super().__init__()
        self.first, self.conv, self.time = nn.GroupNorm(4, width), nn.Conv2d(width, out, 3, padding=1), nn.Linear(16, out)
        self.second, self.last = nn.GroupNorm(4, out), nn.Conv2d(out, out, 3, padding=1)
        self.skip = nn.Conv2d(width, out, 1) if width != out else nn.Identity()

    def forward(self, x, t):
        h = self.conv(F.silu(self.first(x))) + self.time(F.silu(t))[:, :, None, None]
        return self.skip(x) + self.last(F.silu(self.second(h)))


class Diffusion(nn.Module):
    """A UNet with skips, times and attention to words, and the loss of its noise."""

    def __init__(self):
        super().__init__()
        self.time, self.enter = nn.Sequential(nn.Linear(8, 16), nn.SiLU(), nn.Linear(16, 16)), nn.Conv2d(3, 8, 3, padding=1)
        self.down, self.up = (nn.ModuleList([TimedResidual(*widths) for widths in pair]) for pair in (((8, 8), (8, 16)), ((32, 8), (16, 8))))
        self.shrink, self.middle = nn.Conv2d(16, 16, 3, stride=2, padding=1), TimedResidual(16, 16)
        self.norm, self.attend = nn.GroupNorm(4, 16), nn.MultiheadAttention(16, 2, kdim=12, vdim=12, batch_first=True)
        self.out = nn.Conv2d(8, 3, 3, padding=1)
        self.register_buffer("kept", torch.cumprod(1 - torch.linspace(1e-4, 0.02, 100), 0))

    def forward(self, x, steps, words):
        angles = steps[:, None].float() * torch.exp(torch.arange(4, device=x.device) * -2.0)
        t, noise = self.time(torch.cat((angles.sin(), angles.cos()), 1)), torch.randn_like(x)
        kept = self.kept[steps][:, None, None, None]
        h, skips = self.enter(kept.sqrt() * x + (1 - kept).sqrt() * noise), []
        for block in self.down:
            h = block(h, t)
            skips.append(h)
        h = self.middle(self.shrink(h), t)
        flat = self.norm(h).flatten(2).transpose(1, 2)
        h = h + self.attend(flat, words, words, need_weights=False)[0].transpose(1, 2).reshape(h.shape)
        h = F.interpolate(h, scale_factor=2, mode="nearest")
        for block in self.up:
            h = block(torch.cat((h, skips.pop()), 1), t)
        return F.mse_loss(self.out(F.silu(h)), noise)


def contrastive(model, batch):
    """Sentences as the means of their tokens; each has its other half in the batch."""
    hidden, mask = model(**batch).last_hidden_state, batch["attention_mask"][..., None].float()
    a, b = F.normalize((hidden * mask).sum(1) / mask.sum(1).clamp(min=1e-9), dim=1).chunk(2)
    scores = a @ b.T * 20
    return F.cross_entropy(scores, torch.arange(len(a), device=scores.device))


def sentences():
    config = transformers.BertConfig(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48, vocab_size=WORDS,
                                     hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    mask = torch.ones(4, TOKENS, dtype=torch.long)
    mask[1, 10:] = mask[3, 5:] = 0
    return transformers.BertModel(config), {"input_ids": torch.randint(3, WORDS, (4, TOKENS)), "attention_mask": mask}, contrastive


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        layer = nn.TransformerDecoderLayer(32, 4, 64, 0.0, activation="gelu", batch_first=True, norm_first=True)
        self.words, self.layers, self.out = nn.Embedding(WORDS, 32), nn.TransformerDecoder(layer, 2, nn.LayerNorm(32)), nn.Linear(32, WORDS)

    def forward(self, ids, memory, padding):
        mask = nn.Transformer.generate_square_subsequent_mask(ids.shape[1], device=ids.device)
        h = self.layers(self.words(ids), memory, tgt_mask=mask, tgt_is_causal=True, memory_key_padding_mask=padding)
        return F.cross_entropy(self.out(h[:, :-1]).transpose(1, 2), ids[:, 1:], label_smoothing=0.1)


def decoder():
    padding = torch.zeros(2, 12, dtype=torch.bool)
    padding[1, 8:] = True
    return Decoder(), (torch.randint(WORDS, (2, TOKENS)), torch.randn(2, 12, 32), padding), None


class Packed(nn.Module):
    """Sequences of several lengths in a recurrence of both directions."""

    def __init__(self):
        super().__init__()
        self.words, self.rnn, self.out = nn.Embedding(WORDS, 8), nn.GRU(8, 16, 2, batch_first=True, bidirectional=True), nn.Linear(32, 3)

    def forward(self, ids, lengths, labels):
        packed = nn.utils.rnn.pack_padded_sequence(self.words(ids), lengths.cpu(), batch_first=True, enforce_sorted=False)
        h, _ = nn.utils.rnn.pad_packed_sequence(self.rnn(packed)[0], batch_first=True)
        return F.cross_entropy(self.out(h.mean(1)), labels)


class GraphAttention(nn.Module):
    """A softmax over the edges that end at a node."""

    def __init__(self):
        super().__init__()
        self.values, self.score, self.out = nn.Linear(8, 16, bias=False), nn.Linear(32, 1), nn.Linear(16, 3)

    def forward(self, x, edges, labels):
        source, target = edges
        h = self.values(x)
        score = F.leaky_relu(self.score(torch.cat((h[source], h[target]), 1)), 0.2)[:, 0]
        most = torch.full((len(x),), -math.inf, device=x.device).scatter_reduce(0, target, score.detach(), "amax")
        e = (score - most[target]).exp()
        total = torch.zeros(len(x), device=x.device).scatter_add(0, target, e)
        h = torch.zeros_like(h).index_add(0, target, h[source] * (e / total[target])[:, None])
        return F.cross_entropy(self.out(F.elu(h)), labels)


class ComplexTurns(nn.Module):
    """Attention whose positions turn complex numbers."""

    def __init__(self):
        super().__init__()
        self.q, self.k, self.v, self.out = (nn.Linear(32, 32, bias=False) for _ in range(4))
        self.register_buffer("turns", torch.polar(torch.ones(64, 4), torch.outer(torch.arange(64.0), 1e4 ** -(torch.arange(4) / 4))))

    def turned(self, x):
        pairs = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
        return torch.view_as_real(pairs * self.turns[:x.shape[1], None]).flatten(3).type_as(x)

    def forward(self, x):
        q, k, v = (f(x).unflatten(2, (4, 8)) for f in (self.q, self.k, self.v))
        h = F.scaled_dot_product_attention(*(t.transpose(1, 2) for t in (self.turned(q), self.turned(k), v)), is_causal=True)
        return self.out(h.transpose(1, 2).flatten(2)).square().mean()


class LowRank(nn.Module):
    def __init__(self, rows, columns):
        super().__init__()
        self.a, self.b = nn.Parameter(torch.randn(4, columns)), nn.Parameter(torch.zeros(rows, 4))

    def forward(self, w):
        return w + self.b @ self.a


def two_layers(act):
    return nn.Sequential(nn.Linear(32, 64), act, nn.Linear(64, 32))


def mean(model, x):
    return model(x).square().mean()


def parametrized():
    model = two_layers(nn.ReLU())
    for layer in (model[0], model[2]):
        layer.requires_grad_(False)
        nn.utils.parametrize.register_parametrization(layer, "weight", LowRank(*layer.weight.shape))
    return model, torch.randn(8, 32), mean


def after_a_step(model, x):
    """The loss after a step of gradient descent, which is part of the graph."""
    weights = dict(model.named_parameters())
    loss = torch.func.functional_call(model, weights, (x,)).square().mean()
    gradients = torch.autograd.grad(loss, tuple(weights.values()), create_graph=True)
    moved = {name: w - 0.1 * g for (name, w), g in zip(weights.items(), gradients)}
    return torch.func.functional_call(model, moved, (x,)).square().mean()


def spectral():
    norm = nn.utils.parametrizations.spectral_norm
    return nn.Sequential(norm(nn.Conv2d(3, 8, 3)), nn.LeakyReLU(0.2), nn.Flatten(), norm(nn.Linear(8 * 36, 1)))


class MaskedAutoencoder(nn.Module):
    """Sees a quarter of the patches, in a random order, and is asked for the rest."""

    def __init__(self):
        super().__init__()
        self.enter, self.body, self.out = nn.Linear(12, 32), nn.TransformerEncoderLayer(32, 4, 64, 0.0, batch_first=True), nn.Linear(32, 12)
        self.mask = nn.Parameter(torch.zeros(32))

    def forward(self, x):
        b, n, _ = x.shape
        order = torch.rand(b, n, device=x.device).argsort(1)
        back = order.argsort(1)
        seen = self.body(self.enter(x).gather(1, order[:, :n // 4, None].expand(-1, -1, 32)))
        h = torch.cat((seen, self.mask.expand(b, n - n // 4, -1)), 1).gather(1, back[..., None].expand(-1, -1, 32))
        hidden = torch.ones(b, n, device=x.device)
        hidden[:, :n // 4] = 0
        hidden = hidden.gather(1, back)
        return ((self.out(h) - x).square().mean(2) * hidden).sum() / hidden.sum()


class Autoencoder(nn.Module):
    """Variational: draws what it decodes."""

    def __init__(self):
        super().__init__()
        self.enter, self.middle, self.spread = nn.Linear(64, 32), nn.Linear(32, 8), nn.Linear(32, 8)
        self.out = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 64))

    def forward(self, x):
        h = self.enter(x).relu()
        middle, spread = self.middle(h), self.spread(h)
        drawn = middle + torch.randn_like(middle) * (0.5 * spread).exp()
        return F.mse_loss(self.out(drawn), x) - 0.5 * (1 + spread - middle.square() - spread.exp()).mean()


class Quantised(nn.Module):
    """An autoencoder by way of the nearest word of a codebook, whose gradient passes it by."""

    def __init__(self):
        super().__init__()
        self.enter, self.words, self.out = nn.Linear(64, 8), nn.Embedding(16, 8), nn.Linear(8, 64)

    def forward(self, x):
        z = self.enter(x)
        nearest = self.words(torch.cdist(z, self.words.weight).argmin(1))
        loss = F.mse_loss(nearest, z.detach()) + 0.25 * F.mse_loss(z, nearest.detach())
        return F.mse_loss(self.out(z + (nearest - z).detach()), x) + loss


class Distilled(nn.Module):
    """A loss with a teacher in it."""

    def __init__(self):
        super().__init__()
        self.teacher = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 16)).requires_grad_(False)

    def forward(self, model, x):
        with torch.no_grad():
            taught = F.softmax(self.teacher(x) / 2, -1)
        return 4 * F.kl_div(F.log_softmax(model(x) / 2, -1), taught, reduction="batchmean")


class Rare(nn.Module):
    """Layers and a loss that few models have."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Conv1d(4, 4, 3), nn.InstanceNorm1d(4, affine=True), nn.Mish(), nn.AdaptiveMaxPool1d(5),
                                    nn.ConvTranspose1d(4, 4, 4), nn.PReLU(4), nn.Upsample(scale_factor=2, mode="linear"), nn.CELU(), nn.LPPool1d(2, 2))
        self.pair = nn.Bilinear(8, 8, 6)

    def forward(self, x, labels):
        h = F.local_response_norm(self.layers(x), 2)
        first, second = h.mean(1), F.gumbel_softmax(h.amax(1))
        return F.multi_margin_loss(self.pair(first, second), labels)


PRACTICE = {
    "diffusion's UNet": lambda: (Diffusion(), (torch.randn(2, 3, 16, 16), torch.tensor([3, 70]), torch.randn(2, 5, 12)), None),
    "sentence embeddings": sentences, "decoder": decoder,
    "GRU, packed": lambda: (Packed(), (torch.randint(WORDS, (3, 12)), torch.tensor([5, 12, 7]), torch.tensor([0, 1, 2])), None),
    "graph attention": lambda: (GraphAttention(), (torch.randn(10, 8), torch.randint(10, (2, 40)), torch.randint(3, (10,))), None),
    "RoPE of complex numbers": lambda: (ComplexTurns(), torch.randn(2, 16, 32), None),
    "LoRA by parametrize": parametrized,
    "a step in the loss": lambda: (two_layers(nn.Tanh()), torch.randn(8, 32), after_a_step),
    "spectral norm": lambda: (spectral(), torch.randn(2, 3, 8, 8), mean),
    "masked autoencoder": lambda: (MaskedAutoencoder(), torch.randn(2, 16, 12), None),
    "variational autoencoder": lambda: (Autoencoder(), torch.randn(16, 64), None),
    "vector quantisation": lambda: (Quantised(), torch.randn(16, 64), None),
    "a teacher in the loss": lambda: (nn.Linear(32, 16), torch.randn(16, 32), Distilled()),
    "rare layers": lambda: (Rare(), (torch.randn(4, 4, 12), torch.tensor([0, 5, 2, 3])), None),
}
