"""memtape.torch beside the program, on models that both run: the same storages, but for the differences that
docs/parity.md and docs/parity-transformers.md name. Exit status 77 if PyTorch or Transformers is not installed."""
import os
import sys
from collections import Counter
from pathlib import Path

try:
    import torch
    import transformers  # noqa: F401
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)
TESTS = Path(__file__).parent.parent
sys.path += [str(TESTS / "parity"), str(TESTS / "cli")]  # both have a published.py
import memtape.torch  # noqa: E402  (before tests/parity/memtape.py can be)
from lib import check, done, equal, profile  # noqa: E402
from torch import nn  # noqa: E402
import transformers_parity as hf  # noqa: E402

PROGRAM = os.environ["MEMTAPE"]


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
            program = profile("block", "--act", name, "-b", b, "-s", s, "-d", d, "-a", a, "--causal", "--dtype", short,
                              "--attention", "flash", "--device", "meta")
            # The generator's state, and of 2-byte floats mean and rstd of two norms in f32 (docs/parity.md).
            equal(program["saved"]["bytes"] - report["saved"]["bytes"], 16 + 2 * 2 * b * s * (4 - dtype.itemsize),
                  f"a block, {name}, {short}")


for test in [transformers_models_keep_the_same_storages, an_mlp_of_the_readme_keeps_what_the_program_says,
             a_block_differs_as_parity_says]:
    test()
done()
