"""Tensors of the library, shared with numpy, PyTorch and others through DLPack without a copy.

    x = memtape.from_dlpack(numpy_array)      # the array's memory
    y = numpy.from_dlpack(x)                  # the same memory again
    z = torch.from_dlpack(x)

Whoever holds a tensor keeps its memory alive, on either side. On the CPU; all sides need DLPack 1.0, as
numpy 2.4 and PyTorch 2.13 have it."""

from __future__ import annotations

import ctypes
import functools
from typing import Any, Optional, Tuple

from memtape._library import check, failure, library

CPU = (1, 0)  # DLPack's device type and number
VERSION = (1, 0)
# PyCapsule keeps these pointers, so the texts stay.
NAME, USED = ctypes.c_char_p(b"dltensor_versioned"), ctypes.c_char_p(b"used_dltensor_versioned")


@functools.cache
def _capsules() -> ctypes.PyDLL:
    """Python's functions on capsules. A capsule is passed as an address, because its destructor gets one that is dying."""
    api = ctypes.PyDLL(None)
    pointer, text = ctypes.c_void_p, ctypes.c_char_p
    api.PyCapsule_New.restype, api.PyCapsule_New.argtypes = ctypes.py_object, [pointer, text, pointer]
    api.PyCapsule_IsValid.restype, api.PyCapsule_IsValid.argtypes = ctypes.c_int, [pointer, text]
    api.PyCapsule_GetPointer.restype, api.PyCapsule_GetPointer.argtypes = pointer, [pointer, text]
    api.PyCapsule_SetName.restype, api.PyCapsule_SetName.argtypes = ctypes.c_int, [pointer, text]
    return api


def _destroy(capsule: int) -> None:
    """A consumer has renamed the capsule and calls the deleter; else it is called here."""
    if _capsules().PyCapsule_IsValid(capsule, NAME):
        library().mt_dlpack_free(_capsules().PyCapsule_GetPointer(capsule, NAME))


_DESTRUCTOR = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)(_destroy)


@functools.cache
def _cpu() -> int:
    """The device of all tensors of this module, open until the process ends."""
    device: Optional[int] = library().mt_device_open(b"cpu")
    if not device:
        raise failure()
    return device


class Tensor:
    """A tensor of the library, which it owns; made by from_dlpack. Its elements are read and written through DLPack."""

    def __init__(self, pointer: int) -> None:
        self._pointer, self._release = pointer, library().mt_release

    def __del__(self) -> None:
        pointer, self._pointer = getattr(self, "_pointer", 0), 0
        if pointer:
            self._release(pointer)

    @property
    def shape(self) -> Tuple[int, ...]:
        return tuple(library().mt_shape(self._pointer)[: library().mt_rank(self._pointer)])

    @property
    def strides(self) -> Tuple[int, ...]:
        """In elements."""
        return tuple(library().mt_strides(self._pointer)[: library().mt_rank(self._pointer)])

    @property
    def dtype(self) -> str:
        """"f32", "bf16", ..."""
        name: bytes = library().mt_dtype_name(library().mt_dtype_of(self._pointer))
        return name.decode()

    def __repr__(self) -> str:
        return f"<memtape tensor: {self.dtype} {list(self.shape)}>"

    def __dlpack_device__(self) -> Tuple[int, int]:
        return CPU

    def __dlpack__(self, *, stream: Optional[int] = None, max_version: Optional[Tuple[int, int]] = None,
                   dl_device: Optional[Tuple[int, int]] = None, copy: Optional[bool] = None) -> Any:
        """A capsule for one consumer, which shares this tensor's memory. BufferError where it would need a copy, another
        device or a version below 1.0."""
        if max_version is None or max_version[0] < VERSION[0]:
            raise BufferError("memtape gives tensors by DLPack 1.0; the consumer takes older versions only")
        if stream is not None:
            raise BufferError("the stream must be None for a tensor on the CPU")
        if dl_device is not None and tuple(dl_device) != CPU:
            raise BufferError(f"the tensor is on DLPack's device {CPU}; {tuple(dl_device)} was asked for")
        if copy:
            raise BufferError("memtape shares a tensor's memory; copy it on your side")
        managed = library().mt_to_dlpack(self._pointer)
        if not managed:
            raise failure()
        return _capsules().PyCapsule_New(managed, NAME, ctypes.cast(_DESTRUCTOR, ctypes.c_void_p))


def from_dlpack(source: Any) -> Tensor:
    """A tensor over the memory of a numpy array, a PyTorch tensor or what else has __dlpack__, which stays alive as long as
    the tensor. What memtape cannot hold (read-only memory, negative strides, complex numbers, other devices) raises
    MemtapeError and says so."""
    if not hasattr(source, "__dlpack__"):
        raise TypeError(f"from_dlpack: a {type(source).__name__} has no __dlpack__; need a numpy array, a PyTorch tensor, ...")
    capsule = source.__dlpack__(max_version=VERSION)
    managed = ctypes.py_object(capsule)
    address = ctypes.cast(ctypes.pointer(managed), ctypes.POINTER(ctypes.c_void_p)).contents
    if not _capsules().PyCapsule_IsValid(address, NAME):
        raise BufferError(f"from_dlpack: the {type(source).__name__} gives a version of DLPack below 1.0")
    pointer = library().mt_from_dlpack(_cpu(), _capsules().PyCapsule_GetPointer(address, NAME))
    if not pointer:
        raise failure()
    check(_capsules().PyCapsule_SetName(address, USED))
    return Tensor(pointer)
