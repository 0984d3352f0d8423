"""memtape.torch.profile of modules with FSDP2 (fully_shard), of 2 and 8 ranks, beside PyTorch's own FSDPMemTracker, which counts a real
step on the CPU. Exit status 77 if PyTorch is not installed."""
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
from refusals import refused  # noqa: E402
from shards import ADAMW, B, D, GPT, S, SETUPS, SGD, V, by_pytorch, ids, of_ranks, sharded  # noqa: E402
from torch import nn  # noqa: E402
from torch.distributed.fsdp import CPUOffloadPolicy, FullyShardedDataParallel, fully_shard  # noqa: E402
from torch.nn.attention import SDPBackend, sdpa_kernel  # noqa: E402


def of_report(report):
    return [(p["requested_peak"], p["requested"]) for p in report["steady"]["phases"]]


def profiled(model, make=SGD, **how):
    return memtape.torch.profile(model, ids(), make(model.parameters()), attention="math", **how)


def a_step_is_what_pytorch_s_own_tracker_counts():
    """But for the optimizer's counts of steps, which are in host memory where parameters are on CUDA."""
    for ranks in ((2,), (8,), (1,), (2, 4)):
        for what, options in SETUPS.items():
            for make in (SGD, ADAMW) if ranks == (8,) and not options else (SGD,):
                name = f"{what}, {'x'.join(map(str, ranks))} ranks, {make.func.__name__}"
                with of_ranks(*ranks) as mesh, sdpa_kernel(SDPBackend.MATH):
                    model = sharded(mesh, **options)
                    report = profiled(model, make)
                    counts = 4 * len(list(model.parameters())) if make is ADAMW else 0
                    wanted = by_pytorch(model, ids(), make(model.parameters()))
                    equal(of_report(report), [(peak - counts, end - counts) for peak, end in wanted], name)


def blocks(n_bytes):
    return -(-n_bytes // 512) * 512


def what_ranks_share_is_in_the_books_by_its_streams():
    """Sizes that follow from the model's: all layers alike, of floats."""
    for ranks in (2, 8):
        with of_ranks(ranks) as mesh:
            model = sharded(mesh)
            layer = sum(p.numel() for p in model.layers[0].parameters())
            root = V * D + 2 * D + D * V
            parts = [blocks(4 * -(-p.shape[0] // ranks) * p[0].numel()) for p in model.parameters()]
            report = profiled(model, timeline=True)
        equal(report["phases"][0]["by_category"]["parameter"], sum(parts), f"shards of {ranks}")
        equal(report["params"]["count"], 3 * layer + root, "parameters of all ranks")
        steady, events = report["steady"], report["timeline"]
        equal(sum(s["reserved"] for s in steady["streams"]), steady["reserved"], "the streams' sum")
        equal([s["name"] for s in steady["streams"]], ["default", "all_gather_copy_in", "reduce_scatter"], "as PyTorch names them")
        gathered = [e["bytes"] for e in events if e["kind"] == "alloc" and e.get("stream") == "all_gather_copy_in"]
        check(set(gathered) <= {4 * n for n in (layer, root)} if ranks == 2 else len(set(gathered)) == 2, f"{ranks}: what is gathered into: {gathered}")
        equal(len(gathered), 2 * (4 + 3), "of two steps: root and layers in forward, layers again in backward")
        summed = [e["bytes"] for e in events if e["kind"] == "alloc" and e.get("stream") == "reduce_scatter"]
        equal((len(summed), sum(summed) * ranks >= 2 * 4 * (3 * layer + root)), (8, True), "a sum for each group and step")
        check(steady["by_category"]["communication"] > 0 and steady["by_category"]["gradient"] > 0, f"categories: {steady['by_category']}")
        for said in (f"shards of {ranks} ranks", "reserved by stream: default", "all_gather_copy_in"):
            check(said in str(report), f"{said}: {report}")


def microbatches_and_clipping_are_counted():
    with of_ranks(4) as mesh, sdpa_kernel(SDPBackend.MATH):
        model = sharded(mesh)
        report = profiled(model, accumulate=2)
        equal(of_report(report), by_pytorch(model, ids(), SGD(model.parameters()), 2), "two microbatches")
        clipped = profiled(model, clip=1.0)
        equal(clipped["steady"]["phases"][:2], profiled(model)["steady"]["phases"][:2], "clipping comes after backward")


def everything_is_as_it_was():
    """Before the first step, after one, and after a forward that left parameters gathered."""
    def seen(model):
        return [(id(p), type(p), p.device.type, p.to_local().clone()) for p in model.parameters() if hasattr(p, "to_local")]
    with of_ranks(2) as mesh:
        model = sharded(mesh)
        optimizer = SGD(model.parameters())
        before = seen(model)
        first = profiled(model)
        check(all(a[:3] == b[:3] and torch.equal(a[3], b[3]) for a, b in zip(before, seen(model))) and len(before) == len(seen(model)), "shards")
        equal(model._get_fsdp_state()._is_root, None, "PyTorch has not prepared the model yet")
        for _ in range(2):
            loss = model(ids())
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
        equal(of_report(profiled(model)), of_report(first), "a model that has been trained")
        with torch.no_grad():
            model(ids())
        whole = sum(1 for p in model.parameters() if not hasattr(p, "to_local"))
        check(whole > 0, "a forward without a backward leaves the root's parameters gathered")
        equal(of_report(profiled(model, lambda _: optimizer)), of_report(first), "and that makes no difference")
        equal(sum(1 for p in model.parameters() if not hasattr(p, "to_local")), whole, "they still are")
        loss = model(ids())
        loss.backward()
        optimizer.step()
        equal([p.grad.device.type for p in model.parameters()], ["cpu"] * len(before), "it trains on")
        check(torch.UntypedStorage.resize_.__name__ == "resize_" and torch.distributed.all_reduce.__module__ == "torch.distributed.distributed_c10d",
              "nothing is left replaced")


def what_is_not_counted_is_refused():
    with of_ranks(2) as mesh:
        away = sharded(mesh, offload_policy=CPUOffloadPolicy(pin_memory=False))
        refused("parameters in host memory", "CPUOffloadPolicy", lambda: profiled(away))
        equal([p.device.type for p in away.parameters()], ["cpu"] * len(list(away.parameters())), "they are as they were")
        model = sharded(mesh)
        refused("a loop on the CPU", "on CUDA alone", lambda: memtape.torch.watch(model, SGD(model.parameters())).__enter__())
        flat = FullyShardedDataParallel(GPT(), device_id=torch.device("cpu"))
        refused("FSDP1", "fully_shard", lambda: profiled(flat))
        from torch.distributed.tensor.parallel import ColwiseParallel, parallelize_module
        parallel = parallelize_module(GPT(), mesh, {"head": ColwiseParallel()})
        refused("tensor parallelism", "head.weight is a DTensor", lambda: profiled(parallel))


def a_data_parallel_model_of_eight_has_its_buckets():
    """A group that sends nothing; buckets of 25 MiB, the first of 1 MiB, by the order in which gradients come."""
    for view in (False, True):
        with of_ranks(8):
            model = nn.Sequential(*(nn.Linear(1024, 1024) for _ in range(8)))
            plain = memtape.torch.profile(model, torch.ones(2, 1024), SGD(model.parameters()), loss=lambda model, x: model(x).sum())
            wrapped = nn.parallel.DistributedDataParallel(model, gradient_as_bucket_view=view)
            report = memtape.torch.profile(wrapped, torch.ones(2, 1024), SGD(model.parameters()), loss=lambda model, x: model(x).sum(), timeline=True)
        buckets = [e["bytes"] for e in report["timeline"] if e["kind"] == "alloc" and e["category"] == "communication"]
        layer = 4 * (1024 * 1024 + 1024)
        equal(buckets, [layer, 7 * layer], "buckets, which are closed once they have reached the limit")
        more = report["steady"]["peak"] - plain["steady"]["peak"]
        if view:
            check(0 < more < 2 * layer, f"a gradient on its way into its bucket: {more}")
        else:
            equal(more, sum(map(blocks, buckets)), "the peak beside a plain module's")


for test in [a_step_is_what_pytorch_s_own_tracker_counts, what_ranks_share_is_in_the_books_by_its_streams, microbatches_and_clipping_are_counted,
             everything_is_as_it_was, what_is_not_counted_is_refused, a_data_parallel_model_of_eight_has_its_buckets]:
    test()
done()
