"""--recipe of training stacks, each for one rank of several: their options, their bytes, and when these are there."""
import itertools
import json
import re
from pathlib import Path
from lib import as_typed, check, done, equal, profile, refused, run, without_name

META = ["--device", "meta"]
GPT = ["gpt", *META]
PAGE = Path(__file__).parents[3] / "docs" / "recipes.md"
# name: (options, bytes for each parameter), as the page has them
OF_RANKS = {name: (options, cost) for name, options, cost in
            re.findall(r"(?m)^\| (\w+) \| `(--dtype [^`]*)` \| ([^|`]+) \|$", PAGE.read_text())}
OF_STAGE = re.search(r"(?m)^With `--pp` fsdp2 is `([^`]*)`, ([^:]+) bytes:", PAGE.read_text()).groups()


def balanced(p, what):
    equal(p["growth"]["residual"], 0, f"growth residual of {what}")
    equal(p["formula"]["unexplained"], 0, f"unexplained of {what}")
    equal(sum(p["steady"]["by_category"].values()), p["steady"]["peak"], f"categories of {what}")


def a_rank_is_its_options():
    equal(list(OF_RANKS), ["ddp", "zero1", "zero2", "zero3", "fsdp2", "megatron"], "recipes of the page")
    llama = ["llama", "--kv-heads", 2, "--attention", "math", *META]
    for name, (anywhere, cost_anywhere) in OF_RANKS.items():
        for args in ([*GPT, "--dp", 2], ["bert", *META, "--dp", 4, "--checkpoint", "full"], [*llama, "--dp", 2, "--tp", 2, "--sp"],
                     [*GPT, "--dp", 2, "--pp", 2, "--rank", 3]):
            options, cost = OF_STAGE if name == "fsdp2" and "--pp" in args else (anywhere, cost_anywhere)
            if name == "zero3" and args[0] == "llama":  # whose head has a weight of its own
                options = re.sub(r"fsdp([ =])block", r"fsdp\1block+group-ends", options)
            p, what = profile(*args, "--recipe", name), f"{args} {options}"
            equal((p["model"]["recipe"], p["model"]["recipe_options"]), (name, as_typed(options)), f"recipe {name}")
            equal(without_name(p), without_name(profile(*args, *options.split())), f"{name} and its options: {args}")
            balanced(p, what)
            equal(p["steady"]["phases"][-1]["at_peak"]["temporary"], 0, f"temporary tensors of the step of {what}")
            if p["parallel"]["dp"] == 4 or args[0] == "gpt":  # each parameter can be cut evenly
                held = p["params"]["bytes"] + p["parallel"]["gradients"] + p["parallel"]["optimizer"]
                each = eval(cost, {"d": p["parallel"]["dp"]})
                equal(held, each * p["params"]["count"], f"{cost} bytes for each parameter: {what}")
        shown = run("profile", *GPT, "--dp", 2, "--recipe", name).stdout.splitlines()
        equal(shown[2], f"recipe {name}: {as_typed(OF_RANKS[name][0])}", f"text of {name}")
    saved = {name: profile(*GPT, "--dp", 2, "--recipe", name)["saved"]["bytes"] for name in OF_RANKS}
    check(saved["fsdp2"] == saved["zero3"] == saved["megatron"], f"all run in bf16 throughout: {saved}")


def same_but_for_rounding(got, wanted, p, what):
    """A unit's gradients lie in one tensor, so that less of them is rounded up to blocks."""
    equal({**got, "gradient": 0}, {**wanted, "gradient": 0}, what)
    check(p["parallel"]["gradients"] <= got["gradient"] <= wanted["gradient"], f"{what}: gradients {got['gradient']}")


def the_root_stays_gathered():
    for args, tied in ((["llama", "--kv-heads", 2], False), (["gpt"], True), (["llama", "--tp", 2, "--sp"], False), (["bert"], True)):
        for more in ([], ["--checkpoint", "ops"], ["--microbatches", 2]):
            args_of = [*args, *META, "--dp", 2, "--zero", 3, "--dtype", "bf16", "--optimizer", "adamw", *more]
            p, kept = profile(*args_of), profile(*args_of, "--recipe", "plain:fsdp=keep-root")
            model, n = kept["model"], args.count("--tp") + 1
            v, d = model["vocab"] // n, model["hidden"]
            root = 2 * (2 * v * d + d)  # embedding, head and last norm of a llama
            if args[0] == "gpt":
                root = 2 * (v * d + model["seq"] * d + 2 * d)  # one matrix for both, positions, weight and bias of the norm
            if args[0] != "bert":
                rounding = kept["growth"]["gathered"] - root
                check(0 <= rounding < 5 * 512, f"{args_of}: the root, {root}, and {rounding}")
            equal((kept["growth"]["residual"], kept["formula"]["unexplained"]), (0, 0), f"books of {args_of}")
            equal((kept["saved"]["bytes"], p["growth"]["gathered"]), (p["saved"]["bytes"], 0), f"what the tape keeps: {args_of}")
            ends = [{ph["name"]: ph["by_category"] for ph in x["steady"]["phases"]} for x in (p, kept)]
            equal(ends[1]["forward"]["parameter"] - ends[0]["forward"]["parameter"], kept["growth"]["gathered"], "they stay")
            same_but_for_rounding(ends[1]["backward"], ends[0]["backward"], kept, "and go by the end of backward")
    for form in ("keep-root", "ahead+keep-root"):  # adapters' base is frozen: it goes with the backward
        args_of = ["llama", *META, "-l", 3, "--dp", 2, "--zero", 3, "--dtype", "bf16", "--optimizer", "adamw", "--lora-rank", 2]
        p, kept = profile(*args_of), profile(*args_of, "--recipe", f"plain:fsdp={form}")
        root = 2 * (2 * kept["model"]["vocab"] * kept["model"]["hidden"] + kept["model"]["hidden"])
        check(0 <= kept["growth"]["gathered"] - root < 8 * 512, f"{form} with adapters: {kept['growth']['gathered']}, {root}")
        ends = [phases_of(x)["backward"]["by_category"]["parameter"] for x in (p, kept)]
        equal(ends[0], ends[1], f"{form} with adapters: it goes by the end of backward")
    refused(["--recipe plain:fsdp=keep-root", "--pp"], "profile", *GPT, "--dp", 2, "--zero", 3, "--recipe", "plain:fsdp=keep-root", "--pp", 2)
    refused(["plain:fsdp needs --zero 3"], "profile", *GPT, "--dp", 2, "--recipe", "plain:fsdp=keep-root")
    refused(["--recipe plain:fsdp=keep-root", "does not apply to block"], "profile", "block", *META, "--dp", 2, "--zero", 3, "--recipe", "plain:fsdp=keep-root")
    refused(["--recipe plain:fsdp=keep-root", "--pp 1"], "fit", "gpt", "--gpus", 2, "--gpu", "h100", "--zero", 3, "--recipe", "plain:fsdp=keep-root")


def buffers_of(p):
    """Of the second step: what was allocated on each stream, on the default one for communication alone, and the most at once."""
    buffers, now, most = {}, {}, {}
    for i, e in enumerate(p["timeline"]):
        stream = e.get("stream", "default") if e["category"] == "communication" or "stream" in e else None
        if stream and e["kind"] in ("alloc", "free"):
            now[stream] = now.get(stream, 0) + (1 if e["kind"] == "alloc" else -1) * e["bytes"]
            if i >= p["steady"]["event"]:
                most[stream] = max(most.get(stream, 0), now[stream])
                if e["kind"] == "alloc":
                    buffers.setdefault(stream, []).append(e["bytes"])
    return buffers, most


def streams_have_what_pytorch_has_there():
    """By formula, from the events: what is gathered into and what sums take, on their streams, and the one buffer for a sum."""
    n, d, f, kv, v = 4, 64, 256, 32, 512
    block, root = 2 * d * d + 2 * d * kv + 3 * d * f + 2 * d, 2 * v * d + d  # every parameter is cut evenly
    for more in ([], ["--checkpoint", "full"], ["--microbatches", 3]):
        p = profile("llama", *META, "--dp", n, "--recipe", "fsdp2", "-l", 3, "-d", d, "-a", 4, "--kv-heads", 2, "--ffn", f, "--vocab", v,
                    "-b", 1, "-s", 8, "--timeline", *more)
        equal(p["params"]["count"], 3 * block + root, f"parameters of {more}")
        buffers, most = buffers_of(p)
        # The root's buffer, bf16, is there until the first block's shards are cast and gathered.
        equal(most["all_gather_copy_in"], 2 * root + 2 * block // n + 2 * block, f"gathered into: {more}")
        backwards = 3 if "--microbatches" in more else 1
        once = [4 * block] * 3 + [4 * root]  # f32; the root's last
        equal(buffers["default"], once * backwards, f"what is summed from: {more}")
        equal(buffers["reduce_scatter"], [b // n for b in once] * backwards, f"sums: {more}")
        equal(most["default"], 4 * root, f"one at a time: {more}")
        sums = sum(b // n for b in once)
        equal(most["reduce_scatter"], sums + (4 * root // n if backwards > 1 else 0), f"sums at once: {more}")
        equal(p["parallel"]["gradients"], sums, f"shards' gradients are views of the sums: {more}")


def each_unit_is_gathered_and_summed_as_fully_shard_does():
    """By formula: embedding, each block, and norm and head are units; what is gathered on which stream, and of how many ranks."""
    d, f, kv, v = 64, 256, 32, 512
    block, embedding, head = 2 * d * d + 2 * d * kv + 3 * d * f + 2 * d, v * d, v * d + d
    forward, back = [embedding, block, block, block, head], [block, block, block, embedding]
    for more, ranks, n, again in (("--dp 4", 4, 4, back), ("--dp 4 --recipe plain:reshard=always", 4, 4, [head, *back]), ("--dp 4 --recipe plain:reshard=never", 4, 4, []),
                                  ("--dp 8 --recipe plain:reshard=2", 8, 2, [head, *back]), ("--dp 4 --recipe plain:rs-buffers=3", 4, 4, back),
                                  ("--dp 8 --recipe plain:replicas=2", 4, 4, back), ("--dp 1", 1, 1, back)):
        for reduce in (4, 2):
            form = "torchtitan-grouped" if reduce == 4 else "ahead+group-ends+f32-shards"
            p = profile("llama", *META, "--zero", 3, "--dtype", "bf16", "--optimizer", "adamw", "-l", 3, "-d", d, "-a", 4, "--kv-heads", 2,
                        "--ffn", f, "--vocab", v, "-b", 1, "-s", 8, "--timeline", "--recipe", f"plain:fsdp={form}", *more.split())
            buffers, most = buffers_of(p)
            gathered = [b for u in forward for b in (2 * u // ranks, 2 * u)] + [b for u in again for b in (2 * u // n, 2 * u)]
            equal(buffers.get("all_gather_copy_in", []), gathered if ranks > 1 else [], f"gathered: {form} {more}")
            if ranks > 1:  # the one before is there until this one's are copied out
                pairs = [2 * a + 2 * b // ranks + 2 * b for a, b in zip(forward, forward[1:])]
                equal(most["all_gather_copy_in"], max(pairs), f"at once: {form} {more}")
            summed = [head, block, block, block, embedding]
            from_ = [reduce * u for u in summed]
            if ranks == 1:  # what one rank casts, it casts parameter by parameter
                cast = {embedding: [2 * embedding], head: [2 * d, 2 * v * d], block: [2 * n for n in (d, d * d, d * kv, d * kv, d * d, d, *[d * f] * 3)]}
                from_ = [b for u in forward for b in cast[u]] + from_[:1] + [b for u in back for b in [*cast[u], reduce * u]]
            equal(buffers["default"], from_, f"summed from: {form} {more}")
            at_once = int(more.split("rs-buffers=")[1]) if "rs-buffers" in more else 1
            if ranks > 1:
                equal(most["default"], max(sum(summed[i:i + at_once]) for i in range(5)) * reduce, f"inputs at once: {form} {more}")
            sums, casts = [reduce * u // ranks for u in summed], [4 * u // ranks for u in summed]
            with_casts = [b for pair in zip(sums, casts) for b in pair] if reduce == 2 else sums
            replicas = "replicas" in more and reduce == 2
            equal(buffers["reduce_scatter"], sums if replicas else with_casts, f"sums: {form} {more}")
            equal(buffers.get("all_reduce", []), casts if replicas else [], f"sums of replicas: {form} {more}")
            if replicas:  # held to the end of backward
                equal(most["reduce_scatter"], sum(sums), f"held: {more}")
            equal(p["parallel"]["gradients"], sum(casts), f"shards' gradients: {form} {more}")
            stays = [ph for ph in p["steady"]["phases"] if ph["name"] == "forward"][0]["by_category"]["parameter"]
            kept = {"always": 0, "never": sum(forward), "2": sum(forward) // 2}.get(more.split("=")[-1], head) if "reshard" in more else head
            check(0 <= stays - p["params"]["bytes"] - 2 * kept < 512 * 3 * 30, f"kept gathered: {form} {more}: {stays}, {p['params']['bytes']}, {kept}")
    refused(["plain:reshard", "needs fsdp=block, ahead"], "profile", *GPT, "--dp", 2, "--zero", 3, "--recipe", "plain:reshard=never")
    refused(["plain:reshard", "often", "default, always, never or a number"], "profile", *GPT, "--dp", 2, "--zero", 3, "--recipe", "plain:fsdp=ahead", "--recipe", "plain:reshard=often")
    refused(["--recipe plain:reshard=2", "--pp"], "profile", *GPT, "--dp", 2, "--zero", 3, "--pp", 2, "--recipe", "plain:fsdp=ahead", "--recipe", "plain:reshard=2")
    refused(["reshard is 3", "divisor of the ranks with other shards, 4"], "profile", *GPT, "--dp", 4, "--zero", 3, "--recipe", "plain:fsdp=ahead", "--recipe", "plain:reshard=3")
    refused(["replicas is 3", "divisor of data times context, 4"], "profile", *GPT, "--dp", 4, "--zero", 3, "--recipe", "plain:replicas=3")
    refused(["plain:replicas", "--zero 3"], "profile", *GPT, "--dp", 4, "--zero", 2, "--recipe", "plain:replicas=2")
    refused(["plain:rs-buffers", "needs fsdp=block, ahead"], "profile", *GPT, "--dp", 2, "--zero", 3, "--recipe", "plain:rs-buffers=2")
    refused(["group-ends", "its own weight"], "profile", *GPT, "--dp", 2, "--zero", 3, "--recipe", "plain:fsdp=ahead+group-ends")
    refused(["group-ends", "keep-root"], "profile", "llama", *META, "--dp", 2, "--zero", 3, "--recipe", "plain:fsdp=ahead+group-ends+keep-root")
    refused(["reduce-last", "--microbatches"], "profile", *GPT, "--dp", 2, "--zero", 3, "--recipe", "plain:fsdp=ahead+reduce-last")
    refused(["--dp 1 with --zero 3"], "profile", *GPT, "--dp", 1, "--zero", 2)


def divided_experts_are_a_unit_of_their_own():
    """By formula: a block's experts come with it, from those ranks that have the same ones, and their gradients are summed before its others."""
    d, f, v, experts, layers = 64, 128, 512, 4, 3
    ends, block = [v * d, v * d + d], 4 * d * d + 2 * d + experts * d
    for dp, ep in ((4, 2), (8, 2), (4, 4)):
        ranks, own = dp // ep, 3 * d * f * experts // ep
        for more in ([], ["--checkpoint", "full"]):
            p = profile("moe-tiny", *META, "--zero", 3, "--dtype", "bf16", "--optimizer", "adamw", "-l", layers, "-d", d, "-a", 4, "--kv-heads", 4, "--ffn", f,
                        "--vocab", v, "--experts", experts, "-b", 1, "-s", 16, "--dp", dp, "--ep", ep, "--timeline", "--recipe", "plain:fsdp=torchtitan-grouped", *more)
            buffers, most = buffers_of(p)
            name = f"dp {dp}, ep {ep}, {more}"
            a_block = [(block, dp), (own, ranks)]
            forward, back = [(ends[0], dp), *a_block * layers, (ends[1], dp)], [*a_block * layers, (ends[0], dp)]
            gathered = [b for u, n in forward + back if n > 1 for b in (2 * u // n, 2 * u)]
            equal(buffers["all_gather_copy_in"], gathered, f"gathered: {name}")
            summed = [(ends[1], dp), *[(own, ranks), (block, dp)] * layers, (ends[0], dp)]
            equal(buffers["reduce_scatter"], [4 * u // n for u, n in summed], f"sums: {name}")
            equal(p["parallel"]["gradients"], sum(4 * u // n for u, n in summed), f"shards' gradients: {name}")
            equal(most["reduce_scatter"], p["parallel"]["gradients"], f"they are there at once: {name}")


def a_stage_keeps_its_blocks_for_a_step():
    """As in PyTorch's pipelines: each block is gathered once, gradients are added up whole, and summed when the last backward ends."""
    d, f = 64, 256
    block = 4 * d * d + 3 * d * f + 2 * d
    args = ["llama", *META, "-l", 4, "-d", d, "-a", 4, "--ffn", f, "--vocab", 64, "-b", 1, "-s", 8, "--dp", 2, "--pp", 2, "--stage", 1, "--zero", 3,
            "--dtype", "bf16", "--optimizer", "sgd", "--microbatches", 3]
    p = profile(*args, "--timeline", "--recipe", "plain:fsdp=ahead+f32-reduce+reduce-last", "--recipe", "plain:reshard=never")
    buffers, most = buffers_of(p)
    equal(buffers["all_gather_copy_in"], [block, 2 * block] * 2, "each block is gathered once")
    equal(buffers["default"], [4 * block] * 2, "and summed once")
    equal(most["default"], 4 * block, "one after the other")
    summed = [i for i, e in enumerate(p["timeline"]) if e["kind"] == "alloc" and e["category"] == "communication" and e["bytes"] == 4 * block]
    last = max(i for i, e in enumerate(p["timeline"]) if e["phase"] == "backward" and e["kind"] == "free" and e["category"] == "activation")
    check(summed[-2] > last, f"after the last backward: {summed}, {last}")
    check(most_gradients(p) >= 2 * 4 * block, f"whole gradients in f32: {most_gradients(p)}")


def buckets_are_those_of_ddp():
    """In the first step one for all gradients; then, in the order in which these come, as many as reach the limit."""
    args = ["llama", *META, "-l", 5, "-d", 128, "-a", 4, "--ffn", 512, "--vocab", 1024, "-b", 1, "-s", 8, "--dp", 4, "--dtype", "f32",
            "--optimizer", "adamw", "--timeline"]
    plain = profile(*args)
    whole = 4 * plain["params"]["count"]
    for limit in (None, "3MiB", "200KiB"):
        for form in ("copied", "views"):
            p = profile(*args, "--recipe", f"plain:buckets={form}", *(["--recipe", f"plain:bucket-bytes={limit}"] if limit else []))
            category = "communication" if form == "copied" else "gradient"
            steady, events = p["steady"]["event"], p["timeline"]
            first = [e["bytes"] for e in events if e["kind"] == "recategory" and e["category"] == category and e["phase"] == "init"]
            equal(first, [whole], f"{form} {limit}: one bucket at first")
            freed = [e for e in events[steady:] if e["kind"] == "free" and e["bytes"] == whole and e["phase"] == "forward"]
            equal(len(freed), 1, f"{form} {limit}: it goes before the second forward")
            got = [e["bytes"] for e in events[steady:] if e["kind"] == "recategory" and e["category"] == category and e["phase"] == "forward"]
            came = [e["bytes"] for e in plain["timeline"][plain["steady"]["event"]:] if e["category"] == "gradient"
                    and e["kind"] in ("alloc", "recategory") and e["phase"] == "backward"]
            equal(sum(came), whole, "each gradient comes once")
            most = {None: 25 << 20, "3MiB": 3 << 20, "200KiB": 200 << 10}[limit]
            wanted, now = [], 0
            for n in came:
                now += n
                if now >= (most if wanted else min(most, 1 << 20)):
                    wanted.append(now)
                    now = 0
            equal(got, wanted + [now] * (now > 0), f"{form} {limit}: buckets")
            equal(p["parallel"]["bucket_bytes"], most, f"{form} {limit}: said")
            equal(p["parallel"]["gradients"], whole, f"{form} {limit}: gradients")
            # where backward ends, there are gradients and buckets, or gradients in buckets
            held = {ph["name"]: ph["by_category"] for ph in p["steady"]["phases"]}["backward"]
            both = whole * (2 if form == "copied" else 1)
            check(0 <= held["gradient"] + held["communication"] - both < 512 * 100, f"{form} {limit}: {held}, {both}")
    refused(["plain:buckets", "--dp or --cp"], "profile", "llama", *META, "--tp", 2, "--recipe", "plain:buckets=copied")
    refused(["plain:buckets", "with --zero"], "profile", "llama", *META, "--dp", 2, "--zero", 1, "--recipe", "plain:buckets=copied")
    refused(["plain:bucket-bytes", "buckets=copied"], "profile", "llama", *META, "--dp", 2, "--recipe", "plain:bucket-bytes=1MiB")


def zero2_has_the_buffer_of_deepspeed():
    """The buffer is there during each backward. Gradients that fit beside each other are scattered from a copy of all of them,
    before one that does not; one that is larger than the buffer, by itself."""
    args = ["llama", *META, "-l", 3, "-d", 64, "-a", 4, "--ffn", 256, "--vocab", 512, "-b", 1, "-s", 8, "--dp", 4, "--zero", 2,
            "--dtype", "bf16", "--optimizer", "adamw", "--timeline"]
    plain, whole = profile(*args), profile(*args, "--zero", 0)
    came = [e["bytes"] // 2 for e in whole["timeline"][whole["steady"]["event"]:] if e["category"] == "gradient"
            and e["kind"] in ("alloc", "recategory") and e["phase"] == "backward"]
    equal(sum(came), whole["params"]["count"], "each gradient comes once")
    for room in (10**6, 50000, 17000, 3000):
        p = profile(*args, "--recipe", f"plain:reduce-bucket={room}")
        wanted, waiting, used = [], [], 0
        for n in [*came, None]:
            if n is None or n > room or used + n > room:
                wanted += [sum(waiting)] * (len(waiting) > 1)
                waiting, used = [], 0
            if n is not None:
                waiting.append(n)
                used += min(n, room)
        got = [e["bytes"] // 2 for e in p["timeline"][p["steady"]["event"]:] if e["kind"] == "recategory" and e["category"] == "communication"]
        equal(got, [room, *wanted], f"{room}: the buffer, and copies")
        equal(p["parallel"]["gradients"], plain["parallel"]["gradients"], f"{room}: shards")
        equal(p["parallel"]["reduce_bucket"], room, f"{room}: said")
        held = {ph["name"]: ph["by_category"]["communication"] for ph in p["steady"]["phases"]}
        equal(held["backward"], 0, f"{room}: it goes with the backward")
    refused(["plain:reduce-bucket needs --zero STAGE"], "profile", *GPT, "--dp", 2, "--recipe", "plain:reduce-bucket=1k")


def a_step_of_deepspeed_is_its_arithmetic():
    """N parameters among d ranks in 16 bits: from step to step 2N or 2N/d, and 12N/d; in the step the partition's gradients twice in 16 bits
    and once in f32, then in f32 alone, beside the roots of AdamW's form."""
    args = ["llama", *META, "-l", 3, "-d", 64, "-a", 4, "--ffn", 256, "--vocab", 512, "-b", 1, "-s", 8, "--dp", 4, "--dtype", "bf16", "--master-weights"]
    for zero, whole, kept in ((1, 2, 0), (2, 2, 0), (3, 0, 2)):
        for form, roots in (("adamw", 0), ("adamw-foreach", 4), ("adamw-loop", 8)):
            p = profile(*args, "--zero", zero, "--optimizer", form, "--recipe", "plain:sub-group=1M", "--microbatches", 2)
            n, at = p["params"]["count"], {ph["name"]: ph["at_peak"] for ph in p["steady"]["phases"]}["step"]
            step = sum(b for c, b in at.items() if c in ("parameter", "gradient", "optimizer", "temporary"))
            wanted = n * (whole + (2 if zero == 3 else 0) / 4 + 12 / 4 + max(8, 4 + kept + roots) / 4)
            check(0 <= step - wanted < 512 * 300, f"zero {zero}, {form}: {step} for {wanted}: {at}")
            equal(p["growth"]["residual"], 0, f"zero {zero}, {form}: growth")
            forward = {ph["name"]: ph["at_peak"]["gradient"] for ph in p["steady"]["phases"]}["forward"]
            check(forward == 0 if zero < 3 else n / 2 <= forward < n / 2 + 512 * 100, f"zero {zero}: gradients in forward: {forward}")
    small, all_ = (profile(*args, "--zero", 3, "--optimizer", "adamw-loop", "--recipe", f"plain:sub-group={g}")["steady"]["phases"][-1]["peak"] for g in ("1k", "1M"))
    check(small < all_, f"sub-groups step after each other: {small}, {all_}")
    refused(["plain:sub-group needs --zero STAGE"], "profile", *GPT, "--dp", 2, "--recipe", "plain:sub-group=1k")


def adafactor_of_pytorch_holds_one_estimate():
    """torch.optim.Adafactor steps one parameter after another, and has what its factors stand for: the largest parameter's elements."""
    args = ["llama", *META, "-l", 3, "-d", 64, "-a", 4, "--ffn", 256, "--vocab", 512, "-b", 1, "-s", 8]
    for dtype in "f32", "bf16":
        step = {form: profile(*args, "--dtype", dtype, "--optimizer", form)["steady"]["phases"][-1] for form in ("adafactor", "adafactor-loop")}
        equal(step["adafactor-loop"]["by_category"], step["adafactor"]["by_category"], f"{dtype}: what stays")
        equal(step["adafactor-loop"]["at_peak"]["temporary"], int(dtype[-2:]) // 8 * 512 * 64, f"{dtype}: the embedding's estimate")


def an_optimizer_on_the_cpu_leaves_parameters_alone():
    """DeepSpeed's offload_optimizer: state and complete gradients are in host memory, 16 bytes a parameter, and the step takes nothing."""
    args = ["llama", *META, "-l", 3, "-d", 64, "-a", 4, "--ffn", 256, "--vocab", 512, "-b", 1, "-s", 8, "--dtype", "bf16", "--master-weights",
            "--optimizer", "adamw-cpu", "--checkpoint", "full"]
    for more, d in (([], 1), (["--dp", 4, "--zero", 2], 4), (["--dp", 4, "--zero", 2, "--recipe", "plain:reduce-bucket=1M", "--recipe", "plain:sub-group=1M"], 4),
                    (["--dp", 4, "--zero", 3, "--recipe", "plain:sub-group=1M"], 4), (["--dp", 4, "--zero", 3, "--recipe", "plain:fsdp=block", "--microbatches", 2], 4)):
        p = profile(*args, *more)
        equal(p["optimizer_host"] * d, 16 * p["params"]["count"], f"{more}: bytes in host memory")
        ends = {ph["name"]: ph["by_category"] for ph in p["steady"]["phases"]}
        equal([(ends[name]["gradient"], ends[name]["optimizer"]) for name in ends], [(0, 0)] * len(ends), f"{more}: gradients and state on the device")
        step = {ph["name"]: ph["at_peak"] for ph in p["steady"]["phases"]}["step"]
        equal(sum(b for c, b in step.items() if c in ("gradient", "temporary")), 0, f"{more}: the step")
    refused(["--optimizer adamw-cpu", "--zero 2 or 3"], "profile", *args, "--dp", 4)
    refused(["--optimizer adamw-cpu", "--zero 2 or 3"], "profile", *args, "--dp", 4, "--zero", 1)
    found = json.loads(run("fit", "gpt", "-b", 2, "--gpus", 2, "--gpu", "h100", "--optimizer", "adamw-cpu", "--json", "-").stdout)
    check({s["zero"] for s in found["setups"] if s["dp"] > 1} <= {2, 3}, f"fit sums before gradients go: {found['setups']}")
    p = run("fit", "llama-2-7b", "--gpu", "rtx4090:host-memory=64GB", "-s", 16, "--recipe", "zero2", "--optimizer", "adamw-cpu", "--checkpoint", "full")
    check("GiB, but 100.4 of 59.6 in host memory" in " ".join(p.stdout.split()), f"what is too large is said: {p.stdout}")
    equal(p.returncode, 1, f"16 bytes of 6.7 billion parameters are not in 64 GB: {p.stdout}")


def most_gradients(p):
    """Bytes of gradients in the second step, when there are most of them."""
    live, most = {}, 0
    for i, e in enumerate(p["timeline"]):
        if e["kind"] in ("alloc", "recategory"):
            live[e["storage"]] = e["bytes"] if e["category"] == "gradient" else 0
        elif e["kind"] == "free":
            live.pop(e["storage"], None)
        if i >= p["steady"]["event"]:
            most = max(most, sum(live.values()))
    return most


def gradients_wait_for_the_last_microbatch():
    """By formula: whole gradients stay, in the type in which they are summed, beside those of one block as they come."""
    d, f = 64, 256
    block = 4 * d * d + 3 * d * f + 2 * d
    for form, wide in (("ahead+keep-root+f32-reduce", 4), ("ahead+keep-root", 2)):
        args = ["llama", *META, "-l", 3, "-d", d, "-a", 4, "--ffn", f, "--vocab", 64, "-b", 1, "-s", 8, "--dp", 2, "--zero", 3, "--dtype", "bf16",
                "--optimizer", "sgd", "--microbatches", 3]
        each, last = (profile(*args, "--timeline", "--recipe", f"plain:fsdp={which}") for which in (form, f"{form}+reduce-last"))
        equal(last["parallel"]["gradients"], each["parallel"]["gradients"], f"shards of {form}")
        equal([len(buffers_of(p)[0]["default"]) for p in (each, last)], [3 * 4, 4], f"sums of {form}")
        whole = wide * last["params"]["count"]
        # in one type a new gradient is added at once; else those of a block wait until backward has left it
        more = 2 * block if wide == 4 else 2 * d * f
        equal(most_gradients(last), whole + more, f"added up whole: {form}")
        check(most_gradients(each) < whole, f"not added up: {form}")


def shards_in_host_memory_leave_what_is_gathered():
    """offload_param and CPUOffloadPolicy: a rank has no parameters between steps, and in the step what it gathers."""
    args = ["llama", *META, "-l", 3, "-d", 64, "-a", 4, "--ffn", 256, "--vocab", 512, "-b", 1, "-s", 8, "--dp", 4, "--optimizer", "adamw-cpu", "--checkpoint", "full"]
    for recipe, width in ("zero3", 2), ("fsdp2", 4):
        on, off = (profile(*args, "--recipe", f"{recipe}{key}") for key in ("", ":offload-param"))
        shards, kept = off["params"]["bytes"], [p["steady"]["phases"][-1]["by_category"]["parameter"] for p in (on, off)]
        check(0 <= shards - width * on["params"]["count"] / 4 < 4 * 100, f"{recipe}: {shards} bytes of shards")
        equal((off["parameters_host"], on["parameters_host"], off["params"]["bytes"], kept[1]), (shards, 0, on["params"]["bytes"], 0), f"{recipe}: where they are")
        check(0 <= kept[0] - shards < 512 * 100, f"{recipe}: without it they are here: {kept}")
        for a, b in zip(on["steady"]["phases"], off["steady"]["phases"]):
            equal(b["peak"], a["peak"] - kept[0], f"{recipe}: {a['name']}: all else is as it was")
    p = json.loads(run("fit", "llama-2-7b", "--gpus", 4, "--gpu", "rtx3090:host-memory=512GiB", "-s", 512, "--recipe", "zero3+hf:offload-param", "--optimizer", "adamw-cpu",
                       "--checkpoint", "full", "--offload", "none", "--json", "-").stdout)
    check(p["setups"] and p["setups"][0]["fits"], f"a fit: {p['setups'][:1]}")
    refused(["plain:offload-param", "needs --zero 3"], "profile", *GPT, "--dp", 2, "--zero", 2, "--recipe", "plain:offload-param")


def blocks_are_gathered_ahead():
    """What is gathered, by formula: at the peak of a block's backward its parameters and the buffer of the one before."""
    for args, bias in ((["llama", "--kv-heads", 2], 0), (["gpt"], 1), (["llama", "--kv-heads", 2, "--tp", 2, "--sp"], 0)):
        for more in ([], ["--checkpoint", "full"], ["--microbatches", 2]):
            args_of = [*args, *META, "-l", 4, "-b", 1, "-s", 8, "--dp", 2, "--zero", 3, "--dtype", "bf16", "--optimizer", "adamw", *more]
            module, block, ahead, last = (profile(*args_of, *how) for how in
                (["--recipe", "plain:fsdp=module"], ["--recipe", "plain:fsdp=block"], ["--recipe", "plain:fsdp=ahead"], ["--recipe", "plain:fsdp=ahead+keep-last"]))
            equal(module, profile(*args_of), "the default")
            m, t = ahead["model"], args.count("--tp") + 1
            d, f, kv = m["hidden"], m["ffn"], m["hidden"] * m["kv_heads"] // m["heads"]
            of_block = 2 * (2 * d * d + 2 * d * kv + 3 * d * f) // t + 2 * 2 * d
            if bias:
                of_block = 2 * (12 * d * d + 13 * d)
            for p, name in ((block, "block"), (ahead, "ahead"), (last, "last")):
                equal((p["growth"]["residual"], p["formula"]["unexplained"]), (0, 0), f"{name}: books of {args_of}")
                equal(p["saved"]["bytes"], module["saved"]["bytes"], f"{name}: what the tape keeps of {args_of}")
                phases = phases_of(p)
                same_but_for_rounding(phases["backward"]["by_category"], phases_of(module)["backward"]["by_category"], p, f"{name}: all is let go")
                gathered = phases["backward"]["at_peak"]["parameter"] - module["steady"]["phases"][0]["by_category"]["parameter"]
                check(0 <= gathered <= 2 * (of_block + 16 * 512), f"{name}: two blocks, {of_block} each, are the most: {gathered}")
            check(0 <= last["growth"]["gathered"] - of_block < 16 * 512, f"the last block, {of_block}: {last['growth']['gathered']}")
            stays = phases_of(last)["forward"]["by_category"]["parameter"] - phases_of(ahead)["forward"]["by_category"]["parameter"]
            check(0 <= stays - of_block < 16 * 512, f"it stays, recomputed or not: {of_block}, {stays}, {more}")
            equal((block["growth"]["gathered"], ahead["growth"]["gathered"]), (0, 0), "no other stays")
            equal([p["parallel"]["gather"] for p in (module, block, ahead, last)], ["module", "block", "ahead", "ahead"], "gather")
    few = profile(*args_of, "-l", 2, "--recipe", "plain:fsdp=ahead")["steady"]["phases"]
    more = profile(*args_of, "-l", 8, "--recipe", "plain:fsdp=ahead")["steady"]["phases"]
    pieces = [ph["by_category"]["parameter"] for ph in (few[0], more[0])]
    equal(*(x[1]["at_peak"]["parameter"] - own for x, own in zip((few, more), pieces)), "as many blocks in a deeper model")
    refused(["plain:fsdp", "--zero 3"], "profile", *GPT, "--dp", 2, "--recipe", "plain:fsdp=ahead")
    refused(["--recipe plain:fsdp=keep-last", "needs block or ahead"], "profile", *GPT, "--dp", 2, "--zero", 3, "--recipe", "plain:fsdp=keep-last")
    refused(["keep-last", "--pp"], "profile", *GPT, "--dp", 2, "--zero", 3, "--pp", 2, "--recipe", "plain:fsdp=ahead+keep-last")
    refused(["keep-last", "--pp 1"], "fit", "gpt", "--gpus", 2, "--gpu", "h100", "--zero", 3, "--recipe", "plain:fsdp=ahead+keep-last")
    refused(["plain:fsdp", "tensor", "module, ahead, block", "joined by +"], "profile", *GPT, "--dp", 2, "--zero", 3, "--recipe", "plain:fsdp=ahead+tensor")


def phases_of(p):
    return {ph["name"]: ph for ph in p["steady"]["phases"]}


def f32_shards_are_the_only_ones():
    for data, reduce in ((2, "f32-shards"), (4, "f32-reduce")):
        args = ["llama", "--kv-heads", 2, *META, "--dp", data, "--zero", 3, "--dtype", "bf16", "--optimizer", "adamw"]
        p = profile(*args, "--recipe", f"plain:fsdp={reduce}")
        count, balance = p["params"]["count"], p["parallel"]
        equal((balance["f32_shards"], balance["f32_reduce"]), (True, reduce == "f32-reduce"), "what the shards are")
        equal((p["params"]["bytes"], balance["gradients"], balance["optimizer"]),
              (4 * count / data, 4 * count / data, 8 * count / data), "4 bytes each, and two moments")
        rounded = p["steady"]["by_category"]["parameter"] - p["params"]["bytes"]
        check(0 <= rounded < 512 * 21, f"no 16-bit shard beside the 21: {rounded}")
        narrow = profile(*args, "--master-weights", "--recipe", "plain:f32-gradients")
        equal((narrow["saved"]["bytes"], narrow["params"]["bytes"]), (p["saved"]["bytes"], p["params"]["bytes"] / 2),
              "the same forward")
    small, large = (profile(*args, "--recipe", f"plain:fsdp={form}")["steady"]["phases"][1]["at_peak"]["temporary"]
                    for form in ("f32-shards", "f32-reduce"))
    check(large > small, f"a gradient is there in f32, too, before it is summed: {small}, {large}")
    # one block's row for each rank: 12 d^2 + 13 d parameters, as an allocation
    room = {unit: profile("gpt", "-d", 64, "-l", 2, "-s", 64, "--dp", 4, "--zero", 3, "--recipe", f"plain:fsdp={unit}", "--device", "meta")["steady"]["phases"][1]
            ["at_peak"]["communication"] for unit in ("module", "block", "ahead")}
    equal((room["module"], room["ahead"]), (0, -(-4 * (12 * 64**2 + 13 * 64) // 512) * 512), f"room for a block: {room}")
    refused(["plain:fsdp needs --zero 3"], "profile", *GPT, "--dp", 2, "--dtype", "bf16", "--recipe", "plain:fsdp=f32-shards")
    refused(["f32-shards needs --dtype bf16"], "profile", *GPT, "--dp", 2, "--zero", 3, "--recipe", "plain:fsdp=f32-shards")
    refused(["f32-shards needs --dtype bf16"], "profile", *GPT, "--dp", 2, "--zero", 3, "--recipe", "plain:fsdp=f32-reduce")
    for option in (["--master-weights"], ["--recipe", "plain:f32-gradients"]):
        refused([option[-1], "with fsdp=f32-shards"], "profile", *GPT, "--dp", 2, "--recipe", "fsdp2", *option)


def each_form_has_an_effect():
    """Each word of fsdp changes what profile, sweep and fit find, and two words have the effects of both."""
    args = ["-b", 4, "-s", 16, "-d", 64, "-a", 4, "-l", 4, "--zero", 3, "--dtype", "bf16"]
    of_verb = {"profile": [*args, "--dp", 4, "--device", "meta"], "sweep": [*args, "--dp", 4, "--device", "meta"],
               "fit": [*args, "--pp", 1, "--gpus", 4, "--gpu", "h100"]}
    for verb, base in of_verb.items():
        seen = {}
        # a sweep shows the peak alone, which is two blocks that are gathered ahead, kept or not
        of_peaks = [] if verb == "sweep" else ["ahead+keep-last", "torchtitan"]
        for form in ("module", "block", "ahead", "keep-root", "f32-shards", "f32-reduce", "block+keep-last", "ahead+keep-root",
                     "pytorch", *of_peaks):
            more = ["--row", f"a: --recipe plain:fsdp={form}"] if verb == "sweep" else ["--recipe", f"plain:fsdp={form}"]
            p = run(verb, "gpt", *base, *more, "--json", "-")
            equal(p.returncode, 0, f"{verb} {form}: {p.stderr}")
            found = json.loads(p.stdout)
            found.pop("parallel", None)
            seen[form] = re.sub(r"fsdp=[a-z0-9+-]+", "", json.dumps(found))
        same = [(a, b) for a in seen for b in seen if a < b and seen[a] == seen[b]]
        equal(same, [], f"{verb}: forms of fsdp without a difference")
    for unit, root, f32 in itertools.product(("module", "block", "ahead", "block+keep-last", "ahead+keep-last"), (False, True),
                                             (None, "f32-shards", "f32-reduce")):
        form = "+".join(word for word in (unit, root and "keep-root", f32) if word)
        p = profile("gpt", *of_verb["profile"], "--recipe", f"plain:fsdp={form}")
        balanced(p, form)
        equal([p["parallel"][key] for key in ("gather", "keep_last", "keep_root", "f32_shards", "f32_reduce")],
              [unit.split("+")[0], "keep-last" in unit, root, f32 is not None, f32 == "f32-reduce"], f"what {form} is")
    for names, form in (("ahead+keep-root+f32-reduce", "pytorch"), ("pytorch+keep-last", "torchtitan"),
                        ("f32-shards+f32-reduce", "f32-reduce"), ("block+ahead", "ahead")):
        a, b = (profile("gpt", *of_verb["profile"], "--recipe", f"plain:fsdp={text}") for text in (names, form))
        equal(a, b, f"{names} is {form}")


def other_verbs_take_ranks():
    def measured(verb, *args):
        p = run(verb, *args, "--json", "-")
        equal(p.returncode, 0, f"{verb} {args}: {p.stderr}")
        return json.loads(p.stdout)

    over = ",".join(OF_RANKS)
    rows = measured("sweep", *GPT, "--dp", 4, "--over", f"recipe={over}")["rows"]
    plain = measured("sweep", *GPT, "--dp", 4, *(w for n, (o, _) in OF_RANKS.items() for w in ("--row", f"recipe={n}: {o}")))
    nameless = [{k: v for k, v in row.items() if k not in ("recipe", "recipe_options")} for row in rows]
    equal([{**row, "recipe": None, "recipe_options": None} for row in nameless], plain["rows"], "sweep: recipes and options")
    equal(len({row["peak"] for row in rows}), 6, "peaks")
    for name, (options, _) in OF_RANKS.items():
        p = measured("plan", "gpt", "--dp", 2, "--recipe", name)
        equal(without_name(p), without_name(measured("plan", "gpt", "--dp", 2, *options.split())), f"plan {name}")


def an_option_given_wins_over_a_rank():
    for name, given, left in [
            ("zero1", "--zero 2", "--dtype bf16 --optimizer adamw --master-weights --recipe plain:reduce-bucket=500M,sub-group=1000000M"),
            ("zero3", "--dtype f32", "--optimizer adamw --zero 3 --recipe plain:fsdp=block,reduce-bucket=500M,sub-group=1000M"),
            ("zero2", "--dtype f16 --optimizer adamw-8bit", "--master-weights --zero 2 --recipe plain:reduce-bucket=500M,sub-group=1000000M"),
            ("zero2", "--optimizer none", "--dtype bf16 --zero 2 --recipe plain:reduce-bucket=500M"),
            ("fsdp2", "--dtype f16", "--optimizer adamw --zero 3 --recipe plain:fsdp=pytorch"),
            ("fsdp2", "--dtype f32", "--optimizer adamw --zero 3 --recipe plain:fsdp=ahead+keep-root"),
            ("fsdp2", "--lora-rank 2", "--dtype bf16 --optimizer adamw --zero 3 --recipe plain:fsdp=pytorch"),
            ("fsdp2", "--lora-rank 2 --dtype f32", "--optimizer adamw --zero 3 --recipe plain:fsdp=ahead+keep-root"),
            ("fsdp2", "--zero 2", "--dtype bf16 --optimizer adamw"),
            ("fsdp2", "--pp 2 --zero 3", "--dtype bf16 --optimizer adamw --recipe plain:fsdp=ahead+f32-reduce"),
            ("fsdp2", "--pp 2 --recipe plain:fsdp=block+f32-reduce", "--dtype bf16 --optimizer adamw --zero 3"),
            ("fsdp2", "--pp 2 --dtype f32", "--optimizer adamw --zero 1"),
            ("ddp", "--dtype bf16", "--optimizer adamw --recipe plain:buckets=copied"),
            ("ddp", "--zero 1", "--dtype f32 --optimizer adamw"),
            ("megatron", "--dtype f32 --zero 0", "--optimizer adamw")]:
        args = [*GPT, "--dp", 2, *given.split()]
        p = profile(*args, "--recipe", name)
        equal(p["model"]["recipe_options"], as_typed(left), f"{name} {given}: options left")
        equal(without_name(p), without_name(profile(*args, *left.split())), f"{name} {given}")
    line = run("profile", *GPT, "--dp", 2, "--act", "gelu_tanh", "--recipe", "plain:gelu-tanh=unfused", "--recipe", "zero1").stdout
    check(", unfused gelu_tanh; " in line and "\nrecipe zero1: " in line, f"a choice that was given stands beside the recipe: {line}")


def a_rank_needs_others():
    for name in OF_RANKS:
        for args in (["--dp", 1], ["--tp", 2], ["--pp", 2]):
            refused([f"--recipe {name} needs --dp or --cp of 2 or more"], "profile", *GPT, *args, "--recipe", name)
        refused(["--device meta"], "profile", "gpt", "--dp", 2, "--recipe", name)
        refused(["explain does not take"], "explain", "gpt", "--recipe", name)
        refused(["does not apply to mlp"], "profile", "mlp", "--recipe", name)
    refused(["--amp", "--dtype f32"], "profile", *GPT, "--dp", 2, "--recipe", "zero1", "--amp", "bf16")
    refused(["--qlora", "--zero 3"], "profile", *GPT, "--dp", 2, "--recipe", "zero3", "--lora-rank", 2, "--qlora")
    refused(["plain:step-in-backward", "--zero"], "profile", *GPT, "--dp", 2, "--recipe", "zero2", "--recipe", "plain:step-in-backward")
    refused(["--recipe", "did you mean zero3"], "profile", *GPT, "--dp", 2, "--recipe", "zero33")


def one_gpu_shards_nothing():
    """Alone a recipe of ranks sets what does not need others."""
    for name, options in {"ddp": "--dtype f32 --optimizer adamw", "zero1": "--dtype bf16 --optimizer adamw --master-weights",
                          "zero2": "--dtype bf16 --optimizer adamw --master-weights",
                          "zero3": "--dtype bf16 --optimizer adamw --master-weights",
                          "fsdp2": "--dtype f32 --amp bf16 --optimizer adamw",
                          "torchtitan": "--dtype f32 --amp bf16 --optimizer adamw --checkpoint ops --loss unfused",
                          "megatron": "--dtype bf16 --optimizer adamw --master-weights --recipe plain:f32-gradients,router=chosen"}.items():
        p = profile(*GPT, "--recipe", name)
        options = options.replace(",router=chosen", "")
        equal(p["model"]["recipe_options"], as_typed(options), f"{name} on one GPU")
        equal(without_name(p), without_name(profile(*GPT, *options.split())), f"{name} on one GPU is its options")
        for verb, more in {"sweep": ["--over", f"recipe=none,{name}"], "plan": ["--recipe", name],
                           "fit": ["--gpus", 1, "--gpu", "h100", "--recipe", name]}.items():
            equal(run(verb, "gpt", *more, *(META if verb == "sweep" else [])).returncode, 0, f"{verb} {name} on one GPU")
    refused(["--zero needs ranks", "--gpus"], "fit", "gpt", "--gpus", 1, "--gpu", "h100", "--zero", 3)


a_rank_is_its_options()
one_gpu_shards_nothing()
f32_shards_are_the_only_ones()
each_form_has_an_effect()
the_root_stays_gathered()
streams_have_what_pytorch_has_there()
each_unit_is_gathered_and_summed_as_fully_shard_does()
divided_experts_are_a_unit_of_their_own()
gradients_wait_for_the_last_microbatch()
a_stage_keeps_its_blocks_for_a_step()
buckets_are_those_of_ddp()
zero2_has_the_buffer_of_deepspeed()
a_step_of_deepspeed_is_its_arithmetic()
adafactor_of_pytorch_holds_one_estimate()
an_optimizer_on_the_cpu_leaves_parameters_alone()
shards_in_host_memory_leave_what_is_gathered()
blocks_are_gathered_ahead()
other_verbs_take_ranks()
an_option_given_wins_over_a_rank()
a_rank_needs_others()
done()
