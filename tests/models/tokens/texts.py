"""Texts that tokenizers are compared on: as bytes, since a file need not be UTF-8."""
import random
import unicodedata
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<s>", "</s>", "<unk>", "[INST]", "[CLS]", "[MASK]", "<mask>", "<|begin_of_text|>", "<KEEP>",
           "tape", "Größe", "<raw>", "<start_of_turn>", "<0x41>", "[UNK]", "<tool_call>", "##a", "▁", "▁▁", "Ġ", "<pad>"]
PARTS = ["a", "e", "the", "Tape", "int main(void)", " ", "  ", "    ", "\t", "\n", "\n\n", "\r\n", "\u00a0", "\u3000", "\u2028", "\u0085",
         "\u180e", "\ufeff", "\u200b", "\u200d", "0", "7", "123", "45678", "½", "٣", "Ⅷ", "①", "'s", "'LL", "'Re", "n't", " ,", " .", "!", "?",
         "...", "-", "_", "#", "/", "$", "+", "^", "`", "。", "，", "…", "「", "é", "e\u0301", "\u0301", "\u0316\u0301", "ﬁ", "Å", "\u212b", "İ", "ſ",
         "K", "ß", "日本", "中", "語", "한국", "가", "\u1100\u1161", "русский", "ελληνικά", "العربية", "हिन्दी", "ไทย", "😀", "👩‍👩‍👧", "🇩🇪",
         "☃\ufe0f", "\x00", "\x07", "\x7f", "\x1c", "𠀀", "𝒳", "\U000f0000"]
BROKEN = [b"\xff", b"\xc3", b"\xe2\x82", b"\xf0\x9f\x98", b"\xed\xa0\x80", b"\xc0\xaf", b"\xf5\x80\x80\x80", b"\x80",
          b"\xf4\x90\x80\x80", b"\xe0\x80"]


def corpus():
    """{name: bytes}: whole files of the repository, and texts of each kind."""
    texts = {str(path.relative_to(ROOT)): path.read_bytes()
             for path in [ROOT / "README.md", ROOT / "docs/design.md", ROOT / "models/tokens/bpe.c", ROOT / "run",
                          ROOT / "tests/models/tokens/families.py", ROOT / "docs/lessons/01-one-tensor.md"]}
    texts.update({
        "nothing": b"", "a blank": b" ", "blanks": b" " * 100, "lines": b"\n" * 30 + b" \n" * 20 + b"x",
        "indented": b"".join(b" " * n + b"x\n" for n in range(40)), "tabs": b"\t\t\tif (x)\r\n\t\t\t\treturn;\r\n",
        "one letter": b"a" * 5000, "one emoji": "😀".encode() * 700, "marks": "\u0316\u0301".encode() * 500, "digits": b"1234567890" * 50,
        "cjk": "我能吞下玻璃而不伤身体。私はガラスを食べられます。나는 유리를 먹을 수 있어요。".encode() * 5,
        "scripts": "Ich kann Glas essen. Μπορώ να φάω σπασμένα γυαλιά. Я могу есть стекло. אני יכול לאכול זכוכית. मैं काँच खा सकता हूँ।".encode(),
        "emoji": "👩‍👩‍👧‍👦 🇩🇪🇯🇵 👍🏽 ☃️ 🏴󠁧󠁢󠁥󠁮󠁧󠁿".encode(), "bytes": bytes(range(256)) * 2,
        "broken": b" ".join(BROKEN) + b"".join(BROKEN),
        "chat": b"<|im_start|>user\nHi there<|im_end|>\n<|im_start|>assistant\n",
        "specials": " ".join(SPECIAL).encode() + "".join(SPECIAL).encode()})
    return texts


def settled():
    """Characters that have been of one kind since Unicode 3.2: libraries have tables of different years."""
    old = unicodedata.ucd_3_2_0
    return [c for c in range(0x30000) if not 0xD800 <= c < 0xE000 and "Cn" != old.category(chr(c)) == unicodedata.category(chr(c))]


def strings(n, seed=1):
    """n random texts."""
    draw = random.Random(seed)
    known = settled()
    for _ in range(n):
        parts = []
        for _ in range(draw.randrange(1, 40)):
            kind = draw.random()
            if kind < 0.6:
                parts.append(draw.choice(PARTS).encode())
            elif kind < 0.7:
                parts.append(draw.choice(SPECIAL).encode())
            elif kind < 0.8:
                parts.append("".join(map(chr, draw.sample(known, draw.randrange(1, 4)))).encode())
            elif kind < 0.9:
                parts.append(bytes(draw.choice(b"abcdefghijklmnopqrstuvwxyzABC_,. ") for _ in range(draw.randrange(1, 12))))
            else:
                parts.append(draw.choice(BROKEN) if draw.random() < 0.5 else draw.choice(PARTS).encode() * draw.randrange(2, 9))
        yield b"".join(parts)
