"""docs/parity-transformers.md, with the figures that transformers_parity.py measured."""

CHOICES = [  # option, what Transformers does, in which files, what that keeps besides
    ("`--loss unfused`", "gpt, llama", "`logits.float()` before the cross-entropy, which is log_softmax and nll_loss", "`loss/loss_utils.py`, ForCausalLMLoss",
     "the log-probabilities in 4 bytes: b s v (4 - e); at the peak a second gradient as large, b s v 4"),
    ("`--recipe plain:swiglu=unfused`", "llama", "`down_proj(act_fn(gate_proj(x)) * up_proj(x))`", "`models/llama/modeling_llama.py`, LlamaMLP",
     "silu(gate): L b s f e"),
    ("`--recipe plain:rms-norm=unfused`", "RMS norms", "cast to f32, `pow(2).mean`, `rsqrt`, product, cast, product with the weight",
     "`models/llama/modeling_llama.py`, LlamaRMSNorm", "for each norm the normalised rows, b s h e, and of 2-byte "
     "floats the input in 4 bytes instead of 2: b s h (4 - e)"),
    ("`--recipe plain:gelu-tanh=unfused`", "gelu_new and gelu_fast", "`0.5 * x * (1 + tanh(sqrt(2/pi) * (x + 0.044715 * pow(x, 3))))`",
     "`activations.py`, NewGELUActivation", "tanh(..), 1 + tanh(..) and x/2: 3 L b s f e"),
    ("`--recipe plain:rope=unfused`", "llama and gpt_neox", "`q * cos + rotate_half(q) * sin`, the tables made once in a forward",
     "`models/llama/modeling_llama.py`, apply_rotary_pos_emb", "two tables: 2 s (width of a head) e"),
    ("`--recipe plain:softmax=f32`", "llama, opt and gpt_neox with math attention", "`softmax(..., dtype=torch.float32).to(query.dtype)`",
     "`models/llama/modeling_llama.py`, eager_attention_forward", "of 2-byte floats the weights in 4 bytes beside 2: 4 L a b s^2"),
    ("`--recipe plain:window-mask=kept`", "flash attention with a window of at most s", "`create_sliding_window_causal_mask`, which "
     "scaled_dot_product_attention widens to the input's type in each layer, and `repeat_kv`, as it groups no heads beside a mask",
     "`masking_utils.py`, `integrations/sdpa_attention.py`", "for each such layer the mask, b s^2 e, and of several grouped "
     "heads keys and values as wide as queries: 2 b s (q - k) e (of phi3, whose values are a view of one product: b s (q - 3 k) e)"),
    ("`--recipe plain:kv-groups=repeated`", "math attention with grouped heads, phi3, gpt_neox", "`repeat_kv` of keys and values, and what a "
     "batched product copies", "`models/llama/modeling_llama.py`, repeat_kv", "keys and values as wide as queries: "
     "2 L b s (q - k) e, but 0 of one head of one sequence, whose repetition is a view (under autocast a cast copies its "
     "keys: L s (q - k) e). Of phi3 and gpt_neox, whose values are a view of one product: a copy of them instead of all of it, "
     "if there are several heads and sequences"),
    ("`--recipe plain:expert-form=loop`, not of the recipe", "experts", "`experts_implementation=\"eager\"`: an expert after the other", "`models/qwen3_moe/"
     "modeling_qwen3_moe.py`, Qwen3MoeExperts", "of n rows their weighted outputs, for `index_add`, and 8 bytes less of indices: "
     "L n (h e - 8)"),
    ("`MODEL:balance-loss`, of the config.json", "experts, with `output_router_logits`", "`load_balancing_loss_func` of all layers' logits", "`models/qwen3_moe/"
     "modeling_qwen3_moe.py`", "a softmax of each router's logits, and the tokens' shares: L b s E e + 4 E of E experts"),
]

DIFFERENCES = [  # the rows of differences() in transformers_parity.py
    ("generator", "flash attention of L layers", "16 L", "PyTorch on the CPU has no dropout in its fused attention and so "
     "no generator state ([parity.md](parity.md))."),
    ("ignored labels", "cross-entropy of gpt, llama", "b s", "PyTorch's nll_loss asks each label whether it is ignored. Here a byte for each says so."),
    ("class weights", "cross-entropy of bert", "-e", "PyTorch keeps the sum of the class weights, a scalar "
     "([parity.md](parity.md))."),
    ("looked-up rows", "learned positions of gpt2, token types of bert", "-8 s", "Transformers looks rows up by an i64 for each "
     "position: gpt2 its positions, bert its token types. memtape takes a slice of the table."),
    ("counted positions", "positions and token types of roberta, xlm-roberta; positions of opt", "-16 b s; opt: -8 b s", "Each sequence's "
     "positions are counted from its first token that is no padding, and looked up by an i64 for each token, as token types are. Here "
     "they are slices."),
    ("apart", "queries, keys and values of bert, roberta and opt, and of gpt2 with math attention and several heads and "
     "sequences", "0", "One product makes them here, side by "
     "side in one storage. There they are three storages: bert and opt have three products, and a batched product copies what lies "
     "scattered."),
    ("fast gelu", "gelu_fast", "-3 L b s f e; bert: its head's -3 b s h e", "FastGELUActivation multiplies by x twice instead of "
     "cubing it: three more factors. `--recipe plain:gelu-tanh=unfused` is NewGELUActivation's."),
    ("repeated by sdpa", "flash attention of grouped heads wider than 256, s > 1, of l layers without a window of at most s",
     "-2 l b s (q - k) e, phi3: l b s (3 k - q) e; of one head 0, under autocast -l b s (q - k) e", "PyTorch groups heads only up "
     "to 256; else Transformers repeats keys and values, which is a view of one head, unless it is cast."),
    ("merged by a copy", "phi3, gpt_neox, deepseek_v2, deepseek_v3 and glm4_moe with flash attention, s and heads above 1", "-L b s q e", "Queries turned in part are put together again, row-major, and so "
     "the fused attention's output is; merging the heads copies it. Here the output always lies as the merged heads do."),
    ("mask of checkpoints", "gpt2 with math attention and checkpoints", "-b s^2 e", "The mask is an argument of every layer, which its checkpoint "
     "holds. Here softmax knows which columns are masked from their numbers."),
    ("mixed factors", "under autocast: norms of queries and keys (qwen3, qwen3_moe, olmoe, glm4_moe) or of latents q and k wide (deepseek_v2, "
     "deepseek_v3), and the weights of n experts a token (of deepseek_v3 and glm4_moe 2 n + 1: before their division by their sum, too)", "2 L b s (q + k + n)",
     "A product of 16-bit rows and an f32 weight keeps the rows as they are there; here autocast casts them to f32 first, "
     "and the copy is kept."),
    ("wide weights of experts", "mixtral, deepseek_v2, deepseek_v3 and glm4_moe in 2-byte floats, n experts a token", "-2 L b s n", "These leave the experts' weights in "
     "f32, and multiplies their outputs in f32. Here the weights are rounded to the model's type first, as Qwen3's are."),
    ("wide norms", "olmo2 and gpt_oss in 2-byte floats", "-2 for each element of normalised rows, of olmo2 and of tables", "They multiply with the norm's weight "
     "before they cast back, and OLMo 2 leaves its cosines and sines in f32. `--recipe plain:rms-norm=unfused` and `--recipe plain:rope=unfused` are Llama's."),
    ("padded labels", "gpt, llama: one sequence", "-8", "Labels are padded by one and shifted; of one sequence alone that is a view "
     "of the padded ones."),
    ("norm statistics", "n layer norms of b s rows, 2-byte floats", "2 n b s (4 - e)", "PyTorch on the CPU keeps mean and "
     "rstd in the input's type ([parity.md](parity.md))."),
]

HEAD = """# Saved bytes beside Transformers'

`memtape profile MODEL --recipe hf` keeps what the eager code of Hugging Face's Transformers keeps. Each choice is a plain
option, which the recipe sets and the report prints. An option that is given beside `--recipe` wins. MODEL may be the
`config.json` itself.

    memtape profile path/to/config.json -b 2 -s 64 --recipe hf

`tests/parity/transformers_parity.py` makes small random models from configs with Transformers {version} on the CPU, without dropout.
It counts the distinct storages that pass through the saved-tensor hooks around forward and loss. Parameters and buffers
are left out. One by one they are compared with the program's, with and without autocast and checkpoints. In f32 the
loss and every gradient are compared, too. Other configurations are drawn at random (`transformers_draw.py`: 97, and 800
with `MTT_LONG=1`). They differ in families, sizes, heads, activations, windows, caps and dtypes. The test writes this
page, figures included (`--write-doc`). `--list "llama sdpa f32 s=64"` and `--list "draw 7"` print both lists, storage by
storage.

## The choices

`gelu_pytorch_tanh` is one op, and stays so. In the formulas e is the bytes of an element, f the MLP's width and h the model's. The joint widths of
the heads and of the heads of keys are q and k. Paths are those of the library's folder `transformers`.

| option | where it applies | what Transformers does | where | what that keeps besides |
|---|---|---|---|---|
"""

NOT_COVERED = """
## What else spends memory there

- `use_cache`: a forward that is not told otherwise also fills a KV cache. Trainer turns it off
  (`TrainingArguments.use_cache`, false by default); a loop of one's own keeps copies of keys and values in GPT-2.
- The result holds the logits for as long as the caller holds the result: b s v e more at the peak.
- BERT's loss takes the logits as they are (`BertForMaskedLM`), so `--loss` stays native there.
- With checkpoints the same bytes are kept, but beside them Transformers holds the two tables of cosines and sines throughout backward, in its
  layers' arguments; here each layer makes its own again.
- Under autocast gpt2, opt, gpt_neox, bert, `gelu_new` and `gelu_fast` are not compared: their powers, softmax and layer norms run in f32 on CUDA, and so here,
  but in 16 bits on the CPU ([parity.md](parity.md)).
- Kernels from the Hub (`use_kernel_forward_from_hub`) replace the eager code: then the options' defaults are nearer.
- On CUDA the same code runs other kernels for attention and norms; what these keep otherwise than on the CPU is in
  [parity.md](parity.md).
"""


def document(figures, version):
    lines = [HEAD.format(version=version)]
    for option, where, does, file, keeps in CHOICES:
        lines.append(f"| {option} | {where} | {does} | {file} | {keeps} |\n")
    lines.append("\n## The differences that remain\n\n| where | memtape minus Transformers | why |\n|---|---|---|\n")
    for _, where, formula, why in DIFFERENCES:
        lines.append(f"| {where} | {formula} | {why} |\n")
    lines.append("\n## The figures\n\nBytes kept; \"here\" includes the differences above. Models have two layers, b = 2, s = 64, "
                 "h = 64, f = 256, v = 256 and 4 heads. All but gpt2, opt, gpt_neox and bert have 2 heads of keys. Mixtures have 8 experts of f = 48, 2 for a token. "
                 "DeepSeek's heads are 24 wide, 8 of it turned, with latents of 40 and 32 and values of 16 (sdpa: 24). Its models have one shared "
                 "expert and a first layer of f = 112.\n\n"
                 "| model | attention | floats | Transformers | here, `--recipe hf` | here, without | options of the recipe |\n"
                 "|---|---|---|--:|--:|--:|---|\n")
    for case, theirs, ours, plain, options in figures:
        if case.s == 64 and not case.checkpoint:
            lines.append(f"| {case.family}{', loop' * case.loop}{', balanced' * ('output_router_logits' in case.more)} | {case.attention} | {case.floats} | {theirs:,} | {ours:,} | {plain:,} | "
                         f"{f'`{options}`' if options else 'none'} |\n")
    lines.append(NOT_COVERED)
    return "".join(lines)
