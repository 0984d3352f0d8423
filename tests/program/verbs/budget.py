"""--budget: the measured peak is the predicted one, a larger budget never costs more arithmetic, and bad
input is refused."""
import json
import os
import re
import tempfile
import xml.etree.ElementTree as xml
from pathlib import Path
from lib import check, done, equal, profile, refused, run

RESULTS = Path(__file__).parents[3] / "docs" / "results"
SMALL = ["gpt", "--layers", 6, "-b", 4, "-s", 64, "--dropout", 0.1]


def measured_peak(j):
    """The highest peak of both steps: a budget holds for the first step, too."""
    return max(p["peak"] for p in [*j["phases"], j["steady"]])


def ladder():
    """Budgets from too small to more than enough, on the CPU: the peak is as predicted, and a larger budget
    never recomputes more."""
    plain = profile(*SMALL)
    top = measured_peak(plain)
    refused(["too few", "need"], "profile", *SMALL, "--budget", "1000B", status=1)
    least, last = None, None
    for share in range(3, 12):
        budget = top * share // 10
        p = run("profile", *SMALL, "--budget", budget, "--json", "-")
        if p.returncode == 1:
            equal(last, None, f"{budget} bytes refused after fewer were enough")
            check("too few" in p.stderr, f"refusal of {budget}: {p.stderr!r}")
            least = int(p.stderr.rsplit("(", 1)[1].split()[0])
            continue
        j = json.loads(p.stdout)
        check(budget >= least, f"{budget} bytes are enough, and {least} were needed")
        b, again = j["budget"], j["flops"]["recompute"]
        equal(b["peak"], measured_peak(j), f"peak of {budget}")
        equal(b["measured_peak"], b["peak"], f"measured peak of {budget}")
        equal(b["recompute_flops"], again, f"recomputed operations of {budget}")
        check(b["peak"] <= budget, f"peak {b['peak']} within {budget}")
        check(last is None or again <= last, f"{budget} bytes cost {again}, fewer cost {last}")
        equal(sum(part["layers"] for part in b["parts"]), 6, f"layers of {budget}")
        last = again
    equal(last, 0, "recomputed operations with room for everything")
    exact = profile(*SMALL, "--budget", least)
    equal(measured_peak(exact), least, "peak with the smallest budget that is accepted")


def with_other_options():
    for more in (["--amp", "bf16"], ["--optimizer", "adamw"], ["--dtype", "bf16", "--attention",
                 "math"], ["--lora-rank", 4], ["--device", "meta", "--recipe", "plain:gemm-workspace=8519680"]):
        top = measured_peak(profile(*SMALL, *more))
        p = run("profile", *SMALL, *more, "--budget", top * 97 // 100, "--json", "-")
        if not check(p.returncode == 0, f"{more}: {p.stderr.strip()}"):
            continue
        j = json.loads(p.stdout)
        equal(j["budget"]["peak"], measured_peak(j), f"peak with {more}")
        check(measured_peak(j) <= top * 97 // 100, f"budget with {more}")


def front():
    with tempfile.TemporaryDirectory() as folder:
        svg = os.path.join(folder, "front.svg")
        words = ["plan", "gpt2-medium", "-b", 8, "-s", 1024, "--optimizer", "adamw", "--budget", "6GiB"]
        p = run(*words, "--svg", svg, "--json", "-")
        if not check(p.returncode == 0, f"plan: {p.stderr.strip()}"):
            return
        root = xml.parse(svg).getroot()
        check(root.tag.endswith("svg") and len(root) > 40, "the picture is an SVG with more than 40 elements")
        equal(Path(svg).read_text(), (RESULTS / "budget-gpt2-medium.svg").read_text(), "the picture that lesson 18 shows")
    command, *recorded = (RESULTS / "budget-gpt2-medium.txt").read_text().splitlines()
    equal(command, " ".join(["memtape", *map(str, words), "-v"]), "the recorded command")
    printed = [line for heading in ("Checkpoints within", "Peak against") for line in run(*words, "-v", "--show", heading).stdout.splitlines()]
    timeless = lambda lines: [re.sub(r"in [\d.]+ s", "in … s", line) for line in lines if line]
    equal(timeless(recorded), timeless(printed), "the figures that go with it")
    b = json.loads(p.stdout)["budget"]
    equal((b["peak"], b["recompute_flops"]), (6432594944 + 1540096, 2972117368832), "GPT-2 medium in 6 GiB, with rests of blocks")
    points = [(f["peak"], f["recompute_flops"]) for f in b["front"]]
    equal(points, sorted(points), "the front, sorted by peak")
    check(all(a[1] >= z[1] for a, z in zip(points, points[1:])),
          "along the front, a higher peak never costs more operations")
    check(len(points) >= 8 and points[-1][1] == 0, f"the front: {points}")
    equal(b["presets"]["none"], {"peak": points[-1][0], "recompute_flops": 0},
          "the end of the front is the preset none")
    for name, preset in b["presets"].items():
        within = [again for peak, again in points if peak <= preset["peak"]]
        check(min(within) <= preset["recompute_flops"], f"the preset {name} is not better than the front")
    text = run("plan", "gpt2", "--budget", "8GiB", "-b", 2, "-v")
    check("Peak against FLOPs again" in text.stdout and "--checkpoint full" in text.stdout,
          "the front as text")


def weights(path):
    """The bytes behind a safetensors file's header, which holds the options."""
    with open(path, "rb") as f:
        data = f.read()
    return data[8 + int.from_bytes(data[:8], "little"):]


def training():
    """Training under a budget gives the same weights and peaks as predicted."""
    with tempfile.TemporaryDirectory() as folder:
        plain, planned = (os.path.join(folder, name) for name in ("plain", "planned"))
        common = ["train", "--data", os.path.abspath(__file__), "--preset", "tiny", "--steps", 4,
                  "--dropout", 0.1]
        p = run(*common, "--save", plain)
        peak = max(float(x) for x in re.findall(r"peak ([0-9.]+) MiB", p.stdout + p.stderr))
        for more in ([], ["--accumulate", 2]):
            p = run(*common, *more, "--save", plain)
            q = run(*common, *more, "--save", planned, "--budget", f"{peak * 0.75:.3f}MiB")
            if not check(q.returncode == 0, f"train {more}: {q.stderr.strip()}"):
                continue
            said = re.search(r"memory ([0-9,]+) bytes in a training step", q.stdout)
            lowered = max(float(x) for x in re.findall(r"peak ([0-9.]+) MiB", q.stdout + q.stderr))
            predicted = int(said[1].replace(",", "")) / 2**20 if said else 0
            check(abs(predicted - lowered) < 0.006, f"peak {lowered}, predicted {predicted}")
            check(lowered <= peak * 0.75, f"peak {lowered} within a budget of {peak * 0.75}")
            check(weights(plain) == weights(planned), f"weights after training with {more}")


def refusals():
    refused(["--budget", "--checkpoint"], "profile", "gpt", "--budget", "1GiB", "--checkpoint", "full")
    refused(["--budget", "--offload"], "profile", "gpt", "--budget", "1GiB", "--offload", "cpu")
    refused(["does not apply to mlp"], "profile", "mlp", "--budget", "1GiB")
    refused(["--budget", "40GiB"], "profile", "gpt", "--budget", "much")
    refused(["--svg needs --budget"], "plan", "gpt2", "--svg", "front.svg")


def other_budgets_cost_nothing_where_they_are_not_shown():
    """What is measured and searched for one budget costs as many simulations in `plan` as in `profile`, which has no others."""
    def simulations(verb, *more):
        p = run(verb, *SMALL, "--budget", "6MiB", *more)
        equal(p.returncode, 0, f"{verb} {more}: {p.stderr}")
        return int(re.search(r"with (\d+) simulated runs", p.stdout)[1])
    alone, plain, all_of_them = simulations("profile", "--device", "meta"), simulations("plan"), simulations("plan", "-v")
    equal(plain, alone, "simulations of a plan for one budget, and of a profile")
    check(all_of_them > plain, f"{all_of_them} simulations with the front, {plain} without")


ladder()
with_other_options()
front()
other_budgets_cost_nothing_where_they_are_not_shown()
training()
refusals()
done()
