"""Writes what an engine in the manner of micrograd does as events (docs/teachers.md). Copy this file beside your engine.

    events = Events("events.jsonl", Tensor)   # before the first tensor; of nodes the class, too: Events(path, Tensor, Node)
    ...                                       # make the parameters
    events.phase("forward")                   # and "backward" and "step" where these begin

Tensors have `data` and `grad`, arrays (array.array, numpy) or floats. What the function in `_backward` refers to is kept."""
import contextlib
import json
import math
import sys
import weakref

DTYPES = {"f": "f32", "d": "f64", "e": "f16", "q": "i64", "l": "i64", "i": "i32", "B": "u8", "?": "bool"}
CATEGORIES = {"init": "parameter", "forward": "activation", "backward": "temporary", "step": "temporary"}


def is_array(value):
    return hasattr(value, "itemsize") and hasattr(value, "__len__")


def owner_of(tensor, value):
    """What the memory lives as long as: an array; of a view the array that it looks into; of a float its tensor."""
    while is_array(getattr(value, "base", None)):
        value = value.base
    return value if is_array(value) else tensor


def running():
    """The engine's function that runs."""
    frame = sys._getframe()
    while frame.f_back and (frame.f_code.co_filename == __file__ or frame.f_code.co_name == "__init__"):
        frame = frame.f_back
    return frame.f_code.co_name.strip("_<>")


class Events:
    def __init__(self, path, *classes):
        self.file = open(path, "w", encoding="utf-8")
        self.numbers, self.categories, self.n = {}, {}, 0  # of storages, by the identity of their owners
        self.saves = {}  # of each storage: (op, name) of those who keep it
        self.classes, self.off = classes, False
        for one in classes:
            self.watch(one, one.__setattr__)
        self.phase("init")

    def watch(self, tensor, set_plainly):
        def set_and_tell(this, attribute, value):
            before = id(owner_of(this, getattr(this, "data", None)))
            set_plainly(this, attribute, value)
            if self.off:
                return
            if attribute == "data":
                self.storage(this, value, self.categories.get(before, self.category))
            elif attribute == "grad" and is_array(value):
                self.storage(this, value, "gradient")
            elif attribute == "_backward" and getattr(value, "__closure__", None):
                self.node(this, value)

        tensor.__setattr__ = set_and_tell

    @contextlib.contextmanager
    def paused(self):
        """What is made within, and gone at its end, is not told of."""
        self.off = True
        yield
        self.off = False

    def tell(self, event, **fields):
        self.file.write(json.dumps({"event": event, **fields}) + "\n")
        self.file.flush()

    def phase(self, name):
        self.category = CATEGORIES[name]  # set it yourself where another one fits: "input"
        self.tell("phase", name=name)

    def storage(self, tensor, value, category):
        """The number of the storage, which is told of when it is first seen."""
        owner = owner_of(tensor, value)
        if id(owner) not in self.numbers:
            self.n, self.numbers[id(owner)], self.categories[id(owner)] = self.n + 1, self.n + 1, category
            self.saves[self.n] = []
            view = memoryview(owner) if is_array(owner) else memoryview(b"").cast("d")
            n_bytes, shape = (view.nbytes, list(view.shape)) if is_array(owner) else (8, [])
            given = list(getattr(tensor, "shape", shape))
            self.tell("alloc", id=self.n, shape=given if math.prod(given) == math.prod(shape) else shape, bytes=n_bytes,
                      dtype=DTYPES[view.format], op=running(), category=category)
            weakref.finalize(owner, self.free, id(owner), self.n).atexit = False
        return self.numbers[id(owner)]

    def free(self, identity, number):
        for op, name in list(self.saves[number]):
            self.release(number, op, name)
        del self.numbers[identity], self.categories[identity], self.saves[number]
        self.tell("free", id=number)

    def node(self, result, backward):
        op = backward.__qualname__.rsplit(".<locals>", 1)[0].split(".")[-1].strip("_")
        for name, cell in zip(backward.__code__.co_freevars, backward.__closure__):
            kept = getattr(cell.cell_contents, "__self__", cell.cell_contents)  # of a method, its tensor
            for value in kept if isinstance(kept, (list, tuple)) else [kept]:
                if (tensor := isinstance(value, self.classes) and hasattr(value, "data")) or is_array(value):
                    number = self.storage(value, value.data if tensor else value, "activation")
                    self.saves[number].append((op, name))
                    role = "output" if value is result else "input" if tensor else "aux"
                    self.tell("save", id=number, op=op, name=name, role=role)
                    weakref.finalize(backward, self.release, number, op, name).atexit = False

    def release(self, number, op, name):
        if (op, name) in self.saves.get(number, ()):
            self.saves[number].remove((op, name))
            self.tell("release", id=number, op=op, name=name)
