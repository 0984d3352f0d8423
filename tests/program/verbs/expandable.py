"""Expandable segments: what the program reserves on the CPU, and on the CUDA backend's simulator, is what the meta
device foresees, to the byte; bits and allocated bytes are those of other segments; what is refused says why."""
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from lib import MEMTAPE, check, done, equal, profile, run

FOLDER = Path(tempfile.mkdtemp())
GPT = ["gpt", "-l", 4, "-d", 64, "-a", 4, "-b", 4, "-s", 64, "--optimizer", "adamw"]
EXPANDABLE = ["--expandable-segments"]
KINDS = [EXPANDABLE, [*EXPANDABLE, "--recipe", "plain:granule=64KiB"], [*EXPANDABLE, "--recipe", "plain:granule=4KiB", "--recipe", "plain:reclaim"]]
LONG = os.environ.get("MTT_LONG") == "1"
# What users combine it with.
OTHERS = [[], ["--checkpoint", "full"], ["--offload", "cpu"], ["--offload", "disk"], ["--compress", "8bit"],
          ["--dropout", 0.1], ["--lora-rank", 4], ["--dtype", "bf16"], ["--amp", "bf16"], ["--budget", "6MB"],
          ["--dtype", "bf16", "--master-weights", "--recipe", "plain:step-in-backward"], ["--act", "relu", "--inplace"],
          ["--dtype", "bf16", "--attention", "math", "--loss", "fused"]]


def books(p):
    """What must be equal on all devices."""
    phases = p["phases"] + p["steady"]["phases"]
    return [(x["name"], x["allocated"], x["peak"], x["reserved"]) for x in phases], p["steady"]["by_category"]


def meta_foresees_the_cpu():
    for others in OTHERS if LONG else OTHERS[::2]:
        own = profile(*GPT, *others, "--device", "meta", "--recipe", "plain:scratch=cpu", "--threads", 2)
        reserved = []
        for kind in KINDS:
            cpu, meta = (profile(*GPT, *others, *kind, "--threads", 2, "--device", *device)
                         for device in (["cpu"], ["meta", "--recipe", "plain:scratch=cpu"]))
            equal(books(cpu), books(meta), f"{others} {kind}: on the CPU and on meta")
            equal(cpu["steady"]["peak"], own["steady"]["peak"], f"{others} {kind}: the peak of other segments")
            equal(cpu["left"]["given_back"], 0, f"{others} {kind}: bytes left")
            reserved.append(cpu["steady"]["reserved"])
        check(reserved[2] <= 1.02 * own["steady"]["peak"], f"{others}: {reserved[2]} reserved with --recipe plain:reclaim")
        check(reserved[0] > reserved[2] and reserved[1] >= reserved[2], f"{others}: {reserved}")


def ranks_are_foreseen():
    """Without MPI: a rank's books on meta do not depend on who runs; together.py has ranks that compute."""
    rank = ["gpt", "-l", 4, "-d", 64, "-a", 4, "-b", 4, "-s", 64, "--tp", 2, "--pp", 2, "--dp", 2, "--zero", 2,
            "--optimizer", "adamw", "--device", "meta"]
    own, reclaimed = profile(*rank), profile(*rank, *KINDS[2])
    equal(own["steady"]["peak"], reclaimed["steady"]["peak"], "a rank's peak")
    check(reclaimed["steady"]["reserved"] < own["steady"]["reserved"], "a rank's reserved bytes")


def a_capacity_is_used_up():
    """A step that gaps keep from fitting fits; and where it does not, the refusal names figures within the capacity."""
    gpt = ["gpt2", "-b", 32, "-s", 512, "--dtype", "bf16", "--optimizer", "adamw", "--device", "meta"]
    need = profile(*gpt)["steady"]["peak"]
    given = ["--capacity", f"{need * 102 // 100}B"]
    equal(run("profile", *gpt, *given).returncode, 1, "with segments of their own size")
    p = profile(*gpt, *given, *EXPANDABLE)
    check(p and need <= p["steady"]["reserved"] <= need * 102 // 100, "with expandable ones")
    p = run("profile", *gpt, "--capacity", f"{need - 1}B", *EXPANDABLE)
    equal(p.returncode, 1, "less than what is allocated at the peak")
    check("out of memory" in p.stderr and "of a capacity of" in p.stderr, p.stderr)


def trained(name, *options):
    p = run("train", "--data", __file__, "-b", 2, "-s", 16, "-d", 32, "-a", 2, "-l", 2, "--seed", 5, "--dropout", 0.1,
            *options, "--save", name, cwd=FOLDER)
    equal(p.returncode, 0, f"train {options}: {p.stderr}")
    return (FOLDER / name).read_bytes()


def training_has_the_same_bits():
    own = trained("own.safetensors", "--steps", 12)
    for kind in KINDS:
        check(trained("a.safetensors", "--steps", 12, *kind) == own, f"{kind}: other weights")
    (FOLDER / "saves").mkdir()
    p = run("train", "--data", __file__, "-b", 2, "-s", 16, "-d", 32, "-a", 2, "-l", 2, "--seed", 5, "--dropout", 0.1,
            "--steps", 12, "--save", "saves", "--save-every", 6, *KINDS[2], cwd=FOLDER)
    equal(p.returncode, 0, p.stderr)
    p = run("train", "--resume", "saves/step-6.safetensors", "--data", __file__, *KINDS[1], "--save", "b.safetensors",
            cwd=FOLDER)
    equal(p.returncode, 0, p.stderr)
    check((FOLDER / "b.safetensors").read_bytes() == own, "saved with one kind, resumed with another: other weights")


def refusals_are_clear():
    for words, options in [(["granule", "6000", "4096"], [*EXPANDABLE, "--recipe", "plain:granule=6000B"]),
                           (["granule", "--expandable-segments"], ["--recipe", "plain:granule=64KiB"]),
                           (["reclaim", "--expandable-segments"], ["--recipe", "plain:reclaim"]),
                           (["granule", "4096"], [*EXPANDABLE, "--recipe", "plain:granule=512B"])]:
        p = run("profile", *GPT, *options)
        equal((p.returncode, p.stdout), (2, ""), f"{options}: {p.stderr}")
        check(all(word in p.stderr for word in words), f"{options}: {p.stderr}")


def few_addresses_are_enough():
    """Where the process may have few addresses, segments have fewer, and what does not fit is refused."""
    limited = ["bash", "-c", 'ulimit -v 3000000; exec "$@"', "-", MEMTAPE, "profile", *map(str, GPT), *EXPANDABLE]
    p = subprocess.run(limited, capture_output=True, text=True, timeout=600, check=False)
    if "AddressSanitizer" in p.stderr:
        print("skipped: few addresses: AddressSanitizer needs many itself")
        return
    equal(p.returncode, 0, f"3 GB of addresses: {p.stderr}")
    p = subprocess.run([*limited, "-b", "4096", "-s", "64", "-d", "512"], capture_output=True, text=True, timeout=600,
                       check=False)
    equal(p.returncode, 1, f"far too large: {p.stderr}")


def the_simulated_gpu_is_foreseen():
    """Page-locked memory and scratch are its own; granules are multiples of 2 MiB."""
    if "MEMTAPE_CUDASIM_MODULE" not in os.environ:
        print("skipped: no CUDA simulator")
        return
    small = ["gpt", "-l", 2, "-d", 32, "-a", 2, "-b", 2, "-s", 16, "--optimizer", "adamw"]
    for kind in (EXPANDABLE, [*EXPANDABLE, "--recipe", "plain:granule=2MiB", "--recipe", "plain:reclaim"]):
        p = profile(*small, "--device", "cudasim", *kind)
        check(p and p["steady"]["reserved"] % (2 << 20) == 0 and p["left"]["given_back"] == 0, f"simulator: {kind}")
        own = trained("g.safetensors", "--steps", 8, "--device", "cudasim")
        check(trained("h.safetensors", "--steps", 8, "--device", "cudasim", *kind) == own, f"simulator: {kind}: bits")
    p = run("profile", *small, "--device", "cudasim", *EXPANDABLE, "--recipe", "plain:granule=64KiB")
    equal(p.returncode, 1, "a granule below the driver's")
    check("2097152" in p.stderr, p.stderr)


meta_foresees_the_cpu()
ranks_are_foreseen()
a_capacity_is_used_up()
training_has_the_same_bits()
refusals_are_clear()
few_addresses_are_enough()
the_simulated_gpu_is_foreseen()
shutil.rmtree(FOLDER)
done()
