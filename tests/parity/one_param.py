"""A module of one parameter and its optimizer, through ctypes."""
import ctypes

import memtape
from memtape import I, I64, P, SIZE, TEXT


class Entry(ctypes.Structure):
    _fields_ = [("param", TEXT), ("name", TEXT), ("tensor", P), ("step", I64)]


class OneParam:
    """make: the name of the function that makes the optimizer; options: its structure."""

    forward = ctypes.CFUNCTYPE(P, P, P)(lambda module, x: None)

    def __init__(self, library, make, start, options):
        self.library, self.dll = library, library.dll
        for name, result, arguments in (("module_new", P, (TEXT, P, P, P)), ("module_add_param", P, (P, TEXT, P)),
                                        ("module_free", None, (P,)), ("set_grad", I, (P, P)), ("mem_reset_peak", None, (P,)),
                                        (make, P, (P, P)), ("optimizer_step", I, (P,)), ("optimizer_free", None, (P,)),
                                        ("optimizer_state_count", SIZE, (P,)), ("optimizer_state", I, (P, SIZE, P))):
            function = getattr(self.dll, f"mt_{name}")
            function.restype, function.argtypes = result, arguments
        self.module = self.dll.mt_module_new(b"m", self.forward, None, None)
        made = library.tensor(start)
        made.owned = False  # the module takes it over
        self.p = memtape.Tensor(library, self.dll.mt_module_add_param(self.module, b"p", made.pointer), owned=False)
        library.check(library.mt_set_requires_grad(self.p.pointer, True))
        self.optimizer = getattr(self.dll, f"mt_{make}")(self.module, ctypes.byref(options))
        if not self.optimizer:
            raise library.error()

    def step(self, gradient):
        """Returns the most bytes beside those from before."""
        handed, stats = self.library.tensor(gradient), (SIZE * 512)()
        self.library.check(self.dll.mt_set_grad(self.p.pointer, handed.pointer))
        self.dll.mt_mem_reset_peak(self.library.device)
        before = self.library.requested_bytes()
        self.library.check(self.dll.mt_optimizer_step(self.optimizer))
        self.library.mt_mem_get_stats(self.library.device, stats)
        return stats[1] - before

    def state(self):
        entry, found = Entry(), {}
        for i in range(self.dll.mt_optimizer_state_count(self.optimizer)):
            self.library.check(self.dll.mt_optimizer_state(self.optimizer, i, ctypes.byref(entry)))
            found[entry.name.decode()] = memtape.Tensor(self.library, entry.tensor, owned=False).torch()
        return found

    def close(self):
        self.dll.mt_optimizer_free(self.optimizer)
        self.dll.mt_module_free(self.module)
