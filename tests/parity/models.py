"""Compares whole models with the same models written in PyTorch, with the same weights: values, every
parameter's gradient and the saved bytes."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F

import memtape
from differences import total
from harness import MODEL_TOLERANCE, SavedTensors, far, weights_like

ACTS = {"relu": F.relu, "gelu": F.gelu, "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
        "silu": F.silu, "tanh": torch.tanh, "sigmoid": torch.sigmoid}


@dataclass
class ModelCase:
    note: str
    config: dict
    b: int
    s: int
    dtypes: tuple = (torch.float64, torch.float32, torch.bfloat16)
    types: bool = False  # bert: with token types


def model_cases():
    for act in ("relu", "gelu", "silu"):
        yield ModelCase(f"mlp, {act}", {"kind": "mlp", "hidden": 12, "act": act}, 2, 7)
    for norm in ("pre", "post"):
        for form in ("math", "flash"):
            for causal in (True, False):
                note = f"block, {norm}-norm, {form}{', causal' * causal}"
                yield ModelCase(note, {"kind": "block", "hidden": 12, "heads": 3, "act": "gelu",
                                       "norm": norm, "attention": form, "causal": causal}, 2, 7)
    gpt = {"kind": "gpt", "hidden": 24, "heads": 4, "layers": 4, "vocab": 31, "context": 9,
           "act": "gelu", "attention": "flash"}
    yield ModelCase("gpt of 4 layers, flash", gpt, 2, 9)
    yield ModelCase("gpt of 4 layers, math", gpt | {"attention": "math"}, 3, 7)
    # Not in 16 bits: if rounding moves a value across 0, relu switches a whole gradient on or off.
    yield ModelCase("gpt of 4 layers, math, relu", gpt | {"attention": "math", "act": "relu"}, 3, 7,
                    (torch.float64, torch.float32))
    yield ModelCase("gpt of 4 layers, untied, gelu_tanh, no bias",
                    gpt | {"untied": True, "act": "gelu_tanh", "no_bias": True}, 2, 5)
    yield ModelCase("gpt of 4 layers, post-norm", gpt | {"norm": "post"}, 2, 9)
    for form in ("math", "flash"):
        yield ModelCase(f"gpt of 4 layers, {form}, grouped heads",
                        gpt | {"attention": form, "kv_heads": 2}, 2, 9)
    yield ModelCase("block, multi-query, wide heads, rms norm",
                    {"kind": "block", "hidden": 12, "heads": 3, "kv_heads": 1, "head_dim": 6,
                     "act": "silu", "norm_kind": "rmsnorm", "attention": "flash"}, 2, 7)
    for form in ("math", "flash"):
        yield ModelCase(f"llama's block, {form}",
                        {"kind": "block", "hidden": 16, "heads": 4, "kv_heads": 2, "ffn": 24,
                         "norm_kind": "rmsnorm", "mlp": "swiglu", "rope_theta": 10000,
                         "no_bias": True, "causal": True, "attention": form}, 2, 7)
    llama = {"kind": "llama", "hidden": 24, "heads": 4, "layers": 4, "vocab": 31, "context": 9,
             "ffn": 40, "attention": "flash"}
    yield ModelCase("llama of 4 layers", llama, 2, 9)
    yield ModelCase("llama of 4 layers, math, grouped heads",
                    llama | {"kv_heads": 2, "attention": "math", "rope_theta": 500}, 3, 7)
    yield ModelCase("llama of 4 layers, tied, with biases of q, k and v",
                    llama | {"kv_heads": 2, "tied": True, "qkv_bias": True}, 3, 7)
    bert = {"kind": "bert", "hidden": 24, "heads": 4, "layers": 4, "vocab": 31, "context": 9,
            "act": "gelu"}
    yield ModelCase("bert of 4 layers, flash", bert | {"attention": "flash"}, 2, 9)
    yield ModelCase("bert of 4 layers, math, with token types",
                    bert | {"attention": "math", "token_types": 3}, 3, 7, types=True)


# ---- the models in PyTorch; p is the dict of parameters ----

def linear(p, path, x):
    return F.linear(x, p[path + ".weight"], p.get(path + ".bias"))


def norm(c, p, path, x):
    w = p[path + ".weight"]
    if c.get("norm_kind") == "rmsnorm":
        return F.rms_norm(x, w.shape, w, c["norm_eps"])
    return F.layer_norm(x, w.shape, w, p.get(path + ".bias"), c["norm_eps"])


def mlp(c, p, at, x):
    if c.get("mlp") == "swiglu":
        gated = F.silu(linear(p, at + "gate", x)) * linear(p, at + "up", x)
        return linear(p, at + "down", gated)
    return linear(p, at + "proj", ACTS[c["act"]](linear(p, at + "fc", x)))


@dataclass
class Shared:
    """What all layers share: the causal mask and the tables of rotary positions."""

    mask: torch.Tensor = None
    cosine: torch.Tensor = None
    sine: torch.Tensor = None


def shared(c, x, dtype):
    s, result = x.shape[-1 if c["kind"] in WHOLE else 1], Shared()
    if c["causal"]:
        result.mask = torch.ones(s, s, dtype=torch.bool).triu(1)
    if c["rope_theta"]:
        d = c["head_dim"]
        frequency = c["rope_theta"] ** (-torch.arange(0, d, 2, dtype=torch.float64) / d)
        angles = torch.outer(torch.arange(s, dtype=torch.float64), frequency)
        angles = torch.cat((angles, angles), -1)
        result.cosine, result.sine = torch.cos(angles).to(dtype), torch.sin(angles).to(dtype)
    return result


def rotated(x, a):
    low, high = x.chunk(2, -1)
    return x * a.cosine + torch.cat((-high, low), -1) * a.sine


def split_heads(c, p, at, x, a):
    """q [b,a,s,h], k and v [b,k,s,h]"""
    widths = [c["heads"] * c["head_dim"]] + 2 * [c["kv_heads"] * c["head_dim"]]
    if a.cosine is None:
        parts = linear(p, at + "qkv", x).split(widths, 2)
    else:
        parts = [linear(p, at + name, x) for name in "qkv"]
    q, k, v = (t.unflatten(2, (-1, c["head_dim"])).transpose(1, 2) for t in parts)
    return (q, k, v) if a.cosine is None else (rotated(q, a), rotated(k, a), v)


def attention(c, p, at, x, a):
    q, k, v = split_heads(c, p, at, x, a)
    grouped = c["heads"] != c["kv_heads"]
    if c["attention"] == "flash":
        y = F.scaled_dot_product_attention(q, k, v, is_causal=a.mask is not None,
                                           enable_gqa=grouped)
    else:
        if grouped:
            q = q.unflatten(1, (c["kv_heads"], -1))
            k, v = k.unsqueeze(2), v.unsqueeze(2)
        scores = q @ k.transpose(-2, -1) * c["head_dim"] ** -0.5
        if a.mask is not None:
            scores = scores.masked_fill(a.mask, float("-inf"))
        y = torch.softmax(scores, -1) @ v
        if grouped:
            y = y.flatten(1, 2)
    return linear(p, at + "proj", y.transpose(1, 2).flatten(2))


def block(c, p, at, x, a):
    if c["norm"] == "pre":
        h = x + attention(c, p, at + "attn.", norm(c, p, at + "ln_1", x), a)
        return h + mlp(c, p, at + "mlp.", norm(c, p, at + "ln_2", h))
    h = norm(c, p, at + "ln_1", x + attention(c, p, at + "attn.", x, a))
    return norm(c, p, at + "ln_2", h + mlp(c, p, at + "mlp.", h))


def layers(c, p, h, a):
    for i in range(c["layers"]):
        h = block(c, p, f"h.{i}.", h, a)
    return h


def gpt(c, p, tokens, a):
    h = layers(c, p, F.embedding(tokens, p["wte.weight"]) + p["wpe.weight"][:tokens.shape[1]], a)
    if "ln_f.weight" in p:
        h = norm(c, p, "ln_f", h)
    return F.linear(h, p.get("lm_head.weight", p["wte.weight"]))


def llama(c, p, tokens, a):
    h = layers(c, p, F.embedding(tokens, p["wte.weight"]), a)
    return F.linear(norm(c, p, "ln_f", h), p.get("lm_head.weight", p["wte.weight"]))


def bert(c, p, tokens, a):
    tokens, types = tokens if tokens.dim() == 3 else (tokens, None)
    table = p["tte.weight"]
    h = F.embedding(tokens, p["wte.weight"])
    h = h + (table[:1] if types is None else F.embedding(types, table))
    h = h + p["wpe.weight"][:tokens.shape[1]]
    h = layers(c, p, norm(c, p, "ln", h), a)
    h = norm(c, p, "head.ln", ACTS[c["act"]](linear(p, "head.dense", h)))
    return F.linear(h, p["wte.weight"], p["head.bias"])


WHOLE = {"gpt": gpt, "llama": llama, "bert": bert}


def their_forward(c, p, x):
    a = shared(c, x, next(iter(p.values())).dtype)
    if c["kind"] in WHOLE:
        return WHOLE[c["kind"]](c, p, x, a)
    return mlp(c, p, "", x) if c["kind"] == "mlp" else block(c, p, "", x, a)


def resolved(config):
    """The config with zeros replaced by their defaults, and with what its kind always has (model.h)."""
    kind = config["kind"]
    always = {"gpt": {"causal": True}, "bert": {"norm": "post"},
              "llama": {"causal": True, "norm_kind": "rmsnorm", "mlp": "swiglu", "no_bias": True}}
    c = {"layers": 1, "heads": 1, "norm": "pre", "norm_kind": "layernorm", "mlp": "plain",
         "causal": False, "attention": "flash", "act": "relu",
         "rope_theta": 10000 if kind == "llama" else 0,
         "norm_eps": {"bert": 1e-12, "llama": 1e-6}.get(kind, 1e-5)} | config
    c |= always.get(kind, {})
    return {"kv_heads": c["heads"], "head_dim": c["hidden"] // c["heads"]} | c


# ---- differences in the saved bytes ----

def norm_differences(case, c, n_norms):
    rows, n = case.b * case.s, c["hidden"]
    if c["norm_kind"] == "layernorm":
        return [("norm statistics", {"r": rows})] * n_norms
    return [("rms norm, normalised", {"r": rows, "n": n}),
            ("rms norm, narrow", {"r": rows, "n": n, "m": rows * n})] * n_norms


def attention_differences(case, c):
    tokens, layers = case.b * case.s, c["layers"]
    applied = []
    if c["attention"] == "flash":
        applied += [("flash generator", {})] * layers
    elif c["causal"]:
        applied += [("causal mask", {"s": case.s, "t": case.s})]  # one mask for all layers
    if c["attention"] == "math" and c["heads"] != c["kv_heads"]:
        n = tokens * c["kv_heads"] * c["head_dim"]
        kept = {"n": n, "m": c["heads"] // c["kv_heads"], "s": n}
        applied += [("product copies", kept)] * (2 * layers)
    if c["rope_theta"]:
        applied += [("rope tables", {"s": case.s, "d": c["head_dim"]})]  # the same for all layers
    return applied


def differences(case, c):
    whole, layers = c["kind"] in WHOLE, c["layers"]
    applied = []
    if c["mlp"] == "swiglu":
        applied += [("swiglu", {"n": case.b * case.s * c["ffn"]})] * layers
    if c["kind"] == "mlp":
        return applied
    ends = {"gpt": c["norm"] == "pre", "llama": 1, "bert": 2}.get(c["kind"], 0)
    applied += norm_differences(case, c, 2 * layers + ends) + attention_differences(case, c)
    return applied + [("loss weight", {})] * whole


# ---- one model ----

def give_weights(library, model, dtype):
    """Sets weights that are large enough for every part of the model to matter; returns them for PyTorch."""
    generator = torch.Generator().manual_seed(29)
    theirs = {}
    library.mt_set_grad_mode(False)
    for name, ours in model.parameters.items():
        shape = ours.shape
        t = torch.randn(shape, generator=generator, dtype=torch.float64)
        if len(shape) == 2:
            t *= shape[1] ** -0.5
        elif name.endswith("weight"):
            t = 1 + 0.1 * t
        else:
            t *= 0.1
        t = t.to(dtype)
        data = t.view(torch.uint8).numpy()
        library.check(library.mt_copy_from_host(ours.pointer, data.ctypes.data, data.nbytes))
        theirs[name] = torch.nn.Parameter(t)
    library.mt_set_grad_mode(True)
    return theirs


def their_run(case, parameters, x, target):
    """(result, saved bytes), after the backward."""
    c = resolved(case.config)
    with SavedTensors(parameters.values()) as saved:
        result = their_forward(c, parameters, x)
        if target is not None:
            result = F.cross_entropy(result.view(-1, c["vocab"]), target.view(-1))
    n_bytes = saved.bytes
    result.backward(weights_like(result))
    return result, n_bytes


def our_run(library, model, x, target):
    with memtape.Ledger(library) as ledger:
        result = model(x)
        if target is not None:
            result = library.call("cross_entropy", result, target, -100)
    value = result.torch()
    result.backward(library.tensor(weights_like(value)))
    return value, ledger.bytes


def draw_inputs(case, dtype):
    """(x, target); only whole models have a target. bert's loss is over some of the tokens."""
    c = case.config
    generator = torch.Generator().manual_seed(31)
    if c["kind"] in WHOLE:
        x, target = (torch.randint(c["vocab"], (case.b, case.s), generator=generator)
                     for _ in range(2))
        if c["kind"] == "bert":
            target[torch.rand(target.shape, generator=generator) < 0.7] = -100
        if case.types:
            types = torch.randint(c["token_types"], x.shape, generator=generator)
            x = torch.stack((x, types))
        return x, target
    x = torch.randn(case.b, case.s, c["hidden"], generator=generator, dtype=torch.float64)
    return x.to(dtype).requires_grad_(), None


def widened(t):
    return t.detach().double().requires_grad_() if t.is_floating_point() else t


def model_faults(library, case, dtype):
    c = case.config
    dtype_name = {torch.float64: "f64", torch.float32: "f32", torch.bfloat16: "bf16"}[dtype]
    model = memtape.Model(library, **c, dtype=dtype_name)
    parameters = give_weights(library, model, dtype)
    x, target = draw_inputs(case, dtype)
    our_x = library.tensor(x)
    if x.is_floating_point():
        our_x.requires_grad_()
    our_target = None if target is None else library.tensor(target)
    ours, n_ours = our_run(library, model, our_x, our_target)
    theirs, n_theirs = their_run(case, parameters, x, target)
    exact, exact_x, exact_parameters = None, x, {}
    if dtype.itemsize == 2:
        exact_x = widened(x)
        exact_parameters = {name: widened(t) for name, t in parameters.items()}
        exact, _ = their_run(case, exact_parameters, exact_x, target)

    tolerance = MODEL_TOLERANCE[dtype]
    fault = far(ours, theirs, tolerance, exact)
    if fault:
        yield f"values: {fault}"
    n_expected = n_theirs + total(differences(case, resolved(c)), dtype.itemsize)
    if n_ours != n_expected:
        yield f"saved bytes: {n_ours}, not {n_expected} (PyTorch {n_theirs})"
    if target is None:
        fault = far(our_x.grad.torch(), x.grad, tolerance, exact_x.grad)
        if fault:
            yield f"gradient of x: {fault}"
    for name, parameter in parameters.items():
        grad = model.parameters[name].grad
        exact_grad = exact_parameters[name].grad if exact_parameters else None
        fault = far(grad and grad.torch(), parameter.grad, tolerance, exact_grad)
        if fault:
            yield f"gradient of {name}: {fault}"


def run_model(library, case, tally, report=print):
    for dtype in case.dtypes:
        name = f"{case.note}, {str(dtype).removeprefix('torch.')}"
        try:
            faults = list(model_faults(library, case, dtype))
        except memtape.MemtapeError as error:
            faults = [f"memtape: {error}"]
        for fault in faults:
            report(f"FAILED: {name}: {fault}")
        tally.failed += bool(faults)
        tally.passed += not faults
