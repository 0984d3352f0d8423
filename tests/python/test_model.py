"""memtape.load: logits, losses and tokens of a folder are those of Transformers. Exit status 77 if numpy, PyTorch or Transformers is not
installed."""
import os
import sys
import tempfile
from pathlib import Path
sys.path.append(str(Path(__file__).parent.parent / "program" / "verbs"))
from lib import check, done, equal  # noqa: E402

os.environ["HF_HUB_OFFLINE"] = "1"
try:
    import numpy as np
    import torch
    import transformers
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)
import memtape  # noqa: E402

transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()
torch.manual_seed(1)
theirs = transformers.AutoModelForCausalLM.from_config(transformers.LlamaConfig(
    vocab_size=99, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64,
    bos_token_id=None, eos_token_id=None)).eval()
IDS = [[5, 9, 98, 7, 3], [1, 2, 3, 4, 5]]
with tempfile.TemporaryDirectory() as folder:
    theirs.save_pretrained(folder)
    ours = memtape.load(folder)
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
                    (["No such file"], lambda: memtape.load("/nowhere/at/all")), (["one length"], lambda: ours.logits([[1], [1, 2]])),
                    (["at least one"], lambda: ours.logits([])), (["i64"], lambda: ours.logits(np.zeros(3))), (["99"], lambda: ours.generate([99], 1))):
    try:
        call()
        check(False, f"not refused: {words}")
    except memtape.MemtapeError as error:
        check(all(word in str(error) for word in words), f"{words}: {error}")
done()
