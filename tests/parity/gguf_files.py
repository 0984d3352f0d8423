"""GGUF files that llama.cpp's own package wrote, of every type of block that is read: the program continues tokens as Transformers does with the values
that the package makes of the blocks. Exit status 77 if PyTorch, Transformers or gguf is not installed."""
import os
import subprocess
import sys
import tempfile

os.environ["HF_HUB_OFFLINE"] = "1"
try:
    import gguf
    import numpy as np
    import torch
    import transformers
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

from folders import made, theirs

TYPES = ("F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q5_K", "Q6_K")
SMALL = dict(vocab_size=301, hidden_size=256, intermediate_size=512, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
             max_position_embeddings=64, bos_token_id=None, eos_token_id=None, pad_token_id=None)
ARCHITECTURES = {"llama": SMALL | {"tie_word_embeddings": True}, "qwen2": SMALL, "qwen3": SMALL | {"head_dim": 64, "tie_word_embeddings": False}}
NAMES = {"embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output", "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm",
         "q_proj": "attn_q", "k_proj": "attn_k", "v_proj": "attn_v", "o_proj": "attn_output", "q_norm": "attn_q_norm", "k_norm": "attn_k_norm",
         "gate_proj": "ffn_gate", "up_proj": "ffn_up", "down_proj": "ffn_down"}
PROMPT = [7, 300, 4, 4, 91]
LLAMA3 = {"rope_type": "llama3", "factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
SCALED = {"llama3": LLAMA3, "linear": {"rope_type": "linear", "factor": 4.0},
          "yarn": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16, "beta_fast": 2.0, "beta_slow": 0.25}}


def blocks_of(w, kind):
    """(bytes, the values that they stand for); of the types that the package only reads, codes that are drawn."""
    kind = gguf.GGMLQuantizationType[kind]
    try:
        data = gguf.quants.quantize(w, kind)
    except NotImplementedError:
        n, size = gguf.GGML_QUANT_SIZES[kind]
        data = np.random.default_rng(w.size).integers(0, 256, (w.shape[0], w.shape[1] // n * size), dtype=np.uint8)
        view = data.reshape(-1, size)
        scale = np.array([0.0005 * np.abs(w).mean() / 0.05], np.float16).view(np.uint8)
        for at in ((0, 2) if kind.name in ("Q4_K", "Q5_K") else (208,)):
            view[:, at:at + 2] = scale
    return data, gguf.quants.dequantize(data, kind)


def write_scaling(writer, rope, model):
    """As llama.cpp's converter does."""
    if rope["rope_type"] == "llama3":
        config, d = model.config, model.config.hidden_size // model.config.num_attention_heads
        plain = rope["rope_theta"] ** -(np.arange(0, d, 2) / d)
        scaled, _ = transformers.modeling_rope_utils.ROPE_INIT_FUNCTIONS["llama3"](config, "cpu")
        writer.add_tensor("rope_freqs.weight", (plain / scaled.double().numpy()).astype(np.float32))
    elif rope["rope_type"] != "default":
        writer.add_rope_scaling_type(gguf.RopeScalingType(rope["rope_type"]))
        writer.add_rope_scaling_factor(rope["factor"])
    if rope["rope_type"] == "yarn":
        writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
        writer.add_rope_scaling_yarn_beta_fast(rope["beta_fast"]), writer.add_rope_scaling_yarn_beta_slow(rope["beta_slow"])


def write(path, arch, model, kind):
    writer, config, values = gguf.GGUFWriter(path, arch), model.config, {}
    writer.add_block_count(config.num_hidden_layers), writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size), writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads), writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"]), writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    write_scaling(writer, config.rope_parameters, model)
    for name, tensor in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        w, layer = tensor.numpy(), name.split(".")[2] if ".layers." in name else None
        inner = name.rsplit(".", 1)[0]
        theirs_name = next(to for of, to in NAMES.items() if inner.endswith(of))
        heads = {"attn_q": config.num_attention_heads, "attn_k": config.num_key_value_heads}.get(theirs_name) if arch == "llama" else None
        if w.ndim == 2:
            data, values[name] = blocks_of(w, kind)
            stored = data if heads is None else data.reshape(heads, 2, data.shape[0] // heads // 2, -1).swapaxes(1, 2).reshape(data.shape)
        else:
            stored, values[name] = w, w
        writer.add_tensor((f"blk.{layer}." if layer else "") + theirs_name + "." + name.rsplit(".", 1)[1], stored,
                          raw_dtype=gguf.GGMLQuantizationType[kind] if w.ndim == 2 else None)
    writer.write_header_to_file(), writer.write_kv_data_to_file(), writer.write_tensors_to_file(), writer.close()
    model.load_state_dict({name: torch.from_numpy(np.ascontiguousarray(w)) for name, w in values.items()}, strict=False)


def faults(program, arch, kind, folder, scaling="default"):
    config = ARCHITECTURES[arch]
    if scaling != "default":
        config = config | {"max_position_embeddings": 1024, "rope_parameters": SCALED[scaling] | {"rope_theta": 10000.0 if scaling == "llama3" else 50.0}}
    prompt = PROMPT if scaling == "default" else [1 + i * i % 300 for i in range(700)]  # so many that their angles matter
    model, path, ids = made(arch, config), os.path.join(folder, "model.gguf"), os.path.join(folder, "ids")
    write(path, arch, model, kind)
    with open(ids, "w", encoding="ascii") as f:
        f.write(" ".join(map(str, prompt)))
    p = subprocess.run([program, "generate", "--model", path, "--ids", ids, "-n", "24", "-t", "0", "-q"], capture_output=True, text=True, check=False)
    wanted = theirs(model, prompt)
    if p.stdout.split() != list(map(str, wanted)):
        yield f"writes {p.stdout.split()}, Transformers {wanted}: {p.stderr}"
    if scaling != "default":
        plain = made(arch, config | {"rope_parameters": {"rope_type": "default", "rope_theta": model.config.rope_parameters["rope_theta"]}})
        plain.load_state_dict(model.state_dict())
        if theirs(plain, prompt) == wanted:
            yield "angles as ever write the same"


def main():
    transformers.logging.set_verbosity_error()
    failed, cases = 0, [(arch, kind, "default") for arch in ARCHITECTURES for kind in TYPES]
    cases += [(arch, "F32", scaling) for arch, scaling in (("llama", "llama3"), ("llama", "linear"), ("qwen2", "yarn"), ("qwen3", "yarn"))]
    for arch, kind, scaling in cases:
        with tempfile.TemporaryDirectory() as folder:
            for fault in faults(sys.argv[2], arch, kind, folder, scaling):
                print(f"FAILED: {arch}, {kind}, {scaling}: {fault}")
                failed += 1
    print(f"{len(cases)} files, {failed} failed")
    return failed > 0


if __name__ == "__main__":
    sys.exit(main())
