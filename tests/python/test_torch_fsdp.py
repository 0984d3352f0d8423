"""memtape.torch.profile of modules with FSDP2 (fully_shard), of 2 and 8 ranks, beside PyTorch's own FSDPMemTracker, which counts a real
step on the CPU; and with DistributedDataParallel, beside its own reducer. Exit status 77 if PyTorch is not installed."""
import inspect
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
from counting import step_by_hand  # noqa: E402
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


class Late(nn.Module):
    """Uses last what it has first, so that gradients do not come in the reverse order of parameters."""

    def __init__(self):
        super().__init__()
        self.head, self.layers = nn.Linear(300, 300), nn.ModuleList([nn.Linear(300, 300) for _ in range(7)])
        self.norm = nn.BatchNorm1d(300)

    def forward(self, x):
        for layer in self.layers:
            x = layer(x).relu()
        return self.head(self.norm(x)).square().mean()


def in_parallel(summed, **options):
    """A model of a group that sends nothing; summed(bytes) is called for each bucket, when it is full."""
    torch.manual_seed(0)
    wrapped = nn.parallel.DistributedDataParallel(Late(), **options)

    def hook(_, bucket):
        summed(bucket.buffer().nbytes)
        future = torch.futures.Future()
        future.set_result(bucket.buffer())
        return future

    wrapped.register_comm_hook(None, hook)
    return wrapped


OF_BUCKETS = ({}, {"gradient_as_bucket_view": True}, {"bucket_cap_mb": 1}, {"bucket_cap_mb": 25}, {"find_unused_parameters": True},
              {"find_unused_parameters": True, "gradient_as_bucket_view": True}, {"static_graph": True}, {"bucket_cap_mb_list": [1, 2]},
              {"batched_grad_copy": True, "gradient_as_bucket_view": True})


def a_data_parallel_model_has_the_buckets_of_pytorch_s_reducer():
    """One rank of eight on the CPU: its buckets, and the six figures of a later step. The reducer has a flag a parameter on the device. The
    count by hand sees no flags that nothing has written, and with unused parameters or a static graph those in host memory, too."""
    x, flags = torch.randn(2, 300), 4 * len(list(Late().parameters()))
    for options in OF_BUCKETS:
        if not set(options) <= set(inspect.signature(nn.parallel.DistributedDataParallel).parameters):
            print(f"skipped: this PyTorch has not all of {options}")
            continue
        steps = []

        def loss(model, x):
            steps.append([])
            return model(x)

        with of_ranks(8):
            wrapped = in_parallel(lambda n: steps[-1].append(n), **options)
            _, hand = step_by_hand(wrapped, x, SGD(wrapped.parameters()), loss, steps=4)
            by_reducer = steps[0] + ([] if "find_unused_parameters" in options else steps[-1])
            report = memtape.torch.profile(wrapped, x, SGD(wrapped.parameters()), timeline=True)
            step_by_hand(wrapped, x, SGD(wrapped.parameters()), loss)
        made = [e["bytes"] for e in report["timeline"] if e["kind"] == "alloc" and e["category"] == "communication"]
        equal(made, [flags, *by_reducer], f"{options}: buckets, those of the first step before the others")
        more = flags * (-1 if options.keys() & {"find_unused_parameters", "static_graph"} else 1)
        equal(of_report(report), [(peak + more, end + more) for peak, end in hand], f"{options}: a step")
        equal(steps[-1], steps[3], f"{options}: the module trains on")


def microbatches_of_a_data_parallel_model_share_its_buckets():
    """Its buckets are made anew before the second forward, as gradients of the first lie in them."""
    for view in (False, True):
        with of_ranks(8):
            wrapped = nn.parallel.DistributedDataParallel(Late(), gradient_as_bucket_view=view)
            report = memtape.torch.profile(wrapped, torch.randn(2, 300), SGD(wrapped.parameters()), accumulate=2, timeline=True)
        whole = 4 * sum(p.numel() for p in wrapped.parameters())
        made = [e["bytes"] for e in report["timeline"] if e["kind"] == "alloc" and e["category"] == "communication"]
        equal(sum(made[1:]), 2 * whole, "buckets of the first step, and those after it")
        ends = [p["by_category"]["gradient"] for phases in (report["phases"][1:], report["steady"]["phases"]) for p in phases]
        whole = sum(blocks(4 * p.numel()) for p in wrapped.parameters())
        equal(ends, 2 * [0, 0 if view else whole, 0 if view else whole, 0 if view else whole, 0], f"gradients beside the buckets, views {view}")


for test in [a_step_is_what_pytorch_s_own_tracker_counts, what_ranks_share_is_in_the_books_by_its_streams, microbatches_and_clipping_are_counted,
             everything_is_as_it_was, what_is_not_counted_is_refused,
             a_data_parallel_model_has_the_buckets_of_pytorch_s_reducer, microbatches_of_a_data_parallel_model_share_its_buckets]:
    test()
done()
