"""DistributedDataParallel in a step on meta: its buckets, which have room for every gradient, and no communication."""

from __future__ import annotations

import sys
from typing import Any, Dict, Iterable, List, Set

import torch
from torch.utils._python_dispatch import _disable_current_modes


class Buckets:
    """Of one DistributedDataParallel, as long as the profile lasts. Its own reducer is bound to the user's tensors, and sees nothing."""

    def __init__(self, ddp: Any, books: Any) -> None:
        self._books, self._in_views, self._at_once = books, ddp.gradient_as_bucket_view, getattr(ddp, "batched_grad_copy", False)
        self._parameters: List[torch.Tensor] = ddp._build_params_for_reducer()[0]
        self._places = {id(p): i for i, p in enumerate(self._parameters)}
        by_cap = getattr(ddp, "bucket_bytes_cap_list", None)  # since PyTorch 2.13
        first = [torch.distributed._DEFAULT_FIRST_BUCKET_BYTES] if ddp.bucket_bytes_cap_default else []
        self._limits = by_cap or [*first, ddp.bucket_bytes_cap]
        self._rebuilds = ddp.static_graph or not ddp.find_unused_parameters  # before the second forward
        self._limits_at_first = [sys.maxsize] if self._rebuilds and not by_cap else self._limits
        self._order: Dict[int, None] = {}  # the places in which gradients have come, until then
        self._tensors: List[torch.Tensor] = []
        self._views: Dict[int, torch.Tensor] = {}  # where a gradient lies, by a parameter's place
        self._together: Dict[int, List[int]] = {}  # the places whose gradients are copied at one time, by each of them
        self._waiting: Set[int] = set()  # places of gradients that are to be copied
        module = ddp.module

        def forward(*args: Any, **kwargs: Any) -> Any:
            if self._rebuilds and self._order and torch.is_grad_enabled():
                self._rebuild()
            return module(*args, **kwargs)

        ddp.forward = forward

    def make(self) -> None:
        """As the constructor does: one bucket, unless it stays; and a flag a parameter, whether it was used."""
        self._used = self._requested(len(self._parameters), torch.int32)
        self._request(self._assigned(self._limits_at_first, range(len(self._parameters)))[::-1])

    def _rebuild(self) -> None:
        """By the order in which gradients came. The buckets before go first."""
        self._rebuilds = False
        in_views = [i for i in self._views if self._parameters[i].grad is not None]
        for i in in_views:
            self._parameters[i].grad = None
        self._views, self._tensors = {}, []
        self._request(self._assigned(self._limits, dict.fromkeys([*self._order, *range(len(self._parameters))])))
        for i in in_views:
            self._parameters[i].grad = self._views[i]

    def _assigned(self, limits: List[int], order: Iterable[int]) -> List[List[int]]:
        """The parameters of each bucket, by their places."""
        places = list(order)
        parameters = [self._parameters[i] for i in places]
        buckets, _ = torch.distributed._compute_bucket_assignment_by_size(parameters, limits, [False] * len(places), places)
        return [list(bucket) for bucket in buckets]

    def _request(self, buckets: List[List[int]]) -> None:
        for places in buckets:
            parameters = [self._parameters[i] for i in places]
            sizes = [p.numel() for p in parameters]
            bucket = self._requested(sum(sizes), parameters[0].dtype)
            self._tensors.append(bucket)
            self._together.update((i, places if self._at_once else [i]) for i in places)
            if self._in_views:
                with _disable_current_modes():
                    self._views.update((i, part.view(p.shape)) for i, p, part in zip(places, parameters, bucket.split(sizes)))

    def _requested(self, n: int, dtype: torch.dtype) -> torch.Tensor:
        with _disable_current_modes():
            t = torch.empty(n, dtype=dtype, device="meta")
        self._books.enter(t, "communication", "DistributedDataParallel")
        return t

    def take(self, p: torch.Tensor) -> bool:
        """Called when a parameter has its gradient: whether that lies in a bucket from now on."""
        i = self._places.get(id(p))
        if i is None:
            return False
        self._order[i] = None
        self._waiting.add(i)
        if i not in self._views or not self._waiting.issuperset(self._together[i]):
            return False
        for j in self._together[i]:
            self._parameters[j].grad = self._views[j]
        self._waiting.difference_update(self._together[i])
        return True


def of_model(model: torch.nn.Module, books: Any) -> List[Buckets]:
    return [Buckets(module, books) for module in model.modules() if isinstance(module, torch.nn.parallel.DistributedDataParallel)]
