"""docs/python.md: each example prints what the page quotes below it. Those with PyTorch or numpy are skipped without them."""
import importlib.util
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
sys.path.append(str(Path(__file__).parent.parent / "cli"))
from lib import check, done, equal  # noqa: E402

TEXT = (Path(__file__).parents[2] / "docs" / "python.md").read_text()
FOLDER = tempfile.mkdtemp()
examples = re.findall(r"```python\n(.*?)```\n\n```text\n(.*?)```", TEXT, re.S)
equal(len(examples), 3, "examples with output")
equal(TEXT.count("```python"), len(examples), "examples, all of them with output")
for code, output in examples:
    lacking = [name for name in ("torch", "numpy") if f"import {name}" in code and not importlib.util.find_spec(name)]
    if lacking:
        print(f"skipped: {lacking[0]} is not installed")
        continue
    ended = subprocess.run([sys.executable, "-c", code], cwd=FOLDER, capture_output=True, text=True, timeout=300)
    equal(ended.returncode, 0, f"status of an example: {ended.stderr}")
    equal(ended.stdout, output, "what an example prints")
    check(not ended.stderr, f"an example says: {ended.stderr}")
if os.listdir(FOLDER):
    equal(os.listdir(FOLDER), ["report.html"], "files that the examples write")
done()
