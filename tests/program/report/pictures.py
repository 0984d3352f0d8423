"""Takes the pictures of docs/report.md: MEMTAPE=build/memtape python3 tests/program/report/pictures.py FOLDER. The
pictures in docs were then made smaller with pngquant."""
import base64
import subprocess
import sys
import tempfile
from pathlib import Path
sys.path.insert(0, str(Path(__file__).parent.parent / "verbs"))
from browser import Browser  # noqa: E402
from lib import MEMTAPE  # noqa: E402

RUN = ["gpt2-medium", "-b", "4", "-s", "1024", "--dtype", "bf16", "--optimizer", "adamw", "--device", "meta"]
PEAK = "[...document.querySelectorAll('.toolbar button')].find(b => b.textContent === 'peak')"


def take(browser, path, top, bottom, width, scale):
    """From the top of one element to the bottom of another."""
    first, last = browser.js("""
        return [document.querySelector(arguments[0]).getBoundingClientRect().top + scrollY,
                document.querySelector(arguments[1]).getBoundingClientRect().bottom + scrollY]""", top, bottom)
    clip = {"x": 0, "y": max(0, first - 20), "width": width, "height": last - first + 30, "scale": scale}
    shot = browser.cdp("Page.captureScreenshot", format="png", captureBeyondViewport=True, clip=clip)
    Path(path).write_bytes(base64.b64decode(shot["data"]))


def open_branches(browser, *ends):
    """Opens the rows of the tree whose paths end so."""
    for end in ends:
        browser.js("[...document.querySelectorAll('#saved .fold')].find(b => b.dataset.path.endsWith(arguments[0])).click();"
                   "document.activeElement.blur()", end)


def main(folder):
    page = Path(tempfile.mkdtemp()) / "report.html"
    subprocess.run([MEMTAPE, "profile", *RUN, "-q", "--html", page], check=True)
    for name, dark in (("light", False), ("dark", True)):
        with Browser(dark=dark) as browser:
            browser.open(page)
            take(browser, folder / f"report-{name}.png", ".bar", ".chart", 1280, 1)
            if dark:
                open_branches(browser, "/act", "/attn", "/heads", "/heads/300")
                take(browser, folder / "report-saved.png", "main > section:nth-of-type(3)", "#tape", 1280, 0.8)
    with Browser(width=390, height=844) as phone:
        phone.open(page)
        take(phone, folder / "report-phone.png", ".bar", ".chart", 390, 1)


main(Path(sys.argv[1]))
