"""generate.py [MODEL.gguf]: tokens a second that a model writes, beside Transformers and llama.cpp where python3 can import them. The model is the
GGUF file's or, without one, of SmolLM2-135M's sizes with weights that are drawn, in f32. Each library runs in a process of its own, from one file,
with as many threads as there are processors; of three runs the fastest counts. memtape and Transformers also write four prompts of different lengths
side by side, and their tokens have to be the same. llama.cpp is that of `xllamacpp`, whose wheels are compiled, and takes a GGUF file; it times
itself. It multiplies by a file's codes, in 8 bits, where the others have made f32 of them. A GGUF file for Transformers takes the package `gguf`.
MEMTAPE_LIBRARY names the library."""
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

THREADS = len(os.sched_getaffinity(0))
PROMPT, NEW, RUNS = 64, 64, 3
SMOLLM2 = dict(vocab_size=49152, hidden_size=576, intermediate_size=1536, num_hidden_layers=30, num_attention_heads=9, num_key_value_heads=3,
               max_position_embeddings=2048, tie_word_embeddings=True, bos_token_id=None, eos_token_id=None, pad_token_id=0)
PROMPTS = [[1 + (i * i * 7 + 13 * j) % 997 for i in range(PROMPT - 16 * j)] for j in range(4)]


def timed(write):
    """Figures of one prompt and of four: write(prompts, n) makes n tokens after each."""
    out = {}
    for prompts in (PROMPTS[:1], PROMPTS):
        write(prompts, 2)
        best = {1: float("inf"), NEW + 1: float("inf")}
        for n in list(best) * RUNS:
            begin = time.perf_counter()
            made = write(prompts, n)
            best[n] = min(best[n], time.perf_counter() - begin)
        out[str(len(prompts))] = {"read": PROMPT / best[1], "written": len(prompts) * NEW / (best[NEW + 1] - best[1]), "made": made}
    return out


def of_memtape(path):
    import memtape
    model = memtape.load(path)
    return lambda: timed(model.generate)


def of_transformers(path):
    import torch
    import transformers
    torch.set_num_threads(THREADS)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    at, more = (Path(path).parent, {"gguf_file": Path(path).name}) if path.endswith(".gguf") else (path, {})
    model = transformers.AutoModelForCausalLM.from_pretrained(at, dtype=torch.float32, **more).eval()

    def write(prompts, n):
        width = max(map(len, prompts))
        x = torch.tensor([[0] * (width - len(p)) + p for p in prompts])
        mask = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in prompts])
        with torch.no_grad():
            made = model.generate(x, attention_mask=mask, max_new_tokens=n, min_new_tokens=n, do_sample=False, repetition_penalty=1.0, pad_token_id=0,
                                  eos_token_id=None)
        return made[:, width:].tolist()
    return lambda: timed(write)


def of_xllamacpp(path):
    import xllamacpp
    p = xllamacpp.CommonParams()
    p.model.path, p.n_ctx, p.n_parallel, p.cpuparams.n_threads, p.cpuparams_batch.n_threads = path, 2 * (PROMPT + NEW), 1, THREADS, THREADS
    server = xllamacpp.Server(p)

    def run():
        asked = {"prompt": PROMPTS[0], "n_predict": NEW, "temperature": 0, "cache_prompt": False, "ignore_eos": True, "stream": False}
        told = [server.handle_completions(asked)["timings"] for _ in range(RUNS)]
        return {"1": {"read": max(t["prompt_per_second"] for t in told), "written": max(t["predicted_per_second"] for t in told)}}
    return run


SIDES = {"memtape": of_memtape, "transformers": of_transformers, "xllamacpp": of_xllamacpp}


def drawn(folder):
    import torch
    import transformers
    torch.manual_seed(7)
    transformers.AutoModelForCausalLM.from_config(transformers.LlamaConfig(**SMOLLM2)).save_pretrained(folder)
    return folder


def measured(name, path):
    p = subprocess.run([sys.executable, __file__, "--side", name, path], capture_output=True, text=True, check=False,
                       env=os.environ | {"OMP_NUM_THREADS": str(THREADS), "HF_HUB_OFFLINE": "1"})
    if p.returncode:
        sys.exit(f"{name}: {p.stderr}")
    return json.loads(p.stdout.splitlines()[-1])


def main(given):
    rows, missing = {}, []
    with tempfile.TemporaryDirectory() as folder:
        path = given or drawn(folder)
        for name in SIDES:
            if name != "memtape" and not importlib.util.find_spec(name) or name == "xllamacpp" and not given:
                missing.append(name)
            else:
                rows[name] = measured(name, path)
    print(f"{Path(given).name if given else 'SmolLM2-135M, drawn, f32'}: {PROMPT} tokens read, {NEW} written; {THREADS} threads; tokens a second\n\n"
          f"{'':14}{'open, s':>8}{'read':>10}{'written':>10}{'4 prompts':>12}")
    for name, row in rows.items():
        one, four = row["1"], row.get("4")
        print(f"{name:14}{row['open']:8.2f}{one['read']:10.1f}{one['written']:10.1f}" + (f"{four['written']:12.1f}" if four else ""))
        if four and [row[n]["made"] for n in "14"] != [rows["memtape"][n]["made"] for n in "14"]:
            sys.exit(f"{name} writes {one['made']}, memtape {rows['memtape']['1']['made']}")
    if missing:
        print(f"\nNot there, or without a file: {', '.join(missing)}")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--side"]:
        started = time.perf_counter()
        side = SIDES[sys.argv[2]](sys.argv[3])
        opened = time.perf_counter() - started
        print(json.dumps({"open": opened} | side()))
    else:
        main(sys.argv[1] if sys.argv[1:] else None)
