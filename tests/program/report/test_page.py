"""The page of --html in a headless Chromium: its numbers are those of the JSON, and what a reader does to it has the
effect that it says. Skipped (77) without Chromium and its driver."""
import json
import re
import sys
import tempfile
import time
from pathlib import Path
sys.path.insert(0, str(Path(__file__).parent.parent / "verbs"))
from browser import Browser, missing  # noqa: E402
from lib import check, done, equal, run  # noqa: E402

FOLDER = Path(tempfile.mkdtemp())
GPT = ["gpt", "-l", 4, "-d", 64, "-a", 2, "-b", 2, "-s", 32, "--vocab", 100, "--optimizer", "adamw", "--device", "meta"]
ENTER, RIGHT, END = "\ue007", "\ue014", "\ue010"

# The numbers that a table's rows, or its sum, hold as <data>.
VALUES = "return [...document.querySelectorAll(arguments[0])].map(e => Number(e.value))"
TEXTS = "return [...document.querySelectorAll(arguments[0])].map(e => e.textContent)"


def make(name, *args, status=0):
    """A page, and the object of the same run with its events."""
    page, object_ = FOLDER / (name + ".html"), FOLDER / (name + ".json")
    p = run("profile", *args, "-q", "--html", page, "--json", object_)
    equal(p.returncode, status, f"status of {args}: {p.stderr}")
    p = run("profile", *args, "-q", "--timeline", "--json", FOLDER / (name + "-events.json"))
    equal(p.returncode, status, f"status of {args} with --timeline: {p.stderr}")
    return page, json.loads(object_.read_text()), json.loads((FOLDER / (name + "-events.json")).read_text())["timeline"]


def bytes_in(text):
    """The number in "1,234 bytes"."""
    return int(re.search(r"[\d,]+", text).group().replace(",", ""))


def alive_by_category(events, n):
    """{category: bytes}, and the number of storages, after event n."""
    storages = {}
    for e in events[:n + 1]:
        if e["kind"] == "free":
            del storages[e["storage"]]
        elif e["kind"] != "oom":
            storages[e["storage"]] = e["category"], e["allocated"]
    by = {}
    for category, allocated in storages.values():
        by[category] = by.get(category, 0) + allocated
    return by, len(storages)


def quiet(browser, what):
    equal(browser.console(), [], f"the console after {what}")


def check_alive(browser, events, n, what):
    """The table of what is alive lists the storages of event n, and sums to the curve."""
    by, count = alive_by_category(events, n)
    show_all = browser.js("return !!document.querySelector('#alive tfoot button')")
    if show_all:
        browser.click("#alive tfoot button")
    rows = browser.js("return [...document.querySelectorAll('#alive tbody tr')].map("
                      "r => [r.dataset.category, Number(r.dataset.bytes)])")
    got = {}
    for category, allocated in rows:
        got[category] = got.get(category, 0) + allocated
    equal(got, {k: v for k, v in by.items() if v}, f"{what}: bytes by category in the table")
    equal(browser.js(VALUES, "#alive tfoot data"), [events[n]["current"]], f"{what}: the table's sum")
    equal(browser.js(VALUES, "#alive .instant data"), [events[n]["current"]], f"{what}: the curve")
    total = browser.js("return document.querySelector('#alive tfoot span').textContent")
    equal(bytes_in(total), count, f"{what}: storages")


def chosen_event(browser):
    return int(browser.js("return document.querySelector('.frame').getAttribute('aria-valuenow')"))


# ---- the tests ----

def numbers_are_those_of_the_json(browser, page, j, events):
    browser.open(page)
    quiet(browser, "loading")
    steady = j["steady"]
    used = {e["category"] for e in events if e["kind"] in ("alloc", "recategory")}
    terms = [steady["peak"], *(n for name, n in steady["by_category"].items() if name in used)]
    equal(browser.js(VALUES, "#equation .bytes data"), terms, "the equation")
    equal(terms[0], sum(terms[1:]), "its sum")
    for legend in ("#equation", "#alive .legend"):
        shown = browser.js("return [...document.querySelectorAll(arguments[0] + ' .swatch')].map(s => s.className)", legend)
        equal({name.removeprefix("swatch c-") for name in shown}, used, f"the categories of {legend}")
    equal([bytes_in(text) for text in browser.js(TEXTS, "#equation .bytes data")], terms, "the equation, as text")
    equal(browser.js(VALUES, ".headline data"), [steady["peak"]], "the headline")
    equal(browser.js(VALUES, ".facts data")[:2], [j["saved"]["bytes"], steady["reserved"]], "the facts")
    g = j["growth"]
    rows = [g["saved"], *(n for n in [g["before"], g["rounding"], g["rests"], g["output"], g["input"], g["workspace"],
                                      g["residual"]] if n), g["measured"]]
    equal(browser.js(VALUES, "[aria-label='Growth over forward'] data"), rows, "what forward left behind")
    f = j["formula"]
    parts = [t["bytes"] for t in f["terms"]] + [r["bytes"] for r in f["residual"]]
    equal(browser.js(VALUES, "[aria-label='Closed formula'] data"), [*parts, sum(parts), j["saved"]["bytes"], f["unexplained"]],
          "the closed formula")
    for name, phases in (("Steady step", steady["phases"]), ("First step", j["phases"])):
        used = [c for c in phases[0]["by_category"] if any(p["by_category"][c] or p["at_peak"][c] for p in phases)]
        wanted = [p["by_category"][c] for c in used for p in phases]
        wanted += [p[key] for key in ("requested", "allocated", "active", "peak", "reserved") for p in phases]
        equal(browser.js(VALUES, f"[aria-label='{name}'] data"), wanted, name)
    check_alive(browser, events, j["peak"]["event"], "at the peak")


def place_of(browser, event):
    """Where the middle of an event is in the window, while all events are shown."""
    return browser.js("""
        const f = document.querySelector(".frame");
        f.scrollIntoView({block: "center", behavior: "instant"});
        const r = f.getBoundingClientRect(), n = Number(f.getAttribute("aria-valuemax")) + 1;
        const [, , width] = f.querySelector("svg").getAttribute("viewBox").split(" ").map(Number);
        return [r.left + 64 + (width - 64 - 12) * (arguments[0] + 0.5) / n, r.top + 200]""", event)


def click_lists_what_is_alive(browser, events):
    for part in (0.1, 0.33, 0.5, 0.8, 0.999):
        wanted = int(part * len(events))
        browser.pointer(("move", *place_of(browser, wanted)), ("down",), ("up",))
        got = chosen_event(browser)
        check(abs(got - wanted) <= 1 + len(events) // 400, f"a click at {wanted} chose event {got}")
        check_alive(browser, events, got, f"a click at event {got}")
    browser.click("#alive input[type=checkbox]")
    check_alive(browser, events, chosen_event(browser), "each storage in its own row")
    rows = browser.js("return document.querySelectorAll('#alive tbody tr').length")
    equal(rows, alive_by_category(events, chosen_event(browser))[1], "a row for each storage")
    browser.click("#alive input[type=checkbox]")
    quiet(browser, "clicks")


def keys_move_and_zoom(browser, events, steady):
    browser.js("document.querySelector('.frame').focus()")
    before = chosen_event(browser)
    browser.keys("p" + RIGHT * 3)
    peak = next(i for i, e in enumerate(events) if e["current"] == max(x["current"] for x in events))
    equal(chosen_event(browser), peak + 3, f"P, then three times right, from {before}")
    check_alive(browser, events, peak + 3, "after keys")
    browser.js("document.querySelector('.frame').focus()")
    browser.keys(END)
    equal(chosen_event(browser), len(events) - 1, "the last event")
    shown = "return [...document.querySelectorAll('.plot text')].map(e => e.textContent).find(t => /^events/.test(t))"
    whole = browser.js(shown)
    browser.keys("p+++")
    near = browser.js(shown)
    first, last = (int(n.replace(",", "")) for n in re.findall(r"[\d,]+", near))
    check(near != whole and last - first < len(events) / 6 and first <= peak <= last, f"zoomed in: {near} of {whole}")
    browser.keys("0")
    equal(browser.js(shown), whole, "all events again")
    a, b = len(events) // 2, len(events) * 3 // 4
    browser.pointer(("move", *place_of(browser, a)), ("down",), ("move", *place_of(browser, b)), ("up",))
    first, last = (int(n.replace(",", "")) for n in re.findall(r"[\d,]+", browser.js(shown)))
    check(abs(first - a) < 9 and abs(last - b) < 9, f"dragged from {a} to {b}: {first} to {last}")
    pressed = "return [...document.querySelectorAll('[aria-label=Shown] [aria-pressed=true]')].map(e => e.textContent)"
    equal(browser.js(pressed), [], "no step is shown whole")
    browser.click("[aria-label=Shown] [data-value='2']")
    first = int(re.search(r"events ([\d,]+) to", browser.js(shown)).group(1).replace(",", ""))
    equal(first, steady, "the second step begins at its first event")
    browser.click("[aria-label=Shown] [data-value='0']")
    equal((browser.js(shown), browser.js(pressed)), (whole, ["both steps"]), "both steps")
    quiet(browser, "keys")


def saved_storages_are_filtered_and_sorted(browser, j):
    tensors = j["saved"]["tensors"]
    equal(browser.js(VALUES, "#saved tfoot data"), [j["saved"]["bytes"]], "the sum of the tree")
    top = browser.js("return [...document.querySelectorAll('#saved tbody tr')].filter(r => r.querySelector('th')"
                     ".style.getPropertyValue('--depth') === '0').map(r => Number(r.dataset.bytes))")
    equal(sum(top), j["saved"]["bytes"], "the branches of the tree sum to it")
    for op in sorted({t["op"] for t in tensors}):
        browser.js("const s = document.querySelector('[data-filter=op]'); s.value = arguments[0];"
                   "s.dispatchEvent(new Event('change'))", op)
        wanted = sum(t["bytes"] for t in tensors if t["op"] == op)
        equal(browser.js(VALUES, "#saved tfoot data"), [wanted], f"the sum of {op}")
    browser.js("const s = document.querySelector('[data-filter=op]'); s.value = ''; s.dispatchEvent(new Event('change'))")
    browser.write("[data-filter=module]", "mlp.act")
    wanted = [t for t in tensors if "mlp.act" in t["module"]]
    equal(browser.js(VALUES, "#saved tfoot data"), [sum(t["bytes"] for t in wanted)], "the sum of mlp.act")
    check(f"{len(wanted)} storages of {len(tensors)}" in browser.js(TEXTS, ".found")[0], "how many are shown")
    browser.js("const s = document.querySelector('[data-filter=module]'); s.value = ''; s.dispatchEvent(new Event('input'))")

    browser.click("[data-value=list]")
    rows = "return [...document.querySelectorAll('#saved tbody tr.leaf')].map(r => r.dataset[arguments[0]])"
    sizes = [int(n) for n in browser.js(rows, "bytes")]
    equal(sizes, sorted(sizes, reverse=True), "the list is sorted by bytes")
    equal(sum(sizes), j["saved"]["bytes"], "the sum of the list's rows")
    browser.click("#saved thead th:nth-child(8) button")
    equal([int(n) for n in browser.js(rows, "bytes")], sorted(sizes), "least bytes first")
    browser.click("#saved thead th:nth-child(2) button")
    ops = browser.js(rows, "op")
    equal(ops, sorted(ops), "the list is sorted by op")
    equal(browser.js("return document.querySelector('#saved [aria-sort]').textContent"), "op", "the sorted column says so")
    quiet(browser, "sorting")


def tape_of_a_block_is_to_scale(browser, j):
    own = [t for t in j["saved"]["tensors"] if t["module"].startswith("gpt.h.0.")]
    bars = "return [...document.querySelectorAll('#tape .kept')].map(e => [Number(e.dataset.bytes), e.firstChild.offsetWidth])"
    paid = [(n, width) for n, width in browser.js(bars) if n]
    equal(sorted(n for n, _ in paid), sorted(t["bytes"] for t in own), "what the tape's ops keep")
    most, longest = max(paid)
    check(all(abs(width - max(2, longest * n / most)) <= 1 for n, width in paid), f"bars are to scale: {paid}")
    shared = [s for t in j["saved"]["tensors"] for s in t["also"] if s["module"].startswith("gpt.h.0.")]
    equal(len(browser.js(TEXTS, "#tape .shared")), len(shared), "what they keep at no cost")


def rows_tell_who_keeps_them_and_why(browser, j, more):
    tensors = j["saved"]["tensors"]
    shared = next(t for t in tensors if t["also"] and t["freed_after"])
    browser.click(f"#saved [data-path='list/{shared['storage']}']")
    text = browser.js(TEXTS, "#saved .told")[0]
    for word in [shared["op"], shared["role"], shared["also"][0]["op"], more["ops"][shared["op"]]["formula"],
                 more["ops"][shared["op"]]["why"], f"after {shared['freed_after']['op']}'s backward"]:
        check(word in text, f"{word!r} in {text!r}")
    quiet(browser, "opening a row")


def theme_follows_the_system_and_the_button(browser, page):
    paper = "return getComputedStyle(document.body).backgroundColor"
    browser.scheme(True)
    browser.open(page)
    dark = browser.js(paper)
    browser.click("#theme")
    light = browser.js(paper)
    browser.scheme(False)
    equal(browser.js(paper), light, "the button's choice holds")
    browser.open(page)
    equal(browser.js(paper), light, "light by the system")
    check(dark != light, f"dark {dark}, light {light}")


def two_runs_are_compared(browser, page, j, other_page, other):
    browser.open(page)
    for path, charts in [(other_page, 2), (other_page.with_suffix(".json"), 0),
                         (other_page.with_name(other_page.stem + "-events.json"), 2)]:
        browser.write("#other", str(path.resolve()))
        browser.js("return new Promise(done => setTimeout(done, 300))")
        equal(browser.js("return document.querySelectorAll('#comparison .chart').length"), charts, f"charts with {path.name}")
        rows = browser.js(VALUES, "#comparison [aria-label='Two runs'] tr:first-child data")
        a, b = j["steady"]["peak"], other["steady"]["peak"]
        equal(rows, [a, b, b - a], f"the peaks beside each other, of {path.name}")
        apart = browser.js(VALUES, "#comparison [aria-label='Differences in what is kept'] td:last-child data")
        equal(sum(apart), other["saved"]["bytes"] - j["saved"]["bytes"], "the sum of all differences in what is kept")
    browser.write("#other", str(Path(__file__).resolve()))
    browser.js("return new Promise(done => setTimeout(done, 300))")
    check("is not a report" in browser.js(TEXTS, "[role=alert]")[0], "a file that is not a report is refused")
    quiet(browser, "comparing")


def chart_stands_above_the_fold(page):
    for width, height in ((1280, 800), (800, 1000)):
        with Browser(width=width, height=height) as browser:
            browser.open(page)
            bottom = browser.js("return document.querySelector('.plot').getBoundingClientRect().bottom")
            check(bottom <= height, f"at {width} x {height} the chart ends at {bottom}")


def phone_shows_it_without_scrolling_sideways(page, other_page):
    with Browser(width=390, height=844) as phone:
        phone.open(page)
        top = phone.js("return document.querySelector('.plot').getBoundingClientRect().top")
        check(top < 700, f"on a phone the chart begins at {top}")
        phone.write("#other", str(other_page.resolve()))
        phone.js("return new Promise(done => setTimeout(done, 300))")
        wide = phone.js("return [...document.querySelectorAll('#comparison .scroll')].map(e => [e.scrollWidth, e.clientWidth])")
        equal([a for a, b in wide if a > b], [], "tables of the comparison that are wider than a phone")
        phone.open(page)
        equal(phone.js("return document.documentElement.scrollWidth"), 390, "the width on a phone")
        small = phone.js("return [...document.querySelectorAll('button, select')].filter(e => e.offsetParent && "
                         "e.getBoundingClientRect().height < 24).map(e => e.outerHTML)")
        equal(small, [], "buttons below 24 pixels")
        quiet(phone, "loading on a phone")


def resized_it_reports_no_error(browser, page):
    """An observer that resizes what it observes is an error of the window, which no console shows."""
    browser.open(page)
    browser.js("window.heard = []; window.addEventListener('error', e => window.heard.push(e.message))")
    for width in (1200, 420, 1280, 300, 1280):
        browser.cdp("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False)
        time.sleep(0.3)
    equal(browser.js("return window.heard"), [], "errors of the window while it is resized")


def everything_has_a_name(browser, page):
    browser.open(page)
    tree = browser.cdp("Accessibility.getFullAXTree")["nodes"]
    bare = [node["role"]["value"] for node in tree if not node.get("ignored") and
            node["role"]["value"] in ("button", "slider", "combobox", "searchbox", "checkbox", "region", "img",
                                      "group") and
            not node.get("name", {}).get("value")]
    equal(bare, [], "controls without an accessible name")


def other_kinds_of_profile_open_without_an_error(browser):
    for name, args, status in [
            ("linear", ["linear", "-b", 2, "-d", 16], 0),
            ("refused", ["gpt", "-l", 3, "-d", 64, "-a", 2, "-b", 8, "-s", 128, "--capacity", "13MB", "--device", "meta"], 1),
            ("rank", [*GPT, "--tp", 2, "--pp", 2], 0), ("inference", [*GPT, "--inference"], 0),
            ("checkpoint", [*GPT, "--checkpoint", "full"], 0), ("compress", [*GPT, "--compress", "8bit"], 0)]:
        page, j, events = make(name, *args, status=status)
        browser.open(page)
        quiet(browser, name)
        instant = j["out_of_memory"] or j["peak"]
        check_alive(browser, events, instant["event"], name)
        equal(browser.js(VALUES, "#equation .bytes data")[0], instant["allocated"], f"the headline of {name}")
    browser.open(FOLDER / "linear.html")
    browser.click("[data-value=time]")
    check("s of" in " ".join(browser.js(TEXTS, ".plot text")), "the time axis")
    quiet(browser, "the time axis")


def make_other(name, *args):
    page, object_ = FOLDER / (name + ".html"), FOLDER / (name + ".json")
    p = run(name, *args, "-q", "--html", page, "--json", object_)
    equal(p.returncode, 0, f"status of {name} {args}: {p.stderr}")
    return page, json.loads(object_.read_text())


def sweep_is_sorted_and_compared(browser):
    page, j = make_other("sweep", "gpt", "-l", 4, "-d", 64, "-a", 2, "-b", 8, "-s", 128, "--vocab", 100, "--device", "meta",
                         "--row", "gelu:", "--row", "relu: --act relu", "--row", "again: --checkpoint full", "--row",
                         "small: --capacity 4MB")
    browser.open(page)
    quiet(browser, "a sweep")
    ran = [row for row in j["rows"] if not row["out_of_memory"]]
    check(0 < len(ran) < len(j["rows"]), "some rows ran out of memory, and others did not")
    column = "#sweep tbody td:nth-child({}) data"
    equal(browser.js(VALUES, column.format(3)), [row["peak"] for row in ran], "peaks as given")
    equal(browser.js(VALUES, column.format(4)), [row["peak"] - ran[0]["peak"] for row in ran], "differences from the first")
    equal(browser.js(VALUES, column.format(5)), [row["saved"] for row in ran], "saved bytes")
    equal(len(browser.js(TEXTS, "#sweep .bad")), len(j["rows"]) - len(ran), "rows that ran out of memory")
    equal(browser.js(VALUES, ".headline data"), [min(row["peak"] for row in ran), max(row["peak"] for row in ran)], "the headline")
    browser.click("[data-value=saved]")
    equal(browser.js(VALUES, column.format(5)), sorted(row["saved"] for row in ran), "least saved first")
    browser.js("const s = document.querySelector('#base'); s.value = 1; s.dispatchEvent(new Event('change'))")
    equal(browser.js(VALUES, column.format(4)), [peak - ran[1]["peak"] for peak in browser.js(VALUES, column.format(3))],
          "differences from the second")
    quiet(browser, "sorting a sweep")


def plan_shows_formulas_and_measurements(browser):
    page, j = make_other("plan", "gpt2", "-s", 128, "--capacity", "4GiB", "--budget", "3GiB", "--kv", 3, "--tokens", "1B",
                         "--flops-rate", "312T")
    browser.open(page)
    quiet(browser, "a plan")
    step = j["step"]
    equal(browser.js(VALUES, "#equation .bytes data"), [step["peak"], *(n for n in step["at_peak"].values() if n)], "the step")
    check(len(j["formulas"]) == 7, "formulas of a plan with --kv")
    for f in j["formulas"]:
        wanted = [f["value"], *(r["amount"] for r in f["rows"]), f["expected"], f["measured"], f["unexplained"]]
        equal(browser.js(VALUES, f"[aria-label='{f['name']}'] data"), wanted, f["name"])
    equal(browser.js(VALUES, "[aria-label='Bytes for each parameter'] data"), [r["bytes"] for r in j["regimes"]], "regimes")
    facts = " ".join(browser.js(TEXTS, ".facts dd"))
    for number in (j["fits"]["batch"]["largest"], j["fits"]["seq"]["largest"]):
        check(f"{number:,}" in facts, f"{number:,} in {facts}")
    b = j["budget"]
    peaks = [b["peak"], *(p["peak"] for p in b["front"]), *(p["peak"] for p in b["presets"].values())]
    equal(browser.js(VALUES, "[aria-label='Peaks and what they cost'] td:nth-child(2) data"), peaks, "peaks of budgets")
    for args in (["mlp", "-b", 2, "-s", 8, "-d", 16], ["gpt", "-l", 4, "--tp", 2, "--pp", 2], ["block", "--capacity", "1MB"]):
        browser.open(make_other("plan", *args)[0])
        quiet(browser, f"a plan of {args}")


def medium_opens_at_once(browser):
    """Under a second, the best of three: the machine may be busy."""
    page = FOLDER / "medium.html"
    p = run("profile", "gpt2-medium", "-b", 4, "-s", 1024, "--dtype", "bf16", "--optimizer", "adamw", "--device", "meta",
            "-q", "--html", page)
    equal(p.returncode, 0, f"status of gpt2-medium: {p.stderr}")
    opened = min(browser.open(page) for _ in range(3))
    print(f"a report of GPT-2 medium: {page.stat().st_size:,} bytes, open after {opened:.0f} ms")
    check(opened < 1000, f"a report of GPT-2 medium is open after {opened:.0f} ms")
    quiet(browser, "GPT-2 medium")
    # Gradients are 0 at this peak and large elsewhere in the chart: they have a place in both legends.
    for legend in ("#equation .term:has(.c-gradient) .bytes data", "#alive .legend span:has(.c-gradient) data"):
        equal(browser.js(VALUES, legend), [0], f"gradients in {legend}")


def main():
    page, j, events = make("gelu", *GPT, "--act", "gelu")
    other_page, other, _ = make("relu", *GPT, "--act", "relu")
    more = json.loads(re.search(r'id="more">(.*?)</script>', page.read_text(), re.S).group(1))
    with Browser() as browser:
        numbers_are_those_of_the_json(browser, page, j, events)
        click_lists_what_is_alive(browser, events)
        keys_move_and_zoom(browser, events, j["steady"]["event"])
        saved_storages_are_filtered_and_sorted(browser, j)
        rows_tell_who_keeps_them_and_why(browser, j, more)
        tape_of_a_block_is_to_scale(browser, j)
        theme_follows_the_system_and_the_button(browser, page)
        two_runs_are_compared(browser, page, j, other_page, other)
        everything_has_a_name(browser, page)
        resized_it_reports_no_error(browser, page)
        other_kinds_of_profile_open_without_an_error(browser)
        sweep_is_sorted_and_compared(browser)
        plan_shows_formulas_and_measurements(browser)
        medium_opens_at_once(browser)
    chart_stands_above_the_fold(page)
    phone_shows_it_without_scrolling_sideways(page, other_page)
    done()


if missing():
    print("no " + ", no ".join(missing()))
    sys.exit(77)
main()
