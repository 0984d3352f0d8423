"""Writes docs/memtape.html, the built page with its version and commit in the foot: publish.py COMMIT"""
import os
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
VERSION = re.search(r"version : '([^']+)'", (ROOT / "meson.build").read_text())[1]
MARK = '<footer id="built"></footer>'

page, to = (ROOT / "build-page/memtape.html").read_text(encoding="utf-8"), ROOT / "docs/memtape.html"
assert page.count(MARK) == 1, "the page has no foot, or several"
part = to.with_suffix(".part")
part.write_text(page.replace(MARK, f'<footer id="built">memtape {VERSION}, built from commit {sys.argv[1]}</footer>'), encoding="utf-8")
os.replace(part, to)
print("docs/memtape.html: commit it")
