"""Folders that Transformers wrote, whole and in parts, in the program: `generate` continues tokens as model.generate(do_sample=False) does,
with a penalty for repetitions, too, and ends at the same tokens. Exit status 77 if PyTorch or Transformers is not installed."""
import os
import subprocess
import sys
import tempfile

os.environ["HF_HUB_OFFLINE"] = "1"
try:
    import torch
    import transformers
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

SMALL = dict(vocab_size=301, hidden_size=32, intermediate_size=48, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2,
             max_position_embeddings=64, bos_token_id=None, eos_token_id=None, pad_token_id=None)
FAMILIES = {"llama": {**SMALL, "tie_word_embeddings": True}, "mistral": {**SMALL, "sliding_window": 8}, "qwen2": SMALL, "qwen3": {**SMALL, "head_dim": 10},
            "olmo2": SMALL, "phi3": {**SMALL, "sliding_window": None}, "gemma2": {**SMALL, "head_dim": 8, "sliding_window": 8},
            "gpt2": dict(vocab_size=301, n_embd=32, n_layer=3, n_head=4, n_positions=64, bos_token_id=None, eos_token_id=None)}
NEW = 24
PROMPTS = [[7, 300, 4, 4, 91], [250], [3, 2, 1] * 9]


def made(kind, config):
    torch.manual_seed(len(kind))
    model = transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.for_model(kind, **config), attn_implementation="eager").eval()
    with torch.no_grad():
        for p in model.parameters():
            if p.ndim > 1:
                p.mul_(4)  # else all scores are nearly equal
    return model


def theirs(model, prompt, **more):
    with torch.no_grad():
        return model.generate(torch.tensor([prompt]), max_new_tokens=NEW, do_sample=False, pad_token_id=0, **more)[0].tolist()[len(prompt):]


def faults(program, kind, config, folder):
    model = made(kind, config)
    ids = os.path.join(folder, "ids")
    with open(ids, "w", encoding="ascii") as f:
        f.writelines(" ".join(map(str, prompt)) + "\n" for prompt in PROMPTS)
    for shards in ("1GB", "40KB"):
        at = os.path.join(folder, shards)
        model.save_pretrained(at, max_shard_size=shards)
        if (shards == "40KB") != os.path.exists(os.path.join(at, "model.safetensors.index.json")):
            yield f"shards of {shards}: {os.listdir(at)}"
        for more in ({}, {"repetition_penalty": 1.4}):
            words = [word for name, value in more.items() for word in (f"--{name}".replace("_", "-"), str(value))]
            p = subprocess.run([program, "generate", "--model", at, "--ids", ids, "-n", str(NEW), "-t", "0", "-q", *words], capture_output=True, text=True,
                               check=False)
            ours = [list(map(int, line.split())) for line in p.stdout.splitlines()]
            wanted = [theirs(model, prompt, **more) for prompt in PROMPTS]
            if ours != wanted:
                yield f"{shards} {more}: {ours}, Transformers {wanted}: {p.stderr}"
    if len({tuple(line) for line in wanted}) < 3 or max(len(set(line)) for line in wanted) < 6:
        yield f"what is written shows too little: {wanted}"


def main():
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    failed = 0
    for kind, config in FAMILIES.items():
        with tempfile.TemporaryDirectory() as folder:
            for fault in faults(sys.argv[2], kind, config, folder):
                print(f"FAILED: {kind}: {fault}")
                failed += 1
    print(f"{len(FAMILIES)} families, {failed} failed")
    return failed > 0


if __name__ == "__main__":
    sys.exit(main())
