"""notebook.py SOURCE.py [NOTEBOOK.ipynb]: runs a script of cells (`# %%`; `# %% [markdown]` for text) and writes it as a notebook with
what each cell prints."""
import contextlib
import io
import json
import sys
from pathlib import Path


def cells_of(text):
    """(kind, source) of each."""
    for part in text.split("# %%")[1:]:
        head, _, body = part.partition("\n")
        body = body.strip("\n")
        if "[markdown]" in head:
            yield "markdown", "\n".join(line[2:] for line in body.splitlines())
        else:
            yield "code", body


def lines(text):
    return text.splitlines(keepends=True)


def made(text):
    """The notebook of a script, whose cells run here, in their order."""
    names, cells = {}, []
    for i, (kind, source) in enumerate(cells_of(text)):
        cell = {"cell_type": kind, "id": f"cell-{i}", "metadata": {}, "source": lines(source)}
        if kind == "code":
            printed = io.StringIO()
            with contextlib.redirect_stdout(printed):
                exec(compile(source, f"cell {i}", "exec"), names)
            outputs = [{"name": "stdout", "output_type": "stream", "text": lines(printed.getvalue())}] if printed.getvalue() else []
            cell |= {"execution_count": None, "outputs": outputs}
        cells.append(cell)
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    return {"cells": cells, "metadata": {"kernelspec": kernel, "language_info": {"name": "python"}}, "nbformat": 4, "nbformat_minor": 5}


if __name__ == "__main__":
    source = Path(sys.argv[1])
    path = Path(sys.argv[2]) if len(sys.argv) > 2 else source.with_suffix(".ipynb")
    path.write_text(json.dumps(made(source.read_text()), indent=1, ensure_ascii=False) + "\n")
