#!/usr/bin/env python3
"""bodies.py LIBMEMTAPE_CASES MEMTAPE: BertModel and RobertaModel, which have a pooler and no head, in folders as Transformers writes them:
all-MiniLM-L6-v2's is one. Hidden states, the pooler's output, what it keeps and every gradient through both are Transformers'; what
mt_hf_save writes it loads, bit for bit. Files of other heads, of other days and with a prefix are read, too. Exit status 77 if PyTorch or
Transformers is not installed."""

import os
import subprocess
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
from harness import MODEL_TOLERANCE, SavedTensors, far
from hub import load, refused
from published import CASES, TOKENS, make, positions_of, theirs_for

KINDS = ("bert", "roberta", "xlm-roberta")
AUTO = transformers.AutoModel


def both(library, model, x):
    """Our hidden states, and the pooler's output."""
    tokens = library.tensor(x)
    hidden = memtape.Tensor(library, library.mt_bert_hidden(model.pointer, tokens.pointer))
    return hidden, memtape.Tensor(library, library.mt_bert_output(model.pointer, hidden.pointer))


def value_faults(library, kind, model, ours):
    generator = torch.Generator().manual_seed(41)
    x = torch.randint(0, 31, TOKENS, generator=generator)
    theirs = model(input_ids=x, **positions_of(kind))
    wanted = {"hidden states": theirs.last_hidden_state, "pooler's output": theirs.pooler_output}
    got = dict(zip(wanted, both(library, ours, x)))
    given = {name: torch.randn(t.shape, generator=generator) for name, t in wanted.items()}
    torch.autograd.backward(list(wanted.values()), list(given.values()))
    for name in reversed(got):
        got[name].backward(library.tensor(given[name]), retain_graph=name != "hidden states")
        fault = far(got[name].torch(), wanted[name].detach(), MODEL_TOLERANCE[torch.float32])
        if fault:
            yield f"{name}: {fault}"
    prefix = kind.split("-")[-1] + "."
    parameters = {prefix + name: p.grad for name, p in model.named_parameters()}
    if kind == "xlm-roberta":
        parameters["lm_head.decoder.weight"] = parameters["roberta.embeddings.word_embeddings.weight"]
    for name, p in ours.parameters.items():
        fault = far(p.grad and p.grad.torch(), theirs_for(kind, name, parameters), MODEL_TOLERANCE[torch.float32])
        if fault:
            yield f"gradient of {name}: {fault}"
    if not torch.equal(ours(library.tensor(x)).torch(), got["pooler's output"].torch()):
        yield "forward gives something else than the pooler"


def kept_faults(library, model, ours):
    """The pooler takes a view of a row, and keeps the storage of all."""
    rows = torch.randn(*TOKENS, model.config.hidden_size)
    here = library.tensor(rows)
    library.mt_set_requires_grad(here.pointer, True)
    with SavedTensors(model.parameters()) as saved:
        y = model.pooler(rows.clone().requires_grad_())
    with memtape.Ledger(library) as ledger:
        z = memtape.Tensor(library, library.mt_bert_output(ours.pointer, here.pointer))
    if ledger.bytes != saved.bytes or not ledger.bytes > y.numel() * 4 or z.shape != tuple(y.shape):
        yield f"the pooler keeps {ledger.bytes} bytes, PyTorch's {saved.bytes}; {z.shape}, {y.shape}"


def file_faults(library, folder, kind, model, ours):
    whole = os.path.join(folder, "model.safetensors")
    hub = load_file(whole)
    library.check(library.mt_hf_save(os.path.join(folder, "back.safetensors").encode(), ours.pointer, kind.encode()))
    back = load_file(os.path.join(folder, "back.safetensors"))
    if sorted(back) != sorted(hub) or any(not torch.equal(t, back[name]) for name, t in hub.items()):
        yield f"written: {sorted(set(back) ^ set(hub))}"
    prefix = kind.split("-")[-1] + "."
    others = {"embeddings.position_ids": torch.arange(16)[None]}
    old = {name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): t for name, t in hub.items()}
    heads = {prefix + name: t for name, t in (hub | others).items()} | {"cls.predictions.bias": torch.ones(31), "lm_head.bias": torch.ones(31)}
    x = torch.randint(0, 31, TOKENS, generator=torch.Generator().manual_seed(43))
    wanted = ours(library.tensor(x)).torch()
    for what, tensors in {"a buffer of positions": hub | others, "norms' old names": old, "a prefix and heads": heads}.items():
        save_file(tensors, whole)
        if not torch.equal(load(library, model, folder)(library.tensor(x)).torch(), wanted):
            yield f"with {what} the output is another"
    save_file(hub | {"encoder.layer.0.more": torch.ones(2)}, whole)
    yield from refused(library, model, folder, "superfluous", "encoder.layer.0.more")
    for name in ("pooler.dense.weight", "encoder.layer.3.attention.self.key.bias"):
        save_file({n: t for n, t in hub.items() if n != name}, whole)
        yield from refused(library, model, folder, "missing", name)
    save_file(hub, whole)


def program_faults(program, folder, model):
    """profile, plan and explain take the folder; what needs the next token refuses it."""
    n = sum(p.numel() for p in model.parameters())
    for verb, words in (("profile", ["--json", "-"]), ("plan", ["--json", "-"]), ("explain", [])):
        p = subprocess.run([program, verb, folder, "-b", "2", "-s", "9", *words], capture_output=True, text=True, check=False)
        shown = ('"pooled": true', *([f'"count": {n}'] if verb == "profile" else [])) if words else ("pooler in place of the head", "tanh")
        if p.returncode or any(word not in p.stdout for word in shown):
            yield f"{verb}: {p.returncode}, {p.stdout[:900]}{p.stderr}"
    for verb in (["generate", "--model", folder, "--prompt", "a"], ["explain", folder, "--prompt", "a"]):
        p = subprocess.run([program, *verb], capture_output=True, text=True, check=False)
        if p.returncode != 1 or "bert" not in p.stderr:
            yield f"{verb[0]}: {p.returncode}, {p.stderr}"


def main():
    library, failed = memtape.Library(sys.argv[1]), 0
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    for kind in KINDS:
        config = next(config for other, config in CASES if other == kind)
        model = make(kind, config, torch.float32, AUTO)
        with tempfile.TemporaryDirectory() as folder:
            model.save_pretrained(folder)
            try:
                ours = load(library, model, folder)
                found = [*value_faults(library, kind, model, ours), *kept_faults(library, model, ours), *file_faults(library, folder, kind, model, ours),
                         *program_faults(sys.argv[2], folder, model)]
            except memtape.MemtapeError as error:
                found = [f"memtape: {error}"]
        for fault in found:
            print(f"FAILED: {kind}: {fault}")
        failed += bool(found)
    print(f"{len(KINDS)} models without a head, {failed} failed")
    return failed > 0


if __name__ == "__main__":
    sys.exit(main())
