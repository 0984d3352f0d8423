"""The part of libmemtape that the comparison needs, through ctypes. cases_module.c calls ops as
src/ops/op_cases.def does."""

import ctypes
import json

import numpy as np
import torch

DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16,
          torch.int64, torch.int32, torch.uint8, torch.bool, torch.int8, torch.int16, torch.uint16,
          torch.float8_e4m3fn, torch.float8_e5m2]  # in the order of mt_dtype
PARAMETER = 0  # mt_category

P, I, I64, U64 = ctypes.c_void_p, ctypes.c_int, ctypes.c_int64, ctypes.c_uint64
SIZE, REAL, TEXT, BOOL = ctypes.c_size_t, ctypes.c_double, ctypes.c_char_p, ctypes.c_bool

SIGNATURES = {  # name: (result, arguments); tensors, modules and ledgers are pointers
    "bert_hidden": (P, P, P), "bert_output": (P, P, P), "hf_load": (I, TEXT, P), "hf_save": (I, TEXT, P, TEXT), "lora_load": (I, TEXT, P),
    "last_error": (TEXT,), "clear_error": (None,),
    "device_open": (P, TEXT), "device_release": (None, P), "seed": (None, P, U64),
    "set_balance_check": (I, P, BOOL),
    "from_data": (P, P, I, I, P, P, SIZE), "release": (None, P), "retain": (P, P),
    "rank": (I, P), "shape": (ctypes.POINTER(I64), P), "strides": (ctypes.POINTER(I64), P),
    "numel": (I64, P), "dtype_of": (I, P),
    "to_host": (I, P, P, SIZE), "copy_from_host": (I, P, P, SIZE), "set_category": (I, P, I),
    "set_requires_grad": (I, P, BOOL), "requires_grad": (BOOL, P), "grad": (P, P),
    "set_grad_dtype": (I, P, I),
    "set_grad_mode": (BOOL, BOOL), "backward_with": (I, P, P), "grad_fn_name": (TEXT, P),
    "ledger_new": (P, P), "ledger_free": (None, P), "ledger_begin": (I, P), "ledger_end": (I, P),
    "ledger_bytes": (SIZE, P), "all_ops_count": (I,), "mem_get_stats": (None, P, P),
    # Not rows of the op table, or needed without the rest of the table's call.
    "relu_inplace": (I, P), "leaky_relu_inplace": (I, P, REAL), "contiguous": (P, P),
    "split": (I, P, I, I, P, P), "masked_fill": (P, P, P, REAL),
    "dropout_mask": (P, P, I, P, REAL, U64, U64),
    "math_attention": (P, P, P, P, REAL, BOOL, REAL),
    "model_config_from_json": (I, TEXT, P), "model_config_from_hf": (I, TEXT, P, P, SIZE),
    "model_config_to_json": (I, P, P, SIZE),
    "model_new": (P, P, P), "model_new_quantized": (P, P, P, P), "module_free": (None, P),
    "module_params": (I, P, P, P), "module_zero_grad": (I, P), "forward": (P, P, P), "model_forward_loss": (P, P, P, P),
    "autocast_begin": (I, I), "autocast_end": (I,),
}


class OpInfo(ctypes.Structure):
    _fields_ = [("name", TEXT), ("n_inputs", I), ("inputs", TEXT * 5), ("outputs", TEXT * 2),
                ("auxiliaries", TEXT * 3), ("formula", TEXT), ("why", TEXT),
                ("autocast", TEXT), ("keep", ctypes.c_uint * 5)]


class BackwardOptions(ctypes.Structure):
    _fields_ = [("gradient", P), ("retain_graph", BOOL)]


class NamedTensor(ctypes.Structure):
    _fields_ = [("name", TEXT), ("tensor", P)]


class MemtapeError(RuntimeError):
    pass


def ints(values, kind=I64):
    return (kind * len(values))(*values)


class Tensor:
    """A handle, which is released with the Python object."""

    def __init__(self, library, pointer, owned=True):
        self.library, self.pointer, self.owned = library, pointer, owned and bool(pointer)
        if not pointer:
            raise library.error()

    def __del__(self):
        if self.owned:
            self.library.mt_release(self.pointer)

    @property
    def shape(self):
        return tuple(self.library.mt_shape(self.pointer)[i]
                     for i in range(self.library.mt_rank(self.pointer)))

    @property
    def strides(self):
        return tuple(self.library.mt_strides(self.pointer)[i]
                     for i in range(self.library.mt_rank(self.pointer)))

    @property
    def dtype(self):
        return DTYPES[self.library.mt_dtype_of(self.pointer)]

    @property
    def grad(self):
        pointer = self.library.mt_grad(self.pointer)
        return Tensor(self.library, pointer, owned=False) if pointer else None

    @property
    def made_by(self):
        return self.library.mt_grad_fn_name(self.pointer).decode()

    def requires_grad_(self, on=True):
        self.library.check(self.library.mt_set_requires_grad(self.pointer, on))
        return self

    def numpy_bytes(self):
        data = np.empty(self.library.mt_numel(self.pointer) * self.dtype.itemsize, np.uint8)
        self.library.check(self.library.mt_to_host(self.pointer, data.ctypes.data, data.size))
        return data

    def torch(self):
        if 0 in self.shape:
            return torch.empty(self.shape, dtype=self.dtype)
        flat = torch.from_numpy(self.numpy_bytes())
        return flat.view(self.dtype).reshape(self.shape)

    def backward(self, gradient, retain_graph=False):
        options = BackwardOptions(gradient.pointer, retain_graph)
        self.library.check(
            self.library.mt_backward_with(self.pointer, ctypes.byref(options)))


class Library:
    """path: the compiled cases_module.c. Methods are the functions of the C library without mt_. Functions that
    return a tensor give a Tensor; functions that return a status raise MemtapeError."""

    def __init__(self, path):
        self.dll = ctypes.CDLL(path)
        for name, (result, *arguments) in SIGNATURES.items():
            function = getattr(self.dll, "mt_" + name)
            function.restype, function.argtypes = result, arguments
            setattr(self, "mt_" + name, function)
        self.dll.mtt_call.restype, self.dll.mtt_call.argtypes = P, [TEXT, I, P, I, P]
        self.dll.mtt_case.restype, self.dll.mtt_case.argtypes = BOOL, [I, P, SIZE]
        self.dll.mt_all_ops_get.restype, self.dll.mt_all_ops_get.argtypes = OpInfo, [I]
        self.rows = set(self.op_names())
        self.device = self.mt_device_open(b"cpu")

    def error(self):
        text = self.mt_last_error().decode()
        self.mt_clear_error()
        return MemtapeError(text)

    def check(self, status):
        if status:
            raise self.error()

    def requested_bytes(self):
        """The bytes requested for all live storages."""
        stats = (SIZE * 512)()  # larger than an mt_mem_stats, which begins with this figure
        self.mt_mem_get_stats(self.device, stats)
        return stats[0]

    def op_names(self):
        return [self.dll.mt_all_ops_get(i).name.decode() for i in range(self.mt_all_ops_count())]

    def tensor(self, t):
        """A copy of a torch tensor's elements, row-major."""
        t = t.detach().clone(memory_format=torch.contiguous_format)
        data = t.reshape(-1).view(torch.uint8).numpy() if t.dim() else \
            t.reshape(1).view(torch.uint8).numpy()
        shape = ints(t.shape)
        return Tensor(self, self.mt_from_data(self.device, DTYPES.index(t.dtype), t.dim(), shape,
                                              data.ctypes.data, data.nbytes))

    def cases(self):
        """The cases of src/ops/op_cases.def, as dicts."""
        text, n = ctypes.create_string_buffer(2000), 0
        while self.dll.mtt_case(n, text, len(text)):
            yield json.loads(text.value)
            n += 1

    def call(self, name, *arguments):
        """Calls mt_NAME with tensors (or None) and numbers; returns a tensor. A row of the op table takes its
        parameters in the order of src/ops/op_cases.def."""
        plain = [a.pointer if isinstance(a, Tensor) else a for a in arguments]
        if name not in self.rows:
            return Tensor(self, getattr(self, "mt_" + name)(*plain))
        n = sum(a is None or isinstance(a, Tensor) for a in arguments)
        return Tensor(self, self.dll.mtt_call(name.encode(), n, ints(plain[:n], P),
                                              len(plain) - n, ints(plain[n:], REAL)))

    def contiguous(self, x):
        return Tensor(self, self.mt_contiguous(x.pointer))

    def split(self, x, dim, sizes):
        out = (P * len(sizes))()
        self.check(self.mt_split(x.pointer, dim, len(sizes), ints(sizes), out))
        return [Tensor(self, pointer) for pointer in out]


class Ledger:
    """with Ledger(library) as ledger: ...; ledger.bytes"""

    def __init__(self, library):
        self.library = library

    def __enter__(self):
        self.pointer = self.library.mt_ledger_new(self.library.device)
        self.library.check(self.library.mt_ledger_begin(self.pointer))
        return self

    def __exit__(self, *_):
        self.library.check(self.library.mt_ledger_end(self.pointer))
        self.bytes = self.library.mt_ledger_bytes(self.pointer)
        self.library.mt_ledger_free(self.pointer)


class Model:
    """A ready-made model; parameters are a dict of Tensors by path. hf: a Hugging Face config.json, as a dict, whose
    fields the others override."""

    def __init__(self, library, hf=None, mxfp4=False, **config):
        self.library, self.pointer = library, None
        buffer = ctypes.create_string_buffer(1024)  # larger than an mt_model_config
        if hf:
            text = ctypes.create_string_buffer(2048)
            library.check(library.mt_model_config_from_hf(json.dumps(hf).encode(), buffer, None, 0))
            library.check(library.mt_model_config_to_json(buffer, text, len(text)))
            config = json.loads(text.value) | config
        library.check(library.mt_model_config_from_json(json.dumps(config).encode(), buffer))
        self.pointer = (library.mt_model_new_quantized(library.device, buffer, (ctypes.c_int * 3)(2, 0, 0)) if mxfp4
                        else library.mt_model_new(library.device, buffer))
        if not self.pointer:
            raise library.error()
        items, n = ctypes.POINTER(NamedTensor)(), SIZE()
        library.check(library.mt_module_params(self.pointer, ctypes.byref(items), ctypes.byref(n)))
        self.parameters = {items[i].name.decode(): Tensor(library, items[i].tensor, owned=False)
                           for i in range(n.value)}

    def __del__(self):
        self.library.mt_module_free(self.pointer)

    def __call__(self, x):
        return Tensor(self.library, self.library.mt_forward(self.pointer, x.pointer))

    def loss(self, x, target):
        """With what the model's config adds to it."""
        return Tensor(self.library, self.library.mt_model_forward_loss(self.pointer, x.pointer, target.pointer))
