"""The pictures of --svg in a headless Chromium: no texts overlap or leave the page, titles name what differs, marks have
tooltips with exact bytes, and there is a dark variant of every colour."""
import itertools
import json
import re
import sys
import tempfile
import xml.etree.ElementTree as xml
from pathlib import Path
sys.path.insert(0, str(Path(__file__).parent.parent / "verbs"))
from browser import Browser, missing  # noqa: E402
from lib import check, done, equal, run  # noqa: E402

if missing():
    print("no " + ", no ".join(missing()))
    sys.exit(77)

FOLDER = Path(tempfile.mkdtemp())
SVG = "{http://www.w3.org/2000/svg}"
META = ["--device", "meta"]
GPT = ["gpt", "-l", 4, "-d", 128, "-b", 4, "-s", 64]
PICTURES = {
    "two steps": ["profile", *GPT, *META, "--optimizer", "adamw", "--checkpoint", "full"],
    "by time": ["profile", *GPT, "--device", "cpu", "--optimizer", "adamw"],
    "no steps": ["profile", *GPT, *META, "--optimizer", "none"],
    "a rank": ["profile", "llama-65b", *META, "--tp", 8, "--pp", 4, "--dtype", "bf16"],
    "refused": ["profile", *GPT, *META, "--capacity", "6MB"],
    "many": ["profile", "gpt2-medium", *META, "--optimizer", "adamw", "--amp", "bf16", "--checkpoint", "selective",
             "--offload", "cpu"],
    "sweep": ["sweep", *GPT, *META, "--over", "checkpoint=none,full,every=2", "--over", "act=relu,gelu"],
    "named": ["sweep", *GPT, *META, "--row", "none:", "--row", "a long name of a row: --checkpoint full"],
    "times": ["sweep", "mlp", "--steps", 1, "--over", "act=relu,gelu"],
    "batches": ["sweep", "gpt", "-l", 4, "-d", 128, "-s", 64, *META, "--capacity", "16MB", "--over", "batch=8,1,2"],
    "budget": ["plan", "gpt2", "-b", 8, "-s", 256, "--optimizer", "adamw", "--budget", "2GiB"],
}
OVERLAPS = """
    const page = document.documentElement.getBoundingClientRect();
    const boxes = [...document.querySelectorAll('text')].map(t => [t.textContent, t.getBoundingClientRect()]);
    const found = [];
    for (const [text, b] of boxes)
        if (b.left < 0 || b.top < 0 || b.right > page.width + 0.5 || b.bottom > page.height + 0.5)
            found.push(`${text} leaves the page`);
    for (const [i, [text, a]] of boxes.entries())
        for (const [other, b] of boxes.slice(i + 1))
            if (Math.min(a.right, b.right) - Math.max(a.left, b.left) > 0.5 &&
                Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top) > 4) found.push(`${text} on ${other}`);
    return found;"""


def draw(name):
    path = FOLDER / f"{name}.svg"
    args = PICTURES[name]
    p = run(*args, "--svg", path, "--json", "-")
    equal(p.returncode, 1 if name == "refused" else 0, f"status of {name}: {p.stderr}")
    return path, xml.parse(path).getroot(), json.loads(p.stdout)


def texts(root):
    return [t.text for t in root.iter(f"{SVG}text")]


def tips(root):
    return [t.text for t in root.iter(f"{SVG}title")]


drawn = {name: draw(name) for name in PICTURES}


def texts_do_not_overlap():
    for dark in (False, True):
        with Browser(width=1600, height=1000, dark=dark) as browser:
            for name, (path, root, _) in drawn.items():
                browser.open(path)
                equal(browser.js(OVERLAPS), [], f"{name}: texts")
                paper = browser.js("return getComputedStyle(document.querySelector('rect')).fill")
                equal(paper, "rgb(18, 23, 28)" if dark else "rgb(255, 255, 255)", f"{name}: page")
                ink = browser.js("return getComputedStyle(document.querySelector('text')).fill")
                # A text without a fill of its own has the root's.
                light = sum(map(int, re.findall(r"\d+", ink)[:3])) > 400
                equal(light, dark, f"{name}: title in {ink}")


def every_dark_colour_is_clear():
    """A colour of text or lines has a dark variant; those of areas are clear on both pages."""
    for name, (path, root, _) in drawn.items():
        mapped = set(re.findall(r'\[fill="(#[0-9a-f]{6})"\]', path.read_text()))
        used = {e.get("fill") for e in root.iter(f"{SVG}text")} | {e.get("stroke") for e in root.iter()}
        equal({c for c in used if c} - mapped - {"none"}, set(), f"{name}: colours without a dark variant")


def titles_name_what_differs():
    equal(tips(drawn["two steps"][1])[0], "gpt on meta: b=4 s=64 h=128 L=4, gelu, f32, adamw, checkpoint full", "title")
    equal(tips(drawn["many"][1])[0], "gpt2-medium on meta: b=1 s=1024 h=1024 L=24, gelu_tanh, f32, adamw, "
          "checkpoint selective, offload cpu, amp bf16", "title with options")
    equal(tips(drawn["sweep"][1])[0], "gpt: b=4 s=64 h=128 L=4, f32", "what the rows of a sweep have in common")
    equal(tips(drawn["batches"][1])[0], "gpt: s=64 h=128 L=4, gelu, f32", "rows that differ in the batch")
    for name, (_, root, _) in drawn.items():
        equal(texts(root)[0], tips(root)[0], f"{name}: the title is shown, too")
        check(root.find(f"{SVG}desc").text, f"{name}: a description")


def tooltips_have_exact_bytes():
    _, root, report = drawn["two steps"]
    check(f"{report['steady']['peak']:,} bytes, in backward" in " ".join(tips(root)), "the peak")
    most = max(p["by_category"]["parameter"] for p in report["phases"])
    check(f"parameter: at most {most:,} bytes" in tips(root), "the most of a category")
    _, root, report = drawn["sweep"]
    wanted = {f"{r['row']}, {what}: {r[key]:,} bytes" for r in report["rows"]
              for what, key in [("saved for backward", "saved"), ("peak", "peak")]}
    equal(set(tips(root)[1:]), wanted, "tooltips of bars")
    _, root, report = drawn["budget"]
    check(any(t.startswith(f"full: {report['budget']['presets']['full']['peak']:,} bytes") for t in tips(root)), "a preset")


def legends_have_no_empty_rows():
    for name, (_, root, _) in drawn.items():
        check("0 B" not in texts(root), f"{name}: a row of 0 B")


def sweeps_are_sorted_and_grouped():
    _, root, report = drawn["sweep"]
    peak = {r["row"]: r["peak"] for r in report["rows"]}
    found, group = [], None
    for t in texts(root):
        if t.startswith("checkpoint="):
            group = t
        elif t.startswith("act="):
            found.append(f"{group} {t}")
    equal(sorted(found), sorted(peak), "rows under their headings")
    for _, rows in itertools.groupby(found, key=lambda row: row.split()[0]):
        peaks = [peak[row] for row in rows]
        equal(peaks, sorted(peaks), "peaks in a group")
    equal([t for t in texts(drawn["batches"][1]) if t.startswith("batch=")], ["batch=1", "batch=2", "batch=8"],
          "rows by peak, those out of memory at the end")
    check("out of memory" in texts(drawn["batches"][1]), "the row that ran out of memory says so")


def init_is_narrow():
    for name in ["two steps", "by time", "a rank", "many"]:
        _, root, _ = drawn[name]
        lines = sorted({float(e.get("x1")) for e in root.iter(f"{SVG}line") if e.get("stroke-dasharray")})
        left, forward = lines[0], lines[1]
        check(0 < forward - left <= 0.041 * 860, f"{name}: init takes {forward - left} of 860")


for test in [texts_do_not_overlap, every_dark_colour_is_clear, titles_name_what_differs, tooltips_have_exact_bytes,
             legends_have_no_empty_rows, sweeps_are_sorted_and_grouped, init_is_narrow]:
    test()
done()
