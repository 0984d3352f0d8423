"""Adapters in folders as PEFT has them: what the library wrote PEFT opens, and what PEFT wrote the library opens, each with the other's logits and
losses; the program trains such a folder and writes with it. What PEFT can do and adapters here cannot is refused. Exit status 77 if PyTorch,
Transformers or PEFT is not installed."""
import json
import os
import subprocess
import sys
import tempfile

os.environ["HF_HUB_OFFLINE"] = "1"
try:
    import torch
    import transformers
    import peft
    from safetensors.torch import load_file
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

import memtape
from harness import MODEL_TOLERANCE, far

SMALL = dict(vocab_size=256, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
             max_position_embeddings=64, bos_token_id=None, eos_token_id=None, pad_token_id=None)
BASES = {"llama": SMALL, "phi3": SMALL | {"sliding_window": None}, "gpt_neox": {k: v for k, v in SMALL.items() if k != "num_key_value_heads"},
         "gpt2": dict(vocab_size=256, n_embd=32, n_layer=2, n_head=4, n_positions=64, attn_pdrop=0.0,
                                                             embd_pdrop=0.0, resid_pdrop=0.0, bos_token_id=None, eos_token_id=None)}
TARGETS = {"llama": (["q_proj", "v_proj"], ["gate_proj", "down_proj"]), "phi3": (["qkv_proj"], ["o_proj", "down_proj"]),
           "gpt_neox": (["query_key_value"], ["dense", "dense_4h_to_h"]), "gpt2": (["c_attn"], ["c_proj", "c_fc"], ["attn.c_proj"])}
OURS = {"llama": ("q,v", "attn.proj,gate", "all"), "phi3": ("qkv", "gate_up"), "gpt_neox": ("qkv", "attn.proj,fc"), "gpt2": ("qkv", "attn.proj", "mlp.proj,fc")}


def base(kind, dtype=torch.float32):
    torch.manual_seed(3)
    model = transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.for_model(kind, **BASES[kind]), attn_implementation="eager").eval()
    with torch.no_grad():
        for p in model.parameters():
            if p.ndim > 1:
                p.mul_(4)
    return model.to(dtype)


def opened(library, model, adapter):
    tells = model.config.to_dict() | {"dtype": str(model.dtype).removeprefix("torch.")}
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        ours = memtape.Model(library, hf=tells)
        library.check(library.mt_hf_load(folder.encode(), ours.pointer))
    library.check(library.mt_lora_load(adapter.encode(), ours.pointer))
    return ours


def compare(library, ours, theirs, what, tolerance):
    x = torch.randint(0, 256, (2, 17), generator=torch.Generator().manual_seed(5))
    with torch.no_grad():
        logits = theirs(input_ids=x[:, :-1].contiguous()).logits
        loss = torch.nn.functional.cross_entropy(logits.float().flatten(0, 1), x[:, 1:].flatten())
    fault = far(ours(library.tensor(x[:, :-1].contiguous())).torch(), logits, tolerance)
    if fault:
        yield f"{what}: logits: {fault}"
    value = ours.loss(library.tensor(x[:, :-1].contiguous()), library.tensor(x[:, 1:].contiguous())).torch().item()
    if abs(value - loss.item()) > max(tolerance, 1e-6) * abs(loss.item()):
        yield f"{what}: loss {value}, PEFT's {loss.item()}"


def theirs_to_ours(library, kind, folder):
    for i, targets in enumerate(TARGETS[kind]):
        for rs in (False, True):
            for dtype in (torch.float32,) if rs else (torch.float32, torch.bfloat16):  # larger steps beside bf16 round too much to compare
                at = os.path.join(folder, f"theirs{i}{rs}{dtype}")
                model = peft.get_peft_model(base(kind, dtype), peft.LoraConfig(r=3, lora_alpha=7, target_modules=targets, use_rslora=rs,
                                                                              fan_in_fan_out=kind == "gpt2", task_type="CAUSAL_LM"))
                with torch.no_grad():
                    for name, p in model.named_parameters():
                        if "lora_" in name:
                            p.normal_(0, 0.3, generator=torch.Generator().manual_seed(len(name)))
                model.eval().save_pretrained(at)
                ours = opened(library, base(kind, dtype), at)
                yield from compare(library, ours, model, f"{targets} of PEFT's, rslora {rs}, {dtype}", MODEL_TOLERANCE[dtype])


def ours_to_theirs(library, program, kind, folder):
    text = os.path.join(folder, "text")
    with open(text, "wb") as f:
        f.write(b"The quick brown fox jumps over the lazy dog. " * 80)
    hub = os.path.join(folder, "base")
    base(kind).save_pretrained(hub)
    for i, targets in enumerate(OURS[kind]):
        at = os.path.join(folder, f"ours{i}")
        p = subprocess.run([program, "train", "--from", hub, "--data", text, "--steps", "3", "-s", "16", "-b", "2", "--lr", "0.05", "--lora-rank", "4",
                            "--lora-targets", targets, "-q", "--save-adapter", at + "/"], capture_output=True, text=True, check=False)
        if p.returncode:
            yield f"training beside {targets}: {p.stderr}"
            continue
        with open(os.path.join(at, "adapter_config.json"), encoding="utf-8") as f:
            told = json.load(f)
        if not isinstance(told["target_modules"], list) or told["r"] != 4:
            yield f"{targets}: {told}"
        theirs = peft.PeftModel.from_pretrained(base(kind), at).eval()
        moved = [name for name, t in load_file(os.path.join(at, "adapter_model.safetensors")).items() if "lora_B" in name and t.abs().max() > 0]
        state = peft.get_peft_model_state_dict(theirs)
        if not moved or sorted(name for name in state if "base_layer" not in name) != sorted(load_file(os.path.join(at, "adapter_model.safetensors"))):
            yield f"{targets}: PEFT has {sorted(state)}"
        yield from compare(library, opened(library, base(kind), at), theirs, f"{targets} of the program's", MODEL_TOLERANCE[torch.float32])
        ids = os.path.join(folder, "ids")
        with open(ids, "w", encoding="ascii") as f:
            f.write("84 104 101")
        wanted = theirs.generate(input_ids=torch.tensor([[84, 104, 101]]), max_new_tokens=12, do_sample=False, pad_token_id=0)[0].tolist()
        for merge in ([], ["--merge"]):
            p = subprocess.run([program, "generate", "--model", hub, "--adapter", at, "--ids", ids, "-n", "12", "-t", "0", *merge], capture_output=True,
                               text=True, check=False)
            if p.stdout.split() != list(map(str, wanted)):
                yield f"{targets} {merge}: writes {p.stdout.split()}, PEFT {wanted}: {p.stderr}"


def refusals(library, folder):
    model = base("llama")
    good = os.path.join(folder, "theirs0Falsetorch.float32")
    with open(os.path.join(good, "adapter_config.json"), encoding="utf-8") as f:
        told = json.load(f)
    with open(os.path.join(good, "adapter_model.safetensors"), "rb") as f:
        weights = f.read()
    for change, words in (({"peft_type": "IA3"}, ["peft_type", "IA3"]), ({"use_dora": True}, ["use_dora"]), ({"bias": "all"}, ["bias"]),
                          ({"rank_pattern": {"q_proj": 2}}, ["rank_pattern"]), ({"modules_to_save": ["lm_head"]}, ["modules_to_save"]),
                          ({"init_lora_weights": "pissa"}, ["init_lora_weights", "pissa"]), ({"r": 0}, ['"r"']), ({"r": 2.5}, ['"r"', "2.5"]),
                          ({"r": 4}, ["lora_A", "[3,32]"]), ({"lora_alpha": "x"}, ["lora_alpha"]), ({"lora_dropout": 1}, ["lora_dropout"])):
        at = tempfile.mkdtemp(dir=folder)
        with open(os.path.join(at, "adapter_config.json"), "w", encoding="utf-8") as f:
            json.dump(told | change, f)
        with open(os.path.join(at, "adapter_model.safetensors"), "wb") as f:
            f.write(weights)
        try:
            opened(library, model, at)
            yield f"{change}: not refused"
        except memtape.MemtapeError as error:
            yield from (f"{change}: no {word} in {error}" for word in words if word not in str(error))
    for name, content, words in (("adapter_config.json", b"{", ["line 1"]), ("adapter_config.json", b"version https://git-lfs.github.com/spec/v1\n", ["Git LFS"]),
                                 ("adapter_model.safetensors", weights[:-9], ["truncated"])):
        at = tempfile.mkdtemp(dir=folder)
        for own, data in (("adapter_config.json", json.dumps(told).encode()), ("adapter_model.safetensors", weights)):
            with open(os.path.join(at, own), "wb") as f:
                f.write(content if own == name else data)
        try:
            opened(library, model, at)
            yield f"{name}: not refused"
        except memtape.MemtapeError as error:
            yield from (f"{name}: no {word} in {error}" for word in words if word not in str(error))
    try:
        opened(library, base("gpt2"), good)
        yield "adapters of another model: not refused"
    except memtape.MemtapeError as error:
        if "no adapters of linears" not in str(error):
            yield f"adapters of another model: {error}"


def main():
    library = memtape.Library(sys.argv[1])
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    failed = 0
    for kind in BASES:
        with tempfile.TemporaryDirectory() as folder:
            for fault in [*theirs_to_ours(library, kind, folder), *ours_to_theirs(library, sys.argv[2], kind, folder),
                          *(refusals(library, folder) if kind == "llama" else [])]:
                print(f"FAILED: {kind}: {fault}")
                failed += 1
    print(f"{len(BASES)} bases, {failed} failed")
    return failed > 0


if __name__ == "__main__":
    sys.exit(main())
