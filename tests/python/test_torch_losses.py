"""Every loss and reduction of PyTorch in memtape.torch: what a step of each takes, beside a count by hand, and its forward beside the
record of PyTorch's own allocator. Exit status 77 if PyTorch is not installed."""
import sys
from pathlib import Path
sys.path.append(str(Path(__file__).parent.parent / "program" / "verbs"))
from lib import check, done, equal  # noqa: E402

try:
    import torch
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)
import memtape.torch  # noqa: E402
from counting import Allocator, of_report, step_by_hand  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

N, C = 24, 16
WHOLE, ROW = 4 * N * C, 4 * N  # bytes


def classes():
    return torch.randint(C, (N,))


def drawn():
    return torch.randn(N, C)


def signs(*shape):
    return torch.randint(0, 2, shape).float() * 2 - 1


def several():
    """Classes of each row, up to a -1."""
    return torch.cat((torch.randint(C, (N, C - 1)), -torch.ones(N, 1, dtype=torch.long)), 1)


# ---- the losses: (function of the model's output and a target, the target) ----

LOSSES = {
    "l1_loss": (F.l1_loss, drawn), "mse_loss": (F.mse_loss, drawn), "smooth_l1_loss": (F.smooth_l1_loss, drawn),
    "smooth_l1_loss beta 0": (lambda y, t: F.smooth_l1_loss(y, t, beta=0.0), drawn),
    "mse_loss weighted": (lambda y, t: F.mse_loss(y, t, weight=torch.ones_like(y)), drawn), "huber_loss": (F.huber_loss, drawn),
    "cross_entropy": (F.cross_entropy, classes), "cross_entropy of probabilities": (F.cross_entropy, lambda: drawn().softmax(1)),
    "cross_entropy smoothed": (lambda y, t: F.cross_entropy(y, t, label_smoothing=0.1), classes),
    "cross_entropy 2d": (lambda y, t: F.cross_entropy(y.view(2, 3, 4, C), t), lambda: torch.randint(3, (2, 4, C))),
    "nll_loss": (lambda y, t: F.nll_loss(F.log_softmax(y, 1), t), classes), "poisson_nll_loss": (F.poisson_nll_loss, lambda: drawn().abs()),
    "poisson_nll_loss full": (lambda y, t: F.poisson_nll_loss(y, t, full=True), lambda: drawn().abs()),
    "gaussian_nll_loss": (lambda y, t: F.gaussian_nll_loss(y, t, y.exp()), drawn),
    "kl_div": (lambda y, t: F.kl_div(F.log_softmax(y, 1), t, reduction="batchmean"), lambda: drawn().softmax(1)),
    "kl_div of logarithms": (lambda y, t: F.kl_div(F.log_softmax(y, 1), t, log_target=True, reduction="sum"), lambda: drawn().log_softmax(1)),
    "binary_cross_entropy": (lambda y, t: F.binary_cross_entropy(y.sigmoid(), t), lambda: drawn().sigmoid()),
    "binary_cross_entropy weighted": (lambda y, t: F.binary_cross_entropy(y.sigmoid(), t, weight=t), lambda: drawn().sigmoid()),
    "binary_cross_entropy_with_logits": (F.binary_cross_entropy_with_logits, lambda: drawn().sigmoid()),
    "binary_cross_entropy_with_logits weighted":
        (lambda y, t: F.binary_cross_entropy_with_logits(y, t, pos_weight=t[0]), lambda: drawn().sigmoid()),
    "hinge_embedding_loss": (F.hinge_embedding_loss, lambda: signs(N, C)), "multilabel_margin_loss": (F.multilabel_margin_loss, several),
    "multilabel_soft_margin_loss": (F.multilabel_soft_margin_loss, lambda: drawn().sigmoid().round()),
    "multi_margin_loss": (F.multi_margin_loss, classes), "multi_margin_loss p 2": (lambda y, t: F.multi_margin_loss(y, t, p=2), classes),
    "soft_margin_loss": (F.soft_margin_loss, lambda: signs(N, C)),
    "cosine_embedding_loss": (lambda y, t: F.cosine_embedding_loss(y, y.flip(0), t), lambda: signs(N)),
    "margin_ranking_loss": (lambda y, t: F.margin_ranking_loss(y, y.flip(0), t), lambda: signs(N, C)),
    "triplet_margin_loss": (lambda y, t: F.triplet_margin_loss(y, t, t.flip(0)), drawn),
    "triplet_margin_loss swapped": (lambda y, t: F.triplet_margin_loss(y, t, t.flip(0), swap=True), drawn),
    "triplet_margin_with_distance_loss": (lambda y, t: F.triplet_margin_with_distance_loss(y, t, t.flip(0)), drawn),
    "ctc_loss": (lambda y, t: F.ctc_loss(F.log_softmax(y.view(12, 2, C), 2), t, (12, 12), (3, 3)), lambda: torch.randint(1, C, (2, 3)))}
SIMPLE = (F.mse_loss, F.smooth_l1_loss, F.huber_loss, F.l1_loss, F.soft_margin_loss, F.multi_margin_loss, F.cross_entropy,
          F.binary_cross_entropy_with_logits, F.multilabel_margin_loss)
for name in list(LOSSES):
    function, target = LOSSES[name]
    if function in SIMPLE:
        LOSSES[f"{name} summed"] = (lambda y, t, f=function: f(y, t, reduction="sum"), target)
        LOSSES[f"{name} of each"] = (lambda y, t, f=function: f(y, t, reduction="none").sum(), target)
REDUCTIONS = {
    "sum": torch.sum, "mean": torch.mean, "norm": torch.norm, "norm 1": lambda y: y.norm(1), "norm of rows": lambda y: y.norm(dim=1).sum(),
    "vector_norm": torch.linalg.vector_norm, "logsumexp": lambda y: y.logsumexp(1).sum(), "logsumexp 0": lambda y: y.logsumexp(0, True).sum(),
    "var": torch.var, "std": torch.std, "var of rows": lambda y: y.var(1).sum(), "std of columns": lambda y: y.std(0).sum(), "max": torch.max,
    "max of rows": lambda y: y.max(1)[0].sum(), "amax": lambda y: y.amax(1).sum(), "min": torch.min, "median": torch.median,
    "median of rows": lambda y: y.median(1)[0].sum(), "prod": torch.prod, "prod of rows": lambda y: y.prod(1).sum(), "nansum": torch.nansum,
    "nanmean": torch.nanmean, "cumsum": lambda y: y.cumsum(1).sum(), "cumprod": lambda y: y.cumprod(1).sum(),
    "logcumsumexp": lambda y: y.logcumsumexp(1).sum(), "cummax": lambda y: y.cummax(1)[0].sum(), "topk": lambda y: y.topk(3, 1)[0].sum(),
    "sort": lambda y: y.sort(1)[0].sum(), "kthvalue": lambda y: y.kthvalue(2, 1)[0].sum(), "mode": lambda y: y.mode(1)[0].sum(),
    "dist": lambda y: torch.dist(y, y.flip(0)), "cdist": lambda y: torch.cdist(y, y).sum(), "pdist": lambda y: F.pdist(y).sum(),
    "pairwise_distance": lambda y: F.pairwise_distance(y, y.flip(0)).sum(), "cosine_similarity": lambda y: F.cosine_similarity(y, y.flip(0)).sum(),
    "dot": lambda y: y.flatten() @ y.flatten(), "trace": torch.trace, "einsum": lambda y: torch.einsum("ij,ij->", y, y),
    "var_mean": lambda y: sum(torch.var_mean(y)), "aminmax": lambda y: sum(torch.aminmax(y)), "quantile": lambda y: torch.quantile(y, 0.5),
    "normalize": lambda y: F.normalize(y).sum(), "renorm": lambda y: y.renorm(2, 0, 1.0).sum(), "softmax": lambda y: y.softmax(1).sum(),
    "logdet": lambda y: (y.t() @ y + torch.eye(C, device=y.device)).logdet()}
CASES = {**LOSSES, **{name: (lambda y, t, f=f: f(y), lambda: torch.zeros(0)) for name, f in REDUCTIONS.items()}}

# The CPU's kernels minus CUDA's, in bytes, at the peak of forward. What is smaller than a row is not looked at: counts by which a
# mean divides.
CPU_TAKES = {"median": WHOLE, "nanmean": 2 * WHOLE, "kthvalue": 3 * WHOLE - 4,  # copies of the input
             "sort": 124, "renorm": 92,
             "quantile": 2 * WHOLE - N * C - 4,  # a second order of the sort, before a mask of a byte each
             "cross_entropy smoothed": 2 * ROW - 40,  # a sum of bools, as i64
             "multi_margin_loss": -ROW, "multi_margin_loss summed": -ROW, "multi_margin_loss p 2": -ROW,  # CUDA's sums of rows
             "multilabel_margin_loss": -ROW, "multilabel_margin_loss summed": -ROW,
             }


try:
    torch.aminmax(torch.ones(1, requires_grad=True))[0].backward()
except RuntimeError:  # has no derivative before 2.13
    del CASES["aminmax"]


class Holding(nn.Module):
    def __init__(self):
        super().__init__()
        self.y = nn.Parameter(drawn())


def linear():
    torch.manual_seed(1)
    return nn.Linear(8, C, bias=False)


def a_step_takes_what_is_counted_by_hand():
    for name, (function, target) in CASES.items():
        torch.manual_seed(0)
        batch = (torch.randn(N, 8), target())

        def loss(model, batch, function=function):
            return function(model(batch[0]), batch[1])
        counts = []
        for count in (step_by_hand, lambda *given: of_report(memtape.torch.profile(*given[:3], loss=given[3]))):
            model = linear()
            saved, phases = count(model, batch, torch.optim.SGD(model.parameters(), lr=0.1, foreach=False), loss)
            (_, forward), *others = phases  # the peak within forward: below
            counts.append((saved, forward, others))
        equal(counts[1], counts[0], f"{name}: saved, the end of forward, and all of backward and step")


def a_forward_takes_what_the_allocator_says():
    for name, (function, target) in CASES.items():
        torch.manual_seed(0)
        model, t = Holding(), target()
        with Allocator() as wanted:
            loss = function(model.y, t)
        del loss
        report = memtape.torch.profile(model, t, torch.optim.SGD(model.parameters(), lr=0.1), loss=lambda model, t: function(model.y, t))
        before, forward = report["phases"][0]["requested"], report["steady"]["phases"][0]
        peak = forward["requested_peak"] - before
        check(abs(wanted.peak - CPU_TAKES.get(name, 0) - peak) < ROW // 2, f"{name}: {peak} bytes at the peak of forward, the allocator says "
              f"{wanted.peak}, of which the CPU alone takes {CPU_TAKES.get(name, 0)}")
        check(abs(wanted.left - forward["requested"] + before) <= 8, f"{name}: {forward['requested'] - before} bytes left, not {wanted.left}")


for test in [a_step_takes_what_is_counted_by_hand, a_forward_takes_what_the_allocator_says]:
    test()
done()
