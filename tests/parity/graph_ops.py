"""All ops of random graphs, and the names that their texts use."""

import torch
import torch.nn.functional as F

import graph_ops_model
import graph_ops_plain
import memtape
from graph_op import OPS
from memtape import ints
from theirs import THEIRS, masked, their_max, their_rope

__all__ = ("F", "OPS", "THEIRS", "at_least_f32", "dropout", "dropout_mask", "graph_ops_model",
           "graph_ops_plain", "inplace", "ints", "masked", "memtape", "their_max", "their_rope",
           "torch")


def dropout(m, x, p, seed):
    m.mt_seed(m.device, seed)
    return m.call("dropout", x, p)


def dropout_mask(m, x, p, seed):
    """memtape's mask in the form of PyTorch's: in x's dtype, divided by 1 - p."""
    mask = m.call("dropout_mask", m.device, x.dim(), ints(x.shape), p, seed, 0).torch()
    return mask.to(x.dtype) / (1 - p)


def inplace(m, name, x, *arguments):
    m.check(getattr(m, f"mt_{name}_inplace")(x.pointer, *arguments))
    return x


def at_least_f32(x):
    return x.to(torch.promote_types(x.dtype, torch.float32))
