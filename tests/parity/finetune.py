"""`train --from FOLDER` on texts and JSON lines, in the tokens of the folder's tokenizer: full, LoRA and QLoRA, under a budget, resumed with --resume
alone; the loss on held-out text is PyTorch's of the same tokens, and Transformers opens what --save-hf wrote. Exit
status 77 if PyTorch or Transformers is not installed."""
import json
import math
import os
import re
import shutil
import subprocess
import sys
import tempfile

os.environ["HF_HUB_OFFLINE"] = "1"
try:
    import torch
    import transformers
    from safetensors.torch import load_file
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

from folders import SMALL, made, tokenizer

DOCUMENTS = [f"Document {i}: " + "the quick brown fox jumps over the lazy dog. " * (1 + i % 3) for i in range(60)]
STEP = ["-b", "2", "-s", "16", "--lr", "0.01", "--optimizer", "adamw:warmup=0"]


class Run:
    def __init__(self, program, folder):
        self.program, self.folder = program, folder

    def __call__(self, *args, status=0):
        p = subprocess.run([self.program, *map(str, args)], capture_output=True, text=True, check=False, cwd=self.folder)
        if p.returncode != status:
            raise AssertionError(f"{args}: status {p.returncode}: {p.stderr}")
        return p.stdout if not status else p.stderr

    def held_out(self, *args):
        return float(re.search(r"held-out bits per byte (\S+)", self(*args))[1])


def held_out_loss(model, t, documents, length=16):
    """Bits per byte of documents, each ended by the end token, as windows of so many tokens."""
    ids = [id for text in documents for id in [*t(text + "\n")["input_ids"], t.eos_token_id]]
    nats = 0.0
    with torch.no_grad():
        for at in range(0, len(ids) - 1, length):
            x, y = torch.tensor([ids[at:at + length]]), torch.tensor(ids[at + 1:at + 1 + length])
            logits = model(input_ids=x).logits[0, :len(y)]
            nats += torch.nn.functional.cross_entropy(logits, y, reduction="sum").item()
    return nats / (len(ids) - 1) * len(ids) / sum(len(text.encode()) + 1 for text in documents) / math.log(2)


def faults(run, folder):
    t, model = tokenizer(), made("llama", SMALL | {"vocab_size": 640, "tie_word_embeddings": True})

    def scaled(by, name):
        """The folder in which it saves the model, its matrices multiplied by a power of two."""
        with torch.no_grad():
            for p in model.parameters():
                p.mul_(by if p.ndim > 1 else 1)
        for part in (model, t):
            part.save_pretrained(os.path.join(folder, name))
        return os.path.join(folder, name)

    base = scaled(1 / 4, "base")
    with open(os.path.join(folder, "text.jsonl"), "w", encoding="utf-8") as f:
        for i, text in enumerate(DOCUMENTS):
            f.write(json.dumps({"prompt": text[:9], "completion": text[9:]} if i % 2 else {"text": text, "more": i}) + "\n" + "\n" * (i % 5 == 0))
    lines = ["train", "--from", base, "--data", "text.jsonl", *STEP]

    # what is held out, and its loss before anything is learnt
    ours = run.held_out(*lines, "--steps", 1, "--lr", "1e-30", "--val-fraction", "0.3")
    size = os.path.getsize(os.path.join(folder, "text.jsonl"))
    at, held = 0, []
    with open(os.path.join(folder, "text.jsonl"), encoding="utf-8") as f:
        for line in f:
            if line.strip() and at + len(line) - 1 > size - int(size * 0.3):
                j = json.loads(line)
                held.append(j["text"] if "text" in j else j["prompt"] + j["completion"])
            at += len(line)
    wanted = held_out_loss(model, t, held)
    if abs(ours - wanted) > 2e-4:
        yield f"held-out bits per byte {ours}, PyTorch's {wanted}"

    # learning: full, LoRA, QLoRA, accumulation, a budget; resumed with --resume alone, it is the same run
    for name, words in {"full": [], "lora": ["--lora-rank", 4], "qlora": ["--lora-rank", 4, "--qlora", "--accumulate", 2], "budget": ["--budget", "4MiB"],
                        "bf16": ["--dtype", "bf16", "--lora-rank", 4], "apart": ["--no-packing"]}.items():
        bits = run.held_out(*lines, *words, "--steps", 12, "--eval-every", 6, "--save", f"{name}.safetensors")
        if not bits < ours - 0.05:
            yield f"{name}: {ours} bits before, {bits} after"
        run(*lines, *words, "--steps", 12, "--save", "half.safetensors", "--save-every", 5, "-q")
        os.mkdir(os.path.join(folder, name))
        run(*lines, *words, "--steps", 12, "--save", name, "--save-every", 5, "-q")
        middle = os.path.join(folder, name, "step-5.safetensors")
        p = subprocess.run([run.program, "train", "--resume", middle, "--save", os.path.join(folder, "again.safetensors"), "-q"], cwd="/", capture_output=True,
                           text=True, check=False)
        if p.returncode:
            yield f"{name}: resumed elsewhere: {p.stderr}"
            continue
        one, two = (load_file(os.path.join(folder, file)) for file in (f"{name}.safetensors", "again.safetensors"))
        if any(not torch.equal(one[key], two[key]) for key in one):
            yield f"{name}: resumed it is another run"
        written = run("generate", "--model", f"{name}.safetensors", "--prompt", "Document", "-n", 8, "-t", 1, "-q")
        if not written.strip():
            yield f"{name}: writes nothing"

    # a sequence is a document: its loss is PyTorch's of that document, cut at 16 tokens or with nothing learnt from behind its end;
    # with scores so far apart that packed the loss is another
    sharp = scaled(16, "sharp")
    for document in ("It fits.", DOCUMENTS[1]):
        with open(os.path.join(folder, "same.jsonl"), "w", encoding="utf-8") as f:
            f.writelines(json.dumps({"text": document}) + "\n" for _ in range(40))
        ids = torch.tensor([*t(document + "\n")["input_ids"], t.eos_token_id])[:17]
        with torch.no_grad():
            wanted = torch.nn.functional.cross_entropy(model(input_ids=ids[None, :-1]).logits[0], ids[1:]).item()
        told = [re.search(r"step 1/1  loss (\S+)", run("train", "--from", sharp, "--data", "same.jsonl", *STEP, "--lr", "1e-30", "--steps", 1, *more))
                for more in (["--no-packing"], [])]
        losses = [float(found[1]) for found in told]
        if len(ids) < 17 and document == DOCUMENTS[1] or len(ids) > 16 and document != DOCUMENTS[1]:
            yield f"{document!r} has {len(ids)} tokens, which shows too little"
        if abs(losses[0] - wanted) > 2e-4 or abs(losses[1] - wanted) < 0.01:
            yield f"{document!r}: loss {losses[0]} apart, {losses[1]} packed, PyTorch's {wanted}"
    with open(os.path.join(folder, "bytes.txt"), "w", encoding="ascii") as f:
        f.write("ab")
    if "two tokens" not in run("train", "--data", "bytes.txt", "--no-packing", "--steps", 1, "--val-fraction", "0.5", status=1):
        yield "documents of one byte are not refused"

    # what does not fit is refused before anything is learnt
    errors = run(*lines, "--steps", 12, "--lora-rank", 4, "--capacity", "1MiB", status=1)
    if "out of memory" not in errors or "a capacity of 1 MiB" not in errors:
        yield f"a capacity that is too small: {errors}"

    # a full run as Transformers opens it
    run(*lines, "--steps", 12, "--save", "whole.safetensors", "--save-hf", "whole", "-q")
    run(*lines, "--steps", 12, "--lora-rank", 4, "--save", "merged.safetensors", "--save-hf", "merged", "-q")
    for name in ("whole", "merged"):
        at = os.path.join(folder, name)
        again, other = transformers.AutoModelForCausalLM.from_pretrained(at), transformers.AutoTokenizer.from_pretrained(at)
        prompt = other("Document 7", return_tensors="pt")
        theirs = other.decode(again.generate(**prompt, max_new_tokens=12, do_sample=False, pad_token_id=0)[0][prompt["input_ids"].shape[1]:],
                              skip_special_tokens=True)
        for model_file in (name, f"{name}.safetensors"):
            mine = run("generate", "--model", model_file, "--prompt", "Document 7", "-n", 12, "-t", 0, "-q")
            if mine != theirs + "\n":
                yield f"{model_file} writes {mine!r}, Transformers with {name} {theirs!r}"

    # what is refused
    for bad, words in (('{"text": 3}', ["line 1", '"text"']), ('{"messages": []}', ["chat template"]), ('{"text": "a"}\n{', ["line 2"])):
        with open(os.path.join(folder, "bad.jsonl"), "w", encoding="ascii") as f:
            f.write(bad)
        errors = run("train", "--from", base, "--data", "bad.jsonl", "--steps", 1, status=1)
        yield from (f"{bad}: no {word} in {errors}" for word in ["bad.jsonl", *words] if word not in errors)
    shutil.move(os.path.join(folder, "text.jsonl"), os.path.join(folder, "moved.jsonl"))
    if "text.jsonl" not in run("train", "--resume", "full.safetensors", "--steps", 13, status=1):
        yield "a text that is gone is not named"
    run("train", "--resume", "full.safetensors", "--steps", 13, "--data", "moved.jsonl", "-q")
    if "--from" not in run("train", "--data", "moved.jsonl", "--steps", 1, "-s", 16, "--save-hf", "none", status=1):
        yield "--save-hf without a folder"


def main():
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    with tempfile.TemporaryDirectory() as folder:
        found = list(faults(Run(os.path.abspath(sys.argv[2]), folder), folder))
    for fault in found:
        print(f"FAILED: {fault}")
    print(f"{len(found)} failed")
    return len(found) > 0


if __name__ == "__main__":
    sys.exit(main())
