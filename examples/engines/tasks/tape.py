"""An engine that is right and keeps too much: docs/tasks.md has a task for each of its ops marked "task". python3 tape.py relu runs
the step of a task and writes events.jsonl; events.py lies beside it."""
import contextlib
import math
import random
import sys
from array import array


class Tensor:
    """Numbers, row by row. node: where its gradient goes; None if nobody wants one."""
    def __init__(self, data, shape, node=None):
        self.shape, self.data, self.node = shape, array("d", data), node


class Node:
    """An op that ran: the nodes of its inputs, and a function from dy to their gradients. What the function refers to is kept."""
    def __init__(self, inputs=(), backward=None):
        self.inputs, self._backward, self.grad = inputs, backward, None


recording = True


@contextlib.contextmanager
def no_tape():
    global recording
    before, recording = recording, False
    yield
    recording = before


def record(y, inputs, backward):
    nodes = [x.node for x in inputs]
    if recording and any(nodes):
        y.node = Node(nodes, backward)
    return y


def backward(y, dy):
    order, seen = [], set()

    def visit(node):
        if node and node not in seen:
            seen.add(node)
            for below in node.inputs:
                visit(below)
            order.append(node)
    visit(y.node)
    y.node.grad = dy
    while order:
        node = order.pop()
        if not node._backward:
            continue  # a leaf keeps its gradient
        for to, g in zip(node.inputs, node._backward(node.grad)):
            if to:
                to.grad = g if to.grad is None else array("d", (a + b for a, b in zip(to.grad, g)))
        node.inputs, node._backward, node.grad = (), None, None


# ---- ops ----

def matmul(a, b):  # task: frozen
    (n, k), m = a.shape, b.shape[1]
    x, w = a.data, b.data

    def backward(dy):
        dx = array("d", (sum(dy[i * m + c] * w[j * m + c] for c in range(m)) for i in range(n) for j in range(k)))
        dw = array("d", (sum(x[i * k + j] * dy[i * m + c] for i in range(n)) for j in range(k) for c in range(m)))
        return dx, dw
    y = Tensor((sum(x[i * k + j] * w[j * m + c] for j in range(k)) for i in range(n) for c in range(m)), (n, m))
    return record(y, (a, b), backward)


def tanh(x):
    out = Tensor((math.tanh(v) for v in x.data), x.shape)
    y = out.data

    def backward(dy):
        return [array("d", (g * (1 - v * v) for g, v in zip(dy, y)))]
    return record(out, (x,), backward)


def relu(x):  # task: relu
    mask = array("B", (v > 0 for v in x.data))

    def backward(dy):
        return [array("d", (g * m for g, m in zip(dy, mask)))]
    return record(Tensor((v * m for v, m in zip(x.data, mask)), x.shape), (x,), backward)


def gelu(x):  # task: gelu
    v = x.data
    below = array("d", ((1 + math.erf(a / math.sqrt(2))) / 2 for a in v))
    density = array("d", (math.exp(-a * a / 2) / math.sqrt(2 * math.pi) for a in v))

    def backward(dy):
        return [array("d", (g * (b + a * d) for g, a, b, d in zip(dy, v, below, density)))]
    return record(Tensor((a * b for a, b in zip(v, below)), x.shape), (x,), backward)


def dropout(x, p, seed):  # task: dropout
    draws = random.Random(seed)
    scale = array("d", (0 if draws.random() < p else 1 / (1 - p) for _ in x.data))

    def backward(dy):
        return [array("d", (g * s for g, s in zip(dy, scale)))]
    return record(Tensor((v * s for v, s in zip(x.data, scale)), x.shape), (x,), backward)


def softmax(x):  # task: softmax
    v, m, y = x.data, x.shape[1], []
    for i in range(0, len(v), m):
        e = [math.exp(a - max(v[i:i + m])) for a in v[i:i + m]]
        y += [a / sum(e) for a in e]
    out = Tensor(y, x.shape)
    y = out.data

    def backward(dy):
        dx = array("d")
        for i in range(0, len(v), m):
            dot = sum(g * a for g, a in zip(dy[i:i + m], y[i:i + m]))
            dx.extend(a * (g - dot) for g, a in zip(dy[i:i + m], y[i:i + m]))
        return [dx]
    return record(out, (x,), backward)


def checkpoint(f, x):  # task: checkpoint
    return f(x)


def mean_square(x):
    v = x.data

    def backward(dy):
        return [array("d", (2 * a * dy[0] / len(v) for a in v))]
    return record(Tensor([sum(a * a for a in v) / len(v)], (1, 1)), (x,), backward)


# ---- a step of each task ----

STEPS = {
    "relu": lambda x, w1, w2: matmul(relu(matmul(x, w1)), w2),
    "gelu": lambda x, w1, w2: matmul(gelu(matmul(x, w1)), w2),
    "dropout": lambda x, w1, w2: matmul(dropout(tanh(matmul(x, w1)), 0.25, 7), w2),
    "softmax": lambda x, w1, w2: matmul(softmax(matmul(x, w1)), w2),
    "frozen": lambda x, w1, w2: matmul(tanh(matmul(x, w1)), w2),
    "checkpoint": lambda x, w1, w2: checkpoint(lambda x: matmul(tanh(matmul(x, w1)), w2), x),
}


def leaf(shape, start, wants=True):
    n = shape[0] * shape[1]
    return Tensor((math.sin(start + i) / 2 for i in range(n)), shape, Node() if wants else None)


def run(task, events):
    w1, w2 = leaf((16, 32), 1, task != "frozen"), leaf((32, 16), 2)
    events.phase("forward")
    events.category = "input"
    x = leaf((8, 16), 3)
    events.category = "activation"
    loss = mean_square(STEPS[task](x, w1, w2))
    events.phase("backward")
    backward(loss, array("d", [1]))
    events.phase("step")

    def again():
        return mean_square(STEPS[task](x, w1, w2)).data[0]
    with events.paused(), no_tape():
        told = [(name, i, *gradient(leaf, i, again)) for name, leaf in (("x", x), ("w1", w1), ("w2", w2)) if leaf.node
                for i in range(0, len(leaf.data), 37)]
    for name, i, g, up, down in told:
        events.tell("probe", name=name, index=i, gradient=g, up=up, down=down, by=1e-4)


def gradient(leaf, i, loss):
    """The gradient of a number that backward found, and the loss where the number is larger and smaller by 1e-4."""
    before, sides = leaf.data[i], []
    for by in (1e-4, -1e-4):
        leaf.data[i] = before + by
        sides.append(loss())
    leaf.data[i] = before
    return leaf.node.grad[i], *sides


if __name__ == "__main__":
    from events import Events
    if sys.argv[1:2] == [] or sys.argv[1] not in STEPS:
        sys.exit(f"tape.py: name a task: {', '.join(STEPS)}")
    run(sys.argv[1], Events("events.jsonl", Tensor, Node))
