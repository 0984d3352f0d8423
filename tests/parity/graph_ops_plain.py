"""Ops of random graphs: element-wise ones, views, copies and reductions."""

import math

import memtape
from graph_op import OPS, Applied, Op, away, mt
from theirs import COMPARISONS


# ---- element-wise, one operand ----

class _Unary(Op):
    """Parameters, if any, are those of the case in src/ops/op_cases.def: see read_table."""
    arguments = ()

    def __init__(self, name, low=-math.inf, high=math.inf, kinks=(), weight=2):
        self.name, self.low, self.high, self.kinks, self.weight = name, low, high, kinks, weight

    def draw(self, g):
        return [g.value()], {}

    def text(self, x):
        listed = ", ".join(map(str, (x, *self.arguments)))
        return mt(self.name, x, *self.arguments), f'THEIRS["{self.name}"]({listed})'

    def suits(self, t, room):
        x = t[0]
        return (self.low <= x.min() and x.max() <= self.high
                and all(away(x, kink, room(0)) for kink in self.kinks))


for one in (_Unary("relu", kinks=(0,), weight=4), _Unary("leaky_relu", kinks=(0,)),
            _Unary("clamp", kinks=(-0.7531, 1.2518)),
            # Below -2.5 the values of 1 + erf and 1 + tanh are mostly rounding.
            _Unary("gelu", low=-2.5), _Unary("gelu_tanh", low=-2.5),
            _Unary("silu"), _Unary("tanh"), _Unary("sigmoid"), _Unary("exp", high=3, weight=4),
            _Unary("log", low=0.25), _Unary("sqrt", low=0.25), _Unary("reciprocal", low=0.25),
            _Unary("affine"), _Unary("clone"), _Unary("all_reduce", weight=1), _Unary("recv", weight=1)):
    OPS[one.name] = one


def read_table(m):
    """Reads the parameters of the ops above, and makes an op for each row of one input without a class."""
    for case in m.cases():
        row, first = case["op"], case["inputs"][0]
        if row not in OPS and len(case["inputs"]) == 1:
            OPS[row] = _Unary(row, low=0.25 if first["low"] > 0 else -math.inf,
                              kinks=(0,) if first["away"] else ())
        if isinstance(OPS.get(row), _Unary) and not OPS[row].arguments:
            OPS[row].arguments = case["parameters"]


class Pow(Op):
    def draw(self, g):
        return [g.value()], {"exponent": g.choice((0, 1, 2, 3, -1, -2, 0.5, -0.5, 1.5, -2.25))}

    def text(self, x, exponent):
        return mt("pow", x, exponent), f"torch.pow({x}, {exponent})"

    def suits(self, t, room, exponent):
        return t[0].min() >= 0.5 or exponent in (0, 1, 2, 3)


class Cast(Op):
    weight = 4

    def draw(self, g):
        x = g.value()
        return [x], {"to": g.choice([d for d in memtape.DTYPES[:4] if d != x.dtype])}

    def text(self, x, to):
        return mt("cast", x, memtape.DTYPES.index(to)), f"{x}.to({to}, copy=True)"

    def dtype(self, operands, to):
        return to


class Dropout(Op):
    def draw(self, g):
        return [g.value()], {"p": g.choice((0.2, 0.5)), "seed": g.random.randrange(1000)}

    def text(self, x, p, seed):
        return f"dropout(m, {x}, {p}, {seed})", f"{x} * dropout_mask(m, {x}, {p}, {seed})"

    def differences(self, call):
        return [Applied("dropout mask", {"n": call.operands[0].numel()})]


class _InPlace(Op):
    inplace = True

    def draw(self, g):
        x = g.made()
        return x and ([x], {})

    def suits(self, t, room):
        return away(t[0], 0, room(0))


class ReluInplace(_InPlace):
    def text(self, x):
        return f'inplace(m, "relu", {x})', f"F.relu_({x})"


class LeakyReluInplace(_InPlace):
    weight = 6

    def text(self, x):
        return f'inplace(m, "leaky_relu", {x}, 0.2)', f"F.leaky_relu_({x}, 0.2)"


# ---- element-wise, several operands ----

class _Binary(Op):
    weight = 5
    sign = ""

    def draw(self, g):
        x = g.value()
        both = [x, g.operand(g.broadcast(x.shape), x.dtype)]
        return g.shuffled(both), {}

    def text(self, a, b):
        return mt(self.name, a, b), f"{a} {self.sign} {b}"


class Add(_Binary):
    sign = "+"


class Sub(_Binary):
    sign = "-"


class Mul(_Binary):
    sign = "*"


class Div(_Binary):
    sign = "/"

    def suits(self, t, room):
        return away(t[1], 0, 0.25)


class _Comparison(_Binary):
    """A comparison inside the same expression as in src/ops/op_cases.def."""
    weight = 1

    def __init__(self, name):
        self.name = name

    def text(self, a, b):
        return mt(self.name, a, b), f'THEIRS["{self.name}"]({a}, {b})'

    def suits(self, t, room):
        return away(t[0] - t[1], 0, room(0) + room(1))


for name in COMPARISONS:
    OPS[name] = _Comparison(name)


class Mse(Op):
    def draw(self, g):
        x = g.value()
        return [x, g.operand(x.shape, x.dtype)], {}

    def text(self, x, y):
        return mt("mse", x, y), f"F.mse_loss({x}, {y})"

    def difference_of_result(self, call):
        return Applied("mse result", {"n": call.operands[0].numel()})


class Swiglu(Op):
    def draw(self, g):
        x = g.value()
        return g.shuffled([x, g.operand(x.shape, x.dtype)]), {}

    def text(self, gate, up):
        return mt("swiglu", gate, up), f"F.silu({gate}) * {up}"

    def differences(self, call):
        n = call.operands[0].numel()
        if call.wanted == [False, True]:
            return [Applied("swiglu, gate not wanted", {"n": n, "m": call.stored(0)}, adds=(0,))]
        return [Applied("swiglu", {"n": n})] * all(call.wanted)


class Where(Op):
    def draw(self, g):
        x = g.value()
        return [g.mask(g.broadcast(x.shape)),
                *g.shuffled([x, g.operand(g.broadcast(x.shape), x.dtype)])], {}

    def text(self, mask, a, b):
        return mt("where", mask, a, b), f"torch.where({mask}, {a}, {b})"


class Gather(Op):
    def draw(self, g):
        x = g.value(rank=1)
        dim = g.random.randrange(x.rank)
        shape = list(x.shape)
        shape[dim] = g.extent()
        return [x, g.index(shape, x.shape[dim])], {"dim": dim}

    def text(self, x, index, dim):
        return mt("gather", x, index, dim), f"{x}.gather({dim}, {index})"

    def differences(self, call):
        return [Applied("gather", {"m": call.stored(0)}, drops=(0,))]


class Dispatch(Op):
    def draw(self, g):
        x, groups = g.value(rank=2), g.extent()
        return [x, g.index((*x.shape[:-1], g.extent()), groups)], {"groups": groups}

    def text(self, x, index, groups):
        return (mt("dispatch", x, index, groups),
                f'THEIRS["dispatch"]({x}, {index}, {groups})')


class Combine(Op):
    def draw(self, g):
        x, rows = g.operand((g.extent(), g.extent()), g.dtype()), g.extent()
        return [x, g.index(x.shape[:1], rows)], {"rows": rows}

    def text(self, x, index, rows):
        return mt("combine", x, index, rows), f'THEIRS["combine"]({x}, {index}, {rows})'


class MaskedFill(Op):
    def draw(self, g):
        x = g.value()
        return [x, g.mask(g.narrower(x.shape))], {}

    def text(self, x, mask):
        return mt("masked_fill", x, mask, -3), f"{x}.masked_fill({mask}, -3)"

    def dtype(self, operands):
        return operands[0].dtype


# ---- views ----

class Contiguous(Op):
    copies, weight = True, 4

    def draw(self, g):
        return [g.value()], {}

    def text(self, x):
        return f"m.contiguous({x})", f"{x}.contiguous()"


class Permute(Op):
    view, weight = True, 8

    def draw(self, g):
        x = g.value(rank=1)
        return [x], {"order": g.shuffled(range(x.rank))}

    def text(self, x, order):
        return mt("permute", x, *order), f"{x}.permute({order})"


class Slice(Op):
    """Cuts `before` elements off the beginning of a dimension and `after` off its end."""
    view, weight = True, 6

    def draw(self, g):
        x = g.value(rank=1)
        dim = g.random.randrange(x.rank)
        left = x.shape[dim] - 1
        before = g.random.randint(0, left)
        return [x], {"dim": dim, "before": before, "after": g.random.randint(0, left - before)}

    def text(self, x, dim, before, after):
        length = x.shape[dim] - before - after
        return mt("slice", x, dim, before, length), f"{x}.narrow({dim}, {before}, {length})"


class Split(Op):
    view, weight = True, 5

    def draw(self, g):
        x = g.value(rank=1)
        dim = g.random.randrange(x.rank)
        n = x.shape[dim]
        at = sorted(g.random.randint(0, n) for _ in range(g.choice((1, 2))))
        sizes = [b - a for a, b in zip([0, *at], [*at, n])]
        return ([x], {"dim": dim, "sizes": sizes}) if min(sizes) else None

    def text(self, x, dim, sizes):
        return f"m.split({x}, {dim}, {sizes})", f"{x}.split({sizes}, {dim})"

    def outputs(self, sizes, **_):
        return len(sizes)


class Expand(Op):
    """Expands to `lead` followed by the operand's shape, with extents of 1 replaced by those of `to`."""
    view, weight = True, 6

    def draw(self, g):
        x = g.value()
        return [x], {"lead": [g.extent()] * g.choice((0, 0, 1)) if x.rank < 4 else [],
                     "to": [g.extent() for _ in x.shape]}

    def text(self, x, lead, to):
        shape = lead + [wide if n == 1 else n for n, wide in zip(x.shape, to)]
        return mt("expand", x, *shape), f"{x}.expand({shape})"


class Reshape(Op):
    """how: merge or swap dimensions dim and dim + 1, divide dim in two, add or remove an extent of 1. In this
    form a reshape is still valid when an extent shrinks."""
    view, copies, weight = True, True, 8

    def draw(self, g):
        x = g.value()
        how = g.choice(("merge", "merge", "swap", "cut", "add", "take"))
        fits = {"add": range(x.rank + 1) if x.rank < 4 else (),
                "take": [d for d, n in enumerate(x.shape) if n == 1],
                "cut": [d for d, n in enumerate(x.shape) if n in (4, 6, 8)] if x.rank < 4 else ()}
        dims = fits.get(how, range(x.rank - 1))
        return ([x], {"how": how, "dim": g.choice(dims)}) if len(dims) else None

    def text(self, x, how, dim):
        s = list(x.shape)
        around = {"merge": (2, lambda a, b: [a * b]), "swap": (2, lambda a, b: [b, a]),
                  "cut": (1, lambda a: [2, a // 2]), "add": (0, lambda: [1]),
                  "take": (1, lambda a: [a] * (a != 1))}
        n, new = around[how]
        shape = s[:dim] + new(*s[dim:dim + n]) + s[dim + n:]
        return mt("reshape", x, *shape), f"{x}.reshape({shape})"


class _Alias(Op):
    view, weight = True, 1

    def draw(self, g):
        return [g.value()], {}

    def text(self, x):
        return mt(self.name, x, 1), f"{x}.view_as({x})"


class Replicate(_Alias):
    pass


class Send(_Alias):
    pass


class Cat(Op):
    weight = 4

    def draw(self, g):
        x = g.value(rank=1)
        dim = g.random.randrange(x.rank)
        parts = [x]
        for _ in range(g.choice((1, 2))):
            shape = list(x.shape)
            shape[dim] = g.choice((shape[dim], g.extent()))
            parts.append(g.operand(shape, x.dtype))
        return g.shuffled(parts), {"dim": dim}

    def text(self, *parts, dim):
        listed = ", ".join(map(str, parts))
        return mt("cat", *parts, dim), f"torch.cat([{listed}], {dim})"


class _Ranks(Op):
    """A collective with one rank, which is a copy."""
    weight = 1

    def draw(self, g):
        x = g.value(rank=1)
        return [x], {"dim": g.random.randrange(x.rank)}

    def text(self, x, dim):
        return mt(self.name, x, dim, 1), f"{x}.clone()"


class AllGather(_Ranks):
    pass


class ReduceScatter(_Ranks):
    pass


# ---- reductions ----

class _Reduction(Op):
    weight = 6
    theirs = "{x}.{name}({dims}, {keep})"

    def draw(self, g):
        x = g.value(rank=1)
        dims = [d for d in g.shuffled(range(x.rank)) if g.chance(0.5)] or [x.rank - 1]
        return [x], {"dims": dims, "keep": g.chance(0.3)}

    def text(self, x, dims, keep):
        return (mt(self.name, x, keep, *dims),
                self.theirs.format(x=x, name=self.name, dims=dims, keep=keep))


class Sum(_Reduction):
    pass


class Mean(_Reduction):
    pass


class Topk(Op):
    def draw(self, g):
        x = g.value(rank=1)
        return [x], {"k": g.random.randint(1, x.shape[-1])}

    def text(self, x, k):
        return mt("topk", x, k), f"{x}.topk({k})[0]"

    def suits(self, t, room, k):
        if t[0].shape[-1] < 2 or k > t[0].shape[-1]:
            return k <= t[0].shape[-1]
        return bool((-t[0].sort(-1, descending=True)[0].diff(dim=-1)).min() > 2 * room(0))


class Max(_Reduction):
    weight, theirs = 3, "their_max({x}, {dims}, {keep})"

    def suits(self, t, room, dims, keep):
        others = [d for d in range(t[0].dim()) if d not in dims]
        rows = t[0].permute(*others, *dims).flatten(len(others))
        if rows.shape[-1] == 1:
            return True
        first, second = rows.topk(2, -1)[0].unbind(-1)
        return bool((first - second).min() > 2 * room(0))
