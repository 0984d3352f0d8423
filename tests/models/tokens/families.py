"""Small tokenizers in the layout of each family's tokenizer.json, trained on a tenth of this repository's
files: more text makes no other kinds of merges, and takes ten times as long."""
import json
from pathlib import Path
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

ROOT = Path(__file__).resolve().parents[3]
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
GPT4O = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
         r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
         r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+")
DEEPSEEK = ["\\p{N}{1,3}", "[一-龥぀-ゟ゠-ヿ]+",
            "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\r\n]*|"
            "\\s*[\r\n]+|\\s+(?!\\S)|\\s+"]
BLOOM = " ?[^(\\s|[.,!?…。，、।۔،])]+"
CLIP = "<\\|startoftext\\|>|<\\|endoftext\\|>|'s|'t|'re|'ve|'m|'ll|'d|[\\p{L}]+|[\\p{N}]|[^\\s\\p{L}\\p{N}]+"
BLANK = "▁"
split = pre_tokenizers.Split


def lines():
    for pattern in ("docs/**/*.md", "src/**/*.c", "tests/**/*.py"):
        for path in sorted(ROOT.glob(pattern))[::10]:
            yield from path.read_text().splitlines(keepends=True)
    yield from ["Größe naïve café Ελληνικά русский 日本語のテキスト 中文文本 한국어 العربية हिन्दी 😀🎉👩‍👩‍👧 ﬁ ① ½ \u00a0\u3000\n"] * 40


def added(*texts, **flags):
    return [AddedToken(text, special=True, normalized=False, **flags) for text in texts]


def byte_level(before=None, normalizer=None, special=("<|endoftext|>",), **model):
    t = Tokenizer(models.BPE(**model))
    if normalizer:
        t.normalizer = normalizer
    t.pre_tokenizer = before
    t.decoder = decoders.ByteLevel()
    t.post_processor = processors.ByteLevel(trim_offsets=False)
    t.train_from_iterator(lines(), trainers.BpeTrainer(
        vocab_size=1500, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False, special_tokens=added(*special)))
    return t


def sequence(*parts):
    return pre_tokenizers.Sequence(list(parts))


def plain_bytes(regex=False):
    return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=regex)


def gpt2():
    return byte_level(plain_bytes(True))


def roberta():
    t = byte_level(pre_tokenizers.ByteLevel(add_prefix_space=True), special=("<s>", "<pad>", "</s>", "<unk>"))
    t.add_special_tokens([AddedToken("<mask>", lstrip=True, normalized=False, special=True)])
    t.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0))
    return t


def llama3():
    t = byte_level(sequence(split(Regex(LLAMA3), "isolated"), plain_bytes()), ignore_merges=True, special=())
    t.add_special_tokens(added("<|begin_of_text|>", "<|end_of_text|>", "<|eot_id|>", "<|start_header_id|>", "<|end_header_id|>"))
    begin = t.token_to_id("<|begin_of_text|>")
    t.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=True), processors.TemplateProcessing(
        single="<|begin_of_text|> $A", pair="<|begin_of_text|> $A <|begin_of_text|>:1 $B:1",
        special_tokens=[("<|begin_of_text|>", begin)])])
    return t


def qwen2():
    t = byte_level(sequence(split(Regex(QWEN2), "isolated"), plain_bytes()), normalizers.NFC(), special=())
    t.add_special_tokens(added("<|endoftext|>", "<|im_start|>", "<|im_end|>"))
    t.add_tokens([AddedToken("<tool_call>", normalized=False), AddedToken("</tool_call>", normalized=False)])
    return t


def smollm():
    return byte_level(sequence(pre_tokenizers.Digits(individual_digits=True), plain_bytes(True)),
                      special=("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<repo_name>"))


def falcon():
    return byte_level(sequence(pre_tokenizers.Punctuation("contiguous"), plain_bytes(True), pre_tokenizers.Digits(individual_digits=False),
                               split(Regex("[0-9][0-9][0-9]"), "isolated")))


def gpt4o():
    return byte_level(sequence(split(Regex(GPT4O), "removed", invert=True), plain_bytes()))


def deepseek():
    return byte_level(sequence(*(split(Regex(p), "isolated") for p in DEEPSEEK), plain_bytes()))


def bloom():
    return byte_level(sequence(split(Regex(BLOOM), "isolated"), plain_bytes()))


def clip():
    t = Tokenizer(models.BPE(end_of_word_suffix="</w>", unk_token="<|endoftext|>", fuse_unk=False))
    t.normalizer = normalizers.Sequence([normalizers.NFC(), normalizers.Replace(Regex(r"\s+"), " "), normalizers.Lowercase()])
    t.pre_tokenizer = sequence(split(Regex(CLIP), "removed", invert=True), plain_bytes())
    t.train_from_iterator(lines(), trainers.BpeTrainer(
        vocab_size=1500, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False, end_of_word_suffix="</w>",
        special_tokens=added("<|startoftext|>", "<|endoftext|>")))
    t.decoder = decoders.ByteLevel()
    t.post_processor = processors.RobertaProcessing(("<|endoftext|>", 1), ("<|startoftext|>", 0), trim_offsets=False,
                                                     add_prefix_space=False)
    return t


def pieces(**flags):
    """BPE over characters with byte fallback, as it is made from SentencePiece's files."""
    t = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    t.pre_tokenizer = pre_tokenizers.Metaspace(BLANK, prepend_scheme="always", split=True)
    codes = [f"<0x{b:02X}>" for b in range(256)]
    t.train_from_iterator(lines(), trainers.BpeTrainer(vocab_size=1500, limit_alphabet=150, show_progress=False,
                                                       special_tokens=["<unk>", "<s>", "</s>"] + codes))
    file = json.loads(t.to_str())
    file["pre_tokenizer"] = None
    file["added_tokens"] = [{"id": i, "content": name, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
                             "special": True} for i, name in enumerate(["<unk>", "<s>", "</s>"])]
    file.update(flags)
    return Tokenizer.from_str(json.dumps(file))


FALLBACK = [decoders.Replace(BLANK, " "), decoders.ByteFallback(), decoders.Fuse()]


def llama2():
    t = pieces()
    t.normalizer = normalizers.Sequence([normalizers.Prepend(BLANK), normalizers.Replace(" ", BLANK)])
    t.decoder = decoders.Sequence([*FALLBACK, decoders.Strip(" ", 1, 0)])
    t.post_processor = processors.TemplateProcessing(single="<s> $A", pair="<s> $A <s>:1 $B:1", special_tokens=[("<s>", 1)])
    return t


def mistral():
    t = pieces()
    t.pre_tokenizer = pre_tokenizers.Metaspace(BLANK, prepend_scheme="first", split=False)
    t.decoder = decoders.Sequence([*FALLBACK, decoders.Strip(" ", 1, 0)])
    t.post_processor = processors.TemplateProcessing(single="<s> $A", pair="<s> $A <s>:1 $B:1", special_tokens=[("<s>", 1)])
    t.add_special_tokens(added("[INST]", "[/INST]"))
    return t


def gemma():
    t = pieces()
    t.normalizer = normalizers.Replace(" ", BLANK)
    t.pre_tokenizer = split(" ", "merged_with_previous")
    t.decoder = decoders.Sequence(FALLBACK)
    t.add_tokens([AddedToken(c * n, normalized=False) for c in ("\n", BLANK, "\t") for n in range(2, 9)])
    t.add_special_tokens(added("<start_of_turn>", "<end_of_turn>"))
    t.post_processor = processors.TemplateProcessing(single="<s> $A", pair="<s> $A <s>:1 $B:1", special_tokens=[("<s>", 1)])
    return t


def metaspace():
    t = pieces()
    t.pre_tokenizer = pre_tokenizers.Metaspace(BLANK, prepend_scheme="always", split=True)
    t.decoder = decoders.Metaspace(BLANK, prepend_scheme="always", split=True)
    return t


def bert(cased=False):
    t = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    t.normalizer = normalizers.BertNormalizer(lowercase=not cased, strip_accents=None)
    t.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    t.train_from_iterator(lines(), trainers.WordPieceTrainer(vocab_size=1500, limit_alphabet=200, show_progress=False,
                                                             special_tokens=["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]))
    t.decoder = decoders.WordPiece(cleanup=not cased)
    t.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1",
                                                     special_tokens=[("[CLS]", 2), ("[SEP]", 3)])
    return t


def bert_cased():
    t = bert(True)
    t.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    return t


def words():
    """What no family has together: words by \\w, in NFKD without marks, tokens that are whole words or take blanks along."""
    t = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    t.normalizer = normalizers.Sequence([normalizers.NFKD(), normalizers.StripAccents(), normalizers.Strip(), normalizers.Lowercase()])
    t.pre_tokenizer = sequence(pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Whitespace(), pre_tokenizers.CharDelimiterSplit("_"))
    t.train_from_iterator(lines(), trainers.WordPieceTrainer(vocab_size=1500, limit_alphabet=200, show_progress=False,
                                                             special_tokens=["[UNK]"]))
    t.add_tokens([AddedToken("tape", single_word=True), AddedToken("<KEEP>", lstrip=True, rstrip=True),
                  AddedToken("Größe", normalized=True),
                  AddedToken("<raw>", rstrip=True, normalized=False), AddedToken("\n\n", normalized=False)])
    return t


def prefixed():
    """BPE with a prefix within words, and unknown characters that stay apart."""
    t = Tokenizer(models.BPE(unk_token="[UNK]", continuing_subword_prefix="##"))
    t.normalizer = normalizers.NFKC()
    t.pre_tokenizer = sequence(pre_tokenizers.Punctuation("merged_with_next"), split(Regex(r"\s+"), "merged_with_previous"),
                               pre_tokenizers.Digits())
    t.train_from_iterator(lines(), trainers.BpeTrainer(vocab_size=1500, limit_alphabet=120, show_progress=False, special_tokens=["[UNK]"],
                                                       continuing_subword_prefix="##"))
    t.decoder = decoders.WordPiece()
    return t


ALL = [gpt2, roberta, llama3, qwen2, smollm, falcon, gpt4o, deepseek, bloom, clip, llama2, mistral, gemma, metaspace, bert, bert_cased,
       words, prefixed]
