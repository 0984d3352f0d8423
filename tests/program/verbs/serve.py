"""`memtape serve`: the table's numbers are the JSON's, each fits and one more does not, the JSON is documented, bad
input is refused."""
import json
import os
import re
import tempfile
from pathlib import Path
from lib import check, documented_keys, done, equal, paths, refused, run

GPT = ["gpt", "-d", 64, "-l", 2, "-a", 4, "-s", 64, "--vocab", 256]
LLAMA = ["llama", "-d", 64, "-l", 2, "-a", 4, "--kv-heads", 2, "-s", 32, "--vocab", 256]
MIB = 1 << 20
ASIDE = (1024 + 300) * MIB
LONG = os.environ.get("MTT_LONG") == "1"


def serve(*args, status=0):
    p = run("serve", *args, "--json", "-")
    equal(p.returncode, status, f"status of serve {args}: {p.stderr}")
    return json.loads(p.stdout)


# ---- a known model on a known GPU: the page's example, the JSON, 80 columns ----
PAGE = Path(__file__).parents[3] / "docs" / "serve.md"
ONE = [] if LONG else ["--weights", "nf4", "--kv-cache", "preallocated"]  # the whole table takes two seconds
with tempfile.TemporaryDirectory() as folder:
    text = run("serve", "llama-3.1-8b", "--gpu", "h100", *ONE, "--json", f"{folder}/out.json").stdout
    j = json.loads(Path(folder, "out.json").read_text())
example = re.search(r"(?s)    fits: .*?\n\n[^ ]", PAGE.read_text()).group(0)[:-1]
if LONG:
    for line in example.strip("\n").splitlines():
        check(not line.strip() or line[4:].rstrip() in text, f"the page's line {line!r} in {text}")
else:
    row = re.sub(" +", " ", text.splitlines()[-1])
    check(row.startswith(" nf4 preallocated") and row in re.sub(" +", " ", example), f"the page's row {row!r} in {example}")
check(len(example.splitlines()) > 8 and max(map(len, text.splitlines())) <= 80, text)
known = documented_keys("serve.md")
for key in set(paths(j)) - known:
    check(key.startswith("rows[].by_category."), f"serve.md: no {key}")
table = [re.split(r"  +", line.strip()) for line in text.splitlines() if re.match(r"  (bf16|int8|nf4)", line)]
lengths = sorted({r["positions"] for r in j["rows"]})
equal(lengths, [512, 2048, 8192, 32768, 131072], "lengths")
for weights, cache, gib, *most in table:
    rows = [r for r in j["rows"] if (r["weights"], r["cache"]) == (weights, cache)]
    equal(most, [f"{r['sequences']:,}{'+' * (r['none_above'] > r['sequences'])}" for r in rows], f"the row of {weights}, {cache}")
    equal(gib, f"{rows[0]['weight_bytes'] / 2**30:.1f}", f"weights of {weights}")
    for r in rows:
        equal(sum(r["by_category"].values()), r["peak"], "the peak's parts")
        check(r["reserved"] <= j["capacity"], f"more reserved than there is: {r}")
equal(len(table), 6 if LONG else 1, "rows of the table")

# ---- vLLM's share: the page's table is what is answered, and within 2 % of what vLLM logged ----
shares = re.findall(r"(?m)^\| `([\w.-]+)` \| [\d.]+ \| ([\d.]+) \| ([\d.]+) \| ([\d.]+) \| ([\d.]+) \| ([\d.]+) \|$", PAGE.read_text())
equal(len(shares), 2, "models that vLLM served")
for model, logged, sampler, cached, cache, ratio in shares:
    vllm = serve(model, "--gpu", "h100", "--weights", "plain", "--kv-cache", "preallocated", "-s", 8192)["vllm"]
    equal((vllm["sequences"], f"{vllm['sampler'] / 2**30:.2f}", f"{vllm['cache'] / 2**30:.2f}"), (1024, sampler, cache), f"{model}: vLLM's share")
    equal(f"{vllm['cache'] / 2**30 / float(cached):.3f}", ratio, f"{model}: ratio of the caches")
    check(abs(float(sampler) / float(logged) - 1) < 0.02 and abs(float(ratio) - 1) < 0.02, f"{model}: {logged}, {cached} logged")
equal(serve("llama-3.2-1b", "--gpu", "a100-80", "--weights", "plain", "--kv-cache", "preallocated", "-s", 8192)["vllm"]["sequences"], 256, "on an A100")
equal(serve("llama-2-13b", "--gpu", "rtx4090", "--weights", "plain", "--kv-cache", "preallocated", "-s", 512, status=1)["vllm"]["cache"], 0, "no room")
for more in (["--capacity", "80GiB"], ["--gpu", "h100", "--tp", 2]):
    equal(serve("llama-3.2-1b", *more, "--weights", "plain", "--kv-cache", "preallocated", "-s", 512)["vllm"], None, f"{more}: vLLM's share")

# ---- every form, every boundary: a device with one byte less, or one sequence more, is too small ----
for m, model in enumerate((GPT, LLAMA)):
    for w, weights in enumerate(("plain", "int8", "nf4", "nf4-double")):
        for c, cache in enumerate(("preallocated", "growing", "8bit", "paged")):
            if not LONG and (m + w + c) % 4:
                continue
            j = serve(*model, "--weights", weights, "--kv-cache", cache, "--capacity", 30 * MIB)
            r, = j["rows"]
            check(r["sequences"] > 0, f"{weights}, {cache}: {r}")
            equal((r["positions"], j["gpu"], j["capacity"]), (model[model.index("-s") + 1], None, 30 * MIB), "what is asked for")
plain = serve(*GPT, "--capacity", 30 * MIB)["rows"]
for option in (["--attention", "math"], ["--norm", "post"], ["--dtype", "f32"], ["--at-once", 7]):
    check(serve(*GPT, "--capacity", 30 * MIB, *option)["rows"] != plain, f"{option} changes nothing")

# ---- a larger number than the one that is found first: --exact finds it; the JSON says up to where to look ----
GROWING = ["gpt", "-d", 64, "-l", 2, "-a", 4, "-s", 20, "--vocab", 96, "--dtype", "f32", "--weights", "int8", "--kv-cache", "growing", "--at-once", 50]
r, = serve(*GROWING, "--capacity", 3 * MIB)["rows"]
most, = serve(*GROWING, "--capacity", 3 * MIB, "--exact")["rows"]
check(r["sequences"] <= most["sequences"] == most["none_above"] <= r["none_above"], f"{r}, and exactly {most}")
text = run("serve", *GROWING, "--capacity", 3 * MIB).stdout
equal(r["none_above"] > r["sequences"], f"nor any above {r['none_above']}; --exact" in text, text)

# ---- too small: what one sequence needs ----
p = run("serve", "llama-3.1-8b", "--gpu", "rtx4090", "--weights", "plain", "-s", 131072)
check(p.returncode == 1 and p.stdout.startswith("does not fit: 1 x 131,072 tokens of llama-3.1-8b on one rtx4090"), p.stdout)
j = serve("llama-3.1-8b", "--gpu", "rtx4090", "--weights", "plain", "-s", 131072, status=1)
equal((j["fits"], j["rows"][0]["sequences"]), (False, 0), "nothing fits")
check(j["rows"][0]["peak"] > j["capacity"], "what one needs")

# ---- "fits" is said of what was asked for alone ----
ON_A100 = ["llama-3.1-70b", "--gpu", "a100-80", "-s", 1024]
p = run("serve", *ON_A100)
check(p.returncode == 0 and p.stdout.startswith("does not fit in bf16, preallocated cache; in nf4, preallocated cache:\n  107 x 1,024 tokens"), p.stdout)
p = run("serve", *ON_A100, "--weights", "nf4")
check(p.stdout.startswith("fits: 107 x 1,024 tokens of llama-3.1-70b on one a100-80\n"), p.stdout)

# ---- users: so many or not ----
most = serve(*ON_A100, "--weights", "nf4", "--kv-cache", "8bit")["rows"][0]["sequences"]
for users, status in ((most, 0), (most + 1, 1)):
    args = [*ON_A100, "--weights", "nf4", "--kv-cache", "8bit", "--users", users]
    j = serve(*args, status=status)
    equal((j["users"], j["fits"]), (users, status == 0), f"{users} users")
    equal(j["needed"]["reserved"] <= j["capacity"], status == 0, f"{users} users: what they reserve is within the capacity")
    text = run("serve", *args).stdout
    check(text.startswith(f"{'fits' if not status else 'does not fit'}: {users} x 1,024 tokens of llama-3.1-70b"), text)
text = run("serve", *ON_A100, "--users", 150, "--kv-cache", "8bit").stdout
check(text.startswith("does not fit in bf16, 8bit cache; in nf4, 8bit cache:\n  150 x 1,024 tokens"), text)

# ---- GPUs that share each layer: the weights are those of a rank ----
for model, n in ((["llama", "-d", 64, "-l", 2, "-a", 8, "--kv-heads", 4, "-s", 32, "--vocab", 257], 4), (["llama-3.1-70b", "-s", 64], 8),
                 (["gpt", "-d", 64, "-l", 2, "-a", 4, "-s", 64, "--vocab", 256], 2)):
    j = serve(*model, "--gpu", "h100", "--tp", n, "--weights", "plain", "--kv-cache", "8bit", "--users", 2)
    rank = json.loads(run("profile", *model, "--dtype", "bf16", "--device", "meta", "--tp", n, "--optimizer", "none", "--json", "-").stdout)
    equal(j["rows"][0]["weight_bytes"], rank["params"]["bytes"], f"weights of one of {n}: {model}")
    equal((j["gpus"], j["kept_aside"]), (n, ASIDE + (688 if n > 2 else 544) * MIB), f"{n} GPUs")
    check(f" on {n} x h100\n" in run("serve", *model, "--gpu", "h100", "--tp", n, "--weights", "plain", "--kv-cache", "8bit").stdout, "the GPUs")
equal(serve(*GPT, "--gpu", "h100:keep-aside=0", "--weights", "plain", "--users", 1)["kept_aside"], 0, "nothing kept aside")
refused(["tensor is 3", "heads"], "serve", "llama-3.1-8b", "--gpu", "h100", "--tp", 3, "-s", 64, status=1)
refused(["--gpu NAME:keep-aside needs --gpu"], "serve", "gpt", "--capacity", "1GB", "--keep-aside", "1MB")
refused(["--users"], "serve", "gpt", "--gpu", "h100", "--users", 0)

# ---- a file of GPUs ----
with tempfile.TemporaryDirectory() as folder:
    path = os.path.join(folder, "gpus.json")
    Path(path).write_text('{"h100": {"memory": "94GiB"}}')
    equal(serve(*GPT, "-s", 16, "--gpu", "h100", "--weights", "plain", "--capacity", "8MiB")["capacity"], 8 * MIB,
          "the capacity that is given")
    refused(["--gpus-file", "--capacity"], "serve", "gpt", "--gpu", "h100", "--gpus-file", path, "--capacity", "8MiB")
    equal(serve("llama-3.1-8b", "-s", 4096, "--gpu", "h100", "--gpus-file", path, "--weights", "nf4")["capacity"],
          (94 << 30) - ASIDE, "a file's memory")

# ---- refusals ----
refused(["--gpu is missing", "--capacity"], "serve", "gpt")
refused(["--gpus-file needs --gpu"], "serve", "gpt", "--capacity", "1GB", "--gpus-file", "x")
refused(["bert", "left to right"], "serve", "bert", "--gpu", "h100")
refused(["h100"], "serve", "gpt", "--gpu", "h101")
refused(["--kv-cache none"], "serve", "gpt", "--gpu", "h100", "--kv-cache", "none")
refused(["--weights mxfp4", "experts"], "serve", "gpt", "--gpu", "h100", "--weights", "mxfp4")
# 17 bytes for 32 weights of experts, 2 a weight for the others
equal(serve("gpt-oss-20b", "--gpu", "h100", "--weights", "mxfp4", "-s", 512, "--kv-cache", "preallocated")["rows"][0]["weight_bytes"],
      24 * 32 * 3 * 2880 * 2880 * 17 // 32 + 2 * (20914757184 - 24 * 32 * 3 * 2880 * 2880), "bytes of gpt-oss-20b in MXFP4")
on_t4 = run("serve", "gpt2", "--gpu", "t4")
check("a t4 multiplies no bf16: f16 is taken in its place" in on_t4.stderr and "f16 weights" in on_t4.stdout, on_t4.stderr + on_t4.stdout)
refused(["--weights", "nf4-double"], "serve", "gpt", "--gpu", "h100", "--weights", "int4")
refused(["--at-once"], "serve", "gpt", "--gpu", "h100", "--at-once", 0)
refused(["--seq 9999999", "131072"], "serve", "llama-3.1-8b", "--gpu", "h100", "-s", 9999999)
# ---- a paged cache of more blocks than can be simulated ----
p = run("serve", "llama-3.1-8b", "--gpu", "h100", "--kv-cache", "paged", "--tp", 2, "--weights", "plain", "-s", 8192)
equal(p.returncode, 1, f"5.1 million blocks: {p.stdout}")
check("5.1 million blocks" in p.stderr and "--kv-cache preallocated" in p.stderr, p.stderr)
done()
