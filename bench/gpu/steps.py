"""steps.py: one step of `./run gpu`, in its own process. It prints each result at once (setting.py).

An object with "wrong" is a failed check, one with "failed" could not be measured; the step continues after
both. The first, "plan", names the rows to come, so that those of a step that is cut off can be named."""

from setting import Setting
from step_checks import curve, sanitizer, saved, suite
from step_kernels import attention, gemm, limits, memory
from step_launches import step_launches
from step_modules import modules
from step_snapshot import snapshot
from step_trainers import trainers
from step_training import gpt, offload, variants, warm

STEPS = {"suite": suite, "saved": saved, "curve": curve, "limits": limits, "memory": memory,
         "gemm": gemm, "attention": attention, "warm": warm, "gpt": gpt, "offload": offload,
         "sanitizer": sanitizer, "variants": variants, "snapshot": snapshot,
         "trainers": trainers, "modules": modules, "launches": step_launches}

if __name__ == "__main__":
    setting = Setting(STEPS)
    STEPS[setting.step](setting)
