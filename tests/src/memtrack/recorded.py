"""A training step that PyTorch runs on the CPU, as the memory snapshot that torch.cuda.memory would have of it: every storage's
birth and death, with the stack of Python, go through an allocator by PyTorch's rules, and PyTorch's own _dump_snapshot writes
the file. `recorded` is None where there is no PyTorch."""
import itertools
import traceback
import weakref
from caching import Allocator

try:
    import torch
    from torch.cuda import _memory_viz
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_iter
except ImportError:
    recorded = None
else:
    class recorded(TorchDispatchMode):
        """Two steps of an MLP of memtape's shape; gradients are accumulated on another stream."""
        viewer, OTHER = _memory_viz, 94_123_456_789_012  # an address, as PyTorch's streams have

        def __init__(self, batch, seq, hidden, expandable):
            super().__init__()
            self.allocator, self.trace, self.blocks, self.after, self.known = Allocator(expandable), [], {}, [], {}
            self.expandable, self.clock, self.stream = expandable, itertools.count(1_700_000_000_000_000), 0
            self.now = dict.fromkeys(("requested", "allocated", "active", "reserved"), 0)
            self.run(batch, seq, hidden)
            self.finish()

        def run(self, batch, seq, hidden):
            with self:
                model = torch.nn.Sequential(torch.nn.Linear(hidden, 4 * hidden), torch.nn.GELU(), torch.nn.Linear(4 * hidden, hidden))
                optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, foreach=False)
                for _ in range(2):
                    x = torch.zeros(batch, seq, hidden, requires_grad=True)
                    model(x).sum().backward()
                    self.stream = self.OTHER
                    optimizer.step()
                    self.stream = 0
            self.kept = model, optimizer, x

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            out = func(*args, **(kwargs or {}))
            for tensor in tree_iter(out):
                if isinstance(tensor, torch.Tensor) and tensor.untyped_storage().nbytes():
                    self.see(tensor.untyped_storage())
            return out

        def see(self, storage):
            key = storage._cdata
            if key in self.known:
                return
            stack = [{"filename": f.filename, "line": f.lineno, "name": f.name} for f in reversed(traceback.extract_stack())
                     if "_dynamo" not in f.filename and "_compile" not in f.filename and f.name not in ("see", "__torch_dispatch__")]
            reserved, segments = self.allocator.now["reserved"], self.allocator.n_segments
            block = self.allocator.alloc(storage.nbytes(), self.stream)
            grown = self.allocator.now["reserved"] - reserved
            if grown:
                at = self.address(block) if self.allocator.n_segments > segments else self.end_of(block.pool) - grown
                self.add("segment_map" if self.expandable else "segment_alloc", at, grown, stack, reserved=grown)
            self.blocks[key], block.stack, block.stream = block, stack, self.stream
            block.asked = storage.nbytes()
            self.add("alloc", self.address(block), block.asked, stack, requested=block.asked, allocated=rounded(block.asked),
                     active=rounded(block.asked))
            self.known[key] = weakref.ref(storage, lambda _: self.forget(key))

        def forget(self, key):
            del self.known[key]
            block = self.blocks.pop(key)
            at, n = self.address(block), block.asked
            self.add("free_requested", at, n, block.stack, requested=-n, allocated=-rounded(n))
            self.add("free_completed", at, n, block.stack, active=-rounded(n))
            self.allocator.release(block)

        def address(self, block):
            segment, offset = block.place
            number = segment if isinstance(segment, int) else 1 + 2 * (segment[0] != 0) + (segment[1] == "large")
            return 0x7F00_0000_0000 + number * (1 << 32) + offset

        def end_of(self, pool):
            last = self.allocator.last[pool]
            return self.address(last) + last.size

        def add(self, action, addr, size, stack, **changes):
            for name, n in changes.items():
                self.now[name] += n
            self.after.append(dict(self.now))
            self.trace.append({"action": action, "addr": addr, "size": size, "stream": self.stream, "time_us": next(self.clock), "pool_id": (0, 0),
                               "frames": stack, "compile_context": "N/A", "user_metadata": ""})

        def peak(self, first):
            """The highest of each from before entry `first` on."""
            seen = self.after[max(first - 1, 0):] if first else [dict.fromkeys(self.now, 0), *self.after]
            return {name: max(s[name] for s in seen) for name in self.now}

        def finish(self):
            """One of the blocks is freed, and another stream still uses it."""
            waits = min(self.blocks.values(), key=lambda b: b.asked)
            n = waits.asked
            self.add("free_requested", self.address(waits), n, waits.stack, requested=-n, allocated=-rounded(n))
            everything = {*self.blocks.values(), *itertools.chain.from_iterable(self.allocator.free.values())}
            segments = {}
            for block in sorted(everything, key=self.address):
                segments.setdefault(block.place[0], []).append(block)
            self.snapshot = {"segments": [self.segment(blocks, waits) for blocks in segments.values()], "device_traces": [self.trace],
                             "external_annotations": [], "allocator_settings": {
                                 "PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True" if self.expandable else "", "max_split_size": -1,
                                 "garbage_collection_threshold": 0.0, "expandable_segments": self.expandable, "pinned_num_register_threads": 1,
                                 "release_lock_on_cudamalloc": False, "roundup_power2_divisions": {"1": 0}}}

        def segment(self, blocks, waits):
            states = ["inactive" if b.requested is None else "active_pending_free" if b is waits else "active_allocated" for b in blocks]
            alive = [b for b, state in zip(blocks, states) if state == "active_allocated"]
            return {"device": 0, "address": self.address(blocks[0]), "total_size": sum(b.size for b in blocks),
                    "allocated_size": sum(b.size for b in alive), "active_size": sum(b.size for b, s in zip(blocks, states) if s != "inactive"),
                    "requested_size": sum(b.asked for b in alive), "stream": blocks[0].pool[0], "segment_type": blocks[0].pool[1],
                    "segment_pool_id": (0, 0), "is_expandable": self.expandable, "frames": [], "blocks": [
                        {"address": self.address(b), "size": b.size, "requested_size": b.asked if state != "inactive" else 0, "state": state,
                         "frames": b.stack if state != "inactive" else []} for b, state in zip(blocks, states)]}

        def dump(self, path):
            """PyTorch's own function; a build without CUDA lacks only what it asks the allocator for."""
            torch._C._cuda_memorySnapshot = lambda _: self.snapshot
            torch.cuda.memory._dump_snapshot(str(path))


def rounded(n):
    return -(-n // 512) * 512
