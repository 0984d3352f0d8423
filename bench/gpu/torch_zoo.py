"""torch_zoo.py: the modules of the step `modules`, of torchvision, Transformers, timm and PyTorch itself, as their users train them.
Each is a function that returns (model, batch, loss); loss(model, batch) is the forward of a step. With `toy` all are small, for a dry run.

Weights are random, configurations are the libraries' own defaults but for what is written here."""

from dataclasses import dataclass, field
from typing import Any, Callable, Dict, Optional, Tuple

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint


@dataclass(frozen=True)
class SetUp:
    """A module and how it is trained."""
    make: Callable[[bool], Tuple[nn.Module, Any, Callable[[nn.Module, Any], torch.Tensor]]]
    optimizer: Callable[..., torch.optim.Optimizer] = torch.optim.AdamW
    options: Dict[str, Any] = field(default_factory=dict)  # of the optimizer
    autocast: Optional[torch.dtype] = None
    dtype: torch.dtype = torch.float32  # of the weights


MOMENTUM = {"lr": 0.01, "momentum": 0.9}


def ids(vocab, *shape):
    return torch.randint(4, vocab, shape)


# ---- of Transformers: the model makes the loss ----


def own_loss(model, batch):
    return model(**batch).loss


def of_hf(kind, name, toy, small, sizes=None, **options):
    """A model of Transformers. small: what is smaller in a dry run; sizes: what is not its configuration's default."""
    import transformers

    config = getattr(transformers, kind)(**{**(sizes or {}), **(small if toy else {}), **options})
    return getattr(transformers, name)._from_config(config, dtype=torch.float32)


SMALL = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128}
GROUPED = {**SMALL, "num_key_value_heads": 2, "vocab_size": 128}
LLAMA = {"hidden_size": 1024, "num_hidden_layers": 8, "num_attention_heads": 16, "num_key_value_heads": 4, "intermediate_size": 2816}


def text(model, b, s):
    tokens = ids(model.config.vocab_size, b, s)
    return {"input_ids": tokens, "labels": tokens}


def gpt2(toy):
    model = of_hf("GPT2Config", "GPT2LMHeadModel", toy, {"n_layer": 2, "n_embd": 64, "n_head": 4, "vocab_size": 128})
    return model, text(model, *(2, 16) if toy else (4, 512)), own_loss


def bert(toy):
    """With padded rows, as a tokenizer makes them."""
    model = of_hf("BertConfig", "BertForMaskedLM", toy, {**SMALL, "vocab_size": 128})
    batch = text(model, *(2, 16) if toy else (16, 256))
    mask = torch.ones_like(batch["input_ids"])
    mask[1:, mask.shape[1] * 3 // 4:] = 0
    return model, {**batch, "attention_mask": mask}, own_loss


def llama(toy):
    model = of_hf("LlamaConfig", "LlamaForCausalLM", toy, GROUPED, LLAMA)
    return model, text(model, *(2, 16) if toy else (4, 1024)), own_loss


def llama_checkpoints(toy):
    model, batch, loss = llama(toy)
    model.gradient_checkpointing_enable({"use_reentrant": False})
    return model.train(), batch, loss


def modernbert(toy):
    model = of_hf("ModernBertConfig", "ModernBertForMaskedLM", toy, {**SMALL, "vocab_size": 128, "pad_token_id": 0, "cls_token_id": 1,
                  "sep_token_id": 2, "bos_token_id": 1, "eos_token_id": 2}, attn_implementation="sdpa")
    return model, {**text(model, *(2, 16) if toy else (8, 512)), "attention_mask": torch.ones((2, 16) if toy else (8, 512),
                                                                                             dtype=torch.long)}, own_loss


def mixtral(toy):
    model = of_hf("MixtralConfig", "MixtralForCausalLM", toy, {**GROUPED, "num_local_experts": 4},
                  {**LLAMA, "num_hidden_layers": 4, "num_local_experts": 8})
    return model, text(model, *(2, 16) if toy else (4, 512)), own_loss


def clip(toy):
    tower = {**SMALL, "projection_dim": 32}
    model = of_hf("CLIPConfig", "CLIPModel", toy, {"text_config": {**tower, "vocab_size": 128}, "vision_config": {
        **tower, "image_size": 32, "patch_size": 16}, "projection_dim": 32})
    n, words, side = (2, 8, 32) if toy else (32, 77, 224)
    tokens = ids(model.config.text_config.vocab_size - 1, n, words)
    return model, {"input_ids": tokens, "pixel_values": torch.randn(n, 3, side, side), "return_loss": True}, own_loss


def whisper(toy):
    model = of_hf("WhisperConfig", "WhisperForConditionalGeneration", toy, {
        "d_model": 64, "encoder_attention_heads": 4, "decoder_attention_heads": 4, "encoder_ffn_dim": 128, "decoder_ffn_dim": 128,
        "encoder_layers": 2, "decoder_layers": 2, "max_source_positions": 50})
    n, frames, words = (2, 100, 8) if toy else (8, 3000, 128)
    return model, {"input_features": torch.randn(n, 80, frames), "labels": ids(1000, n, words)}, own_loss


# ---- of torchvision and timm: images and classes ----


def class_loss(model, batch):
    images, classes = batch
    return F.cross_entropy(model(images), classes)


def images(n, side, classes):
    return torch.randn(n, 3, side, side), torch.randint(classes, (n,))


def resnet50(toy):
    import torchvision

    return torchvision.models.resnet50(), images(*(2, 64) if toy else (32, 224), 1000), class_loss


def vit(toy):
    import torchvision

    sizes = {"image_size": 32, "patch_size": 16, "num_layers": 2, "num_heads": 4, "hidden_dim": 64, "mlp_dim": 128}
    model = torchvision.models.VisionTransformer(**sizes) if toy else torchvision.models.vit_b_16()
    return model, images(*(2, 32) if toy else (32, 224), 1000), class_loss


def convnext(toy):
    import timm

    return timm.create_model("convnext_tiny"), images(*(2, 64) if toy else (32, 224), 1000), class_loss


# ---- of PyTorch alone ----


def square(model, x):
    return model(x).square().mean()


def of_sequence(model, x):
    """The loss of a module that returns its output first of several."""
    return model(x)[0].square().mean()


def encoder(toy):
    d, heads, ffn, layers, b, s = (64, 4, 128, 2, 2, 16) if toy else (512, 8, 2048, 6, 32, 256)
    layer = nn.TransformerEncoderLayer(d, heads, ffn, batch_first=True)
    return nn.TransformerEncoder(layer, layers), torch.randn(b, s, d), square


class SelfAttention(nn.Module):
    """A layer of attention as nn.MultiheadAttention's page shows it: it returns the weights, too."""

    def __init__(self, d, heads):
        super().__init__()
        self.attention = nn.MultiheadAttention(d, heads, batch_first=True)

    def forward(self, x):
        return self.attention(x, x, x)


def attention(toy):
    d, heads, b, s = (64, 4, 2, 16) if toy else (1024, 16, 8, 512)
    return SelfAttention(d, heads), torch.randn(b, s, d), of_sequence


def lstm(toy):
    d, b, s = (32, 2, 8) if toy else (1024, 256, 64)
    return nn.LSTM(d, d, 2, batch_first=True), torch.randn(b, s, d), of_sequence


def gru(toy):
    d, b, s = (32, 2, 8) if toy else (1024, 256, 64)
    return nn.GRU(d, d, 2, batch_first=True), torch.randn(b, s, d), of_sequence


class Residual(nn.Module):
    def __init__(self, n_in, n_out):
        super().__init__()
        self.first, self.second = (nn.Sequential(nn.GroupNorm(8, n), nn.SiLU(), nn.Conv2d(n, n_out, 3, padding=1)) for n in (n_in, n_out))
        self.skip = nn.Identity() if n_in == n_out else nn.Conv2d(n_in, n_out, 1)

    def forward(self, x):
        return self.skip(x) + self.second(self.first(x))


class UNet(nn.Module):
    """As diffusion models have it: residual blocks, half the side and twice the channels at each depth, and back. With checkpoints
    each residual block runs its forward again in backward."""

    def __init__(self, channels, depth, checkpoints):
        super().__init__()
        widths = [channels << i for i in range(depth)]
        self.first, self.last = nn.Conv2d(3, channels, 3, padding=1), nn.Conv2d(channels, 3, 1)
        self.down = nn.ModuleList(Residual(w, w) for w in widths[:-1])
        self.smaller = nn.ModuleList(nn.Conv2d(w, 2 * w, 3, stride=2, padding=1) for w in widths[:-1])
        self.middle = Residual(widths[-1], widths[-1])
        self.larger = nn.ModuleList(nn.ConvTranspose2d(2 * w, w, 2, stride=2) for w in widths[:-1])
        self.up = nn.ModuleList(Residual(2 * w, w) for w in widths[:-1])
        self.checkpoints = checkpoints

    def block(self, residual, x):
        return checkpoint(residual, x, use_reentrant=False) if self.checkpoints else residual(x)

    def forward(self, x):
        x, skips = self.first(x), []
        for residual, smaller in zip(self.down, self.smaller):
            skips.append(self.block(residual, x))
            x = smaller(skips[-1])
        x = self.block(self.middle, x)
        for residual, larger in reversed(list(zip(self.up, self.larger))):
            x = self.block(residual, torch.cat((larger(x), skips.pop()), 1))
        return self.last(x)


def unet(toy, checkpoints=False):
    channels, depth, b, side = (8, 3, 2, 32) if toy else (64, 4, 8, 128)
    return UNet(channels, depth, checkpoints), torch.randn(b, 3, side, side), square


# The most important first: what is out of time at the end is named.
SET_UPS = {
    "gpt2": SetUp(gpt2),
    "gpt2 autocast, fused AdamW": SetUp(gpt2, options={"fused": True}, autocast=torch.bfloat16),
    "resnet50, SGD": SetUp(resnet50, torch.optim.SGD, MOMENTUM),
    "resnet50 autocast, SGD": SetUp(resnet50, torch.optim.SGD, MOMENTUM, autocast=torch.bfloat16),
    "llama bf16": SetUp(llama, dtype=torch.bfloat16),
    "llama autocast, checkpoints": SetUp(llama_checkpoints, autocast=torch.bfloat16),
    "bert": SetUp(bert),
    "vit_b_16 autocast": SetUp(vit, autocast=torch.bfloat16),
    "TransformerEncoder": SetUp(encoder),
    "MultiheadAttention": SetUp(attention),
    "LSTM": SetUp(lstm),
    "GRU autocast": SetUp(gru, autocast=torch.bfloat16),
    "unet autocast": SetUp(unet, autocast=torch.bfloat16),
    "unet, checkpoints": SetUp(lambda toy: unet(toy, checkpoints=True), options={"fused": True}),
    "mixtral bf16": SetUp(mixtral, dtype=torch.bfloat16),
    "clip": SetUp(clip, options={"foreach": False}),
    "whisper tiny autocast": SetUp(whisper, autocast=torch.bfloat16),
    "modernbert bf16": SetUp(modernbert, dtype=torch.bfloat16, options={"fused": True}),
    "convnext_tiny, SGD": SetUp(convnext, torch.optim.SGD, MOMENTUM),
}
