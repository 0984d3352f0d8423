"""What older versions of PyTorch, such as 2.9, do not tell: what a hook has packed in the place of a saved tensor.

There only the hook that unpacks is given it. So a node is asked for its tensors, memtape's hook notes what it gets, and the hooks of
others, by which a checkpoint would run, give nothing meanwhile."""

from __future__ import annotations

import contextlib
import weakref
from typing import Any, Callable, ContextManager, Iterator, List, Optional

import torch

_hooks: Any = torch.autograd.graph.saved_tensors_hooks
TELLS = hasattr(torch._C._autograd.SavedTensor, "data")
_ours: "weakref.WeakSet[Any]" = weakref.WeakSet()  # hooks of memtape's own
_found: Optional[List[Any]] = None  # what hooks have been given since a node is asked


def noting(unpack: Callable[[Any], torch.Tensor]) -> Callable[[Any], torch.Tensor]:
    """A hook that unpacks, and tells `packed_in` what it is given."""
    def noted(packed: Any) -> torch.Tensor:
        if _found is not None:
            _found.append(packed)
        return unpack(packed)
    if TELLS:
        return unpack
    _ours.add(noted)
    return noted


@contextlib.contextmanager
def _waiting() -> Iterator[None]:
    init = _hooks.__init__

    def wait(self: Any, pack: Any, unpack: Any) -> None:
        def give(packed: Any) -> Any:
            if _found is None or unpack in _ours:
                return unpack(packed)
            _found.append(None)
            return torch.empty(0)
        init(self, pack, give)

    _hooks.__init__ = wait
    try:
        yield
    finally:
        _hooks.__init__ = init


def others_wait() -> ContextManager[None]:
    """Hooks that are entered within it run nothing while a node is asked."""
    return contextlib.nullcontext() if TELLS else _waiting()


def packed_in(node: Any, attribute: str, i: int, raw: Any) -> Any:
    """What a hook has packed for raw, which is the i-th of the node's attribute; None if nobody knows."""
    global _found
    if TELLS:
        return raw.data
    found: List[Any] = []
    _found = found
    try:
        getattr(node, "saved_tensors" if attribute == "_raw_saved_tensors" and hasattr(type(node), "saved_tensors") else
                attribute.replace("_raw", "", 1))
    except RuntimeError:  # written over since
        return None
    finally:
        _found = None
    return found[i] if i < len(found) else None
