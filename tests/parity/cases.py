"""The cases of the op table (src/ops/op_cases.def) with PyTorch's operations, and compositions."""

import sys

import torch

from graph_op import Applied
from graph_ops import OPS
from graph_ops_plain import read_table
from harness import OP_TOLERANCE, Case, Input
from memtape import DTYPES
from theirs import THEIRS, masked

X = Input((3, 5, 2))
HEADS = ("dense", "heads")  # layouts of [b,a,s,d] for which PyTorch has a fused kernel
BOOLEAN = 7  # mt_dtype


def of_mask(p):
    """Dropout's values: the mask is read from our result, because no input is 0."""
    return lambda x, ours: x * ((ours != 0).to(torch.float64) / (1 - p)).to(x.dtype)


def special(row, parameters):
    """Further arguments of Case for some rows."""
    if row == "softmax":
        return {"parameters": {"causal": bool(parameters[1])}}
    if row in ("layer_norm", "rms_norm"):
        return {"f64_tolerance": 1e-13}
    if row == "rope":
        return {"f64_tolerance": 1e-13, "layouts": HEADS}
    if row == "flash_attention":
        return {"layouts": HEADS, "parameters": {"window": parameters[3:] != []}}
    if row == "dropout":
        return {"values": of_mask(*parameters)}
    if row == "cast":  # a cast to the input's own dtype is no op
        return {"dtypes": [t for t in DTYPES[:4] if t != DTYPES[parameters[0]]]}
    return {}


def check_known(m):
    for what, known, where in (
            ("a function of PyTorch", THEIRS, "bench/torch_rows.py or tests/parity/theirs.py"),
            ("a class of random graphs", OPS, "tests/parity/graph_ops_plain.py or graph_ops_model.py")):
        lacking = sorted({case["op"] for case in m.cases()} - set(known))
        if lacking:
            sys.exit(f"FAILED: rows without {what} in {where}: {', '.join(lacking)}")


def table_cases(m):
    read_table(m)
    check_known(m)
    for case in m.cases():
        row = case["op"]
        p = [int(x) if x == int(x) else x for x in case["parameters"]]
        inputs = [Input(tuple(i["shape"]), i["low"], i["high"], i["below"], i["away"])
                  for i in case["inputs"]]
        yield Case(row, case["note"], inputs,
                   lambda m, *tensors, row=row, p=p: m.call(row, *tensors, *p),
                   lambda *tensors, row=row, p=p: THEIRS[row](*tensors, *p),
                   differences=OPS[row].differences, inner=case["inner"],
                   **special(row, p))


# ---- compositions ----

def our_shuffle(m, x):
    a, b, c = m.split(x, 1, [1, 3, 2])
    return m.call("cat", c, a, b, a, 1)


def their_shuffle(x):
    a, b, c = x.split([1, 3, 2], 1)
    return torch.cat([c, a, b, a], 1)


def their_math(q, k, v, scale, causal):
    scores = q @ k.transpose(-2, -1)
    weights = masked(scores, scale) if causal else torch.softmax(scores * scale, -1)
    return weights @ v


def math_differences(causal, copied=()):
    """q is input 0, k input 1; copied: of k and v, where q has more heads."""
    def differences(call):
        for_scores = call.wanted[0] or call.wanted[1]
        return ([Applied("product copies", copied)] * (call.wanted[0] + for_scores) * bool(copied)
                + [Applied("causal mask", {"s": 5, "t": 5})] * (causal and for_scores))
    return differences


def attention():
    for causal in (False, True):
        ours = lambda m, q, k, v, causal=causal: m.call("math_attention", q, k, v, 0.7, causal, 0)
        yield Case("matmul", f"math attention{', causal' * causal}", [Input((2, 3, 5, 4))] * 3,
                   ours, lambda q, k, v, causal=causal: their_math(q, k, v, 0.7, causal),
                   layouts=HEADS, inner=True, differences=math_differences(causal))
        # 3 heads share k and v, which are repeated for them.
        copied = {"n": 2 * 2 * 5 * 4, "m": 3, "s": 2 * 2 * 5 * 4}
        yield Case("reshape", f"math attention, grouped heads{', causal' * causal}",
                   [Input((2, 6, 5, 4)), Input((2, 2, 5, 4)), Input((2, 2, 5, 4))], ours,
                   lambda q, k, v, causal=causal: their_math(
                       q.unflatten(1, (2, 3)), k.unsqueeze(2), v.unsqueeze(2), 0.7,
                       causal).flatten(1, 2),
                   layouts=HEADS, differences=math_differences(causal, copied))


def compositions():
    yield Case("where", "masked_fill", [Input((3, 5), below=2), Input((2, 3, 5))],
               lambda m, mask, x: m.call("masked_fill", x, m.call("cast", mask, BOOLEAN), -3),
               lambda mask, x: x.masked_fill(mask.bool(), -3))
    yield Case("split", "put back in another order", [Input((3, 6))], our_shuffle, their_shuffle,
               inner=True)
    yield from attention()


def all_cases(m):
    yield from table_cases(m)
    yield from compositions()
