"""memtape.load: logits, losses and tokens of a folder are those of Transformers. Exit status 77 if numpy, PyTorch or Transformers is not
installed."""
import sys
import tempfile
from pathlib import Path
sys.path.append(str(Path(__file__).parent.parent / "program" / "verbs"))
from lib import check, done, equal  # noqa: E402
from yardsticks import np, torch, transformers  # noqa: E402
import memtape  # noqa: E402

torch.manual_seed(1)
theirs = transformers.AutoModelForCausalLM.from_config(transformers.LlamaConfig(
    vocab_size=99, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64,
    bos_token_id=None, eos_token_id=None)).eval()
IDS = [[5, 9, 98, 7, 3], [1, 2, 3, 4, 5]]
with tempfile.TemporaryDirectory() as folder:
    theirs.save_pretrained(folder)
    ours = memtape.load(folder)
n = sum(p.numel() for p in theirs.parameters())
equal(repr(ours), f"memtape.Model(llama, {n:,} parameters, {4 * n:,} bytes)", "what a model is shown as")
x = torch.tensor(IDS)
with torch.no_grad():
    logits, loss = theirs(input_ids=x).logits, theirs(input_ids=x, labels=x).loss.item()
for ids in (IDS, np.array(IDS), x):
    given = np.from_dlpack(ours.logits(ids))
    check(np.abs(given - logits.numpy()).max() < 1e-4, f"logits of {type(ids)}")
check(np.abs(np.from_dlpack(ours.logits(IDS[0])) - logits[:1].numpy()).max() < 1e-4, "logits of one text")
check(torch.from_dlpack(ours.logits(IDS)).shape == (2, 5, 99), "PyTorch takes them, too")
check(abs(ours.loss(IDS) - loss) < 1e-4 * loss, f"loss {ours.loss(IDS)}, Transformers' {loss}")
wanted = [theirs.generate(x[i:i + 1], max_new_tokens=9, do_sample=False, pad_token_id=0)[0][5:].tolist() for i in range(2)]
equal(ours.generate(IDS, 9), wanted, "the likeliest tokens")
equal(ours.generate(IDS, 9, temperature=1.0, top_k=1), wanted, "the likeliest of one")
equal(ours.generate(IDS[0], 9, temperature=2.0, top_p=0.9, seed=3), ours.generate(IDS[0], 9, temperature=2.0, top_p=0.9, seed=3), "a seed's tokens")

# Texts of different lengths: logits and tokens are those of Transformers' padding on the left, and of each text alone.
SIZES = dict(vocab_size=99, hidden_size=32, intermediate_size=48, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64,
             bos_token_id=None, eos_token_id=None, pad_token_id=0)
TEXTS = [[5, 9, 98, 7, 3, 11, 4], [2, 60], [44], [8, 8, 31, 70, 1]]
LONGEST = max(map(len, TEXTS))
for kind, config in (("llama", SIZES), ("mistral", SIZES | {"sliding_window": 4}), ("gemma2", SIZES | {"sliding_window": 4, "head_dim": 8}),
                     ("qwen3_moe", SIZES | dict(num_experts=4, num_experts_per_tok=2, moe_intermediate_size=24, head_dim=8)),
                     ("gpt2", dict(vocab_size=99, n_embd=32, n_layer=3, n_head=4, n_positions=64, bos_token_id=None, eos_token_id=None))):
    torch.manual_seed(2)
    model = transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.for_model(kind, **config), attn_implementation="eager").eval()
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(3 if p.ndim > 1 else 1)
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        m = memtape.load(folder)
    x = torch.tensor([[0] * (LONGEST - len(text)) + text for text in TEXTS])
    mask = torch.tensor([[0] * (LONGEST - len(text)) + [1] * len(text) for text in TEXTS])
    with torch.no_grad():
        wanted = model(input_ids=x, attention_mask=mask, position_ids=(mask.cumsum(1) - 1).clamp(min=0)).logits.numpy()
        tokens = model.generate(x, attention_mask=mask, max_new_tokens=12, do_sample=False, pad_token_id=0)[:, LONGEST:].tolist()
    scale = np.abs(wanted).max()
    for given in (np.from_dlpack(m.logits(TEXTS)), np.from_dlpack(m.logits(x, attention_mask=mask))):
        for i, text in enumerate(TEXTS):
            alone = np.from_dlpack(m.logits(text))[0]
            check(np.abs(given[i, LONGEST - len(text):] - wanted[i, LONGEST - len(text):]).max() < 1e-5 * scale, f"{kind}: padded logits of text {i}")
            check(np.abs(given[i, LONGEST - len(text):] - alone).max() < 1e-5 * scale, f"{kind}: logits of text {i} alone")
    check(np.from_dlpack(m.logits(torch.nn.functional.pad(x, (2, 0)), torch.nn.functional.pad(mask, (2, 0)))).shape == (4, LONGEST + 2, 99), f"{kind}: wider padding")
    equal(m.generate(TEXTS, 12), tokens, f"{kind}: tokens after padded prompts")
    equal(m.generate(x, 12, attention_mask=mask), tokens, f"{kind}: the same by a mask")
    equal([m.generate(text, 12)[0] for text in TEXTS], tokens, f"{kind}: of each prompt alone")
    long = [text for text in TEXTS if len(text) > 1]
    with torch.no_grad():
        nats = sum(torch.nn.functional.cross_entropy(model(input_ids=torch.tensor([t])).logits[0, :-1], torch.tensor(t[1:]), reduction="sum").item() for t in long)
    check(abs(m.loss(long) * sum(len(t) - 1 for t in long) - nats) < 1e-4 * nats, f"{kind}: the mean loss of texts of different lengths")
x = torch.tensor(IDS)
bert = transformers.BertModel(transformers.BertConfig(vocab_size=99, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
                                                      max_position_embeddings=64)).eval()
with tempfile.TemporaryDirectory() as folder:
    bert.save_pretrained(folder)
    body = memtape.load(folder)
with torch.no_grad():
    rows = bert(input_ids=x)
check(np.abs(np.from_dlpack(body.hidden(IDS)) - rows.last_hidden_state.numpy()).max() < 1e-4, "hidden states")
check(np.abs(np.from_dlpack(body.logits(IDS)) - rows.pooler_output.numpy()).max() < 1e-4, "the pooler's output")
for words, call in ((["not a bert"], lambda: ours.hidden(IDS)), (["with a head"], lambda: body.loss(IDS)), (["gpt", "llama"], lambda: body.generate(IDS, 1)),
                    (["No such file"], lambda: memtape.load("/nowhere/at/all")), (["need one"], lambda: body.hidden([[1], [1, 2]])),
                    (["bert"], lambda: body.logits([[1], [1, 2]])), (["padded on the left"], lambda: ours.logits([[1, 2]], [[1, 0]])),
                    (["padded on the left"], lambda: ours.generate([[1, 2]], 1, attention_mask=[[1]])), (["at least one"], lambda: ours.logits([[1], []])),
                    (["one token"], lambda: ours.loss([[1], [1, 2]])),
                    (["at least one"], lambda: ours.logits([])), (["i64"], lambda: ours.logits(np.zeros(3))), (["99"], lambda: ours.generate([99], 1))):
    try:
        call()
        check(False, f"not refused: {words}")
    except memtape.MemtapeError as error:
        check(all(word in str(error) for word in words), f"{words}: {error}")
done()
