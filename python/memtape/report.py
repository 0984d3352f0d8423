"""Reports: the JSON that `memtape profile --json` writes, with the page that --html writes."""

from __future__ import annotations

import functools
import html
import json
import os
import pickle
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Callable, Dict, Iterator, List, Mapping, Optional, Sequence, Union

from memtape import _program, _text
from memtape._library import MemtapeError, check, library, printable

if TYPE_CHECKING:
    import pandas

Option = Union[str, int, float, bool, None]
FRAME_HEIGHT = 800  # pixels of a report in a notebook


class Report(Mapping[str, Any]):
    """A report: report["saved"]["bytes"] is a key of docs/profile-json.md. Bytes are ints. Nothing in it is shared with
    the library; it can be kept, pickled and copied."""

    def __init__(self, values: Dict[str, Any], title: str, page: Optional[str] = None, text: Optional[str] = None,
                 note: Optional[str] = None, notes: Sequence[str] = ()) -> None:
        self._values, self.title, self._page = values, title, page
        self._text, self._note = text, note
        self.notes = list(notes)  # what a reader of the figures must know: parts that count as something else, memory that grows

    def __getitem__(self, key: str) -> Any:
        return self._values[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return printable(f"<memtape report: {self.title}>")

    def __str__(self) -> str:
        """What print shows: the program's own text of its reports, else at most 20 lines. Of a training step these say what holds the
        peak, of a forward what is kept for backward, with alike layers together."""
        return self._shown(_text.short)

    def details(self) -> str:
        """The same at length: all that holds the peak, and all that is kept for backward."""
        return self._shown(_text.details)

    def _shown(self, table: Callable[..., str]) -> str:
        return self._text or printable(table(self._values, self.title, self._note, self.notes))

    def __sub__(self, before: Report) -> Difference:
        """after - before: what a change of the model or the step has added, in bytes."""
        return Difference(before, self) if isinstance(before, Report) else NotImplemented

    def to_dict(self) -> Dict[str, Any]:
        """A copy of the whole report."""
        copy: Dict[str, Any] = json.loads(self.json())
        return copy

    def json(self) -> str:
        return json.dumps(self._values, ensure_ascii=False, indent=2)

    def tensors(self) -> List[Dict[str, Any]]:
        """The saved storages, one dictionary each, in the order in which they were first saved."""
        tensors: List[Dict[str, Any]] = self.to_dict()["saved"]["tensors"]
        return tensors

    def dataframe(self) -> pandas.DataFrame:
        """The saved storages as rows of a pandas DataFrame: storage, bytes, rounded, allocated, shape (a tuple), dtype, module,
        op, role, name, and shared_by, the number of other savers of the same storage."""
        try:
            import pandas
        except ImportError as error:
            raise ImportError("Report.dataframe needs pandas: pip install pandas") from error
        columns = ["storage", "bytes", "rounded", "allocated", "shape", "dtype", "module", "op", "role", "name"]
        rows = [{**{name: t[name] for name in columns}, "shape": tuple(t["shape"]), "shared_by": len(t["also"])}
                for t in self.tensors()]
        return pandas.DataFrame(rows, columns=[*columns, "shared_by"])

    def html(self) -> str:
        """The page that `memtape profile --html` writes: all of it in one text, which loads nothing."""
        if self._page is None:
            with tempfile.TemporaryDirectory() as folder:
                path = Path(folder) / "report.html"
                self._write(path)
                self._page = path.read_text(encoding="utf-8")
        return self._page

    def _write(self, path: Path) -> None:
        check(library().mt_report_write_html(self.title.encode("utf-8", "replace"), self.json().encode("utf-8", "replace"),
                                             os.fsencode(path)))

    def write_html(self, path: Union[str, os.PathLike[str]]) -> None:
        """Writes the page to a file, whole or not at all."""
        path = Path(path)
        if self._page is None:
            self._write(path)
            return
        part = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            part.write_text(self._page, encoding="utf-8")
            os.replace(part, path)
        except BaseException:
            part.unlink(missing_ok=True)
            raise

    def write_snapshot(self, path: Union[str, os.PathLike[str]], capacity: Union[str, int, None] = None) -> bool:
        """Writes the events of the report's step (profile(..., timeline=True)) as torch.cuda.memory._dump_snapshot writes a run's:
        for pytorch.org/memory_viz and `memtape compare`. capacity: the snapshot is that of a GPU of so many bytes, which fails at the
        first request that goes past it; a number, or a text such as "24GiB". Returns whether it failed."""
        n_bytes = 0 if capacity is None else _text.parsed(capacity)
        if not self._values.get("timeline"):
            raise MemtapeError("write_snapshot: the report lists no events of a training step; give timeline=True to memtape.profile, or to "
                               "memtape.torch.profile with a batch and an optimizer")
        with tempfile.TemporaryDirectory() as folder:
            report = Path(folder) / "report.json"
            report.write_text(self.json(), encoding="utf-8")
            check(library().mt_report_write_snapshot(os.fsencode(report), n_bytes, os.fsencode(path)))
        with open(path, "rb") as f:
            return any(event["action"] == "oom" for event in pickle.load(f)["device_traces"][0])

    def _repr_html_(self) -> str:
        """What a notebook shows: the page in a frame, which cannot reach the notebook."""
        return (f'<iframe title="{html.escape(self.title)}" sandbox="allow-scripts" width="100%" '
                f'height="{FRAME_HEIGHT}" style="border:0" srcdoc="{html.escape(self.html())}"></iframe>')


class Difference(Mapping[str, int]):
    """after - before, in bytes: difference["peak"], ["reserved"], ["saved"], and ["peak.activation"] and so on for each category at
    the peak. Where one of the reports is not of a step, "saved" alone."""

    def __init__(self, before: Report, after: Report) -> None:
        self.before, self.after = before, after
        first, second = figures(before), figures(after)
        self._rows = [(name, first.get(name, 0), second.get(name, 0)) for name in {**first, **second}
                      if name == "saved" or "peak" in first and "peak" in second]
        both = [r["steady"]["by_category"] for r in (before, after) if r.get("steady")]
        self._values = dict.fromkeys((f"peak.{name}" for name in {**both[0], **both[1]}), 0) if len(both) == 2 else {}
        self._values.update((name, n - m) for name, m, n in self._rows)

    def __getitem__(self, key: str) -> int:
        return self._values[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __str__(self) -> str:
        return printable(f"{self.after.title} - {self.before.title}\n" + _text.difference(self._rows))


def figures(report: Mapping[str, Any]) -> Dict[str, int]:
    """The figures by which two reports are compared: bytes allocated at the peak, by category, reserved, and saved."""
    found: Dict[str, int] = {}
    if report.get("steady"):
        steady = report["steady"]
        categories = {f"peak.{name}": n for name, n in steady["by_category"].items() if n}
        found = {"peak": steady["peak"], **categories, "reserved": steady["reserved"]}
    return {**found, "saved": report["saved"]["bytes"]} if report.get("saved") else found


@functools.cache
def _owners() -> Dict[str, str]:
    """Of what each detail is a key: {"causal": "model", "swiglu": "recipe", ...}."""
    return {row["name"]: row["key"] for row in json.loads(_program.call(["help", "--json"]))["options"] if row["key"]}


def words(model: str, options: Mapping[str, Option]) -> List[str]:
    """kv_heads=2 is "--kv-heads 2", causal=True a key, "attention:causal"; None and False are left out."""
    given: List[str] = []
    keys: Dict[str, List[str]] = {"model": [], "recipe": []}
    for name, value in options.items():
        option = name.replace("_", "-")
        if value is None or value is False:
            continue
        text = [] if value is True else [os.fsdecode(value) if isinstance(value, (bytes, os.PathLike)) else str(value)]
        owner = _owners().get(option)
        if owner in keys:
            keys[owner].append("=".join([option, *text]))
        else:
            given += ["--" + option, *text]
    recipe = ["--recipe", "plain:" + ",".join(keys["recipe"])] if keys["recipe"] else []
    return [":".join([model, *filter(None, [",".join(keys["model"])])]), *given, *recipe]


def profile(model: Union[str, os.PathLike[str]], *, device: str = "meta", **options: Option) -> Report:
    """Runs two training steps of a model and reports the first one's ledger and the second one's peak, as
    `memtape profile MODEL` does.

    model: a kind ("mlp", "gpt", ...), a preset ("gpt2", ...) or the path of a config.json. The options are the
    program's: batch=4, seq=1024, dtype="bf16", checkpoint="full"; its default is taken for what is not given, but
    for device, which is "meta": nothing is computed, and the bytes are those of the other devices. Raises
    MemtapeError with the program's message."""
    with tempfile.TemporaryDirectory() as folder:
        page, values = Path(folder) / "report.html", Path(folder) / "report.json"
        name = os.fsdecode(model)
        # A name that begins with "-" is a path; the program would take it for an option.
        text = _program.call(["profile", *words(os.path.join(".", name) if name.startswith("-") else name, options),
                              "--device", device, "--html", str(page), "--json", str(values)])
        if not page.exists():
            raise MemtapeError(f"profile {name!r} with {options!r} made no report: memtape printed {text[:80]!r}")
        shown = os.fsencode(name).decode("utf-8", "replace")
        return Report(json.loads(values.read_text(encoding="utf-8")), f"{shown} on {device}", page.read_text(encoding="utf-8"),
                      text.rstrip("\n"))


def run(*arguments: Union[str, int, float, os.PathLike[str]]) -> str:
    """Runs the program with these arguments, run("explain", "mlp", "--act", "gelu"), and returns what it prints."""
    return _program.call([os.fsdecode(argument) if isinstance(argument, (bytes, os.PathLike)) else str(argument)
                          for argument in arguments])
