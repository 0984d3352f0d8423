"""`memtape explain` lists every op of the tape with a running total, which ends at the profile's figure."""
import re
from lib import check, done, equal, profile, refused, run


def number(row):
    return int(row.split()[-1].replace(",", ""))


for args in [["gpt", "-l", 5], ["llama", "-l", 3, "--attention", "math", "--dtype", "bf16"], ["bert", "-l", 4],
             ["gpt", "-l", 3, "--act", "leaky_relu", "--inplace"], ["llama", "--recipe", "hf", "--kv-heads", 2], ["mlp"], ["mlp", "--act", "relu"], ["mlp", "--act", "leaky_relu", "--inplace"],
             ["attention:causal"], ["block", "--attention", "math", "--dropout", "0.1"],
             ["block", "--norm", "post"], ["gpt"], ["gpt", "--dropout", "0.1", "--dtype", "bf16"],
             ["tiny"]]:
    p = run("explain", *args, "-v")
    equal(p.returncode, 0, f"status of {args}: {p.stderr}")
    tape = p.stdout.split("The tape after forward")[1].split("\nWhy\n")[0]
    rows = [line for line in tape.splitlines()[2:] if line.strip()]
    saved = profile(*args)["saved"]
    last = [number(row) for row in rows]
    equal(last[-1], saved["bytes"], f"last total of {args}")
    steps = [b - a for a, b in zip([0, *last], last)]
    cells = [re.search(r" ([\d,]+) +[\d,]+$", row) for row in rows]
    equal(sum(steps), saved["bytes"], f"the sum of {args}")
    for row, cell, step in zip(rows, cells, steps):
        equal(int(cell[1].replace(",", "")) if cell and not re.search(r"parameter|nothing|as #", row) else 0, step,
              f"the row of {args}: {row}")
    next_one = 1  # every op has its number, those of folded layers in one row
    for first, end in re.findall(r"^ *#(\d+)(?:-(\d+))? ", tape, re.M):
        equal(int(first), next_one, f"ops in order, {args}")
        next_one = int(end or first) + 1
    kinds = re.findall(r"^  (\w+) +(?:(\d+)  \w.*?)? [\d.]+ [KMG]?i?B +([\d,]+)$", p.stdout.split("The tape")[0], re.M)
    kept = {op: int(n.replace(",", "")) for op, _, n in kinds}
    equal(kept.pop("all"), saved["bytes"], f"all kinds of ops of {args}")
    by_op = {op: sum(t["bytes"] for t in saved["tensors"] if t["op"] == op) for op in kept}
    equal((kept, sum(kept.values())), (by_op, saved["bytes"]), f"each kind of op of {args}")
    counts = {op: int(n) for op, n, _ in kinds if n}
    others = re.search(r"^  (\d+) others keep nothing", p.stdout, re.M)
    equal(sum(counts.values()) + int(others[1] if others else 0), next_one - 1, f"the number of ops of {args}")

text = run("explain", "mlp", "--act", "relu").stdout
check(re.search(r"as #2 y", text), "the product's input is already kept by relu")
check("parameter" in text, "weights are listed as parameters")
check(re.search(r"\n  relu  .*max", text), "why: the formula")
check(re.search(r"add +nothing", run("explain", "block", "-v").stdout), "ops that keep nothing are shown")
# If each op and each storage were searched for from the start, this would take minutes.
p = run("explain", "gpt", "-l", 12000, "--device", "meta", "-q", timeout=100)
equal(p.returncode, 0, f"status with 12,000 layers: {p.stderr}")
check(re.search(r"#23-\d+ +gpt\.h\.1-11999 +11999 x", p.stdout), "a row for all layers but the first")
p = run("explain", "llama-7b", "--device", "meta", "-v")
check(len(p.stdout.splitlines()) < 120, f"32 layers take {len(p.stdout.splitlines())} lines")
for args in [["gpt2"], ["llama-7b"], ["block"], ["mlp"], ["gpt"], ["bert-base"]]:
    text = run("explain", *args, "--device", "meta").stdout
    check(len(text.splitlines()) <= 24, f"explain {args} takes {len(text.splitlines())} lines")
    equal("Why" in text, args == ["mlp"], f"what fits on a screen is printed: {args}")
check("Why" not in run("explain", "mlp", "--quiet").stdout, "--quiet prints the table alone")


# ---- an expression ----
def kept(expression, shapes, *more):
    """The running totals of what the expression keeps, one for each line of the table."""
    p = run("explain", "--expr", expression, "--shapes", shapes, "--quiet", *more)
    equal(p.returncode, 0, f"status of {expression}: {p.stderr}")
    return [int(line.split()[-1].replace(",", "")) for line in p.stdout.splitlines()[1:] if line.strip()]


for device in ["cpu", "meta"]:
    on = ["--device", device]
    equal(kept("x@w", "x=10x100,w=100x10", *on)[-1], 4000, "x itself")
    equal(kept("x+w", "x=10x100,w=100", *on), [0], "a sum keeps nothing")
    equal(kept("(x*2)@w", "x=10x100,w=100x10", *on), [0, 4000, 4000], "the scaled x")
    equal(kept("(((x+2)@w1)+3)*w2", "x=10x100,w1=100x50,w2=10x50", *on), [0, 4000, 4000, 4000, 6000, 6000],
          "4000 for w1's gradient, 2000 for w2's")
equal(kept("x@w", "x=10x100,w=100x10", "--weights", "none")[-1], 8000, "with --weights none, w is an input and counts")
equal(kept("x@y", "x=10x100,y=100x10", "--no-grad", "x")[-1], 4000, "y's gradient needs x alone")
equal(kept("x@w", "x=10x100,w=100x10", "--no-grad", "w"), [0], "x's gradient needs w alone, which is a weight and does not count")
equal(kept("x@w", "x=10x100,w=100x10", "--dtype", "bf16")[-1], 2000, "in 2 bytes each")
text = run("explain", "--expr", "(x*2)@w", "--shapes", "x=10x100,w=100x10").stdout
for line in [r"\(x\*2\)@w  on cpu\n", r"\n +x +\[10,100\] +f32 +an input, wants a gradient\n",
             r"\n +w +\[100,10\] +f32 +a weight, in memory anyway, wants a gradient\n",
             r"\n +#2 +\(x\*2\)@w +matmul +a +in +\[10,100\] +f32 +4,000 +4,000\n", r"\n  matmul  y = a b\n"]:
    check(re.search(line, text), f"no {line} in {text}")


def peaks(expression, shapes, *more):
    """What --verbose adds: bytes of the first forward, of a later step, and of such a step with the graph retained."""
    p = run("explain", "--expr", expression, "--shapes", shapes, "--verbose", *more)
    equal(p.returncode, 0, f"status of {expression}: {p.stderr}")
    return [int(line.split()[-1].replace(",", "")) for line in p.stdout.splitlines()[-3:]]


for device in ["cpu", "meta"]:
    on = ["--device", device]
    equal(peaks("tanh(x)", "x=1024", *on), [8192, 5 * 4096, 5 * 4096], "x, its gradient, y, dy, dx")
    equal(peaks("gather(log_softmax(x),i,1)", "x=64x1024,i=64x1", *on)[1], 4 * 262144 + 3 * 512,
          "x, its gradient, the log-probabilities, and one gradient for both ops; i, y and dy")
    equal(peaks("gather(log_softmax(x,1),i,1)", "x=64x1024,i=64x1", *on)[1], 5 * 262144 + 3 * 512,
          "the ops apart: a gradient each")
equal(peaks("linear(silu(linear(x,w1))*linear(x,w2),w3)", "x=4x1024x4096,w1=11008x4096,w2=11008x4096,w3=4096x11008",
            "--dtype", "bf16", "--device", "meta"), [1002438656 - 3 * 90177536 - 33554432, 1216348160, 1340080128],
      "retained, the last is what PyTorch has for Transformers' LlamaMLP on a GPU (docs/published.md)")
check("nothing is recorded" in run("explain", "--expr", "x*x", "--shapes", "x=3", "--no-grad", "x").stdout,
      "no gradient, no tape")
for expression, shapes, words, place in [
        ("(x*2)@", "x=10x100", "need a number, a name, an op", 6), ("(x*2", "x=3", 'need a sign or ")"', 4),
        ("x y", "x=3,y=3", "need a sign", 2), ("x+z", "x=3", '"z" has no shape', 2), ("gelo(x)", "x=3", "mean gelu", 0),
        ("y = x*2; x", "x=3", 'nothing uses "y" after this', 0), ("x*2; x", "x=3", "nothing uses this line", 0),
        ("y = 2; x*y", "x=3", "this is the number 2", 4), ("checkpoint(2)*x", "x=3", "this is a number", 0),
        ("relu(x)@w", "x=10x100,w=10x10", "need [..,m,k] and [..,k,n]", 7), ("x+(x-y)", "x=3,y=4", "equal extents", 4)]:
    p = refused([words, f"\n  {expression}\n  {' ' * place}^\n"], "explain", "--expr", expression, "--shapes", shapes)
refused(['"y" is not in the expression', "\n  x=3,y=4\n      ^\n"], "explain", "--expr", "x", "--shapes", "x=3,y=4")
refused(["--no-grad", "not a name of --shapes"], "explain", "--expr", "x", "--shapes", "x=3", "--no-grad", "y")
refused(["--weights", "not a name of --shapes"], "explain", "--expr", "x", "--shapes", "x=3", "--weights", "x,y")
refused(["--expr", "MODEL is \"mlp\" already"], "explain", "mlp", "--expr", "x", "--shapes", "x=3")
refused(["--batch", "is for a MODEL"], "explain", "--expr", "x", "--shapes", "x=3", "-b", 2)
refused(["--shapes needs --expr"], "explain", "mlp", "--shapes", "x=3")
refused(["MODEL is missing", "or --expr"], "explain")
refused(["room for", "--device meta"], "explain", "--expr", "x*x", "--shapes", "x=100000000x100000", status=1)
equal(kept("x*x", "x=100000000x100000", "--device", "meta")[-1], 4 * 10**13, "on meta it needs no memory")
refused(["capacity"], "explain", "--expr", "x*x", "--shapes", "x=1000", "--capacity", "3000B", "--device", "meta", status=1)
done()
