"""A model of weights that you have: a folder as Transformers writes it, or a GGUF file.

    m = memtape.load("SmolLM2-135M")
    logits = numpy.from_dlpack(m.logits([504, 3575, 282]))   # [1,3,vocabulary], the library's memory
    m.loss([504, 3575, 282]), m.generate([504, 3575, 282], 20)

Tokens are whole numbers: of one text, or of several; lists, or what has DLPack's i64 (numpy, PyTorch). Texts of different lengths are lists, or
an array padded on the left and the attention_mask [b,s] that says where the texts are: each is read as if it were alone."""

from __future__ import annotations

import ctypes
import functools
from typing import Any, Callable, Dict, List, Sequence, Tuple, Union, cast

from memtape._library import MemtapeError, check, failure, library
from memtape.tensor import Tensor, _cpu, from_dlpack

_P, _I, _I64, _U64, _TEXT, _SIZE = ctypes.c_void_p, ctypes.c_int, ctypes.c_int64, ctypes.c_uint64, ctypes.c_char_p, ctypes.c_size_t
_I64_MT = 4  # mt_dtype
_TAKE = ctypes.CFUNCTYPE(ctypes.c_bool, _P, ctypes.POINTER(_I64))

Tokens = Union[Sequence[int], Sequence[Sequence[int]], Any]


class _Options(ctypes.Structure):
    """mt_generate_options"""

    _fields_ = [("temperature", ctypes.c_double), ("top_k", _I64), ("top_p", ctypes.c_double), ("repetition_penalty", ctypes.c_double),
                ("seed", _U64), ("first_draw", _U64), ("no_cache", ctypes.c_bool), ("cache", _I), ("lengths", ctypes.POINTER(_I64))]


@functools.cache
def _functions() -> ctypes.CDLL:
    dll = library()
    for name, (result, *arguments) in {
        "mt_model_open": (_P, _P, _TEXT, _P, _TEXT, _SIZE), "mt_module_free": (None, _P), "mt_module_kind": (_TEXT, _P),
        "mt_module_size": (_I, _P, ctypes.POINTER(_U64), ctypes.POINTER(_U64)),
        "mt_forward": (_P, _P, _P),
        "mt_bert_hidden": (_P, _P, _P), "mt_logits_each": (_P, _P, ctypes.POINTER(_I64), _P),
        "mt_model_forward_loss": (_P, _P, _P, _P), "mt_item": (ctypes.c_double, _P), "mt_module_set_training": (None, _P, ctypes.c_bool),
        "mt_from_data": (_P, _P, _I, _I, ctypes.POINTER(_I64), _P, _SIZE), "mt_slice": (_P, _P, _I, _I64, _I64),
        "mt_contiguous": (_P, _P), "mt_set_grad_mode": (ctypes.c_bool, ctypes.c_bool), "mt_to_host": (_I, _P, _P, _SIZE),
        "mt_generate": (_I, _P, _I64, _I64, ctypes.POINTER(_I64), _I64, ctypes.POINTER(_Options), _TAKE, _P, _P),
    }.items():
        function = getattr(dll, name)
        function.restype, function.argtypes = result, arguments
    return dll


def _made(pointer: int) -> Tensor:
    if not pointer:
        raise failure()
    return Tensor(pointer)


def _rows(ids: Tokens, what: str = "tokens") -> List[Sequence[int]]:
    if hasattr(ids, "__dlpack__"):
        t = from_dlpack(ids)
        if t.dtype != "i64" or len(t.shape) not in (1, 2):
            raise MemtapeError(f"{what} are {t.dtype} {list(t.shape)}; need i64 [s] or [b,s]")
        ids = _numbers(t)
    one = not ids or isinstance(ids[0], int)
    return [cast(Sequence[int], ids)] if one else list(cast(Sequence[Sequence[int]], ids))


def _texts(ids: Tokens, attention_mask: Tokens = None) -> List[Sequence[int]]:
    """Each text's tokens, without padding."""
    rows = _rows(ids)
    if attention_mask is not None:
        masks = _rows(attention_mask, "the attention_mask's elements")
        lengths = [sum(mask) for mask in masks]
        if [len(row) for row in rows] != [len(mask) for mask in masks] or any(
                list(mask) != [0] * (len(mask) - n) + [1] * n for mask, n in zip(masks, lengths)):
            raise MemtapeError("the attention_mask: need one of the tokens' shape whose rows are zeros and then ones; texts are padded on the left")
        rows = [row[len(row) - n:] for row, n in zip(rows, lengths)]
    if not all(rows):
        raise MemtapeError("tokens: need at least one in each text")
    return rows


def _padded(rows: List[Sequence[int]], width: int = 0) -> Tuple[Any, int]:
    """The numbers of rows of one width, with 0 before a text that is shorter."""
    width = max(width, max(map(len, rows)))
    return (_I64 * (len(rows) * width))(*(id for row in rows for id in (*[0] * (width - len(row)), *row))), width


def _tensor(rows: List[Sequence[int]], width: int = 0) -> Tensor:
    """[b,s]"""
    data, width = _padded(rows, width)
    return _made(_functions().mt_from_data(_cpu(), _I64_MT, 2, (_I64 * 2)(len(rows), width), data, ctypes.sizeof(data)))


def _lengths(rows: List[Sequence[int]]) -> Any:
    return (_I64 * len(rows))(*map(len, rows))


def _numbers(t: Tensor) -> List[List[int]]:
    shape = t.shape if len(t.shape) == 2 else (1, *t.shape)
    data = (_I64 * (shape[0] * shape[1]))()
    check(_functions().mt_to_host(t._pointer, data, ctypes.sizeof(data)))
    return [list(data[i * shape[1]:(i + 1) * shape[1]]) for i in range(shape[0])]


class Model:
    """Made by load; dropout is off."""

    def __init__(self, path: str) -> None:
        self._pointer, self._free = _functions().mt_model_open(_cpu(), str(path).encode(), None, None, 0), _functions().mt_module_free
        if not self._pointer:
            raise failure()
        _functions().mt_module_set_training(self._pointer, False)

    def __del__(self) -> None:
        pointer, self._pointer = getattr(self, "_pointer", 0), 0
        if pointer:
            self._free(pointer)

    def __repr__(self) -> str:
        kind: bytes = _functions().mt_module_kind(self._pointer)
        n, n_bytes = _U64(), _U64()
        check(_functions().mt_module_size(self._pointer, ctypes.byref(n), ctypes.byref(n_bytes)))
        return f"memtape.Model({kind.decode()}, {n.value:,} parameters, {n_bytes.value:,} bytes)"

    def _run(self, forward: Callable[..., int], *tensors: Tensor) -> Tensor:
        """Without a tape."""
        before = _functions().mt_set_grad_mode(False)
        try:
            return _made(forward(self._pointer, *(t._pointer for t in tensors)))
        finally:
            _functions().mt_set_grad_mode(before)

    def logits(self, ids: Tokens, attention_mask: Tokens = None) -> Tensor:
        """[b,s,vocabulary], in the weights' dtype; of a model without a head what its pooler makes, [b,d]. A text that is shorter than s has the last
        ones of its row; those before say nothing."""
        rows, s = _texts(ids, attention_mask), max(map(len, _rows(ids)))
        if all(len(row) == s for row in rows):
            return self._run(_functions().mt_forward, _tensor(rows))
        lengths = _lengths(rows)
        return self._run(lambda model, x: _functions().mt_logits_each(model, lengths, x), _tensor(rows, s))

    def hidden(self, ids: Tokens) -> Tensor:
        """The rows [b,s,d] of the last layer of a bert or roberta, with a head or without; of texts of one length."""
        rows = _texts(ids)
        if any(len(row) != len(rows[0]) for row in rows):
            raise MemtapeError("hidden: the texts have different lengths; need one, as a bert sees padding: give each by itself")
        return self._run(_functions().mt_bert_hidden, _tensor(rows))

    def loss(self, ids: Tokens, attention_mask: Tokens = None) -> float:
        """The mean over all tokens but the first of each text, in nats."""
        rows = _texts(ids, attention_mask)
        groups: Dict[int, List[Sequence[int]]] = {}
        for row in rows:
            groups.setdefault(len(row), []).append(row)
        total = 0.0
        for length, texts in groups.items():
            if length < 2:
                raise MemtapeError("loss: a text of one token; need two, as the second is the first that is predicted")
            x, y = _tensor([row[:-1] for row in texts]), _tensor([row[1:] for row in texts])
            mean = self._run(_functions().mt_model_forward_loss, x, y)  # a tensor without a name would be freed before it is read
            total += _functions().mt_item(mean._pointer) * len(texts) * (length - 1)
        return total / sum(len(row) - 1 for row in rows)

    def generate(self, ids: Tokens, n: int = 32, temperature: float = 0.0, top_k: int = 0, top_p: float = 1.0,
                 repetition_penalty: float = 1.0, seed: int = 1, attention_mask: Tokens = None) -> List[List[int]]:
        """n tokens after each text; temperature 0 always takes the likeliest."""
        rows = _texts(ids, attention_mask)
        made: List[List[int]] = [[] for _ in rows]

        def take(_: Any, tokens: Any) -> bool:
            for i, row in enumerate(made):
                row.append(tokens[i])
            return True

        options = _Options(temperature, top_k, top_p, repetition_penalty, seed, lengths=_lengths(rows))
        flat, width = _padded(rows)
        check(_functions().mt_generate(self._pointer, len(rows), width, flat, n, options, _TAKE(take), None, None))
        return made


def load(path: str) -> Model:
    """The model in a folder with a config.json and model.safetensors, or its parts, or in a GGUF file."""
    return Model(path)
