#!/usr/bin/env python3
"""hub.py LIBMEMTAPE_CASES MEMTAPE: checkpoints as Transformers saves them, with experts one by one and in several files, and as it has
them in memory, with experts stacked, are loaded (mt_hf_load), and give its logits; what mt_hf_save writes Transformers loads, bit for
bit. What does not fit is refused. A mixture over bytes in a folder writes and learns in the program, too. Exit status 77 if PyTorch or Transformers is not installed."""

import os
import shutil
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
from harness import MODEL_TOLERANCE, far
from published import CASES, TOKENS, auto_class, make, positions_of, routed_apart

FAMILIES = ("gpt2", "opt", "gpt_neox", "llama", "qwen3", "mixtral", "qwen3_moe", "olmoe", "olmo2", "phi3", "smollm3", "gemma3_text", "deepseek_v2", "deepseek_v3", "glm4_moe",
            "gpt_oss", "bert", "roberta", "xlm-roberta")


def load(library, model, path, mxfp4=False):
    tells = model.config.to_dict() | {"dtype": str(model.dtype).removeprefix("torch.")}
    ours = memtape.Model(library, hf=tells, mxfp4=mxfp4)
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
    logits = model(input_ids=x, **positions_of(kind)).logits.detach()
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
    second = [name for name in hub if ".1.self_attn.v_proj" in name or ".1.attention.self.key.bias" in name or ".experts.1.w3" in name
              or ".experts.1.up_proj" in name]
    for missing in (last, *second):
        save_file({name: t for name, t in hub.items() if name != missing}, whole)
        yield from refused(library, model, whole, missing)
    save_file(hub | {"model.layers.0.more.weight": torch.ones(2)}, whole)
    yield from refused(library, model, whole, "superfluous", "model.layers.0.more.weight")
    save_file(hub | {last: hub[last][:1].clone()}, whole)
    yield from refused(library, model, whole, last, "; need")


def mxfp4_faults(library, folder):
    """gpt-oss' own files: experts in MXFP4, as blocks and scales, widened to f32, bf16 and f16 as Transformers does, and kept as they are."""
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors
    g = torch.Generator().manual_seed(4)
    torch.manual_seed(4)
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        config = transformers.GptOssConfig(
            vocab_size=31, hidden_size=64, intermediate_size=32, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
            head_dim=16, num_local_experts=4, num_experts_per_tok=2, sliding_window=4, attn_implementation="eager")
        model = transformers.GptOssForCausalLM(config).to(dtype).eval()
        hub, wide = {n: t.clone() for n, t in model.state_dict().items()}, {}
        for name in [n for n in hub if n.endswith("experts.gate_up_proj") or n.endswith("experts.down_proj")]:
            e, i, o = hub.pop(name).shape
            hub[name + "_blocks"] = torch.randint(0, 256, (e, o, i // 32, 16), generator=g, dtype=torch.uint8)
            low, high = (112, 124) if dtype == torch.float16 else (0, 255)  # f16 has fewer powers; 255 is NaN here, infinite there
            hub[name + "_scales"] = torch.randint(low, high, (e, o, i // 32), generator=g, dtype=torch.uint8)
            wide[name] = convert_moe_packed_tensors(hub[name + "_blocks"], hub[name + "_scales"], dtype=dtype)
        path = os.path.join(folder, "mxfp4.safetensors")
        save_file(hub, path)
        ours = load(library, model, path)
        for name, theirs in wide.items():
            layer, product = name.split(".")[2], name.rsplit(".", 1)[1].removesuffix("_proj")
            values = ours.parameters[f"h.{layer}.mlp.experts_{product}.weight"].torch()
            if not torch.equal(values, theirs.transpose(1, 2)):
                yield f"{dtype}: {name} is not Transformers'"
        for name in wide:  # to numbers that a model can compute with
            hub[name + "_scales"] = hub[name + "_scales"] % 8 + 116
        save_file(hub, path)
        model.load_state_dict({n: convert_moe_packed_tensors(hub[n + "_blocks"], hub[n + "_scales"], dtype=dtype) for n in wide}, strict=False)
        x = routed_apart(model, g, 2e-3 if dtype == torch.float32 else 1e-2)
        ours, kept = load(library, model, path), load(library, model, path, mxfp4=True)
        logits = ours(library.tensor(x)).torch()
        fault = dtype in MODEL_TOLERANCE and far(logits, model(input_ids=x).logits.detach(), MODEL_TOLERANCE[dtype])
        if fault:
            yield f"{dtype}: logits: {fault}"
        if not torch.equal(logits, kept(library.tensor(x)).torch()):
            yield f"{dtype}: kept in 4 bits the logits are others"
        codes = kept.parameters["h.1.mlp.experts_down.weight"].torch()
        if codes.dtype != torch.uint8 or codes.numel() * 32 != 4 * 64 * 32 * 17:
            yield f"{dtype}: kept as {codes.dtype}, {codes.numel()}"
        missing = next(iter(wide)) + "_scales"
        save_file({n: t for n, t in hub.items() if n != missing}, path)
        yield from refused(library, model, path, missing)
        save_file(hub | {missing: hub[missing][:1].clone()}, path)
        yield from refused(library, model, path, missing, "; need")


def program_faults(program, folder):
    """The program writes what Transformers writes, and begins to train where it is."""
    def ran(*args):
        return subprocess.run([program, *args], capture_output=True, check=True).stdout

    torch.manual_seed(1)
    config = transformers.AutoConfig.for_model(
        "qwen3_moe", vocab_size=256, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=8,
        max_position_embeddings=64, tie_word_embeddings=False, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=24,
        norm_topk_prob=True, dtype="float32", bos_token_id=None, eos_token_id=None)
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    model.save_pretrained(folder)
    prompt = torch.tensor([list(b"The ")])
    theirs = bytes(model.generate(prompt, max_new_tokens=12, do_sample=False, pad_token_id=0)[0].tolist())[4:]
    ours = ran("generate", "--model", folder, "--prompt", "The ", "-n", "12", "-t", "0", "-q")
    if ours != theirs + b"\n":
        yield f"writes {ours}, Transformers {theirs}"
    text, run = os.path.join(folder, "text"), os.path.join(folder, "run.safetensors")
    with open(text, "wb") as f:
        f.write(b"The quick brown fox. " * 100)
    ran("train", "--data", text, "--from", folder, "--steps", "1", "--lr", "1e-30", "-s", "16", "-q", "--save", run)
    if ran("generate", "--model", run, "--prompt", "The ", "-n", "12", "-t", "0", "-q") != ours:
        yield "a run from the folder begins elsewhere"


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
    with tempfile.TemporaryDirectory() as folder:
        for fault in [*mxfp4_faults(library, folder), *program_faults(sys.argv[2], folder)]:
            print(f"FAILED: {fault}")
            failed += 1
    print(f"{len(seen)} checkpoints, {failed} failed")
    return failed > 0 or len(seen) != len(FAMILIES)


if __name__ == "__main__":
    sys.exit(main())
