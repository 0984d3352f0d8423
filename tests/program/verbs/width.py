"""A terminal of 80 columns: every line of each verb fits, the answer is on the first screen, and no name is cut; in a pipe
nothing is."""
import os
import shutil
import tempfile
from pathlib import Path
from lib import MEMTAPE, check, done, equal, run
from terminal import Terminal

CONFIGS = Path(__file__).parents[2] / "models" / "nn" / "configs"
FSDP = ["--dp", 8, "--zero", 3, "--dtype", "bf16", "--recipe", "plain:fsdp=torchtitan", "--optimizer", "adamw", "--recipe", "hf", "--loss", "unfused", "--checkpoint", "ops"]
LORA = ["--dtype", "bf16", "--optimizer", "adamw-16bit", "--lora-rank", 64, "--lora-targets", "q,v,proj,gate,up,down",
        "--checkpoint", "full", "--offload", "cpu", "--loss", "chunked", "--recipe", "plain:kv-groups=repeated"]
WIDE = ["--dp", 6, "--tp", 8, "--sp", "--pp", 64, "--microbatches", 512, "--zero", 1, "--dtype", "bf16",
        "--master-weights", "--optimizer", "adamw"]
SCREEN = 27  # lines: 24, or a few more where many options were given


def on_a_screen(most, answer, *args):
    """In at most that many lines, with the answer in the first twelve; what it prints."""
    line = " ".join(map(str, args))
    t = Terminal([MEMTAPE, *map(str, args)], columns=80)
    status, shown = t.wait(), t.screen.text()
    t.hang_up()
    equal(status, 0, f"status of: {line}")
    equal(t.screen.faults, [], f"faults of: {line}")
    lines = shown.splitlines()
    check(len(lines) <= most, f"{line}: {len(lines)} lines")
    check(any(answer in each for each in lines[:12]), f"{line}: no {answer!r} in its first lines:\n{shown}")
    check("\u2026" not in shown, f"{line}: cut on the terminal:\n{shown}")
    check("\u2026" not in run(*args).stdout, f"{line}: cut in a pipe")
    return shown


with tempfile.TemporaryDirectory() as folder:
    long = "a-model-with-a-name-of-many-letters-version-17.json"
    shutil.copy(CONFIGS / "smollm2-135m.json", Path(folder) / long)
    os.chdir(folder)
    peak, meta = "The peak of a training step", ["--device", "meta"]
    on_a_screen(SCREEN, peak, "profile", "llama-3.1-8b", "-b", 2, "-s", 8192, *FSDP, *meta)
    on_a_screen(SCREEN, peak, "profile", "megatron-1t", "-s", 2048, *WIDE, *meta)
    on_a_screen(SCREEN, peak, "profile", CONFIGS / "llama-3.2-3b.json", "-b", 2, "-s", 4096, *LORA, *meta)
    on_a_screen(SCREEN, peak, "profile", CONFIGS / "gemma-2-2b.json", "-b", 1, "-s", 4096, "--capacity", "2TiB", *meta)
    on_a_screen(SCREEN, peak, "plan", "llama-3.1-8b", "-s", 8192, "--tp", 8, "--sp", "--capacity", "80GiB")
    on_a_screen(SCREEN + 4, peak, "plan", "gpt3-175b", "-b", 64, "--tokens", "300B", "--gpus", 1024, "--flops-rate", "312T")
    on_a_screen(SCREEN + 4, peak, "profile", "gpt", "-l", 8, "-b", 8, "--budget", "8MiB")
    on_a_screen(SCREEN, "Kept for backward", "explain", "llama-3.1-8b", "-s", 131072, "--recipe", "hf", *meta)
    shown = on_a_screen(SCREEN, "fits: ", "fit", long, "--gpus", 8, "--gpu", "h100:price=2.5", "-s", 512, "--tokens",
                        "15T", "--tp", 1, "--pp", 1)
    check(long in shown, f"fit: no {long} in\n{shown}")
    shown = on_a_screen(SCREEN, "fits: ", "serve", long, "--gpu", "rtx4090", "-s", 2048, "--weights", "plain", "--kv-cache",
                        "8bit")
    check(long in shown, f"serve: no {long} in\n{shown}")
    on_a_screen(40, "act=relu checkpoint=full", "sweep", "block", "--over", "act=gelu,relu", "--over", "checkpoint=none,full")
    shown = on_a_screen(60, "lora-targets=attn.proj", "sweep", "llama-3.1-8b", "-s", 2048, "--dp", 8, "--lora-rank", 4,
                        "--over", "recipe=ddp,zero3,fsdp2", "--over", "offload=none,cpu", "--over",
                        "lora-targets=attn.proj,q,k", *meta)
    equal(shown.count("lora-targets=k"), 6, "labels that go on in a second line")
    shown = on_a_screen(60, "saved", "sweep", CONFIGS / "llama-3.2-3b.json", "-s", 2048, "--dp", 8, *meta, "--over",
                        "zero=0,1,2,3")
    check("L(12bsh + 4bsk + 6bsf)" in shown and "keys of width k" in " ".join(shown.split()), f"sweep's letters:\n{shown}")
done()
