"""The course in the page: every command that runs there prints what the lesson quotes, exercises are checked, and progress stays."""
import json
import os
import re
import sys
from pathlib import Path
from common import reads_well, wait
from lib import check, equal

ROOT = Path(__file__).resolve().parents[3]
LESSONS = ROOT / "docs/lessons"
LONG = os.environ.get("MTT_LONG") == "1"
EXAMPLES = ["build/examples/" + name for name in re.findall(r"^EXAMPLE\((\w+),", (ROOT / "program/browser/examples.def").read_text(), re.M)]
SHOWN = "return document.getElementById('view-course').dataset.lesson === arguments[0]"
RUN_ALL = """return (async () => {
  const ran = [];
  for (const cell of document.querySelectorAll(".cell")) {
    const pre = cell.querySelector("pre"), quoted = pre.textContent, button = cell.querySelector("button");
    if (button) {
      button.click();
      while (cell.dataset.ran === undefined) await new Promise(resolve => setTimeout(resolve, 5));
    }
    ran.push([cell.dataset.command, quoted, button ? pre.textContent : null, cell.querySelector(".ran").textContent]);
  }
  return ran;
})()"""
ANSWER = """const place = document.querySelectorAll(".ask")[arguments[0]];
place.querySelector("input").value = arguments[1];
place.querySelector("form").requestSubmit();
return place.querySelector(".said").textContent"""


def commands_of(lesson):
    """How many commands it quotes."""
    return len(re.findall(r"^ *\$ ", "".join(re.findall(r"^ *```console\n(.*?)^ *```$", (LESSONS / (lesson + ".md")).read_text(), re.S | re.M)), re.M))


def show(browser, lesson):
    browser.js("location.hash = 'view=course&lesson=' + arguments[0]", lesson)
    wait(browser, SHOWN, lesson, lesson)


def plain(text):
    return [" ".join(line.split()) for line in text.splitlines() if line.strip() and line.strip() != "..."]


def cells_print_what_is_quoted(browser, lesson):
    show(browser, lesson)
    ran = browser.js(RUN_ALL)
    equal(len(ran), commands_of(lesson), f"{lesson}: cells")
    for command, quoted, printed, why in ran:
        if printed is None:
            check(why and command not in EXAMPLES, f"{lesson}: {command} does not run, and says {why!r}")
            continue
        missing = [line for line in plain(quoted) if not any(re.fullmatch(re.escape(line).replace("…", ".*"), p) for p in plain(printed))]
        equal(missing, [], f"{lesson}: {command} prints in the page")
    return sum(printed is not None for _, _, printed, _ in ran)


def asks_are_answered(browser, lesson):
    show(browser, lesson)
    asks = browser.js("return [...document.querySelectorAll('.ask')].map(e => [e.dataset.number, e.dataset.wrong])")
    exercises = len(re.findall(r"<summary>Answer</summary>", (LESSONS / (lesson + ".md")).read_text()))
    equal(len(asks), exercises, f"{lesson}: exercises that ask for a number")
    for i, (number, wrong) in enumerate(asks):
        equal(browser.js(ANSWER, i, "many"), "That is not a number.", f"{lesson}, {i}")
        for other, reason in json.loads(wrong).items():
            equal(browser.js(ANSWER, i, other), reason, f"{lesson}, {i}: {other}")
        check("right" not in browser.js(ANSWER, i, str(float(number) * 2)), f"{lesson}, {i}: twice as much")
        check("right" in browser.js(ANSWER, i, number), f"{lesson}, {i}: {number}")


def course_is_that_of_the_lessons(browser):
    lessons = sorted(path.stem for path in LESSONS.glob("[0-9]*.md"))[slice(None) if LONG else slice(5, 6)]
    for lesson in lessons:
        asks_are_answered(browser, lesson)
    live = sum(cells_print_what_is_quoted(browser, lesson) for lesson in [*lessons, *(["slips"] if LONG else ["04-expressions"])])
    print(f"{live} commands of lessons ran in the page")
    check(live > (90 if LONG else 5), f"{live} commands ran")
    reads_well(browser)
    browser.js("location.hash = 'view=course'")
    wait(browser, SHOWN, "", "the routes")
    shown = browser.js("return document.querySelector('.lessons').textContent")
    check("2 of 2 right" in shown, f"progress: {shown}")
    equal(browser.js("return Object.keys(JSON.parse(localStorage.getItem('memtape-course')))"), lessons, "what is kept")
    reads_well(browser)


def markdown_is_read():
    """A picture of what course.py makes of Markdown."""
    sys.path.insert(0, str(ROOT / "program" / "browser"))
    import course
    text = ("1. *One* `a*b*c`\n   and **two**: [x](01-one-tensor.md), [y](../fit.md).\n\n   ```console\n   $ a 'b' \\\n     c\n   d\n   $ e\n   ```\n"
            "2. | a | b |\n\n| `x` | y |\n|---|---|\n| 1 | 2 < 3 |\n\n<details><summary>S</summary>\n\nIn.\n</details>\n\n    x  1\n      y")
    equal(course.blocks(text.split("\n")),
          '<ol><li><p><em>One</em> <code>a*b*c</code>\nand <strong>two</strong>: <a href="#view=course&amp;lesson=01-one-tensor">x</a>, y.</p>'
          '<div class="cell" data-command="a &#x27;b&#x27; c"><pre tabindex="0">d</pre></div><div class="cell" data-command="e"><pre tabindex="0"></pre></div>'
          '</li><li><div class="scroll" tabindex="0" role="region" aria-label="Table"><table><thead><tr><th scope="col">a</th><th scope="col">b</th></tr></thead>'
          '<tbody></tbody></table></div></li></ol><div class="scroll" tabindex="0" role="region" aria-label="Table"><table><thead><tr>'
          '<th scope="col"><code>x</code></th><th scope="col">y</th></tr></thead><tbody><tr><td>1</td><td>2 &lt; 3</td></tr></tbody></table></div>'
          '<details><summary>S</summary><p>In.</p></details><figure class="code"><pre tabindex="0">x  1\n  y</pre></figure>', "Markdown")
