"""The values of tensors on meta that a model asks for, as far as they follow from its batch."""

from __future__ import annotations

import functools
import linecache
import os
import sys
from pathlib import Path
from typing import Any, Callable, Dict, List, NamedTuple, NoReturn, Optional, Set, Tuple

import torch
from torch.utils import _pytree
from torch.utils.weak import WeakIdKeyDictionary

from memtape._kernels import empty_like, quickly
from memtape._ledger import _tensors
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


def refuse(module: str, what: str, instead: str, error: Optional[Exception] = None) -> NoReturn:
    place, line = _place()
    shown = f" ({line})" if line else ""
    raise MemtapeError(f"memtape.torch: {module or 'the loss'} asks for {what} at {place}{shown}. A step is run on meta, which computes "
                       f"only what follows from the batch's whole numbers and small constants; {instead}") from error


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

class _Operation(NamedTuple):
    """What PyTorch says of an operation."""

    decides: bool  # whether values may decide the shape of what it returns
    draws: bool  # random numbers
    written: Tuple[Tuple[int, str], ...]  # (place, name) of the arguments that it writes
    each: bool  # whether it takes a list, and does the same with each of it
    in_place: bool  # whether its first argument is written element by element, and nothing else is made


@functools.cache
def _operation(func: Any) -> _Operation:
    written = ((i, argument.name) for i, argument in enumerate(func._schema.arguments) if argument.is_write)
    name = func._schema.name.partition("::")[2]
    each = name.startswith("_foreach_") and name not in ("_foreach_norm", "_foreach_max")
    in_place = name.endswith("_") and (each or torch.Tag.pointwise in func.tags)
    decides, draws = (tag in func.tags for tag in (torch.Tag.dynamic_output_shape, torch.Tag.nondeterministic_seeded))
    return _Operation(decides, draws, tuple(written), each, in_place)


def _of_optimizer(func: Any, args: Any, kwargs: Any) -> Any:
    """func of an optimizer's step on meta, where in place nothing is made, and of a list an equal one. For all else it is called;
    PyTorch has Python code for many of these on meta, which would take most of the time."""
    operation = _operation(func)
    first: Any = args[0] if args else None
    of_meta = first.is_meta if isinstance(first, torch.Tensor) else isinstance(first, list) and first and first[0].is_meta
    if of_meta and operation.in_place:
        return None if operation.each else first
    others = [other for other in args[1:] if isinstance(other, list) and other and isinstance(other[0], torch.Tensor)]
    if of_meta and operation.each and all(t.is_floating_point() for t in first) and \
            all(t.dtype == o.dtype and t.shape == o.shape for other in others for t, o in zip(first, other)):
        return [empty_like(t) for t in first]
    return func(*args, **kwargs)


def _depends_on_values(func: Any, args: Any) -> bool:
    """Whether what func returns has a shape that its arguments' values decide: of an index, only where a mask is in it."""
    return _operation(func).decides and (func is not _INDEX or any(i is not None and i.dtype in _MASKS for i in args[1]))


def _is_small(t: torch.Tensor) -> bool:
    n = t.numel()
    return bool(n <= MOST_FLOATS or n <= MOST_VALUES and not t.is_floating_point() and not t.is_complex())


def _is_meta(t: Any) -> bool:
    return isinstance(t, torch.Tensor) and bool(t.is_meta)


def twin(t: torch.Tensor) -> torch.Tensor:
    """A tensor on meta of the same shape, strides and storage."""
    storage = torch.empty(t.untyped_storage().nbytes(), dtype=torch.uint8, device="meta").untyped_storage()
    return torch.empty(0, dtype=t.dtype, device="meta").set_(storage, t.storage_offset(), t.shape, t.stride())


class Values:
    """The values of small tensors, as far as they come from the batch and from nothing: models branch by masks and
    positions, which meta tensors cannot answer."""

    def __init__(self) -> None:
        self._found: Any = WeakIdKeyDictionary()  # (value, storage, writes to it so far), by tensors
        self._ids: Set[int] = set()  # of all that have been in it: most tensors never are
        self._writes: Dict[int, int] = {}  # whose values were not known, by storages that had known ones
        self.where: Callable[[], str] = lambda: ""
        self.decides = True  # whether an optimizer's own numbers may decide; see `scalar`

    def know(self, t: torch.Tensor, value: torch.Tensor) -> None:
        if _is_small(value):
            self._put(t, value.detach().cpu().clone())

    def _put(self, t: torch.Tensor, value: torch.Tensor) -> None:
        storage = t.untyped_storage()._cdata
        self._found[t] = value, storage, self._writes.setdefault(storage, 0)
        self._ids.add(id(t))

    def _known(self, t: torch.Tensor) -> Optional[torch.Tensor]:
        if id(t) not in self._ids:
            return None
        value, storage, writes = self._found.get(t, (None, 0, 0))
        return value if self._writes.get(storage) == writes else None

    def pass_on(self, t: torch.Tensor, alias: torch.Tensor) -> None:
        """What is known of t is known of an alias."""
        found = self._found.get(t) if id(t) in self._ids else None
        if found is not None:
            self._found[alias] = found
            self._ids.add(id(alias))

    def of_call(self, func: Any, args: Any, kwargs: Any) -> Any:
        """What func returns on the values of its arguments; None if one is not known, or if it draws random numbers."""
        if _operation(func).draws:
            return None
        for a in args:
            if isinstance(a, torch.Tensor) and a.is_meta and self._known(a) is None:
                return None
        if any(t.is_meta and self._known(t) is None for t in _tensors([*args, *kwargs.values()])):
            return None
        args, kwargs = _pytree.tree_map_only(torch.Tensor, lambda t: self._known(t) if t.is_meta else t, (args, kwargs))
        return func(*args, **(kwargs if kwargs.get("device") is None else {**kwargs, "device": "cpu"}))

    def without_masks(self, args: Any) -> Any:
        """The arguments of an index with the places that its masks choose, whose values stay unknown; None: a mask is not known."""
        indices: List[Optional[torch.Tensor]] = []
        for i in args[1]:
            if i is None or i.dtype not in _MASKS:
                indices.append(i)
                continue
            mask = self._known(i)
            if mask is None:
                return None
            indices += [torch.empty(len(places), dtype=torch.long, device="meta") for places in mask.nonzero(as_tuple=True)]
        return (args[0], indices, *args[2:])

    def run(self, func: Any, args: Any, kwargs: Any) -> Any:
        """func on meta, with the values of what it returns where they are known."""
        if func is _INDEX and self._known(args[0]) is None:
            args = self.without_masks(args) or args
        if func is _ITEM:
            return self._scalar(func, args)
        if func is _LEFT_ALIGNED:  # whether TransformerEncoder may leave its layers for a fast path
            return False
        if func in _NEVER and self._known(args[0]) is None:
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
                out = quickly(func, args, kwargs)
                if out is None:
                    out = func(*args, **kwargs) if self.decides else _of_optimizer(func, args, kwargs)
            except NotImplementedError as error:
                if "Meta" in str(error):
                    refuse(self.where(), f"{func.__name__}, for which this PyTorch has no code on meta,", "leave it out of the profiled step, or "
                           "give the operation such code with torch.library.register_fake", error)
                raise
            except RuntimeError as error:
                self.mixed(func, (args, kwargs), error)
                raise
            made = out if isinstance(out, (tuple, list)) else (out,)
            if not all(_is_meta(t) and _is_small(t) for t in made):
                self._forget(func, args, kwargs)
                return out
            values = self.of_call(func, args, kwargs)
        if values is None:
            self._forget(func, args, kwargs)
        else:
            for t, value in zip(_tensors(out), _tensors(values)):
                if _is_small(value):
                    self._put(t, value)  # itself: views of it share its storage
        return out

    def _forget(self, func: Any, args: Any, kwargs: Any) -> None:
        """What func has written over is not known any more, nor is what shares its storage."""
        for i, name in _operation(func).written:
            for t in _tensors(args[i] if i < len(args) else kwargs.get(name)):
                storage = t.untyped_storage()._cdata
                if storage in self._writes:
                    self._writes[storage] += 1

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
        value = self._known(t)
        if value is not None:
            return value.item()
        if t.is_floating_point() and t.numel() == 1 and self.decides:
            return Unknown(self.where())
        return self._scalar(_ITEM, (t,))

    def all_of(self, t: torch.Tensor) -> torch.Tensor:
        """The values, for t.numpy() and t.tolist()."""
        value = self._known(t)
        if value is None:
            refuse(self.where(), "values for Python or NumPy", "leave it out of the profiled step, or give what it needs in the batch")
        return value

    def mixed(self, func: Any, args: Any, error: Exception) -> None:
        """Refuses in words where PyTorch has met tensors of two devices."""
        host = [t for t in _tensors(args) if not t.is_meta and t.dim()]
        if host and any(said in str(error) for said in ("expected device meta", "same device")):
            place, line = _place()
            met = f"a {host[0].device.type} tensor of shape {list(host[0].shape)}"
            raise MemtapeError(f"memtape.torch: {self.where() or 'the loss'}: {func.__name__} meets {met} at {place} ({line}). It was "
                               "made in the step, on another device than the model's: on CUDA this fails, too. Make "
                               "it with device=x.device, or a buffer of the module") from error
