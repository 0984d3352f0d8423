"""Folders as Transformers has them: `generate` takes them whole or in parts, with tokens that were made elsewhere. What is
missing, left over, cut short or not what it seems is one error that names it, and nothing is written. tests/parity/folders.py
compares with Transformers."""
import json
import os
import random
import re
import shutil
import struct
import subprocess
import tempfile
from pathlib import Path
from lib import MEMTAPE, check, done, equal, refused, run

FOLDER = Path(tempfile.mkdtemp())
CONFIG = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 8, "intermediate_size": 12, "num_hidden_layers": 2,
          "num_attention_heads": 2, "num_key_value_heads": 1, "vocab_size": 256, "max_position_embeddings": 32, "rms_norm_eps": 1e-6,
          "rope_theta": 10000.0, "hidden_act": "silu", "tie_word_embeddings": True, "dtype": "float32"}
SHAPES = {"model.embed_tokens.weight": [256, 8], "model.norm.weight": [8]}
for layer in range(2):
    for name, shape in {"input_layernorm": [8], "post_attention_layernorm": [8], "self_attn.q_proj": [8, 8], "self_attn.k_proj": [4, 8],
                        "self_attn.v_proj": [4, 8], "self_attn.o_proj": [8, 8], "mlp.gate_proj": [12, 8], "mlp.up_proj": [12, 8],
                        "mlp.down_proj": [8, 12]}.items():
        SHAPES[f"model.layers.{layer}.{name}.weight"] = shape
INDEX = "model.safetensors.index.json"
PARTS = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"]


def numbers(shape):
    n = 1
    for extent in shape:
        n *= extent
    return n


def weights(seed=1):
    """{name: (dtype, shape, bytes)}"""
    draw = random.Random(seed)
    return {name: ("F32", shape, struct.pack(f"<{numbers(shape)}f", *(draw.gauss(1 if len(shape) == 1 else 0, 0.5) for _ in range(numbers(shape)))))
            for name, shape in SHAPES.items()}


def as_bf16(tensors):
    """Cut, not rounded."""
    return {name: ("BF16", shape, b"".join(data[i + 2:i + 4] for i in range(0, len(data), 4))) for name, (_, shape, data) in tensors.items()}


def as_f32(tensors):
    return {name: ("F32", shape, b"".join(b"\0\0" + data[i:i + 2] for i in range(0, len(data), 2))) for name, (_, shape, data) in tensors.items()}


def safetensors(tensors):
    header, at = {}, 0
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [at, at + len(data)]}
        at += len(data)
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + b"".join(data for _, _, data in tensors.values())


def folder(files, **more):
    """A new folder with these files: bytes, text, or what becomes JSON."""
    at = Path(tempfile.mkdtemp(dir=FOLDER))
    for name, content in {"config.json": {**CONFIG, **more}, **files}.items():
        if content is not None:
            (at / name).write_bytes(content if isinstance(content, bytes) else (content if isinstance(content, str) else json.dumps(content)).encode())
    return at


ALL = weights()
WHOLE = safetensors(ALL)
HALVES = [dict(list(ALL.items())[:9]), dict(list(ALL.items())[9:])]
MAP = {name: PARTS[name in HALVES[1]] for name in ALL}
IN_PARTS = {PARTS[0]: safetensors(HALVES[0]), PARTS[1]: safetensors(HALVES[1]), INDEX: {"metadata": {}, "weight_map": MAP}}
IDS = FOLDER / "ids"
IDS.write_text("5 9, 100\t7\n\n1\n")


def written(at, *args, ids=IDS):
    p = run("generate", "--model", at, *(["--ids", ids] if ids else []), "-n", 12, *args)
    equal(p.returncode, 0, f"status of {at} {args}: {p.stderr}")
    return p.stdout


def what_is_written_is_the_same_whole_and_in_parts():
    whole = written(folder({"model.safetensors": WHOLE}), "-t", 0)
    lines = whole.splitlines()
    equal([len(line.split()) for line in lines], [16, 13], "prompts and 12 tokens each")
    check(lines[0].startswith("5 9 100 7 ") and lines[1].startswith("1 "), f"prompts come first: {lines}")
    equal(written(folder(IN_PARTS), "-t", 0), whole, "in parts, by their index")
    equal(written(folder({name: IN_PARTS[name] for name in PARTS}), "-t", 0), whole, "in parts, without an index")
    stale = {"model-00003-of-00003.safetensors": b"left from another model"}
    equal(written(folder({**IN_PARTS, **stale}), "-t", 0), whole, "beside a part that the index does not name")
    equal(written(folder({"model.safetensors": WHOLE, INDEX: "no JSON"}), "-t", 0), whole, "with a model.safetensors no index is read")
    equal(written(folder({"model.safetensors": WHOLE}), "-t", 0, "-q"), "".join(f"{' '.join(line.split()[n:])}\n" for n, line in zip((4, 1), lines)),
          "quiet: what follows alone")
    copy = {**ALL, "lm_head.weight": ALL["model.embed_tokens.weight"]}
    equal(written(folder({"model.safetensors": safetensors(copy)}), "-t", 0), whole, "with a copy of the embedding as its head")
    old = {**ALL, "model.layers.0.self_attn.rotary_emb.inv_freq": ("F32", [2], bytes(8))}
    equal(written(folder({"model.safetensors": safetensors(old)}), "-t", 0), whole, "with angles, as older files have them")
    equal(written(f"{folder({'model.safetensors': WHOLE})}/", "-t", 0), whole, "a slash after its name")


def other_dtypes_are_cast():
    narrow = as_bf16(ALL)
    at = folder({"model.safetensors": safetensors(narrow)})
    equal(written(at, "-t", 0), written(folder({"model.safetensors": safetensors(as_f32(narrow))}), "-t", 0), "bf16 in a file, f32 in the config.json")


def choices_follow_the_options():
    at = folder({"model.safetensors": WHOLE})
    greedy = written(at, "-t", 0)
    equal(written(at, "-t", 0, "--batch", 2), greedy, "side by side")
    equal(written(at, "--top-p", "1e-9"), greedy, "top-p so small that the likeliest alone is left")
    equal(written(at, "--top-k", 1), greedy, "top-k 1")
    drawn = written(at, "-t", 5, "--seed", 3)
    equal(written(at, "-t", 5, "--seed", 3, "--top-p", 1), drawn, "top-p 1 changes nothing")
    check(written(at, "-t", 5, "--seed", 3, "--top-p", 0.5) != drawn, "top-p changes what is drawn")
    equal(written(at, "-t", 0, "--repetition-penalty", 1), greedy, "no penalty")
    tokens = written(at, "-t", 0, "--repetition-penalty", 100).splitlines()[0].split()
    equal(len(set(tokens)), len(tokens), f"with a large penalty no token comes twice: {tokens}")


def text_of(at, *args):
    return subprocess.run([MEMTAPE, "generate", "--model", at, "-n", "12", "-t", "0", *args], capture_output=True, check=True).stdout


def texts_end_where_they_are_told():
    at = folder({"model.safetensors": WHOLE})
    drawn = ["-t", "9", "--seed", "2"]
    text = text_of(at, "--prompt", "ab", "-q", *drawn)[:-1]
    equal(len(text), 12, "bytes")
    plain = [i for i in range(1, 12) if 32 < text[i] < 127]
    check(plain, f"no byte to stop at: {text}")
    for i in plain:
        stop = chr(text[i])
        equal(text_of(at, "--prompt", "ab", "-q", *drawn, "--stop", stop, "--stop", stop + "never"), text[:text.index(stop.encode())] + b"\n", f"before {stop!r}")
        equal(text_of(at, "--prompt", "ab", "-q", *drawn, "--stop", stop + "never"), text + b"\n", f"what only begins as {stop + 'never'!r} is written")
    two = text_of(at, "--prompt", "ab", "--prompt", "cd", "-n", "3")
    check(two[:2] == b"ab" and two[6:8] == b"cd" and len(two) == 12, f"two prompts: {two}")
    refused(["--stop", "empty"], "generate", "--model", at, "--stop", "")
    refused(["--prompt", "--ids"], "generate", "--model", at, "--ids", IDS, "--prompt", "a")
    for ids, words in (("1 two 3", ["line 1", '"two"']), ("1\n2 256", ["line 2", "256", "vocabulary is 256"]), ("", ["no tokens"]),
                       ("-1", ['"-1"']), ("99999999999999999999", ["vocabulary"])):
        (FOLDER / "bad").write_text(ids)
        refused([str(FOLDER / "bad"), *words], "generate", "--model", at, "--ids", FOLDER / "bad", "-q", status=1)


def lying(name, **entry):
    """The file with other entries for a tensor in its header."""
    size = struct.unpack("<Q", WHOLE[:8])[0]
    header = json.loads(WHOLE[8:8 + size])
    header[name].update(entry)
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + WHOLE[8 + size:]


def twice(name):
    """The file with a tensor's entry once more."""
    size = struct.unpack("<Q", WHOLE[:8])[0]
    text = WHOLE[8:8 + size].decode().rstrip().removesuffix("}")
    text = f"{text}, {json.dumps(name)}: {json.dumps(json.loads(text + '}')[name])}}}".encode()
    return struct.pack("<Q", len(text)) + text + WHOLE[8 + size:]


def without(name):
    return {n: t for n, t in ALL.items() if n != name}


LAST = "model.layers.1.mlp.down_proj.weight"
POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 134\n"
HOSTILE = [
    (["has no model.safetensors"], {}),
    (["has no model.safetensors", "pytorch_model.bin"], {"pytorch_model.bin": b"\x80\x02"}),
    (["has 1 of 2 parts"], {PARTS[0]: IN_PARTS[PARTS[0]]}),
    ([PARTS[1], "is not there", INDEX], {**IN_PARTS, PARTS[1]: None}),
    ([PARTS[1], "has no tensor", LAST], {**IN_PARTS, PARTS[1]: safetensors({n: t for n, t in HALVES[1].items() if n != LAST})}),
    ([PARTS[1], LAST, "is in", "too"], {**IN_PARTS, PARTS[0]: safetensors({**HALVES[0], LAST: ALL[LAST]})}),
    (["model-1-of-2", "is in", "too"], {PARTS[0]: IN_PARTS[PARTS[0]], "model-1-of-2.safetensors": IN_PARTS[PARTS[0]]}),
    (["has 3 of 2 parts"], {**{n: t for n, t in IN_PARTS.items() if n != INDEX}, "model-3-of-2.safetensors": safetensors({"more": ("F32", [1], bytes(4))})}),
    ([PARTS[1], "web page"], {**IN_PARTS, PARTS[1]: "<!DOCTYPE html><html></html>"}),
    ([INDEX, "web page"], {**IN_PARTS, INDEX: "<html>"}),
    (["duplicate"], {"model.safetensors": twice(LAST)}),
    (["duplicate", INDEX], {**IN_PARTS, INDEX: '{"weight_map": {"a": "%s", "a": "%s"}}' % tuple(PARTS)}),
    ([PARTS[1], "Git LFS pointer"], {**IN_PARTS, PARTS[1]: POINTER}),
    ([PARTS[1], "truncated"], {**IN_PARTS, PARTS[1]: IN_PARTS[PARTS[1]][:-100]}),
    ([INDEX, "weight_map"], {**IN_PARTS, INDEX: {"metadata": {}}}),
    ([INDEX, "line 1"], {**IN_PARTS, INDEX: "{"}),
    ([INDEX, "Git LFS pointer"], {**IN_PARTS, INDEX: POINTER}),
    ([INDEX, "names no files"], {**IN_PARTS, INDEX: {"weight_map": {}}}),
    ([INDEX, "beside the index"], {**IN_PARTS, INDEX: {"weight_map": {**MAP, LAST: "../other.safetensors"}}}),
    ([INDEX, "beside the index"], {**IN_PARTS, INDEX: {"weight_map": {**MAP, LAST: 7}}}),
    ([INDEX, "beside the index"], {**IN_PARTS, INDEX: {"weight_map": {**MAP, LAST: "/etc/passwd"}}}),
    (["missing", "up_proj"], {**IN_PARTS, INDEX: {"weight_map": {n: PARTS[0] for n in HALVES[0]}}}),
    (["missing", LAST], {"model.safetensors": safetensors(without(LAST))}),
    (["superfluous", "model.layers.2.more.weight"], {"model.safetensors": safetensors({**ALL, "model.layers.2.more.weight": ("F32", [1], bytes(4))})}),
    (["lm_head.weight", "not the same"], {"model.safetensors": safetensors({**ALL, "lm_head.weight": ("F32", [256, 8], bytes(8192))})}),
    ([LAST, "f32 [12,8]", "need f32 [8,12]"], {"model.safetensors": lying(LAST, shape=[12, 8])}),
    ([LAST, "data_offsets"], {"model.safetensors": lying(LAST, shape=[8, 12 << 20])}),
    ([LAST, "overflows"], {"model.safetensors": lying(LAST, shape=[1 << 40, 1 << 40])}),
    ([LAST, "truncated"], {"model.safetensors": lying(LAST, data_offsets=[0, 10 << 30])}),
    (["overlap"], {"model.safetensors": lying(LAST, data_offsets=[0, 384])}),
    ([LAST, "f8_e4m3", "need f32"], {"model.safetensors": lying(LAST, dtype="F8_E4M3", shape=[8, 48])}),
    ([LAST, "i32", "need f32"], {"model.safetensors": lying(LAST, dtype="I32")}),
    (["Git LFS pointer"], {"model.safetensors": POINTER}),
    (["web page"], {"model.safetensors": "<!DOCTYPE html>"}),
    (["too few"], {"model.safetensors": b""}),
    (["a header of"], {"model.safetensors": struct.pack("<Q", 1 << 62) + b"{}"}),
    (["truncated"], {"model.safetensors": struct.pack("<Q", 90 << 20) + b"{}"}),
    (["truncated"], {"model.safetensors": WHOLE[:-1]}),
    (["belong to none"], {"model.safetensors": WHOLE + b"0000"}),
    (["config.json", "No such file"], {"config.json": None, "model.safetensors": WHOLE}),
    (["line 1"], {"config.json": "{", "model.safetensors": WHOLE}),
    (["Git LFS pointer"], {"config.json": POINTER, "model.safetensors": WHOLE}),
    (["num_hidden_layers", "100000000"], {"config.json": {**CONFIG, "num_hidden_layers": 10 ** 8}, "model.safetensors": WHOLE}),
    (["[256,8]", "[256,1048576]"], {"config.json": {**CONFIG, "hidden_size": 1 << 20}, "model.safetensors": WHOLE}),
    (["out of memory"], {"config.json": {**CONFIG, "hidden_size": 1 << 30}, "model.safetensors": WHOLE}),
    (["missing", "model.layers.2."], {"config.json": {**CONFIG, "num_hidden_layers": 3}, "model.safetensors": WHOLE}),
    (["rope_scaling", "not modelled"], {"config.json": {**CONFIG, "rope_scaling": {"rope_type": "longrope", "factor": 2.0}}, "model.safetensors": WHOLE}),
    (["bert", "need a gpt or a llama"], {"config.json": {"model_type": "bert", "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 12, "vocab_size": 256, "max_position_embeddings": 32}, "model.safetensors": WHOLE}),
]


def each_fault_is_one_error():
    check(len(HOSTILE) >= 40, f"{len(HOSTILE)} hostile folders")
    for words, files in HOSTILE:
        at = folder(files)
        p = refused(words, "generate", "--model", at, "--ids", IDS, "-q", status=1)
        equal(len(p.stderr.splitlines()), 1, f"one line: {p.stderr}")
        check(str(at) in p.stderr or "need a gpt" in p.stderr or "out of memory" in p.stderr, f"it names the folder: {p.stderr}")
    refused(["300 tokens", "tokenizer"], "generate", "--model", folder({"model.safetensors": WHOLE}, vocab_size=300), status=1)


# ---- GGUF ----

U32, I32, F32, TEXT, ARRAY = 4, 5, 6, 8, 9
NAMES = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm",
         "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output",
         "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down"}


def what_is_learnt_from_is_not_overwritten():
    """--save-hf refuses the folder of --from, by its name or through a link; another that exists is written."""
    at, other = folder({"model.safetensors": safetensors(weights())}), folder({})
    (FOLDER / "text").write_text("To be, or not to be. " * 20)
    link = FOLDER / "link"
    link.symlink_to(at)
    train = ["train", "--from", at, "--data", FOLDER / "text", "--steps", 1, "-s", 8, "-q", "--save-hf"]
    before = (at / "model.safetensors").read_bytes()
    for name in (at, link):
        refused(["--save-hf", "is the same file as --from", "give another"], *train, name)
    equal((at / "model.safetensors").read_bytes(), before, "the folder's weights")
    equal(run(*train, other).returncode, 0, "another folder")
    check((other / "model.safetensors").exists(), "the other folder has weights")


def in_pairs(data, columns, width=4):
    """Rows of each head, from halves to pairs."""
    size = 4 * columns
    rows = [data[i:i + size] for i in range(0, len(data), size)]
    return b"".join(rows[head + i % 2 * (width // 2) + i // 2] for head in range(0, len(rows), width) for i in range(width))


def gguf_tensors():
    """{name: (type, extents from the fastest, bytes)}"""
    made = {}
    for name, (_, shape, data) in ALL.items():
        layer, inner = re.fullmatch(r"(?:model\.layers\.(\d+)\.)?(.*)\.weight", name).groups()
        if inner in ("self_attn.q_proj", "self_attn.k_proj"):
            data = in_pairs(data, shape[1])
        made[(f"blk.{layer}." if layer else "") + NAMES[inner] + ".weight"] = (0, shape[::-1], data)
    return made


def text(value):
    return struct.pack("<Q", len(value.encode())) + value.encode()


def value_of(value):
    if isinstance(value, bytes):
        return value  # as it is
    if isinstance(value, str):
        return struct.pack("<I", TEXT) + text(value)
    return struct.pack("<If", F32, value) if isinstance(value, float) else struct.pack("<II", U32, value)


VALUES = {"general.architecture": "llama", "llama.block_count": 2, "llama.embedding_length": 8, "llama.feed_forward_length": 12,
          "llama.attention.head_count": 2, "llama.attention.head_count_kv": 1, "llama.context_length": 32, "llama.rope.freq_base": 10000.0,
          "llama.attention.layer_norm_rms_epsilon": 1e-6, "llama.rope.dimension_count": 4,
          "tokenizer.ggml.tokens": struct.pack("<IIQ", ARRAY, TEXT, 2) + text("a") + text("b")}


def gguf(values=None, tensors=None, magic=b"GGUF", version=3, n_values=None, n_tensors=None, offsets=None):
    values = {k: v for k, v in {**VALUES, **(values or {})}.items() if v is not None}
    tensors = {k: v for k, v in {**gguf_tensors(), **(tensors or {})}.items() if v is not None}
    head = magic + struct.pack("<IQQ", version, len(tensors) if n_tensors is None else n_tensors, len(values) if n_values is None else n_values)
    head += b"".join(text(key) + value_of(value) for key, value in values.items())
    data = b""
    for name, (kind, extents, content) in tensors.items():
        head += text(name) + struct.pack(f"<I{len(extents)}QIQ", len(extents), *extents, kind, (offsets or {}).get(name, len(data)))
        data += content + bytes(-len(content) % 32)
    return head + bytes(-len(head) % 32) + data


DOWN = "blk.1.ffn_down.weight"
HOSTILE_GGUF = [
    (["not a GGUF file"], gguf(magic=b"GGML")), (["Git LFS pointer"], POINTER.encode()), (["web page"], b"<!DOCTYPE html>" * 9),
    (["truncated"], b""), (["truncated"], b"GGUF"), (["version 1"], gguf(version=1)), (["version 50331648"], gguf(version=3 << 24)),
    (["truncated"], gguf()[:200]), (["truncated"], gguf()[:-40]), (["truncated"], gguf(n_values=1 << 60)), (["truncated"], gguf(n_tensors=1 << 60)),
    (["truncated"], gguf({"a": struct.pack("<IIQ", ARRAY, U32, 1 << 61)})), (["truncated"], gguf({"a": struct.pack("<IQ", TEXT, 10 << 30)})),
    (["truncated"], gguf({"a": struct.pack("<IIQ", ARRAY, TEXT, 1 << 40)})), (["array of arrays"], gguf({"a": struct.pack("<IIQ", ARRAY, ARRAY, 1)})),
    (["unknown type"], gguf({"a": struct.pack("<II", 77, 1)})), (["general.alignment"], gguf({"general.alignment": 3})),
    (["architecture is \"mamba\""], gguf({"general.architecture": "mamba"})), (["architecture is \"\""], gguf({"general.architecture": None})),
    (["llama.block_count", "missing"], gguf({"llama.block_count": None})), (["llama.block_count"], gguf({"llama.block_count": 10 ** 9})),
    (["llama.embedding_length"], gguf({"llama.embedding_length": "eight"})), (["missing", "blk.2."], gguf({"llama.block_count": 3})),
    (["rope.scaling.type"], gguf({"llama.rope.scaling.type": "longrope"})), (["rope.scaling.factor", "missing"], gguf({"llama.rope.scaling.type": "linear"})),
    (["original_context_length", "missing"], gguf({"llama.rope.scaling.type": "yarn", "llama.rope.scaling.factor": 2.0})), (["expert_count"], gguf({"llama.expert_count": 8})),
    (["rope_freqs.weight"], gguf(tensors={"rope_freqs.weight": (0, [2], bytes(8))})), (["are turned"], gguf({"llama.rope.dimension_count": 2})),
    (["missing", DOWN], gguf(tensors={DOWN: None})), (["superfluous", "more"], gguf(tensors={"more": (0, [1], bytes(4))})),
    ([DOWN, "[12,8]", "need [8,12]"], gguf(tensors={DOWN: (0, [8, 12], bytes(384))})), ([DOWN, "type is not read"], gguf(tensors={DOWN: (77, [12, 8], bytes(384))})),
    ([DOWN, "no whole blocks"], gguf(tensors={DOWN: (2, [12, 8], bytes(384))})), ([DOWN, "dimensions"], gguf(tensors={DOWN: (0, [1] * 9, bytes(4))})),
    ([DOWN, "overflow"], gguf(tensors={DOWN: (0, [1 << 40, 1 << 40], bytes(4))})), ([DOWN, "overflow"], gguf(tensors={DOWN: (0, [0, 8], b"")})),
    ([DOWN, "behind the file"], gguf(offsets={DOWN: 1 << 62})), ([DOWN, "not aligned"], gguf(offsets={DOWN: 7})),
    ([DOWN, "where the tensor before it ends"], gguf(offsets={DOWN: 32})), (["key \"llama.block_count\"", "twice"], gguf(n_values=len(VALUES) + 1).replace(
        text("llama.block_count"), text("llama.block_count") + value_of(2) + text("llama.block_count"), 1)),
    ([f"tensor \"{DOWN}\"", "twice"], gguf().replace(text("blk.0.ffn_down.weight"), text(DOWN))),
    ([DOWN, "behind the file"], gguf(tensors={DOWN: (0, [12 << 20, 8 << 8], bytes(384))})),
]


def array(of, items):
    return struct.pack("<IIQ", ARRAY, of, len(items)) + b"".join(items)


def a_gguf_is_learnt_from_in_its_own_tokens():
    at, learnt, prompt = FOLDER / "tokens.gguf", FOLDER / "learnt.safetensors", ["--prompt", "ab ba", "-n", 12, "-t", 0, "-q"]
    pieces = ["<unk>", "\u2581", "a", "b", "ab", "\u2581ab"]
    at.write_bytes(gguf({"tokenizer.ggml.model": "llama", "tokenizer.ggml.tokens": array(TEXT, list(map(text, pieces))), "tokenizer.ggml.add_bos_token": 0,
                         "tokenizer.ggml.scores": array(F32, [struct.pack("<f", -9 + len(piece)) for piece in pieces]),
                         "tokenizer.ggml.token_type": array(I32, [struct.pack("<i", 2 if piece == "<unk>" else 1) for piece in pieces])}))
    (FOLDER / "text").write_text("ab ba aab " * 40)
    train = ["train", "--from", at, "--data", FOLDER / "text", "--steps", 1, "-s", 8, "--lr", 1e-30]
    p = run(*train, "--lora-rank", 2, "--save", learnt)
    check(p.returncode == 0 and "tokens " in p.stdout, f"in tokens: {p.stdout}{p.stderr}")
    equal(run("generate", "--model", learnt, *prompt).stdout, run("generate", "--model", at, *prompt).stdout, "what the run's file writes")
    refused(["--save-hf", "config.json"], *train, "--save-hf", FOLDER / "out", status=1)


def a_gguf_is_read_as_its_folder_or_refused_by_name():
    at = FOLDER / "model.gguf"
    at.write_bytes(gguf())
    equal(written(at, "-t", 0), written(folder({"model.safetensors": WHOLE}), "-t", 0), "a GGUF of the folder's weights")
    at.write_bytes(gguf({"llama.rope.scaling.type": "none", "llama.attention.key_length": 4}))
    equal(written(at, "-t", 0), written(folder({"model.safetensors": WHOLE}), "-t", 0), "with what is as usual written out")
    p = run("profile", at, "--json", "-")
    equal(p.returncode == 0 and json.loads(p.stdout)["params"]["count"], sum(numbers(shape) for shape in SHAPES.values()), f"profile of a GGUF: {p.stderr}")
    a_gguf_is_learnt_from_in_its_own_tokens()
    for words, content in HOSTILE_GGUF:
        at.write_bytes(content)
        p = refused(words, "generate", "--model", at, "--ids", IDS, "-q", status=1)
        check(len(p.stderr.splitlines()) == 1 and str(at) in p.stderr, f"one line that names the file: {p.stderr}")
    whole, draw = gguf(), random.Random(5)
    for cut in range(0, len(whole) - 1, len(whole) // 60):  # nothing that is cut short or changed crashes
        at.write_bytes(whole[:cut])
        equal(run("generate", "--model", at, "--ids", IDS, "-q").returncode, 1, f"cut to {cut} bytes")
    for _ in range(60):
        changed = bytearray(whole)
        for _ in range(3):
            changed[draw.randrange(1500)] = draw.randrange(256)
        at.write_bytes(changed)
        check(run("generate", "--model", at, "--ids", IDS, "-q", "-n", 1).returncode in (0, 1), "changed bytes")


what_is_written_is_the_same_whole_and_in_parts()
other_dtypes_are_cast()
choices_follow_the_options()
texts_end_where_they_are_told()
each_fault_is_one_error()
a_gguf_is_read_as_its_folder_or_refused_by_name()
what_is_learnt_from_is_not_overwritten()
shutil.rmtree(FOLDER)
done()
