"""Tensors shared with numpy, and with PyTorch where it is: the same memory, and its owner is let go exactly when the last
of all tensors is. Exit status 77 if numpy is not installed."""
import gc
import subprocess
import sys
import threading
import weakref
from pathlib import Path
sys.path.append(str(Path(__file__).parent.parent / "program" / "verbs"))
from lib import check, done, equal  # noqa: E402

try:
    import numpy as np
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)
import memtape  # noqa: E402
from refusals import refused  # noqa: E402

try:
    import torch
except ImportError as error:
    print(f"skipped, all with PyTorch: {error}")
    torch = None


class Owner(np.ndarray):
    """An array that can be watched: plain ones take no weak references."""


def watched(shape, dtype=np.float32):
    array = np.arange(np.prod(shape, dtype=int)).astype(dtype).reshape(shape).view(Owner)
    return array, weakref.ref(array)


def numpy_and_memtape_share_memory():
    for dtype, name in [("f4", "f32"), ("f8", "f64"), ("f2", "f16"), ("i8", "i64"), ("i4", "i32"), ("i2", "i16"),
                        ("i1", "i8"), ("u1", "u8"), ("u2", "u16"), ("?", "bool")]:
        for array in (np.ones((3, 4), dtype), np.ones((4, 6), dtype).T[1:5:2], np.ones((), dtype), np.ones((0, 2), dtype)):
            x = memtape.from_dlpack(array)
            equal((x.shape, x.dtype), (array.shape, name), "shape and dtype")
            back = np.from_dlpack(x)
            if array.size:
                equal(x.strides, tuple(n // array.itemsize for n in array.strides), "strides")
                equal(back.ctypes.data, array.ctypes.data, "address")
                back[...] = 0
                check(not array.any(), f"{name}: what is written to one is in the other")
            equal((back.dtype, back.shape), (array.dtype, array.shape), "back again")


def owners_live_as_long_as_what_they_lend():
    array, alive = watched((5, 2))
    x = memtape.from_dlpack(array)
    back = np.from_dlpack(x)
    del array, x
    gc.collect()
    check(alive() is not None, "the array lives while a view of a view does")
    equal(back[4, 1], 9.0, "its values")
    del back
    check(alive() is None, "and no longer")
    array, alive = watched(3)
    references = sys.getrefcount(array)
    x = memtape.from_dlpack(array)
    check(sys.getrefcount(array) > references, "a tensor holds its owner")
    del x
    equal(sys.getrefcount(array), references, "references after the tensor")


def capsules_that_nobody_takes_let_go():
    array, alive = watched(3)
    x = memtape.from_dlpack(array)
    capsule = x.__dlpack__(max_version=(1, 0))
    del array, x
    check(alive() is not None, "a capsule holds the tensor")
    del capsule
    check(alive() is None, "and lets it go")


def what_cannot_be_shared_is_refused():
    fixed = np.ones(3)
    fixed.flags.writeable = False
    for what, said, source in [("read-only memory", "read-only", fixed), ("negative strides", "negative", np.ones(4)[::-1]),
                               ("complex numbers", "no dtype", np.ones(2, complex)),
                               ("nine dimensions", "rank 9", np.ones((1,) * 9)),
                               ("odd addresses", "multiple of 4", np.frombuffer(bytearray(9), np.float32, 2, 1))]:
        before = sys.getrefcount(source)
        refused(what, said, lambda: memtape.from_dlpack(source))
        gc.collect()
        equal(sys.getrefcount(source), before, f"references to {what} after the refusal")
    refused("a list", "a list has no __dlpack__", lambda: memtape.from_dlpack([1, 2]), TypeError)
    x = memtape.from_dlpack(np.ones(3))
    for what, options in [("no version", {}), ("an old version", {"max_version": (0, 8)}),
                          ("a copy", {"max_version": (1, 0), "copy": True}), ("a stream", {"max_version": (1, 0), "stream": 1}),
                          ("another device", {"max_version": (1, 0), "dl_device": (2, 0)})]:
        refused(what, "", lambda: x.__dlpack__(**options), BufferError)
    equal(np.from_dlpack(x, device="cpu", copy=False).tolist(), [1, 1, 1], "a consumer that asks for what there is")


def many_do_not_leak():
    array = np.ones(1 << 20, np.float32)
    references = sys.getrefcount(array)

    def peak():
        import resource
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

    def share(times):
        for _ in range(times):
            x = memtape.from_dlpack(array.copy())
            np.from_dlpack(memtape.from_dlpack(np.from_dlpack(x)))
            x.__dlpack__(max_version=(1, 0))
            memtape.from_dlpack(array)
    share(5)
    before = peak()
    share(200)  # 800 MiB, if they were kept
    check(peak() - before < 64 << 10, f"{(peak() - before) >> 10} MiB more after 200 rounds")
    equal(sys.getrefcount(array), references, "references to the array")
    threads = [threading.Thread(target=share, args=(20,)) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    equal(sys.getrefcount(array), references, "references after four threads")


def a_process_ends_with_tensors_alive():
    code = ("import memtape, numpy\nx = memtape.from_dlpack(numpy.ones(3)); y = numpy.from_dlpack(x)\n"
            "capsule = x.__dlpack__(max_version=(1, 0))\nprint(y.sum())")
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=100)
    equal((ended.returncode, ended.stdout, ended.stderr), (0, "3.0\n", ""), "a process with tensors at its end")


def torch_and_memtape_share_memory():
    for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.uint8, torch.bool):
        theirs = torch.ones(4, 6, dtype=dtype).t()[1:5:2]
        storage = theirs.untyped_storage()
        x = memtape.from_dlpack(theirs)
        back = torch.from_dlpack(x)
        equal((back.dtype, back.stride(), back.data_ptr()), (dtype, theirs.stride(), theirs.data_ptr()), "a view and back")
        back.zero_()
        check(not theirs.any() and storage.nbytes() == 24 * dtype.itemsize, f"{dtype}: what is written")
    theirs = torch.full((1000,), 5.0)
    array = np.from_dlpack(memtape.from_dlpack(theirs))
    del theirs
    gc.collect()
    equal(float(array.sum()), 5000.0, "PyTorch's memory, in numpy, by way of memtape")
    leaf = torch.ones(3, requires_grad=True)
    refused("a tensor that requires grad", "", lambda: memtape.from_dlpack(leaf), (BufferError, RuntimeError))
    refused("one on meta", "", lambda: memtape.from_dlpack(torch.ones(3, device="meta")), Exception)


tests = [numpy_and_memtape_share_memory, owners_live_as_long_as_what_they_lend, capsules_that_nobody_takes_let_go,
         what_cannot_be_shared_is_refused, many_do_not_leak, a_process_ends_with_tensors_alive]
for test in tests + [torch_and_memtape_share_memory] * (torch is not None):
    test()
done()
