"""step_training.py: steps of `./run gpu` that train GPT-2: beside PyTorch, with one option more, with offload."""

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from statistics import median

from setting import TORCH_SIDE, Failed, plan, say

# ---- GPT-2 -------------------------------------------------------------------------------------


def warm(s):
    """Compiles PyTorch's step of each size, so that the step gpt finds it in the cache: two at a time where the
    GPU's memory holds them and the tests beside them."""
    def one(gpt):
        got = subprocess.run([sys.executable, TORCH_SIDE, "warm", s.torch, "bf16",
                              *map(str, gpt.arguments)], stdout=subprocess.PIPE, text=True,
                             check=False)
        return gpt.name, got.returncode, got.stdout.strip()
    if s.torch:
        with ThreadPoolExecutor(2 if s.gpu_bytes >= 100e9 else 1) as pool:
            for name, status, text in pool.map(one, s.plan.gpt):
                say(name=name, **({"failed": f"status {status}"} if status else {"said": text}))


def gpt_worker(s, side, gpt, *how):
    if side == "memtape":
        return s.memtape("gpt", s.kind, "bf16", *gpt.arguments, *how)
    return s.peer("gpt", s.torch, "bf16", *gpt.arguments, side)


class GptRun:
    """One side's steps of one size. Sides that alternate free their memory in between."""

    def __init__(self, s, side, gpt, *how, alone=False):
        self.side, self.tokens, self.alone = side, gpt.b * gpt.s, alone
        self.worker = gpt_worker(s, side, gpt, *how)
        self.losses, self.ns = [], []
        self.gradients = self.worker.ask("gradients") if alone and side == "memtape" else None
        self.run(2)
        self.n = max(1, int(s.plan.gpt_seconds / 3 * 1e9 / (self.run(2) / 2)))
        self.rest()

    def run(self, n):
        said = dict(self.worker.ask("steps", n))
        self.losses.append(float(said["loss"]))
        return int(said["ns"])

    def rest(self):
        if not self.alone:
            self.worker.ask("rest")

    def round(self):
        if not self.alone:
            self.run(1)  # allocates its memory again
        self.ns.append(self.run(self.n) / self.n)
        self.rest()

    def row(self):
        self.last = last = self.worker.end()
        row = {"side": self.side, "ms": median(self.ns) / 1e6, "least_ms": min(self.ns) / 1e6,
               "most_ms": max(self.ns) / 1e6, "tokens_per_s": self.tokens / median(self.ns) * 1e9,
               "losses": self.losses}
        if "memory" in last:
            row["peak_allocated"], row["peak_reserved"] = map(int, last["memory"][-2:])
        if "flops" in last:
            row |= {"flop": int(last["flops"][0]), "parameters": int(last["parameters"][0])}
        if not (self.alone or self.losses[-1] < self.losses[0]):
            row["wrong"] = f"the loss went from {self.losses[0]} to {self.losses[-1]}"
        return row


def alone(s, gpt, side, *how):
    """Training steps of one size, with nothing else on the device."""
    run = GptRun(s, side, gpt, *how, alone=True)
    for _ in range(3):
        run.round()
    row = {"name": gpt.name, "tokens": run.tokens, **run.row(), "last": run.last}
    if run.gradients:
        row["gradient_bytes"], row["gradient_hash"] = int(run.gradients[0][1]), run.gradients[0][2]
    return row


def one_gpt(s, gpt):
    runs = []
    for side in ("memtape", "eager", "compile") if s.torch else ("memtape",):
        try:
            runs.append(GptRun(s, side, gpt))
        except Failed as failure:
            say(name=gpt.name, side=side, failed=str(failure))
    for _ in range(3):
        for run in list(runs):
            try:
                run.round()
            except Failed as failure:
                say(name=gpt.name, side=run.side, failed=str(failure))
                runs.remove(run)
    for run in runs:
        try:
            say(name=gpt.name, tokens=run.tokens, **run.row())
        except Failed as failure:
            say(name=gpt.name, side=run.side, failed=str(failure))


def gpt(s):
    sides = ("memtape", "eager", "compile") if s.torch else ("memtape",)
    plan(f"{size.name} {side}" for size in s.plan.gpt for side in sides)
    for size in s.plan.gpt:
        if s.time_for(25):
            one_gpt(s, size)
        else:
            say(name=size.name, failed="no time left")


# ---- a step with one option more ---------------------------------------------------------------

VARIANTS = ("plain", "fused", "adamw8bit", "adafactor", "expandable")
SAME_LOSSES = ("expandable",)  # bit for bit those of the plain step


def variant_row(s, gpt, option):
    row = alone(s, gpt, "memtape", *([] if option == "plain" else [option]))
    row["side"] = option
    del row["last"]
    return row


def variants(s):
    plan(f"{gpt.name} {option}" for gpt in s.plan.variants for option in VARIANTS)
    for gpt in s.plan.variants:
        losses = {}
        for option in VARIANTS:
            if not s.time_for(6):
                say(name=gpt.name, side=option, failed="no time left")
                continue
            try:
                row = variant_row(s, gpt, option)
            except Failed as failure:
                say(name=gpt.name, side=option, failed=str(failure))
                continue
            losses[option] = row["losses"][0]
            if option in SAME_LOSSES and losses[option] != losses.get("plain", losses[option]):
                row["wrong"] = f"the loss is {losses[option]}, without it {losses['plain']}"
            say(**row)


# ---- offload -----------------------------------------------------------------------------------


def offload_row(s, label, side, *how):
    row = alone(s, s.plan.offload, side, *how)
    last = row.pop("last")
    row["side"] = label
    for key in ("out", "in", "lowered", "in_vain", "host_peak"):
        if key in last:
            row[key] = int(last[key][0])
    if "peak_in_step" in last:
        row["peak_in_step"], row["peak_in_step_without"] = map(int, last["peak_in_step"])
        copy_s, wait_s, hidden = map(float, last["copying"])
        row |= {"copy_ms": copy_s * 1e3, "wait_ms": wait_s * 1e3, "hidden": hidden}
    return row


def check_offload(row, without):
    """The gradients must have the same bits, and the peak must be lower: of the bytes allocated in a step, and
    so of the device's memory."""
    if without.get("gradient_hash") != row["gradient_hash"]:
        row["wrong"] = "the gradients are not those of the steps without offload, bit for bit"
    elif not row["peak_in_step"] < row["peak_in_step_without"] or (
            not row["peak_allocated"] < without["peak_allocated"]):
        row["wrong"] = (f"the peak is {row['peak_allocated']} bytes, without offload "
                        f"{without['peak_allocated']}")


def offload(s):
    sides = [("memtape", "memtape", ())]
    sides += [(f"memtape, {out} out, {max(0, ahead)} ahead", "memtape", (f"offload={out},{ahead}",))
              for out, ahead in s.plan.in_flight]
    if s.torch:
        sides += [("torch", "eager", ()), ("torch save_on_cpu", "offload", ())]
    without = {}
    plan(f"{s.plan.offload.name} {label}" for label, _, _ in sides)
    for label, side, how in sides:
        if not s.time_for(10):
            say(name=s.plan.offload.name, side=label, failed="no time left")
            continue
        try:
            row = offload_row(s, label, side, *how)
        except Failed as failure:
            say(name=s.plan.offload.name, side=label, failed=str(failure))
            continue
        if not how:
            without[side] = row
        elif "memtape" in without:
            check_offload(row, without["memtape"])
        say(**row)
