"""sass_kernels.py: the kernels whose machine code sass.py checks, and the issue slots that each may take per
element: a little more than it takes now. Of kernels over rows the slots are counted only where a loop goes
through a long row, with the code for its ends; of the others, that they do not spill and use vectors. Attention is
listed for every width, without dropout, with it, and with it over a number of keys that is not a multiple of four
(odd t), whose draws are a loop inside the loop with the products: no share is predicted for it."""

import os
import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Kernel:
    """A kernel whose code is checked. slots: the most that it may take per element."""
    label: str
    file: str
    pattern: str  # matches the demangled name
    size: int  # bytes of a stored element
    n_bytes: float = 0  # bytes read and written per element
    slots: float = 0
    tensor_cores: bool = False
    stored: float = 1  # tensors stored per element
    loads: bool = False  # it loads the elements, and stores none
    rows: bool = False  # over rows that a few lanes or a block hold: no loop to count
    nested: bool = False  # a loop inside the one with the products does much of the work
    local: int = 0  # accesses to local memory that are accepted


UNARY = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "src", "backends", "unary.def")
with open(UNARY, encoding="utf-8") as f:
    NUMBER = {name: i for i, name in enumerate(re.findall(r"^UNARY\w*\((\w+),", f.read(), re.M))}


def unary(name, slots, backward=False):
    kind, inputs, loads, n_bytes = ("unary_slope", 2, 2, 6) if backward else ("unary", 1, 4, 4)
    return Kernel(f"{name}{' backward' * backward}, bf16", "elementwise",
                  rf"mti_map_kernel<mti_each_op<__nv_bfloat16, {inputs}, {loads}, {kind}_of<float, mti_op_number<{NUMBER[name]}>.*, 8>",
                  2, n_bytes, slots)


def mapped(label, file, functor, size, n_bytes, slots, stored=1):
    width = 16 // size
    return Kernel(label, file, rf"mti_map_kernel<mti_{functor}, {width}>", size, n_bytes, slots, False, stored)


def step(name, dtype, n_bytes, slots, stored, types=""):
    """types: of what a rule's step stores beside the parameter, as the template names them."""
    step_name = f"rule_step<{dtype}{types}, mti_{name}_rule<float>" if types else f"{name}_step<{dtype}"
    label = name + (" in bf16" if types.startswith(", __nv") else "")
    return Kernel(f"{label}, {'bf16' if 'bf' in dtype else 'f32'}", "optim",
                  rf"mti_opt_kernel<mti_{step_name} ?> ?>", 2 if "bf" in dtype else 4, n_bytes, slots,
                  False, stored)


# Two numbers that a block needs once a step: stored before the loop of 3,116 instructions, loaded once in it. Half
# as many queries a step would make room for them, and twice as many barriers. Where t is odd, which no model's
# training has, one number: where a window ends the loop.
ACCEPTED = {("backward", 128, 2): 4, ("backward", 128, 1): 2}


def attention(kind, d, drop):  # drop: a mti_drop_kind
    file = "attention_forward" if kind == "forward" else "attention_backward"
    more = ("", ", dropout, odd t", ", dropout")[drop]
    return Kernel(f"attention {kind}, d={d}{more}, bf16", file,
                  rf"attention_{kind}<__nv_bfloat16, {d}, (\(mti_drop_kind\))?{drop}>", 2,
                  tensor_cores=True, nested=drop == 1, local=ACCEPTED.get((kind, d, drop), 0))


FITS = ("warp", "block", "long")  # mti_row_fit


TYPES = {"bf16": ("__nv_bfloat16", 2), "f32": ("float", 4), "f64": ("double", 8)}


def rows(label, file, name, fit, more="", dtype="bf16"):
    """A kernel over rows."""
    typename, size = TYPES[dtype]
    return Kernel(f"{label}, {FITS[fit]}, {dtype}", file, rf"{name}<{typename}, (\(mti_row_fit\))?{fit}{more}>", size,
                  rows=True)


def long_rows(label, name, n_bytes, slots, more=""):
    return Kernel(f"{label}, long, bf16", "entropy", rf"{name}<__nv_bfloat16, (\(mti_row_fit\))?2{more}>", 2, n_bytes,
                  slots, loads=True)


KERNELS = [
    *(unary(name, slots) for name, slots in (
        ("relu", 13), ("gelu", 38), ("gelu_tanh", 32), ("silu", 27), ("sigmoid", 26), ("tanh", 29))),
    *(unary(name, slots, True) for name, slots in (
        ("relu", 20), ("gelu", 45), ("gelu_tanh", 44), ("silu", 34))),
    mapped("add, bf16", "elementwise", r"each_op<__nv_bfloat16, 2, 2, binary_of<mti_op_number<0> ?>, true>", 2, 6, 23),
    mapped("add, f32", "elementwise", r"each_op<float, 2, 2, binary_of<mti_op_number<0> ?>, true>", 4, 12, 34),
    mapped("swiglu, bf16", "gate", r"each_op<__nv_bfloat16, 2, 2, swiglu, false>", 2, 6, 32),
    mapped("swiglu backward, bf16", "gate", r"swiglu_backward_op<__nv_bfloat16, true, true>", 2, 10, 43, 2),
    mapped("copy, bf16", "copy", r"copy_op<__nv_bfloat16, __nv_bfloat16>", 2, 4, 16),
    mapped("dropout, bf16", "random", r"dropout_op<__nv_bfloat16, false>", 2, 5, 38),
    Kernel("rope, bf16", "rope", r"rope_pairs<__nv_bfloat16, 8>", 2, 4, 14),
    step("adamw", "float", 28, 43, 3, ", float, float"),
    step("adamw", "__nv_bfloat16", 22, 27, 3, ", float, __nv_bfloat16"),
    step("adamw", "__nv_bfloat16", 14, 39, 3, ", __nv_bfloat16, __nv_bfloat16"),
    step("sgd", "float", 20, 21, 2, ", float, float"),
    step("scale", "float", 8, 7, 1),
    *(Kernel(f"dequantize {code}, bf16", "quantize", rf"dequantize_groups<__nv_bfloat16, (\(mti_code\))?{number}, 8>",
             2, n_bytes, slots)
      for number, code, n_bytes, slots in ((0, "int8", 3, 9), (1, "nf4", 2.5, 11), (2, "mxfp4", 2.53, 12))),
    Kernel("embedding backward, bf16", "embedding", r"add_rows<__nv_bfloat16>", 2, rows=True),
    *(rows("norm", "norm", "norm_rows", fit) for fit in (0, 1, 2)),
    *(rows("norm", "norm", "norm_rows", 2, dtype=dtype) for dtype in ("f32", "f64")),
    *(rows("norm backward", "norm", "norm_backward_rows", fit) for fit in (0, 1)),
    *(rows("softmax", "rows", "mti_softmax_rows", fit, ", false") for fit in (0, 1, 2)),
    *(rows("log-softmax and loss", "loss", "mti_softmax_rows", fit, ", true") for fit in (0, 1, 2)),
    *(rows("softmax backward", "rows", "backward_rows", fit, ", false") for fit in (0, 1, 2)),
    long_rows("log-sum-exp", "lse_of_rows", 2, 17),
    Kernel("max, bf16", "max", r"max_of_rows<__nv_bfloat16, true>", 2, rows=True, loads=True),
    Kernel("cross-entropy backward, bf16", "entropy", r"gradient_of_rows<__nv_bfloat16>", 2, rows=True),
    *(attention(kind, d, drop) for kind in ("forward", "backward")
      for d in (32, 64, 80, 96, 128) for drop in (0, 2, 1)),
]
