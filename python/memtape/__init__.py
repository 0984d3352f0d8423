"""memtape: what a training step keeps in memory, to the byte.

    >>> import memtape
    >>> report = memtape.profile("mlp", act="relu")
    >>> report["saved"]["bytes"]
    83886080

`memtape.torch` makes the same report of a PyTorch model; it needs PyTorch. docs/python.md is the page."""

from memtape._library import MemtapeError
from memtape.model import Model, load
from memtape.report import Report, profile, run
from memtape.tensor import Tensor, from_dlpack

__all__ = ["MemtapeError", "Model", "Report", "Tensor", "from_dlpack", "load", "profile", "run"]
