"""DistributedDataParallel in a step on meta: its buckets, which have room for every gradient, and no communication."""

from __future__ import annotations

from typing import Any, Dict, List

import torch


def _bucket_sizes(parameters: List[torch.Tensor], ddp: Any) -> List[List[int]]:
    """The parameters of each bucket, by their places: filled in the order in which gradients come."""
    import torch.distributed as dist

    limits = [dist._DEFAULT_FIRST_BUCKET_BYTES, ddp.bucket_bytes_cap]
    buckets, _ = dist._compute_bucket_assignment_by_size(parameters, limits, [False] * len(parameters))
    return [list(bucket) for bucket in buckets]


class Buckets:
    """Of one DistributedDataParallel, as long as the profile lasts. Its own reducer is bound to the user's tensors, and sees nothing."""

    def __init__(self, ddp: Any) -> None:
        self.tensors: List[torch.Tensor] = []
        self.views: Dict[int, torch.Tensor] = {}  # by a parameter's id: where its gradient lies, with gradient_as_bucket_view
        module = ddp.module
        ddp.forward = lambda *args, **kwargs: module(*args, **kwargs)
        parameters = [p for p in module.parameters() if p.requires_grad][::-1]
        for places in _bucket_sizes(parameters, ddp):
            bucket = torch.empty(sum(parameters[i].numel() for i in places), dtype=parameters[places[0]].dtype, device="meta")
            self.tensors.append(bucket)
            begin = 0
            for i in places if ddp.gradient_as_bucket_view else []:
                p = parameters[i]
                self.views[id(p)] = bucket[begin:begin + p.numel()].view(p.shape)
                begin += p.numel()


def of_model(model: torch.nn.Module) -> List[Buckets]:
    return [Buckets(module) for module in model.modules() if isinstance(module, torch.nn.parallel.DistributedDataParallel)]
