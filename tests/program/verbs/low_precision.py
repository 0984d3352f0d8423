#!/usr/bin/env python3
"""--linear: what linears of 8 and 4 bits keep, the same on meta and on the CPU, and what they do not combine with."""
import json
from lib import check, done, equal, profile, refused, run

B, S, H, F = 2, 128, 128, 256
FORMS = ("torchao-float8", "torchao-mxfp8", "torchao-nvfp4", "te-delayed", "te-current", "te-mxfp8", "te-blockwise",
         "te-nvfp4")
BLOCKS = {"mxfp8": (32, 1), "blockwise": (128, 4)}  # values that share a scale, its bytes


def codes(form, n, weight=False):
    """Bytes of n values with their scales; None: they are kept as they are."""
    if form in ("torchao-float8", "torchao-mxfp8"):
        return None
    kind = form.split("-")[1]
    if kind == "nvfp4":
        return n // 2 + n // 16 + 4
    if kind not in BLOCKS:
        return n + 4
    block, each = BLOCKS[kind]
    return n + each * (n // (block * block if weight and kind == "blockwise" else block))


def rows_of(p):
    return sorted((t["module"].split(".")[-1], t["name"], t["bytes"]) for t in p["saved"]["tensors"]
                  if t["op"] == "linear" and t["dtype"] == "u8")


for form in FORMS:
    args = ["mlp", "-b", B, "-s", S, "-d", H, "--ffn", F, "--dtype", "bf16"]
    lowered = [*args, "--linear", form, "--optimizer", "adamw"]
    meta, cpu = (profile(*lowered, "--device", device) for device in ("meta", "cpu"))
    plain = profile(*args, "--device", "meta")
    ledgers = [[t | {"storage": 0} for t in p["saved"]["tensors"]] for p in (meta, cpu)]  # the CPU's scratch has serials, too
    equal(ledgers[0], ledgers[1], f"{form}: the ledger on meta and cpu")
    for a, b in zip(meta["steady"]["phases"], cpu["steady"]["phases"]):
        equal((a["requested"], a["by_category"]), (b["requested"], b["by_category"]), f"{form}: {a['name']} on meta and cpu")
    equal((meta["growth"]["residual"], meta["left"]["freed"]), (0, 0), f"{form}: the books")
    equal(meta["model"]["ops"]["linear"], form, "the form in the JSON")
    equal(meta["flops"], plain["flops"], f"{form}: FLOPs are those of the products")
    copies = 2 if form.startswith("te-") else 1
    wanted = [row for name, n in (("fc", B * S * H), ("proj", B * S * F)) if codes(form, n)
              for row in ((name, "w", copies * codes(form, H * F, True)), (name, "x", codes(form, n)))]
    equal(rows_of(meta), wanted, f"{form}: codes")
    if not wanted:
        equal(meta["saved"]["bytes"], plain["saved"]["bytes"], f"{form}: saves nothing")

llama = ["llama", "-b", 2, "-s", 128, "-d", 128, "-a", 4, "-l", 2, "--ffn", 256, "--vocab", 512, "--device", "meta"]
bf16 = [*llama, "--dtype", "bf16"]
full = profile(*bf16, "--linear", "te-mxfp8", "--checkpoint", "full")
equal(rows_of(full), [], "checkpoints keep no codes")
equal(full["saved"]["bytes"], profile(*bf16, "--checkpoint", "full")["saved"]["bytes"], "but what they keep without")
mx = profile(*bf16, "--linear", "te-mxfp8", "--outside")
equal(len(rows_of(mx)), 2 * 7 * 2, "x and weight of the layers' linears, not of the head")
outside = {row["name"]: row["bytes"] for row in mx["outside"]["rows"]}
equal(outside["Transformer Engine's workspace"], (32 << 20) + 1024, "Transformer Engine's workspace")
delayed, current = (profile(*bf16, "--linear", f"te-{form}") for form in ("delayed", "current"))
equal(delayed["saved"]["bytes"], current["saved"]["bytes"], "a history is no saved tensor")
equal(delayed["phases"][0]["requested"] - current["phases"][0]["requested"], 2 * 7 * 4 * (1024 + 1) * 5, "histories and scales")
for args in (["--tp", 2], ["--pp", 2], ["--cp", 2], ["--dp", 2, "--zero", 2], ["--lora-rank", 2], ["--offload", "cpu"]):
    for form in ("torchao-float8", "te-delayed", "te-nvfp4"):
        check(profile(*bf16, "--linear", form, *args), f"{form} with {args}")
check(profile(*llama, "--linear", "te-mxfp8", "--recipe", "fsdp2", "--dp", 2), "te-mxfp8 among shards")
check(profile(*llama, "--linear", "te-mxfp8", "--amp", "bf16"), "te-mxfp8 under autocast")

for form, zero in (("te-mxfp8", 3), ("te-delayed", 2)):  # a search leaves out what does not go together
    fit = json.loads(run("fit", *llama[:-2], "--dtype", "bf16", "--gpus", 4, "--gpu", "h100", "--batch", 4, "--linear", form,
                         "--json", "-").stdout)
    equal((fit["fitting"] > 0, {s["sp"] for s in fit["setups"]}), (True, {False}), f"{form}: set-ups that fit")
    equal(max(s["zero"] for s in fit["setups"]), zero, f"{form}: stages of ZeRO")
    check("ops" not in {s["checkpoint"] for s in fit["setups"]}, f"{form}: no results of products are kept")
refused(["te-mxfp8", "blocks cover the ranks' shards"], "profile", *bf16, "--linear", "te-mxfp8", "--tp", 4, "--ffn", 64)

for words, args in ((["--checkpoint ops", "full"], ["--checkpoint", "ops"]), (["--budget"], ["--budget", "1GiB"]),
                    (["--qlora"], ["--qlora", "--lora-rank", 2]), (["(sp)", "torchao-float8"], ["--tp", 2, "--sp"]),
                    (["(zero 3)", "te-current"], ["--dp", 2, "--zero", 3])):
    refused(words, "profile", *bf16, "--linear", "te-delayed", *args)
refused(["f64"], "profile", "mlp", "--dtype", "f64", "--linear", "te-current")
refused(["te-blockwise"], "profile", "mlp", "--linear", "fp8")
refused(["32 values share a scale", "need multiples"], "profile", "mlp", "-b", 1, "-s", 33, "-d", 64, "--linear", "te-mxfp8",
        status=1)
refused(["--linear"], "plan", "gpt2", "--linear", "te-mxfp8")
done()
