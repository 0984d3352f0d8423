"""docs/python.md: each example prints what the page quotes below it; README's runs. The notebooks: their cells, in their order, print what they
show. Those with PyTorch or numpy are skipped without them."""
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
import notebook  # noqa: E402
sys.path.append(str(Path(__file__).parent.parent / "parity"))
from at_once import forked  # noqa: E402
if importlib.util.find_spec("torch"):
    import memtape.torch  # noqa: E402, F401: once for all that is forked

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "python.md").read_text()
NOTEBOOKS = [ROOT / "docs" / "memtape.ipynb", ROOT / "docs" / "out-of-memory.ipynb"]
SOURCE = ROOT / "docs" / "out-of-memory.py"  # tests/python/notebook.py makes the notebook of it
FOLDER = tempfile.mkdtemp()


def code_of(path):
    return [cell for cell in json.loads(path.read_text())["cells"] if cell["cell_type"] == "code"]


def prints_what_it_shows(cells, name):
    names = {}
    for cell in cells:
        code, shown = "".join(cell["source"]), "".join(text for out in cell["outputs"] for text in out["text"])
        if "import torch" in code and not importlib.util.find_spec("torch"):
            print("skipped, the rest of the notebook: torch is not installed")
            return
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(code, name, "exec"), names)
        equal(printed.getvalue(), shown, f"what a cell prints: {code}")


def runs_under_jupyter(path):
    """As a reader has it; where the kernel of Jupyter is installed."""
    lacking = [name for name in ("nbclient", "ipykernel", "torch") if not importlib.util.find_spec(name)]
    if lacking:
        print(f"skipped: {lacking[0]} is not installed: the notebook under Jupyter")
        return
    import nbclient
    import nbformat
    ran_notebook = nbformat.read(path, as_version=4)
    nbformat.validate(ran_notebook)
    nbclient.NotebookClient(ran_notebook, timeout=300, resources={"metadata": {"path": FOLDER}}).execute()
    shown = code_of(path)
    ran = [cell for cell in ran_notebook.cells if cell["cell_type"] == "code"]
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
equal([(cell["cell_type"], "".join(cell["source"])) for cell in json.loads(NOTEBOOKS[1].read_text())["cells"]],
      list(notebook.cells_of(SOURCE.read_text())), "a notebook's cells are its script's")
for path in NOTEBOOKS:
    cells = code_of(path)
    equal([cell for cell in cells if not cell["outputs"]], [], f"cells of {path.name} that print nothing")
    with contextlib.chdir(FOLDER) if hasattr(contextlib, "chdir") else contextlib.nullcontext():
        prints_what_it_shows(cells, path.name)
    if "MTT_LONG" in os.environ:
        runs_under_jupyter(path)
done()
