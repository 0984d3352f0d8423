"""A loss scaler skips steps whose gradients overflow. That the second measured step was skipped is said, and such a run is
not compared with meta's, where every step is made."""
import json
import os
import re
import subprocess
import tempfile
from pathlib import Path
from lib import MEMTAPE, check, equal, done, profile, run

F16 = ["--dtype", "f16", "--optimizer", "adamw", "--loss-scale", "dynamic"]
SKIPS = ["gpt", "-b", "1", "-s", "1", "-d", "16", "-l", "1", *F16]  # its second step, too
STEPS = ["gpt", "-b", "2", "-s", "16", "-d", "32", *F16]           # its first step alone


def said_in_text_and_json():
    for words, skipped in (SKIPS, True), (STEPS, False):
        scale = profile(*words)["memory_options"]["loss_scale"]
        equal(scale["second_skipped"], skipped, f"the second step of {words}: {scale}")
        text = run("profile", *words, "-v").stdout
        check(f"{scale['skipped']} skipped" in text, f"{words}: the number of skipped steps: {text}")
        equal("meta counts it as made" in text, skipped, f"{words}: said of the second step")
        meta = profile(*words, "--device", "meta")["memory_options"]["loss_scale"]
        equal([meta["skipped"], meta["second_skipped"]], [None, None], f"{words} on meta")
        check("not known without data" in run("profile", *words, "-v", "--device", "meta").stdout, f"{words}: meta's text")


def left_out_of_a_sweep():
    out = run("sweep", *SKIPS, "--row", "one: --act relu").stdout
    check("one: the loss scaler has skipped the step" in " ".join(out.split()), f"a sweep: {out}")
    out = run("sweep", *STEPS, "--row", "one: --act relu").stdout
    check("skipped" not in out, f"a sweep: {out}")


def left_out_among_ranks():
    mpirun = os.environ.get("MPIRUN", "")
    if not mpirun:
        print("skipped: no MPI: ranks are not run")
        return
    p = subprocess.run([*mpirun.split(), "-n", "2", MEMTAPE, "profile", *SKIPS, "--dp", "2"], capture_output=True, text=True,
                       check=False, timeout=200)
    equal(p.returncode, 0, f"status of two ranks: {p.stderr}")
    equal(p.stdout.count("step skipped"), 6, f"rows of two ranks: {p.stdout}")
    # Of a training only that of the first two steps is compared that were made.
    for scale, steps, made in (2**40, 3, 0), (2**40, 1, 0), ("dynamic", 40, 2), (8, 1, 1):
        with tempfile.TemporaryDirectory() as folder:
            p = subprocess.run([*mpirun.split(), "-n", "2", MEMTAPE, "train", "--data", __file__, "-b", "2", "-s", "4", "-d", "16",
                                "-a", "2", "-l", "1", "--dtype", "f16", "--dp", "2", "--loss-scale", str(scale), "--steps",
                                str(steps), "--json", f"{folder}/ranks"], capture_output=True, text=True, check=False, timeout=200)
            equal(p.returncode, 0, f"status of ranks that train: {p.stderr}")
            ranks = json.loads(Path(folder, "ranks").read_text())["ranks"]
        equal(p.stdout.count("step skipped"), 0 if made else 6, f"rows of {steps} steps with scale {scale}: {p.stdout}")
        said = re.search(r"(\d+) of \d+ steps skipped", p.stdout)
        for r in ranks:
            equal([r["compared"], str(r["skipped"])], [made > 0, said[1]], f"rank of {steps} steps with scale {scale}")
            check(not made or {k: r[k] for k in r["predicted"]} == r["predicted"], f"{steps} steps with scale {scale}: {r}")


said_in_text_and_json()
left_out_of_a_sweep()
left_out_among_ranks()
done()
