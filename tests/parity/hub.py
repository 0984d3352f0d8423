#!/usr/bin/env python3
"""hub.py LIBMEMTAPE_CASES: checkpoints as Transformers saves them, with experts one by one and in several files, and as it has
them in memory, with experts stacked, are loaded (mt_hf_load), and give its logits; what mt_hf_save writes Transformers loads, bit for
bit. What does not fit is refused. Exit status 77 if PyTorch or Transformers is not installed."""

import os
import shutil
import sys
import tempfile

os.environ["HF_HUB_OFFLINE"] = "1"
try:
    import torch
    import transformers
    from safetensors.torch import load_file, save_file
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

import memtape
from harness import MODEL_TOLERANCE, far
from published import CASES, TOKENS, auto_class, make

FAMILIES = ("llama", "qwen3", "mixtral", "qwen3_moe", "olmoe", "olmo2", "phi3", "gemma3_text")


def load(library, model, path):
    tells = model.config.to_dict() | {"dtype": str(model.dtype).removeprefix("torch.")}
    ours = memtape.Model(library, hf=tells)
    library.check(library.mt_hf_load(path.encode(), ours.pointer))
    return ours


def refused(library, model, path, *words):
    try:
        load(library, model, path)
    except memtape.MemtapeError as error:
        return [f"refused without {word}: {error}" for word in words if word not in str(error)]
    return [f"not refused: {words}"]


def faults(library, meta, folder, kind, config, dtype):
    model = make(kind, config, dtype).eval()
    x = torch.randint(0, 31, TOKENS, generator=torch.Generator().manual_seed(3))
    logits = model(input_ids=x).logits.detach()
    model.save_pretrained(folder, max_shard_size="20KB")
    whole, stacked, back = (os.path.join(folder, name) for name in ("one.safetensors", "stacked.safetensors", "back"))
    parts = [os.path.join(folder, name) for name in sorted(os.listdir(folder)) if name.startswith("model-")]
    hub = {name: t for part in parts for name, t in load_file(part).items()}
    if len(parts) < 2:
        yield f"{len(parts)} files"
    save_file(hub, whole)
    tied = {"lm_head.weight"} if model.config.tie_word_embeddings else set()
    save_file({name: t.clone() for name, t in model.state_dict().items() if name not in tied}, stacked)
    for path in (folder, whole, stacked):
        ours = load(library, model, path)
        fault = far(ours(library.tensor(x)).torch(), logits, MODEL_TOLERANCE[dtype])
        if fault:
            yield f"logits of {os.path.basename(path)}: {fault}"
    load(meta, model, folder)  # only looks at the files
    os.mkdir(back)
    shutil.copy(os.path.join(folder, "config.json"), back)
    library.check(library.mt_hf_save(os.path.join(back, "model.safetensors").encode(), ours.pointer, kind.encode()))
    written = load_file(os.path.join(back, "model.safetensors"))
    if sorted(written) != sorted(hub):
        yield f"names: {sorted(set(written) ^ set(hub))}"
    again = auto_class(kind).from_pretrained(back, attn_implementation="eager").state_dict()
    differ = [name for name, t in model.state_dict().items() if not torch.equal(t, again[name])]
    if differ:
        yield f"read back, these differ: {differ}"
    last = sorted(hub)[-2]
    save_file({name: t for name, t in hub.items() if name != last}, whole)
    yield from refused(library, model, whole, last)
    save_file(hub | {"model.layers.0.more.weight": torch.ones(2)}, whole)
    yield from refused(library, model, whole, "superfluous", "model.layers.0.more.weight")
    save_file(hub | {last: hub[last][:1].clone()}, whole)
    yield from refused(library, model, whole, last, "; need")


def main():
    library, meta = memtape.Library(sys.argv[1]), memtape.Library(sys.argv[1])
    meta.device = meta.mt_device_open(b"meta")
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    seen, failed = [], 0
    for kind, config in CASES:
        if kind not in FAMILIES or kind in seen:
            continue
        seen.append(kind)
        with tempfile.TemporaryDirectory() as folder:
            found = list(faults(library, meta, folder, kind, config, torch.bfloat16 if kind == "olmoe" else torch.float32))
        for fault in found:
            print(f"FAILED: {kind}: {fault}")
        failed += bool(found)
    print(f"{len(seen)} checkpoints, {failed} failed")
    return failed > 0 or len(seen) != len(FAMILIES)


if __name__ == "__main__":
    sys.exit(main())
