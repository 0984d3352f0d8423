"""What an op of random graphs is: how to draw a call, and its text for memtape and for PyTorch."""

import re
from dataclasses import dataclass

OPS = {}  # by name


@dataclass(frozen=True)
class Applied:
    """A row of differences.py in one call. memtape keeps the operands `adds`, which PyTorch does
    not keep here, and not the operands `drops`, which PyTorch keeps; what else the row is about
    are bytes that this call alone has: a mask, statistics, a copy."""
    row: str
    letters: dict
    adds: tuple = ()
    drops: tuple = ()


class Op:
    weight = 2       # how often it is drawn
    view = False     # looks at its operand's storage: nothing is rounded
    inplace = False
    copies = False   # gives its operand or a copy of it, as the strides are
    row_major = True # its result is, in memtape

    def __init_subclass__(cls):
        if not cls.__name__.startswith("_"):
            cls.name = re.sub(r"(?<=.)([A-Z])", r"_\1", cls.__name__).lower()
            OPS[cls.name] = cls()

    def draw(self, g):
        """(operands, parameters) of a random call; None where there is nothing to call it with.
        g, a graph_draw.Drawing, has operands: g.value(), any; g.operand(shape), one made to fit."""
        raise NotImplementedError

    def text(self, *operands, **parameters):
        """The call for memtape, and for PyTorch. Operands are graph_program.Values."""
        raise NotImplementedError

    def suits(self, t, room, **parameters):
        """Whether no operand is so near a kink, a tie or a pole that rounding decides. t: the
        operands in f64; room(i): how far rounding may have moved operand i."""
        return True

    def dtype(self, operands, **parameters):
        return [x.dtype for x in operands if x.dtype.is_floating_point][-1]

    def outputs(self, **parameters):
        return 1

    def differences(self, call):
        """A list of Applied. call is a graph_compare.Call."""
        return []

    def difference_of_result(self, call):
        """An Applied for the storage of the result, which counts where something keeps it."""
        return None


def mt(name, *arguments):
    return f"m.call(\"{name}\", {', '.join(map(str, arguments))})"


def away(t, point, room):
    return bool((t - point).abs().min() > room)
