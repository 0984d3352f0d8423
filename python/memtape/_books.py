"""The books of a run whose storages are told one by one: each takes a block of a meta device of libmemtape, whose allocator
has the rules of PyTorch's for CUDA (include/memtape/memory.h)."""

from __future__ import annotations

import collections
import ctypes
import functools
import re
from dataclasses import dataclass, field
from typing import Any, Dict, Hashable, List, Optional, Sequence, Tuple, Type

from memtape._library import check, failure, library

BLOCK = 512  # bytes; of the blocks in which PyTorch's allocator for CUDA counts
# Keys of docs/profile-json.md that have no meaning for a model of someone else's, or were not measured.
MODEL_KEYS = ("batch", "seq", "hidden", "heads", "kv_heads", "layers", "vocab", "context", "ffn", "mlp", "act",
              "out_act", "inplace", "norm", "norm_kind", "dropout", "attention", "causal", "ops", "recipe",
              "recipe_options", "optimizer", "seed")
OTHER_KEYS = ("capacity", "expandable_segments", "gemm_workspace", "scratch", "parallel", "growth", "routing", "memory_options",
              "budget", "phases", "steady", "left", "inference", "peak", "outside", "timeline", "formula", "flops", "out_of_memory")
LARGEST = 20  # of those who hold memory at the peak, the report lists so many


# ---- the allocator ----

class _Stat(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in ("current", "peak", "total_in", "total_out")]


@functools.cache
def categories() -> List[str]:
    """The names of mt_category, in order."""
    names: List[str] = []
    while (name := library().mt_category_name(len(names))) and name != b"unknown":
        names.append(name.decode())
    return names


@functools.cache
def _stats_type() -> Type[ctypes.Structure]:
    """mt_mem_stats"""
    figures = ("requested", "allocated", "active", "reserved", "inactive_split", "blocks", "segments")
    by_category = ctypes.c_size_t * len(categories())

    class Stats(ctypes.Structure):
        _fields_ = [*((name, _Stat) for name in figures), ("by_category", by_category), ("at_peak", by_category),
                    ("alloc_retries", ctypes.c_uint64), ("ooms", ctypes.c_uint64)]

    return Stats


def _dtype(name: str) -> Optional[int]:
    """The number of a dtype; None if there is none of that name."""
    dtype = ctypes.c_int()
    if "\0" in name:
        return None
    return dtype.value if library().mt_dtype_parse(name.encode("utf-8", "replace"), ctypes.byref(dtype)) else None


@functools.cache
def dtype_bytes(name: str) -> int:
    """Of an element; 0 if there is no dtype of that name."""
    dtype = _dtype(name)
    return 0 if dtype is None else int(library().mt_dtype_size(dtype))


@functools.cache
def _u8() -> int:
    dtype = _dtype("u8")
    assert dtype is not None
    return dtype


MAX_STREAMS = 16  # MT_MAX_STREAMS


class _Scope(ctypes.Structure):
    """mt_stream_scope"""

    _fields_ = [("pool", ctypes.c_void_p), ("stream", ctypes.c_int), ("outer", ctypes.c_void_p)]


class _Stream(ctypes.Structure):
    """mt_stream_stats"""

    _fields_ = [("name", ctypes.c_char_p), ("reserved", ctypes.c_size_t), ("allocated", ctypes.c_size_t)]


class Pool:
    """The allocator of one meta device."""

    def __init__(self) -> None:
        self._device = library().mt_device_open(b"meta")
        if not self._device:
            raise failure()
        self._stats, self._shape, self._u8 = _stats_type()(), (ctypes.c_int64 * 1)(), _u8()
        self._stats_at = ctypes.byref(self._stats)
        self._current = ctypes.c_size_t.from_buffer(self._stats, type(self._stats).allocated.offset + _Stat.current.offset)
        self.allocated = 0  # in blocks, now

    def alloc(self, n_bytes: int, stream: Optional[str] = None) -> Tuple[int, int]:
        """(what to free, bytes of the block)"""
        c, scope = library(), None if stream is None else _Scope()
        if scope is not None:
            check(c.mt_mem_stream_begin(ctypes.byref(scope), self._device, stream.encode()))
        self._shape[0] = n_bytes
        block = c.mt_empty(self._device, self._u8, 1, self._shape)
        if scope is not None:
            c.mt_mem_stream_end(ctypes.byref(scope))
        if not block:
            raise failure()
        c.mt_mem_get_stats(self._device, self._stats_at)
        before, self.allocated = self.allocated, self._current.value
        return block, self.allocated - before

    def free(self, block: int, allocated: int) -> None:
        library().mt_release(block)
        self.allocated -= allocated

    def stats(self) -> Any:
        """Valid until the next call."""
        library().mt_mem_get_stats(self._device, self._stats_at)
        return self._stats

    def streams(self) -> List[Dict[str, Any]]:
        """What each stream has now, as a report has it."""
        found = (_Stream * MAX_STREAMS)()
        n = library().mt_mem_get_streams(self._device, found)
        return [{"name": s.name.decode(), "reserved": s.reserved, "allocated": s.allocated, "free": s.reserved - s.allocated}
                for s in found[:n]]

    def reset_peak(self) -> None:
        library().mt_mem_reset_peak(self._device)

    def close(self) -> None:
        library().mt_device_release(self._device)


# ---- the books ----

@dataclass(eq=False)
class Held:
    """A live storage."""

    n_bytes: int
    block: int
    allocated: int
    category: str
    phase: str
    module: str
    op: str
    stream: Optional[str] = None  # that its block belongs to; None: the default one
    seen: Any = None  # the weak reference that tells when it goes
    kept: Optional[Dict[str, Any]] = None  # by whom for backward


@dataclass
class Peak:
    """The instant at which most was allocated."""

    allocated: int = -1
    event: int = 0
    phase: str = ""
    module: str = ""
    op: str = ""
    by_category: Dict[str, int] = field(default_factory=dict)


class Books:
    """What is allocated, for what, made where."""

    def __init__(self) -> None:
        self.pool = Pool()
        self.live: Dict[Hashable, Held] = {}
        self.by_category = dict.fromkeys(categories(), 0)
        self.peak = Peak()  # since the phase began
        self.history: List[Tuple[int, Held, bool]] = []  # (event, what, whether it came or went), of the last phase
        self.n_events = 0
        self.phase = ""
        self.at_begin: List[Held] = []
        self.timeline: Optional[List[Dict[str, Any]]] = None  # of all phases, as a report has it, if it is wanted
        self._serials: Dict[Held, int] = {}  # of those that are alive
        self.stream: Optional[str] = None  # on which memory is requested; None: PyTorch's default one
        self.streams: List[Dict[str, Any]] = []  # of the step, when most was reserved; none if there is the default one alone
        self._most_reserved = (0, 0)  # (bytes reserved, bytes allocated)

    def add(self, identity: Hashable, n_bytes: int, category: str, module: str, op: str) -> Held:
        block, allocated = self.pool.alloc(n_bytes, self.stream)
        held = Held(n_bytes, block, allocated, category, self.phase, module, op, self.stream)
        self.live[identity] = held
        self.by_category[category] += allocated
        self._event(held, True)
        total = self.pool.allocated
        if total > self.peak.allocated:
            self.peak = Peak(total, self.n_events - 1, self.phase, module, op, dict(self.by_category))
        if self.stream is not None or self.streams:
            self._look_at_streams()
        return held

    def begin_step(self) -> None:
        self._most_reserved = (0, 0)
        if self.streams:
            self._look_at_streams()

    def _look_at_streams(self) -> None:
        """Keeps what they have where most is reserved and, of that, most is in use."""
        s = self.pool.stats()
        if (s.reserved.current, s.allocated.current) > self._most_reserved:
            self._most_reserved, self.streams = (s.reserved.current, s.allocated.current), self.pool.streams()

    def remove(self, identity: Hashable) -> None:
        held = self.live.pop(identity)
        self.by_category[held.category] -= held.allocated
        self._event(held, False)
        self.pool.free(held.block, held.allocated)

    def _event(self, held: Held, came: bool) -> None:
        self.history.append((self.n_events, held, came))
        self.n_events += 1
        if self.timeline is not None:
            self._note("alloc" if came else "free", held)

    def _note(self, kind: str, held: Held, was: Optional[str] = None) -> None:
        assert self.timeline is not None
        stats, came = self.pool.stats(), kind == "alloc"
        storage = self._serials.pop(held) if kind == "free" else self._serials.setdefault(held, len(self.timeline) + 1)
        stream = {"stream": held.stream} if held.stream is not None else {}
        self.timeline.append({
            "kind": kind, "storage": storage, "bytes": held.n_bytes, "allocated": held.allocated, "category": held.category, "was": was,
            "phase": self.phase, "module": held.module if came else "", "op": held.op if came else "",
            "current": stats.allocated.current - (0 if kind != "free" else held.allocated), "reserved": stats.reserved.current, **stream})

    def recategorise(self, held: Held, category: str, module: str) -> None:
        if held.category != category:
            was = held.category
            self.by_category[was] -= held.allocated
            self.by_category[category] += held.allocated
            held.category, held.module = category, module or held.module
            self.n_events += 1
            if self.timeline is not None:
                self._note("recategory", held, was)

    def begin(self, phase: str) -> None:
        self.phase, self.history = phase, []
        self.pool.reset_peak()
        self.peak = Peak(self.pool.allocated, self.n_events, phase, by_category=dict(self.by_category))
        self.at_begin = list(self.live.values())

    def end(self) -> Dict[str, Any]:
        """The phase as a report has it."""
        s = self.pool.stats()
        return {"name": self.phase, "requested": s.requested.current, "requested_peak": s.requested.peak,
                "allocated": s.allocated.current, "peak": s.allocated.peak, "active": s.active.current,
                "active_peak": s.active.peak, "reserved": s.reserved.current, "reserved_peak": s.reserved.peak,
                "seconds": None, "by_category": dict(self.by_category), "at_peak": dict(self.peak.by_category)}

    def alive_at_peak(self) -> List[Held]:
        """Of the last phase."""
        alive = dict.fromkeys(self.at_begin)
        for event, held, came in self.history:
            if event > self.peak.event:
                break
            if came:
                alive[held] = None
            else:
                del alive[held]
        return list(alive)

    def close(self) -> None:
        for identity in list(self.live):
            self.remove(identity)
        self.pool.close()


def grouped(alive: List[Held]) -> List[Dict[str, Any]]:
    """The largest, those of repeated layers together."""
    groups: Dict[Tuple[Any, ...], List[Held]] = collections.defaultdict(list)
    for held in alive:
        kept = tuple(held.kept.values()) if held.kept else None
        groups[held.category, re.sub(r"(?<=\.)\d+(?=\.|$)", "*", held.module), held.op, held.phase, kept].append(held)
    rows = [{"category": category, "module": module, "op": op, "phase": phase, "storages": len(all_of_it),
             "allocated": sum(held.allocated for held in all_of_it), "kept": all_of_it[0].kept}
            for (category, module, op, phase, _), all_of_it in groups.items()]
    return sorted(rows, key=lambda row: -row["allocated"])[:LARGEST]


def steps_section(phases: List[Dict[str, Any]], steady: List[Dict[str, Any]], begins: int, at: Peak,
                  largest: List[Dict[str, Any]], step: int = 2, streams: Sequence[Dict[str, Any]] = ()) -> Dict[str, Any]:
    """The keys phases, steady and peak of a report. begins: the event at which the steady step does."""
    return {"phases": phases,
            "steady": {"requested": max(p["requested_peak"] for p in steady), "peak": max(p["peak"] for p in steady),
                       "active": max(p["active_peak"] for p in steady),
                       "reserved": max(p["reserved_peak"] for p in steady),
                       "by_category": at.by_category, "event": begins, "phases": steady, **({"streams": list(streams)} if streams else {})},
            "peak": {"event": at.event, "step": step, "phase": at.phase, "module": at.module, "op": at.op,
                     "allocated": at.allocated, "by_category": at.by_category, "largest": largest}}
