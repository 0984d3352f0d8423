"""loop.py: what the other peers share: the same ids, the same commands as peer.py's GPT, threads, memory.

Their libraries have no common way to say how many threads to use, so a process keeps to as many processors before it
loads one. A whole step is one call for them: what of it is forward, backward or optimizer they do not tell."""

import os
import sys
import time
from dataclasses import dataclass

now_ns = time.process_time_ns if os.environ.get("BENCH_CLOCK") == "cpu" else time.perf_counter_ns


@dataclass
class Shape:
    """The words after "gpt", as cases.py makes them."""
    layers: int
    d: int
    heads: int
    vocab: int
    batch: int
    seq: int
    context: int
    is_tanh: bool
    threads: int

    @property
    def tokens(self):
        """Inputs and targets, lists of rows; the same ids as gpt.c's."""
        return [[[((i + shift) * 7919 + 104729) % self.vocab for i in range(row * self.seq, (row + 1) * self.seq)]
                 for row in range(self.batch)] for shift in (0, 1)]

    def parameters(self):
        """(name, extents, what it starts from): a number, or None for a normal distribution of 0.02."""
        d = self.d
        yield "wte", (self.vocab, d), None
        yield "wpe", (self.context, d), None
        for i in range(self.layers):
            for name, rows, columns in ("qkv", 3 * d, d), ("proj", d, d), ("fc", 4 * d, d), ("out", d, 4 * d):
                yield f"{i}.{name}.w", (rows, columns), None
                yield f"{i}.{name}.b", (rows,), 0.0
            for name in "ln_1", "ln_2":
                yield f"{i}.{name}.w", (d,), 1.0
                yield f"{i}.{name}.b", (d,), 0.0
        yield "ln_f.w", (d,), 1.0
        yield "ln_f.b", (d,), 0.0


def shape_of(words):
    shape = Shape(*map(int, words[:7]), {"gelu": False, "gelu_tanh": True}[words[7]], int(words[8]))
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:shape.threads])
    return shape


def status_kib(name):
    with open("/proc/self/status", encoding="ascii") as status:
        return next(int(line.split()[1]) for line in status if line.startswith(name + ":"))


def serve(version, build):
    """build(shape) gives a function that takes one step and returns the loss as a number, and a dict of what is to be
    said at the end."""
    shape = shape_of(sys.argv[2:])
    start = status_kib("VmRSS")
    step, last = build(shape)
    print("version", version)
    print("ready", flush=True)
    for line in sys.stdin:
        word, *rest = line.split()
        if word != "plain":
            break
        for _ in range(int(rest[0])):
            begin = now_ns()
            loss = step()
            print("plain", now_ns() - begin, 0, 0, loss)
        print("done", flush=True)
    for name, value in last.items():
        print(name, value)
    print("memory", start, status_kib("VmHWM"))
