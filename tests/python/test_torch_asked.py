"""What a model asks of tensors that a profile does not compute: what follows from the batch is answered, a logged number is nan, and
the rest is refused with the module, the line and what to do. Exit status 77 if PyTorch is not installed."""
import functools
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
from counting import Live, of_report, step_by_hand  # noqa: E402
from refusals import refused  # noqa: E402
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

SGD = functools.partial(torch.optim.SGD, lr=0.01, foreach=False)


class Asking(nn.Module):
    """A linear layer whose result `ask` may look at, together with the rest of the batch."""

    def __init__(self, ask):
        super().__init__()
        self.fc, self.ask = nn.Linear(32, 32), ask

    def forward(self, x, *rest):
        return self.ask(self.fc(x), *rest)


def profiled(ask, *batch, make=SGD, loss=None):
    model = Asking(ask)
    return memtape.torch.profile(model, batch, make(model.parameters()), loss=loss)


def as_by_hand(what, ask, *batch, make=SGD):
    by_hand = Asking(ask)
    wanted = step_by_hand(by_hand, batch, make(by_hand.parameters()), lambda model, batch: model(*batch))
    equal(of_report(profiled(ask, *batch, make=make)), wanted, what)


X = torch.randn(16, 32)


def a_logged_number_is_nan():
    said = []

    class Log:
        __slots__ = ()

        def __call__(self, text):
            said.append(text)
    log = Log()

    def ask(y):
        loss = y.square().mean()
        number = loss.item()
        log(f"{number:.3f} {2 * number + 1} {round(number, 2)} {-number / 3}")
        return loss
    as_by_hand("a loss that is logged", ask, X)
    equal(said[-1], "nan nan nan nan", "on meta")
    for what, decide in (("<", lambda n: n < 1), ("==", lambda n: n == 0), ("if", bool), ("int", int), ("max", lambda n: max(n, 1.0))):
        def deciding(y, decide=decide):
            loss = y.mean()
            decide(loss.item())
            return loss
        refused(f"a decision by it: {what}", "a decision by a number that is not known at " + __file__, lambda: profiled(deciding, X))
    refused("a branch by a tensor", "Asking asks for a value that is not computed on meta, at " + __file__,
            lambda: profiled(lambda y: y.sum() if y.sum() > 0 else y.mean(), X))
    refused("float()", "taken by .item()", lambda: profiled(lambda y: y.sum() * float(y.sum()), X))


def what_follows_from_the_batch_is_answered():
    lengths = torch.tensor([3, 7])
    as_by_hand("item", lambda y, n: y[:, :n.max().item()].sum(), X, lengths)
    as_by_hand("numpy, tolist and cpu", lambda y, n: y[:n.tolist()[0], :int(n.numpy()[1])].sum() + y[:n.cpu().max()].sum(), X, lengths)
    seen = profiled(lambda y, n: y[:int(torch.clamp(torch.as_tensor([float(len(n))], device=y.device), min=1).item())].exp().sum(), X, lengths)
    equal(seen.tensors()[-1]["shape"], [2, 32], "a small number of floats")
    as_by_hand("isinf and isnan", lambda y: torch.clamp(y, -9, 9).sum() if torch.isinf(y).any() or torch.isnan(y).any() else y.sum(), X)
    as_by_hand("gaussian_nll_loss looks at its variance", lambda y: F.gaussian_nll_loss(y, y, torch.ones_like(y)), X)
    as_by_hand("a distribution looks at its parameters", lambda y: torch.distributions.Normal(y, torch.ones_like(y)).rsample().sum(), X)

    def overwritten(y, n):
        n = n.clone()
        n[0] = y.argmax()
        return y[:n.max()].sum()
    refused("what is written over is not known", "value that is not computed", lambda: profiled(overwritten, X, lengths))
    for what, ask in (("numpy", lambda y: y.sum() * float(y.detach().numpy().mean())), ("tolist", lambda y: y.sum() * y.tolist()[0][0])):
        refused(what, "asks for values for Python or NumPy at " + __file__, lambda: profiled(ask, X))
    refused("cpu", "asks for a copy in host memory", lambda: profiled(lambda y: y.sum() * y.detach().cpu().sum(), X))
    refused("a tensor of another device", "meets a cpu tensor of shape [32] at " + __file__, lambda: profiled(lambda y: (y * torch.ones(32)).sum(), X))
    refused("nonzero", "values that decide a shape, by nonzero", lambda: profiled(lambda y: y[y.nonzero()[:, 0]].sum(), X))


def optimizers_are_counted_as_they_run():
    def ask(y):
        return y.sum()
    for name in ("Adam", "AdamW", "NAdam", "RAdam", "Adamax", "Adadelta", "RMSprop"):
        as_by_hand(name, ask, X, make=functools.partial(getattr(torch.optim, name), foreach=True))
    as_by_hand("Adafactor", ask, X, make=torch.optim.Adafactor)  # it takes foreach where it is told to
    equal(of_report(profiled(ask, X, make=torch.optim.AdamW)), of_report(profiled(ask, X, make=functools.partial(torch.optim.AdamW, foreach=True))),
          "foreach is the choice on CUDA")

    class Asks(torch.optim.SGD):
        def step(self, closure):
            with torch.enable_grad():
                closure()
            return super().step()
    wanted = of_report(profiled(ask, X))
    found = of_report(profiled(ask, X, make=functools.partial(Asks, lr=0.01, foreach=False)))
    equal(found[0], wanted[0], "an optimizer that needs a closure: saved")
    check(found[1][2][0] > wanted[1][2][0] and found[1][2][1] == wanted[1][2][1], f"its step runs forward and backward: {found}")


def lbfgs_is_refused_with_its_vectors():
    """Which a mode counts here, in multiples of the parameters' bytes."""
    message = "2 history_size + 5 times the bytes of the parameters, up to 4 more with line_search_fn. Within its update, 2 history_size + 9"
    refused("LBFGS", message, lambda: profiled(lambda y: y.sum(), X, make=torch.optim.LBFGS))
    for n in (3, 6):
        for search in (None, "strong_wolfe"):
            torch.manual_seed(0)
            model, x, y = nn.Sequential(nn.Linear(32, 2048), nn.Tanh(), nn.Linear(2048, 8)), torch.randn(4, 32), torch.randn(4, 8)
            whole = 4 * sum(p.numel() for p in model.parameters())
            optimizer = torch.optim.LBFGS(model.parameters(), lr=1 if search else 0.1, history_size=n, line_search_fn=search)
            live, beside = Live(*model.parameters()), []

            def closure():
                beside.append(round(live.now / whole) - sum(1 if p.grad is None else 2 for p in model.parameters()) / 4)
                optimizer.zero_grad()
                loss = F.mse_loss(model(x), y)
                loss.backward()
                return loss

            with live:
                optimizer.step(closure)  # fills the history
                live.begin()
                optimizer.step(closure)
            most = max(beside)
            check(most == 2 * n + 5 if search is None else 2 * n + 5 <= most <= 2 * n + 9, f"vectors beside forward and backward, {n}, {search}: {most}")
            if search is None:
                equal(round(live.peak / whole), 2 * n + 9, f"what is allocated within the update, history {n}")


def saved_on_the_host_takes_nothing():
    def on_host(model, batch):
        with torch.autograd.graph.save_on_cpu(pin_memory=False):
            return model(*batch)
    x, w = 4 * 16 * 32, 4 * 32 * 32

    def ask(y):
        return y.sigmoid().sum()
    plain, away = profiled(ask, X), profiled(ask, X, loss=on_host)
    ends = [report["steady"]["phases"][0]["requested"] for report in (plain, away)]
    equal(ends, [x + w + 128 + x + 4, x + w + 128 + 4], "after forward: sigmoid's result is away")
    # It is back beside its own gradient; then the layer's input is, a copy.
    equal(away["steady"]["phases"][1]["requested_peak"], max(x + w + 128 + 4 + 4 + 2 * x, x + w + 128 + 8 + x + x + w), "within backward")
    equal(torch.autograd.graph.save_on_cpu.__init__.__name__, "__init__", "put back")


def flex_attention_is_its_kernel():
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention
    b, h, s, d = 2, 4, 64, 8

    def heads(y):
        return y.view(b, s, h, d).transpose(1, 2)
    x = torch.randn(b, s, 32)
    plain = profiled(lambda y: flex_attention(heads(y), heads(y), heads(y), score_mod=lambda s, b, h, i, j: s + (i - j)).sum(), x)
    kept = [(t["name"], t["bytes"]) for t in plain.tensors() if t["op"] == "flex_attention" and t["bytes"] > 4]
    equal(kept, [("query", 4 * b * s * 32), ("out", 4 * b * s * 32), ("logsumexp", 4 * b * h * s)], "q, k and v are one storage here; so small is a mask of nothing")

    def masked(y):
        mask = create_block_mask(lambda b, h, i, j: i >= j, None, None, s, s, device=y.device)
        return flex_attention(heads(y), heads(y), heads(y), block_mask=mask).sum()
    more = profiled(masked, x)["saved"]["bytes"] - plain["saved"]["bytes"]
    check(0 < more < 200, f"a mask of one block: {more} bytes of its numbers")


def evaluation_s_fast_path_is_named():
    torch.manual_seed(0)
    encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True), 2).eval().requires_grad_(False)
    head = nn.Linear(32, 4)

    def loss(model, batch):
        with torch.no_grad():
            h = encoder(batch, src_key_padding_mask=torch.zeros(2, 16, dtype=torch.bool, device=batch.device))
        return model(h).sum()
    report = memtape.torch.profile(nn.Sequential(encoder, head), torch.randn(2, 16, 32), SGD(head.parameters()), loss=lambda model, x: loss(head, x))
    equal(report["saved"]["bytes"], 4 * 2 * 16 * 32, "the head's input alone")
    check(any("counts as its parts" in note for note in report.notes), f"named: {report.notes}")


def constants_count_as_parameters():
    class Positions(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc, self.table, self.rows, self.scale = nn.Linear(32, 32), torch.randn(16, 32), [torch.ones(32)], torch.tensor(2.0)

        def forward(self, x):
            return ((self.fc(x) + self.table) * self.rows[0] * self.scale).square().sum()
    model = Positions()
    report = memtape.torch.profile(model, X, SGD(model.parameters()))
    equal(report["phases"][0]["by_category"]["parameter"], 4 * 32 * 32 + 512 + 4 * 16 * 32 + 512, "weights, a table and a row in a list")
    check("Positions.table" not in [t["module"] for t in report.tensors()] and model.table.device.type == "cpu", "they are back")


def what_pytorch_cannot_do_on_meta_is_refused():
    def gradients(y):
        return torch.func.grad(lambda x: x.square().sum())(y).mean()
    refused("torch.func", "take it by torch.autograd.grad", lambda: profiled(gradients, X))
    words = nn.Embedding(8, 4, sparse=True)
    refused("sparse gradients", "layout torch.sparse_coo, which has no storage to count; gradients of nn.Embedding", lambda: memtape.torch.profile(
        words, torch.arange(8), torch.optim.SparseAdam(words.parameters()), loss=lambda model, i: model(i).sum()))
    library = torch.library.Library("memtape_test", "FRAGMENT")
    library.define("doubled(Tensor x) -> Tensor")
    library.impl("doubled", lambda x: 2 * x, "CPU")
    refused("an operation of one's own", "asks for doubled.default, for which this PyTorch has no code on meta, at " + __file__,
            lambda: profiled(lambda y: y.sum() + torch.ops.memtape_test.doubled(y.detach()).sum(), X))


def lengths_in_tensors_are_lists():
    """As CUDA's ctc_loss makes them."""
    x, targets, lengths = torch.randn(24, 32), torch.randint(1, 32, (2, 3)), torch.tensor([12, 10])

    def loss_of(y, targets, lengths, of_targets):
        return F.ctc_loss(F.log_softmax(y.view(12, 2, 32), 2), targets, lengths, of_targets)
    in_lists = profiled(lambda y, t, *_: loss_of(y, t, (12, 10), (3, 2)), x, targets, lengths, torch.tensor([3, 2]))
    in_tensors = profiled(loss_of, x, targets, lengths, torch.tensor([3, 2]))
    equal(*([peak for peak, _ in of_report(report)[1]] for report in (in_tensors, in_lists)), "the peaks of forward, backward and step")
    refused("lengths that are not known", "values for Python", lambda: profiled(
        lambda y, t, n, m: loss_of(y, t, n, y[0, :2].long()), x, targets, lengths, torch.tensor([3, 2])))


def weights_are_quantised_in_training():
    as_by_hand("fake_quantize", lambda y: torch.fake_quantize_per_tensor_affine(y, 0.1, 0, -128, 127).square().mean(), X)


def a_mapping_is_passed_by_keywords():
    model = Asking(lambda y: y.exp())
    equal(memtape.torch.profile(model, {"x": X}).tensors(), memtape.torch.profile(model, X).tensors(), "without an optimizer, too")


for test in [a_logged_number_is_nan, what_follows_from_the_batch_is_answered, optimizers_are_counted_as_they_run, lbfgs_is_refused_with_its_vectors,
             saved_on_the_host_takes_nothing, flex_attention_is_its_kernel, evaluation_s_fast_path_is_named,
             constants_count_as_parameters, what_pytorch_cannot_do_on_meta_is_refused, lengths_in_tensors_are_lists,
             weights_are_quantised_in_training, a_mapping_is_passed_by_keywords]:
    test()
done()
