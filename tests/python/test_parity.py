"""memtape.torch beside the program, on models that both run: the same storages, but for the differences that
docs/parity.md and docs/parity-transformers.md name. Exit status 77 if PyTorch or Transformers is not installed."""
import os
import sys
import tempfile
from collections import Counter
from pathlib import Path

try:
    import torch
    import transformers  # noqa: F401
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)
TESTS = Path(__file__).parent.parent
sys.path += [str(TESTS / "parity"), str(TESTS / "program" / "verbs")]  # both have a published.py
import memtape.torch  # noqa: E402  (before tests/parity/memtape.py can be)
from lib import check, done, equal, profile  # noqa: E402
from torch import nn  # noqa: E402
import transformers_parity as hf  # noqa: E402

PROGRAM = os.environ["MEMTAPE"]
LONG = "MTT_LONG" in os.environ
SIZES = {"d": 64, "layers": 2, "heads": 4, "f": 512, "v": 16}


def storages(report):
    return [hf.Storage(t["bytes"], tuple(t["shape"]), t["dtype"], t["module"], f"{t['op']} {t['name']}")
            for t in report.tensors()]


# ---- Transformers' models ----

def cases():
    for family in ("gpt2", "llama", "bert"):
        for attention in ("sdpa", "eager"):
            for dtype in hf.DTYPES:
                yield hf.Case(family, attention, dtype)
            yield hf.Case(family, attention, "f32", checkpoint=True)
            yield hf.Case(family, attention, "f32", 3, 17, hf.ODD)
    yield hf.Case("llama", "sdpa", "f32", amp=True)


def counted(case, model):
    ids, labels = hf.draw_tokens(case)
    cache = {"use_cache": False} if case.causal else {}
    autocast = torch.autocast("cpu", dtype=torch.bfloat16, enabled=case.amp)
    with memtape.torch.Ledger(model, "device") as ledger, autocast:
        loss = model(input_ids=ids, labels=labels, **cache).loss
    return ledger.report(loss)


def transformers_models_keep_the_same_storages():
    for case in cases():
        model = hf.their_model(case)
        report = counted(case, model)
        other, _ = hf.their_run(case, model)
        equal(Counter(s.n_bytes for s in storages(report)), Counter(s.n_bytes for s in other),
              f"{case.name}: storages, beside the comparison's own count")
        program = hf.our_profile(PROGRAM, case, model, "--recipe", "hf")
        faults = list(hf.bytes_faults(case, hf.our_storages(program), storages(report)))
        equal(faults, [], f"{case.name}: beside the program")
        check(list(hf.bytes_faults(case, hf.our_storages(program), storages(report)[1:])), f"{case.name}: one less is noticed")
        equal(report["params"]["count"], program["params"]["count"], f"{case.name}: parameters")
        unknown = [s for t in report.tensors() for s in (t, *t["also"]) if "unknown" in (s["op"], s["name"])]
        equal(unknown, [], f"{case.name}: every saver is known")
        prefix = type(model).__name__
        check(all(t["module"].startswith(prefix) for t in report.tensors()), f"{case.name}: modules")


# ---- their training step ----

def step_cases():
    """With heads and widths at which CUDA's attention is a fused one, as the program's is; the MLP is wide, so that the peak of
    backward is there in both."""
    for family in ("gpt2", "llama"):
        for dtype in ("f32", "bf16"):
            for kv in (4, 2) if family == "llama" and dtype == "bf16" else (4,):
                for attention, checkpoint in (("sdpa", False), ("sdpa", True), ("eager", False)):
                    if not LONG and (attention == "eager" or checkpoint and (family, dtype, kv) != ("llama", "bf16", 2)):
                        continue
                    yield hf.Case(family, attention, dtype, sizes={**SIZES, "kv": kv}, checkpoint=checkpoint)


def rounded(*sizes):
    return sum(-(-n // 512) * 512 for n in sizes)


def steps_take_what_the_program_says():
    for case in step_cases():
        model = hf.their_model(case)
        # The program's momenta are f32.
        for make, name in ((torch.optim.AdamW, "adamw-16bit"), (lambda p: torch.optim.SGD(p, momentum=0.9), "sgd-momentum")):
            if name == "adamw-16bit" or case.dtype == "f32":
                program = hf.our_profile(PROGRAM, case, model, "--recipe", "hf", "--optimizer", name)
                compare_steps(f"{case.name} kv={case.sizes['kv']} {name}", case, model, step(case, model, make), program)


def step(case, model, make):
    ids, labels = hf.draw_tokens(case)
    return memtape.torch.profile(model, {"input_ids": ids, "labels": labels, "use_cache": False}, make(model.parameters()))


def compare_steps(what, case, model, report, program):
    """Each difference by its cause; all others are 0."""
    e, layers = hf.DTYPES[case.dtype].itemsize, case.sizes["layers"]
    flash = case.attention == "sdpa" and case.dtype == "bf16"
    positions = [8 * case.s]
    ignored = case.b * case.s  # bytes that say which labels count: the program's loss has them, and a copy of the labels
    root = [4]  # the loss's gradient, which backward() holds to its end
    looked_up = positions * (case.family == "gpt2")
    # Of flash attention the generator's state is 16 bytes and 8 unused ones; in the program two of 8, in as many blocks.
    unused = 8 * flash * (1 if case.checkpoint else layers)
    buffers = [b.untyped_storage().nbytes() for b in model.buffers()]  # frequencies of the positions
    arguments = positions * (case.checkpoint and case.family == "llama")  # that each layer's checkpoint holds
    tables = 2 * [case.s * 16 * e] * bool(arguments)

    equal(report["model"]["attention"], None if case.attention == "eager" else "flash" if flash else "efficient", f"{what}: attention")
    equal(report["params"], program["params"], f"{what}: parameters")
    equal(report["saved"]["bytes"] - program["saved"]["bytes"], sum(looked_up) - ignored + unused * (not case.checkpoint),
          f"{what}: saved bytes")
    pairs = list(zip(program["steady"]["phases"], report["steady"]["phases"]))
    at_the_end = [(looked_up + buffers + arguments + tables, unused * (not case.checkpoint), ignored), (buffers, 0, 0), (buffers, 0, 0)]
    for (p, q), (more, parts, less) in zip(pairs, at_the_end):
        name = p["name"]
        equal(q["requested"] - p["requested"], sum(more) + parts - less, f"{what}: requested bytes after {name}")
        equal(q["allocated"] - p["allocated"], rounded(*more) - rounded(less), f"{what}: allocated bytes after {name}")
        equal(q["by_category"]["parameter"] - p["by_category"]["parameter"], rounded(*buffers), f"{what}: parameters after {name}")
        for category in ("gradient", "optimizer", "input"):
            equal(q["by_category"][category], p["by_category"][category], f"{what}: {category} after {name}")
    # In the middle of backward the labels are gone, and the layer at hand has tables of its own.
    p, q = pairs[1]
    more = root + looked_up + buffers + arguments
    equal(q["requested_peak"] - p["requested_peak"], sum(more) + unused, f"{what}: peak, requested")
    equal(q["peak"] - p["peak"], rounded(*more), f"{what}: peak of backward")
    equal(report["steady"]["peak"] - program["steady"]["peak"], rounded(*more), f"{what}: peak of the step")
    # PyTorch's AdamW makes the denominators of all parameters at once.
    p, q = pairs[2]
    equal(q["requested_peak"] - p["requested_peak"],
          sum(buffers) + ("AdamW" in report["model"]["optimizer"]) * report["params"]["bytes"], f"{what}: peak of the optimizer")


def a_large_vocabulary_has_its_peak_at_the_loss():
    """Gradients of the log-probabilities and of the logits are there at once, here and there."""
    case = hf.Case("gpt2", "sdpa", "bf16")
    model = hf.their_model(case)
    report = step(case, model, torch.optim.SGD)
    program = hf.our_profile(PROGRAM, case, model, "--recipe", "hf", "--optimizer", "sgd")
    equal(report["steady"]["peak"] - program["steady"]["peak"], rounded(4, 8 * case.s), "the loss's gradient and gpt2's positions more")
    forward, backward, _ = report["steady"]["phases"]
    tokens = case.b * case.s
    equal(report["peak"]["op"], "log_softmax_backward_data", "where the peak is")
    equal(backward["peak"], forward["allocated"] + rounded(4, *2 * [4 * tokens * case.sizes["v"]]) - rounded(4, 8 * tokens),
          "two of them and the loss's gradient more, labels and class weights less")


# ---- plain modules ----

def mlp(act, d, dtype):
    return nn.Sequential(nn.Linear(d, 4 * d), act(), nn.Linear(4 * d, d)).to(dtype)


def an_mlp_of_the_readme_keeps_what_the_program_says():
    for name, act, wanted in (("relu", nn.ReLU, 83886080), ("gelu", nn.GELU, 150994944)):
        with torch.device("meta"):
            report = memtape.torch.profile(mlp(act, 1024, torch.bfloat16),
                                           torch.empty(2, 4096, 1024, dtype=torch.bfloat16, requires_grad=True))
        program = profile("mlp", "--act", name, "-b", 2, "-s", 4096, "-d", 1024, "--dtype", "bf16", "--device", "meta")
        equal(report["saved"]["bytes"], wanted, f"{name} in PyTorch")
        equal(program["saved"]["bytes"], wanted, f"{name} in memtape")
        for key in ("bytes", "dtype", "role", "rounded"):
            equal([t[key] for t in report.tensors()], [t[key] for t in program["saved"]["tensors"]], f"{name}: {key}")


class Block(nn.Module):
    """memtape's pre-norm block with fused attention."""

    def __init__(self, d, heads, act):
        super().__init__()
        self.heads = heads
        self.ln_1, self.ln_2, self.act = nn.LayerNorm(d), nn.LayerNorm(d), act()
        self.qkv, self.proj = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.fc, self.down = nn.Linear(d, 4 * d), nn.Linear(4 * d, d)

    def forward(self, x):
        q, k, v = (t.unflatten(2, (self.heads, -1)).transpose(1, 2) for t in self.qkv(self.ln_1(x)).chunk(3, 2))
        y = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        h = x + self.proj(y.transpose(1, 2).flatten(2))
        return h + self.down(self.act(self.fc(self.ln_2(h))))


def a_block_differs_as_parity_says():
    b, s, d, a = 2, 64, 32, 2
    for name, act in (("relu", nn.ReLU), ("gelu", nn.GELU)):
        for short, dtype in hf.DTYPES.items():
            x = torch.randn(b, s, d, dtype=dtype, requires_grad=True)
            report = memtape.torch.profile(Block(d, a, act).to(dtype), x, attention="device")
            program = profile("block:causal", "--act", name, "-b", b, "-s", s, "-d", d, "-a", a, "--dtype", short,
                              "--attention", "flash", "--device", "meta")
            # The generator's state, and of 2-byte floats mean and rstd of two norms in f32 (docs/parity.md).
            equal(program["saved"]["bytes"] - report["saved"]["bytes"], 16 + 2 * 2 * b * s * (4 - dtype.itemsize),
                  f"a block, {name}, {short}")


def of_streams(report):
    """What the steady step requests on each stream but the default one, in order."""
    found = {}
    for event in report["timeline"][report["steady"]["event"]:]:
        if event["kind"] == "alloc" and event.get("stream"):
            found.setdefault(event["stream"], []).append(event["bytes"])
    return found


def shards_are_gathered_and_summed_as_a_rank_of_ours_does():
    """LLaMA under fully_shard with a MixedPrecisionPolicy beside --recipe fsdp2: each buffer of each stream, in order."""
    from shards import ADAMW, ids, of_ranks, sharded
    from torch.distributed.fsdp import MixedPrecisionPolicy
    config = transformers.LlamaConfig(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=48, vocab_size=64,
                                      num_key_value_heads=2, max_position_embeddings=64, use_cache=False)
    with tempfile.TemporaryDirectory() as folder:
        config.save_pretrained(folder)
        for ranks in (2, 8):
            with of_ranks(ranks) as mesh:
                model = sharded(mesh, lambda: transformers.LlamaForCausalLM(config), lambda model: model.model.layers,
                                mp_policy=MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32))
                report = memtape.torch.profile(model, ids(), ADAMW(model.parameters()), timeline=True,
                                               loss=lambda model, ids: model(input_ids=ids, labels=ids).loss)
            ours = profile(Path(folder) / "config.json", "-b", 2, "-s", 16, "--recipe", "hf+fsdp2", "--dp", ranks, "--device", "meta", "--timeline")
            equal(of_streams(report), of_streams(ours), f"{ranks} ranks")
            equal(sorted(of_streams(report)), ["all_gather_copy_in", "reduce_scatter"], "both streams")
            equal([(s["name"], s["reserved"]) for s in report["steady"]["streams"]], [(s["name"], s["reserved"]) for s in ours["steady"]["streams"]],
                  f"reserved by stream, {ranks} ranks")


for test in [transformers_models_keep_the_same_storages, steps_take_what_the_program_says,
             a_large_vocabulary_has_its_peak_at_the_loss, an_mlp_of_the_readme_keeps_what_the_program_says,
             a_block_differs_as_parity_says, shards_are_gathered_and_summed_as_a_rank_of_ours_does]:
    test()
done()
