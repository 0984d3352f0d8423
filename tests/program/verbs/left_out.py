"""What an answer leaves out stands beside it: a row for each reason, with its bytes where they are known; none where nothing is left out."""
import json
from lib import check, done, equal, profile, run

META = ["--device", "meta"]


def first_words(rows):
    """{"parameters": bytes}, but of "before Transformers 4.53 ..." the second word."""
    return {row["what"].removeprefix("before ").split()[0]: row["bytes"] for row in rows}


def left_out(*args):
    p = profile(*args)
    text = " ".join(run("profile", *args).stdout.split())
    for row in p["model"]["left_out"]:
        check(f"Not counted: {row['what']}" in text, f"{args}: the text has {row}: {text}")
    return first_words(p["model"]["left_out"])


llama = ["llama", *META, "-l", 3, "-d", 64, "-a", 4, "--ffn", 256, "--vocab", 512, "-b", 2, "-s", 8]
equal(left_out(*llama, "--recipe", "hf"), {}, "nothing")
for more in [], ["--recipe", "fsdp2"]:
    equal(left_out(*llama, "--cp", 2, *more), {"what": None}, f"what ring attention sends: {more}")
gpt = ["gpt:context=128", *META, "-l", 3, "-s", 8, "-b", 2, "-d", 64, "--dtype", "f32", "--recipe", "hf"]
eager, forward = [*gpt, "--attention", "math"], ["--optimizer", "none"]
mask, cached = {"in": 3 * 128 * 128}, {"Transformers": 3 * 4 * 3 * 2 * 8 * 64}
equal(left_out(*eager, *forward), {**mask, **cached}, "a mask's bytes in each layer, and the product that keys and values are views of")
equal(left_out(*eager, *forward, "--checkpoint", "full"), mask, "blocks that are checkpointed return none")
trained = profile(*eager, "--optimizer", "adamw")["params"]["bytes"]
equal(left_out(*eager, "--optimizer", "adamw"), {**mask, **cached, "PyTorch": trained}, "gradients filled with zeros")
equal(left_out(*eager, "--optimizer", "adamw", "--lora-rank", 2), {**mask, **cached}, "none of frozen weights")
equal(left_out(*gpt, "--optimizer", "adamw"), {}, "another attention came later")
equal(left_out(*llama, "--recipe", "dataparallel", "--dp", 4), {"what": 4 * 4 * 2 * 8 * (512 + 2 * 3 * 64)}, "logits, keys and values of four GPUs")
equal(left_out(*llama, "--recipe", "dataparallel", "--dp", 4, "--checkpoint", "full"), {"what": 4 * 4 * 2 * 8 * 512}, "logits alone")
equal(left_out(*llama, "--recipe", "dataparallel"), {}, "of one GPU none")
equal(left_out(*llama, "--recipe", "zero3", "--dp", 4), {"parameters": 2 * 50_000_000, "small": 2 * 7 * 64}, "of stage 3")
equal(left_out(*llama, "--recipe", "zero3+llamafactory", "--dp", 4)["parameters"], 2 * (64 * 64 * 9 // 10), "of stage 3 as Transformers sets it")
equal(left_out(*llama, "--recipe", "zero2+llamafactory", "--dp", 4), {"a": 2 * 500_000_000}, "a second bucket")
equal(left_out(*llama, "--recipe", "zero2", "--dp", 4, "--optimizer", "adamw-cpu"), {"a": 2 * 512 * 64}, "offload's buffer")
eight = [*llama, "--lora-rank", 2, "--qlora", "--recipe", "plain:codes=int8"]
equal(left_out(*eight, "--checkpoint", "full"), {"a": 2 * 8 * 5 * 256}, "codes of 8 bits")
equal(set(left_out(*eight)), {"a", "each"}, "and without checkpoints")
mixture = ["moe-tiny", *META, "-b", 2, "-s", 16, "--dp", 2, "--ep", 2, "--recipe", "torchtitan"]
equal(set(left_out(*mixture)), {"outputs"}, "experts among ranks")
equal(set(left_out(*llama, "--dp", 2, "--pp", 3, "--cp", 2, "--recipe", "torchtitan")), {"what", "all"}, "stages, and shards of sequences")
fitted = json.loads(run("fit", "gpt2", "--gpus", 2, "--gpu", "h100", "--recipe", "zero3", "-s", 64, "--json", "-").stdout)
equal([row["bytes"] for row in fitted["left_out"]][:1], [10**8], "a fit")
titan = ["fit", "moe-tiny", "--gpu", "h100", "--recipe", "torchtitan", "-b", 8, "-s", 64]
for more, words in ((["--gpus", 8], {"outputs", "all"}), (["--gpus", 8, "--pp", 1], {"outputs"}), (["--gpus", 8, "--ep", 1], {"all"}), (["--gpus", 1], set())):
    fitted = json.loads(run(*titan, *more, "--json", "-").stdout)
    equal(set(first_words(fitted["left_out"])), words, f"{more}: what a search tries")
done()
