"""The page of ./run page in a headless Chromium, beside the program: the same words, the same bytes, and the figures that are
drawn are those of the program's JSON. Skipped (77) without what ./run page installs, or without Chromium and its driver."""
import gzip
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from urllib.parse import urlencode
ROOT = Path(__file__).resolve().parents[3]
sys.path[:0] = [str(ROOT / "tests/program/verbs"), str(ROOT / "tests/program/report")]
from browser import Browser, missing  # noqa: E402
from common import VALUES, reads_well, same_bytes, wait  # noqa: E402
from course_cells import asks_are_answered, cells_print_what_is_quoted, course_is_that_of_the_lessons, markdown_is_read  # noqa: E402
from firefox import FIREFOX, Firefox  # noqa: E402
from tape_and_training import tape_is_that_of_explain, training_is_that_of_the_program  # noqa: E402
from lib import check, done, equal, help_json, run  # noqa: E402

PAGE = ROOT / "build-page/memtape.html"
LONG = os.environ.get("MTT_LONG") == "1"
SETUPS = 200 if LONG else 8
MODELS = ["gpt2", "gpt3-175b", "llama-3.1-8b", "mixtral-8x7b", "bert-base", "gemma-3-1b", "qwen3-0.6b", "gpt2-medium", "llama-tiny"]
CHOICES = {
    "batch": [1, 2, 3, 8], "seq": [128, 512, 1000, "2k"], "recipe": ["hf", "torchtune", "fsdp2:reshard=never", "megatron", "plain:rope=unfused", "plain:f32-gradients", "hf:swiglu=fused,step-in-backward"],
    "optimizer": ["none", "sgd", "adamw-8bit", "lion", "adafactor"], "checkpoint": ["none", "full", "selective", "sqrt"],
    "offload": ["cpu"], "dtype": ["f32", "bf16", "f16"], "amp": ["bf16", "f16"], "lora-rank": [4, 16], "tp": [2], "dp": [2, 8],
    "zero": [1, 2, 3, 9], "pp": [2], "loss": ["fused", "chunked"], "attention": ["math", "flash"], "capacity": ["24GB", "80GiB"],
}
FLAGS = ["master-weights", "qlora"]
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


def set_up_shows_the_programs_figures(browser, values, prints):
    words = words_of(values)
    what = " ".join(words)
    browser.js("location.hash = arguments[0]", urlencode(values))
    wait(browser, ENDED, what, what)
    if prints:
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
    browser.js("location.hash = 'model=llama-3.2-1b&gpus=4&gpu=l4'; document.getElementById('fit').open = false;"
               "document.getElementById('fit-result').replaceChildren()")
    browser.click("#fit summary")  # what is opened searches at once
    words = "fit llama-3.2-1b --gpus 4 --gpu l4"
    wait(browser, "return document.getElementById('fit-result').dataset.words === arguments[0]", words, words)
    setups = json.loads(run(*words.split(), "--json", "-").stdout)["setups"]
    equal(browser.js(VALUES, "#fit-result data"), [s["reserved"] for s in setups[:12]], "the table of fit")
    fast = re.findall(r" (\d[\d,]+-[\d,]+) +\d+-\d+ %$", run(*words.split()).stdout, re.M)
    shown = browser.js("return [...document.querySelectorAll('#fit-result tbody tr')].map(row => row.cells[11].textContent.replace('\u2013', '-'))")
    check(fast and set(fast) <= set(shown), f"tokens a second, as text {fast}, in the table {shown}")
    browser.js("const i = document.getElementById('in-gpus'); i.value = '2'; for (const e of ['input', 'change']) i.dispatchEvent(new Event(e))")
    again = words.replace("--gpus 4", "--gpus 2")  # another number of GPUs is searched at once
    wait(browser, "return document.getElementById('fit-result').dataset.words === arguments[0]", again, again)
    browser.js("const i = document.getElementById('in-gpus'); i.value = '4'; for (const e of ['input', 'change']) i.dispatchEvent(new Event(e))")
    wait(browser, "return document.getElementById('fit-result').dataset.words === arguments[0]", words, words)
    rows = range(min(12, len(setups)))
    for i in rows if LONG else rows[::4]:
        before = browser.js("return document.getElementById('page').dataset.answer")
        browser.js("document.querySelectorAll('#fit-result tbody button')[arguments[0]].click()", i)
        wait(browser, "return document.getElementById('page').dataset.answer !== arguments[0]", before, f"row {i} of fit")
        equal(browser.js(VALUES, "#verdict data")[0], setups[i]["reserved"], f"row {i} of fit, as a profile")


def capacity(gpu):
    return gpu["memory"] - gpu["kept_aside"]


def cards_are_those_of_fit(browser):
    """What each says at a set-up in bf16 and at one in f16, the smallest first."""
    gpus = sorted(help_json()["gpus"], key=capacity)
    last = [g["name"] for g in gpus if g["f16_only"]][-1]
    for dtype in ("bf16", "f16"):
        words = ["profile", "gpt2-large", "--dtype", dtype, "--device", "meta"]
        browser.js("location.hash = arguments[0]", urlencode({"model": words[1], "dtype": dtype, "gpu": last}))
        wait(browser, ENDED, " ".join(words), " ".join(words))
        needed = json.loads(run(*words, "--json", "-").stdout)["steady"]["reserved"]
        says = {g["name"]: "no bf16" if dtype == "bf16" and g["f16_only"] else "fits" if capacity(g) >= needed else "too small"
                for g in gpus}
        check("too small" in says.values() and says["h200"] == "fits", f"{dtype}: {says}")
        for said in ("fits", "too small", "no bf16"):
            shown = browser.js("return [...document.querySelectorAll(`.cards [data-said='${arguments[0]}'] b`)].map(e => e.textContent)", said)
            equal(shown, [name for name, verdict in says.items() if verdict == said], f"{dtype}: cards with {said}")
        verdict = "multiplies no bf16" if dtype == "bf16" else says[last].replace("too small", "too much for") + " " + last
        check(verdict in browser.js("return document.getElementById('verdict').textContent"), f"{dtype}: {verdict}")


def names_are_those_of_help(browser):
    names = "return [...document.querySelectorAll(arguments[0])].map(e => e.value)"
    equal(browser.js(names, "#models option"), help_json()["presets"], "the models that are offered")
    equal(browser.js(names, "#in-gpu option"), [g["name"] for g in help_json()["gpus"]], "the GPUs that are offered")


def refusal_stands_at_its_field(browser):
    browser.js("location.hash = 'model=gpt2&zero=9'")
    wait(browser, "return document.getElementById('bad-zero').textContent === arguments[0]",
         '--zero: "9" is not a whole number from 0 to 3', "the refusal of --zero 9")
    equal(browser.js("return [...document.querySelectorAll('[aria-invalid]')].map(e => e.name)"), ["zero"], "the refused field")
    browser.write("#in-zero", "\ue003")
    wait(browser, "return !document.querySelector('[aria-invalid]')", None, "the refusal's end")


def every_option_has_a_field(browser):
    rows = [row for row in help_json()["options"] if "profile" in row["verbs"] and not row["key"]]
    shown = {row["name"] for row in rows if row["group"] not in ("Plan and fit", "Output")}
    fields = browser.js("return [...document.querySelectorAll('#form .field')].map(e => [e.querySelector('[name]').name, e.querySelector('p').textContent])")
    names = [name for name, _ in fields]
    equal(sorted(names), sorted({*names}), "fields, each once")
    equal(shown - {*names, "device", "seed", "threads", "scratch"}, set(), "options without a field")
    equal([name for name, text in fields if len(text) < 15 or "mpirun" in text], [], "fields without a text of their own")


def class_finds_its_options(browser):
    """Where docs/class.md sends students for the task's options."""
    place = re.search(r"stand under \*(\w+)\*, the\s+third below them, under \*(More: [\w ]+)\*", (ROOT / "docs" / "class.md").read_text())
    check(place is not None, "docs/class.md says where the options stand")
    above = "return document.getElementById('in-' + arguments[0]).closest('details').querySelector('summary').textContent"
    for name, summary in zip(("optimizer", "checkpoint", "attention"), (place[1], place[1], place[2])):
        shown = browser.js(above, name)
        check(shown.startswith(summary), f"--{name} stands under {shown}, and the class says {summary}")


def link_that_is_damaged(browser):
    browser.js("location.hash = 'model=tiny&frobnicate=3&gpu=zzz&beside=memtape+profile+nothing'")
    wait(browser, "return document.getElementById('notes').textContent.includes('beside')", None, "what a damaged link has")
    equal(browser.js("return document.getElementById('notes').textContent"), " The link has frobnicate, gpu, beside, which cannot be set here.",
          "what a damaged link has")
    equal(browser.js("return document.getElementById('in-gpu').value"), "h100", "the kind of GPU")
    browser.js("document.querySelector('.skip').click()")
    equal(browser.js("return [document.activeElement.id, new URLSearchParams(location.hash.slice(1)).get('model')]"), ["verdict", "tiny"], "the skip link")
    browser.js("location.hash = 'model=tiny&gpus=many'")
    wait(browser, "return document.getElementById('in-gpus').value === 'many'", None, "the link's number of GPUs") # the page is told later
    browser.js("document.getElementById('fit-button').click()")
    wait(browser, "return document.getElementById('bad-gpus').textContent.includes('\"many\" is not')", None, "a refusal of fit at its field")


def slider_stops_are_whole(browser):
    values = browser.js("""
    const slide = document.getElementById("slide-batch");
    return Array.from({length: 8}, (_, i) => {
      slide.value = i;
      slide.dispatchEvent(new Event("input"));
      return document.getElementById("in-batch").value;
    })""")
    equal(values, ["1", "2", "3", "4", "5", "6", "7", "8"], "the first stops of the batch")


def config_is_read(browser):
    inner = json.loads((ROOT / "tests/models/nn/configs/gemma-3-1b.json").read_text())
    text = json.dumps({"model_type": "gemma3", "vision_config": {"hidden_size": 1152}, "text_config": inner})
    folder = Path(tempfile.mkdtemp())
    (folder / "config.json").write_text(text)
    browser.js("location.hash = 'model=gpt2'")
    browser.write("#config", str(folder / "config.json"))
    wait(browser, ENDED, "profile config.json --device meta", "a config.json")
    here = run("profile", "config.json", "--device", "meta", "--json", "-", cwd=folder)
    j = json.loads(here.stdout)
    equal(browser.js(VALUES, "#page .headline data"), [j["steady"]["peak"]], "the peak of a config.json")
    check(here.stderr, "this file's reader has something to say")
    equal(browser.js("return document.getElementById('notes').textContent"), here.stderr.strip(), "what its reader says")
    equal(json.loads(browser.js("return new URLSearchParams(location.hash.slice(1)).get('config')")), json.loads(text), "the link")


MESSAGE = """torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 224.00 MiB. GPU 0 has a total capacity of 23.64 GiB of which 12.00 MiB is
free. Including non-PyTorch memory, this process has 23.62 GiB memory in use. Of the allocated memory 22.80 GiB is allocated by PyTorch, and
300.00 MiB is reserved by PyTorch but unallocated.
"""


def message_is_explained(browser):
    """A pasted message, beside the set-up by a name of the Hub; a dropped log; and a name that nobody knows."""
    folder, place = Path(tempfile.mkdtemp()), "const p = document.getElementById('measured-result');"
    (folder / "error.txt").write_text(MESSAGE)
    (folder / "run.log").write_text("step 3 max_memory_allocated 20.5 GiB\n")
    browser.js("location.hash = 'model=meta-llama/Llama-3.1-8B&seq=4096&recipe=trl:rope=fused'")
    wait(browser, ENDED, "profile meta-llama/Llama-3.1-8B --seq 4096 --recipe trl:rope=fused --device meta", "a name of the Hub")
    browser.click("#measured summary")
    browser.click("#measured-button")
    wait(browser, place + "return p.textContent.includes('no message yet')", None, "no message")
    browser.js("document.getElementById('pasted').value = arguments[0]", MESSAGE)
    browser.click("#measured-button")
    options = ["meta-llama/Llama-3.1-8B", "--seq", "4096", "--recipe", "trl:rope=fused"]
    drop = """const data = new DataTransfer();
        data.items.add(new File(["step 3 max_memory_allocated 20.5 GiB\\n"], "run.log"));
        document.dispatchEvent(new DragEvent("drop", {dataTransfer: data, bubbles: true, cancelable: true}))"""
    for words, then in ((["oom", "error.txt", *options], drop), (["compare", "run.log", *options], "")):
        wait(browser, place + "return p.dataset.words === arguments[0]", " ".join(words), " ".join(words), seconds=120)
        here = run(*words, cwd=folder)
        equal(here.returncode, 0, f"{words}: {here.stderr}")
        equal(browser.js(place + "return p.querySelector('pre').textContent"), here.stdout, f"{words}: what is printed")
        equal(browser.js(place + "return p.querySelector('.note').textContent"), here.stderr.strip(), f"{words}: what is said beside it")
        browser.js(then)
    browser.js("location.hash = 'model=nobody/nothing'")
    wait(browser, "return document.getElementById('bad-model').textContent.endsWith(arguments[0])",
         "there is no such file; save nobody/nothing's config.json from huggingface.co/nobody/nothing and drop it here", "an unknown name")


def slider_answers_each_change(browser):
    """Eight rounds of five changes, each of which has an answer of its own; how long one takes is told, for a reader."""
    browser.js("location.hash = 'model=gpt3-175b'")
    wait(browser, ENDED, "profile gpt3-175b --device meta", "gpt3-175b")
    taken = []
    for _ in range(8):
        answers = browser.js("""
        const slide = document.getElementById("slide-seq"), page = document.getElementById("page"), answers = [];
        return (async () => {
          const began = performance.now();
          for (let i = 5; i < 10; i++) {
            const before = page.dataset.answer;
            slide.value = i;
            slide.dispatchEvent(new Event("input"));
            while (page.dataset.answer === before) await new Promise(resolve => setTimeout(resolve, 1));
            answers.push(page.dataset.answer);
          }
          return [performance.now() - began, answers];
        })()""")
        taken.append(answers[0] / 5)
        equal(len(set(answers[1])), 5, f"answers to five changes: {answers[1]}")
    print(f"a change of the slider takes {min(taken):.0f} ms")


def first_answer_asks_nobody():
    with Browser() as browser:
        browser.open(PAGE)
        taken = browser.js("""
        return (async () => {
          while (!document.querySelector("#page .hero")) await new Promise(resolve => setTimeout(resolve, 1));
          return performance.now();
        })()""")
        equal(browser.console(), [], "the console after loading")
        hosts = browser.js("return performance.getEntriesByType('resource').map(e => e.name).filter(n => !n.startsWith('blob:'))")
        equal(hosts, [], "requests")
    print(f"the first answer takes {taken:.0f} ms")


def firefox_has_the_same_figures():
    with Firefox() as browser:
        browser.open(PAGE)
        wait(browser, "return !!document.querySelector('#page .hero')", None, "a first answer in Firefox")
        values = {"model": "llama-3.1-8b"}
        for seed in range(SETUPS, SETUPS + 4):
            set_up_shows_the_programs_figures(browser, values, True)
            values = drawn(seed)
        asks_are_answered(browser, "06-relu-and-gelu")
        cells_print_what_is_quoted(browser, "06-relu-and-gelu")
        equal(browser.console(), [], "the console of Firefox")
        browser.js("console.error('planted'), setTimeout(() => { throw new Error('planted') })")
        end = time.time() + 10
        while len(browser.console()) < 2 and time.time() < end:
            time.sleep(0.05)
        equal(len(browser.console()), 2, "what is planted there")
    print("Firefox has the same figures")


def main():
    markdown_is_read()
    if lacking():
        print("skipped, without " + ", ".join(lacking()))
        return 77
    build()
    size = len(gzip.compress(PAGE.read_bytes()))
    print(f"the page has {size:,} bytes, compressed")
    check(size < 3e6, f"the page has {size} bytes, compressed")
    with Browser(width=390) as browser:
        browser.open(PAGE)
        wait(browser, "return !!document.querySelector('#page .hero')", None, "a first answer")
        for words in (["help"], ["profile", "--help", "all"], ["fit", "?"], ["plan", "gpt2"]):
            same_bytes(browser, words, " ".join(words))
        for seed in range(SETUPS):
            set_up_shows_the_programs_figures(browser, drawn(seed), seed % 4 == 0)
        cards_are_those_of_fit(browser)
        names_are_those_of_help(browser)
        class_finds_its_options(browser)
        refusal_stands_at_its_field(browser)
        every_option_has_a_field(browser)
        link_that_is_damaged(browser)
        slider_stops_are_whole(browser)
        config_is_read(browser)
        message_is_explained(browser)
        search_is_that_of_fit(browser)
        reads_well(browser)
        tape_is_that_of_explain(browser)
        training_is_that_of_the_program(browser)
        course_is_that_of_the_lessons(browser)
        if LONG:
            slider_answers_each_change(browser)
        equal(browser.console(), [], "the console")
    first_answer_asks_nobody()
    if LONG and FIREFOX:
        firefox_has_the_same_figures()
    elif LONG:
        print("skipped: Firefox, which is not installed")
    return done()


sys.exit(main())
