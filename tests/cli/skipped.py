"""A loss scaler skips steps whose gradients overflow. That the second measured step was skipped is said, and such a run is
not compared with meta's, where every step is made."""
import os
import subprocess
from lib import MEMTAPE, check, equal, done, profile, run

F16 = ["--dtype", "f16", "--optimizer", "adamw", "--loss-scale", "dynamic"]
SKIPS = ["gpt", "-b", "1", "-s", "1", "-d", "16", "-l", "1", *F16]  # its second step, too
STEPS = ["gpt", "-b", "2", "-s", "16", "-d", "32", *F16]           # its first step alone


def said_in_text_and_json():
    for words, skipped in (SKIPS, True), (STEPS, False):
        scale = profile(*words)["spared"]["loss_scale"]
        equal(scale["second_skipped"], skipped, f"the second step of {words}: {scale}")
        text = run("profile", *words, "-v").stdout
        check(f"{scale['skipped']} skipped" in text, f"{words}: the number of skipped steps: {text}")
        equal("meta counts it as made" in text, skipped, f"{words}: said of the second step")
        meta = profile(*words, "--device", "meta")["spared"]["loss_scale"]
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


said_in_text_and_json()
left_out_of_a_sweep()
left_out_among_ranks()
done()
