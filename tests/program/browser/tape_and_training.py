"""The tape and training in the page are those of the program."""
import json
import os
import re
import subprocess
import tempfile
from pathlib import Path
from urllib.parse import urlencode
from common import VALUES, reads_well, same_bytes, wait
from lib import MEMTAPE, check, equal

LONG = os.environ.get("MTT_LONG") == "1"
MLP = "x=64x32,w1=32x128,w2=128x32"
EXPRESSIONS = [("h = relu(x @ w1)\ny = h @ w2", MLP), ("h = checkpoint(gelu(x @ w1))\ny = h @ w2", MLP), ("relu_inplace(x*2)@w", "x=3x4,w=4x5"),
               ("s = softmax(q @ permute(k, 1, 0))\ns @ v", "q=9x4,k=9x4,v=9x4"), ("layer_norm(x, w)", "x=8x16,w=16")]
TEXT = "Forward fills the tape, backward empties it, and the peak is where the two meet.\n" * 12
TRAIN = ["train", "--data", "text.txt", "--layers", "2", "--hidden", "16", "--heads", "2", "--seq", "16", "--batch", "4"]


def storages_are_named(browser):
    """Of the checkpoint's backward each storage is a leaf, the gradient of something, or computed again."""
    text = EXPRESSIONS[1][0]
    browser.js("location.hash = arguments[0]", urlencode({"view": "tape", "expr": text, "shapes": MLP, "step": 5}))
    rows = "return [...document.querySelectorAll('.answer-of-tape:not([hidden]) tbody th, .answer-of-tape:not([hidden]) tbody td:first-child')].map(e => e.textContent)"
    title = "return document.getElementById('moment').textContent"
    wait(browser, f"{title}.includes('Computed again: x @ w1')", None, "the step that computes again")
    equal(sorted(browser.js(rows)), sorted(["x", "w1", "w2", "h @ w2", "gradient of y", "gradient of w2", "gradient of gelu(x @ w1)", "x @ w1, computed again"]),
          "names of the storages")


def tape_is_that_of_explain(browser):
    for text, shapes in EXPRESSIONS if LONG else EXPRESSIONS[1:3]:
        words = ["explain", "--expr", text, "--shapes", shapes, "--device", "meta"]
        browser.js("location.hash = arguments[0]", urlencode({"view": "tape", "expr": text, "shapes": shapes}))
        wait(browser, "return document.querySelector('.side-tape').dataset.words === arguments[0] && !!document.querySelector('.keeps')",
             "\n".join(words), text)
        j = json.loads(same_bytes(browser, [*words, "--json", "-"], f"{text} as JSON").stdout)
        kept = sum(k["bytes"] for op in j["ops"] for k in op["keeps"] if k["pays"])
        before = next((i for i, e in enumerate(j["timeline"]) if e["phase"]), len(j["timeline"]))
        moments = [before, *(step["events"] for step in j["steps"]), len(j["timeline"])]
        for i, events in enumerate(moments):
            browser.js("const s = document.getElementById('step'); s.value = arguments[0]; s.dispatchEvent(new Event('input'))", i)
            equal(browser.js(VALUES, ".chart-of-tape .keeps data")[0], kept, f"{text}: what is kept")
            equal(browser.js(VALUES, ".chart-of-tape:not([hidden]) .instant data"), [j["timeline"][events - 1]["current"]], f"{text}: bytes at moment {i}")
            rows = browser.js(VALUES, ".answer-of-tape:not([hidden]) table data")
            equal(rows[-1], sum(rows[:-1]), f"{text}: storages at moment {i}")
    storages_are_named(browser)
    browser.js("location.hash = arguments[0]", urlencode({"view": "tape", "expr": "x @", "shapes": "x=3x4"}))
    wait(browser, "return /need a number/.test(document.querySelector('.side-tape .bad').textContent)", None, "a refusal")
    equal(browser.js("return [...document.querySelectorAll('#view-tape [aria-invalid]')].map(e => e.tagName)"), ["TEXTAREA"], "the refused field")
    browser.js("location.hash = 'view=tape'")
    wait(browser, "return document.querySelectorAll('.keeps').length === 2", None, "two tapes")
    tops = browser.js("return ['.side-tape', '.chart-of-tape', '.answer-of-tape'].flatMap(s => [...document.querySelectorAll(s)]).map(e => e.getBoundingClientRect().top)")
    equal(tops, sorted(tops), "on a phone: both expressions, both charts, both tapes")
    browser.write("#step", "\ue014\ue014")
    equal(browser.js("return document.getElementById('step').value"), "2", "the step, by keys")
    reads_well(browser)


def losses(text):
    return [float(loss) for loss in re.findall(r"^step \S+ +loss (\S+)", text, re.M)]


def training_is_that_of_the_program(browser):
    folder = Path(tempfile.mkdtemp())
    (folder / "text.txt").write_text(TEXT)
    in_page = """return (async () => {
      const files = {"text.txt": new TextEncoder().encode(arguments[0])}, [words, steps] = [arguments[1], arguments[2]];
      const whole = await memtape([...words, "--steps", steps, "--save", "/dev/saved"], files);
      let resumed = [], part = null;
      do {
        part = await memtape([...words, ...resumed, "--steps", steps, "--save", "/dev/saved"], files, {seconds: 0, columns: 80, told() {}});
        files.run = part.saved, resumed = ["--resume", "run"];
        if (part.status && part.status !== 130) return [whole.out, part.err];
      } while (part.status);
      return [whole.out + whole.err, part.saved.length && part.saved.every((byte, i) => byte === whole.saved[i])];
    })()"""
    for options in [[], ["--optimizer", "lion", "--checkpoint", "full", "--act", "relu"]][:2 if LONG else 1]:
        here = subprocess.run([MEMTAPE, *TRAIN, *options, "--steps", "8"], capture_output=True, text=True, cwd=folder)
        out, same = browser.js(in_page, TEXT, [*TRAIN, *options], "8")
        pairs = list(zip(losses(out), losses(here.stdout), strict=True))
        equal(len(pairs), 8, f"losses of {options}: {out}{here.stdout}")
        check(all(abs(a - b) < 2e-4 for a, b in pairs), f"losses in the page and natively: {pairs}")
        equal(same, True, f"stopped after each step and continued, the saved run has the same bits: {options}")
    view_trains(browser)


def stop_ends_what_does_not_begin(browser):
    """With a width of 10,000 no step is reached."""
    browser.js("document.getElementById('train-hidden').value = 10000")
    browser.click("#train-go")
    browser.click("#train-stop")
    wait(browser, "return !document.getElementById('train-go').hidden", None, "the end of what does not begin")
    equal(browser.js("return [document.getElementById('train-go').textContent, document.getElementById('train-bad').textContent]"), ["Train", ""], "what is shown then")


def memory_is_that_of_the_program(browser):
    """The picture's chosen event is the peak of the program's profile of what is trained."""
    wait(browser, "return !!document.querySelector('#train-memory .area')", None, "a picture of memory")
    caption = browser.js("return document.getElementById('train-profiled').textContent")
    p = subprocess.run([MEMTAPE, *caption.split()[1:], "--json", "-"], capture_output=True, text=True, check=True)
    equal(browser.js(VALUES, "#train-memory .instant data"), [json.loads(p.stdout)["steady"]["peak"]], f"the peak of: {caption}")


def view_trains(browser):
    shown = "return document.getElementById('train-%s').textContent"
    browser.js("location.hash = 'view=train'")
    wait(browser, "return !!document.getElementById('train-go')", None, "the view of training")
    if LONG:
        stop_ends_what_does_not_begin(browser)
    browser.js("""document.getElementById('train-hidden').value = 16, document.getElementById('train-seq').value = 16;
                  document.getElementById('train-steps').value = 'x'""")
    browser.click("#train-go")
    wait(browser, "return document.getElementById('train-bad').textContent.includes('--steps')", None, "a refusal")
    equal(browser.js("return document.getElementById('train-bad').parentElement.querySelector('[aria-invalid]').id"), "train-steps", "the refused field")
    browser.js("document.getElementById('train-text').value = arguments[0]", TEXT)
    browser.js("document.getElementById('train-steps').value = arguments[0]", 100000 if LONG else 12)
    browser.js("document.getElementById('train-go').focus()")
    browser.keys("\ue007")
    wait(browser, "return document.activeElement.id === 'train-stop'", None, "the focus on the button that is there")
    memory_is_that_of_the_program(browser)
    if LONG:
        wait(browser, "return /^step \\d+.*loss \\d/.test(document.getElementById('train-now').textContent)", None, "a step and its loss")
        browser.click("#train-stop")
        wait(browser, "return !document.getElementById('train-go').hidden", None, "the end of the slice")
        equal(browser.js(shown % "go"), "Continue", "what the button says")
        reads_well(browser)
        step = int(re.match(r"step (\d+)", browser.js(shown % "now"))[1])
        browser.click("#train-go")
        wait(browser, "return Number(/\\d+/.exec(document.getElementById('train-now').textContent)[0]) > arguments[0]", step, "steps after the stop")
        browser.click("#train-stop")
        wait(browser, "return /^Forward fills ./.test(document.getElementById('train-wrote').textContent)", None, "what it writes")
    else:
        wait(browser, "return /held-out/.test(document.getElementById('train-end').textContent)", None, "the end of training")
        wait(browser, "return /^Forward fills ./.test(document.getElementById('train-wrote').textContent)", None, "what it writes")
        reads_well(browser)
