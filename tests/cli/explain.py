"""`memtape explain` lists every op of the tape with a running total, which ends at the profile's figure."""
import re
from lib import check, done, equal, profile, refused, run

for args in [["mlp"], ["mlp", "--act", "relu"], ["mlp", "--act", "leaky_relu", "--inplace"],
             ["attention", "--causal"], ["block", "--attention", "math", "--dropout", "0.1"],
             ["block", "--norm", "post"], ["gpt"], ["gpt", "--dropout", "0.1", "--dtype", "bf16"],
             ["tiny"]]:
    p = run("explain", *args)
    equal(p.returncode, 0, f"status of {args}: {p.stderr}")
    rows = [line for line in p.stdout.split("\nWhy\n")[0].splitlines()[5:] if line.strip()]
    total = int(rows[-1].split()[-1].replace(",", ""))
    equal(total, profile(*args)["saved"]["bytes"], f"last total of {args}")
    numbers = [int(m) for m in re.findall(r"^ *#(\d+) ", p.stdout, re.M)]
    equal(numbers, list(range(1, len(numbers) + 1)), f"ops in order, {args}")
    totals = [int(row.split()[-1].replace(",", "")) for row in rows]
    equal(totals, sorted(totals), f"the total never falls, {args}")

text = run("explain", "mlp", "--act", "relu").stdout
check(re.search(r"as #2 y", text), "the product's input is already kept by relu")
check("parameter" in text, "weights are listed as parameters")
check(re.search(r"\n  relu  .*max", text), "why: the formula")
check(re.search(r"add +nothing", run("explain", "block").stdout), "ops that keep nothing are shown")
# If each op and each storage were searched for from the start, this would take minutes.
p = run("explain", "gpt", "-l", 12000, "--device", "meta", "-q", timeout=100)
equal(p.returncode, 0, f"status with 12,000 layers: {p.stderr}")
check(" gpt.h.11999" in p.stdout, "a row for the last layer")
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
             r"\n +w +\[100,10\] +f32 +a weight, there anyway, wants a gradient\n",
             r"\n +#2 +\(x\*2\)@w +matmul +a +in +\[10,100\] +f32 +4,000 +4,000\n", r"\n  matmul  y = a b\n"]:
    check(re.search(line, text), f"no {line} in {text}")
check("nothing is recorded" in run("explain", "--expr", "x*x", "--shapes", "x=3", "--no-grad", "x").stdout,
      "no gradient, no tape")
for expression, shapes, words, place in [
        ("(x*2)@", "x=10x100", "need a number, a name, an op", 6), ("(x*2", "x=3", 'need a sign or ")"', 4),
        ("x y", "x=3,y=3", "need a sign", 2), ("x+z", "x=3", '"z" has no shape', 2), ("gelo(x)", "x=3", "mean gelu", 0),
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
