"""`memtape explain`: every op of the tape, and a running total that ends at the profile's figure."""
import re
from lib import check, done, equal, profile, run

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
check(re.search(r"as #2 y", text), "the product's input is kept by the relu already")
check("parameter" in text, "weights are named, and not counted")
check(re.search(r"\n  relu  .*max", text), "why: the formula")
check(re.search(r"add +nothing", run("explain", "block").stdout), "ops that keep nothing are shown")
# By searching for each op and each storage from the start this would take minutes.
p = run("explain", "gpt", "-l", 12000, "--device", "meta", "-q", timeout=100)
equal(p.returncode, 0, f"status with 12,000 layers: {p.stderr}")
check(" gpt.h.11999" in p.stdout, "a row for the last layer")
check("Why" not in run("explain", "mlp", "--quiet").stdout, "quiet: the table alone")
done()
