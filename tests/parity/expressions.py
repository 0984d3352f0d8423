#!/usr/bin/env python3
"""expressions.py LIBMEMTAPE_CASES MEMTAPE: what `memtape explain --expr` keeps beside what PyTorch saves for the same text, which is
Python, too: every sign with a number on either side, and random expressions. Exit status 77 without PyTorch."""

import random
import subprocess
import sys

try:
    import torch
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

from harness import SavedTensors

NAMES = {name: getattr(torch, name) for name in ("exp", "tanh", "sigmoid", "relu", "abs", "log", "sqrt", "pow")}
PLAIN = ["2+x", "x+2", "2-x", "x-2", "2*x", "x*2", "2/x", "x/2", "0/x", "1/x", "0*x", "-x", "--x", "2--x", "-2/x",
         "2/-x", "2/x/3", "2/(3/x)", "2/x*x", "2*3/x", "x/x", "x/(2/x)", "2/(x@y)", "(2/x)@y", "(2/x)*(2/x)", "2/x-y/2",
         "exp(2/x)", "2/exp(x)", "tanh(1/x)/y", "2/tanh(x)", "2/relu(x)", "sqrt(2/x)", "pow(2/x,2)", "2/pow(x,-1)",
         *(f"pow(x,{exponent})" for exponent in (0, 1, 2, 3, -1, -2, 0.5, -0.5, 1.5))]


def drawn(generator, depth=0):
    """An expression; every tensor in it is 4 by 4."""
    kind = generator.random()
    if depth > 3 or kind < 0.15:
        return generator.choice("xy")
    inner = drawn(generator, depth + 1)
    number = generator.choice(("2", "0.5", "-3"))
    if kind < 0.35:
        return f"({number}{generator.choice('+-*/')}{inner})"
    if kind < 0.5:
        return f"({inner}{generator.choice('+-*/')}{number})"
    if kind < 0.6:
        return f"(-{inner})"
    if kind < 0.75:
        name = generator.choice(sorted(NAMES))
        return f"pow({inner},{generator.choice((2, 3, -1, 0.5))})" if name == "pow" else f"{name}({inner})"
    return f"({inner}{generator.choice('+-*/@')}{drawn(generator, depth + 1)})"


def ours(program, text):
    shapes = ",".join(f"{name}=4x4" for name in "xy" if name in text.replace("exp", ""))
    command = [program, "explain", "--expr", text, "--shapes", shapes, "--weights", "none", "--quiet", "--device", "meta"]
    table = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return int(table.split()[-1].replace(",", ""))


def theirs(text):
    leaves = {name: torch.rand(4, 4, requires_grad=True) for name in "xy"}
    with SavedTensors() as saved:
        eval(text, NAMES | leaves)
    return saved.bytes


def main():
    generator, wrong = random.Random(15), 0
    texts = PLAIN + [drawn(generator) for _ in range(160)]
    texts = [text for text in texts if text not in ("x", "y")]
    for text in texts:
        kept, saved = ours(sys.argv[2], text), theirs(text)
        if kept != saved:
            print(f"{text}: {kept} bytes, PyTorch {saved}")
            wrong += 1
    print(f"{len(texts)} expressions, {wrong} keep other bytes than PyTorch")
    sys.exit(wrong > 0)


main()
