"""What the tests of the page share."""
import time
from lib import check, equal, run

VALUES = "return [...document.querySelectorAll(arguments[0])].map(e => Number(e.value))"


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


# Names of the fields and buttons without one, and texts with too little contrast (WCAG AA), as lists of words.
UNNAMED = """return [...document.querySelectorAll("input:not([aria-hidden]), select, button, summary")].filter(e =>
  !(e.getAttribute("aria-label") || e.labels && e.labels[0] && e.labels[0].textContent.trim() || e.textContent.trim()))
  .map(e => e.outerHTML)"""
FAINT = """
const numbers = color => color.match(/[\\d.]+/g).map(Number);
const light = ([r, g, b]) => [r, g, b].map(c => c / 255).map(c => c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4)
  .reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0);
const behind = e => {
  for (; e; e = e.parentElement) {
    const color = numbers(getComputedStyle(e).backgroundColor);
    if (color.length < 4 || color[3]) return color;
  }
};
return [...document.querySelectorAll("#form *, #fit *, .bar *, #views *, #view-tape *, #view-train *, #view-course *")].filter(e => e.checkVisibility() && !e.disabled &&
  [...e.childNodes].some(n => n.nodeType === 3 && /[^\\s\\u2580-\\u259f]/.test(n.textContent))).filter(e => {
  const [a, b] = [light(numbers(getComputedStyle(e).color)), light(behind(e))].sort((x, y) => y - x);
  return (a + 0.05) / (b + 0.05) < 4.5;
}).map(e => e.textContent.trim().slice(0, 40))"""


def reads_well(browser):
    for dark in (False, True):
        browser.scheme(dark)
        equal(browser.js(FAINT), [], f"texts with little contrast, dark: {dark}")
    equal(browser.js(UNNAMED), [], "fields without a name")
    check(browser.js("return document.documentElement.scrollWidth <= innerWidth"), "nothing is wider than a phone")
