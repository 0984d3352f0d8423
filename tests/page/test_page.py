"""The page of ./run page in a headless Chromium, beside the program: the same words, the same bytes, and the figures that are
drawn are those of the program's JSON. Skipped (77) without what ./run page installs, or without Chromium and its driver."""
import json
import os
import random
import shutil
import subprocess
import sys
import time
from pathlib import Path
from urllib.parse import urlencode
ROOT = Path(__file__).resolve().parent.parent.parent
sys.path[:0] = [str(ROOT / "tests/cli"), str(ROOT / "tests/report")]
from browser import Browser, missing  # noqa: E402
from lib import check, done, equal, run  # noqa: E402

PAGE = ROOT / "build-page/memtape.html"
LONG = os.environ.get("MTT_LONG") == "1"
SETUPS = 200 if LONG else 8
MODELS = ["gpt2", "gpt3-175b", "llama-3.1-8b", "mixtral-8x7b", "bert-base", "gemma-3-1b", "qwen3-0.6b", "gpt2-medium", "llama-tiny"]
CHOICES = {
    "batch": [1, 2, 3, 8], "seq": [128, 512, 1000, "2k"], "recipe": ["hf", "torchtune", "fsdp2", "megatron"],
    "optimizer": ["none", "sgd", "adamw-8bit", "lion", "adafactor"], "checkpoint": ["none", "full", "selective", "sqrt"],
    "offload": ["cpu"], "dtype": ["f32", "bf16", "f16"], "amp": ["bf16", "f16"], "lora-rank": [4, 16], "tp": [2], "dp": [2, 8],
    "zero": [1, 2, 3, 9], "pp": [2], "loss": ["fused", "chunked"], "attention": ["math", "flash"], "capacity": ["24GB", "80GiB"],
}
FLAGS = ["master-weights", "qlora", "f32-gradients", "step-in-backward"]
VALUES = "return [...document.querySelectorAll(arguments[0])].map(e => Number(e.value))"
ENDED = ("const p = document.getElementById('page'); return p.dataset.answer === arguments[0] && "
         "(p.dataset.words === arguments[0] || !!document.querySelector('[aria-invalid]'))")


def lacking():
    """What is not there, by name."""
    return [name for name, there in [("ziglang", (ROOT / ".tools/zig").exists()), ("jansson's source", (ROOT / ".tools/jansson").exists()),
                                     ("wasm-opt", shutil.which("wasm-opt"))] if not there] + missing()


def build():
    p = subprocess.run([ROOT / "run", "page"], capture_output=True, text=True)
    equal(p.returncode, 0, f"./run page: {p.stdout[-2000:]}{p.stderr[-2000:]}")


def drawn(seed):
    """A set-up as {option: value}; that of a flag is "on"."""
    r = random.Random(seed)
    values = {"model": r.choice(MODELS)}
    for name in r.sample(sorted(CHOICES), r.randrange(5)):
        values[name] = str(r.choice(CHOICES[name]))
    return {**values, **{name: "on" for name in FLAGS if r.random() < 0.1}}


def words_of(values):
    words = ["profile", values["model"]]
    for name, value in values.items():
        if name != "model":
            words += ["--" + name] if name in FLAGS else ["--" + name, value]
    return [*words, "--device", "meta"]


def wait(browser, script, argument, what, seconds=30):
    end = time.time() + seconds
    while not browser.js(script, argument):
        if time.time() > end:
            shows = browser.js("return [document.getElementById('page').dataset, document.getElementById('verdict').textContent]")
            raise TimeoutError(f"{what} within {seconds} s: {shows}, {browser.console()}")
        time.sleep(0.02)


def same_bytes(browser, words, what):
    """What the program prints, and its status, in the page and natively."""
    there = browser.js("return memtape(arguments[0])", words)
    here = run(*words)
    equal([there["status"], there["out"], there["err"]], [here.returncode, here.stdout, here.stderr], what)
    return here


def set_up_shows_the_programs_figures(browser, values):
    words = words_of(values)
    what = " ".join(words)
    browser.js("location.hash = arguments[0]", urlencode(values))
    wait(browser, ENDED, what, what)
    same_bytes(browser, words, what)
    here = same_bytes(browser, [*words, "--json", "-"], what + " as JSON")
    refusal = browser.js("return [...document.querySelectorAll('[id^=bad-]')].map(e => e.textContent).join('')")
    equal(refusal, "" if here.stdout else here.stderr.strip().split(": ", 1)[1], f"{what}: the refusal")
    if not here.stdout:
        return
    j = json.loads(here.stdout)
    if j["out_of_memory"]:
        equal(browser.js(VALUES, "#page .headline data")[0], j["out_of_memory"]["requested"], f"{what}: what was refused")
        return
    equal(browser.js(VALUES, "#page .headline data"), [j["steady"]["peak"]], f"{what}: the peak")
    equal(browser.js(VALUES, "#verdict data")[0], j["steady"]["reserved"], f"{what}: reserved")
    terms = browser.js(VALUES, "#equation .bytes data")
    equal(terms[0], sum(terms[1:]), f"{what}: the equation's sum")
    equal(sorted(filter(None, terms[1:])), sorted(filter(None, j["steady"]["by_category"].values())), f"{what}: its terms")
    equal(browser.js(VALUES, ".facts data")[:2], [j["saved"]["bytes"], j["steady"]["reserved"]], f"{what}: the facts")


def search_is_that_of_fit(browser):
    browser.js("location.hash = 'model=llama-3.2-1b&gpus=2&gpu=l4'")
    browser.click("#fit-button")
    words = "fit llama-3.2-1b --gpus 2 --gpu l4"
    wait(browser, "return document.getElementById('fit-result').dataset.words === arguments[0]", words, words)
    setups = json.loads(run(*words.split(), "--json", "-").stdout)["setups"]
    equal(browser.js(VALUES, "#fit-result data"), [s["reserved"] for s in setups[:12]], "the table of fit")


def first_answer_is_quick():
    with Browser() as browser:
        browser.cdp("Emulation.setCPUThrottlingRate", rate=4)
        browser.open(PAGE)
        wait(browser, "return !!document.querySelector('#page .hero')", None, "a first answer")
        equal(browser.console(), [], "the console after loading")
        hosts = browser.js("return performance.getEntriesByType('resource').map(e => e.name).filter(n => !n.startsWith('blob:'))")
        equal(hosts, [], "requests")


def main():
    if lacking():
        print("skipped, without " + ", ".join(lacking()))
        return 77
    build()
    with Browser(width=390) as browser:
        browser.open(PAGE)
        wait(browser, "return !!document.querySelector('#page .hero')", None, "a first answer")
        for words in (["--version"], ["help"], ["profile", "--help", "all"], ["fit", "?"], ["plan", "gpt2"]):
            if words != ["--version"]:
                same_bytes(browser, words, " ".join(words))
        for seed in range(SETUPS):
            set_up_shows_the_programs_figures(browser, drawn(seed))
        search_is_that_of_fit(browser)
        check(browser.js("return document.documentElement.scrollWidth <= innerWidth"), "nothing is wider than a phone")
        equal(browser.console(), [], "the console")
    first_answer_is_quick()
    return done()


sys.exit(main())
