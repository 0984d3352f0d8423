"""What would take less memory, each measured by running the step that way: memtape.torch.advise."""

from __future__ import annotations

import collections
import contextlib
import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Callable, ContextManager, Dict, Iterator, List, Optional, Sequence, Tuple

import torch
import torch.utils.checkpoint
from torch.nn import functional as F

from memtape import _step, _text
from memtape._in_place import replaced, tensors_in
from memtape._library import MemtapeError
from memtape.report import Report

_FUSED = (torch.optim.Adam, torch.optim.AdamW, torch.optim.SGD, torch.optim.Adagrad)

CHUNKS = 8  # of a loss
_TIME = "  * arithmetic, not measured: how many more multiply-adds forward and backward have in products, convolutions and attention"


@dataclass(frozen=True)
class Advice:
    """A change, and the report of the step with it. less: bytes by which the peak falls; below 0 where it rises. more: the share by
    which the multiply-adds of forward and backward grow, 0.33 for a third; None if there are none."""

    text: str
    less: int
    report: Report
    more: Optional[float] = None


class Advices(List[Advice]):
    """Sorted by what they save, most first."""

    def __init__(self, before: Report, found: Sequence[Advice], refused: Sequence[str]) -> None:
        super().__init__(sorted(found, key=lambda one: -one.less))
        self.before, self.refused = before, list(refused)

    def __str__(self) -> str:
        peak = self.before["steady"]["peak"]
        rows = [[f"-{_text.scaled(one.less)}" if one.less > 0 else f"+{_text.scaled(-one.less)}" if one.less else "0 B",
                 f"{-100 * one.less / peak:+.1f} %", "-" if one.more is None else f"{100 * one.more:+.1f} %", one.text] for one in self]
        lines = [f"{self.before.title}: {_text.scaled(peak)} at the peak; each of these was run on meta:",
                 *(_text.columns([["bytes", "", "time*", ""], *rows], (0, 1, 2)) if rows else ["  nothing that applies"])]
        return "\n".join([*lines, *([_TIME] if rows else []), *(f"  not run: {text}" for text in self.refused)])


# ---- the changes, each for the time of a `with` ----

def _alike(model: torch.nn.Module) -> Tuple[str, List[torch.nn.Module]]:
    """(path, layers) of the list of layers of one class that has the most parameters."""
    best: Tuple[int, str, List[torch.nn.Module]] = (0, "", [])
    for path, module in model.named_modules():
        if not isinstance(module, (torch.nn.ModuleList, torch.nn.Sequential)):
            continue
        kinds = collections.Counter(type(layer) for layer in module)
        for kind, n in kinds.items():
            layers = [layer for layer in module if type(layer) is kind]
            size = sum(p.numel() for layer in layers for p in layer.parameters())
            if n > 1 and size > best[0] and any(True for _ in layers[0].children()):
                best = (size, path, layers)
    return best[1], best[2]


def _checkpointed(layer: torch.nn.Module) -> Callable[..., Any]:
    return functools.partial(torch.utils.checkpoint.checkpoint, layer.forward, use_reentrant=False)


def _in_chunks(head: torch.nn.Linear) -> Callable[..., torch.Tensor]:
    """Transformers' loss of a causal model whose head returns what it is given: logits of a part are made, used and let go at a time."""
    def of_part(hidden: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(F.linear(hidden, head.weight, head.bias).float(), labels, reduction="sum")

    def loss(logits: torch.Tensor, labels: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
        labels = F.pad(labels, (0, 1), value=-100)[..., 1:].flatten()
        parts = [torch.utils.checkpoint.checkpoint(of_part, *part, use_reentrant=False)
                 for part in zip(logits.flatten(0, -2).chunk(CHUNKS), labels.chunk(CHUNKS))]
        return torch.stack(parts).sum() / (labels != -100).sum()
    return loss


Change = Tuple[str, ContextManager[None], Dict[str, Any]]  # what it says, what is set, other arguments of the step


def _changes(model: torch.nn.Module, batch: Any, optimizers: Sequence[torch.optim.Optimizer], how: _step.How) -> Iterator[Change]:
    config = getattr(model, "config", None)
    if getattr(config, "use_cache", False):
        yield "use_cache=False: training keeps keys and values twice otherwise", replaced([(config, "use_cache", False)]), {}
    path, layers = _alike(model)
    if layers:
        first, last = (".".join(filter(None, [path, str(i)])) for i in (0, len(layers) - 1))
        yield (f"checkpoint {first} to {last} (torch.utils.checkpoint, use_reentrant=False): their forward runs again",
               replaced([(layer, "forward", _checkpointed(layer)) for layer in layers]), {})
    head = getattr(model, "lm_head", None)
    capped = any(getattr(config, name, None) for name in ("final_logit_softcapping", "logit_scale", "logits_scaling"))
    if isinstance(head, torch.nn.Linear) and getattr(model, "loss_type", "") in ("ForCausalLM", None) and not capped:
        yield (f"head and loss in {CHUNKS} chunks of tokens, each a checkpoint: the logits of one at a time",
               replaced([(head, "forward", lambda hidden: hidden), (model, "_loss_function", _in_chunks(head))]), {})
    groups = [group for o in optimizers if isinstance(o, _FUSED) for group in o.param_groups if not group.get("fused")]
    if groups:
        yield (f"{type(optimizers[0]).__name__}(fused=True)",
               replaced([(group, name, value) for group in groups for name, value in (("fused", True), ("foreach", False))]), {})
    if any(group.get("foreach", False) is not False for group in groups):
        yield f"{type(optimizers[0]).__name__}(foreach=False): slower", replaced([(group, "foreach", False) for group in groups]), {}
    if how.autocast is None and any(p.dtype == torch.float32 for p in model.parameters()):
        yield "torch.autocast in bf16 around forward and loss", contextlib.nullcontext(), {"autocast": torch.bfloat16}
    halves = _half(batch)
    if halves is not None:
        yield "two microbatches of half the batch, their gradients added up", contextlib.nullcontext(), {"batch": halves, "accumulate": 2}


def _half(batch: Any) -> Any:
    """The first half of each tensor, if all have the same even number of rows."""
    from torch.utils import _pytree

    rows = {t.shape[0] if t.dim() else 1 for t in tensors_in(batch)}
    if len(rows) != 1 or (n := rows.pop()) % 2:
        return None
    given = dict(batch) if isinstance(batch, Mapping) else batch
    return _pytree.tree_map_only(torch.Tensor, lambda t: t[:n // 2].detach().clone().requires_grad_(t.requires_grad), given)


def advise(model: torch.nn.Module, batch: Any, optimizers: Sequence[torch.optim.Optimizer],
           loss: Optional[Callable[[Any, Any], torch.Tensor]], how: _step.How) -> Advices:
    before = _step.profile(model, batch, optimizers, loss, how)
    found, refused = [], []
    work = sum(before["flops"].values())
    for text, setting, others in _changes(model, batch, optimizers, how):
        given = others.pop("batch", batch)
        accumulate = how.accumulate * others.pop("accumulate", 1)
        changed = _step.How(how.attention, accumulate, how.clip, others.pop("autocast", how.autocast))
        try:
            with setting:
                report = _step.profile(model, given, optimizers, loss, changed)
        except (MemtapeError, RuntimeError, TypeError, ValueError) as error:
            refused.append(f"{text}: {str(error).splitlines()[0]}")
            continue
        more = (sum(report["flops"].values()) - work) / work if work else None
        found.append(Advice(text, before["steady"]["peak"] - report["steady"]["peak"], report, more))
    return Advices(before, found, refused)
