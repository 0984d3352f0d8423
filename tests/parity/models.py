"""Whole models beside the same models written in PyTorch: same weights, then values, every
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
    # Not in 16 bits: a value that rounding moves across 0 switches a whole gradient on or off.
    yield ModelCase("gpt of 4 layers, math, relu", gpt | {"attention": "math", "act": "relu"}, 3, 7,
                    (torch.float64, torch.float32))
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
        applied += [("flash generator", {})] * layers
    elif c.get("causal") or c["kind"] == "gpt":
        applied += [("causal mask", {"s": case.s, "t": case.s})]  # one mask for all layers
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


def their_run(case, parameters, x, target):
    """(result, saved bytes), after the backward."""
    c = case.config
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
    """(x, target), the target for a GPT only."""
    c = case.config
    generator = torch.Generator().manual_seed(31)
    if c["kind"] == "gpt":
        return (torch.randint(c["vocab"], (case.b, case.s), generator=generator),
                torch.randint(c["vocab"], (case.b, case.s), generator=generator))
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
    n_expected = n_theirs + total(differences(case, c), dtype.itemsize)
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
