"""families.py LIBMEMTAPE_CASES MEMTAPE [KIND...]: folders of real size that Transformers writes, one of each family, opened and run. Beside
Transformers: the largest difference of logits (of hidden states, where there is no head), and of gradients as a share of each parameter's
largest, and how many of 64 tokens are the same. Of the process that wrote these: the bytes that it read, and its largest resident memory,
beside the bytes of the weights and what `memtape profile --inference` predicts of a forward of as many tokens. It fails if a token is another. docs/results/families.txt is what it printed."""
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"
ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests" / "parity"))
import torch  # noqa: E402
import transformers  # noqa: E402
import memtape  # noqa: E402
from published import is_buffer, make, theirs_for  # noqa: E402

NEW, LENGTH, VOCAB, PENALTY = 64, 32, 16384, 1.3
IDS = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": 0}
SIZES = dict(vocab_size=VOCAB, hidden_size=512, intermediate_size=1408, num_hidden_layers=8, num_attention_heads=8, max_position_embeddings=256) | IDS
GROUPED = SIZES | {"num_key_value_heads": 2}
GPT2 = dict(vocab_size=VOCAB, n_embd=512, n_layer=8, n_head=8, n_positions=256, attn_pdrop=0.0, embd_pdrop=0.0, resid_pdrop=0.0) | IDS
BERT = SIZES | dict(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
HEADS = {"head_dim": 64}
FAMILIES = {"gpt2": GPT2, "llama": GROUPED, "mistral": GROUPED | {"sliding_window": 24}, "qwen2": GROUPED, "qwen3": GROUPED | HEADS,
            "olmo2": GROUPED, "phi3": GROUPED, "gemma": GROUPED | HEADS, "gemma2": GROUPED | HEADS | {"sliding_window": 24},
            "mixtral": GROUPED | dict(num_hidden_layers=4, num_local_experts=8, num_experts_per_tok=2),
            "qwen3_moe": GROUPED | HEADS | dict(num_experts=16, num_experts_per_tok=4, moe_intermediate_size=352),
            "bert": BERT}


def ours_in(library, model, folder):
    tells = model.config.to_dict() | {"architectures": [type(model).__name__], "dtype": "float32"}
    ours = memtape.Model(library, hf=tells)
    library.check(library.mt_hf_load(folder.encode(), ours.pointer))
    return ours


def compared(library, kind, model, folder, x):
    """The largest difference of values, the largest value, and the largest difference of gradients as a share."""
    ours, tokens = ours_in(library, model, folder), library.tensor(x)
    if kind == "bert":
        theirs = model(input_ids=x).last_hidden_state
        here = memtape.Tensor(library, library.mt_bert_hidden(ours.pointer, tokens.pointer))
    else:
        theirs, here = model(input_ids=x).logits, ours(tokens)
    given = torch.randn(theirs.shape, generator=torch.Generator().manual_seed(5)) / theirs[0].numel() ** 0.5
    theirs.backward(given)
    here.backward(library.tensor(given))
    grads = {("bert." if kind == "bert" else "") + name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    apart = 0.0
    for name, p in ours.parameters.items():
        if is_buffer(kind, name) or name.startswith("pooler"):
            continue
        wanted = theirs_for(kind, name, grads)
        apart = max(apart, ((p.grad.torch() - wanted).abs().max() / wanted.abs().max()).item())
    return (here.torch() - theirs.detach()).abs().max().item(), theirs.abs().max().item(), apart


# In a process of its own, as a child's largest resident memory begins with its parent's. What has ended is read before it is reaped.
WATCH = """import os, sys
pid = os.posix_spawn(sys.argv[1], sys.argv[1:], os.environ)
os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
read = int(open(f"/proc/{pid}/io").read().split("rchar:")[1].split()[0])
_, status, usage = os.wait4(pid, 0)
sys.stderr.write(f"{status} {read} {usage.ru_maxrss * 1024}")"""


def ran(words):
    """What it wrote, the bytes that it read, and its largest resident memory."""
    p = subprocess.run([sys.executable, "-S", "-c", WATCH, *map(str, words)], capture_output=True, text=True, check=True)
    status, read, resident = map(int, p.stderr.splitlines()[-1].split())
    if status:
        sys.exit(f"{words}: {p.stderr}")
    return p.stdout, read, resident


def predicted(program, folder):
    """The peak of a forward pass, parameters included."""
    words = [program, "profile", folder, "-b", 1, "-s", LENGTH, "--dtype", "f32", "--optimizer", "none", "--inference", "--device", "meta", "--json", "-"]
    told = json.loads(subprocess.run(list(map(str, words)), capture_output=True, text=True, check=True).stdout)
    return told["inference"]["phases"][-1]["peak"]


def row(library, program, kind, folder):
    model = make(kind, FAMILIES[kind], torch.float32, transformers.AutoModel if kind == "bert" else None).eval()
    if kind.startswith("gemma"):  # whose large embedding, the head's, too, would write what it reads
        with torch.no_grad():
            model.get_input_embeddings().weight.mul_(1 / 16)
    model.save_pretrained(folder, max_shard_size="64MB")
    weights = sum(path.stat().st_size for path in Path(folder).glob("*.safetensors"))
    x = torch.randint(1, VOCAB, (1, LENGTH), generator=torch.Generator().manual_seed(3))
    if kind == "bert":
        load = f"import memtape; memtape.load({folder!r}).hidden({x.tolist()!r})"
        _, read, resident = ran([sys.executable, "-c", load])
        same = "none"
    else:
        with torch.no_grad():
            wanted = model.generate(x, max_new_tokens=NEW, do_sample=False, pad_token_id=0, repetition_penalty=PENALTY)[0].tolist()[LENGTH:]
        ids = Path(folder) / "ids"
        ids.write_text(" ".join(map(str, x[0].tolist())))
        written, read, resident = ran([program, "generate", "--model", folder, "--ids", ids, "-n", NEW, "-t", 0, "-q", "--repetition-penalty", PENALTY])
        got = list(map(int, written.split()))
        same = f"{sum(a == b for a, b in zip(got, wanted))} of {NEW}"
        if got != wanted or len(set(got)) < NEW // 8:
            sys.exit(f"{kind}: {got}, Transformers {wanted}")
    value, largest, gradient = compared(library, kind, model, folder, x)
    print(f"{kind:10}{value:11.1e} of {largest:<6.3g}{gradient:11.1e}  {same:>9}{weights:14,}{read:14,}{predicted(program, folder):14,}{resident:14,}"
          f"{resident / weights:6.2f}", flush=True)


def main():
    library = memtape.Library(sys.argv[1])
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    print(f"Transformers {transformers.__version__}, PyTorch {torch.__version__}; f32, {LENGTH} tokens read\n\n"
          f"{'':10}{'largest difference of':^32}{'tokens':>10}{'bytes of':>14}{'bytes':>14}{'a forward':>14}{'resident':>14}\n"
          f"{'':10}{'logits':>14}{'gradients':>18}{'the same':>11}{'weights':>13}{'read':>14}{'predicted':>14}{'at most':>14}{'times':>6}")
    for kind in sys.argv[3:] or FAMILIES:
        with tempfile.TemporaryDirectory() as folder:
            row(library, sys.argv[2], kind, folder)


if __name__ == "__main__":
    main()
