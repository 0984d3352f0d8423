"""What an engine of your own keeps: events that it writes, in the books of memtape's allocator, as a report.

    python3 -m memtape.events events.jsonl --html report.html
    python3 -m memtape.events events.jsonl --task layer_norm.json
    python3 -m memtape.events class/*/ --task layer_norm.json --csv grades.csv

docs/teachers.md is the page."""

from __future__ import annotations

import argparse
import csv
import io
import json
import math
import os
import sys
from dataclasses import dataclass, field
from typing import Any, Callable, Dict, Iterator, List, Mapping, NoReturn, Optional, Sequence, Set, TextIO, Tuple, Union

from memtape._books import BLOCK, MODEL_KEYS, OTHER_KEYS, Books, Held, Peak, categories, dtype_bytes, grouped, steps_section
from memtape._library import MemtapeError, printable
from memtape._text import columns
from memtape.report import Report

PARAMETER = "parameter"
ROLES = ("input", "output", "aux")
FOLLOWS = {"": ("init", "forward"), "init": ("forward",), "forward": ("backward",), "backward": ("forward", "step"),
           "step": ("forward",)}  # phases
# The fields of each event: (those that it needs, those that it may have).
EVENTS: Dict[str, Tuple[Tuple[str, ...], Tuple[str, ...]]] = {
    "alloc": (("id", "shape", "dtype", "bytes"), ("op", "module", "category")),
    "free": (("id",), ()),
    "save": (("id", "op", "name"), ("module", "role")),
    "release": (("id", "op"), ("name",)),
    "phase": (("name",), ()),
    "probe": (("name", "index", "gradient", "up", "down", "by"), ()),
}
Identity = Union[int, str]


# ---- what a file says, field by field ----

@dataclass
class Place:
    """Where something was read, to say what is wrong there."""

    where: str
    values: Mapping[str, Any]

    def refuse(self, name: str, need: str) -> NoReturn:
        given = _quoted(self.values[name]) if name in self.values else "missing"
        raise MemtapeError(f'{self.where}: "{name}" is {given}; {need}')

    def fields(self, needed: Sequence[str], allowed: Sequence[str]) -> None:
        for name in needed:
            if name not in self.values:
                self.refuse(name, f"need {', '.join(needed)}")
        for name in self.values:
            if name not in needed and name not in allowed:
                self.refuse(name, f"the fields here are {', '.join((*needed, *allowed))}")

    def text(self, name: str, default: str = "") -> str:
        value = self.values.get(name, default)
        if not isinstance(value, str):
            self.refuse(name, "need a string")
        return value if _is_whole(value) else self.refuse(name, "need a string of whole characters, without NUL")

    def choice(self, name: str, choices: Sequence[str], default: str = "") -> str:
        value = self.text(name, default)
        return value if value in choices else self.refuse(name, f"choose {', '.join(choices)}")

    def size(self, name: str) -> int:
        value = self.values[name]
        return int(value) if is_size(value) else self.refuse(name, "need a whole number from 0 on")

    def number(self, name: str) -> float:
        value = self.values[name]
        finite = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
        return float(value) if finite else self.refuse(name, "need a number")

    def shape(self) -> List[int]:
        value = self.values["shape"]
        return value if isinstance(value, list) and all(map(is_size, value)) else \
            self.refuse("shape", "need a list of whole numbers from 0 on")

    def dtype(self) -> Tuple[str, int]:
        """(its name, bytes of an element)"""
        name = self.text("dtype")
        return name, dtype_bytes(name) or self.refuse("dtype", "need one of memtape's, such as f32, f64, bf16, i64, bool")

    def texts(self, name: str) -> List[str]:
        value = self.values.get(name, [])
        if not isinstance(value, list) or not all(isinstance(inner, str) and _is_whole(inner) for inner in value):
            self.refuse(name, "need a list of strings")
        return list(value)

    def nested(self, name: str) -> List[Place]:
        value = self.values.get(name, [])
        if not isinstance(value, list) or not all(isinstance(inner, dict) for inner in value):
            self.refuse(name, "need a list of objects")
        return [Place(f'{self.where}, "{name}" {i + 1}', inner) for i, inner in enumerate(value)]


def _quoted(value: Any) -> str:
    """As JSON, with escapes for what a terminal would obey."""
    text = json.dumps(value, ensure_ascii=False)
    return "".join(c if printable(c) == c else f"\\u{ord(c):04x}" for c in text)


def _is_whole(text: str) -> bool:
    """Whether a report can have it: no NUL, and no half of a character, which JSON's escapes can name."""
    return not any(c == "\0" or "\ud800" <= c <= "\udfff" for c in text)


def is_size(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 62


def _parse(text: str, where: str) -> Place:
    try:
        values = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise MemtapeError(f"{where}: not JSON: {error}") from error
    if not isinstance(values, dict):
        raise MemtapeError(f"{where}: need a JSON object")
    return Place(where, values)


# ---- the events ----

@dataclass
class _Storage:
    made: int  # line
    shape: List[int]
    dtype: str
    held: Held
    savers: List[Dict[str, Any]] = field(default_factory=list)  # in order, with their lines


@dataclass
class Probe:
    """A gradient that backward found, and the same one by the change of the loss."""

    name: str
    index: int
    found: float
    difference: float


class Run:
    """An engine's run, event by event: run.event({"event": "alloc", "id": 1, ...}); run.report() at its end."""

    def __init__(self, name: str = "events") -> None:
        self.name, self.line = name.encode("utf-8", "replace").decode(), 0
        self.books = Books()
        self.live: Dict[Identity, _Storage] = {}
        self.freed: Dict[Identity, int] = {}  # line
        self.n_storages = 0
        self.saved: Optional[List[Dict[str, Any]]] = None  # when the first forward ended
        self.params: Set[Identity] = set()
        self.n_params = self.param_bytes = 0
        self.init: List[Dict[str, Any]] = []
        self.steps: List[List[Dict[str, Any]]] = []
        self.probes: List[Probe] = []
        self.begins = 0  # of the last step: its first event
        self.peak, self.largest = Peak(), []  # type: Tuple[Peak, List[Dict[str, Any]]]
        self.books.begin("init")

    def event(self, values: Mapping[str, Any]) -> None:
        """Enters one event; what cannot be is refused with the line, the field and what would be accepted."""
        self.line += 1
        self._enter(Place(f"{self.name}:{self.line}", values))

    def _enter(self, e: Place) -> None:
        kind = e.choice("event", tuple(EVENTS)) if "event" in e.values else e.refuse("event", f"choose {', '.join(EVENTS)}")
        needed, allowed = EVENTS[kind]
        e.fields(("event", *needed), allowed)
        act: Callable[[Place], None] = getattr(self, "_" + kind)
        act(e)

    def _alloc(self, e: Place) -> None:
        identity, shape, (dtype, size) = self._identity(e), e.shape(), e.dtype()
        n_bytes, wanted = e.size("bytes"), math.prod(shape) * size
        if identity in self.live:
            e.refuse("id", f"it has been allocated since line {self.live[identity].made}")
        if n_bytes != wanted:
            e.refuse("bytes", f"shape {shape} of {dtype} takes {wanted}")
        category = e.choice("category", categories(), "activation")
        module, op = e.text("module"), e.text("op")
        try:
            held = self.books.add(identity, n_bytes, category, module, op)
        except MemtapeError as error:
            e.refuse("bytes", str(error))
        self.live[identity] = _Storage(self.line, shape, dtype, held)
        if category == PARAMETER:
            self.n_params, self.param_bytes = self.n_params + math.prod(shape), self.param_bytes + n_bytes

    def _free(self, e: Place) -> None:
        identity, storage = self._storage(e)
        if storage.savers:
            by = storage.savers[0]
            e.refuse("id", f'{by["op"]} has kept it as {by["name"]} since line {by["line"]}; it is released first')
        self.books.remove(identity)
        self.freed[identity] = self.line
        del self.live[identity]

    def _save(self, e: Place) -> None:
        _, storage = self._storage(e)
        saver = {"module": e.text("module"), "op": e.text("op"), "role": e.choice("role", ROLES, "input"), "name": e.text("name")}
        storage.savers.append({**saver, "line": self.line})
        if storage.held.kept is None:
            storage.held.kept = {name: saver[name] for name in ("op", "role", "name")}

    def _release(self, e: Place) -> None:
        _, storage = self._storage(e)
        op, name = e.text("op"), e.text("name") if "name" in e.values else None
        for saver in storage.savers:
            if saver["op"] == op and name in (None, saver["name"]):
                storage.savers.remove(saver)
                return
        kept = ", ".join(f'{s["op"]} as {s["name"]}' for s in storage.savers) or "nobody"
        e.refuse("op" if name is None else "name", f"who keeps it: {kept}")

    def _phase(self, e: Place) -> None:
        last = self.books.phase if self.line > 1 else ""
        self._end()
        name = e.choice("name", FOLLOWS[last])
        if name == "forward":
            self.steps.append([])
            self.begins, self.peak = self.books.n_events, Peak()
        self.books.begin(name)

    def _probe(self, e: Place) -> None:
        found, up, down, by = (e.number(name) for name in ("gradient", "up", "down", "by"))
        if by <= 0:
            e.refuse("by", "need a number above 0")
        self.probes.append(Probe(e.text("name"), e.size("index"), found, (up - down) / (2 * by)))

    def _identity(self, e: Place) -> Identity:
        value: Identity = e.values["id"]
        if isinstance(value, bool) or not isinstance(value, (int, str)):
            e.refuse("id", "need a whole number or a string")
        return value if isinstance(value, int) else e.text("id")

    def _storage(self, e: Place) -> Tuple[Identity, _Storage]:
        identity = self._identity(e)
        if identity not in self.live:
            e.refuse("id", f"it was freed in line {self.freed[identity]}" if identity in self.freed else "it was never allocated")
        return identity, self.live[identity]

    # ---- phases ----

    def _end(self) -> None:
        """Ends the phase; the end of the file ends the last one."""
        phase = self.books.end()
        if self.books.phase == "init":
            self.init = [phase]
            return
        if self.books.phase == "forward" and self.saved is None:
            self.saved = list(self._entries())
        self.steps[-1].append(phase)
        if self.books.peak.allocated > self.peak.allocated:
            self.peak, self.largest = self.books.peak, grouped(self.books.alive_at_peak())

    def _entries(self) -> Iterator[Dict[str, Any]]:
        """What is kept now: each storage once, parameters left out, in order of the first save."""
        kept = [s for s in self.live.values() if s.savers and s.held.category != PARAMETER and s.held.n_bytes]
        for i, s in enumerate(sorted(kept, key=lambda s: int(s.savers[0]["line"]))):
            savers = [{name: saver[name] for name in ("module", "op", "role", "name")} for saver in s.savers]
            yield {"storage": i + 1, "bytes": s.held.n_bytes, "rounded": -(-s.held.n_bytes // BLOCK) * BLOCK,
                   "allocated": s.held.allocated, "shape": s.shape, "dtype": s.dtype, **savers[0], "also": savers[1:]}

    def close(self) -> None:
        """Nothing is entered any more."""
        self.books.close()

    def report(self) -> Report:
        """What was kept after the first forward; the peak is that of the last step. No event may follow but close()."""
        if not self.steps:
            raise MemtapeError(f'{self.name}: there is no forward; need {{"event": "phase", "name": "forward"}}')
        self._end()
        entries = self.saved or []
        values: Dict[str, Any] = {
            "schema": "memtape.profile/1",
            "model": {"kind": "events", "preset": self.name, "dtype": None, **dict.fromkeys(MODEL_KEYS)},
            "device": "events", "params": {"count": self.n_params, "bytes": self.param_bytes}, "optimizer_host": 0, "parameters_host": 0,
            "saved": {"bytes": sum(e["bytes"] for e in entries), "rounded": sum(e["rounded"] for e in entries),
                      "allocated": sum(e["allocated"] for e in entries), "storages": len(entries), "tensors": entries},
            **dict.fromkeys(OTHER_KEYS)}
        values.update(steps_section(self.init + self.steps[0], self.steps[-1], self.begins, self.peak, self.largest,
                                    len(self.steps)))
        return Report(values, os.path.basename(self.name))


def read(path: Union[str, os.PathLike[str]]) -> Report:
    """The report of a file of events, a JSON object a line."""
    return _read(path)[0]


def _read(path: Union[str, os.PathLike[str]]) -> Tuple[Report, List[Probe]]:
    run = Run(os.fspath(path))
    try:
        with open(path, encoding="utf-8") as file:
            for line in file:
                run.line += 1
                if line.strip():
                    run._enter(_parse(line, f"{run.name}:{run.line}"))
        return run.report(), run.probes
    finally:
        run.close()


# ---- gradients ----

TOLERANCE = 1e-3  # of the largest gradient of the same name


def wrong_gradients(probes: Sequence[Probe], name: str) -> List[str]:
    """What is wrong with the gradient of a leaf, beside finite differences; nothing if it is right."""
    of = [probe for probe in probes if probe.name == name]
    largest = max((abs(probe.difference) for probe in of), default=0.0)
    if not largest:
        return [f"the gradient of {name} has no probe" if not of else f"the loss does not depend on {name}: probe it where it does"]
    wrong = [probe for probe in of if not abs(probe.found - probe.difference) <= TOLERANCE * largest]
    if not wrong:
        return []
    worst = max(wrong, key=lambda probe: abs(probe.found - probe.difference))
    return [f"the gradient of {name} is wrong at {len(wrong)} of {len(of)} places: {name}[{worst.index}] has {worst.found:.6g}; "
            f"the loss changes by {worst.difference:.6g} for each 1 that it grows"]


def _of_gradients(probes: Sequence[Probe]) -> List[str]:
    """Lines of the report on the gradients; none without probes."""
    names = list(dict.fromkeys(probe.name for probe in probes))
    wrong = [fault for name in names for fault in wrong_gradients(probes, name)]
    if names and not wrong:
        wrong = [f"Gradients of {', '.join(names)}: {len(probes)} compared with finite differences, all right"]
    return ["", *wrong] if wrong else []


# ---- tasks ----

def _tensor(t: Mapping[str, Any]) -> str:
    return f'{t["name"]} [{",".join(map(str, t["shape"]))}] {t["dtype"]}, {t["bytes"]:,} bytes'


def _difference(got: int, wanted: int) -> str:
    return f"{abs(got - wanted):,} too {'many' if got > wanted else 'few'}"


@dataclass
class Task:
    """What an engine shall keep: {"task": "...", "op": "layer_norm", "keeps": [{"name", "shape", "dtype"}, ...]}, and, or
    instead, "saved", the bytes of all that is kept after forward, and "peak", the bytes allocated at the highest. And
    "gradients", the names of the leaves whose gradients have to be right."""

    title: str
    hint: str
    op: str
    keeps: List[Dict[str, Any]]
    saved: Optional[int]
    peak: Optional[int]
    gradients: List[str]

    @staticmethod
    def read(path: Union[str, os.PathLike[str]]) -> Task:
        with open(path, encoding="utf-8") as file:
            t = _parse(file.read(), os.fspath(path))
        t.fields(("task",), ("hint", "op", "keeps", "saved", "peak", "gradients"))
        if not {"keeps", "saved", "peak"} & set(t.values):
            t.refuse("keeps", "need something to check: keeps with op, saved or peak")
        if ("op" in t.values) != ("keeps" in t.values):
            t.refuse("op" if "keeps" in t.values else "keeps", "op and keeps go together")
        keeps = []
        for k in t.nested("keeps"):
            k.fields(("name", "shape", "dtype"), ())
            dtype, size = k.dtype()
            keeps.append({"name": k.text("name"), "shape": k.shape(), "dtype": dtype, "bytes": math.prod(k.shape()) * size})
        return Task(t.text("task"), t.text("hint"), t.text("op"), keeps,
                    t.size("saved") if "saved" in t.values else None, t.size("peak") if "peak" in t.values else None, t.texts("gradients"))

    def faults(self, report: Report, probes: Sequence[Probe] = ()) -> List[str]:
        """Why the task is not done, line by line, first what is not correct; nothing if it is done."""
        faults = [fault for name in self.gradients for fault in wrong_gradients(probes, name)]
        faults += self._of_op(report.tensors()) if self.op else []
        saved, peak = report["saved"]["bytes"], report["steady"]["peak"]
        if self.saved not in (None, saved):
            faults.append(f"{saved:,} bytes are kept after forward; expected {self.saved:,}: {_difference(saved, self.saved)}")
            faults += [f'  {t["op"]} keeps {_tensor(t)}' for t in report.tensors()]
        if self.peak not in (None, peak):
            faults.append(f"{peak:,} bytes are allocated at the peak; expected {self.peak:,}: {_difference(peak, self.peak)}")
            faults += [f'  {row["category"]} made by {row["op"] or "nobody"} in {row["phase"]}: {row["allocated"]:,} bytes'
                       for row in report["peak"]["largest"]]
        return faults

    def _of_op(self, tensors: List[Dict[str, Any]]) -> List[str]:
        kept = []
        for t in tensors:
            names = [saver["name"] for saver in (t, *t["also"]) if saver["op"] == self.op]
            if names:
                kept.append({**t, "name": names[0]})
        got, wanted = (sum(t["bytes"] for t in of) for of in (kept, self.keeps))
        if got == wanted:
            return []
        lacking = list(self.keeps)
        for alike in (("name", "shape", "dtype"), ("shape", "dtype")):
            for t in list(kept):
                same = [w for w in lacking if all(w[name] == t[name] for name in alike)]
                if same:
                    lacking.remove(same[0])
                    kept.remove(t)
        return [f"{self.op} keeps {got:,} bytes; expected {wanted:,}: {_difference(got, wanted)}",
                *(f"  kept, and not expected: {_tensor(t)}" for t in kept),
                *(f"  expected, and not kept: {_tensor(t)}" for t in lacking)]


# ---- a class ----

FILE = "events.jsonl"  # of a folder


def _graded(word: str, task: Task) -> Tuple[str, str, str]:
    """Whose, the result, and the first reason why it is not done."""
    path = os.path.join(word, FILE) if os.path.isdir(word) else word
    who = os.path.basename(os.path.normpath(word))
    try:
        faults = task.faults(*_read(path))
    except (MemtapeError, OSError, UnicodeDecodeError) as error:
        return who, "refused", str(error)
    return who, "not yet" if faults else "done", faults[0] if faults else ""


def _write_whole(path: str, text: str) -> None:
    """Writes a file under another name first, so that it is there whole or not at all."""
    part = f"{path}.{os.getpid()}.part"
    try:
        with open(part, "w", encoding="utf-8", newline="") as file:
            file.write(text)
        os.replace(part, path)
    except OSError:
        if os.path.exists(part):
            os.unlink(part)
        raise


def _grade(words: Sequence[str], task: Task, path: Optional[str]) -> int:
    """Prints a line for each file or folder; 0 if all are done, else 1."""
    rows = [("who", "result", "why"), *(_graded(word, task) for word in words)]
    n_done = sum(row[1] == "done" for row in rows)
    shown = [tuple(printable(cell) for cell in row) for row in rows]
    if path == "-":
        csv.writer(sys.stdout, lineterminator="\n").writerows(shown)
        return 0 if n_done == len(words) else 1
    if path:
        text = io.StringIO()
        csv.writer(text).writerows(rows)
        _write_whole(path, text.getvalue())
    _show("\n".join([task.title, *columns(shown, ()), f"{n_done} of {len(words)} done"]), sys.stdout)
    return 0 if n_done == len(words) else 1


# ---- the command ----

class _Parser(argparse.ArgumentParser):
    def exit(self, status: int = 0, message: Optional[str] = None) -> NoReturn:
        if message:
            _show(message.rstrip("\n"), sys.stderr)
        sys.exit(status)


def _show(text: str, out: TextIO) -> None:
    """Prints what may quote a file: nothing that a terminal would obey, and "?" for letters that it does not have."""
    encoding = getattr(out, "encoding", None) or "utf-8"
    print(printable(text).encode(encoding, "replace").decode(encoding), file=out)


def main(words: Optional[Sequence[str]] = None) -> int:
    """0: reported, and the task is done; 1: it is not done, or of a class not by all; 2: the events, the task or the words are
    refused."""
    parser = _Parser(prog="memtape.events", description="Reports what an engine of your own keeps.")
    parser.add_argument("events", nargs="+", help="a file of events, a JSON object a line (docs/teachers.md); or, with --task, those of "
                        f"a class: several files, or folders with a file {FILE} in each")
    parser.add_argument("--task", help="a file that says what shall be kept; the exit status is 1 if it is not")
    parser.add_argument("--json", help="write the report as JSON (docs/profile-json.md)")
    parser.add_argument("--html", help="write the report as a page")
    parser.add_argument("--csv", help="with --task: write who has done it as a table for spreadsheets (-: print it)")
    o = parser.parse_args(words)
    class_of = len(o.events) > 1 or os.path.isdir(o.events[0]) or bool(o.csv)
    if class_of and not o.task:
        parser.error(f"{'--csv' if o.csv else 'several files and folders'}: need --task FILE")
    if class_of and (o.json or o.html):
        parser.error("--json and --html: need one file of events; give a student's file alone")
    try:
        task = Task.read(o.task) if o.task else None
        if task and class_of:
            return _grade(o.events, task, o.csv)
        report, probes = _read(o.events[0])
        if o.html:
            report.write_html(o.html)
        if o.json:
            with open(o.json, "w", encoding="utf-8") as file:
                file.write(report.json() + "\n")
    except (MemtapeError, OSError, UnicodeDecodeError) as error:
        _show(f"memtape.events: {error}", sys.stderr)
        return 2
    faults = task.faults(report, probes) if task else []
    if not task:
        _show("\n".join([report.details().rstrip("\n"), *_of_gradients(probes)]), sys.stdout)
    elif not faults:
        _show(f"done: {task.title}", sys.stdout)
    else:
        _show("\n".join([f"not yet: {task.title}", *("  " + fault for fault in faults), *filter(None, [task.hint])]), sys.stdout)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
