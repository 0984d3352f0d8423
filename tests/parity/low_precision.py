#!/usr/bin/env python3
"""low_precision.py LIBMEMTAPE_CASES: linears of 8 and 4 bits beside the same products made of PyTorch's own casts to
float8_e4m3fn and float8_e5m2 (4 bits: of the nearest value, the even one in a tie), with the scales of torchao and
Transformer Engine; and, of tensorwise float8, beside torch._scaled_mm. Values, both gradients, and the bytes that are
kept. Exit status 77 without PyTorch."""
import sys

try:
    import torch
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

import memtape

E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
VALUES = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])
HISTORY = 1024


def fp4(x):
    """The nearest of VALUES; in a tie the one whose code is even."""
    size = x.abs().clamp(max=6)
    away = (size.unsqueeze(-1) - VALUES).abs()
    low = away.min(-1)[0].unsqueeze(-1) == away
    code = torch.where(low, torch.arange(8), 99)
    first = code.min(-1)[0]
    last = torch.where(low, torch.arange(8), -1).max(-1)[0]
    return VALUES[torch.where(first % 2 == 0, first, last)] * torch.where(x < 0, -1, 1)


def power(x, up):
    """The power of two at or below x, or at or above it."""
    mantissa, exponent = torch.frexp(x)  # x = mantissa 2^exponent, 1/2 <= mantissa < 1
    return torch.ldexp(torch.ones_like(x), exponent - (1 if not up else 0) - (up * (mantissa == 0.5)).int())


class Tensorwise:
    def __init__(self, delayed=False, both=False, keeps=False):
        self.delayed, self.both, self.keeps = delayed, both, keeps
        self.past = {}

    def times(self, which, x, most):
        largest = x.abs().max()
        if not self.delayed:
            return most / largest
        before = self.past.get(which)
        self.past[which] = max(largest, before if before is not None else torch.tensor(0.0))
        return torch.tensor(1.0) if before is None else most / before

    def through(self, which, x, across):
        dtype = E5M2 if which == "dy" else E4M3
        most = torch.finfo(dtype).max
        times = self.now[which] if which in self.now else self.times(which, x, most)
        self.now[which] = times
        return (x * times).clamp(-most, most).to(dtype).float() * (1 / times)

    def kept(self, n, weight):
        return n + 4


class Blocks:
    def __init__(self, block, scales, both, keeps=True, square=False):
        self.block, self.scales, self.both, self.keeps, self.square = block, scales, both, keeps, square

    def through(self, which, x, across):
        x = x.t() if across else x
        rows = self.block if self.square and which == "w" else 1
        v = x.reshape(x.shape[0] // rows, rows, x.shape[1] // self.block, self.block)
        largest = v.abs().amax((1, 3), keepdim=True)
        if self.scales == "two":
            tensors = x.abs().max() * torch.tensor(1 / (448 * 6))
            scale = (largest * torch.tensor(1 / 6) / tensors).to(E4M3).float() * tensors
            y = fp4((v / scale.clamp(min=2.0 ** -126)).clamp(-6, 6)) * scale
        else:
            scale = power(largest, False) / 256 if self.scales == "floor" else power(largest * torch.tensor(1 / 448), True)
            y = (v / scale).clamp(-448, 448).to(E4M3).float() * scale
        y = y.reshape(x.shape)
        return y.t() if across else y

    def kept(self, n, weight):
        each = 4 if self.scales == "f32" else 1
        blocks = n // self.block // (self.block if self.square and weight else 1)
        return n // 2 + n // 16 + 4 if self.scales == "two" else n + each * blocks


FORMS = {
    "torchao-float8": Tensorwise(), "torchao-mxfp8": Blocks(32, "floor", False, keeps=False),
    "torchao-nvfp4": Blocks(16, "two", False),
    "te-delayed": Tensorwise(delayed=True, both=True, keeps=True), "te-current": Tensorwise(both=True, keeps=True),
    "te-mxfp8": Blocks(32, "ceil", True), "te-blockwise": Blocks(128, "f32", True, square=True),
    "te-nvfp4": Blocks(16, "two", True)}
M, K, N = 256, 384, 128
faults = 0


def close(what, ours, theirs, tolerance):
    global faults
    away = ((ours.float() - theirs.float()).abs().max() / theirs.float().abs().max()).item()
    if not away <= tolerance:
        print(f"{what}: {away:.3g} away, of {tolerance:.3g}")
        faults += 1


def equal(what, got, wanted):
    global faults
    if got != wanted:
        print(f"{what}: got {got}, wanted {wanted}")
        faults += 1


def compare(library, name, dtype, tolerance):
    form = FORMS[name]
    form.past = {}
    model = memtape.Model(library, kind="linear", hidden=K, ffn=N, dtype=str(dtype).split(".")[1].replace("float32", "f32")
                          .replace("bfloat16", "bf16"), linear=name)
    own = {path.split(".")[-1]: t for path, t in model.parameters.items()}
    for step in range(3):
        # Sizes from 2^-12 to 2^6, so that blocks have other scales than their neighbours.
        sizes = 2.0 ** torch.randint(-12, 6, (M // 16, 1, K)).expand(-1, 16, -1).reshape(M, K)
        x = (torch.randn(M, K) * sizes * (1 + step)).to(dtype)
        dy = (torch.randn(M, N) * 1e-3).to(dtype)
        w, b = own["weight"].torch().float(), own["bias"].torch().float()
        a = library.tensor(x).requires_grad_()
        with memtape.Ledger(library) as ledger:
            y = model(a)
        kept = M * K * x.element_size()
        if form.keeps:
            kept = form.kept(M * K, False) + (1 + form.both) * form.kept(N * K, True)
        equal(f"{name} {dtype}: bytes kept", ledger.bytes, kept)
        form.now = {}
        at = f"{name} {dtype}, step {step}: "
        wide = x.float()
        forward = form.through("x", wide, False).to(dtype).float() @ form.through("w", w, False).to(dtype).float().t() + b
        close(at + "y", y.torch(), forward, tolerance)
        y.backward(library.tensor(dy))
        low = form.through("dy", dy.float(), False).to(dtype).float()
        close(at + "dx", a.grad.torch(), low @ form.through("w", w, True).to(dtype).float(), tolerance)
        close(at + "dw", own["weight"].grad.torch(), low.t() @ form.through("x", wide, True).to(dtype).float(), tolerance)
        close(at + "db", own["bias"].grad.torch(), dy.float().sum(0), tolerance)
        library.check(library.mt_module_zero_grad(model.pointer))
    return model


def scaled_mm(library):
    """PyTorch's own product of float8, which sums in f32 and scales once."""
    model = memtape.Model(library, kind="linear", hidden=K, ffn=N, dtype="f32", linear="torchao-float8", no_bias=True)
    w, x = model.parameters["weight" if "weight" in model.parameters else "linear.weight"].torch(), torch.randn(M, K)
    codes = []
    for t in (x, w):
        times = 448 / t.abs().max()
        codes.append(((t * times).clamp(-448, 448).to(E4M3), 1 / times))
    (x8, x_scale), (w8, w_scale) = codes
    try:
        theirs = torch._scaled_mm(x8, w8.t(), scale_a=x_scale, scale_b=w_scale, out_dtype=torch.float32)
    except (RuntimeError, NotImplementedError) as error:
        print(f"torch._scaled_mm is not there: {str(error).splitlines()[0]}")
        return
    close("torch._scaled_mm", model(library.tensor(x)).torch(), theirs, 1e-6)


library = memtape.Library(sys.argv[1])
torch.manual_seed(5)
for name in FORMS:
    compare(library, name, torch.float32, 2e-6)
    compare(library, name, torch.bfloat16, 2 ** -8)
scaled_mm(library)
print(f"{len(FORMS)} forms compared over 3 steps in f32 and bf16, {faults} differences")
sys.exit(faults > 0)
