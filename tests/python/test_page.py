"""docs/python.md: each example prints what the page quotes below it; README's runs. docs/memtape.ipynb: its cells, in their order, print what it
shows. Those with PyTorch or numpy are skipped without them."""
import contextlib
import importlib.util
import io
import json
import os
import re
import sys
import tempfile
from pathlib import Path
sys.path.append(str(Path(__file__).parent.parent / "program" / "verbs"))
from lib import check, done, equal  # noqa: E402
sys.path.append(str(Path(__file__).parent.parent / "parity"))
from at_once import forked  # noqa: E402
if importlib.util.find_spec("torch"):
    import memtape.torch  # noqa: E402, F401: once for all that is forked

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "python.md").read_text()
NOTEBOOK = ROOT / "docs" / "memtape.ipynb"
FOLDER = tempfile.mkdtemp()


def prints_what_it_shows(cells):
    names = {}
    for cell in cells:
        code, shown = "".join(cell["source"]), "".join(text for out in cell["outputs"] for text in out["text"])
        if "import torch" in code and not importlib.util.find_spec("torch"):
            print("skipped, the rest of the notebook: torch is not installed")
            return
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(code, "memtape.ipynb", "exec"), names)
        equal(printed.getvalue(), shown, f"what a cell prints: {code}")


def runs_under_jupyter():
    """As a reader has it; where the kernel of Jupyter is installed."""
    lacking = [name for name in ("nbclient", "ipykernel", "torch") if not importlib.util.find_spec(name)]
    if lacking:
        print(f"skipped: {lacking[0]} is not installed: the notebook under Jupyter")
        return
    import nbclient
    import nbformat
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    nbformat.validate(notebook)
    nbclient.NotebookClient(notebook, timeout=300, resources={"metadata": {"path": FOLDER}}).execute()
    shown = [cell for cell in json.loads(NOTEBOOK.read_text())["cells"] if cell["cell_type"] == "code"]
    ran = [cell for cell in notebook.cells if cell["cell_type"] == "code"]
    for cell, other in zip(shown, ran):
        equal("".join(out.get("text", "") for out in other["outputs"]),
              "".join(text for out in cell["outputs"] for text in out["text"]), "what a cell prints under Jupyter")


examples = re.findall(r"```python\n(.*?)```\n\n```text\n(.*?)```", TEXT, re.S)
equal(len(examples), 5, "examples with output")
equal(TEXT.count("```python"), len(examples), "examples, all of them with output")
[readme] = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.S)
for code, output in [*examples, (readme, None)]:
    lacking = [name for name in ("torch", "numpy") if f"import {name}" in code and not importlib.util.find_spec(name)]
    if lacking:
        print(f"skipped: {lacking[0]} is not installed")
        continue
    status, printed, said = forked(lambda code=code: exec(code, {"__name__": "__main__"}), FOLDER)
    equal(status, 0, f"status of an example: {said}")
    if output is None:
        check("all, each once" in printed and "gelu" in printed, f"README's example prints: {printed}")
    else:
        equal(printed, output, "what an example prints")
    check(not said, f"an example says: {said}")
if os.listdir(FOLDER):
    equal(os.listdir(FOLDER), ["report.html"], "files that the examples write")
cells = [cell for cell in json.loads(NOTEBOOK.read_text())["cells"] if cell["cell_type"] == "code"]
equal([cell for cell in cells if not cell["outputs"]], [], "cells that print nothing")
prints_what_it_shows(cells)
if "MTT_LONG" in os.environ:
    runs_under_jupyter()
done()
