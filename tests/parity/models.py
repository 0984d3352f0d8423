"""Whole models beside the same models written in PyTorch: same weights, then values, every
parameter's gradient and the saved bytes."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F

import memtape
from differences import total
from harness import FLASH_F64_TOLERANCE, MODEL_TOLERANCE, SavedTensors, far

ACTS = {"relu": F.relu, "gelu": F.gelu, "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
        "silu": F.silu, "tanh": torch.tanh, "sigmoid": torch.sigmoid}


@dataclass
class ModelCase:
    note: str
    config: dict
    b: int
    s: int
    dtypes: tuple = (torch.float64, torch.float32, torch.bfloat16)


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
    yield ModelCase("gpt of 4 layers, math", gpt | {"attention": "math", "act": "relu"}, 3, 7)
    yield ModelCase("gpt of 4 layers, untied, gelu_tanh, no bias",
                    gpt | {"untied": True, "act": "gelu_tanh", "no_bias": True}, 2, 5)
    yield ModelCase("gpt of 4 layers, post-norm", gpt | {"norm": "post"}, 2, 9)


# ---- the models in PyTorch: p is the dict of parameters ----

def linear(p, path, x):
    return F.linear(x, p[path + ".weight"], p.get(path + ".bias"))


def norm(p, path, x):
    w = p[path + ".weight"]
    return F.layer_norm(x, w.shape, w, p.get(path + ".bias"))


def mlp(c, p, at, x):
    return linear(p, at + "proj", ACTS[c["act"]](linear(p, at + "fc", x)))


def attention(c, p, at, x, mask):
    b, s, d = x.shape
    a = c["heads"]
    q, k, v = (t.view(b, s, a, d // a).transpose(1, 2)
               for t in linear(p, at + "qkv", x).split(d, 2))
    if c["attention"] == "flash":
        y = F.scaled_dot_product_attention(q, k, v, is_causal=mask is not None)
    else:
        scores = q @ k.transpose(-2, -1) * (d // a) ** -0.5
        if mask is not None:
            scores = scores.masked_fill(mask, float("-inf"))
        y = torch.softmax(scores, -1) @ v
    return linear(p, at + "proj", y.transpose(1, 2).reshape(b, s, d))


def block(c, p, at, x, mask):
    if c.get("norm", "pre") == "pre":
        h = x + attention(c, p, at + "attn.", norm(p, at + "ln_1", x), mask)
        return h + mlp(c, p, at + "mlp.", norm(p, at + "ln_2", h))
    h = norm(p, at + "ln_1", x + attention(c, p, at + "attn.", x, mask))
    return norm(p, at + "ln_2", h + mlp(c, p, at + "mlp.", h))


def gpt(c, p, tokens, mask):
    h = F.embedding(tokens, p["wte.weight"]) + p["wpe.weight"][:tokens.shape[1]]
    for i in range(c["layers"]):
        h = block(c, p, f"h.{i}.", h, mask)
    if "ln_f.weight" in p:
        h = norm(p, "ln_f", h)
    return F.linear(h, p.get("lm_head.weight", p["wte.weight"]))


def their_forward(c, p, x):
    causal = c.get("causal") or c["kind"] == "gpt"
    s = x.shape[1]
    mask = torch.ones(s, s, dtype=torch.bool).triu(1) if causal else None
    if c["kind"] == "mlp":
        return mlp(c, p, "", x)
    return block(c, p, "", x, mask) if c["kind"] == "block" else gpt(c, p, x, mask)


# ---- what PyTorch keeps otherwise ----

def differences(case, c):
    tokens = case.b * case.s
    layers = c.get("layers", 1)
    if c["kind"] == "mlp":
        return []
    n_norms = 2 * layers + (c["kind"] == "gpt" and c.get("norm", "pre") == "pre")
    applied = [("norm statistics", {"r": tokens})] * n_norms
    if c["attention"] == "flash":
        n = tokens * c["heads"]
        applied += [("flash generator", {}), ("flash statistics", {"n": n})] * layers
    elif c.get("causal") or c["kind"] == "gpt":
        applied += [("causal mask", {"s": case.s, "t": case.s})]  # one for all layers
    if c["kind"] == "gpt":
        applied += [("loss weight", {})]
    return applied


# ---- one model ----

def give_weights(library, model, dtype):
    """Weights of a size that lets every part of the model matter; returned for PyTorch."""
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


def model_faults(library, case, dtype):
    c = case.config
    dtype_name = {torch.float64: "f64", torch.float32: "f32", torch.bfloat16: "bf16"}[dtype]
    model = memtape.Model(library, **c, dtype=dtype_name)
    parameters = give_weights(library, model, dtype)
    generator = torch.Generator().manual_seed(31)
    is_gpt = c["kind"] == "gpt"
    if is_gpt:
        x = torch.randint(c["vocab"], (case.b, case.s), generator=generator)
        target = torch.randint(c["vocab"], (case.b, case.s), generator=generator)
        our_target = library.tensor(target)
    else:
        x = torch.randn(case.b, case.s, c["hidden"], generator=generator, dtype=torch.float64)
        x = x.to(dtype).requires_grad_()
    our_x = library.tensor(x)
    if not is_gpt:
        our_x.requires_grad_()

    with memtape.Ledger(library) as ledger:
        ours = model(our_x)
        if is_gpt:
            ours = library.call("cross_entropy", ours, our_target, -100)
    with SavedTensors(parameters.values()) as saved:
        theirs = their_forward(c, parameters, x)
        if is_gpt:
            theirs = F.cross_entropy(theirs.view(-1, c["vocab"]), target.view(-1))

    tolerance = MODEL_TOLERANCE[dtype]
    if dtype == torch.float64 and c.get("attention") == "flash":
        tolerance = FLASH_F64_TOLERANCE
    fault = far(ours.torch(), theirs, tolerance)
    if fault:
        yield f"values: {fault}"
    n_expected = saved.bytes + total(differences(case, c), dtype.itemsize)
    if ledger.bytes != n_expected:
        yield f"saved bytes: {ledger.bytes}, not {n_expected} (PyTorch {saved.bytes})"
    weights = torch.linspace(-1, 1, theirs.numel(), dtype=torch.float64)
    weights = (weights.reshape(theirs.shape) + 0.25).to(dtype) if theirs.dim() else \
        torch.ones((), dtype=dtype)
    ours.backward(library.tensor(weights))
    theirs.backward(weights)
    if not is_gpt:
        fault = far(our_x.grad.torch(), x.grad, tolerance)
        if fault:
            yield f"gradient of x: {fault}"
    for name, parameter in parameters.items():
        grad = model.parameters[name].grad
        fault = far(grad and grad.torch(), parameter.grad, tolerance)
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
