"""The man page and the shells' completions: they have the verbs and options that help --json lists, and no others. Arguments:
the page, bash's file, zsh's file."""
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from lib import MEMTAPE, check, done, equal, help_json, names_of, options_of, run

MAN, BASH, ZSH = (str(Path(name).resolve()) for name in sys.argv[1:4])


HELP = {verb["name"]: {name: row["argument"] for name, row in options_of(verb["name"]).items()} for verb in help_json()["verbs"]}


def shell(program, script, *args):
    p = subprocess.run([program, *args, "-c", script], capture_output=True, text=True, timeout=60, cwd=FOLDER)
    equal((p.returncode, p.stderr), (0, ""), f"{program}: {script[-200:]}")
    return p.stdout.split("\n")[:-1]


# ---- the man page ----

def page_has_every_option_and_its_verbs():
    page = Path(MAN).read_text().replace("\\-", "-")
    found = {}
    for heading, text in re.findall(r"^\.TP\n((?:\\fB-\w\\fR, )?\\fB--.*)\n((?:(?!\.).*\n)*)", page, re.M):
        name, argument = re.search(r"--([a-z0-9-]+)\\fR(?:=\\fI([^\\]+)\\fR)?", heading).groups()
        for verb in re.search(r"^Of (.*)\.$", text, re.M).group(1).split(", "):
            found.setdefault(verb, {})[name] = argument
    for verb, options in HELP.items():
        equal(found.get(verb), options, f"options of the man page for {verb}")
    for verb in HELP:
        check(re.search(rf"^\\fBmemtape {verb}\\fR", page, re.M), f"the man page has {verb}")


def page_is_set_without_a_warning():
    if not shutil.which("groff"):
        print("skipped: groff")
        return
    p = subprocess.run(["groff", "-man", "-ww", "-Tutf8", "-P-c", MAN], capture_output=True, text=True, timeout=60)
    equal((p.returncode, p.stderr), (0, ""), "groff")
    text = re.sub(".\b", "", p.stdout).replace("−", "-").replace("‐", "-")  # bold is struck twice
    check("EXIT STATUS" in text and "--optimizer=NAME" in text, f"the page as text: {text[-2000:]}")


def examples_run_as_they_are_printed():
    page = Path(MAN).read_text().replace("\\-", "-")
    text = page[page.index(".SH EXAMPLES"):page.index(".SH EXIT STATUS")]
    commands = re.findall(r"^\.TP\n\\fB(.*)\\fR$", text, re.M)
    equal([command.split()[1] for command in commands], list(HELP), "an example of each verb")
    Path(FOLDER, "notes.txt").write_text(Path(__file__).read_text())
    Path(FOLDER, "run.log").write_text("max_memory_allocated: 3 GB\n")
    path = {**os.environ, "PATH": f"{Path(MEMTAPE).resolve().parent}:{os.environ['PATH']}"}
    for command in commands:
        check(command in run(command.split()[1], "--help").stdout, f"the help has {command}")
        if command.startswith("memtape demo") and os.environ.get("MTT_LONG") != "1":
            continue  # half a minute
        p = subprocess.run(command, shell=True, cwd=FOLDER, env=path, capture_output=True, timeout=300)
        equal(p.returncode, 0, f"status of {command}: {p.stderr}")


# ---- bash ----

def complete(*words):
    """What bash offers for the last word."""
    quoted = " ".join(f"'{w}'" for w in words)
    return shell("bash", f"source {BASH}; COMP_WORDS=(memtape {quoted}); COMP_CWORD={len(words)}; _memtape; "
                         'printf "%s\\n" "${COMPREPLY[@]}"', "--norc")


def bash_knows_verbs_options_and_values():
    if not shutil.which("bash"):
        print("skipped: bash")
        return
    equal(sorted(complete("")), sorted([*HELP, "help", "--help", "--version"]), "verbs")
    equal(complete("pro"), ["profile"], "a verb that has begun")
    for verb, options in HELP.items():
        equal(sorted(complete(verb, "--")), sorted("--" + name + ("=" if argument else "") for name, argument in options.items()),
              f"options of {verb}")
    equal(complete("profile", "gpt", "--opt"), ["--optimizer="], "an option that has begun")
    equal(complete("profile", "gpt", "--act", "=", "g"), ["gelu", "gelu_tanh"], "values after =")
    equal(complete("profile", "gpt", "--act", "g"), ["gelu", "gelu_tanh"], "values as a word of their own")
    equal(complete("profile", "gpt", "--amp", "="), ["none", "bf16", "f16"], "all values")
    check({"llama", "llama-65b"} <= set(complete("plan", "llama")), "models")
    equal(complete("plan", "here"), ["here.json"], "a file as the model")
    equal(complete("profile", "gpt", "--json", "=", "he"), ["here.json"], "files")
    equal(complete("demo", ""), [f"--{n}{'=' if a else ''}" for n, a in HELP["demo"].items()], "options where no model is")


def values_of_bash_are_accepted():
    seen = set()
    for verb, block in re.findall(r"(?ms)^    ([a-z]+)\)\n(.*?)^        esac ;;", Path(BASH).read_text()):
        for name, value in re.findall(r"^        --(\S+)\) words='([^']*)'", block, re.M):
            seen.add((verb, name))
            equal(value.split(), names_of(name), f"{verb} --{name}")
    check(len(seen) > 10, f"options with values to choose from: {seen}")


# ---- zsh ----

def zsh_knows_verbs_and_options():
    if not shutil.which("zsh"):
        print("skipped: zsh")
        return
    stubs = "_arguments() { print -l -- \"$@\" }; _describe() { print -l -- ${(P)2} }; _files() { : }; "
    offered = shell("zsh", f"{stubs} words=(memtape ''); CURRENT=2; source {ZSH}", "-f")
    equal(sorted(line.split(":")[0] for line in offered), sorted(HELP), "verbs of zsh")
    for verb, options in HELP.items():
        specs = shell("zsh", f"{stubs} words=(memtape {verb} ''); CURRENT=3; source {ZSH}", "-f")
        found = {}
        for spec in specs:
            name = re.match(r"\*?(?:\([^)]*\))?--([a-z0-9-]+)(=?)\[", spec)
            if name:
                found[name.group(1)] = bool(name.group(2))
        equal(found, {name: bool(argument) for name, argument in options.items()}, f"options of {verb} in zsh")


with tempfile.TemporaryDirectory() as FOLDER:
    Path(FOLDER, "here.json").touch()
    for test in [page_has_every_option_and_its_verbs, page_is_set_without_a_warning, examples_run_as_they_are_printed, bash_knows_verbs_options_and_values,
                 values_of_bash_are_accepted, zsh_knows_verbs_and_options]:
        test()
done()
