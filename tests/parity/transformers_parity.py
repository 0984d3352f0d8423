#!/usr/bin/env python3
"""transformers_parity.py LIBMEMTAPE_CASES MEMTAPE [--list CASE | --write-doc]: compares `--recipe hf` with Hugging
Face's Transformers on the CPU.

A case is a small random model, made from a config, with one attention and dtype. The program reads the config.json
that Transformers writes. Storage by storage, what it keeps must be what Transformers keeps, but for the rows of
DIFFERENCES; in f32 the loss and every gradient are compared, too. --list prints both lists of storages; --write-doc
writes docs/parity-transformers.md. Exit status 77 if Transformers or PyTorch is not installed."""

import contextlib
import copy
import json
import os
import subprocess
import sys
import tempfile
import weakref
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"
try:
    import numpy  # noqa: F401
    import torch
    import transformers
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

import memtape
from harness import MODEL_TOLERANCE, SavedTensors, Tally, address, far, relative_error
from lifetimes import Lifetimes
from published import is_buffer, theirs_for
from transformers_draw import EXPERTS, GLM, LATENT, MASKED, OSS, ROTARY, SHARED, draw
from transformers_page import DIFFERENCES, document

LONG = os.environ.get("MTT_LONG") == "1"
DRAWS, LONG_DRAWS = 72, 600
DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "parity-transformers.md"
DTYPES = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}


# ---- the cases ----

@dataclass
class Case:
    family: str
    attention: str  # Transformers' name: sdpa or eager
    dtype: str
    b: int = 2
    s: int = 64
    sizes: dict = field(default_factory=lambda: {"d": 64, "layers": 2, "heads": 4, "kv": 2, "f": 256, "v": 256})
    more: dict = field(default_factory=dict)  # for the config
    amp: bool = False  # autocast to bf16
    checkpoint: bool = False  # each layer is recomputed
    seed: int = None  # of a random draw
    context: int = None  # None: s
    loop: bool = False  # experts_implementation="eager", one expert after the other
    rows: list = field(default_factory=list)  # that each expert of each layer had in Transformers' forward

    @property
    def options(self):
        return ("--recipe", "hf", *(("--recipe", "plain:expert-form=loop") if self.loop else ()))

    @property
    def name(self):
        if self.seed is not None:
            return f"draw {self.seed}"
        # A comma-free name can be given to --list.
        more = "".join(f" {key}" for key in self.more)
        return (f"{self.family}{more} {self.attention} {self.floats}{' checkpoint' * self.checkpoint}"
                f"{' loop' * self.loop} s={self.s}")

    @property
    def floats(self):
        return self.dtype + " autocast" * self.amp

    @property
    def causal(self):
        return self.family not in MASKED


EIGHT = {"d": 64, "layers": 2, "heads": 4, "kv": 2, "f": 48, "v": 256, "experts": 8, "k": 2}
DEEP = EIGHT | {"kv": 4, "width": 24, "value": 16, "rope": 8, "rank": 32, "q_rank": 40, "shared": 1, "groups": 4, "met": 2,
                "dense": 1, "dense_f": 112}
ODD = {"d": 48, "layers": 3, "heads": 6, "kv": 3, "f": 80, "v": 131}
DOCUMENTED = ("gpt2", "opt", "gpt_neox", *ROTARY, "bert")


def cases():
    for family in DOCUMENTED:
        # Transformers refuses capped scores with sdpa.
        for attention in ("eager",) if family == "gemma2" else ("sdpa", "eager"):
            yield Case(family, attention, "f32", checkpoint=True)
            for dtype in ("f32", "bf16"):
                yield Case(family, attention, dtype)
            # These call operations that PyTorch autocasts otherwise on the CPU than on CUDA.
            if family not in ("gpt2", "opt", "gpt_neox", "bert"):
                yield Case(family, attention, "f32", amp=True)
            yield Case(family, attention, "f32", 3, 17, ODD)
    for family in EXPERTS:
        yield Case(family, "sdpa", "f32", sizes=EIGHT, checkpoint=True)
        yield Case(family, "sdpa", "bf16", sizes=EIGHT)
        yield Case(family, "sdpa", "f32", sizes=EIGHT, amp=True)
        yield Case(family, "sdpa", "f32", 1, 9, ODD | {"experts": 1, "k": 1})
        yield Case(family, "eager", "f32", 3, 17, ODD | {"experts": 5, "k": 3})
        yield Case(family, "sdpa", "f32", 3, 17, ODD | {"experts": 5, "k": 3}, loop=True)
        balanced = {"output_router_logits": True, "router_aux_loss_coef": 0.5}
        yield Case(family, "sdpa", "f32", 3, 17, ODD | {"experts": 5, "k": 3}, balanced)
        yield Case(family, "sdpa", "bf16", sizes=EIGHT, more=balanced, checkpoint=family == "olmoe")
        if family != "mixtral":  # its weights are f32, the outputs too then
            yield Case(family, "sdpa", "bf16", sizes=EIGHT, loop=True)
    yield Case("llama", "sdpa", "f32", 2, 9, ODD | {"heads": 4, "kv": 2, "width": 258, "head_dim": True})
    for family in OSS:
        yield Case(family, "eager", "f32", 2, 17, EIGHT | {"width": 16}, {"sliding_window": 5}, checkpoint=True)
        yield Case(family, "eager", "bf16", sizes=EIGHT | {"width": 16})
        yield Case(family, "eager", "f32", sizes=EIGHT | {"width": 16})
        yield Case(family, "eager", "f32", 3, 17, ODD | {"experts": 5, "k": 3, "width": 8}, {"sliding_window": 5})
    for family in LATENT:
        even = DEEP | {"value": 24}
        yield Case(family, "sdpa", "f32", sizes=even, checkpoint=True)
        yield Case(family, "sdpa", "bf16", sizes=even)
        yield Case(family, "sdpa", "f32", sizes=even, amp=True)
        yield Case(family, "sdpa", "f32", 1, 9, ODD | DEEP | {"experts": 4, "groups": 1, "met": 1, "k": 2, "value": 24})
        yield Case(family, "eager", "f32", 3, 17, DEEP | {"q_rank": None, "shared": 2, "layers": 3})
        yield Case(family, "eager", "bf16", sizes=DEEP)
    for attention in ("sdpa", "eager"):
        yield Case("llama", attention, "bf16", 1, 33, ODD | {"kv": 6})
        yield Case("llama", attention, "f32", 2, 9, ODD, {"tie_word_embeddings": True})
        yield Case("llama", attention, "f32", 1, 9, ODD | {"kv": 1})
        yield Case("phi3", attention, "f32", 2, 9, ODD | {"kv": 6})
        yield Case("phi3", attention, "bf16", 2, 17, ODD, {"sliding_window": 5})
        yield Case("mistral", attention, "f32", 2, 17, ODD, {"sliding_window": 5})
        yield Case("qwen3", attention, "f32", 2, 17, ODD, {"sliding_window": 3, "use_sliding_window": True, "max_window_layers": 1})
        yield Case("gemma3_text", attention, "f32", 2, 17, ODD, {"sliding_window": 17})
        yield Case("gpt2", attention, "f32", 2, 9, ODD, {"activation_function": "gelu_pytorch_tanh"})
        yield Case("bert", attention, "f32", 2, 9, ODD, {"hidden_act": "gelu_fast"})
        yield Case("roberta", attention, "f32", 2, 9, ODD, {"pad_token_id": 0})


def their_config(case):
    z, c, context = case.sizes, {"vocab_size": case.sizes["v"]}, case.context or case.s
    if case.family == "gpt2":
        return transformers.GPT2Config(
            n_embd=z["d"], n_layer=z["layers"], n_head=z["heads"], n_positions=context, resid_pdrop=0.0, embd_pdrop=0.0,
            attn_pdrop=0.0, bos_token_id=0, eos_token_id=0, **c | {"n_inner": z["f"]} | case.more)
    c |= {"hidden_size": z["d"], "num_hidden_layers": z["layers"], "num_attention_heads": z["heads"],
          "intermediate_size": z["f"], "max_position_embeddings": context, "bos_token_id": 0, "eos_token_id": 0}
    if case.family == "opt":
        del c["intermediate_size"]
        return transformers.OPTConfig(**c | {"ffn_dim": z["f"], "dropout": 0.0, "pad_token_id": 0} | case.more)
    if case.family in MASKED:
        c |= {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
        if case.family != "bert":  # positions come after the padding
            c["max_position_embeddings"] += case.more["pad_token_id"] + 1
    elif case.family != "gpt_neox":
        c |= {"num_key_value_heads": z["kv"], "pad_token_id": 0}
    if case.family in ("qwen3", "gemma", "gemma2", "gemma3_text", *OSS, *GLM) or z.get("head_dim"):
        c["head_dim"] = z.get("width", z["d"] // z["heads"])
    if case.family in (*EXPERTS, *OSS):
        c |= {"num_experts_per_tok": z["k"], "num_local_experts": z["experts"]}
    if case.family in SHARED:
        c |= {"num_experts_per_tok": z["k"], "n_routed_experts": z["experts"], "n_shared_experts": z["shared"],
              "moe_intermediate_size": z["f"], "intermediate_size": z["dense_f"], "first_k_dense_replace": z["dense"],
              "n_group": z["groups"], "topk_group": z["met"]}
    if case.family in LATENT:
        c |= {"kv_lora_rank": z["rank"], "q_lora_rank": z["q_rank"],
              "qk_nope_head_dim": z["width"] - z["rope"], "qk_rope_head_dim": z["rope"], "v_head_dim": z["value"],
              "topk_method": "group_limited_greedy" if case.family == "deepseek_v2" else "noaux_tc"}
    if case.family == "qwen3_moe":
        c |= {"moe_intermediate_size": z["f"], "norm_topk_prob": True}
    if case.family == "gemma3_text":
        c["_sliding_window_pattern"] = 2  # every second layer turns by other angles
    if case.family == "smollm3":
        c["no_rope_layer_interval"] = 2
    return transformers.AutoConfig.for_model(case.family, **c | case.more)


def their_model(case):
    torch.manual_seed(5)
    auto = transformers.AutoModelForCausalLM if case.causal else transformers.AutoModelForMaskedLM
    experts = {"experts_implementation": "eager"} if case.loop else {}
    model = auto.from_config(their_config(case), attn_implementation=case.attention, **experts)
    with torch.no_grad():  # biases of 0 and weights of 1 would hide mistakes
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.05)
    if case.checkpoint:
        model.activation_checkpointing_enable()
    return model.to(DTYPES[case.dtype]).train()


# ---- the instrument ----

@dataclass
class Storage:
    n_bytes: int
    shape: tuple
    dtype: str
    module: str
    saver: str  # Transformers: the node that made the tensor; memtape: the op that keeps it, and as what


class Held:
    """A tensor as a node has it: gone with the node, as of a choice for whose gradient nothing asks."""

    def __init__(self, t):
        self.t = t


class TheirStorages(SavedTensors):
    """Also describes each storage that is kept in the end, by its first saver. Buffers are left out, as parameters are."""

    def __init__(self, model):
        super().__init__([*model.parameters(), *model.buffers()])
        self.list, self.path, self.handles, self.holders = [], [], [], {}
        self.unpack_hook = lambda held: held.t
        for name, module in model.named_modules():
            self.handles.append(module.register_forward_pre_hook(
                lambda m, args, name=name: self.path.append(name)))
            self.handles.append(module.register_forward_hook(self._leave))

    def _leave(self, module, arguments, result):
        self.path.pop()

    def _pack(self, t):
        n = len(self.kept)
        super()._pack(t)
        if len(self.kept) > n:
            self.list.append(Storage(t.untyped_storage().nbytes(), tuple(t.shape),
                                     str(t.dtype).removeprefix("torch."),
                                     self.path[-1] if self.path else "loss",
                                     type(t.grad_fn).__name__ if t.grad_fn is not None else "-"))
        held = Held(t)
        self.holders.setdefault(address(t), []).append(weakref.ref(held))
        return held

    def __exit__(self, *error):
        for handle in self.handles:
            handle.remove()
        alive = [any(held() for held in self.holders[a]) for a in self.kept]
        self.list = [s for s, is_alive in zip(self.list, alive) if is_alive]
        return super().__exit__(*error)


def draw_tokens(case):
    generator = torch.Generator().manual_seed(11)
    return [torch.randint(1, case.sizes["v"], (case.b, case.s), generator=generator) for _ in range(2)]


def their_run(case, model):
    """(storages, loss), before backward."""
    ids, labels = draw_tokens(case)
    # Trainer has no cache in training, by default (TrainingArguments.use_cache).
    cache = {"use_cache": False} if case.causal else {}
    autocast = torch.autocast("cpu", dtype=torch.bfloat16, enabled=case.amp)
    with TheirStorages(model) as found, autocast, counted(case, model):
        loss = model(input_ids=ids, labels=labels, **cache).loss
    return found.list, loss


@contextlib.contextmanager
def counted(case, model):
    """Fills case.rows."""
    case.rows.clear()
    routers = [m for m in model.modules() if type(m).__name__.endswith("TopKRouter")]
    handles = [m.register_forward_hook(lambda m, arguments, result: case.rows.append(
        result[2].flatten().bincount(minlength=m.num_experts).tolist())) for m in routers]
    yield
    for handle in handles:
        handle.remove()


class Refused(Exception):
    pass


def our_profile(program, case, model, *options):
    """The program's JSON for the config.json that Transformers writes."""
    form = {"sdpa": "flash", "eager": "math"}[case.attention]
    with tempfile.TemporaryDirectory() as folder:
        model.config.save_pretrained(folder)
        if case.loop:  # storages are as large as an expert's rows
            recorded = {"schema": "memtape.routing/1", "experts": case.sizes["experts"], "layers": case.rows}
            Path(folder, "rows.json").write_text(json.dumps(recorded))
            options += ("--routing", f"recorded={folder}/rows.json")
        p = subprocess.run(
            [program, "profile", folder + "/config.json", "-b", str(case.b), "-s", str(case.s),
             "--dtype", case.dtype, "--attention", form, "--device", "meta", "--json", "-",
             "--amp", "bf16" if case.amp else "none", "--checkpoint", "full" if case.checkpoint else "none",
             *options],
            capture_output=True, text=True)
    if p.returncode:
        raise Refused(p.stderr.strip().splitlines()[-1])
    return json.loads(p.stdout)


def our_storages(profile):
    return [Storage(t["bytes"], tuple(t["shape"]), t["dtype"], t["module"],
                    f"{t['op']}, {t['role']} {t['name']}") for t in profile["saved"]["tensors"]]


# ---- the named differences: storages that only one of the two keeps ----

def window_layers(case):
    """How many layers of flash attention get a mask: those whose window is not longer than the sequence."""
    config = their_config(case)
    window = getattr(config, "sliding_window", None)
    if case.attention != "sdpa" or not window or case.s < window:
        return 0
    types = getattr(config, "layer_types", None)
    return types.count("sliding_attention") if types else case.sizes["layers"]


def of_inputs(case):
    """Rows of differences() about what is there once, whether or not layers are checkpoints."""
    z, e = case.sizes, DTYPES[case.dtype].itemsize
    if case.causal:
        yield "ignored labels", [case.b * case.s], []
    else:
        yield "class weights", [], [e]
    if case.family in ("gpt2", "bert"):
        yield "looked-up rows", [], [8 * case.s]
    elif not case.causal or case.family == "opt":
        yield "counted positions", [], [8 * case.b * case.s] * (1 if case.causal else 2)
    if case.causal and case.b == 1:
        yield "padded labels", [8 * case.s], [8 * (case.s + 1)]
    if not case.causal and case.more.get("hidden_act") == "gelu_fast":  # the head's
        yield "fast gelu", [], 3 * [case.b * case.s * z["d"] * e]


def of_attention(case):
    z, e, tokens = case.sizes, DTYPES[case.dtype].itemsize, case.b * case.s
    width = z.get("width", z["d"] // z["heads"])
    q, k, layers = tokens * z["heads"] * width, tokens * z["kv"] * width, z["layers"]
    copied = case.b > 1 and z["heads"] > 1  # by a batched product
    if case.attention == "sdpa":
        yield "generator", 2 * layers * [8], []
    if not case.causal or case.family == "opt" or case.family == "gpt2" and case.attention == "eager" and copied:
        yield "apart", layers * [3 * q * e], 3 * layers * [q * e]
    e = 2 if case.amp else e
    if case.family in ("phi3", "gpt_neox", *SHARED) and case.attention == "sdpa" and z["heads"] > 1 and case.s > 1:
        yield "merged by a copy", [], layers * [q * e]
    if case.attention == "sdpa" and z["kv"] < z["heads"] and case.s > 1 and width > 256:
        # Of one head that is a view, whose cast is a copy; under autocast values are cast already.
        n = layers - window_layers(case)
        values = q + 2 * k if case.family == "phi3" else k
        if z["kv"] > 1:
            yield "repeated by sdpa", n * [k * e, values * e], 2 * n * [q * e]
        elif case.amp:
            yield "repeated by sdpa", n * [k * e], n * [q * e]
    if (case.family in ("qwen3", "qwen3_moe", "olmoe") or case.more.get("use_qk_norm")) and case.amp:
        yield "mixed factors", layers * [4 * q, 4 * k], layers * [2 * q, 2 * k]
    if case.family in ("qwen3_moe", "olmoe") and case.amp:
        yield "mixed factors", layers * [4 * tokens * z["k"]], layers * [2 * tokens * z["k"]]
    with_experts = layers - min(layers, z.get("dense", 0))
    if case.family in LATENT and case.amp:
        rows = [tokens * n for n in (z["q_rank"] or 0, z["rank"]) if n]
        yield "mixed factors", layers * [4 * n for n in rows], layers * [2 * n for n in rows]
    if case.family in ("deepseek_v3", *GLM) and case.amp and with_experts:
        rows = [tokens * z["k"]] * (1 + case.more.get("norm_topk_prob", True))
        rows += [tokens] * case.more.get("norm_topk_prob", True)
        yield "mixed factors", with_experts * [4 * n for n in rows], with_experts * [2 * n for n in rows]
    if case.family in SHARED and case.dtype != "f32" and with_experts:
        yield "wide weights of experts", with_experts * [2 * tokens * z["k"]], with_experts * [4 * tokens * z["k"]]
    if case.family == "mixtral" and case.dtype != "f32":
        yield "wide weights of experts", layers * [2 * tokens * z["k"]], layers * [4 * tokens * z["k"]]


def differences(case):
    """[(row, bytes of storages that memtape alone keeps, bytes of those that Transformers alone keeps)]"""
    z, e, tokens = case.sizes, DTYPES[case.dtype].itemsize, case.b * case.s
    rows, layers = list(of_inputs(case)), 0 if case.checkpoint else z["layers"]
    if case.checkpoint and case.family == "gpt2" and case.attention == "eager":
        rows.append(("mask of checkpoints", [], [case.b * case.s**2 * e]))
    if not case.checkpoint:
        rows += of_attention(case)
        act = {"gpt2": "activation_function", "opt": "activation_function", "gpt_neox": "hidden_act", "bert": "hidden_act"}.get(case.family, "hidden_activation")
        if case.more.get(act) == "gelu_fast":
            f = 4 * z["d"] if "n_inner" in case.more else z["f"]
            rows.append(("fast gelu", [], 3 * layers * [tokens * f * e]))
    if case.family in OSS and e == 2:
        rows.append(("wide norms", (2 * layers + 1) * [2 * tokens * z["d"]], (2 * layers + 1) * [4 * tokens * z["d"]]))
    if case.family == "olmo2" and e == 2:
        width = z["d"] // z["heads"]
        q, k = tokens * z["d"], tokens * z["kv"] * width
        wide = (0 if case.checkpoint else 2) * [case.s * width] + (2 * layers + 1) * [q] + layers * [q, k]
        rows.append(("wide norms", [2 * n for n in wide], [4 * n for n in wide]))
    if (case.family in ("gpt2", "opt", "gpt_neox") or not case.causal) and e == 2:
        norms = 2 * layers + (1 if case.causal else 2)
        rows.append(("norm statistics", 2 * norms * [4 * tokens], 2 * norms * [2 * tokens]))
    return rows


def bytes_faults(case, ours, theirs):
    left, right = Counter(s.n_bytes for s in ours), Counter(s.n_bytes for s in theirs)
    for _, mine, others in differences(case):
        left.subtract(mine)
        right.subtract(others)
    for n_bytes in sorted(left | right | +left):
        if left[n_bytes] != right[n_bytes]:
            yield f"storages of {n_bytes} bytes: {left[n_bytes]}, Transformers {right[n_bytes]}"
    missing = [n for count in (left, right) for n in count if count[n] < 0]
    if missing:
        yield f"named differences that are not there: storages of {missing} bytes"
    total = sum(s.n_bytes for s in theirs)
    total += sum(sum(mine) - sum(others) for _, mine, others in differences(case))
    if sum(s.n_bytes for s in ours) != total:
        yield f"saved bytes: {sum(s.n_bytes for s in ours)}, not {total}"


# ---- values ----

def exact_gradients(case, model):
    """Transformers' gradients in f64, of the same weights. In some draws f32 loses more digits than usual: where Transformers' own is
    off, ours may be twice as far from it."""
    exact = copy.deepcopy(model).double()
    exact.set_experts_implementation("eager")  # PyTorch has no grouped product in f64
    exact.zero_grad()
    ids, labels = draw_tokens(case)
    exact(input_ids=ids, labels=labels).loss.backward()
    return {name: p.grad for name, p in exact.named_parameters()}


def value_faults(library, case, model, loss, profile):
    """Loss and gradients of memtape's model with the same weights and the recipe's ops."""
    loss.backward()
    ops = {key: value for key, value in profile["model"]["ops"].items() if value}
    ops |= {"expert_form": "loop"} if case.loop else {}
    mine = memtape.Model(library, hf=model.config.to_dict() | {"dtype": "float32"},
                         attention=profile["model"]["attention"], **ops)
    parameters = dict(model.named_parameters())
    for name, p in mine.parameters.items():
        data = theirs_for(case.family, name, parameters | dict(model.named_buffers())).detach().clone(memory_format=torch.contiguous_format).view(torch.uint8).numpy()
        library.check(library.mt_copy_from_host(p.pointer, data.ctypes.data, data.nbytes))
    ids, labels = draw_tokens(case)
    if case.causal:  # Transformers shifts the labels within the loss
        labels = torch.cat((labels[:, 1:], torch.full((case.b, 1), -100)), 1)
    ours = (mine.loss(library.tensor(ids), library.tensor(labels)) if "output_router_logits" in case.more else
            library.call("cross_entropy", mine(library.tensor(ids)), library.tensor(labels), -100))
    tolerance = MODEL_TOLERANCE[torch.float32]
    fault = far(ours.torch(), loss, tolerance)
    if fault:
        yield f"loss: {fault}"
    ours.backward(library.tensor(torch.ones(())))
    gradients, exact = {name: p.grad for name, p in parameters.items()}, None
    for name, p in mine.parameters.items():
        if is_buffer(case.family, name):
            continue
        ours, theirs = p.grad and p.grad.torch(), theirs_for(case.family, name, gradients)
        fault = far(ours, theirs, tolerance)
        if fault and ours is not None and theirs is not None:
            exact = exact or exact_gradients(case, model)
            there = theirs_for(case.family, name, exact)
            if there.abs().max() < 1e-7:  # rounding: the weight of the only expert is 1, whatever its router says
                fault = far(ours + 1, there.float() + 1, 1e-6)
            else:
                fault = far(ours, theirs, 2 * relative_error(theirs, there))
        if fault:
            yield f"gradient of {name}: {fault}"


def peak_faults(program, case):
    """The most bytes of a step. Backward holds two tensors of all experts' weights: with enough experts nothing is larger."""
    case = Case(case.family, case.attention, "bf16", sizes=EIGHT | {"f": 128, "experts": 16}, loop=True)
    model = their_model(case)
    ids, labels = draw_tokens(case)
    with counted(case, model), Lifetimes([*model.parameters(), ids, labels]) as theirs:
        model(input_ids=ids, labels=labels, use_cache=False).loss.backward()
    profile = our_profile(program, case, model, *case.options, "--optimizer", "none")
    ours = max(phase["requested_peak"] for phase in profile["phases"]) - profile["params"]["bytes"]
    # Under a mode of dispatch PyTorch adds gradients up out of place, when the expert's own has gone.
    one = 2 * case.sizes["f"] * case.sizes["d"] * 2
    real = theirs.peak - (case.sizes["experts"] - 1) * one
    if not 0 <= ours - real - 2 * ids.nbytes <= 16:  # tokens and targets count here, and a few scalars
        yield f"peak of a step: {ours}, Transformers {real}"


# ---- running ----

def run_case(library, program, case, figures):
    model = their_model(case)
    theirs, loss = their_run(case, model)
    profile = our_profile(program, case, model, *case.options)
    plain = our_profile(program, case, model, *case.options[2:])
    yield from bytes_faults(case, our_storages(profile), theirs)
    if case.loop and case.dtype == "bf16":
        yield from peak_faults(program, case)
    if (profile["formula"] or {}).get("unexplained"):
        yield f"formula: {profile['formula']['unexplained']} bytes unexplained"
    figures.append((case, sum(s.n_bytes for s in theirs), profile["saved"]["bytes"], plain["saved"]["bytes"],
                    profile["model"]["recipe_options"]))
    if case.floats == "f32" and not case.checkpoint:
        yield from value_faults(library, case, model, loss, profile)
    if LONG or case.dtype != "f32" or case.checkpoint:
        yield from planted_faults(program, case, model, theirs, profile)


def planted_faults(program, case, model, theirs, profile):
    """Each option of the recipe, taken back, must be noticed; so must a tensor more in Transformers."""
    # A checkpoint hides what its layer would keep.
    others, _, keys = ("" if case.checkpoint else profile["model"]["recipe_options"]).partition("--recipe plain:")
    words = others.split()
    defaults = {"unfused": "fused", "f32": "native", "repeated": "shared", "kept": "none"}
    for option, value in [*zip(words[::2], words[1::2]), *(key.split("=") for key in keys.split(",") if key)]:
        if option == "kv-groups" and case.b == case.sizes["kv"] == 1:
            continue  # a view
        if option == "window-mask" and not window_layers(case):
            continue  # no mask: all see all
        back = [option, "native"] if option == "--loss" else ["--recipe", f"plain:{option}={defaults[value]}"]
        other = our_profile(program, case, model, *case.options, *back)
        if not list(bytes_faults(case, our_storages(other), theirs)):
            yield f"without {option} {value} it keeps the same storages"
    extra = Storage(12345, (), "float32", "", "")
    if not list(bytes_faults(case, our_storages(profile), theirs + [extra])):
        yield "a planted storage was not found"


def print_list(program, case):
    model = their_model(case)
    theirs, _ = their_run(case, model)
    ours = our_storages(our_profile(program, case, model, *case.options))
    for title, storages in (("Transformers", theirs), ("memtape --recipe hf", ours)):
        print(f"{title}: {sum(s.n_bytes for s in storages):,} bytes")
        for s in storages:
            print(f"  {s.n_bytes:>9,}  {s.dtype:<8} {str(list(s.shape)):<16} {s.module:<50} {s.saver}")
    for row, mine, others in differences(case):
        print(f"difference: {row}: memtape {sum(mine):,}, Transformers {sum(others):,}")


def run_drawn(library, program, case):
    """Values, too, of what has windows or scaled angles. Not where gradients are rounding: one token has no target, of two the first
    sees itself alone, and a norm of one number is its sign."""
    model = their_model(case)
    theirs, loss = their_run(case, model)
    profile = our_profile(program, case, model, *case.options)
    yield from bytes_faults(case, our_storages(profile), theirs)
    if (profile["formula"] or {}).get("unexplained"):
        yield f"formula: {profile['formula']['unexplained']} bytes unexplained"
    scaled = case.more.get("rope_parameters", {}).get("rope_type", "default") != "default"
    rounding = case.s <= 2 or case.sizes.get("d") == 1
    if case.floats == "f32" and not case.checkpoint and (case.family in OSS or window_layers(case) or scaled) and not rounding:
        yield from value_faults(library, case, model, loss, profile)


def compare(library, program, tally, figures):
    used = set()
    for case in [*cases(), *(Case(**draw(seed)) for seed in range(LONG_DRAWS if LONG else DRAWS)),
                 *(Case(**draw(seed, EXPERTS)) for seed in range(100 if LONG else 15)),
                 *(Case(**draw(seed, OSS)) for seed in range(60 if LONG else 8)),
                 *(Case(**draw(seed, LATENT)) for seed in range(100 if LONG else 10)),
                 *(Case(**draw(seed, GLM)) for seed in range(60 if LONG else 6))]:
        try:
            faults = list(run_drawn(library, program, case) if case.seed is not None
                          else run_case(library, program, case, figures))
        except Refused as refusal:
            print(f"skipped: {case.name}: {refusal}")
            tally.skipped += 1
            continue
        used |= {row for row, *_ in differences(case)}
        for fault in faults:
            print(f"FAILED: {case.name}: {fault}" + (f" ({case})" if case.seed is not None else ""))
        tally.failed += bool(faults)
        tally.passed += not faults
    if used != {row for row, *_ in DIFFERENCES}:
        print(f"FAILED: differences on the page or in the test alone: {used ^ {row for row, *_ in DIFFERENCES}}")
        tally.failed += 1


def check_document(figures, tally):
    text, version = DOCUMENT.read_text(encoding="utf-8"), transformers.__version__
    if f"Transformers {version}" not in text:
        print(f"skipped: docs/parity-transformers.md has the figures of another version than {version}")
        tally.skipped += 1
    elif text == document(figures, version):
        tally.passed += 1
    else:
        print("FAILED: docs/parity-transformers.md differs from what was measured; run with --write-doc")
        tally.failed += 1


def main(path, program, *arguments):
    torch.set_num_threads(1)
    transformers.utils.logging.set_verbosity_error()
    if arguments[:1] == ("--list",):
        seed = arguments[1].removeprefix("draw ")
        print_list(program, Case(**draw(int(seed))) if seed.isdigit() else
                   next(c for c in cases() if c.name == arguments[1]))
        return 0
    library = memtape.Library(path)
    tally, figures = Tally(), []
    compare(library, program, tally, figures)
    if arguments == ("--write-doc",):
        DOCUMENT.write_text(document(figures, transformers.__version__), encoding="utf-8")
    else:
        check_document(figures, tally)
    library.mt_device_release(library.device)
    print(f"Transformers {transformers.__version__}, PyTorch {torch.__version__}")
    print(tally.line())
    return 1 if tally.failed else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
