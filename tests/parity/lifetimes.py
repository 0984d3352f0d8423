"""The most bytes of storages that eager PyTorch has at once."""
import weakref

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class Lifetimes(TorchDispatchMode):
    """Counts the bytes of all storages that ops return, until they are freed; not of tensors that were there."""

    def __init__(self, there=()):
        super().__init__()
        self.seen, self.now, self.peak = {t.untyped_storage()._cdata for t in there}, 0, 0

    def forget(self, key, bytes):
        self.seen.discard(key)
        self.now -= bytes

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for t in tree_leaves(out):
            storage = t.untyped_storage() if isinstance(t, torch.Tensor) else None
            if storage is None or storage._cdata in self.seen:
                continue
            self.seen.add(storage._cdata)
            self.now += storage.nbytes()
            weakref.finalize(storage, self.forget, storage._cdata, storage.nbytes())
        self.peak = max(self.peak, self.now)
        return out
