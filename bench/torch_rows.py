"""torch_rows.py: PyTorch's functions for the rows of the op table whose call has no parameters, for the
benchmark's peer and for tests/parity."""

import torch
import torch.nn.functional as F

COMPARISONS = ("eq", "ne", "lt", "le", "gt", "ge")


def counted(name):
    """a + b + 1 where the comparison is true, as in src/ops/op_cases.def."""
    return lambda a, b: a + b + getattr(torch, name)(a, b)


PLAIN = {
    "add": torch.add, "sub": torch.sub, "mul": torch.mul, "div": torch.div,
    "relu": F.relu, "relu_inplace": lambda x: F.relu_(x * 2),
    "gelu": F.gelu, "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"), "silu": F.silu, "softplus": F.softplus,
    "tanh": torch.tanh, "sigmoid": torch.sigmoid, "exp": torch.exp, "log": torch.log,
    "sqrt": torch.sqrt, "reciprocal": torch.reciprocal, "abs": torch.abs,
    "swiglu": lambda gate, up: F.silu(gate) * up,
    "where": lambda mask, a, b: torch.where(mask.bool(), a, b),
    "matmul": torch.matmul, "linear": F.linear,
    "grouped_linear": lambda x, w, index: F.grouped_mm(x, w.transpose(-2, -1), offs=index.bincount(minlength=len(w)).cumsum(0).int()),
    "log_softmax": lambda x: F.log_softmax(x, -1), "embedding": F.embedding, "mse": F.mse_loss,
    "contiguous": lambda x: x.t().contiguous(), "clone": torch.clone,
    **{name: counted(name) for name in COMPARISONS},
}
