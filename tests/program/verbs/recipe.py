"""--recipe: a bundle of plain options, printed as such; and the recipes by the names people know."""
import json
import tempfile
from pathlib import Path
from lib import as_typed, check, done, equal, help_json, keys, names_of, profile, refused, run, without_name

META = ["--device", "meta"]
GPT = ["gpt", *META]
LLAMA = ["llama", "--kv-heads", 2, "--dtype", "bf16", "--attention", "math", *META]
OF_LLAMA = ("--loss unfused --recipe plain:swiglu=unfused,rms-norm=unfused,rope=unfused,softmax=f32 "
            "--recipe plain:kv-groups=repeated")


def what_was_kept(p):
    return p["saved"], p["steady"], p["formula"], p["model"]["ops"]


def a_recipe_is_its_options():
    for args, options in [(LLAMA, OF_LLAMA), (["gpt", "--act", "gelu_tanh", *META], "--loss unfused --recipe plain:gelu-tanh=unfused"),
                          (["gpt2", "-s", 64, "--dtype", "bf16", *META], "--loss unfused --recipe plain:gelu-tanh=unfused"),
                          (["llama", *META], "--loss unfused --recipe plain:swiglu=unfused,rms-norm=unfused,rope=unfused"),
                          (["bert", "--dtype", "bf16", *META], ""), (["gpt", *META], "--loss unfused")]:
        p, plain = profile(*args, "--recipe", "hf"), profile(*args)
        equal((p["model"]["recipe"], p["model"]["recipe_options"]), ("hf", as_typed(options)), f"recipe of {args}")
        equal((plain["model"]["recipe"], plain["model"]["recipe_options"]), (None, None), f"no recipe of {args}")
        equal(what_was_kept(profile(*args, *options.split())), what_was_kept(p), f"{args}: recipe and options")
        check(what_was_kept(p) == what_was_kept(plain) or options, f"{args}: the recipe has an effect")
        shown = run("profile", *args, "--recipe", "hf").stdout.splitlines()
        equal(shown[2], f"recipe hf: {as_typed(options) or 'no option differs'}", f"text of {args}")
        equal(profile(*args, "--recipe", "none"), plain, f"{args} --recipe none")
    line = run("profile", *LLAMA, *OF_LLAMA.split()).stdout.splitlines()[1]
    check((", unfused swiglu, unfused RMS norms, unfused rope, softmax in f32, "
                        "keys and values repeated, unfused loss; bf16 on meta") in line, f"options in the text: {line}")


def an_option_given_wins():
    p = profile(*LLAMA, "--recipe", "hf", "--recipe", "plain:swiglu=fused", "--loss", "native")
    equal(p["model"]["recipe_options"], as_typed(OF_LLAMA.replace("--loss unfused ", "").replace("swiglu=unfused,", "")), "options left")
    equal((p["model"]["ops"]["swiglu"], p["model"]["ops"]["loss"]), ("fused", "native"), "options given")


OF_LIGER = "--loss fused --recipe plain:swiglu=fused,rms-norm=fused,rope=fused"


def liger_fuses():
    """LLaMA with Liger's kernels: in each layer silu(gate) less, rows of norms once and not cast, no tables."""
    llama = ["llama", "--kv-heads", 2, "--dtype", "bf16", "-b", 2, "-s", 48, "-d", 64, "-a", 4, "-l", 3, "--ffn", 96,
             "--vocab", 160, *META]
    tokens, h, f, v, layers, norms = 2 * 48, 64, 96, 160, 3, 7
    p, hf = profile(*llama, "--recipe", "liger"), profile(*llama, "--recipe", "hf")
    equal((p["model"]["recipe"], p["model"]["recipe_options"]), ("liger", as_typed(OF_LIGER)), "recipe")
    equal(what_was_kept(profile(*llama, *OF_LIGER.split())), what_was_kept(p), "liger: recipe and options")
    silu, normalised, tables = layers * tokens * f * 2, norms * tokens * h * (4 - 2 + 2), 2 * 48 * 16 * 2
    equal(hf["saved"]["bytes"] - p["saved"]["bytes"], silu + normalised + tables + tokens * v * 4 + tokens + 4 - tokens * 4,
          "bytes less than hf")
    logits = profile(*llama, "--loss", "native")["saved"]["bytes"] - p["saved"]["bytes"]
    equal(logits, tokens * v * 2 - tokens * 4, "bytes less than with the logits")
    for args in (llama, [*llama, "--checkpoint", "ops"], [*llama, "--optimizer", "adamw", "--recipe", "plain:step-in-backward"]):
        p = profile(*args, "--recipe", "liger")
        equal((p["formula"]["unexplained"], p["growth"]["residual"]), (0, 0), f"books of {args}")
    math = profile(*llama, "--attention", "math", "--recipe", "liger")["model"]["recipe_options"]
    equal(math, as_typed(f"{OF_LIGER} --recipe plain:softmax=f32,kv-groups=repeated"), "eager attention is Transformers' own")
    plan = run("plan", *llama[:-2], "-v", "--recipe", "liger").stdout
    check("0  difference" in plan and "once more in backward, 2bshv" in plan, "plan's rows")
    refused(["--recipe liger", "gpt"], "profile", "gpt", "--recipe", "liger")
    refused(["--loss fused", "--tp"], "profile", *llama, "--recipe", "liger", "--tp", 2)
    refused(["--loss fused", "--lora-rank"], "profile", *llama, "--loss", "fused", "--lora-rank", 2)
    refused(["loss is fused", "bert"], "profile", "bert", "--loss", "fused")


def every_verb_takes_it():
    rows = run("sweep", *LLAMA, "--over", "recipe=none,hf", "--over", "swiglu=fused,unfused", "--json", "-")
    equal(rows.returncode, 0, f"sweep: {rows.stderr}")
    p = run("plan", *LLAMA[:-2], "--recipe", "hf", "-v")
    equal(p.returncode, 0, f"plan: {p.stderr}")
    check("unfused swiglu: silu(gate) besides" in p.stdout and "         0  difference" in p.stdout, "plan's rows")
    check(f"recipe hf: {as_typed(OF_LLAMA)}" in run("explain", *LLAMA, "--recipe", "hf").stdout, "explain's heading")
    for rank in (["--tp", 2, "--sp"], ["--pp", 2], ["--dp", 2, "--zero", 3], ["--tp", 2, "--checkpoint", "selective"]):
        for model in (LLAMA, ["gpt", "--kv-heads", 2, "--act", "gelu_tanh", "--attention", "math", "--dropout", 0.1, *META]):
            p = run("profile", *model, *rank, "--recipe", "hf")
            equal(p.returncode, 0, f"{model} {rank}: {p.stderr}")


def keys_are_details():
    """A key is given after a colon, adds to the recipe before it, and wins over what the recipe sets."""
    llama = ["llama", *META]
    one = profile(*llama, "--recipe", "plain:swiglu=unfused,rope=unfused")
    former = ["--swiglu", "unfused", "--rope=" + "unfused"]
    equal(profile(*llama, *former), one, "former options")
    equal(profile(*llama, "--recipe", "plain:swiglu=unfused", "--recipe", "plain:rope=unfused"), one, "keys add up")
    equal((one["model"]["recipe"], one["model"]["ops"]["swiglu"], one["model"]["ops"]["rope"]), (None, "unfused", "unfused"), "of no stack")
    hf = profile(*llama, "--recipe", "hf:swiglu=fused")
    equal(hf, profile(*llama, "--recipe", "hf", "--recipe", "plain:swiglu=fused"), "plain: keeps the recipe's name")
    equal((hf["model"]["recipe"], hf["model"]["ops"]["swiglu"], hf["model"]["ops"]["rope"]), ("hf", "fused", "unfused"), "the key wins")
    told = run("profile", *llama, *former)
    equal(told.stderr, "memtape: options that are keys of --recipe now: --recipe plain:swiglu=unfused,rope=unfused\n", "former options are told")
    equal(run("profile", *llama, *former, "-q").stderr, "", "but with --quiet")
    rows = json.loads(run("sweep", *llama, "--over", "recipe=plain,plain:swiglu=unfused,hf", "--json", "-").stdout)["rows"]
    equal([r["row"] for r in rows], ["recipe=plain", "recipe=plain:swiglu=unfused", "recipe=hf"], "rows")
    equal(len({r["saved"] for r in rows}), 3, "each row keeps other bytes")
    for words, value in ((['--recipe: "swigl" is not a key', "did you mean swiglu"], "plain:swigl=fused"), (["an option: --loss"], "hf:loss=f32"),
                         (["swiglu takes a value"], "plain:swiglu"), (["joint-products takes no value"], "plain:joint-products=3"),
                         (["plain:swiglu: unknown", "fused, unfused"], "plain:swiglu=fast"), (['"" is not a key'], "plain:"),
                         (["longer than"], "plain:swiglu=" + "f" * 300), (["longer than"], "h" * 300), (["is not a key"], "plain:,swiglu=fused")):
        refused(words, "profile", *llama, "--recipe", value)
    refused(["--recipe hf", "serve does not", "plain:"], "serve", "llama", "--gpu", "h100", "--recipe", "hf")
    equal(run("serve", "llama", "--gpu", "h100", "--recipe", "plain:rope=unfused", "-s", 64).returncode, 0, "serve takes keys")
    equal([name for name in keys() if name not in run("help", "recipes", "plain").stdout], [], "keys in help")
    text = run("help", "recipes").stdout
    equal([row for rows in listed().values() for row in rows if f"\n  {row}" not in text], [], "rows of recipes in help")
    equal(list(listed()), names_of("--recipe")[1:], "recipes in JSON")
    text = run("help", "recipes").stdout
    equal([row for rows in listed().values() for row in rows if f"\n  {row}" not in text], [], "rows of recipes in help")
    refused(['no recipe "hff"'], "help", "recipes", "hff")


# A value of each key of a model, unlike what the model has without it.
OF_MODELS = {"gpt": ["untied", "no-bias", "norm-kind=rmsnorm", "context=64", "head-dim=24"], "mlp": ["out-act=sigmoid"],
             "attention": ["causal"], "deepseek-tiny": ["kv-rank=8", "q-rank=12", "rope-dim=4", "value-dim=12"],
             "moe-tiny": ["experts-per-token=1", "balance-loss=0.5", "mtp-layers=1", "routing=worst"]}


def spelt_as_options(keys):
    return [word for key in keys for word in ("--" + key).split("=")]


def what_was_computed(p):
    return p["model"], p["params"], what_was_kept(p), p["phases"]


def details_of_a_model_follow_its_name():
    for model, details in OF_MODELS.items():
        plain = what_was_computed(profile(model, "-s", 16, "--recipe", "plain:expert-form=loop" if model == "moe-tiny" else "none", *META))
        for given in ([key] for key in details):
            args = ["-s", 16, *(["--recipe", "plain:expert-form=loop"] if model == "moe-tiny" else []), *META]
            new = profile(f"{model}:{','.join(given)}", *args)
            equal(profile(model, *args, *spelt_as_options(given)), new, f"{model} {given}: as it was typed")
            check(what_was_computed(new) != plain, f"{model} {given} changes nothing")
    equal(sorted(key.split("=")[0] for details in OF_MODELS.values() for key in details), sorted(keys("model")), "all keys of models")
    both = profile("gpt:untied,norm-kind=rmsnorm", *META)
    equal(profile(*GPT, "--untied", "--norm-kind", "rmsnorm"), both, "two keys")
    equal((both["model"]["kind"], both["model"]["norm_kind"]), ("gpt", "rmsnorm"), "the model")
    told = run("profile", *GPT, "--untied", "--norm-kind", "rmsnorm").stderr
    equal(told, "memtape: options that are keys of MODEL now: gpt:untied,norm-kind=rmsnorm\n", "former options are told")
    rows = json.loads(run("sweep", *GPT, "--over", "model=gpt,gpt:untied", "--json", "-").stdout)["rows"]
    equal([(r["row"], r["steady"]["peak"]) for r in rows], [(f"model={model}", profile(model, *META)["steady"]["peak"])
                                                            for model in ("gpt", "gpt:untied")], "rows of a sweep")
    refused(['unknown "qwen2.5:7b"', "did you mean qwen2.5-7b"], "profile", "qwen2.5:7b")
    for words, model in ((['MODEL: "untid" is not a key', "did you mean untied"], "gpt:untid=1"), (["MODEL:norm-kind: unknown"], "gpt:norm-kind=fast"),
                         (["an option: --layers"], "gpt:layers=3"), (["a key of --recipe"], "llama:swiglu=unfused"),
                         (["untied takes no value"], "gpt:untied=3"), (["context takes a value"], "gpt:context")):
        refused(words, "profile", model, *META)
    check(" Details of MODEL, after a colon, as in gpt:untied" in run("profile", "--help", "all").stdout, "help lists them")


def details_of_optimizers_and_gpus_follow_their_names():
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "text").write_text(Path(__file__).read_text()[:4000])
        train = ["train", "--data", "text", "--steps", 3, "-b", 2, "-s", 16, "-d", 16, "-l", 1, "-q", "--save"]
        for i, details in enumerate((["clip=0.01"], ["warmup=2"], ["weight-decay=9"], ["min-lr=0.3"])):
            saved = []
            for words in (["--optimizer", "adamw:" + ",".join(details)], spelt_as_options(details), []):
                p = run(*train, f"{i}.safetensors", *words, cwd=folder)
                equal(p.returncode, 0, f"{words}: {p.stderr}")
                saved.append(Path(folder, f"{i}.safetensors").read_bytes()[-512:])  # weights and state
            check(saved[0] == saved[1] != saved[2], f"{details}: as it was typed, and not without it")
        refused(['--optimizer: "clap" is not a key', "did you mean clip"], "train", "--data", "text", "--optimizer", "adamw:clap=1", cwd=folder)
        refused(["--optimizer: unknown", "adamw"], "train", "--data", "text", "--optimizer", "adamv:clip=1", cwd=folder)
    fit = ["fit", "gpt2", "-s", 64, "--json", "-", "--gpus", 2]
    for key in ("keep-aside=5GiB", "price=2", "host-memory=1GiB"):
        new, old = (json.loads(run(*fit, *words).stdout) for words in (["--gpu", f"h100:{key}"], ["--gpu", "h100", *spelt_as_options([key])]))
        for found in (new, old):
            found.pop("search_seconds")
        equal(new, old, f"fit, {key}")
    equal(sorted(keys("optimizer")), ["clip", "min-lr", "warmup", "weight-decay"], "keys of optimizers")
    equal(sorted(keys("gpu")), ["host-memory", "keep-aside", "price"], "keys of GPUs")


def what_has_no_effect_is_refused():
    refused(["--recipe", "does not apply to mlp"], "profile", "mlp", "--recipe", "hf")
    refused(["--recipe", "did you mean hf"], "profile", "gpt", "--recipe", "hff")
    refused(["plain:swiglu", "does not apply to gpt"], "profile", "gpt", "--recipe", "plain:swiglu=unfused")
    refused(["plain:rms-norm", "MODEL:norm-kind=rmsnorm"], "profile", "gpt", "--recipe", "plain:rms-norm=unfused")
    refused(["plain:gelu-tanh", "--act gelu_tanh"], "profile", "gpt", "--recipe", "plain:gelu-tanh=unfused")
    refused(["plain:softmax", "--attention math"], "profile", "llama", "--recipe", "plain:softmax=f32", "--dtype", "bf16")
    refused(["plain:softmax", "--dtype bf16"], "profile", "llama", "--recipe", "plain:softmax=f32", "--attention", "math")
    refused(["plain:kv-groups", "--kv-heads"], "profile", "llama", "--recipe", "plain:kv-groups=repeated", "--attention", "math")
    refused(["--loss", "--dtype bf16"], "profile", "llama", "--loss", "f32")


def what_callers_of_the_loss_hold_is_counted():
    """Beside an unfused loss: in forward a shifted copy and the head's input; in backward, and at the end of a step, the logits."""
    args = ["llama", *META, "--dtype", "bf16", "-b", 2, "-s", 64, "--vocab", 4096, "-d", 32, "-a", 2, "-l", 1, "--lora-rank", 2, "--lora-targets", "q"]
    plain, shifted, held = (profile(*args, "--loss", form) for form in ("unfused", "shifted", "held"))
    bsv, bsh = 2 * 64 * 4096, 2 * 64 * 32
    peak = {name: {ph["name"]: ph["peak"] for ph in p["steady"]["phases"]} for name, p in (("plain", plain), ("shifted", shifted), ("held", held))}
    equal(peak["shifted"]["forward"] - peak["plain"]["forward"], 4 * bsv + 2 * bsh, "shifted: forward")
    equal(peak["shifted"]["backward"], peak["plain"]["backward"], "shifted: backward")
    equal([peak["held"][name] - peak["plain"][name] for name in ("forward", "backward")], [2 * bsv, 2 * bsv], "held: the last step's, and this one's")
    equal([p["growth"]["residual"] for p in (plain, shifted, held)], [0, 0, 0], "the books balance")
    refused(["--loss shifted", "--tp"], "profile", *args, "--dtype", "bf16", "--loss", "shifted", "--tp", 2)
    refused(["loss", "bert"], "profile", "bert", "--loss", "shifted")
    refused(["loss", "balance"], "profile", "moe-tiny:balance-loss=0.1", *META, "--loss", "held")


# ---- recipes by the names people know ----
def listed():
    """The recipes, and what each sets: {"hf": ["--dtype bf16", "rope=unfused"]}."""
    def typed(option, value):
        name = option if option in keys() else "--" + option
        return name if value is None else f"{name}{'=' if option in keys() else ' '}{value}"
    return {recipe["name"]: [typed(row["option"], row["value"]) for row in recipe["sets"]] for recipe in help_json()["recipes"]}


def rows_of(options):
    """What a recipe has set, as help lists it: "--dtype bf16", and of keys "rope=unfused"."""
    others, _, of_keys = options.partition("--recipe plain:")
    return {"--" + option.strip() for option in others.split("--")[1:]} | {key for key in of_keys.split(",") if key}


def every_row_holds_somewhere():
    """Each recipe is its options, written out; no row of any is without a use."""
    llama = ["llama", "--kv-heads", 2, "-l", 4, *META]
    adapters = ["--lora-rank", 2]
    used, of = set(), {name: [] for name in listed()}
    for args in ([*llama], [*llama, "--attention", "math", "--dtype", "bf16"], [*llama, *adapters], [*llama, *adapters, "--qlora"], ["moe-tiny", *META, *adapters, "--lora-targets", "experts_down"],
                 ["gpt", "--act", "gelu_tanh", "--dtype", "bf16", *META], ["gemma-3-1b", "-b", 1, "-s", 600, "-l", 6, "--vocab", 99, *META], [*llama, "--dp", 4], [*llama, "--dp", 4, "--dtype", "f32"],
                 [*llama, "--dp", 2, "--pp", 2], [*llama, "--dp", 2, *adapters], [*llama, "--dp", 2, *adapters, "--dtype", "f32"],
                 [*llama, "--dp", 2, "--pp", 2, "--zero", 3], [*llama, "--dp", 2, "--pp", 2, "--zero", 3, "--dtype", "f32"], [*llama, "--dp", 2, "--tp", 2], ["moe-tiny", "--dp", 2, *META], ["gpt", "--experts", 4, "--dp", 2, *META],
                 ["moe-tiny:balance-loss=0.1", *META], ["gpt-oss-20b", "-b", 1, "-s", 16, "-l", 2, *META], ["gpt-oss-20b", "-b", 1, "-s", 16, "-l", 2, *META, *adapters, "--lora-targets", "proj"]):
        for name in of:
            p = run("profile", *args, "--recipe", name, "--json", "-")
            if p.returncode:
                of_liger = name == "liger" and ("--recipe liger" in p.stderr or "--loss fused" in p.stderr)
                check(p.returncode == 2 and of_liger, f"{name} {args}: {p.stderr}")
                continue
            p = json.loads(p.stdout)
            options = p["model"]["recipe_options"]
            equal(without_name(p), without_name(profile(*args, *options.split())), f"{name} and its options, {args}: {options}")
            used |= {(name, option) for option in rows_of(options)}
    for name, stage in (("zero1", 1), ("zero2", 2), ("zero3", 3), ("dataparallel", 0)):  # beside what a Trainer gives, and where a fit would divide more than data
        joined = profile(*llama, "--dp", 4, "--recipe", f"{name}+llamafactory")["model"]["recipe_options"]
        found = json.loads(run("fit", "gpt", "-b", 2, "--gpus", 2, "--gpu", "h100", "--recipe", name, "--json", "-").stdout)
        set_ = rows_of(joined) | rows_of(found["recipe_options"])
        used |= {(name, option) for option in set_.intersection(listed()[name])}
        equal({(s["tp"], s["cp"], s["pp"], s["zero"]) for s in found["setups"]}, {(1, 1, 1, stage)}, f"a fit with {name} divides data alone")
    equal(sorted({(name, option) for name, rows in listed().items() for option in rows} - used), [], "rows that hold nowhere")
    equal(sorted(used - {(name, option) for name, rows in listed().items() for option in rows}), [], "rows that help does not list")


def torchtitan_is_twelve_options():
    args = ["llama-3.1-8b", "-b", 2, "-s", 8192, "--dp", 8]
    p = profile(*args, "--recipe", "torchtitan")
    plain = profile(*args, *("--zero 3 --dtype bf16 --optimizer adamw --recipe hf:fsdp=torchtitan --loss unfused "
                             "--recipe plain:kv-groups=repeated --checkpoint ops --device meta").split())
    equal(without_name(p), without_name(plain), "torchtitan and its options")
    given = profile(*args, "--recipe", "torchtitan", "--checkpoint", "full", "--loss", "native")["model"]["recipe_options"]
    check("--checkpoint" not in given and "--loss" not in given, f"what is given wins: {given}")


def recipes_combine():
    llama = ["llama", "--kv-heads", 2, "--attention", "math", *META]
    for given, options in (("torchtune+compile", "--dtype bf16 --recipe plain:swiglu=fused,rms-norm=fused,rope=fused --optimizer adamw-16bit "
                                                 "--checkpoint full --recipe plain:kv-groups=repeated --loss chunked"),
                           ("hf+compile", "--recipe plain:swiglu=fused,rms-norm=fused,rope=fused,softmax=f32,kv-groups=repeated --loss unfused")):
        for name in (given, "+".join(reversed(given.split("+")))):
            p = profile(*llama, *(["--dtype", "bf16"] if "hf" in given else []), "--recipe", name)
            equal((p["model"]["recipe"], p["model"]["recipe_options"]), (given, as_typed(options)), f"{name}: its options")
    p = profile(*llama, "--dp", 4, "--recipe", "zero2+trl")["model"]
    check(p["recipe_options"].startswith("--dtype bf16 --optimizer adamw --master-weights --zero 2 --checkpoint full "),
          f"zero2 wins over trl's f32 and bf16 products: {p['recipe_options']}")
    shown = run("profile", *GPT, "--recipe", "trl+compile").stdout
    check("\nrecipe trl+compile: --dtype f32 " in shown, f"shown: {shown}")
    of_gpt = "--dtype f32 --amp bf16 --optimizer adamw --checkpoint full"
    row = json.loads(run("sweep", *GPT, "--over", "recipe=none,trl", "--json", "-").stdout)["rows"]
    equal([(r["recipe"], r["recipe_options"]) for r in row], [(None, None), ("trl", of_gpt)], "a sweep's rows name their recipes")
    args = ["gpt", "-b", 2, "--gpus", 1, "--gpu", "h100", "--recipe", "trl"]
    p = json.loads(run("fit", *args, "--json", "-").stdout)
    equal((p["recipe"], p["recipe_options"], {s["checkpoint"] for s in p["setups"]}), ("trl", of_gpt, {"full"}), "a fit's recipe")
    check(f"\nrecipe trl: {of_gpt}\n" in run("fit", *args).stdout, "a fit's text")
    refused(["--recipe ddp+zero1", "what ranks share"], "profile", *GPT, "--dp", 2, "--recipe", "ddp+zero1")
    refused(["--recipe torchtune+trl+zero1", "torchtune+trl each", "how a program trains"], "profile", *GPT, "--recipe", "zero1+trl+torchtune")
    refused(["--recipe", "did you mean torchtune"], "profile", *GPT, "--recipe", "compile+torchtun")


def any_number_of_gpus():
    """Each recipe answers each verb for one GPU and for several; which options hold then is its matter."""
    model = ["llama", "-b", 8, "-s", 64, "--kv-heads", 2]
    for name in names_of("--recipe"):
        for n in (1, 2, 8):
            ranks = ["--dp", n] if n > 1 else []
            for verb in ("profile", "plan"):
                p = run(verb, *model, *(META if verb == "profile" else []), *ranks, "--recipe", name)
                check(p.returncode == 0 and "The peak of a training step" in p.stdout, f"{verb} {name}, {n} GPUs: {p.stderr}")
            p = run("fit", *model, "--gpus", n, "--gpu", "h100", "--recipe", name)
            equal((p.returncode, p.stdout[:5], p.stderr), (0, "fits:", ""), f"fit {name}, {n} GPUs")


a_recipe_is_its_options()
an_option_given_wins()
liger_fuses()
every_verb_takes_it()
what_callers_of_the_loss_hold_is_counted()
every_row_holds_somewhere()
torchtitan_is_twelve_options()
recipes_combine()
keys_are_details()
details_of_a_model_follow_its_name()
details_of_optimizers_and_gpus_follow_their_names()
what_has_no_effect_is_refused()
any_number_of_gpus()
done()
