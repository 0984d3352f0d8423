"""A tiny engine in the manner of micrograd, of tensors: a student's. A step of it: python3 tiny.py."""
import math
from array import array


class Tensor:
    def __init__(self, data, shape, children=()):
        self.shape, self.data = shape, array("d", data)
        self.grad, self._prev, self._backward = None, children, lambda: None

    def add_grad(self, g):
        self.grad = g if self.grad is None else array("d", (a + b for a, b in zip(self.grad, g)))

    def __matmul__(self, w):
        (n, k), m = self.shape, w.shape[1]
        out = Tensor([sum(self.data[i * k + j] * w.data[j * m + c] for j in range(k)) for i in range(n) for c in range(m)],
                     (n, m), (self, w))

        def _backward():
            g = out.grad
            self.add_grad(array("d", (sum(g[i * m + c] * w.data[j * m + c] for c in range(m)) for i in range(n) for j in range(k))))
            w.add_grad(array("d", (sum(self.data[i * k + j] * g[i * m + c] for i in range(n)) for j in range(k) for c in range(m))))
        out._backward = _backward
        return out

    def layer_norm(self):
        (n, d), x = self.shape, self.data
        mean = array("d", (sum(x[i * d:(i + 1) * d]) / d for i in range(n)))
        rstd = array("d", (1 / math.sqrt(sum((v - mean[i]) ** 2 for v in x[i * d:(i + 1) * d]) / d + 1e-5) for i in range(n)))
        xhat = array("d", ((x[i * d + j] - mean[i]) * rstd[i] for i in range(n) for j in range(d)))
        out = Tensor(xhat, (n, d), (self,))

        def _backward():
            dx = array("d")
            for i in range(n):
                g, h = out.grad[i * d:(i + 1) * d], xhat[i * d:(i + 1) * d]
                a, b = sum(g) / d, sum(p * q for p, q in zip(g, h)) / d
                dx.extend((p - a - q * b) * rstd[i] for p, q in zip(g, h))
            self.add_grad(dx)
        out._backward = _backward
        return out

    def mean(self):
        out = Tensor([sum(self.data) / len(self.data)], (1,), (self,))

        def _backward():
            self.add_grad(array("d", [out.grad[0] / len(self.data)]) * len(self.data))
        out._backward = _backward
        return out

    def backward(self):
        order, seen = [], set()

        def visit(t):
            if t not in seen:
                seen.add(t)
                for child in t._prev:
                    visit(child)
                order.append(t)
        visit(self)
        self.grad = array("d", [1.0])
        for t in reversed(order):
            t._backward()


def run(events):
    """One step: y = mean(layer_norm(x @ w) @ v)"""
    w, v = (Tensor((math.sin(i + k) for i in range(16 * 16)), (16, 16)) for k in (1, 2))
    events.phase("forward")
    events.category = "input"
    x = Tensor((math.cos(i) for i in range(64 * 16)), (64, 16))
    events.category = "activation"
    loss = ((x @ w).layer_norm() @ v).mean()
    events.phase("backward")
    loss.backward()
    events.phase("step")
    for p in (w, v):
        for i, g in enumerate(p.grad):
            p.data[i] -= 0.1 * g
    return x.grad


if __name__ == "__main__":
    from events import Events
    run(Events("events.jsonl", Tensor))
