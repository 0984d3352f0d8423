"""An op of random graphs: how to draw a call, and its text for memtape and for PyTorch."""

import re
from dataclasses import dataclass

OPS = {}  # by name


@dataclass(frozen=True)
class Applied:
    """A row of differences.py that applies to a call. memtape keeps the operands `adds`, which PyTorch does not,
    and does not keep the operands `drops`, which PyTorch does; the row's other bytes belong to this call alone: a
    mask, statistics, a copy."""
    row: str
    letters: dict
    adds: tuple = ()
    drops: tuple = ()


class Op:
    weight = 2       # its relative frequency
    view = False     # the result shares its operand's storage: nothing is rounded
    inplace = False
    copies = False   # gives its operand or a copy of it, depending on the strides
    row_major = True # whether its result is row-major in memtape

    def __init_subclass__(cls):
        if not cls.__name__.startswith("_"):
            cls.name = re.sub(r"(?<=.)([A-Z])", r"_\1", cls.__name__).lower()
            OPS[cls.name] = cls()

    def draw(self, g):
        """(operands, parameters) of a random call; None if there are no suitable operands. g, a
        graph_draw.Drawing, gives operands: g.value() any value, g.operand(shape) one of this shape."""
        raise NotImplementedError

    def text(self, *operands, **parameters):
        """The text of the call for memtape and for PyTorch. Operands are graph_program.Values."""
        raise NotImplementedError

    def suits(self, t, room, **parameters):
        """False if an operand is so near a kink, a tie or a pole that rounding decides the result. t: the
        operands in f64; room(i): the largest rounding error of operand i."""
        return True

    def dtype(self, operands, **parameters):
        return [x.dtype for x in operands if x.dtype.is_floating_point][-1]

    def outputs(self, **parameters):
        return 1

    def differences(self, call):
        """A list of Applied. call is a graph_compare.Call."""
        return []

    def difference_of_result(self, call):
        """An Applied for the storage of the result, which counts only if something keeps it."""
        return None


def mt(name, *arguments):
    return f"m.call(\"{name}\", {', '.join(map(str, arguments))})"


def away(t, point, room):
    return bool((t - point).abs().min() > room)
