"""`train --graph` on the simulator: the same losses, memory and weights as without, and what is launched instead
is said."""
import os
import re
import shutil
import tempfile
from pathlib import Path

from lib import check, done, equal, run

FOLDER = Path(tempfile.mkdtemp())
SMALL = ["train", "--data", "text.txt", "-b", 2, "-s", 8, "-d", 16, "-a", 2, "-l", 2, "--steps", 10, "--dropout", 0.1,
         "--device", "cudasim"]
LONG = os.environ.get("MTT_LONG") == "1"
# Options of a run, batches replayed and made, and a text of the reason why one was launched.
RUNS = [
    ([], 8, 10, None),
    (["--accumulate", 3], 26, 30, None),
    (["--attention", "math", "--checkpoint", "full", "--clip", 0], 8, 10, None),
    (["--dtype", "bf16", "--master-weights", "--loss", "fused"], 8, 10, None),
    (["--amp", "f16", "--loss-scale", 1024, "--checkpoint", "selective"], 8, 10, None),
    (["--eval-every", 3], 8, 10, None),  # other shapes between two steps
    (["--from", "model.safetensors", "--lora-rank", 2, "--qlora"], 8, 10, None),
    (["--preset", "llama-tiny"], 8, 10, None),
    (["--offload", "cpu"], 0, 10, "memory is being observed"),
    (["--compress", "8bit"], 0, 10, "memory is being observed"),
]
TIMES = re.compile(r"[\d.]+ (?:[kMGT] )?tok/s|ETA .*")


def trained(name, options):
    p = run(*SMALL, *options, "--save", name, cwd=FOLDER)
    equal(p.returncode, 0, f"{options}: {p.stderr}")
    lines = TIMES.sub("", p.stdout).replace(name, "NAME").splitlines()
    graph = [line for line in lines if line.startswith("graph ")]
    return [line for line in lines if not line.startswith("graph ")], graph, (FOLDER / name).read_bytes()


def main():
    (FOLDER / "text.txt").write_text(Path(__file__).read_text()[:3000])
    trained("model.safetensors", [])
    for options, replayed, batches, why in RUNS if LONG else RUNS[::2]:
        text, graph, weights = trained("a.safetensors", options)
        equal(graph, [], f"{options}: graphs without --graph")
        text_g, graph, weights_g = trained("b.safetensors", [*options, "--graph"])
        equal(text_g, text, f"{options}: what is printed")
        check(weights_g == weights, f"{options}: the weights differ")
        said = re.fullmatch(r"graph  (\d+) of (\d+) batches replayed, (\d+) kernels, products and copies in one "
                            r"launch(?:; one was launched because (.*))?", graph[0] if graph else "")
        if check(said, f"{options}: {graph}"):
            equal(int(said[2]), batches, f"{options}: batches")
            equal(int(said[1]), replayed, f"{options}: batches replayed ({graph[0]})")
            check(why is None or why in (said[4] or ""), f"{options}: {graph[0]}")
            print(graph[0])
    # without clipping the host waits for no step's work, only, a step later, for the copy of its loss
    waits = []
    for steps in (10, 20):
        p = run(*SMALL[:-2], "--device", "cudasim", "--steps", steps, "--graph", "--clip", 0, "--quiet", cwd=FOLDER,
                env=os.environ | {"CUDASIM_COUNTS": "1"})
        equal(p.returncode, 0, p.stderr)
        waits.append(re.search(r"cudasim: (\d+) waits for a stream", p.stderr)[1])
    equal(waits[1], waits[0], "waits of 20 steps, and of 10")
    # a resumed run starts with launches and goes on with the same bits
    whole = trained("whole.safetensors", [])[2]
    (FOLDER / "saves").mkdir()
    p = run(*SMALL, "--graph", "--save", "saves", "--save-every", 5, cwd=FOLDER)
    equal(p.returncode, 0, p.stderr)
    half = FOLDER / "saves/step-5.safetensors"
    p = run("train", "--data", "text.txt", "--device", "cudasim", "--resume", half, "--graph", "--save",
            "resumed.safetensors", cwd=FOLDER)
    check("graph  3 of 5 batches replayed" in p.stdout, f"resumed: {p.stdout}{p.stderr}")
    check((FOLDER / "resumed.safetensors").read_bytes() == whole, "a resumed run differs")
    for device in ("cpu", "meta"):
        p = run(*SMALL[:-1], device, "--graph", cwd=FOLDER)
        equal(p.returncode, 2, f"--graph on {device}")
        check("--graph: there are no launches to capture; it is for --device cuda" in p.stderr, p.stderr)
    shutil.rmtree(FOLDER)


main()
done()
