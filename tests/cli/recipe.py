"""--recipe: a bundle of plain options, printed as such."""
from lib import check, done, equal, profile, refused, run

META = ["--device", "meta"]
LLAMA = ["llama", "--kv-heads", 2, "--dtype", "bf16", "--attention", "math", *META]
OF_LLAMA = ("--loss f32 --swiglu unfused --rms-norm unfused --rope unfused --softmax f32 "
            "--kv-groups repeated")


def what_was_kept(p):
    return p["saved"], p["steady"], p["formula"], p["model"]["ops"]


def a_recipe_is_its_options():
    for args, options in [(LLAMA, OF_LLAMA), (["gpt", "--act", "gelu_tanh", *META], "--gelu-tanh unfused"),
                          (["gpt2", "-s", 64, "--dtype", "bf16", *META], "--loss f32 --gelu-tanh unfused"),
                          (["llama", *META], "--swiglu unfused --rms-norm unfused --rope unfused"),
                          (["bert", "--dtype", "bf16", *META], ""), (["gpt", *META], "")]:
        p, plain = profile(*args, "--recipe", "hf"), profile(*args)
        equal((p["model"]["recipe"], p["model"]["recipe_options"]), ("hf", options), f"recipe of {args}")
        equal((plain["model"]["recipe"], plain["model"]["recipe_options"]), (None, None), f"no recipe of {args}")
        equal(what_was_kept(profile(*args, *options.split())), what_was_kept(p), f"{args}: recipe and options")
        check(what_was_kept(p) == what_was_kept(plain) or options, f"{args}: the recipe has an effect")
        shown = run("profile", *args, "--recipe", "hf").stdout.splitlines()
        equal(shown[1], f"recipe hf: {options or 'no option differs'}", f"text of {args}")
        equal(profile(*args, "--recipe", "none"), plain, f"{args} --recipe none")
    line = run("profile", *LLAMA, *OF_LLAMA.split()).stdout.splitlines()[0]
    check(line.endswith(", unfused swiglu, unfused RMS norms, unfused rope, softmax in f32, "
                        "keys and values repeated, loss in f32"), f"options in the text: {line}")


def an_option_given_wins():
    p = profile(*LLAMA, "--recipe", "hf", "--swiglu", "fused", "--loss", "native")
    equal(p["model"]["recipe_options"], OF_LLAMA.replace("--loss f32 --swiglu unfused ", ""), "options left")
    equal((p["model"]["ops"]["swiglu"], p["model"]["ops"]["loss"]), ("fused", "native"), "options given")


def every_verb_takes_it():
    rows = run("sweep", *LLAMA, "--over", "recipe=none,hf", "--over", "swiglu=fused,unfused", "--json", "-")
    equal(rows.returncode, 0, f"sweep: {rows.stderr}")
    p = run("plan", *LLAMA[:-2], "--recipe", "hf")
    equal(p.returncode, 0, f"plan: {p.stderr}")
    check("unfused swiglu: silu(gate) besides" in p.stdout and "         0  difference" in p.stdout, "plan's rows")
    check(f"recipe hf: {OF_LLAMA}" in run("explain", *LLAMA, "--recipe", "hf").stdout, "explain's heading")
    for rank in (["--tp", 2, "--sp"], ["--pp", 2], ["--dp", 2, "--zero", 3], ["--tp", 2, "--checkpoint", "selective"]):
        for model in (LLAMA, ["gpt", "--kv-heads", 2, "--act", "gelu_tanh", "--attention", "math", "--dropout", 0.1, *META]):
            p = run("profile", *model, *rank, "--recipe", "hf")
            equal(p.returncode, 0, f"{model} {rank}: {p.stderr}")


def what_has_no_effect_is_refused():
    refused(["--recipe", "does not apply to mlp"], "profile", "mlp", "--recipe", "hf")
    refused(["--recipe", "did you mean hf"], "profile", "gpt", "--recipe", "hff")
    refused(["--swiglu", "does not apply to gpt"], "profile", "gpt", "--swiglu", "unfused")
    refused(["--rms-norm", "--norm-kind rmsnorm"], "profile", "gpt", "--rms-norm", "unfused")
    refused(["--gelu-tanh", "--act gelu_tanh"], "profile", "gpt", "--gelu-tanh", "unfused")
    refused(["--softmax", "--attention math"], "profile", "llama", "--softmax", "f32", "--dtype", "bf16")
    refused(["--softmax", "--dtype bf16"], "profile", "llama", "--softmax", "f32", "--attention", "math")
    refused(["--kv-groups", "--kv-heads"], "profile", "llama", "--kv-groups", "repeated", "--attention", "math")
    refused(["--loss", "--dtype bf16"], "profile", "llama", "--loss", "f32")


a_recipe_is_its_options()
an_option_given_wins()
every_verb_takes_it()
what_has_no_effect_is_refused()
done()
