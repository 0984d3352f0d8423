"""Models of PyTorch's world in memtape.torch, each beside a count by hand on the CPU (counting.py): saved bytes, and of a step the peak
and the end of forward, backward and optimizer. Where the CPU runs other operations than CUDA, attention runs as its parts on both, and
what still differs has a named reason. Prints a table. Exit status 77 without PyTorch or Transformers.

    python3 tests/python/zoo.py [name ...]
    python3 tests/python/zoo.py --write      writes docs/modules.md, which a run of all compares with what it finds"""
import functools
import re
import sys
import warnings
from pathlib import Path
sys.path.append(str(Path(__file__).parent.parent / "program" / "verbs"))
from lib import check, done  # noqa: E402
from yardsticks import torch, transformers  # noqa: E402
import memtape.torch  # noqa: E402
from counting import of_report, step_by_hand  # noqa: E402
from practice import PRACTICE  # noqa: E402
from shards import ADAMW, SETUPS, by_pytorch, ids, of_ranks, sharded  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402
from torch.nn.attention import SDPBackend, sdpa_kernel  # noqa: E402

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
    **PRACTICE,
    "Wav2Vec2, CTC": theirs("Wav2Vec2ForCTC", {"input_values": torch.randn(2, 400), "labels": torch.randint(1, 10, (2, 4))}, hidden_size=32,
                            num_hidden_layers=2, num_attention_heads=4, intermediate_size=48, vocab_size=12, conv_dim=(8, 8), conv_stride=(5, 2),
                            conv_kernel=(10, 3), num_feat_extract_layers=2, num_conv_pos_embeddings=4, num_conv_pos_embedding_groups=2,
                            hidden_dropout=0.0, attention_dropout=0.0, feat_proj_dropout=0.0, activation_dropout=0.0, layerdrop=0.0,
                            apply_spec_augment=False, final_dropout=0.0, pad_token_id=0),
    "1,502 modules": with_loss(lambda: nn.Sequential(*(nn.Sequential(nn.Linear(8, 8), nn.ReLU()) for _ in range(500)), nn.Linear(8, 8)), mean, torch.randn(2, 8)),
}
CELLS = "it counts as cells; the CPU runs oneDNN's as one, CUDA cuDNN's, whose reserve is not published"
WITHIN = "mse_loss makes its elements within, which a mode does not see; the allocator's record does"
# Where a count differs: why, and by how many bytes, or None where that depends on the processor. Any other difference is a failure, and so is
# a reason that nothing needs any more.
REASONS = {
    "LSTM": (CELLS, None),
    "GRU, packed": (CELLS, {"forward peak": -144, "forward end": -96, "backward peak": 4832}),
    "Wav2Vec2, CTC": ("CUDA's ctc_loss takes lengths and places of targets within, which the CPU has in host memory", {"forward peak": 44}),
    "embedding bag": ("the CPU's has one bag number more and a row number for each bag",
                      dict.fromkeys(("saved", "forward peak", "forward end", "backward peak"), -24)),
    "variational autoencoder": (WITHIN, {"forward peak": 2560}),
    "vector quantisation": (WITHIN, {"forward peak": 4092}),
    "DeepSeek-V3": ("a mode that watches, as the count by hand does, makes index's backward add into a copy", {"backward peak": -256}),
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


FIGURES = ("saved", "forward peak", "forward end", "backward peak", "backward end", "step peak", "step end")


def flat(saved, phases):
    return [saved, *(n for phase in phases for n in phase)]


def verdict(name, ours, hand):
    """("equal" or what differs and why, whether that is all right)"""
    differ = {figure: a - b for figure, a, b in zip(FIGURES, ours, hand) if a != b}
    reason, excused = REASONS.get(name, ("", {}))
    shown = ", ".join(f"{figure} {n:+,}" for figure, n in differ.items()) or "equal"
    if excused is None and differ or differ == excused:
        return f"{shown}: {reason}" if reason else shown, True
    return f"{shown}: " + (f"{excused} is what has a reason: {reason}" if reason else "no reason is known"), False


def row_of(name):
    """The figures by hand, and the verdict."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ours, hand = (flat(*found) for found in both(ZOO[name]))
    said, good = verdict(name, ours, hand)
    check(good, f"{name}: {said}")
    return hand, said


# ---- FSDP2, beside PyTorch's own tracker ----

def llama():
    torch.manual_seed(0)
    return LLAMA()[0]


def loss_of(model, batch):
    return memtape.torch._step._of_output(model(input_ids=batch, labels=batch))


def sharded_rows():
    """(name, [six figures by FSDPMemTracker], verdict): GPT and Llama on 2 and 8 ranks."""
    of_llama = {"make": llama, "layers": lambda model: model.model.layers}
    for what, options in SETUPS.items():
        for ranks in (2, 8):
            for name, more, loss in (("GPT", {}, None), ("Llama", of_llama, loss_of)):
                with of_ranks(ranks) as mesh, sdpa_kernel(SDPBackend.MATH):
                    model = sharded(mesh, **{**options, **more})
                    report = memtape.torch.profile(model, ids(), ADAMW(model.parameters()), loss=loss, attention="math")
                    hand = by_pytorch(model, ids(), ADAMW(model.parameters()), loss=loss)
                counts = 4 * len(list(model.parameters()))
                ours, hand = flat(0, of_report(report)[1])[1:], flat(0, hand)[1:]
                ok = [a + counts for a in ours] == hand
                title = f"{name}, {what}, {ranks} ranks"
                check(ok, f"{title}: {ours}, FSDPMemTracker says {hand}")
                yield title, hand, f"equal, less {counts} bytes of step counters" if ok else "no reason is known"


# ---- what is refused ----

class Asking(nn.Module):
    def __init__(self, ask):
        super().__init__()
        self.fc, self.ask = nn.Linear(32, 32), ask

    def forward(self, x):
        return self.ask(self.fc(x))


def asked(ask, make=torch.optim.SGD, **options):
    model = Asking(ask)
    return lambda: memtape.torch.profile(model, torch.randn(16, 32), make(model.parameters()), **options)


def of_strangers():
    model = nn.Linear(32, 32)
    memtape.torch.profile(model, torch.randn(16, 32), torch.optim.SGD(nn.Linear(4, 4).parameters()), loss=mean)


def of_sparse():
    words = nn.Embedding(8, 4, sparse=True)
    memtape.torch.profile(words, torch.arange(8), torch.optim.SparseAdam(words.parameters()), loss=lambda model, i: model(i).sum())


def of_shards(make):
    def call():
        with of_ranks(2) as mesh:
            model = make(mesh)
            memtape.torch.profile(model, ids(), torch.optim.SGD(model.parameters()))
    return call


def in_host_memory(mesh):
    from torch.distributed.fsdp import CPUOffloadPolicy
    return sharded(mesh, offload_policy=CPUOffloadPolicy(pin_memory=False))


def flat_parameters(mesh):
    from torch.distributed.fsdp import FullyShardedDataParallel
    return FullyShardedDataParallel(nn.Linear(32, 32), device_id=torch.device("cpu"))


def of_tensor_parallelism(mesh):
    from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module
    return parallelize_module(nn.Sequential(nn.Linear(32, 32)), mesh, {"0": ColwiseParallel()})


REFUSED = {
    "a branch by a result": asked(lambda y: y.sum() if y.sum() > 0 else y.mean()),
    "a decision by a logged loss": asked(lambda y: y.sum() if y.mean().item() < 1 else y.mean()),
    "a shape that values decide": asked(lambda y: y[y.nonzero()[:, 0]].sum()),
    "values for NumPy": asked(lambda y: y.sum() * float(y.detach().numpy().mean())),
    "a copy in host memory": asked(lambda y: y.sum() * y.detach().cpu().sum()),
    "a tensor made on another device": asked(lambda y: (y * torch.ones(32)).sum()),
    "no loss": asked(lambda y: y),
    "no backward": asked(lambda y: y.detach().sum()),
    "LBFGS": asked(lambda y: y.sum(), torch.optim.LBFGS),
    "an optimizer of another model": of_strangers,
    "a gradient by torch.func": asked(lambda y: torch.func.grad(lambda x: x.square().sum())(y).mean()),
    "sparse gradients": of_sparse,
    "a lazy module": lambda: memtape.torch.profile(nn.LazyLinear(2), torch.randn(2, 2), torch.optim.SGD([torch.zeros(1)])),
    "attention as on the device": asked(lambda y: y.sum(), attention="device"),
    "FSDP2 with CPUOffloadPolicy": of_shards(in_host_memory), "FSDP1": of_shards(flat_parameters),
    "tensor parallelism": of_shards(of_tensor_parallelism),
}


def refusal(call):
    """The message, with the place in this file as a user would have his own."""
    try:
        call()
    except (memtape.MemtapeError, ValueError) as error:
        return re.sub(r"/\S+/zoo\.py:\d+", "zoo.py:LINE", str(error))
    check(False, f"{call} is not refused")
    return ""


# ---- the page ----

PAGE = Path(__file__).parents[2] / "docs" / "modules.md"
HEAD = """# Modules of PyTorch beside other counts

`memtape.torch.profile` counts each model here, and so does a count that knows nothing of it (`tests/python/counting.py`). Hooks see what
autograd saves, by storages. A mode sees each storage come and go in a real step on the CPU. Figures are bytes of the second of two
steps, as counted by hand. "equal" means that memtape has all seven. Attention runs as its parts in both, because the CPU has other
kernels than CUDA. `tests/python/zoo.py --write` writes this page. The long tests compare it with what they find.

"""
SHARDS = """
## FSDP2 beside PyTorch's FSDPMemTracker

`fully_shard` has made these modules layer by layer, on a process group that sends nothing. The six figures of the second step are those
of PyTorch's own tracker, `torch.distributed._tools.fsdp2_mem_tracker`. It counts a real step on the CPU. It counts AdamW's step
counters, too, which lie in host memory where parameters are on CUDA. `tests/python/test_torch_fsdp.py` has one rank and two replicas
of four shards besides.

"""
REFUSALS = """
## What is refused

A step on meta computes only values that follow from the batch's whole numbers. What asks for others is refused. The message names the
module, the line and what to do. What is not counted yet is refused, too. These are the messages, with `zoo.py:LINE` for a line of yours:

"""


def page(rows, of_shards_, refusals):
    lines = [HEAD + f"With PyTorch {torch.__version__.partition('+')[0]} and Transformers {transformers.__version__}.\n",
             f"| model | {' | '.join(FIGURES)} | memtape |", "|---|" + "---:|" * 7 + "---|"]
    lines += [f"| {name} | {' | '.join(f'{n:,}' for n in hand)} | {said} |" for name, (hand, said) in rows.items()]
    lines += [SHARDS + f"| set-up | {' | '.join(FIGURES[1:])} | memtape |", "|---|" + "---:|" * 6 + "---|"]
    lines += [f"| {name} | {' | '.join(f'{n:,}' for n in hand)} | {said} |" for name, hand, said in of_shards_]
    lines += [REFUSALS + "| | |", "|---|---|"]
    lines += [f"| {what} | {said} |" for what, said in refusals]
    return "\n".join(lines) + "\n"


def main(names):
    print(f"PyTorch {torch.__version__}, Transformers {transformers.__version__}")
    writes = names == ["--write"]
    rows, lacking = {}, []
    for name in ZOO if writes else names or ZOO:
        try:
            hand, said = rows[name] = row_of(name)
        except ImportError as error:
            if writes:
                sys.exit(f"zoo.py --write: {name} needs {error.name}, which is not installed: pip install {error.name}. {PAGE.name} stays as it is")
            print(f"skipped: {name}: {error}")
            lacking.append(f"| {name} |")
            continue
        except Exception as error:  # a row of the table, too
            rows[name] = [0] * 7, f"{type(error).__name__}: {str(error).splitlines()[0][:300]}"
            check(False, f"{name}: {rows[name][1]}")
            continue
        print(f"{name:30} {hand[0]:>9,} saved  {max(hand[1:]):>9,} peak  {said}")
    if names and not writes:
        done()
    text = page(rows, list(sharded_rows()), [(what, refusal(call)) for what, call in REFUSED.items()])
    if writes:
        PAGE.write_text(text)
    elif f"PyTorch {torch.__version__.partition('+')[0]} and Transformers {transformers.__version__}." in PAGE.read_text():
        theirs = [line for line in PAGE.read_text().splitlines() if not line.startswith(tuple(lacking or ["|||"]))]
        check(text.splitlines() == theirs, f"{PAGE.name} is not what zoo.py --write writes: "
              f"{[pair for pair in zip(theirs, text.splitlines()) if pair[0] != pair[1]][:3]}")
    else:
        print(f"skipped: {PAGE.name} is of other versions")
    done()


main(sys.argv[1:])
