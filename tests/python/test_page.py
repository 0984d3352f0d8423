"""docs/python.md: each example prints what the page quotes below it. Those with PyTorch are skipped without it."""
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
equal(len(examples), 2, "examples with output")
equal(TEXT.count("```python"), len(examples), "examples, all of them with output")
for code, output in examples:
    if "import torch" in code and subprocess.run([sys.executable, "-c", "import torch"], stderr=subprocess.DEVNULL).returncode:
        print("skipped: PyTorch is not installed")
        continue
    ended = subprocess.run([sys.executable, "-c", code], cwd=FOLDER, capture_output=True, text=True, timeout=300)
    equal(ended.returncode, 0, f"status of an example: {ended.stderr}")
    equal(ended.stdout, output, "what an example prints")
    check(not ended.stderr, f"an example says: {ended.stderr}")
if os.listdir(FOLDER):
    equal(os.listdir(FOLDER), ["report.html"], "files that the examples write")
done()
