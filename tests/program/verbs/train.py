"""`memtape train` and `generate`: a resumed run continues bit for bit, Ctrl-C loses nothing, and damaged,
missing or too small files are refused."""
import hashlib
import json
import os
import re
import resource
import signal
import struct
import subprocess
import sys
import tempfile
import time
from lib import MEMTAPE, check, done, equal, names_of, refused, run

folder = tempfile.TemporaryDirectory()
TEXT = os.path.join(folder.name, "text.txt")


def path(name):
    return os.path.join(folder.name, name)


def write(name, data):
    with open(path(name), "wb") as f:
        f.write(data)
    return path(name)


def make_text():
    words = [hashlib.sha256(str(i).encode()).hexdigest()[: 2 + i % 5] for i in range(50)]
    text = " ".join(words[(i * i + i // 7) % 50] for i in range(4000))
    write("text.txt", text.encode())


def contents(name):
    """Tensors and metadata of a safetensors file, read without memtape."""
    with open(path(name), "rb") as f:
        data = f.read()
    size = struct.unpack("<Q", data[:8])[0]
    header = json.loads(data[8 : 8 + size])
    body = data[8 + size :]
    metadata = header.pop("__metadata__")
    return {k: body[v["data_offsets"][0] : v["data_offsets"][1]] for k, v in header.items()}, metadata


SMALL = ["--data", TEXT, "--steps", 20, "-b", 4, "-s", 16, "-d", 16, "-a", 2, "-l", 2,
         "--dropout", 0.1, "--lr", 0.0123456789, "--optimizer", "adamw:warmup=1", "--accumulate", 2, "--seed", 7]


def losses(output):
    return dict(re.findall(r"^step (\d+)/20  loss ([\d.]+)", output, re.M))


def resumed_run_continues_bit_for_bit():
    os.mkdir(path("saves"))
    whole = run("train", *SMALL, "--save", path("saves"), "--save-every", 10)
    equal(whole.returncode, 0, f"status of the whole run: {whole.stderr}")
    equal(sorted(os.listdir(path("saves"))), ["step-10.safetensors", "step-20.safetensors"],
          "one file per save, and nothing else")
    half = run("train", "--data", TEXT, "--resume", path("saves/step-10.safetensors"), "--save",
               path("resumed.safetensors"))
    equal(half.returncode, 0, f"status of the resumed run: {half.stderr}")
    first, second = losses(whole.stdout), losses(half.stdout)
    equal(sorted(map(int, first)), list(range(1, 21)), "a line for each step")
    equal(second, {k: v for k, v in first.items() if int(k) > 10}, "losses after resuming")
    equal(half.stdout.splitlines()[-1], whole.stdout.splitlines()[-1], "held-out bits per byte")
    a, b = contents("saves/step-20.safetensors"), contents("resumed.safetensors")
    equal(sorted(a[0]), sorted(b[0]), "names of the tensors")
    equal([k for k in a[0] if a[0][k] != b[0][k]], [], "tensors that differ")
    equal(a[1], b[1], "metadata: step, generator, plan")
    check(any(k.startswith("optimizer.") for k in a[0]), "the optimizer's state is in the file")
    again = run("train", *SMALL, "--threads", 1)
    equal(losses(again.stdout), first, "losses with another number of threads")
    other = run("train", *SMALL, "--seed", 8)
    check(losses(other.stdout) != first, "another seed gives another run")
    longer = run("train", "--data", TEXT, "--resume", path("saves/step-20.safetensors"), "--steps", 22)
    check("step 22/22" in longer.stdout, "a finished run can be made longer")
    refused(["--steps 5", "10 steps", "more"], "train", "--data", TEXT, "--resume",
            path("saves/step-10.safetensors"), "--steps", 5, "--save", path("shorter"), status=1)
    check(not os.path.exists(path("shorter")), "a run that cannot be made shorter saves nothing")


# Of f32 parameters all have f32 moments; too small to be paged; foreach, loop and cpu differ in memory alone.
ALIKE = "adamw-16bit", "adamw-paged", "adamw-foreach", "adamw-loop", "adamw-cpu", "adamw-16bit-foreach"


def exact_memory_options_change_no_loss():
    plain = losses(run("train", *SMALL).stdout)
    equal(len(plain), 20, "a line for each step")
    for exact in [["--checkpoint", "full"], ["--checkpoint", "sqrt"], ["--offload", "cpu"],
                  ["--compress", "seed+signs"], ["--checkpoint", "selective", "--offload", "disk"]]:
        p = run("train", *SMALL, *exact)
        equal(losses(p.stdout), plain, f"losses with {exact}: {p.stderr}")
    masters = ["--dtype", "bf16", "--master-weights"]
    inexact = [["--compress", "8bit"], ["--amp", "bf16"], masters, ["--dtype", "bf16", "--recipe", "plain:f32-gradients", "--accumulate", "2"],
               ["--optimizer", "adamw-8bit-paged", "-d", 192],  # so wide that moments are in host memory
               *(["--optimizer", name, *masters] for name in ("adafactor", "lion", "muon")),
               *(["--optimizer", name] for name in names_of("--optimizer") if name not in ("none", "adamw"))]
    for inexact in inexact:
        name = path("inexact.safetensors")
        whole = losses(run("train", *SMALL, *inexact).stdout)
        equal((len(whole), whole == plain), (20, inexact[1] in ALIKE), f"steps with {inexact}, and whether losses are the same")
        half = run("train", *SMALL, *inexact, "--steps", 10, "--save", name)
        equal(half.returncode, 0, f"status: {half.stderr}")
        first = run("train", "--data", TEXT, "--resume", name, "--steps", 20)
        again = run("train", "--data", TEXT, "--resume", name, "--steps", 20, *inexact)
        other = run("train", "--data", TEXT, "--resume", name, "--steps", 20, "--checkpoint", "full")
        equal(losses(first.stdout), losses(again.stdout),
              f"losses with {inexact} from the file and given again")
        equal(losses(first.stdout), losses(other.stdout), f"losses with {inexact} and --checkpoint given later")
    equal(*(losses(run("train", *SMALL, "--optimizer", f"adafactor{form}").stdout) for form in ("", "-loop")), "Adafactor's forms differ in memory alone")


def mixtures_train_with_every_option():
    """A mixture of experts: exact options change no loss, runs resume bit for bit whatever is spent less on."""
    mixture = ["--data", TEXT, "--preset", "moe-tiny", "--steps", 20, "-b", 4, "-s", 16, "-d", 32, "-a", 2, "--ffn", 16,
               "--seed", 7, "--accumulate", 2, "--optimizer", "adamw:clip=0.5,min-lr=0.01,warmup=1", "--lr", 0.01]
    plain, name = losses(run("train", *mixture).stdout), path("mixture.safetensors")
    equal(len(plain), 20, "a line for each step")
    check(float(plain["20"]) < float(plain["1"]) - 0.5, f"it learns: {plain}")
    exact = [["--checkpoint", "full", "--offload", "cpu"], ["--checkpoint", "ops"], ["--checkpoint", "selective"],
             ["--checkpoint", "every=2", "--offload", "disk"], ["--compress", "bits"], ["--loss", "chunked"],
             ["--recipe", "plain:recompute-modules=moe_act+layernorm+core_attn"],
             ["--offload", "cpu", "--recipe", "plain:offload-modules=moe_act+qkv_linear+core_attn"]]
    inexact = [["--compress", "8bit"], ["--amp", "bf16"], ["--dtype", "bf16", "--master-weights", "--optimizer", "muon"],
               ["--dtype", "bf16", "--optimizer", "adafactor"], ["--optimizer", "adamw-8bit", "-d", 64, "--ffn", 64],
               ["--dtype", "f16", "--loss-scale", "dynamic"], ["--recipe", "hf", "--dtype", "bf16"],
               ["--recipe", "plain:expert-form=megatron", "--recipe", "plain:expert-capacity=1", "--recipe", "plain:expert-padding"],
               ["--preset", "moe-tiny:mtp-layers=2", "--checkpoint", "full", "--dropout", 0.1]]
    for options in [*exact, *inexact]:
        whole = run("train", *mixture, *options)
        equal(losses(whole.stdout) == plain, options in exact, f"losses with {options}: {whole.stderr}")
        run("train", *mixture, *options, "--steps", 10, "--save", name)
        second = run("train", "--data", TEXT, "--resume", name, "--steps", 20)
        equal(losses(second.stdout), {k: v for k, v in losses(whole.stdout).items() if int(k) > 10},
              f"losses with {options} after resuming: {second.stderr}")
    run("train", *mixture, "--save", name)
    adapted = ["--data", TEXT, "--from", name, "--lora-rank", 2, "--lr", 0.05, "--optimizer", "adamw:min-lr=0.05,warmup=1", "-b", 4]
    experts = ["--lora-targets", "experts_gate_up+experts_down"]
    tuned, half, adapter = path("tuned.safetensors"), path("tuned-half.safetensors"), path("adapter.safetensors")
    for options in ([], experts, [*experts, "--recipe", "plain:lora-on-weights"], ["--qlora"], [*experts, "--recipe", "plain:lora-on-weights", "--qlora"]):
        whole = run("train", *adapted, *options, "--steps", 20, "--save", tuned, "--save-adapter", adapter)
        run("train", *adapted, *options, "--steps", 10, "--save", half)
        second = run("train", "--data", TEXT, "--resume", half, "--steps", 20)
        equal(losses(second.stdout), {k: v for k, v in losses(whole.stdout).items() if int(k) > 10},
              f"losses of adapters {options} after resuming: {whole.stderr}{second.stderr}")
        shapes = {k: len(v) // 4 for k, v in contents("adapter.safetensors")[0].items()}
        # 8 experts of 32 -> 2 * 16
        equal(shapes["base_model.model.h.1.mlp.experts_gate_up.lora_B.weight"], 8 * 32 * 2, f"an adapter's file, {options}")
        text = run("generate", "--model", tuned, "-n", 20, "-q")
        equal(text.returncode, 0, f"generating with {options}: {text.stderr}")
        if "--qlora" not in options:
            other = run("generate", "--model", name, "--adapter", adapter, "-n", 20, "-q")
            equal(other.stdout, text.stdout, f"text of the base and its adapters, {options}")
            refused(["--weights nf4", "--merge"], "generate", "--model", name, "--adapter", adapter, "--weights", "nf4", status=1)
    for form in ("int8", "nf4-double", "mxfp4"):
        text = run("generate", "--model", name, "-n", 20, "-q", "--weights", form)
        equal((text.returncode, text.stderr), (0, ""), f"generating with weights in {form}")


def loss_scale_is_resumed():
    name = path("scaled.safetensors")
    scaled = [*SMALL, "--dtype", "f16", "--master-weights", "--loss-scale"]
    p = run("train", *scaled, "dynamic", "--save", name)
    equal(p.returncode, 0, f"status: {p.stderr}")
    summary = re.search(r"loss scale (\d+) at the end; (\d+) of 20 steps skipped", p.stdout)
    check(summary and int(summary[1]) == 65536 >> int(summary[2]),
          f"each skipped step halves the scale: {p.stdout}")
    state = json.loads(contents(name)[1]["run"])["scaler"]
    equal((float(state["scale"]), state["skipped"], state["steps"] + state["skipped"]),
          (float(summary[1]), int(summary[2]), 20), "the scaler's state in the file")
    half = path("scaled-half.safetensors")
    run("train", *scaled, "dynamic", "--steps", 10, "--optimizer", "adamw:warmup=1,min-lr=0.0123456789", "--save", half)
    whole = run("train", *scaled, "dynamic", "--optimizer", "adamw:warmup=1,min-lr=0.0123456789")
    second = run("train", "--data", TEXT, "--resume", half, "--steps", 20)
    equal(losses(second.stdout), {k: v for k, v in losses(whole.stdout).items() if int(k) > 10},
          "losses after resuming")
    equal(second.stdout.splitlines()[-2:], whole.stdout.splitlines()[-2:], "scale, and bits per byte")
    p = run("train", *scaled, "1024")
    check("loss scale 1024 at the end; 0 of 20" in p.stdout, f"a fixed scale does not change: {p.stdout}")
    for bad in [{"scale": "0", "good_steps": 0, "steps": 0, "skipped": 0}, {"scale": "x"}, 3]:
        tensors, metadata = contents(name)
        plan = json.loads(metadata["run"])
        plan["scaler"] = bad
        with open(name, "rb") as f:
            data = f.read()
        size = struct.unpack("<Q", data[:8])[0]
        header = json.loads(data[8 : 8 + size])
        header["__metadata__"]["run"] = json.dumps(plan)
        text = json.dumps(header).encode()
        damaged = write("scaler.safetensors", struct.pack("<Q", len(text)) + text + data[8 + size :])
        refused(["scale"], "train", "--data", TEXT, "--resume", damaged, status=1)


def adapters_are_trained_saved_resumed_and_used():
    base = path("base.safetensors")
    p = run("train", *SMALL, "--steps", 150, "--lr", "1e-2", "--save", base)
    equal(p.returncode, 0, f"status of the base: {p.stderr}")
    weights = contents("base.safetensors")[0]
    other = write("other.txt", b"the quick brown fox jumps over the lazy dog\n" * 200)
    for more in [[], ["--lora-targets", "qkv,mlp.proj"], ["--qlora"]]:
        common = ["--data", other, "--from", base, "--lora-rank", 3, *more, "--lr", "5e-2",
                  "--optimizer", "adamw:min-lr=5e-2,warmup=1", "-b", 4, "-s", 16]
        adapter = path("adapter.safetensors")
        p = run("train", *common, "--steps", 20, "--save", path("tuned.safetensors"),
                "--save-adapter", adapter)
        equal(p.returncode, 0, f"status of adapting {more}: {p.stderr}")
        # rank 3 for qkv, proj, fc and proj of two layers, and for the head, which maps 16 to 256
        n = 3 * (2 * ((16 + 48) + (16 + 16) + (16 + 64) + (64 + 16)) + (16 + 256) * ("head.weight" in weights))
        if "--lora-targets" in more:
            n = 3 * 2 * ((16 + 48) + (64 + 16))
        check(f"{n:,} parameters to train" in p.stdout, f"{n} parameters: {p.stdout}")
        tensors, metadata = contents("adapter.safetensors")
        equal(sum(map(len, tensors.values())), 4 * n, "bytes of the adapter's file: those parameters alone")
        equal(metadata["lora.rank"], "3", "the rank in the adapter's file")
        tuned = contents("tuned.safetensors")[0]
        kept = [k for k in weights if not k.startswith("optimizer.") and k in tuned]
        equal([k for k in kept if tuned[k] != weights[k]], [], "frozen weights that changed")
        states = {k.split(".")[-2] for k in tuned if k.startswith("optimizer.")}
        equal(states, {"lora_A", "lora_B"}, "parameters with optimizer state")
        first = losses(p.stdout)
        check(float(first["20"]) < float(first["1"]) - 0.05, f"the loss falls: {first}")
        run("train", *common, "--steps", 10, "--save", path("tuned-half.safetensors"))
        half = run("train", "--data", other, "--resume", path("tuned-half.safetensors"), "--steps", 20,
                   "--save", path("tuned-again.safetensors"))
        equal(losses(half.stdout), {k: v for k, v in first.items() if int(k) > 10},
              "losses after resuming")
        equal(contents("tuned-again.safetensors")[0], tuned, "every tensor after resuming")

        def text(*args):
            p = subprocess.run([MEMTAPE, "generate", "--tokens", "40", "-q", "--temperature", "1",
                                "--prompt", "the", *map(str, args)], capture_output=True)
            equal(p.returncode, 0, f"status of generate {args}: {p.stderr}")
            return p.stdout

        whole = text("--model", path("tuned.safetensors"))
        check(whole != text("--model", base), "adapters change the generated text")
        equal(text("--model", path("tuned.safetensors"), "--merge"), whole, "text with merged adapters")
        if "--qlora" not in more:  # qlora trained the adapters beside quantised weights, which differ from the base's
            equal(text("--model", base, "--adapter", adapter), whole, "text from the base and the adapter")
            equal(text("--model", base, "--adapter", adapter, "--merge"), whole,
                  "text from the base and the merged adapter")
    p = run("train", "--data", other, "--from", path("tuned.safetensors"), "--steps", 1, "-s", 16,
            "--save", path("on.safetensors"))
    equal(p.returncode, 0, f"status of training from adapted weights: {p.stderr}")
    equal(sorted(k for k in contents("on.safetensors")[0] if not k.startswith("optimizer.")),
          sorted(k for k in weights if not k.startswith("optimizer.")), "the merged model has the base's parameters")
    refused(["--lora-rank", "--from"], "train", "--data", TEXT, "--lora-rank", 4)
    refused(["--save-adapter", "--lora-rank"], "train", "--data", TEXT, "--save-adapter", path("x"))
    refused(["--qlora needs --from"], "train", "--data", TEXT, "--qlora")
    refused(["--lora-targets", '"*.q"', "none of the 8 linears"], "train", "--data", other, "--from", base,
            "--lora-rank", 3, "--lora-targets", "qkv,q", status=1)
    refused(["--from", "--preset"], "train", "--data", TEXT, "--from", base, "--preset", "tiny")
    refused(["--from", "--resume"], "train", "--data", TEXT, "--from", base, "--resume", base)
    refused(["no adapters"], "generate", "--model", base, "--merge", status=1)
    refused(["wte.weight"], "train", "--data", TEXT, "--from", base, "-d", 32, "-s", 16, status=1)


def learns_something():
    p = run("train", "--data", TEXT, "--steps", 150, "--lr", "3e-3", "--eval-every", 50)
    bits = [float(x) for x in re.findall(r"held-out bits per byte ([\d.]+)", p.stdout)]
    equal(len(bits), 4, "evaluations: three during the run and one at its end")
    check(bits and bits[-1] < bits[0] < 8, f"held-out bits fall: {bits}")


def the_best_evaluation_is_kept():
    """--save-best has the weights of the lowest evaluation, also of the runs before; a worse one leaves it."""
    best, last = path("best.safetensors"), path("last.safetensors")
    p = run("train", "--data", TEXT, "--steps", 8, "-d", 16, "-l", 1, "--lr", 0.01, "--optimizer", "adamw:min-lr=0.01", "--eval-every", 2, "--save-best", best, "--save", last)
    bits = {int(step): float(x) for step, x in re.findall(r"step (\d+)  held-out bits per byte ([\d.]+)", p.stdout)}
    equal(sorted(bits), [2, 4, 6, 8], f"evaluations: {p.stdout}{p.stderr}")
    step = int(contents("best.safetensors")[1]["memtape.step"])
    equal(bits[step], min(bits.values()), f"the best of {bits} is that of step {step}")
    with open(best, "rb") as f:
        before = f.read()
    more = ["train", "--data", TEXT, "--resume", last, "--eval-every", 1]
    p = run(*more, "--steps", 9, "--lr", 50, "--optimizer", "adamw:min-lr=50,warmup=0", "--save-best", best)
    check(p.returncode == 0 and "best so far" not in p.stdout, f"a worse one is not: {p.stdout}{p.stderr}")
    with open(best, "rb") as f:
        check(f.read() == before, "and the file stays")
    p = run(*more, "--steps", 12, "--save-best", best)
    check("best so far" in p.stdout and int(contents("best.safetensors")[1]["memtape.step"]) > 8, f"a better one is kept: {p.stdout}{p.stderr}")
    refused(["--save-best needs --eval-every"], "train", "--data", TEXT, "--save-best", best)
    refused(["--save-best", "nowhere"], "train", "--data", TEXT, "--eval-every", 1, "--save-best", "nowhere/best", status=1)


def a_capacity_bounds_training():
    base = path("capacity.safetensors")
    small = ["--data", TEXT, "--steps", 2, "-q"]
    equal(run("train", *small, "-d", 32, "-l", 1, "--save", base).returncode, 0, "a run within no bounds")
    for more in ([], ["--from", base], ["--from", base, "--lora-rank", 2], ["--from", base, "--budget", "4MiB"]):
        equal(run("train", *small, *more, "--capacity", "1GiB").returncode, 0, f"within 1 GiB: {more}")
        p = refused(["out of memory", "a capacity of 1 MiB"], "train", *small, *more, "--capacity", "1MiB", status=1)
        equal(p.stdout, "", "nothing is learnt")
    # what it says it takes in segments is enough, and what it says that its tensors take is not
    for more in (["--from", base], ["--from", base, "--lora-rank", 2, "--qlora"]):
        told = run("train", *small, *more, "--capacity", "1MiB").stderr
        peak = re.search(r"takes ([\d,]+) bytes \([^)]*\) at its peak, (\S+) MiB in segments, of a capacity of 1 MiB; --budget", told)
        check(peak, f"how much it takes: {told}")
        if peak:
            needed = float(peak[2]) * 2 ** 20
            equal(run("train", *small, *more, "--capacity", f"{int(needed)}B").returncode, 0, f"{more}: {needed} bytes are enough")
            refused(["out of memory"], "train", *small, *more, "--capacity", f"{int(peak[1].replace(',', '')) - 1}B", status=1)


def interrupted_run_is_saved(number):
    name = f"interrupted-{number}.safetensors"
    p = subprocess.Popen([MEMTAPE, "train", "--data", TEXT, "--steps", "1000000", "--save", path(name)],
                         stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    p.stdout.readline()
    time.sleep(0.5)
    p.send_signal(number)
    out, err = p.communicate(timeout=60)
    equal(p.returncode, 128 + number, f"status after signal {number}: {err}")
    check("saved" in err and "--resume" in err, f"the message says how to resume: {err}")
    step = int(contents(name)[1]["memtape.step"])
    check(step > 0, "some steps were made")
    p = run("train", "--data", TEXT, "--resume", path(name), "--steps", step + 1)
    equal(p.returncode, 0, f"status of the resumed run: {p.stderr}")
    check(f"at step {step}" in p.stdout, "the run resumes at the saved step")


def bad_texts_are_refused():
    refused(["missing.txt", "No such file"], "train", "--data", path("missing.txt"), status=1)
    refused(["empty"], "train", "--data", write("empty.txt", b""), status=1)
    refused(["too short", "65"], "train", "--data", write("short.txt", b"abc"), status=1)
    refused(["folder"], "train", "--data", folder.name, status=1)
    if os.geteuid() != 0:
        write("secret.txt", b"x" * 1000)
        os.chmod(path("secret.txt"), 0)
        refused(["secret.txt", "denied"], "train", "--data", path("secret.txt"), status=1)
    p = run("train", "--data", write("bytes.bin", bytes(range(256)) * 40), "--steps", 2)
    equal(p.returncode, 0, f"status with any bytes as the text: {p.stderr}")
    p = run("train", "--data", TEXT, "--steps", 2, "--val-fraction", 0)
    equal(p.returncode, 0, f"status with nothing held out: {p.stderr}")
    p = run("train", "--data", TEXT, "--steps", 2, "--save", "/nonexistent/x")
    equal(p.returncode, 1, "status when saving fails")
    check("/nonexistent/x" in p.stderr, "the message names the file")


def damaged_files_are_refused():
    with open(path("saves/step-10.safetensors"), "rb") as f:
        good = f.read()
    size = struct.unpack("<Q", good[:8])[0]
    header = good[8 : 8 + size]

    def with_header(text):
        return struct.pack("<Q", len(text)) + text + good[8 + size :]

    def edited(key, value, instead_of=None):
        j = json.loads(header)
        plan = json.loads(j["__metadata__"]["run"])
        plan.pop(instead_of, None)
        plan[key] = value
        j["__metadata__"]["run"] = json.dumps(plan)
        return with_header(json.dumps(j).encode())

    bad = {"empty": b"", "half": good[: len(good) // 2], "cut": good[:-1], "longer": good + b"x",
           "header": good[:8] + b"x" * 8 + good[16:], "huge": struct.pack("<Q", 2**63) + good[8:],
           "nosteps": edited("steps", -1), "hugebatch": edited("batch", 10**12),
           "real": edited("lr", "nan"), "type": edited("seq", "many"), "seq": edited("seq", 10**6),
           "text": edited("text", "zz"), "config": with_header(header.replace(b"hidden", b"hiddem")),
           "memory": edited("memory", {"checkpoint": "some"}), "memory2": edited("memory", {"amp": 3}),
           "older": edited("spared", {"amp": 3}, instead_of="memory"),
           "notjson": with_header(header.replace(b"{", b"[", 1))}
    for name, data in bad.items():
        file = write(f"bad-{name}.safetensors", data)
        p = run("train", "--data", TEXT, "--resume", file, "--save", path("never.safetensors"))
        equal(p.returncode, 1, f"status of resuming from a bad file, {name}")
        if name in ("empty", "half", "cut", "longer", "huge"):
            check(file in p.stderr, f"{name}: the message names the file: {p.stderr}")
        check(len(p.stderr) > 20, f"{name}: there is a message")
        if name not in ("nosteps", "hugebatch", "real", "type", "seq", "text", "memory", "memory2", "older"):
            refused([], "generate", "--model", file, "-q", status=1)
    check(not os.path.exists(path("never.safetensors")), "nothing was written")

    # A file's claim about its model is checked first: half a gigabyte is more than its tensors need.
    def claiming(**claims):
        j = json.loads(header)
        config = {**json.loads(j["__metadata__"]["config"]), **claims}
        j["__metadata__"]["config"] = json.dumps(config)
        return with_header(json.dumps(j).encode())

    for claims, words in [({"hidden": 16384}, ["need f32 [", "16384"]),
                          ({"layers": 10000}, ["10000 layers"]), ({"layers": 1000000}, ["layers is 1000000"]),
                          ({"layers": 20}, ["missing", "h."]),
                          ({"context": 1 << 30}, ["wpe.weight", "1073741824"]),
                          ({"ffn": 1 << 30}, ["need f32 [", "1073741824"])]:
        file = write("claims.safetensors", claiming(**claims))
        for verb in [["generate", "-q", "--model", file], ["train", "--data", TEXT, "--from", file, "-s", 16],
                     ["train", "--data", TEXT, "--resume", file]]:
            refused([file, *words] if "layers" not in claims else words, *verb, status=1,
                    preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30)))
    refused(["No such file"], "generate", "--model", path("nothing"), status=1)


def generation_is_deterministic():
    model = path("resumed.safetensors")

    def text(*args):
        p = subprocess.run([MEMTAPE, "generate", "--model", model, "--tokens", "60", *args],
                           capture_output=True)
        equal(p.returncode, 0, f"status of generate {args}: {p.stderr}")
        return p.stdout

    first = text("--prompt", "ab", "--seed", "3")
    check(first.startswith(b"ab"), "the prompt comes first")
    equal(len(first), 2 + 60 + 1, "bytes: prompt, sample, newline")
    equal(text("--prompt", "ab", "--seed", "3"), first, "the same seed")
    check(text("--prompt", "ab", "--seed", "4") != first, "another seed")
    greedy = text("--prompt", "ab", "--temperature", "0")
    equal(text("--prompt", "ab", "--temperature", "0"), greedy, "no random number is drawn at 0")
    equal(text("--prompt", "ab", "--top-k", "1"), greedy, "top-k 1 is greedy")
    equal(len(text("--prompt", "x" * 1000, "-q")), 61, "a prompt longer than the context")
    equal(len(text("--prompt", "")), 61, "an empty prompt")
    for form in ["none", "preallocated", "growing", "paged"]:  # 60 bytes exceed the context of 16
        equal(text("--prompt", "ab", "--seed", "3", "--kv-cache", form), first, f"text with KV cache {form}")
    prompts = [word for prompt in ("ab", "a cab dc", "x", "", "b") for word in ("--prompt", prompt)]
    alone = text(*prompts, "-t", "0", "-n", "7")
    for size in ("1", "2", "3", "5", "64"):  # of each group the longest and the tokens fit into the context of 16
        equal(text(*prompts, "-t", "0", "-n", "7", "--batch", size), alone, f"{size} prompts side by side")
        equal(text(*prompts, "-t", "0", "-n", "7", "--batch", size, "-q"), text(*prompts, "-t", "0", "-n", "7", "-q"), f"{size}, without the prompts")
    stop = alone.split(b"\n")[1][8:10].decode("latin-1")
    if stop.isascii() and stop.isprintable():
        equal(text(*prompts, "-t", "0", "-n", "7", "--batch", "3", "--stop", stop), text(*prompts, "-t", "0", "-n", "7", "--stop", stop), f"up to {stop!r}")
    refused(["context, 16"], "generate", "--model", model, "--prompt", "a" * 12, "--prompt", "b", "-n", 9, "--batch", 2, status=1)


def generation_reports_speed_and_cache():
    def report(*args):
        p = run("generate", "--model", path("resumed.safetensors"), "--prompt", "ab", "-n", 6, *args)
        equal(p.returncode, 0, f"status of generate {args}: {p.stderr}")
        return p.stderr

    # 2 b t k h L e with b = 1, t = 2 + 6, k h = 16, L = 2, e = 4; growing: the last byte's keys and values
    # are never needed; 8bit: one byte per value, and 4 bytes for each of 2 heads
    check("KV cache preallocated, 2,048 bytes" in report(), "the default")
    check("KV cache growing, 1,792 bytes" in report("--kv-cache", "growing"), "growing")
    check("KV cache 8bit, 768 bytes" in report("--kv-cache", "8bit"), "8 bits")
    check("KV cache paged, 4,096 bytes" in report("--kv-cache", "paged"), "one block of 16 positions")
    check("no KV cache" in report("--kv-cache", "none"), "none")
    equal(report("-q"), "", "quiet")
    greedy = [run("generate", "--model", path("resumed.safetensors"), "-n", 12, "-t", 0, "-q", "--weights", form).stdout for form in ("plain", "int8")]
    equal(*greedy, "text with weights in 8 bits")
    refused(["mxfp4", "experts"], "generate", "--model", path("resumed.safetensors"), "--weights", "mxfp4", status=1)
    refused(["--kv-cache", "4bit", "preallocated, growing, 8bit, paged, none"], "generate", "--model", "x",
            "--kv-cache", "4bit")


def llama_learns_and_writes():
    p = run("train", "--data", TEXT, "--steps", 2, "-s", 16, "--preset", "llama-tiny", "--save",
            path("llama.safetensors"))
    equal(p.returncode, 0, f"status of training a llama: {p.stderr}")
    p = run("generate", "--model", path("llama.safetensors"), "-n", 40, "-q")
    equal((p.returncode, p.stderr), (0, ""), "status and errors of generating with it")
    refused(["bert-tiny", "masked"], "train", "--data", TEXT, "--preset", "bert-tiny")


make_text()
resumed_run_continues_bit_for_bit()
exact_memory_options_change_no_loss()
mixtures_train_with_every_option()
loss_scale_is_resumed()
adapters_are_trained_saved_resumed_and_used()
learns_something()
the_best_evaluation_is_kept()
a_capacity_bounds_training()
interrupted_run_is_saved(signal.SIGINT)
interrupted_run_is_saved(signal.SIGTERM)
bad_texts_are_refused()
damaged_files_are_refused()
generation_is_deterministic()
generation_reports_speed_and_cache()
llama_learns_and_writes()
done()
