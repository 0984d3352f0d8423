"""Folders that Transformers wrote, whole and in parts, in the program: `generate` continues tokens as model.generate(do_sample=False) does,
with a penalty for repetitions, too, and ends at the same tokens. Exit status 77 if PyTorch or Transformers is not installed."""
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"
try:
    import torch
    import transformers
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

SMALL = dict(vocab_size=301, hidden_size=32, intermediate_size=48, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2,
             max_position_embeddings=64, bos_token_id=None, eos_token_id=None, pad_token_id=None)
FAMILIES = {"llama": {**SMALL, "tie_word_embeddings": True}, "mistral": {**SMALL, "sliding_window": 8}, "qwen2": SMALL, "qwen3": {**SMALL, "head_dim": 10},
            "olmo2": SMALL, "phi3": {**SMALL, "sliding_window": None}, "smollm3": {**SMALL, "no_rope_layer_interval": 2},
            "gpt_neox": {**{k: v for k, v in SMALL.items() if k != "num_key_value_heads"}, "hidden_size": 64}, "gemma": {**SMALL, "head_dim": 8}, "gemma2": {**SMALL, "head_dim": 8, "sliding_window": 8},
            "gpt2": dict(vocab_size=301, n_embd=32, n_layer=3, n_head=4, n_positions=64, bos_token_id=None, eos_token_id=None)}
NEW = 24
PROMPTS = [[7, 300, 4, 4, 91], [250], [3, 2, 1] * 9]


def made(kind, config):
    torch.manual_seed(len(kind))
    model = transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.for_model(kind, **config), attn_implementation="eager").eval()
    more = 8 if kind == "gemma" else 4  # else all scores are nearly equal, or Gemma's large embedding writes what it reads
    with torch.no_grad():
        for p in model.parameters():
            if p.ndim > 1 and not (kind == "gemma" and p is model.get_input_embeddings().weight):
                p.mul_(more)
    return model


def theirs(model, prompt, **more):
    with torch.no_grad():
        return model.generate(torch.tensor([prompt]), max_new_tokens=NEW, do_sample=False, pad_token_id=0, **more)[0].tolist()[len(prompt):]


def faults(program, kind, config, folder):
    model = made(kind, config)
    ids = os.path.join(folder, "ids")
    with open(ids, "w", encoding="ascii") as f:
        f.writelines(" ".join(map(str, prompt)) + "\n" for prompt in PROMPTS)
    asked = ({}, {"repetition_penalty": 1.4})
    written = [[theirs(model, prompt, **more) for prompt in PROMPTS] for more in asked]
    for shards in ("1GB", "40KB"):
        at = os.path.join(folder, shards)
        model.save_pretrained(at, max_shard_size=shards)
        if (shards == "40KB") != os.path.exists(os.path.join(at, "model.safetensors.index.json")):
            yield f"shards of {shards}: {os.listdir(at)}"
        for more, wanted in zip(asked, written):
            words = [word for name, value in more.items() for word in (f"--{name}".replace("_", "-"), str(value))]
            p = subprocess.run([program, "generate", "--model", at, "--ids", ids, "-n", str(NEW), "-t", "0", "-q", *words], capture_output=True, text=True,
                               check=False)
            ours = [list(map(int, line.split())) for line in p.stdout.splitlines()]
            if ours != wanted:
                yield f"{shards} {more}: {ours}, Transformers {wanted}: {p.stderr}"
    if len({tuple(line) for line in wanted}) < 3 or max(len(set(line)) for line in wanted) < 6:
        yield f"what is written shows too little: {wanted}"


def tokenizer():
    """BPE over bytes, trained on this repository's pages."""
    t = Tokenizer(models.BPE())
    t.pre_tokenizer, t.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    t.train(sorted(map(str, (Path(__file__).parents[2] / "docs").glob("*.md")))[:12],
            trainers.BpeTrainer(vocab_size=600, special_tokens=["<|end|>", "<|user|>"], initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False))
    return transformers.PreTrainedTokenizerFast(tokenizer_object=t, eos_token="<|end|>")


TEXTS = ["The memory of", "— naïve 日本語 🙂,", "<|user|>what fits?", "  two  spaces\n\nand lines", "x"]


def text_faults(program, folder):
    """Texts, by the tokenizer beside the model; they end at the token that the folder says ends a text."""
    t = tokenizer()
    model = made("llama", SMALL | {"vocab_size": 640, "tie_word_embeddings": True})
    model.save_pretrained(folder)
    t.save_pretrained(folder)

    def ours(*args):
        p = subprocess.run([program, "generate", "--model", folder, "-n", str(NEW), "-t", "0", *args], capture_output=True, check=False)
        return p.stdout.decode() if not p.returncode else f"status {p.returncode}: {p.stderr.decode()}"

    def wanted(text, **more):
        prompt = t(text)["input_ids"]
        return t.decode(theirs(model, prompt, **more), skip_special_tokens=True)

    for text in TEXTS:
        if ours("-q", "--prompt", text) != wanted(text) + "\n":
            yield f"after {text!r}: {ours('-q', '--prompt', text)!r}, Transformers {wanted(text)!r}"
    both = ours("--prompt", TEXTS[0], "--prompt", TEXTS[1])
    if both != "".join(f"{text}{wanted(text)}\n" for text in TEXTS[:2]):
        yield f"two prompts: {both!r}"
    end = theirs(model, t(TEXTS[0])["input_ids"])[3]
    with open(os.path.join(folder, "generation_config.json"), "w", encoding="ascii") as f:
        f.write(f'{{"eos_token_id": [639, {end}]}}')
    until = theirs(model, t(TEXTS[0])["input_ids"], eos_token_id=end)
    whole = t.decode(until[:until.index(end)], skip_special_tokens=True)  # the end may be part of a character
    if ours("-q", "--prompt", TEXTS[0]) != whole + "\n":
        yield f"ended by {end}: {ours('-q', '--prompt', TEXTS[0])!r}, wanted {whole!r}"
    with open(os.path.join(folder, "ids"), "w", encoding="ascii") as f:
        f.write(" ".join(map(str, t(TEXTS[0])["input_ids"])))
    if ours("-q", "--ids", os.path.join(folder, "ids")).split() != list(map(str, theirs(model, t(TEXTS[0])["input_ids"], eos_token_id=end))):
        yield f"tokens ended by {end}: {ours('-q', '--ids', os.path.join(folder, 'ids'))}"
    made("llama", SMALL | {"vocab_size": 599}).save_pretrained(folder)
    if "tokens up to 599" not in ours("--prompt", "x"):
        yield f"a vocabulary that is too small: {ours('--prompt', 'x')}"


def explained(program, folder):
    """`explain --prompt`: tokens, probabilities and loss are those of Transformers' logits."""
    t, model = tokenizer(), made("llama", SMALL | {"vocab_size": 640, "tie_word_embeddings": True})
    model.save_pretrained(folder)
    t.save_pretrained(folder)
    for text in TEXTS[:4]:
        p = subprocess.run([program, "explain", folder, "--prompt", text, "-q"], capture_output=True, text=True, check=False)
        ids = t(text, return_tensors="pt")["input_ids"]
        with torch.no_grad():
            logits = model(input_ids=ids).logits[0]
        loss = torch.nn.functional.cross_entropy(logits[:-1], ids[0, 1:]).item()
        told = re.search(r"loss (\S+) nats", p.stdout)
        if not told or abs(float(told[1]) - loss) > 1e-4 * loss:
            yield f"explain {text!r}: {p.stdout}{p.stderr}, loss {loss}"
            continue
        rows = [line for line in p.stdout.splitlines() if re.match(r" +\d+ +\d+  \"", line)]
        chances = torch.softmax(logits, 1)
        for i, line in enumerate(rows):
            numbers = [float(x) for x in re.findall(r"\"  +([01]\.\d{4})", line)]
            wanted = ([chances[i - 1, ids[0, i]].item()] if i else []) + chances[i].topk(3).values.tolist()
            if int(line.split()[1]) != ids[0, i] or len(numbers) != len(wanted) or max(abs(a - b) for a, b in zip(numbers, wanted)) > 2e-4:
                yield f"explain {text!r}, token {i}: {line}, wanted {wanted}"
        if len(rows) != ids.shape[1] or "kept for backward" not in p.stdout or "h.0 to h.2" not in p.stdout:
            yield f"explain {text!r}: {p.stdout}"
    for words, part in ((["--prompt", "a b", "-l", "3"], "--layers"), (["--prompt", "a b", "--device", "meta"], "meta")):
        p = subprocess.run([program, "explain", folder, *words], capture_output=True, text=True, check=False)
        if p.returncode != 2 or part not in p.stderr:
            yield f"{words}: {p.returncode}, {p.stderr}"


def main():
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    failed = 0
    for kind, config in FAMILIES.items():
        with tempfile.TemporaryDirectory() as folder:
            for fault in faults(sys.argv[2], kind, config, folder):
                print(f"FAILED: {kind}: {fault}")
                failed += 1
    with tempfile.TemporaryDirectory() as folder:
        for fault in [*text_faults(sys.argv[2], folder), *explained(sys.argv[2], folder)]:
            print(f"FAILED: {fault}")
            failed += 1
    print(f"{len(FAMILIES)} families, {failed} failed")
    return failed > 0


if __name__ == "__main__":
    sys.exit(main())
