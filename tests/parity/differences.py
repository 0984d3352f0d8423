"""The table of deliberate differences: where memtape keeps other bytes than PyTorch on the CPU.

A case names the entries that apply to it; then `memtape = PyTorch + sum of the entries` must hold
exactly. docs/parity.md is written from here (parity.py --write-doc) and compared with it."""

from dataclasses import dataclass
from typing import Callable

# The letters of the formulas: e is the bytes of an element.


@dataclass(frozen=True)
class Difference:
    where: str
    formula: str  # memtape minus PyTorch, in bytes
    bytes: Callable[..., int]
    why: str


DIFFERENCES = {
    "gather": Difference(
        "gather from x in a storage of m", "-m e",
        lambda e, m: -m * e,
        "PyTorch keeps x, of whose gradient only the shape is read. memtape keeps the index."),
    "dropout mask": Difference(
        "dropout of n elements", "n (1 - e)",
        lambda e, n: n * (1 - e),
        "PyTorch on the CPU keeps the mask in the tensor's own type, already divided by 1 - p. "
        "memtape keeps one byte per element, as PyTorch does on CUDA."),
    "norm statistics": Difference(
        "layer norm of r rows, or batch norm of r channels, 2-byte floats", "2 r (4 - e)",
        lambda e, r: 2 * r * (4 - e) if e == 2 else 0,
        "PyTorch on the CPU keeps mean and rstd in the input's type. memtape keeps them in f32, as "
        "PyTorch does on CUDA: 2 bytes are too few to divide by."),
    "norm bias": Difference(
        "layer norm with a bias of n, not a parameter", "-n e",
        lambda e, n: -n * e,
        "PyTorch keeps the bias, which no gradient reads. memtape keeps what gradients read. "
        "Nothing to see in a model: parameters are not counted."),
    "norm, x not wanted": Difference(
        "layer norm of r rows of n, or batch norm of n channels, whose input wants no gradient", "-n e",
        lambda e, n: -n * e,
        "The weight matters for dx only. PyTorch keeps everything whatever is wanted."),
    "norm, only the bias wanted": Difference(
        "layer norm of r rows, or batch norm of r channels, in a storage of m, whose bias alone wants a "
        "gradient; n: elements of the weight", "-(n e + m e + 2 r e)",
        lambda e, r, m, n: -(n * e + m * e + 2 * r * e),
        "The bias's gradient is the sum of dy: nothing needs to be kept."),
    "rms norm, normalised": Difference(
        "RMS norm of r rows of n whose weight wants a gradient", "-r n max(e, 4)",
        lambda e, r, n: -r * n * max(e, 4),
        "PyTorch on the CPU composes it from other operations, and the product with the weight "
        "keeps the normalised rows, in f32 or f64. memtape has them back from x and rstd, as "
        "PyTorch's fused operation on CUDA does."),
    "rms norm, narrow": Difference(
        "RMS norm of r rows of n, 2-byte floats, in a storage of m", "m e - 4 r n",
        lambda e, r, n, m: m * e - 4 * r * n if e == 2 else 0,
        "PyTorch on the CPU keeps a dense copy of x in f32. memtape keeps x, and so its whole "
        "storage, as PyTorch does on CUDA."),
    "rms norm, x not wanted": Difference(
        "RMS norm of r rows, in a storage of m, whose weight alone wants a gradient",
        "m e + r max(e, 4)",
        lambda e, r, m: m * e + r * max(e, 4),
        "PyTorch on the CPU has kept the normalised rows (above); memtape keeps x and rstd."),
    "rope tables": Difference(
        "rotary positions, s of them, in rows of d", "-2 s d e",
        lambda e, s, d: -2 * s * d * e,
        "PyTorch's users multiply by tables of cosines and sines, which the products keep. "
        "memtape computes the angles again."),
    "swiglu": Difference(
        "swiglu of n elements whose gate and up want gradients", "-n e",
        lambda e, n: -n * e,
        "PyTorch's product keeps silu(gate) beside gate and up. memtape computes it again."),
    "swiglu, gate not wanted": Difference(
        "swiglu of n elements, gate in a storage of m, whose up alone wants a gradient",
        "(m - n) e",
        lambda e, n, m: (m - n) * e,
        "PyTorch keeps silu(gate), memtape gate and so its whole storage."),
    "loss weight": Difference(
        "cross-entropy", "-e",
        lambda e: -e,
        "PyTorch keeps the sum of the class weights, a scalar. memtape counts the targets again."),
    "loss of logits": Difference(
        "cross-entropy that keeps logits, of n rows in a storage of m, v classes, s = max(e, 4)",
        "m e - n v e + s n - e",
        lambda e, n, v, m: (m - n * v) * e + max(e, 4) * n - e,
        "An option: logits, with their whole storage, and each row's log-sum-exp are kept in place of "
        "log-probabilities. PyTorch has no such operation."),
    "linear cross-entropy": Difference(
        "fused output product and cross-entropy of n rows and v classes, s = max(e, 4)",
        "-s (n v - n + 1)",
        lambda e, n, v: -max(e, 4) * (n * v - n + 1),
        "PyTorch has no such operation: the product's logits become log-probabilities, which the "
        "loss keeps. memtape keeps each row's log-sum-exp and computes the logits again."),
    "linear cross-entropy, one wanted": Difference(
        "the same, where only the input or only the weight wants a gradient; m: elements of the "
        "other", "m e",
        lambda e, m: m * e,
        "To compute the logits again takes both."),
    "linear cross-entropy, early": Difference(
        "output product and cross-entropy with gradients made in forward: for each that is wanted, of n elements", "n e",
        lambda e, n: n * e,
        "PyTorch's F.linear_cross_entropy in chunks has them, too, but not among its saved tensors."),
    "copied result": Difference(
        "what keeps n elements of a result, which lies in a storage of s, after a `contiguous` or "
        "`reshape` that must copy in PyTorch alone; in memtape alone: with the other sign",
        "(s - n) e",
        lambda e, n, s: (s - n) * e,
        "In PyTorch the result of an element-wise operation has its operand's order of dimensions. "
        "In memtape it is row-major."),
    "mse result": Difference(
        "mean squared error of n elements, whose result another operation keeps", "-(n - 1) e",
        lambda e, n: -(n - 1) * e,
        "PyTorch's mean is a scalar in the storage of all n squares. memtape's is in a storage of "
        "one element."),
    "causal mask": Difference(
        "causal softmax of s rows and t columns", "-s t",
        lambda e, s, t: -s * t,
        "masked_fill keeps its mask, a byte per element. memtape's softmax knows which columns are "
        "masked from their numbers."),
    "window mask": Difference(
        "flash attention with a window, s rows and t columns", "-s t e",
        lambda e, s, t: -s * t * e,
        "PyTorch's fused attention takes a window as a mask, which it keeps in the inputs' type. "
        "memtape's knows which columns are masked from their numbers."),
    "flash generator": Difference(
        "flash attention", "16",
        lambda e: 16,
        "PyTorch on the CPU has no dropout in its fused attention and so no generator state. "
        "memtape keeps an i64 seed and an i64 offset, as PyTorch does on CUDA."),
    "product copies": Difference(
        "matmul or linear of an operand of n elements, in a storage of s, that PyTorch cannot "
        "repeat m times, or fold, without a copy", "(s - m n) e",
        lambda e, n, m, s: (s - m * n) * e,
        "PyTorch makes one batch or one matrix of all leading dimensions. Where strides forbid "
        "that it makes a dense copy, and keeps it. memtape keeps the operand, and so its whole "
        "storage."),
}


def total(applied, element_bytes):
    """The bytes of [(name, {letters}), ...]."""
    return sum(DIFFERENCES[name].bytes(e=element_bytes, **letters) for name, letters in applied)


AUTOCAST = (
    "## Large scores and logits",
    "",
    "What backward computes again from a saved log-sum-exp, exp(s - lse), has the rounding of lse in f32 as a factor: "
    "1 + |s| 2^-24. Flash attention, here and in PyTorch, keeps lse alone. Its backward takes the same bits of each score as "
    "forward, so nothing is added to that (`tests/src/ops/test_attention.c`): scores of 480, d 24, the gradient of q is off by "
    "3.3e-5, PyTorch's by 2.1e-3. `cross_entropy_lse` and `linear_cross_entropy` keep the logits, or nothing of them, and "
    "lse: at logits near 430 their gradient is off by 1.2e-5, where `cross_entropy`, which keeps the log-probabilities as "
    "PyTorch's does, is off by 1.8e-7, as PyTorch is. To subtract each row's maximum again would take another pass over all "
    "keys, or all classes, or four bytes more for each row.",
    "",
    "## Autocast",
    "",
    "Each op runs in the dtype it has in PyTorch's lists for CUDA "
    "(`aten/src/ATen/autocast_mode.h`), and keeps the same bytes (`tests/parity/autocast.py`), but "
    "for this:",
    "",
    "- PyTorch has lists of its own for the CPU, by which softmax, log_softmax, layer_norm, rms_norm, "
    "exp, log, pow, softplus and sum run in the dtype they get. memtape has one list for all devices.",
    "- `batch_norm` runs in the widest dtype of its inputs. PyTorch's takes 16-bit x beside f32 weights as it is.",
    "- `mt_math_attention` is a composition: its softmax runs in f32, its products in 16 bits. "
    "PyTorch casts once for the whole of scaled_dot_product_attention.",
    "- A parameter that is written within a region is cast anew. PyTorch's cache gives the old "
    "copy.",
    "- Loss scaling: PyTorch divides gradients by the scale in a pass of its own, and refuses f16 "
    "ones. memtape divides within the optimizer's pass, in f32, whatever the gradients' type.",
    "- AdamW with `MT_MOMENTS_NARROW` keeps m and v in a parameter's 16 bits, as PyTorch does, so bytes are equal. It "
    "computes in f32 and rounds once, after the step; PyTorch rounds after every operation, so values differ.",
    "- AdamW with `MT_MOMENTS_TORCHAO_8BIT`, `_FP8` and `_4BIT` has torchao's states in bytes, "
    "its rule of which are in codes, and the room that its compiled step takes "
    "(`tests/parity/torchao_states.py`). Codes, scales and table are one tensor, "
    "where torchao has three; in 8 bits codes are numbered otherwise.",
    "- Paged AdamW (`adamw-paged`, `adamw-8bit-paged`) has in host memory what bitsandbytes' paged optimizers have in "
    "managed memory: moments, or codes without scales, of parameters of at least 100,000 elements. "
    "bitsandbytes is not here to compare with.",
    "- `mt_adafactor_new` has torch.optim.Adafactor's steps, and state of the same names, shapes, dtypes and bytes "
    "(`tests/parity/adafactor.py`). In 16 bits it, too, computes in f32 and rounds once. With an f32 master the state is "
    "f32, as PyTorch's is of f32 parameters; gradients in f32 beside 16-bit parameters leave it in 16 bits.",
    "- `mt_muon_new` has torch.optim.Muon's steps, state and temporaries, byte for byte (`tests/parity/muon.py`), "
    "for matrices, and AdamW's for vectors, embeddings and the head, which PyTorch leaves to an optimizer of the user's. "
    "Its products in bf16 are as far from those in f64 as PyTorch's are, and not the same bits.",
    "- `mt_lion_new` has the steps of Chen et al. 2023, algorithm 2, with decoupled weight decay. PyTorch has no Lion to "
    "compare with; in 16 bits it, too, computes in f32 and rounds once, and its state is f32.",
)


OTHERWISE = (
    "## Otherwise than PyTorch",
    "",
    "No bytes, but answers (`tests/src/ops/test_choose.c`, `tests/src/autograd/test_gradients.c`, "
    "`tests/parity/gradients.py`, `tests/parity/printing.py`):",
    "",
    "- `mt_clamp` refuses a low bound above the high one, and NaN bounds; PyTorch answers with the "
    "high one, or with NaN. In 16 bits it compares in f32; PyTorch rounds the bounds first, so an "
    "element that equals a rounded bound may get the other gradient.",
    "- A comparison of whole numbers with a number that their dtype does not have is refused; PyTorch "
    "compares them as floats.",
    "- `mt_gather` and `mt_topk` refuse tensors of rank 0.",
    "- `mt_cast` to an 8-bit float refuses a tensor that wants a gradient; PyTorch passes a gradient of 8 bits.",
    "- `mt_batch_norm` moves its running statistics once where a checkpoint recomputes it; PyTorch moves them "
    "again.",
    "- `mt_gradients`: an inner input's gradient is always the one after its hooks. PyTorch gives the "
    "one before them where the walk goes on past the input. Hooks of a lone root on which no input "
    "depends are not called; PyTorch calls them.",
    "- `mt_print` has PyTorch's numbers, aligns columns with NaN, inf and -0, and writes true and "
    "false in small letters.",
)


def document():
    lines = [
        "# Saved bytes beside PyTorch's",
        "",
        "memtape keeps the same bytes for backward as PyTorch, except in the rows below. The tests "
        "add these formulas to PyTorch's figure and then ask for equality, of values and gradients, "
        "too. This page is written from the table that they use (`tests/parity/parity.py "
        "--write-doc`). Random graphs are compared by it as well (`tests/parity/graphs.py`).",
        "",
        "PyTorch's figure is that of its CPU operations. Storages are counted that pass through "
        "`torch.autograd.graph.saved_tensors_hooks`: each once and whole, parameters left out. Where "
        "its CUDA operations keep other bytes, memtape follows CUDA, and the row says so. In the "
        "formulas e is the bytes of an element.",
        "",
        "| Where | memtape minus PyTorch | Why |",
        "|---|---|---|",
    ]
    lines += [f"| {d.where} | {d.formula} | {d.why} |" for d in DIFFERENCES.values()]
    lines += [
        "",
        "Not compared: attention dropout inside the fused kernel, which PyTorch lacks on the CPU, "
        "and random numbers: where a mask is drawn, memtape's mask is given to PyTorch. A checkpoint "
        "keeps the same bytes in both (`tests/parity/checkpoint.py`); the generator's state, two "
        "integers beside PyTorch's 5056 bytes, is in host memory and not counted.",
        "",
        *AUTOCAST,
        "",
        *OTHERWISE,
        "",
    ]
    return "\n".join(lines)
