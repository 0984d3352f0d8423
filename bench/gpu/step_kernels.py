"""step_kernels.py: steps of `./run gpu` that compare kernels with PyTorch's."""

import subprocess
import sys

import shapes
from pair import Pair
from setting import TORCH_SIDE, Failed, plan, say


def limits(s):
    if s.torch:
        got = subprocess.run([sys.executable, TORCH_SIDE, "limits", s.torch,
                              str(s.plan.copy_bytes), str(s.plan.gemm_side)],
                             stdout=subprocess.PIPE, text=True, check=True).stdout
        rates = {words[0]: list(map(float, words[1:])) for words in map(str.split,
                                                                        got.splitlines())}
        say(by="PyTorch", copy_gbs=rates["copy"][0], copy_spread=rates["copy"][1:],
            gemm_tflops=rates["gemm"][0] / 1e3, gemm_spread=[r / 1e3 for r in rates["gemm"][1:]])
        return
    side = s.plan.gemm_side
    copy = shapes.Kernel("copy", "clone", "bf16", f"f:{s.plan.copy_bytes // 2}")
    gemm = shapes.Kernel("gemm", "linear", "bf16", " ".join([f"f:{side}x{side}"] * 2))
    with_worker = Pair(s)
    seconds = [with_worker.time(kernel, ("forward",))["forward"]["memtape"]["ns"]
               for kernel in (copy, gemm)]
    with_worker.stop()
    say(by="memtape, for want of PyTorch", copy_gbs=2 * s.plan.copy_bytes / seconds[0],
        gemm_tflops=2 * side ** 3 / seconds[1] / 1e3)


def one_kernel(pair, kernel):
    work = {"forward": (kernel.forward_bytes, kernel.forward_flop),
            "backward": (kernel.backward_bytes, kernel.backward_flop)}
    words = [word for word, amounts in work.items() if any(amounts)]
    row = {"name": kernel.name, "inputs": kernel.inputs}
    try:
        times = pair.time(kernel, words)
    except Failed as failure:
        say(**row, failed=str(failure))
        pair.stop()
        return
    if times["error"] is not None:
        row |= {"error": times["error"], "allowed": kernel.tolerance}
        if not times["error"] <= kernel.tolerance:
            row["wrong"] = f"off by {times['error']:.2g} of the reference"
    for word in words:
        n_bytes, flop = work[word]
        row[word] = {"bytes": n_bytes, "flop": flop, **times[word]}
    say(**row)


def all_kernels(s, kernels):
    pair = Pair(s)
    plan(kernel.name for kernel in kernels)
    for kernel in kernels:
        if s.time_for(3):
            one_kernel(pair, kernel)
        else:
            say(name=kernel.name, failed="no time left")
    pair.stop()


def memory(s):
    all_kernels(s, s.plan.memory)


def gemm(s):
    all_kernels(s, s.plan.gemm)


def attention(s):
    all_kernels(s, s.plan.attention)
