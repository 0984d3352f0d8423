"""The ledger for PyTorch: what the tape of a model of your own keeps for backward, and what a training step takes.

    import memtape.torch
    report = memtape.torch.profile(model, x)             # one forward, measured
    report["saved"]["bytes"]; report.write_html("report.html")
    print(memtape.torch.profile(model, batch, optimizer))  # two steps on meta: the peak that CUDA would report

or, where the forward is your own code, loss included:

    with memtape.torch.Ledger(model) as ledger:
        loss = loss_of(model(x), y)
    report = ledger.report(loss)                         # before loss.backward()

Storages are counted once and whole, parameters and buffers left out, as docs/parity.md says. The ledger keeps no
tensor alive, changes none, and works on every device that PyTorch has, "meta" too."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Callable, Optional, Sequence, Union

from memtape._ledger import Ledger  # says what is missing where PyTorch is
from memtape import _advice, _step, _text
from memtape._advice import Advice, Advices
from memtape._watch import Watch
from memtape.report import Report

import torch

Loss = Callable[[torch.nn.Module, Any], torch.Tensor]
Optimizers = Union[torch.optim.Optimizer, Sequence[torch.optim.Optimizer]]
__all__ = ["Advice", "Advices", "Ledger", "advise", "assert_peak_below", "profile", "watch"]


def profile(model: torch.nn.Module, *inputs: Any, optimizer: Optional[Optimizers] = None,
            loss: Optional[Loss] = None, attention: str = "cuda",
            accumulate: int = 1, clip: Optional[float] = None, autocast: Optional[torch.dtype] = None, timeline: bool = False,
            **options: Any) -> Report:
    """profile(model, x, mask=m) calls model(x, mask=m) once under a Ledger, and reports what its outputs keep for backward.
    One input that is a mapping is passed by keywords. The outputs are let go again.

    profile(model, batch, optimizer) reports two training steps, as `memtape profile` does of its own models: bytes of
    parameters, gradients, optimizer state and temporaries, and the peak that PyTorch's allocator for CUDA would report.
    For their time all tensors of the model, the batch, the optimizer and the loss are on meta, which computes nothing; afterwards
    everything is as it was. A batch that is a mapping is passed by keywords, a tuple or a list one by one. loss(model, batch) is the
    step's forward; without it the model's output is the loss, or has it as `loss`. optimizer may be a list of several.

    accumulate: forwards and backwards before the optimizer's step. clip: the norm to which gradients are clipped.
    autocast: torch.bfloat16 or torch.float16, around the forward and the loss; a region that the model enters counts by itself.
    timeline: lists every event of both steps, for the page's chart and for `memtape compare SNAPSHOT report.json`.
    attention: as for Ledger."""
    if optimizer is None and inputs and _are_optimizers(inputs[-1]):
        *inputs, optimizer = inputs  # type: ignore[assignment]
    how = _step.How(attention, accumulate, clip, autocast, timeline)
    if optimizer is not None:
        if len(inputs) != 1 or options:
            raise TypeError(f"profile: {len(inputs)} inputs and {len(options)} options beside an optimizer; need one batch: a "
                            "tensor, a tuple or a mapping")
        return _step.profile(model, inputs[0], _several(optimizer), loss, how)
    if loss is not None or how != _step.How(attention):
        raise TypeError("profile: loss, accumulate, clip, autocast or timeline is given without an optimizer")
    with Ledger(model, attention) as ledger:
        by_name = len(inputs) == 1 and not options and isinstance(inputs[0], Mapping)
        outputs = model(**inputs[0]) if by_name else model(*inputs, **options)
    return ledger.report(outputs)


def advise(model: torch.nn.Module, batch: Any, optimizer: Optimizers, loss: Optional[Loss] = None, attention: str = "cuda",
           accumulate: int = 1, clip: Optional[float] = None, autocast: Optional[torch.dtype] = None) -> Advices:
    """What would take less memory in a step: checkpoints around alike layers, a fused optimizer, autocast, smaller microbatches, no
    cache. Each that applies is run as profile runs a step, and what it saves is in bytes of the peak. The arguments are profile's; the
    result is a list, most first, of (text, less, report), and print shows it. Nothing is changed."""
    return _advice.advise(model, batch, _several(optimizer), loss, _step.How(attention, accumulate, clip, autocast))


def assert_peak_below(limit: Union[str, int], model: Union[torch.nn.Module, Report], *given: Any, **options: Any) -> Report:
    """assert_peak_below("8GiB", model, batch, optimizer) profiles the step and fails (AssertionError) unless the bytes allocated at its
    peak are below the limit; the message is the report. The arguments after the limit are profile's, or a report of a step. A limit is
    a number of bytes, or a text such as "800MB" or "7.5GiB". Returns the report."""
    report = model if isinstance(model, Report) else profile(model, *given, **options)
    if not report.get("steady"):
        raise TypeError("assert_peak_below: the report is not of a step; give a batch and an optimizer")
    n, peak = _text.parsed(limit), report["steady"]["peak"]
    if peak >= n:
        raise AssertionError(f"the step's peak is {peak:,} bytes, not below {limit} ({n:,} bytes): {peak - n:,} over\n{report}")
    return report


def watch(model: torch.nn.Module, optimizer: torch.optim.Optimizer, loss: Optional[Loss] = None, attention: str = "cuda",
          clip: Optional[float] = None, autocast: Optional[torch.dtype] = None,
          snapshot: Union[str, os.PathLike[str], None] = "memtape-oom.pickle") -> Watch:
    """with watch(model, optimizer) as w: a training loop of your own, as it is. Each step, from one optimizer.step() to the next, adds to
    w.steps what it took (measured, bytes) and what a profile of the same shapes says (predicted), with the report; print(w) is a table.
    On CUDA measured is torch.cuda.max_memory_allocated(); on the CPU what operations made, in blocks as CUDA's. Values stay the same.

    loss(model, batch) is how the loop makes its loss of the model and what it gives it; it may be left out if the model's output is the
    loss, or has it. Several forwards before a step count as microbatches; clip and autocast are as for profile.

    Where a step on CUDA runs out of memory, w.failed is that step, and the allocator's snapshot of the instant is written to the path
    `snapshot`; None: what the allocator does is not recorded. The error goes on."""
    return Watch(model, optimizer, loss, _step.How(attention, 1, clip, autocast), snapshot)


def _several(optimizer: Optimizers) -> Sequence[torch.optim.Optimizer]:
    return optimizer if isinstance(optimizer, (list, tuple)) else [optimizer]


def _are_optimizers(value: Any) -> bool:
    return isinstance(value, torch.optim.Optimizer) or isinstance(value, (list, tuple)) and bool(value) and all(
        isinstance(one, torch.optim.Optimizer) for one in value)
