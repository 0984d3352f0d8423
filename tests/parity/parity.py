#!/usr/bin/env python3
"""parity.py LIBMEMTAPE_CASES [--write-doc]: compares memtape with PyTorch on the CPU.

Prints differences, then how many cases passed, failed and were skipped. A case is one operation or model with one
shape, dtype and layout of its inputs: it compares values, all gradients and the saved bytes for every subset of
wanted gradients. Exit status 77 if PyTorch is not installed."""

import sys
from pathlib import Path

try:
    import numpy  # noqa: F401
    import torch
    import torch.nn.functional as F
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

import differences
import memtape
from cases import X, all_cases
from graph_op import Applied
from harness import Case, Tally, run_case
from models import ModelCase, model_cases, run_model

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "parity.md"


class SlightlyWrongGelu(torch.autograd.Function):
    """The right value, with a derivative that is wrong by a thousandth."""

    @staticmethod
    def forward(context, x):
        context.save_for_backward(x)
        return F.gelu(x)

    @staticmethod
    def backward(context, dy):
        x, = context.saved_tensors
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            return torch.autograd.grad(F.gelu(x), x, dy)[0] * 1.001


def gelu_with_extra_save(m, x):
    y = m.call("gelu", x)
    y.also = m.call("exp", m.call("affine", x, 1, 0))  # an extra op, which keeps its output
    return y


def planted_faults():
    """(what is planted, the case, a part of the message that must appear)"""
    gelu = lambda m, x: m.call("gelu", x)
    f32 = {"dtypes": (torch.float32,), "layouts": ("dense",)}
    yield "a wrong derivative", Case("gelu", "planted", [X], gelu, SlightlyWrongGelu.apply,
                                     **f32), "gradient of input 0"
    yield "a wrong value", Case("gelu", "planted", [X], gelu,
                                lambda x: F.gelu(x) + 1e-4, **f32), "values"
    yield "an extra save", Case("gelu", "planted", [X], gelu_with_extra_save, F.gelu,
                                **f32), "saved bytes"
    yield "a save too few", Case("relu", "planted", [X], lambda m, x: m.call("relu", x),
                                 lambda x: F.relu(x).tanh().atanh(), **f32), "saved bytes"
    yield "a byte too many in a difference", Case(
        "gelu", "planted", [X], gelu, F.gelu, differences=lambda call: [Applied("dropout mask", {"n": 1})],
        **f32), "saved bytes"


def check_planted_faults(library, tally):
    for what, case, expected in planted_faults():
        told, inner = [], Tally()
        run_case(library, case, inner, told.append)
        if inner.failed and any(expected in line for line in told):
            tally.passed += 1
        else:
            print(f"FAILED: {what} was planted, but not found")
            tally.failed += 1
    told, inner = [], Tally()
    wrong = ModelCase("planted", {"kind": "mlp", "hidden": 12, "act": "gelu"}, 2, 7,
                      dtypes=(torch.float32,))
    from models import ACTS
    right, ACTS["gelu"] = ACTS["gelu"], SlightlyWrongGelu.apply
    run_model(library, wrong, inner, told.append)
    ACTS["gelu"] = right
    if inner.failed and all("gradient" in line for line in told):
        tally.passed += 1
    else:
        print("FAILED: a wrong derivative was planted in a model, but not found")
        tally.failed += 1


def check_rows(library, tally):
    for row in library.op_names():
        if row in tally.rows:
            tally.passed += 1
        else:
            print(f"FAILED: no case for the row {row}")
            tally.failed += 1


def check_document(tally):
    if DOCUMENT.read_text(encoding="utf-8") == differences.document():
        tally.passed += 1
    else:
        print("FAILED: docs/parity.md differs from the table; run parity.py --write-doc")
        tally.failed += 1


def main(path):
    torch.set_num_threads(1)
    library = memtape.Library(path)
    library.check(library.mt_set_balance_check(library.device, True))
    tally = Tally()
    for case in all_cases(library):
        run_case(library, case, tally)
    for case in model_cases():
        run_model(library, case, tally)
    check_rows(library, tally)
    check_planted_faults(library, tally)
    check_document(tally)
    library.mt_device_release(library.device)
    print(f"PyTorch {torch.__version__}")
    print(tally.line())
    return 1 if tally.failed else 0


if __name__ == "__main__":
    if sys.argv[-1] == "--write-doc":
        DOCUMENT.write_text(differences.document(), encoding="utf-8")
    else:
        sys.exit(main(sys.argv[1]))
