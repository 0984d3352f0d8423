"""The program and the system: signals, readers that go away, limits on memory, files and stack, and files
that are named twice."""
import itertools
import json
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from lib import MEMTAPE, VERBS, check, done, equal, options_of, refused, run

LONG = os.environ.get("MTT_LONG") == "1"
folder = tempfile.TemporaryDirectory()
os.chdir(folder.name)
with open("text", "w") as f:
    f.write("".join(chr(97 + i * i % 23) for i in range(3000)))
TINY = ["--data", "text", "-l", 1, "-d", 16, "-a", 2, "-s", 16, "-b", 2]


def contents(name):
    with open(name, "rb") as f:
        return f.read()


def step_of(name):
    data = contents(name)
    header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")])
    return int(header["__metadata__"]["memtape.step"])


# ---- signals ----

def long_run(*args, ignored=(), **more):
    """Starts a run and waits until it prints that training has begun."""
    def ignore():
        for number in ignored:
            signal.signal(number, signal.SIG_IGN)
    args = map(str, ["train", *TINY, "--steps", 10**6, *args])
    p = subprocess.Popen([MEMTAPE, *args], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                         preexec_fn=ignore, **more)
    for line in p.stdout:
        if line.startswith("run "):
            break
    time.sleep(0.3)
    return p


def first_signal_saves_the_run_and_sets_the_status():
    for number in [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]:
        name = f"signal-{number}"
        p = long_run("--save", name)
        p.send_signal(number)
        _, err = p.communicate(timeout=60)
        equal(p.returncode, 128 + number, f"status after signal {number}: {err}")
        check("the run is saved" in err, f"the save is reported: {err}")
        check(step_of(name) > 0, "the file holds the number of steps")


def closed_terminal_signals_twice_and_the_run_is_saved():
    p = long_run("--save", "hangup")
    p.send_signal(signal.SIGHUP)
    p.send_signal(signal.SIGHUP)
    _, err = p.communicate(timeout=60)
    equal(p.returncode, 128 + signal.SIGHUP, f"status: {err}")
    check(step_of("hangup") > 0, "saved")


# The steps are long, so the second signal comes before the program acts on the first.
SLOW = ["-d", 256, "-l", 2, "-s", 256, "-b", 8]


def signals_of_several_kinds_are_one_request():
    """systemd sends SIGTERM and SIGHUP, mpirun and systemd both SIGTERM: in whatever order they come, the run is saved."""
    all_three = [signal.SIGINT, signal.SIGTERM, signal.SIGHUP]
    orders = [[signal.SIGTERM] * 2, [signal.SIGHUP] * 3, [signal.SIGTERM, signal.SIGHUP] * 2, all_three]
    for numbers in [*itertools.permutations(all_three, 2), *orders] if LONG else orders:
        for apart in (0, 0.05) if LONG else (0,):
            p = long_run(*SLOW, "--save", "several")
            for number in numbers:
                p.send_signal(number)
                time.sleep(apart)
            _, err = p.communicate(timeout=60)
            check(p.returncode in [128 + number for number in numbers], f"status after {numbers}: {p.returncode}, {err}")
            check(os.path.exists("several") and step_of("several") > 0, f"saved after {numbers}")
            if os.path.exists("several"):
                os.remove("several")


def wait_until_delivered(p, number):
    def pending():
        with open(f"/proc/{p.pid}/status") as f:
            return any(int(mask, 16) >> (number - 1) & 1 for mask in re.findall(r"(?:Sig|Shd)Pnd:\s*(\w+)", f.read()))
    while pending():
        time.sleep(0.01)
    time.sleep(0.05)


def same_signal_again_ends_the_program():
    for number, apart in [(signal.SIGINT, 0), (signal.SIGTERM, 3.1), (signal.SIGHUP, 3.1)]:
        p = long_run(*SLOW, "--accumulate", 200, "--save", "never")
        p.send_signal(number)
        wait_until_delivered(p, number)
        if apart:  # stopped, it does not compute while time passes
            p.send_signal(signal.SIGSTOP)
            time.sleep(apart)
            p.send_signal(signal.SIGCONT)
        p.send_signal(number)
        p.communicate(timeout=60)
        equal(p.returncode, -number, f"status after {number} twice")
    check(not os.path.exists("never"), "nothing was saved")


def ignored_signals_stay_ignored():
    p = long_run("--save", "ignored", ignored=[signal.SIGHUP, signal.SIGINT])
    for number in [signal.SIGHUP, signal.SIGINT, signal.SIGHUP]:
        p.send_signal(number)
    time.sleep(0.3)
    equal(p.poll(), None, "the run goes on, as under nohup")
    p.send_signal(signal.SIGTERM)
    p.communicate(timeout=60)
    equal(p.returncode, 143, "status after SIGTERM")
    check(step_of("ignored") > 0, "saved")


# ---- readers that go away, full disks ----

def with_lost_reader(*args, **more):
    """Runs the program with a standard output whose reader has gone."""
    read, write = os.pipe()
    os.close(read)
    try:
        return subprocess.run([MEMTAPE, *map(str, args)], stdout=write, stderr=subprocess.PIPE,
                              text=True, timeout=120, **more)
    finally:
        os.close(write)


def files_are_written_even_if_standard_output_fails():
    budget = ["--budget", "100MB"]
    for args, files in [
            (["train", *TINY, "--steps", 30, "--save", "o1"], ["o1"]),
            (["profile", "mlp", "--json", "o1", "--svg", "o2", "--trace", "o3", "--html", "o4"], ["o1", "o2", "o3", "o4"]),
            (["profile", "mlp", "--timeline", "--json", "-", "--svg", "o1"], ["o1"]),
            (["sweep", "mlp", "--over", "act=relu,gelu", "--device", "meta", "--json", "o1", "--svg", "o2",
              "--html", "o3"], ["o1", "o2", "o3"]),
            (["sweep", "mlp", "--over", "act=relu,gelu", "--device", "meta", "--json", "-", "--svg", "o1"],
             ["o1"]),
            (["plan", "gpt", *budget, "--json", "o1", "--svg", "o2", "--html", "o3"], ["o1", "o2", "o3"]),
            (["plan", "gpt", *budget, "--json", "-", "--svg", "o1"], ["o1"])]:
        wanted = {}
        p = run(*args)
        equal(p.returncode, 0, f"status of {args}: {p.stderr}")
        for name in files:
            wanted[name] = len(contents(name)) > 0
            os.remove(name)
        for full in [False, True]:
            p = run(*args, stdout=open("/dev/full", "w")) if full else with_lost_reader(*args)
            equal(p.returncode, 1 if full else 128 + signal.SIGPIPE, f"status of {args}, {full=}: {p.stderr}")
            check(("standard output: " in p.stderr and "Success" not in p.stderr) if full else not p.stderr,
                  f"a full disk is reported, a reader that has gone is not: {p.stderr}")
            for name in files:
                check(os.path.exists(name) and os.path.getsize(name) > 0, f"{args}: {name} is written")
                os.remove(name)
    p = with_lost_reader("train", *TINY, "--steps", 10**7)
    equal(p.returncode, 128 + signal.SIGPIPE, "status of a long run whose reader has gone")


def file_size_limit_is_an_error():
    def limit():
        resource.setrlimit(resource.RLIMIT_FSIZE, (10000, 10000))

    for verb in (["train", *TINY, "--steps", 2, "--save"], ["profile", "mlp", "--device", "meta", "--html"],
                 ["profile", "mlp", "--device", "meta", "--timeline", "--json"]):
        run(*verb, "limited")
        before = contents("limited")
        p = run(*verb, "limited", preexec_fn=limit)
        equal(p.returncode, 1, f"status: {p.stderr}")
        check("limited" in p.stderr and "too large" in p.stderr, f"the reason is reported: {p.stderr}")
        equal(contents("limited"), before, f"the old file of {verb[0]} is unchanged")
    equal([n for n in os.listdir(".") if ".tmp-" in n], [], "no part of a new file is left")


def part_of_a_killed_save_is_cleaned_up():
    os.mkdir("killed")
    big = ["train", "--data", "text", "-l", 4, "-d", 128, "-a", 2, "-s", 16, "-b", 1, "-q", "--val-fraction", 0]
    left = 0
    for i in range(40):
        if left > 1:
            break
        p = subprocess.Popen([MEMTAPE, *map(str, [*big, "--steps", 10**6, "--save", "killed/run", "--save-every", 1])])
        deadline = time.time() + 60
        while time.time() < deadline and not os.listdir("killed"):
            time.sleep(0.001)
        time.sleep(0.003 * i)
        p.kill()
        p.wait()
        left += any(".tmp-" in n for n in os.listdir("killed"))
    check(left > 0, "no kill came in the middle of a save")
    p = run(*big, "--steps", 1, "--save", "killed/run")
    equal((p.returncode, os.listdir("killed")), (0, ["run"]), f"the next save: {p.stderr}")


# ---- short of address space ----

def every_limit_on_address_space_ends_in_success_or_an_error():
    """OpenBLAS repeats a refused request for its buffer for ever, so memtape must refuse first; also where the process
    may not use all processors, whose buffers are mapped all the same."""
    one = {min(os.sched_getaffinity(0))}

    def limited(mib, processors):
        os.sched_setaffinity(0, processors)
        resource.setrlimit(resource.RLIMIT_AS, (mib << 20, mib << 20))

    for threads, processors in [(None, os.sched_getaffinity(0)), (None, one), ("1", one)] + [("2", one)] * LONG:
        environment = {k: v for k, v in os.environ.items() if k != "OMP_NUM_THREADS"}
        if threads:
            environment["OMP_NUM_THREADS"] = threads
        seen, most = [], 100 + 2 * 128 * (os.cpu_count() if not threads else int(threads)) + 500
        for mib in range(60, most, 2 if len(sys.argv) > 1 else 20 if LONG else 60):
            p = run("train", "--data", "text", "-l", 2, "-d", 128, "-a", 2, "-s", 64, "-b", 8, "-q",
                    "--steps", 1, env=environment, timeout=60,
                    preexec_fn=lambda: limited(mib, processors))
            seen.append(p.returncode)
            if p.returncode:
                check(p.returncode in (1, 127) and re.search("memory|map segment|cannot allocate|creation failed", p.stderr),
                      f"{mib} MiB, {threads} threads, processors {processors}: status {p.returncode}, {p.stderr!r}")
            elif seen[-5:] == [0] * 5:
                break
        equal(seen[-1], 0, f"status with enough address space, {threads} threads")
        check(1 in seen, "no limit was too small")


def openblas_that_does_not_know_the_cpu_is_told_which_kernels_to_use():
    if not (os.path.exists("/proc/cpuinfo") and " avx2 " in open("/proc/cpuinfo").read()):
        print("skipped: a CPU without AVX2 has the kernels it needs")
        return
    plain = {name: value for name, value in os.environ.items() if name != "OPENBLAS_CORETYPE"}
    old = plain | {"LD_PRELOAD": os.environ["OLD_OPENBLAS"]}
    for environment, wanted in [(old, "kernels for (SkylakeX|Haswell), OPENBLAS_CORETYPE=(SkylakeX|Haswell)"),
                                (old | {"OPENBLAS_CORETYPE": "Nehalem"},
                                 "kernels for Nehalem, OPENBLAS_CORETYPE=Nehalem"),
                                (plain, "kernels for \\w+(, OPENBLAS_CORETYPE=\\w+)?")]:
        p = run("--version", env=environment)
        equal((p.returncode, p.stderr), (0, ""), f"status with {wanted}")
        check(re.fullmatch(f"memtape .*\nOpenBLAS [0-9.]+, {wanted}\n", p.stdout), f"{wanted}: {p.stdout!r}")


def small_stack_is_enough():
    def limited(*args, kib):
        return run(*args, preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_STACK, (kib << 10, kib << 10)))
    for kib in [64, 256] if LONG else [64]:
        for args in [["profile", "gpt"], ["profile", "llama", "--dtype", "bf16", "--timeline"],
                     ["profile", "gpt", "--budget", "2MB"], ["plan", "gpt"], ["plan", "llama", "--budget", "1GB"],
                     ["profile", "gpt", "--tp", 2, "--pp", 2, "--device", "meta"],
                     ["fit", "gpt", "--gpus", 4, "--gpu", "h100"], ["serve", "gpt", "--capacity", "9MiB"], ["sweep", "gpt", "--over", "act=relu,gelu", "--over", "attention=flash,math", "--steps", 1],
                     ["explain", "bert"], ["train", *TINY, "--steps", 2],
                     ["train", "--data", "text", "--preset", "llama-tiny", "--steps", 1]]:
            p = limited(*args, kib=kib)
            equal(p.returncode, 0, f"status of {args} on a stack of {kib} KiB: {p.stderr}")


# ---- control characters in a file do not reach the terminal ----

def text_of_a_file_is_shown_without_its_control_characters():
    for text in ['{"\x1b[2J": 1', '{"model_type": "\\u001b]0;x\\u0007\\u009b2J"}',
                 '{"model_type": "gpt2", "\\u001b[31m": {"a": 1}}',
                 '{"model_type": "gpt2", "n_embd": "\\u007f\x1b["}',
                 '{"model_type": "gpt2", "vocab_size": 64, "n_embd": 16, "n_layer": 1, "n_head": 2,'
                 ' "n_positions": 32, "_\\u001b[2J": 1}']:
        with open("hostile.json", "w") as f:
            f.write(text)
        p = run("profile", "./hostile.json", "--device", "meta")
        check(p.returncode in (0, 2) and p.stderr, f"{text!r}: status {p.returncode}")
        control = [c for c in p.stderr + p.stdout if c != "\n" and (c < " " or "\x7f" <= c < "\xa0")]
        equal(control, [], f"control characters for {text!r}: {p.stderr!r}")


# ---- files that are named twice ----

def output_is_never_the_file_of_an_input_or_of_another_output():
    run("train", *TINY, "--steps", 2, "--save", "base")
    run("train", "--data", "text", "--from", "base", "-s", 16, "--lora-rank", 2, "--steps", 1,
        "--save-adapter", "adapter")
    shutil.copy("text", "config.json")
    with open("config.json", "w") as f:
        json.dump({"model_type": "gpt2", "vocab_size": 64, "n_embd": 16, "n_layer": 1, "n_head": 2,
                   "n_positions": 32}, f)
    os.mkdir("saves")
    shutil.copy("base", "saves/step-10.safetensors")
    inputs = {"text": contents("text"), "base": contents("base"), "config.json": contents("config.json"),
              "saves/step-10.safetensors": contents("saves/step-10.safetensors")}
    os.symlink("text", "link-to-text")
    os.link("base", "link-to-base")
    os.symlink("new", "link-to-new")
    os.mkdir("sub")
    text, base = ["--data", "text"], ["--from", "base", "-s", 16, "--lora-rank", 2]
    lora = [*text, *base]
    bad = [
        ["train", *text, "--save", "text"],
        ["train", *text, "--save", "./sub/../text"],
        ["train", *text, "--save", os.path.join(folder.name, "text")],
        ["train", *text, "--save", "link-to-text"],
        ["train", *text, "--eval-every", 1, "--save-best", "text"],
        ["train", *text, "--eval-every", 1, "--save", "new", "--save-best", "link-to-new"],
        ["train", "--data", "link-to-text", "--save", "text"],
        ["train", "--data", "base", *text, "--save", "text"],
        ["train", *lora, "--save", "new", "--save-adapter", "new"],
        ["train", *lora, "--save", "new", "--save-adapter", "link-to-new"],
        ["train", *lora, "--save", "sub/new", "--save-adapter", "./sub/../sub/new"],
        ["train", *lora, "--save-adapter", "base"],
        ["train", *lora, "--save-adapter", "link-to-base"],
        ["train", *lora, "--save", "base"],
        ["train", *text, "--resume", "base", "--save-adapter", "base"],
        ["train", *lora, "--save", "saves", "--save-adapter", "saves/step-20.safetensors"],
        ["train", *text, "--from", "saves/step-10.safetensors", "-s", 16, "--save", "saves"],
        ["train", *text, "--snapshot", "text"],
        ["train", *text, "--snapshot", "saves/step-20.safetensors", "--save", "saves"],
        ["demo", *text, "--save", "text"],
        ["train", *text, "--preset", "moe-tiny", "--record-routing", "text"],
        ["train", *text, "--preset", "moe-tiny", "--save", "new", "--record-routing", "link-to-new"],
        ["profile", "moe-tiny:routing=recorded=text", "--device", "meta", "--json", "link-to-text"],
        ["sweep", "moe-tiny", "--device", "meta", "--over", "routing=worst,recorded=text", "--html", "text"],
        ["compare", "text", "gpt", "--json", "link-to-text"], ["compare", "base", "text", "gpt", "--json", "text"],
        ["fit", "./config.json", "--gpus", 2, "--gpu", "h100", "--json", "config.json"],
        ["fit", "gpt", "--gpus", 2, "--gpu", "h100", "--gpus-file", "text", "--json", "text"],
    ]
    for verb in [["profile"], ["plan", "--budget", "1GB"], ["sweep", "--over", "act=relu,gelu"]]:
        for output in ["json", "svg", "html", *(["trace", "snapshot"] if verb == ["profile"] else [])]:
            bad.append([*verb, "./config.json", f"--{output}", "config.json"])
            bad.append([*verb, "gpt", f"--{output}", "out", ">out"])
            bad.append([*verb, "gpt", f"--{output}", "/dev/stdout", ">out"])
        bad.append([*verb, "gpt", "--json", "out", "--svg", "out"])
        bad.append([*verb, "gpt", "--json", "new", "--svg", "link-to-new"])
    bad.append(["profile", "gpt", "--json", "out", "--trace", "sub/../out"])
    bad.append(["profile", "gpt", "--svg", "out", "--trace", "out"])
    bad.append(["profile", "gpt", "--html", "out", "--json", "out"])
    bad.append(["sweep", "gpt", "--over", "model=gpt,./config.json", "--json", "config.json"])
    for args in bad:
        to = subprocess.PIPE
        if args[-1] == ">out":
            to = open("out", "w")
            args = args[:-1]
        p = subprocess.run([MEMTAPE, *map(str, args)], stdout=to, stderr=subprocess.PIPE, text=True, timeout=60)
        equal(p.returncode, 2, f"status of {args}: {p.stderr}")
        check("give another" in p.stderr, f"{args}: {p.stderr}")
        check(not os.path.exists("new"), f"{args}: nothing was written")
        if os.path.exists("out"):
            os.remove("out")
    for name, data in inputs.items():
        equal(contents(name), data, f"{name} is unchanged")
    refused(["text to learn from"], "demo", "--data", ".", "--save", "text", "-q", "--steps", 1, status=1)

    for good in [["train", *text, "--resume", "base", "--steps", 3, "--save", "base"],
                 ["train", *lora, "--steps", 1, "--save", "new", "--save-adapter", "sub/new"],
                 ["train", *text, "--resume", "saves/step-10.safetensors", "--steps", 3, "--save", "saves"],
                 ["profile", "gpt", "--json", "/dev/null", "--svg", "/dev/null"],
                 ["profile", "mlp", "--json", "mlp"], ["profile", "mlp", "--json", "mlp"]]:
        p = run(*good)
        equal(p.returncode, 0, f"status of {good}: {p.stderr}")
    equal(contents("text"), inputs["text"], "the text is unchanged")


def every_option_that_names_a_file_is_compared():
    """A new option that takes a FILE must be added to the comparison."""
    for verb in VERBS:
        names = {name for name, row in options_of(verb).items() if row["argument"] in ("FILE", "PATH")}
        known = {"model", "adapter", "data", "resume", "from", "save", "save-adapter", "trace", "snapshot", "svg", "html", "json",
                 "gpus-file", "record-routing", "ids", "save-hf", "save-best"}
        equal(names - known, set(), f"options of {verb} that take a file but are not compared")


for test in [first_signal_saves_the_run_and_sets_the_status, closed_terminal_signals_twice_and_the_run_is_saved,
             signals_of_several_kinds_are_one_request, same_signal_again_ends_the_program, ignored_signals_stay_ignored,
             files_are_written_even_if_standard_output_fails, file_size_limit_is_an_error,
             part_of_a_killed_save_is_cleaned_up,
             every_limit_on_address_space_ends_in_success_or_an_error,
             openblas_that_does_not_know_the_cpu_is_told_which_kernels_to_use, small_stack_is_enough,
             text_of_a_file_is_shown_without_its_control_characters,
             output_is_never_the_file_of_an_input_or_of_another_output,
             every_option_that_names_a_file_is_compared]:
    began = time.time()
    test()
    if os.environ.get("VERBOSE"):
        print(f"{time.time() - began:.1f} s {test.__name__}")
done()
