#!/usr/bin/env python3
"""lora_experts.py LIBMEMTAPE_CASES MEMTAPE: adapters on the weights of a mixture's experts (`--recipe plain:lora-on-weights`) beside PEFT's
target_parameters: the storages that the tape keeps, byte for byte. Without PEFT its ParamWrapper is written out: W + (alpha / r) B A
by one baddbmm, where a module of torch's parametrize puts the sum in the weight's place. Exit status 77 without Transformers."""

import sys

from transformers_parity import EIGHT, ODD, Case, Storage, bytes_faults, our_profile, our_storages, their_model, their_run
import torch

try:
    import peft
except ImportError:
    peft = None

RANK = 4
NAMES = ("gate_up_proj", "down_proj")


class OnWeight(torch.nn.Module):
    """W + B A of each expert; A [experts r, in] and B [out, r experts] have the adapters' dtype."""

    def __init__(self, weight, dtype):
        super().__init__()
        self.experts, out, into = weight.shape
        self.a = torch.nn.Parameter(torch.randn(self.experts * RANK, into).to(dtype))
        self.b = torch.nn.Parameter(torch.zeros(out, RANK * self.experts, dtype=dtype))

    def forward(self, weight):
        a = self.a.reshape(self.experts, RANK, -1)
        b = self.b.reshape(self.b.shape[0], RANK, self.experts).permute(2, 0, 1)
        return torch.baddbmm(weight, b.to(weight.dtype), a.to(weight.dtype))


def adapted(model):
    if peft:
        return peft.get_peft_model(model, peft.LoraConfig(
            r=RANK, lora_alpha=RANK, target_modules=[], target_parameters=[f"mlp.experts.{name}" for name in NAMES]))
    model.requires_grad_(False)
    for module in list(model.modules()):
        for name in NAMES if hasattr(module, "down_proj") and isinstance(module.down_proj, torch.nn.Parameter) else ():
            # autocast_adapter_dtype: adapters of 16-bit models are in f32
            torch.nn.utils.parametrize.register_parametrization(module, name, OnWeight(getattr(module, name), torch.float32))
            module.parametrizations[name].original.requires_grad_(False)
    return model


def cases():
    for family in ("mixtral", "qwen3_moe", "olmoe"):
        for dtype in ("f32", "bf16"):
            yield Case(family, "sdpa", dtype, sizes=EIGHT)
        yield Case(family, "sdpa", "f32", 3, 17, ODD | {"experts": 5, "k": 3})


def main(program):
    torch.set_num_threads(1)
    n = failed = 0
    for case in cases():
        model = their_model(case)
        profile = our_profile(program, case, model, "--recipe", "hf", "--lora-rank", str(RANK), "--recipe", "plain:lora-on-weights",
                              "--lora-targets", "experts_gate_up,experts_down",
                              *(["--recipe", "plain:f32-adapters"] if case.dtype == "bf16" else []))
        theirs, _ = their_run(case, adapted(model))
        # Nothing before the first layer's experts is trained, so its attention keeps no generator's state.
        ours = our_storages(profile) + 2 * [Storage(8, (), "i64", "", "")]
        faults = list(bytes_faults(case, ours, theirs))
        for fault in faults:
            print(f"FAILED: {case.name}: {fault}")
        n, failed = n + 1, failed + bool(faults)
    print(f"PEFT {peft.__version__}" if peft else "PEFT's ParamWrapper, written out")
    print(f"{n} models compared, {failed} failed")
    return failed > 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[2]))
