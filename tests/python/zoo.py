"""Models of PyTorch's world in memtape.torch, each beside a count by hand on the CPU (counting.py): saved bytes, and of a step the peak
and the end of forward, backward and optimizer. Where the CPU runs other operations than CUDA, attention runs as its parts on both, and
what still differs has a named reason. Prints a table. Exit status 77 without PyTorch or Transformers.

    python3 tests/python/zoo.py [name ...]"""
import functools
import sys
import warnings
from pathlib import Path
sys.path.append(str(Path(__file__).parent.parent / "program" / "verbs"))
from lib import check, done  # noqa: E402

try:
    import torch
    import transformers
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)
import memtape.torch  # noqa: E402
from counting import of_report, step_by_hand  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402
from torch.nn.attention import SDPBackend, sdpa_kernel  # noqa: E402

transformers.logging.set_verbosity_error()
B, S, V = 2, 16, 64
IDS = torch.randint(3, V - 4, (B, S))
TEXT = {"input_ids": IDS, "labels": IDS}
SMALL = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48, "vocab_size": V}
GROUPED = {**SMALL, "num_key_value_heads": 2, "max_position_embeddings": 64, "pad_token_id": 0}
MOE = {"moe_intermediate_size": 24, "num_experts_per_tok": 2}


def theirs(name, batch=None, kind="", **config):
    """A model of Transformers with a loss, of random weights."""
    def make():
        kind_of_config = kind or name.split("For")[0].replace("LMHeadModel", "").replace("Model", "") + "Config"
        settings = getattr(transformers, kind_of_config)(**config)
        return getattr(transformers, name)(settings), batch or TEXT
    return make


def with_loss(make, loss, *inputs):
    """A module of one's own; loss(model, batch)."""
    return lambda: (make(), inputs if len(inputs) > 1 else inputs[0], loss)


def mean(model, batch):
    return (model(*batch) if isinstance(batch, tuple) else model(batch)).square().mean()


class Residual(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(width, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU(inplace=True),
                                  nn.Conv2d(width, width, 3, padding=1), nn.BatchNorm2d(width))

    def forward(self, x):
        return F.relu(x + self.body(x), inplace=True)


class UNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.down, self.middle = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 16, 3, stride=2, padding=1)
        self.norm, self.up, self.out = nn.GroupNorm(4, 16), nn.ConvTranspose2d(16, 8, 2, stride=2), nn.Conv2d(16, 3, 1)

    def forward(self, x):
        a = F.silu(self.down(x))
        b = self.up(F.silu(self.norm(self.middle(a))))
        return self.out(torch.cat((a, b), 1))


class Graph(nn.Module):
    """Messages along edges, summed at their ends."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(8, 16), nn.Linear(16, 4)

    def forward(self, x, edges):
        for layer in (self.first, self.second):
            h = layer(x)
            x = torch.zeros_like(h).index_add(0, edges[1], h[edges[0]]).relu()
        return x


class Doubling(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return 2 * x.exp()

    @staticmethod
    def backward(ctx, dy):
        x, = ctx.saved_tensors
        return 2 * dy * x.exp()


class Checkpointed(nn.Module):
    def __init__(self, reentrant):
        super().__init__()
        self.layers, self.reentrant = nn.ModuleList([nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 32)) for _ in range(3)]), reentrant

    def forward(self, x):
        for layer in self.layers:
            x = torch.utils.checkpoint.checkpoint(layer, x, use_reentrant=self.reentrant)
        return x


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.body, self.out = nn.Embedding(V, 32), nn.Linear(32, 32), nn.Linear(32, V, bias=False)
        self.out.weight = self.embed.weight
        self.body.bias.requires_grad_(False)

    def forward(self, ids):
        return self.out(self.body(self.embed(ids)))


class DiT(nn.Module):
    """A block of a diffusion transformer: shifted and scaled by a condition."""

    def __init__(self):
        super().__init__()
        self.norm, self.shifts, self.attend = nn.LayerNorm(32, elementwise_affine=False), nn.Linear(8, 96), nn.MultiheadAttention(32, 4, batch_first=True)

    def forward(self, x, condition):
        shift, scale, gate = F.silu(self.shifts(condition))[:, None].chunk(3, 2)
        h = self.norm(x) * (1 + scale) + shift
        return x + gate * self.attend(h, h, h, need_weights=False)[0]


class InEightBits(nn.Module):
    """Frozen weights as whole numbers with a scale a row, made floats where they are used."""

    def __init__(self):
        super().__init__()
        self.register_buffer("whole", torch.randint(-128, 128, (32, 32), dtype=torch.int8))
        self.register_buffer("scale", torch.rand(32, 1))
        self.a, self.b = nn.Linear(32, 4, bias=False), nn.Linear(4, 32, bias=False)

    def forward(self, x):
        return F.linear(x, self.whole * self.scale) + self.b(self.a(x))


def selective(model, x):
    """Checkpoints that keep what products make."""
    from torch.utils.checkpoint import checkpoint, create_selective_checkpoint_contexts
    keep = functools.partial(create_selective_checkpoint_contexts, [torch.ops.aten.addmm.default])
    return checkpoint(model, x, use_reentrant=False, context_fn=keep).square().mean()


def in_bf16(make):
    model, batch = make()
    return model.bfloat16(), batch


def lora():
    import peft
    model, batch = theirs("LlamaForCausalLM", **GROUPED)()
    return peft.get_peft_model(model, peft.LoraConfig(r=4, target_modules=["q_proj", "v_proj"], lora_dropout=0.0)), batch


def checkpointing(make, reentrant):
    model, batch = make()
    model.gradient_checkpointing_enable({"use_reentrant": reentrant})
    model.train()
    if reentrant:
        model.enable_input_require_grads()
    return model, batch


PICTURE = {"pixel_values": torch.randn(B, 3, 32, 32), "labels": torch.tensor([0, 1])}
LLAMA = theirs("LlamaForCausalLM", **GROUPED)
ZOO = {
    "GPT-2": theirs("GPT2LMHeadModel", n_embd=32, n_layer=2, n_head=4, vocab_size=V, n_positions=64, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0),
    "Llama": LLAMA, "Mistral": theirs("MistralForCausalLM", **GROUPED), "Qwen2": theirs("Qwen2ForCausalLM", **GROUPED),
    "Qwen3": theirs("Qwen3ForCausalLM", head_dim=8, **GROUPED), "Gemma 3": theirs("Gemma3ForCausalLM", kind="Gemma3TextConfig", head_dim=8, sliding_window=8, **GROUPED),
    "Phi-3": theirs("Phi3ForCausalLM", **GROUPED), "OLMo 2": theirs("Olmo2ForCausalLM", **GROUPED),
    "Falcon": theirs("FalconForCausalLM", hidden_size=32, num_hidden_layers=2, num_attention_heads=4, vocab_size=V),
    "GPT-J": theirs("GPTJForCausalLM", n_embd=32, n_layer=2, n_head=4, vocab_size=V, n_positions=64, rotary_dim=4),
    "GPT-NeoX": theirs("GPTNeoXForCausalLM", max_position_embeddings=64, **SMALL),
    "OPT": theirs("OPTForCausalLM", hidden_size=32, num_hidden_layers=2, num_attention_heads=4, ffn_dim=48, vocab_size=V, word_embed_proj_dim=32,
                  max_position_embeddings=64, dropout=0.0),
    "BERT": theirs("BertForMaskedLM", hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, **SMALL),
    "ModernBERT": theirs("ModernBertForMaskedLM", pad_token_id=0, max_position_embeddings=64, **SMALL),
    "T5": theirs("T5ForConditionalGeneration", d_model=32, d_kv=8, d_ff=48, num_layers=2, num_heads=4, vocab_size=V, dropout_rate=0.0,
                 decoder_start_token_id=0),
    "BART": theirs("BartForConditionalGeneration", d_model=32, encoder_layers=2, decoder_layers=2, encoder_attention_heads=4, decoder_attention_heads=4,
                   encoder_ffn_dim=48, decoder_ffn_dim=48, vocab_size=V, max_position_embeddings=64, dropout=0.0),
    "classifier": theirs("LlamaForSequenceClassification", {"input_ids": IDS, "labels": torch.tensor([0, 1])}, **GROUPED),
    "Mixtral": theirs("MixtralForCausalLM", num_local_experts=4, **GROUPED),
    "Qwen3-MoE": theirs("Qwen3MoeForCausalLM", num_experts=4, head_dim=8, **MOE, **GROUPED),
    "DeepSeek-V3": theirs("DeepseekV3ForCausalLM", n_routed_experts=4, n_group=2, topk_group=1, first_k_dense_replace=1, kv_lora_rank=8, q_lora_rank=8,
                          qk_rope_head_dim=4, qk_nope_head_dim=4, v_head_dim=8, **MOE, **{**GROUPED, "num_key_value_heads": 4}),
    "ViT": theirs("ViTForImageClassification", PICTURE, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48, image_size=32,
                  patch_size=8, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0),
    "Swin": theirs("SwinForImageClassification", PICTURE, image_size=32, patch_size=4, embed_dim=16, depths=[2, 2], num_heads=[2, 4], window_size=4,
                   drop_path_rate=0.0),
    "ResNet": theirs("ResNetForImageClassification", PICTURE, embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], layer_type="basic"),
    "ConvNeXt": theirs("ConvNextForImageClassification", PICTURE, hidden_sizes=[8, 16], depths=[1, 1], num_stages=2),
    "CLIP": theirs("CLIPModel", {"input_ids": IDS, "pixel_values": PICTURE["pixel_values"], "return_loss": True},
                   text_config={**SMALL, "max_position_embeddings": 64, "eos_token_id": 2},
                   vision_config={**{k: v for k, v in SMALL.items() if k != "vocab_size"}, "image_size": 32, "patch_size": 8}, projection_dim=16),
    "Whisper": theirs("WhisperForConditionalGeneration", {"input_features": torch.randn(B, 80, 64), "labels": IDS}, d_model=32, encoder_layers=2,
                      decoder_layers=2, encoder_attention_heads=4, decoder_attention_heads=4, encoder_ffn_dim=48, decoder_ffn_dim=48, vocab_size=V,
                      max_source_positions=32, max_target_positions=64, pad_token_id=0, bos_token_id=1, eos_token_id=2, decoder_start_token_id=1),
    "Mamba": theirs("MambaForCausalLM", hidden_size=32, num_hidden_layers=2, state_size=4, vocab_size=V),
    "Mamba 2": theirs("Mamba2ForCausalLM", hidden_size=32, num_hidden_layers=2, state_size=4, vocab_size=V, num_heads=8, head_dim=8, n_groups=1, chunk_size=8),
    "RWKV": theirs("RwkvForCausalLM", hidden_size=32, num_hidden_layers=2, vocab_size=V, attention_hidden_size=32, context_length=64),
    "LLaVA": theirs("LlavaForConditionalGeneration", {"input_ids": torch.cat((torch.full((B, 16), 60), IDS), 1), "labels": torch.cat((IDS, IDS), 1),
                                                      "pixel_values": PICTURE["pixel_values"]},
                    text_config={"model_type": "llama", **GROUPED}, image_token_index=60, vision_feature_select_strategy="default",
                    vision_config={"model_type": "clip_vision_model", "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
                                   "intermediate_size": 48, "image_size": 32, "patch_size": 8}),
    "Llama in bf16": functools.partial(in_bf16, LLAMA),
    "diffusion transformer": with_loss(DiT, mean, torch.randn(2, 8, 32), torch.randn(2, 8)),
    "8 bits by hand": with_loss(InEightBits, mean, torch.randn(8, 32)),
    "selective checkpoint": with_loss(lambda: nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 32)), selective, torch.randn(8, 32)),
    "LSTM": with_loss(lambda: nn.LSTM(8, 16), lambda m, x: m(x)[0].sum(), torch.randn(5, 2, 8)),
    "Muon": lambda: (nn.Linear(32, 16, bias=False), torch.randn(8, 32), mean, torch.optim.Muon),
    "Adafactor": lambda: (nn.Linear(32, 16), torch.randn(8, 32), mean, torch.optim.Adafactor),
    "Llama with LoRA": lora, "Llama, checkpoints": functools.partial(checkpointing, LLAMA, False),
    "Llama, reentrant checkpoints": functools.partial(checkpointing, LLAMA, True),
    "checkpoints": with_loss(lambda: Checkpointed(False), mean, torch.randn(8, 32)),
    "reentrant checkpoints": with_loss(lambda: Checkpointed(True), mean, torch.randn(8, 32, requires_grad=True)),
    "residual net, in place": with_loss(lambda: nn.Sequential(nn.Conv2d(3, 8, 3), Residual(8), Residual(8)), mean, torch.randn(2, 3, 12, 12)),
    "UNet": with_loss(UNet, mean, torch.randn(2, 3, 16, 16)),
    "graph net": with_loss(Graph, mean, torch.randn(10, 8), torch.randint(10, (2, 30))),
    "multi-head attention": with_loss(lambda: nn.MultiheadAttention(32, 4, batch_first=True), lambda m, x: m(x, x, x)[0].sum(), torch.randn(2, 8, 32)),
    "encoder": with_loss(lambda: nn.TransformerEncoder(nn.TransformerEncoderLayer(32, 4, 64, 0.0, batch_first=True), 2), mean, torch.randn(2, 8, 32)),
    "a Function of one's own": with_loss(lambda: nn.Linear(32, 32), lambda m, x: Doubling.apply(m(x)).mean(), torch.randn(8, 32)),
    "tied and frozen": with_loss(Tied, lambda m, ids: F.cross_entropy(m(ids).flatten(0, 1), ids.flatten()), IDS),
    "embedding bag": with_loss(lambda: nn.EmbeddingBag(V, 32), lambda m, ids: m(ids).square().mean(), IDS),
    "1,502 modules": with_loss(lambda: nn.Sequential(*(nn.Sequential(nn.Linear(8, 8), nn.ReLU()) for _ in range(500)), nn.Linear(8, 8)), mean, torch.randn(2, 8)),
}
ADAMW = functools.partial(torch.optim.AdamW, foreach=True)

# Where a count differs, why.
REASONS = {
    "LSTM": "it counts as cells; the CPU runs oneDNN's as one, CUDA cuDNN's, whose reserve is not published",
    "embedding bag": "the CPU's has one bag number more and a row number for each bag",
    "DeepSeek-V3": "a mode that watches, as the count by hand does, makes index's backward add into a copy",
}


def both(make):
    """(memtape's figures, the figures by hand)"""
    found = []
    for count in (lambda model, batch, optimizer, loss: of_report(memtape.torch.profile(model, batch, optimizer, loss=loss, attention="math")),
                  lambda model, batch, optimizer, loss: step_by_hand(model, batch, optimizer, loss or memtape._step._loss)):
        torch.manual_seed(0)
        model, batch, *more = make()
        loss, optimizer = [*more, None, None][:2]
        model.train()
        with sdpa_kernel(SDPBackend.MATH):
            found.append(count(model, batch, (optimizer or ADAMW)(p for p in model.parameters() if p.requires_grad), loss))
    return found


def main(names):
    print(f"PyTorch {torch.__version__}, Transformers {transformers.__version__}")
    names_of = ("saved", "forward peak", "forward end", "backward peak", "backward end", "step peak", "step end")
    for name in names or ZOO:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                ours, hand = both(ZOO[name])
        except Exception as error:  # a row of the table, too
            print(f"{name:30} {type(error).__name__}: {str(error).splitlines()[0][:300]}")
            check(name in REASONS, f"{name}: {error}")
            continue
        flat = [(ours[0], hand[0]), *((a, b) for p, q in zip(ours[1], hand[1]) for a, b in zip(p, q))]
        differ = {figure: a - b for figure, (a, b) in zip(names_of, flat) if a != b}
        print(f"{name:30} {hand[0]:>9,} saved  {max(p for p, _ in hand[1]):>9,} peak  "
              + (f"differs: {differ}; {REASONS.get(name, 'no reason is known')}" if differ else "equal"))
        check(not differ or name in REASONS, f"{name}: {differ}")
    done()


main(sys.argv[1:])
