#!/usr/bin/env python3
"""autocast.py LIBMEMTAPE_CASES: autocast against torch.autocast.

Compares each op's class with the lists in PyTorch's header for CUDA; then values, gradients and saved bytes of a
small network under both, on the CPU. Exit status 77 without PyTorch."""

import re
import sys
from pathlib import Path

try:
    import torch
    import torch.nn.functional as F
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

import memtape
from harness import SavedTensors, far

# Ops with another name in PyTorch. A loss that is two ops in PyTorch has the class of the last one.
TORCH_NAME = {"flash_attention": "scaled_dot_product_attention", "mse": "mse_loss",
              "cross_entropy": "nll_loss", "cross_entropy_lse": "nll_loss", "linear_cross_entropy": "linear",
              "linear_cross_entropy_early": "linear"}
LISTS = {"LOWER_PRECISION_FP": "low", "FP32": "f32", "FP32_SET_OPT_DTYPE": "f32"}


def torch_classes():
    """{torch op: "low" or "f32"}; None if PyTorch was installed without the header."""
    header = Path(torch.__file__).parent / "include" / "ATen" / "autocast_mode.h"
    if not header.exists():
        return None
    text = header.read_text().replace("\\\n", " ")
    classes = {}
    for name, kind in LISTS.items():
        body = re.search(rf"#define AT_FORALL_{name}\(_\)(.*)", text).group(1)
        classes |= {op: kind for op in re.findall(r"_\((\w+)", body)}
    return classes


def check_classes(library):
    classes = torch_classes()
    if classes is None:
        print("skipped: PyTorch was installed without ATen/autocast_mode.h")
        return []
    assert classes["linear"] == "low" and classes["softmax"] == classes["exp"] == "f32"
    infos = [library.dll.mt_all_ops_get(i) for i in range(library.mt_all_ops_count())]
    differ = []
    for info in infos:
        name, ours = info.name.decode(), info.autocast.decode()
        theirs = classes.get(TORCH_NAME.get(name, name), "widest")
        if ours != theirs:
            differ.append(f"{name} runs in {ours}; in PyTorch in {theirs}")
    print(f"{len(infos)} ops, {len(differ)} of them in another class than in PyTorch")
    return differ


def network(f, x, p):
    """Norm, linear, GELU, linear, a residual, softmax and a loss: every class of op."""
    h = f.norm(x, p[0], p[1])
    h = f.linear(f.gelu(f.linear(h, p[2], p[3])), p[4], p[5])
    return f.mse(f.softmax(f.add(x, h)), x)


class Ours:
    def __init__(self, m):
        self.norm = lambda x, w, b: m.call("layer_norm", x, w, b, 1e-5)
        self.linear = lambda x, w, b: m.call("linear", x, w, b)
        self.gelu = lambda x: m.call("gelu", x)
        self.add = lambda a, b: m.call("add", a, b)
        self.softmax = lambda x: m.call("softmax", x, 1.0, False)
        self.mse = lambda a, b: m.call("mse", a, b)


class Theirs:
    norm = staticmethod(lambda x, w, b: F.layer_norm(x, w.shape, w, b))
    linear, gelu, mse = staticmethod(F.linear), staticmethod(F.gelu), staticmethod(F.mse_loss)
    add = staticmethod(torch.add)
    softmax = staticmethod(lambda x: torch.softmax(x, -1))


def check_network(library, dtype):
    torch.manual_seed(1)
    shapes = [(16,), (16,), (32, 16), (32,), (16, 32), (16,)]
    tensors = [torch.randn(5, 16)] + [0.5 * torch.randn(s) for s in shapes]
    for t in tensors:
        t.requires_grad_()
    with SavedTensors(tensors[1:]) as saved, torch.autocast("cpu", dtype):
        theirs = network(Theirs, tensors[0], tensors[1:])
    theirs.backward()

    copies = [library.tensor(t).requires_grad_() for t in tensors]
    for t in copies[1:]:
        library.check(library.mt_set_category(t.pointer, memtape.PARAMETER))
    with memtape.Ledger(library) as ledger:
        library.check(library.mt_autocast_begin(memtape.DTYPES.index(dtype)))
        ours = network(Ours(library), copies[0], copies[1:])
        library.check(library.mt_autocast_end())
    ours.backward(library.tensor(torch.ones(())))

    pairs = [("loss", ours.torch(), theirs.detach())]
    pairs += [(f"gradient {i}", a.grad.torch(), b.grad)
              for i, (a, b) in enumerate(zip(copies, tensors))]
    tolerance = {torch.bfloat16: 2e-2, torch.float16: 3e-3}[dtype]
    differ = [f"{dtype}, {what}: {text}" for what, a, b in pairs if (text := far(a, b, tolerance))]
    if ledger.bytes != saved.bytes:
        differ.append(f"{dtype}: {ledger.bytes} bytes saved, not {saved.bytes}")
    print(f"{dtype}: {len(pairs)} tensors compared, {ledger.bytes} bytes saved by both")
    return differ


def main(path):
    library = memtape.Library(path)
    differ = check_classes(library)
    for dtype in (torch.bfloat16, torch.float16):
        differ += check_network(library, dtype)
    print("\n".join(differ))
    return bool(differ)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
