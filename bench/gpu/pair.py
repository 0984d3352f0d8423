"""pair.py: memtape and PyTorch run the same kernel in turns, for `./run gpu`."""

import math
from statistics import median

ROUNDS = 5


class Pair:
    """memtape's worker and PyTorch's, which alternate."""

    def __init__(self, s):
        self.s, self.workers = s, {}

    def start(self):
        if "memtape" not in self.workers:
            self.workers["memtape"] = self.s.memtape("kernels", self.s.kind)
        if self.s.torch and "torch" not in self.workers:
            self.workers["torch"] = self.s.peer("kernels", self.s.torch)

    def stop(self):
        for worker in self.workers.values():
            worker.process.kill()
            worker.stop()
        self.workers = {}

    def load(self, kernel):
        """Returns the largest distance of memtape's results and gradients from PyTorch's in a wider dtype; None
        without PyTorch."""
        self.start()
        shown = {side: [list(map(float, words[1:])) for words in worker.ask(
            "load", self.name_for(side, kernel), kernel.dtype, kernel.inputs)]
            for side, worker in self.workers.items()}
        if len(shown) < 2 or kernel.tolerance is None:
            return None
        return max(map(distance, shown["memtape"], shown["torch"])) if (
            len(shown["memtape"]) == len(shown["torch"])) else math.inf

    @staticmethod
    def name_for(side, kernel):
        only_products = side == "torch" and kernel.function == "linear"
        return "linear/products" if only_products else kernel.function

    def run(self, side, word, n):
        return int(self.workers[side].ask(word, n)[0][1]) / n

    def time(self, kernel, words):
        """{word: {side: {"ns", "least", "most"}}}, and "error" """
        out = {"error": self.load(kernel)}
        per_round = self.s.plan.seconds / ROUNDS
        for word in words:
            counts = {}
            for side in self.workers:
                self.run(side, word, 3)
                counts[side] = max(1, int(per_round * 1e9 / self.run(side, word, 3)))
            got = {side: [] for side in self.workers}
            for _ in range(ROUNDS):
                for side, series in got.items():
                    series.append(self.run(side, word, counts[side]))
            out[word] = {side: {"ns": median(series), "least": min(series), "most": max(series)}
                         for side, series in got.items()}
        for worker in self.workers.values():
            worker.ask("rest")
        return out


def distance(mine, theirs):
    """||a - b|| / ||b||; infinite if either has a NaN."""
    difference = math.sqrt(sum((a - b) ** 2 for a, b in zip(mine, theirs)))
    norm = math.sqrt(sum(b * b for b in theirs))
    ratio = difference / norm if norm else difference
    return ratio if math.isfinite(ratio) and len(mine) == len(theirs) else math.inf
