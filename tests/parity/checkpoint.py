#!/usr/bin/env python3
"""checkpoint.py LIBMEMTAPE_CASES: checkpointed blocks against torch.utils.checkpoint (use_reentrant=False).

The same block with checkpoints in the same places keeps the same bytes after forward: the checkpoint's inputs
and tensors saved outside of it, which PyTorch's hooks see, and what a selective policy caches. Values and
gradients are compared, too. Exit status 77 if PyTorch is not installed."""

import ctypes
import sys
import weakref

try:
    import numpy  # noqa: F401
    import torch
    import torch.nn.functional as F
    from torch.utils.checkpoint import (CheckpointPolicy, checkpoint,
                                        create_selective_checkpoint_contexts)
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

import memtape
from differences import total
from harness import MODEL_TOLERANCE, SavedTensors, Tally, address, far, weights_like
from models import give_weights

B, S, H, A = 2, 7, 12, 3
MUST_SAVE = 3  # mt_policy
aten = torch.ops.aten
PRODUCTS = (aten.mm.default, aten.addmm.default, aten.bmm.default)
FLASH = (aten._scaled_dot_product_flash_attention_for_cpu.default,)

# (note, preset, ops that memtape's policy keeps, ops that PyTorch's keeps)
WAYS = [
    ("full", "full", (), ()),
    ("attention alone", "selective", (), ()),
    ("products kept", "full", ("linear", "matmul"), PRODUCTS),
    ("fused attention kept", "full", ("flash_attention",), FLASH),
    ("products and fused attention kept", "full", ("linear", "matmul", "flash_attention"),
     PRODUCTS + FLASH),
    ("fused attention and every second product kept", "ops", ("flash_attention",), (aten.addmm.default,) + FLASH),
]


BEFORE_PROJECTION = ("ln_1.", "attn.qkv.")  # frozen, no gradient reaches attention's checkpoint


# ---- PyTorch ----

class Box:
    """What autograd keeps instead of a saved tensor, for as long as it keeps it."""

    def __init__(self, tensor):
        self.tensor = tensor


class HeldTensors(SavedTensors):
    """What is still held of all that was saved: a checkpoint lets go what nothing in it needs."""

    def __init__(self, ignore):
        self.boxes = weakref.WeakSet()
        super().__init__(ignore)
        torch.autograd.graph.saved_tensors_hooks.__init__(self, self._box, lambda box: box.tensor)

    def _box(self, t):
        box = Box(super()._pack(t))
        self.boxes.add(box)
        return box

    @property
    def held(self):
        addresses = {address(box.tensor) for box in self.boxes}
        return {k: t.untyped_storage().nbytes() for k, t in self.kept.items() if k in addresses}


class Theirs:
    def __init__(self, parameters, form, preset, kept):
        self.p, self.form, self.preset, self.kept, self.caches = parameters, form, preset, kept, []

    def contexts(self):
        products = {False: 0, True: 0}

        def policy(context, op, *args, **kwargs):
            second = False
            if self.preset == "ops" and op not in FLASH:
                products[context.is_recompute] += op in self.kept
                second = products[context.is_recompute] % 2 == 0
            return (CheckpointPolicy.MUST_SAVE if op in self.kept and not second
                    else CheckpointPolicy.PREFER_RECOMPUTE)
        caching, cached = create_selective_checkpoint_contexts(policy)
        self.caches.append(caching.storage)
        return caching, cached

    def checkpointed(self, fn, x):
        extra = {"context_fn": self.contexts} if self.kept else {}
        return checkpoint(fn, x, use_reentrant=False, **extra)

    def linear(self, path, x):
        return F.linear(x, self.p[path + ".weight"], self.p[path + ".bias"])

    def norm(self, path, x):
        return F.layer_norm(x, (H,), self.p[path + ".weight"], self.p[path + ".bias"])

    def heads(self, qkv):
        q, k, v = (t.view(B, S, A, H // A).transpose(1, 2) for t in qkv.split(H, 2))
        if self.form == "flash":
            y = F.scaled_dot_product_attention(q, k, v)
        else:
            y = torch.softmax(q @ k.transpose(-2, -1) * (H // A) ** -0.5, -1) @ v
        return y.transpose(1, 2).reshape(B, S, H)

    def attention(self, x):
        qkv = self.linear("attn.qkv", x)
        y = self.checkpointed(self.heads, qkv) if self.preset == "selective" else self.heads(qkv)
        return self.linear("attn.proj", y)

    def block(self, x):
        h = x + self.attention(self.norm("ln_1", x))
        return h + self.linear("mlp.proj", F.gelu(self.linear("mlp.fc", self.norm("ln_2", h))))

    def run(self, x):
        """(result, bytes held after forward), after the backward."""
        with HeldTensors(self.p.values()) as saved:
            y = self.checkpointed(self.block, x) if self.preset != "selective" else self.block(x)
        held = saved.held
        for cache in self.caches:
            leaves = torch.utils._pytree.tree_leaves(list(cache.values()))
            for leaf in leaves:
                t = getattr(leaf, "val", leaf)
                if isinstance(t, torch.Tensor):
                    held[t.untyped_storage().data_ptr()] = t.untyped_storage().nbytes()
        y.backward(weights_like(y))
        return y.detach(), sum(held.values())


# ---- memtape ----

class OpCall(ctypes.Structure):
    _fields_ = [("op", ctypes.c_char_p)]  # the other fields are not needed here


PolicyFn = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.POINTER(OpCall))


class Options(ctypes.Structure):
    _fields_ = [("label", ctypes.c_char_p), ("policy", PolicyFn), ("policy_user", ctypes.c_void_p),
                ("away", ctypes.c_void_p), ("away_user", ctypes.c_void_p),
                ("check", ctypes.c_bool), ("no_early_stop", ctypes.c_bool),
                ("rng_as_it_is", ctypes.c_bool), ("report", ctypes.c_void_p)]


def our_run(library, model, preset, kept, x):
    names = [name.encode() for name in kept]
    policy = PolicyFn(lambda user, call: MUST_SAVE if call.contents.op in names else 0)
    options = Options(check=True)
    if kept and preset != "ops":
        options.policy = policy
    set_checkpoint = library.dll.mt_model_checkpoint_with
    set_checkpoint.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.POINTER(Options)]
    library.check(set_checkpoint(model.pointer, preset.encode(), ctypes.byref(options)))
    with memtape.Ledger(library) as ledger:
        y = model(x)
    value = y.torch()
    y.backward(library.tensor(weights_like(value)))
    return value, ledger.bytes


# ---- the comparison ----

def applied_differences(form, preset, kept, frozen):
    """The rows of differences.py that apply to this block."""
    norms = [("norm statistics", {"r": B * S})] * (1 if frozen else 2) if preset == "selective" else []
    flash = [("flash generator", {})] if "flash_attention" in kept else []
    return norms + (flash if form == "flash" else [])


def faults(library, form, dtype, preset, ours_kept, theirs_kept, frozen=()):
    name = {torch.float64: "f64", torch.float32: "f32", torch.bfloat16: "bf16"}[dtype]
    model = memtape.Model(library, kind="block", hidden=H, heads=A, act="gelu", attention=form,
                          dtype=name)
    parameters = give_weights(library, model, dtype)
    x = torch.randn(B, S, H, generator=torch.Generator().manual_seed(31), dtype=torch.float64)
    x = x.to(dtype).requires_grad_(not frozen)
    our_x = library.tensor(x)
    if not frozen:
        our_x.requires_grad_()
    for n, p in parameters.items():
        p.requires_grad_(not n.startswith(frozen))
        library.check(library.mt_set_requires_grad(model.parameters[n].pointer, p.requires_grad))
    ours, n_ours = our_run(library, model, preset, ours_kept, our_x)
    theirs, n_theirs = Theirs(parameters, form, preset, theirs_kept).run(x)
    expected = n_theirs + total(applied_differences(form, preset, ours_kept, frozen), dtype.itemsize)
    if n_ours != expected:
        yield f"kept bytes: {n_ours}, not {expected} (PyTorch {n_theirs})"
    if dtype.itemsize == 2:
        return  # models.py compares values in 16 bits
    pairs = [("values", ours, theirs)]
    if not frozen:
        pairs.append(("gradient of x", our_x.grad.torch(), x.grad))
    pairs += [(f"gradient of {n}", model.parameters[n].grad.torch(), p.grad)
              for n, p in parameters.items() if p.requires_grad]
    for what, a, b in pairs:
        fault = far(a, b, MODEL_TOLERANCE[dtype])
        if fault:
            yield f"{what}: {fault}"


def check(library, tally, ways, report=print):
    for note, preset, ours_kept, theirs_kept in ways:
        for form in ("math", "flash"):
            for dtype in (torch.float64, torch.float32, torch.bfloat16):
                if form == "math" and "fused" in note:
                    continue
                for frozen in ((), BEFORE_PROJECTION)[:1 + (preset == "selective")]:
                    told = list(faults(library, form, dtype, preset, ours_kept, theirs_kept, frozen))
                    for fault in told:
                        report(f"FAILED: {note}, {form}, {dtype}, frozen {frozen}: {fault}")
                    tally.failed += bool(told)
                    tally.passed += not told


def check_planted_faults(library, tally):
    """A product that only one side keeps must be found."""
    told, inner = [], Tally()
    check(library, inner, [("planted", "full", ("linear",), ())], told.append)
    check(library, inner, [("planted", "full", (), PRODUCTS)], told.append)
    if inner.failed and not inner.passed and all("kept bytes" in line for line in told):
        tally.passed += 1
    else:
        print("FAILED: a planted result that only one side keeps was not found")
        tally.failed += 1


def main(path):
    torch.set_num_threads(1)
    library = memtape.Library(path)
    library.check(library.mt_set_balance_check(library.device, True))
    tally = Tally()
    check(library, tally, WAYS)
    check_planted_faults(library, tally)
    library.mt_device_release(library.device)
    print(tally.line())
    return 1 if tally.failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
