"""The values of tensors on meta that a model asks for, as far as they follow from its batch."""

from __future__ import annotations

import linecache
import os
import sys
from pathlib import Path
from typing import Any, Callable, List, NoReturn, Optional, Set, Tuple

import torch
from torch.utils import _pytree
from torch.utils.weak import WeakIdKeyDictionary

from memtape._library import MemtapeError

MOST_VALUES = 1 << 20  # elements of a tensor of whole numbers whose values are computed
MOST_FLOATS = 1 << 12  # the same of floating point
_FOLDERS = tuple(str(Path(file).parent) for file in (torch.__file__, __file__))
_aten = torch.ops.aten
_ITEM = _aten._local_scalar_dense.default
_INDEX = _aten.index.Tensor
_LEFT_ALIGNED = _aten._nested_tensor_from_mask_left_aligned.default
_TO_COPY = _aten._to_copy.default
_MASKS = (torch.bool, torch.uint8)
_NEVER = (_aten.isnan.default, _aten.isinf.default)  # of a healthy run


# ---- where a value is asked for ----

def _place() -> Tuple[str, str]:
    """("file.py:12", the line there) of the code that is neither PyTorch's nor memtape's."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_FOLDERS):
        frame = frame.f_back
    name = frame.f_code.co_filename
    return f"{name}:{frame.f_lineno}", linecache.getline(name, frame.f_lineno).strip()


def _checked() -> Optional[bool]:
    """What PyTorch's own check of values finds in a run that goes well; None: nobody checks."""
    frame: Any = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(_FOLDERS):
        name = frame.f_code.co_name
        if frame.f_code.co_filename.endswith(os.path.join("torch", "nn", "functional.py")) and name == "gaussian_nll_loss":
            return False
        if os.path.join("torch", "distributions", "") in frame.f_code.co_filename and name in ("__init__", "_validate_sample"):
            return True
        frame = frame.f_back
    return None


def refuse(module: str, what: str, instead: str) -> NoReturn:
    place, line = _place()
    shown = f" ({line})" if line else ""
    raise MemtapeError(f"memtape.torch: {module or 'the loss'} asks for {what} at {place}{shown}. A step is run on meta, which computes "
                       f"only what follows from the batch's whole numbers and small constants; {instead}")


class Unknown(float):
    """A number that a step on meta does not compute. It may be added up, scaled and printed, as a logged loss is; a decision by
    it is refused."""

    module: str

    def __new__(cls, module: str = "") -> Unknown:
        self = super().__new__(cls, float("nan"))
        self.module = module
        return self

    def _decide(self, *_: Any) -> NoReturn:
        refuse(self.module, "a decision by a number that is not known", "decide by the batch or by a setting, or leave the decision "
               "out of the profiled step")

    def _calculate(self, *_: Any) -> Unknown:
        return Unknown(self.module)

    __bool__ = __int__ = __trunc__ = __floor__ = __ceil__ = _decide
    __lt__ = __le__ = __gt__ = __ge__ = __eq__ = __ne__ = __hash__ = _decide
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = _calculate
    __pow__ = __rpow__ = __neg__ = __abs__ = __pos__ = __mod__ = __rmod__ = _calculate
    __floordiv__ = __rfloordiv__ = _calculate

    def __round__(self, digits: Any = None) -> Any:
        return self._decide() if digits is None else Unknown(self.module)


# ---- values ----

def _depends_on_values(func: Any, args: Any) -> bool:
    """Whether what func returns has a shape that its arguments' values decide: of an index, only where a mask is in it."""
    if torch.Tag.dynamic_output_shape not in func.tags:
        return False
    return bool(func is not _INDEX or any(i is not None and i.dtype in _MASKS for i in args[1]))


def _is_small(t: torch.Tensor) -> bool:
    return bool(t.numel() <= (MOST_FLOATS if t.is_floating_point() or t.is_complex() else MOST_VALUES))


def _is_meta(t: Any) -> bool:
    return isinstance(t, torch.Tensor) and t.device.type == "meta"


def twin(t: torch.Tensor) -> torch.Tensor:
    """A tensor on meta of the same shape, strides and storage."""
    storage = torch.empty(t.untyped_storage().nbytes(), dtype=torch.uint8, device="meta").untyped_storage()
    return torch.empty(0, dtype=t.dtype, device="meta").set_(storage, t.storage_offset(), t.shape, t.stride())


class Values:
    """The values of small tensors, as far as they come from the batch and from nothing: models branch by masks and
    positions, which meta tensors cannot answer."""

    def __init__(self) -> None:
        self._known: Any = WeakIdKeyDictionary()
        self._storages: Set[int] = set()  # of those, and of some that are gone
        self.where: Callable[[], str] = lambda: ""
        self.decides = True  # whether an optimizer's own numbers may decide; see `scalar`

    def know(self, t: torch.Tensor, value: torch.Tensor) -> None:
        if _is_small(value):
            self._put(t, value.detach().cpu().clone())

    def _put(self, t: torch.Tensor, value: torch.Tensor) -> None:
        self._known[t] = value
        self._storages.add(t.untyped_storage()._cdata)

    def of_call(self, func: Any, args: Any, kwargs: Any) -> Any:
        """What func returns on the values of its arguments; None if one is not known, or if it draws random numbers."""
        tensors = [t for t in _pytree.tree_leaves((args, kwargs)) if _is_meta(t)]
        if torch.Tag.nondeterministic_seeded in func.tags or not all(t in self._known for t in tensors):
            return None
        args, kwargs = _pytree.tree_map_only(torch.Tensor, lambda t: self._known.get(t, t), (args, kwargs))
        return func(*args, **(kwargs if kwargs.get("device") is None else {**kwargs, "device": "cpu"}))

    def without_masks(self, args: Any) -> Any:
        """The arguments of an index with the places that its masks choose, whose values stay unknown; None: a mask is not known."""
        indices: List[Optional[torch.Tensor]] = []
        for i in args[1]:
            mask = i is not None and i.dtype in _MASKS
            if mask and i not in self._known:
                return None
            indices += [torch.empty(len(places), dtype=torch.long, device="meta")
                        for places in self._known[i].nonzero(as_tuple=True)] if mask else [i]
        return (args[0], indices, *args[2:])

    def run(self, func: Any, args: Any, kwargs: Any) -> Any:
        """func on meta, with the values of what it returns where they are known."""
        if func is _INDEX and args[0] not in self._known:
            args = self.without_masks(args) or args
        if func is _ITEM:
            return self._scalar(func, args)
        if func is _LEFT_ALIGNED:  # whether TransformerEncoder may leave its layers for a fast path
            return False
        if func in _NEVER and args[0] not in self._known:
            return self._never(func, args)
        if func is _TO_COPY and kwargs.get("device") is not None and torch.device(kwargs["device"]).type == "cpu" and _is_meta(args[0]):
            return self._to_host(func, args, kwargs)
        if _depends_on_values(func, args):
            values = self.of_call(func, args, kwargs)
            if values is None:
                refuse(self.where(), f"values that decide a shape, by {func.__name__},", "choose a fixed number (torch.where, a mask that "
                       "multiplies, topk), or give the mask or the indices in the batch")
            out = _pytree.tree_map_only(torch.Tensor, twin, values)
        else:
            try:
                out = func(*args, **kwargs)
            except RuntimeError as error:
                self.mixed(func, (args, kwargs), error)
                raise
            made = _pytree.tree_leaves(out)
            if not all(_is_meta(t) and _is_small(t) for t in made):
                self._forget(func, args, kwargs)
                return out
            values = self.of_call(func, args, kwargs)
        if values is None:
            self._forget(func, args, kwargs)
        else:
            for t, value in zip(_pytree.tree_leaves(out), _pytree.tree_leaves(values)):
                if _is_small(value):
                    self._put(t, value)  # itself: views of it share its storage
        return out

    def _forget(self, func: Any, args: Any, kwargs: Any) -> None:
        """What func has written over is not known any more, nor is what shares its storage."""
        given = {**dict(zip((argument.name for argument in func._schema.arguments), args)), **kwargs}
        for argument in func._schema.arguments:
            if argument.is_write:
                for t in _pytree.tree_leaves(given.get(argument.name)):
                    storage = t.untyped_storage()._cdata if isinstance(t, torch.Tensor) else None
                    if storage in self._storages:
                        self._storages.discard(storage)
                        for known in [k for k in self._known if k.untyped_storage()._cdata == storage]:
                            del self._known[known]

    def _scalar(self, func: Any, args: Any) -> Any:
        value = self.of_call(func, args, {})
        if value is None:
            value = _checked()
        if value is None and not self.decides:
            return 1.0 if args[0].is_floating_point() else 0
        if value is None:
            refuse(self.where(), "a value that is not computed on meta,", "decide by the batch or by a setting, or leave the decision "
                   "out of the profiled step. What is only logged may be taken by .item()")
        return value

    def _never(self, func: Any, args: Any) -> torch.Tensor:
        """isnan and isinf of what is not known: nowhere, as in a run that goes well."""
        out: torch.Tensor = func(*args)
        if _is_small(out):
            self.know(out, torch.zeros(out.shape, dtype=torch.bool))
        else:
            self._put(out, torch.zeros((), dtype=torch.bool).expand(out.shape))
        return out

    def _to_host(self, func: Any, args: Any, kwargs: Any) -> Any:
        values = self.of_call(func, args, kwargs)
        if values is None:
            refuse(self.where(), "a copy in host memory,", "leave it out of the profiled step, or give what it needs in the batch")
        return values

    def item(self, t: torch.Tensor) -> Any:
        """t.item(): its value if it is known; else, of floating point, one that may be logged."""
        if t in self._known:
            return self._known[t].item()
        if t.is_floating_point() and t.numel() == 1 and self.decides:
            return Unknown(self.where())
        return self._scalar(_ITEM, (t,))

    def all_of(self, t: torch.Tensor) -> torch.Tensor:
        """The values, for t.numpy() and t.tolist()."""
        if t not in self._known:
            refuse(self.where(), "values for Python or NumPy", "leave it out of the profiled step, or give what it needs in the batch")
        value: torch.Tensor = self._known[t]
        return value

    def mixed(self, func: Any, args: Any, error: Exception) -> None:
        """Refuses in words where PyTorch has met tensors of two devices."""
        host = [t for t in _pytree.tree_leaves(args) if isinstance(t, torch.Tensor) and t.device.type != "meta" and t.dim()]
        if host and any(said in str(error) for said in ("expected device meta", "same device")):
            place, line = _place()
            met = f"a {host[0].device.type} tensor of shape {list(host[0].shape)}"
            raise MemtapeError(f"memtape.torch: {self.where() or 'the loss'}: {func.__name__} meets {met} at {place} ({line}). It was "
                               "made in the step, on another device than the model's: on CUDA this fails, too. Make "
                               "it with device=x.device, or a buffer of the module") from error
