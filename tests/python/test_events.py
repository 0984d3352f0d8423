"""docs/teachers.md, whose examples print what it quotes below them; engines and the events that they write; tasks; refusals."""
import csv
import gc
import importlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
ROOT = Path(__file__).parents[2]
sys.path += [str(ROOT / "tests" / "program" / "verbs"), str(ROOT / "tests" / "lessons"), str(ROOT / "examples" / "engines")]
import memtape.events  # noqa: E402
import tape  # noqa: E402
from events import Events  # noqa: E402
from lib import check, done, equal  # noqa: E402

ENGINES = ROOT / "examples" / "engines"
PAGE = (ROOT / "docs" / "teachers.md").read_text()
FOLDER = Path(tempfile.mkdtemp())
FILE = FOLDER / "events.jsonl"


def ended(*words):
    """(status, output, messages) of the command."""
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        try:
            status = memtape.events.main([str(word) for word in words])
        except SystemExit as end:
            status = end.code
    return status, out.getvalue(), err.getvalue()


def changed(text, diff):
    """The text after the hunks of a diff without line numbers."""
    for hunk in re.split(r"^@@\n", diff, flags=re.M):
        lines = hunk.splitlines()
        before = "".join(line[1:] + "\n" for line in lines if line[:1] != "+")
        after = "".join(line[1:] + "\n" for line in lines if line[:1] != "-")
        equal(text.count(before), 1, f"places of a hunk: {hunk}")
        text = text.replace(before, after)
    return text


BETTER = ("xhat[i * d:(i + 1) * d]", "[(v - mean[i]) * rstd[i] for v in self.data[i * d:(i + 1) * d]]")  # a tensor less


def a_class_of(**sources):
    """A folder for each student, with the events of the engine whose source it is, or with this text."""
    for who, source in sources.items():
        folder = FOLDER / "class" / who
        folder.mkdir(parents=True, exist_ok=True)
        if source.startswith('"""'):
            tiny(source)
            gc.collect()
            FILE.rename(folder / FILE.name)
        else:
            (folder / FILE.name).write_text(source)


def the_page_prints_what_it_shows():
    source = (ENGINES / "tiny.py").read_text()
    a_class_of(ada=source.replace(*BETTER), blaise=source)
    for file in ENGINES.iterdir():
        if file.is_file():
            (FOLDER / file.name).write_bytes(file.read_bytes())
    told = changed(tape.answer(8), re.search(r"```diff\n(.*?)```", PAGE, re.S)[1])
    (FOLDER / "tape.c").write_text(tape.answer(8))
    if shutil.which("patch"):
        subprocess.run(["patch", "-s", "tape.c", "tape.patch"], cwd=FOLDER, check=True)
        equal((FOLDER / "tape.c").read_text(), told, "the tape after the patch, and after the page's diff")
    else:
        print("skipped: patch is not installed")
    (FOLDER / "tape.c").write_text(told)
    (FOLDER / "step.c").write_text(re.search(r"```c\n(.*?)```", PAGE, re.S)[1])
    equal(json.loads(re.search(r"```json\n(.*?)```", PAGE, re.S)[1]), json.loads((ENGINES / "layer_norm.json").read_text()), "the task")
    for file in ("events.py", "events.h", "tiny.py"):
        n = len((ENGINES / file).read_text().splitlines())
        check(n < 120 and f" {n} lines" in PAGE, f"{file} has {n} lines, which the page does not say, or too many")
    n = 0
    for block in re.findall(r"```console\n(.*?)```", PAGE, re.S):
        for command, shown in re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", block, re.M):
            p = subprocess.run(["sh", "-c", command], cwd=FOLDER, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                               timeout=60)
            printed = p.stdout.endswith(shown[4:]) if shown.startswith("...\n") else p.stdout == shown
            check(printed, f"{command}: prints {p.stdout!r}, the page shows {shown!r}")
            n += 1
    equal(n, 8, "commands of the page")
    the_lines_that_probe(re.search(r"```python\n(def probe.*?)```", PAGE, re.S)[1])


def the_lines_that_probe(source):
    """The function that the page shows, in an engine of one op."""
    names = {}
    exec(source, names)

    class Leaf:
        pass

    leaf, told = Leaf(), []
    leaf.data, leaf.grad = [1.0] * 40, [2.0] * 40
    events = Events(FILE, Leaf)
    events.tell = lambda event, **fields: told.append({"event": event, **fields})
    names["probe"](events, "w", leaf, lambda: sum(v * v for v in leaf.data))
    equal([(e["event"], e["name"], e["index"]) for e in told], [("probe", "w", 0), ("probe", "w", 37)], "probes")
    found = [memtape.events.Probe(e["name"], e["index"], e["gradient"], (e["up"] - e["down"]) / (2 * e["by"])) for e in told]
    equal(memtape.events.wrong_gradients(found, "w"), [], "gradients of a sum of squares")
    equal(leaf.data, [1.0] * 40, "the leaf afterwards")


def tiny(source):
    """Runs the tiny engine with this source; returns the gradient of its input."""
    gc.collect()  # what an engine before it left would be freed in this one's file
    names = {"__name__": "tiny"}
    exec(compile(source, str(FOLDER / "tiny.py"), "exec"), names)
    return names["run"](Events(FILE, names["Tensor"]))


def a_task_is_done_when_the_bytes_are_equal():
    source = (ENGINES / "tiny.py").read_text()
    task = ENGINES / "layer_norm.json"
    before = tiny(source)
    equal(ended(FILE, "--task", task)[0], 1, "status of what is not done")
    after = tiny(source.replace(*BETTER))
    equal(ended(FILE, "--task", task), (0, "done: Make your layer norm keep one tensor less\n", ""), "what is done")
    equal(list(after), list(before), "gradients, with a tensor less")
    # Too little is as wrong as too much.
    gc.collect()
    lines = FILE.read_text().splitlines(keepends=True)
    FILE.write_text("".join(line for line in lines if '"layer_norm", "name": "self"' not in line))
    status, out, _ = ended(FILE, "--task", task)
    equal(status, 1, "status of an op that keeps too little")
    check("8,192 too few" in out and "expected, and not kept: self [64,16] f64, 8,192 bytes" in out, out)


def a_class_is_graded():
    source, task, table = (ENGINES / "tiny.py").read_text(), ENGINES / "layer_norm.json", FOLDER / "grades.csv"
    a_class_of(ada=source.replace(*BETTER), blaise=source, carl='{"event": "alloc"}\n')
    all_of = [FOLDER / "class" / who for who in ("ada", "blaise", "carl", "dora")]
    (FOLDER / "class" / "dora").mkdir(exist_ok=True)  # who has handed in nothing
    status, out, err = ended(*all_of, "--task", task, "--csv", table)
    equal((status, err, out.splitlines()[-1]), (1, "", "1 of 4 done"), "a class")
    rows = list(csv.reader(table.open(newline="")))
    equal([row[:2] for row in rows], [["who", "result"], ["ada", "done"], ["blaise", "not yet"], ["carl", "refused"], ["dora", "refused"]], "the table")
    check("7,680 too many" in rows[2][2] and '"id" is missing' in rows[3][2] and "No such file" in rows[4][2], f"why: {rows}")
    equal(ended(all_of[0], "--task", task)[0], 0, "status if all are done")
    equal(sorted(path.name for path in FOLDER.glob("grades*")), ["grades.csv"], "files")
    equal(ended(*all_of, "--task", task, "--csv", "-")[:2], (1, table.read_text()), "the same table, printed")
    for words, message in ((all_of, "need --task"), ([FILE, "--csv", table], "need --task"), ([*all_of, "--task", task, "--html", "r.html"], "--html")):
        status, _, err = ended(*words)
        check(status == 2 and message in err, f"{words}: {status} {err}")
    status, _, err = ended(*all_of, "--task", task, "--csv", FOLDER / "none" / "t.csv")
    check(status == 2 and "t.csv" in err, f"a table that cannot be written: {status} {err}")
    shutil.rmtree(FOLDER / "class")


def micrograd_is_watched():
    class Value:
        def __init__(self, data, _children=(), _op=""):
            self.data, self.grad = data, 0
            self._backward, self._prev, self._op = lambda: None, set(_children), _op

        def __mul__(self, other):
            out = Value(self.data * other.data, (self, other), "*")

            def _backward():
                self.grad += other.data * out.grad
                other.grad += self.data * out.grad
            out._backward = _backward
            return out

        def relu(self):
            out = Value(max(self.data, 0.0), (self,), "ReLU")

            def _backward():
                self.grad += (out.data > 0) * out.grad
            out._backward = _backward
            return out

    events = Events(FILE, Value)
    w = Value(2.0)
    events.phase("forward")
    x = Value(3.0)
    y = (x * w).relu()
    events.phase("backward")
    y.grad = 1
    y._backward()
    del x, y
    gc.collect()
    events.phase("step")
    w.data -= 0.1
    report = memtape.events.read(FILE)
    kept = [(t["op"], t["name"], t["bytes"], [(s["op"], s["name"]) for s in t["also"]]) for t in report.tensors()]
    equal(kept, [("mul", "out", 8, [("relu", "self")]), ("mul", "self", 8, []), ("relu", "out", 8, [])], "what micrograd keeps")
    equal(report["params"], {"count": 1, "bytes": 8}, "its parameter")
    equal([p["requested"] for p in report["steady"]["phases"]], [32, 8, 8], "bytes after each phase")
    equal(report["steady"]["by_category"]["activation"], 3 * 512, "allocated for activations")


def a_view_is_its_array_and_a_parameter_stays_one():
    try:
        numpy = importlib.import_module("numpy")
    except ImportError:
        print("skipped: numpy is not installed")
        return

    class Tensor:
        def __init__(self, data):
            self.data = data

    events = Events(FILE, Tensor)
    w = Tensor(numpy.ones((4, 2), numpy.float32))
    events.phase("forward")
    view = Tensor(w.data.reshape(8)[2:])
    made = Tensor(w.data + 1)
    w.data = w.data - 1
    del view
    lines = [json.loads(line) for line in FILE.read_text().splitlines()]
    told = [(e["event"], e.get("id"), e.get("category")) for e in lines if e["event"] != "phase"]
    equal(told, [("alloc", 1, "parameter"), ("alloc", 2, "activation"), ("alloc", 3, "parameter"), ("free", 1, None)], "events")
    equal(memtape.events.read(FILE)["steady"]["phases"][0]["requested"], 2 * made.data.nbytes, "bytes")


ALLOC = {"event": "alloc", "id": 1, "shape": [2], "dtype": "f32", "bytes": 8}
SAVE = {"event": "save", "id": 1, "op": "mul", "name": "x"}
FREE, RELEASE = {"event": "free", "id": 1}, {"event": "release", "id": 1, "op": "mul"}

PROBE = {"event": "probe", "name": "w", "index": 0, "gradient": 2.0, "up": 1.2, "down": 0.8, "by": 0.1}  # right


def phase(name):
    return {"event": "phase", "name": name}


# (events of which the last is refused, what the message has after the file and the line)
REFUSED = [
    ([{"event": "made", "id": 1}], '"event" is "made"; choose alloc, free, save, release, phase, probe'),
    ([{"id": 1}], '"event" is missing; choose alloc'),
    ([{"event": ["alloc"]}], '"event" is ["alloc"]; need a string'),
    ([{**ALLOC, "colour": 1}], '"colour" is 1; the fields here are event, id, shape, dtype, bytes, op, module, category'),
    ([{k: v for k, v in ALLOC.items() if k != "dtype"}], '"dtype" is missing; need event, id, shape, dtype, bytes'),
    ([{**ALLOC, "bytes": 9}], '"bytes" is 9; shape [2] of f32 takes 8'),
    ([{**ALLOC, "bytes": True}], '"bytes" is true; need a whole number'),
    ([{**ALLOC, "bytes": -8}], '"bytes" is -8; need a whole number'),
    ([{**ALLOC, "shape": [2.0]}], '"shape" is [2.0]; need a list of whole numbers'),
    ([{**ALLOC, "shape": 2}], '"shape" is 2; need a list'),
    ([{**ALLOC, "shape": [1 << 61], "bytes": 1 << 63}], '"bytes" is 9223372036854775808; need a whole number'),
    ([{**ALLOC, "id": i, "shape": [1 << 59], "bytes": 1 << 61} for i in range(8)], '"bytes" is 2305843009213693952; '),
    ([{**ALLOC, "dtype": "float"}], '"dtype" is "float"; need one of memtape\'s'),
    ([{**ALLOC, "category": "weights"}], '"category" is "weights"; choose parameter, gradient'),
    ([{**ALLOC, "id": None}], '"id" is null; need a whole number or a string'),
    ([{**ALLOC, "op": 3}], '"op" is 3; need a string'),
    ([ALLOC, ALLOC], '"id" is 1; it has been allocated since line 1'),
    ([FREE], '"id" is 1; it was never allocated'),
    ([ALLOC, FREE, FREE], '"id" is 1; it was freed in line 2'),
    ([ALLOC, SAVE, FREE], '"id" is 1; mul has kept it as x since line 2; it is released first'),
    ([SAVE], '"id" is 1; it was never allocated'),
    ([ALLOC, FREE, SAVE], '"id" is 1; it was freed in line 2'),
    ([ALLOC, {**SAVE, "role": "weight"}], '"role" is "weight"; choose input, output, aux'),
    ([ALLOC, RELEASE], '"op" is "mul"; who keeps it: nobody'),
    ([ALLOC, SAVE, {**RELEASE, "name": "y"}], '"name" is "y"; who keeps it: mul as x'),
    ([ALLOC, SAVE, {**RELEASE, "op": "add"}], '"op" is "add"; who keeps it: mul as x'),
    ([ALLOC, SAVE, RELEASE, RELEASE], '"op" is "mul"; who keeps it: nobody'),
    ([phase("backward")], '"name" is "backward"; choose init, forward'),
    ([phase("forward"), phase("step")], '"name" is "step"; choose backward'),
    ([ALLOC, phase("init")], '"name" is "init"; choose forward'),
    ([{**PROBE, "by": 0}], '"by" is 0; need a number above 0'),
    ([{**PROBE, "up": "1"}], '"up" is "1"; need a number'),
    ([{**PROBE, "gradient": float("nan")}], '"gradient" is NaN; need a number'),
    ([{**PROBE, "gradient": True}], '"gradient" is true; need a number'),
    ([{**PROBE, "index": -1}], '"index" is -1; need a whole number'),
    ([phase("forward"), phase("loss")], '"name" is "loss"; choose backward'),
]


def what_cannot_be_is_refused():
    for events, message in REFUSED:
        FILE.write_text("".join(json.dumps(e) + "\n" for e in events))
        status, out, err = ended(FILE)
        check(status == 2 and not out and err.startswith(f"memtape.events: {FILE}:{len(events)}: {message}"),
              f"{events}: {status}, {out!r}, {err!r}; wanted {message}")
    for text, message in (("", ': there is no forward; need {"event": "phase", "name": "forward"}'),
                          ("[1]\n", ":1: need a JSON object"), ("\n\n{\n", ":3: not JSON: "), ("[" * 100000, ":1: not JSON: "),
                          ("\x00\n", ":1: not JSON: ")):
        FILE.write_text(text)
        status, out, err = ended(FILE)
        check(status == 2 and err.startswith(f"memtape.events: {FILE}{message}"), f"{text[:9]!r}: {status}, {err!r}; wanted {message}")
    FILE.write_bytes(b"\xff\n")
    equal(ended(FILE)[0], 2, "status of what is not UTF-8")
    equal(ended(FOLDER / "none")[0], 2, "status without a file")
    equal(ended()[0], 2, "status without words")


TASKS = [
    ({}, '"task" is missing; need task'), ({"task": "t"}, '"keeps" is missing; need something to check'),
    ({"task": "t", "keeps": []}, '"op" is missing; op and keeps go together'),
    ({"task": "t", "op": "mul", "saved": 1}, '"keeps" is missing; op and keeps go together'),
    ({"task": "t", "saved": "8"}, '"saved" is "8"; need a whole number'), ({"task": 1, "peak": 8}, '"task" is 1; need a string'),
    ({"task": "t", "saved": 8, "gradients": "w"}, '"gradients" is "w"; need a list of strings'),
    ({"task": "t", "op": "mul", "keeps": [1]}, '"keeps" is [1]; need a list of objects'),
    ({"task": "t", "saved": 8, "grade": 1}, '"grade" is 1; the fields here are task, hint, op, keeps, saved, peak, gradients'),
]


def tasks_check_totals_and_are_checked():
    steps = [phase("init"), {**ALLOC, "id": "w", "category": "parameter"}]
    for _ in range(2):
        steps += [phase("forward"), {**ALLOC, "op": "mul"}, SAVE, {**SAVE, "op": "add"}, {**SAVE, "id": "w"}, phase("backward"),
                  {**ALLOC, "id": 2, "category": "gradient"}, RELEASE, {**RELEASE, "op": "add"}, {**RELEASE, "id": "w"}, FREE,
                  phase("step"), {"event": "free", "id": 2}]
    FILE.write_text("".join(json.dumps(e) + "\n" for e in steps))
    task = FOLDER / "task.json"
    for values, faults in (({"saved": 8, "peak": 1536}, 0), ({"saved": 16}, "8 bytes are kept after forward; expected 16: 8 too few"),
                           ({"peak": 1024}, "1,536 bytes are allocated at the peak; expected 1,024: 512 too many"),
                           ({"op": "add", "keeps": [{"name": "x", "shape": [2], "dtype": "f32"}]}, 0),
                           ({"op": "exp", "keeps": []}, 0)):
        task.write_text(json.dumps({"task": "t", **values}))
        status, out, err = ended(FILE, "--task", task)
        check((status, err) == (1 if faults else 0, "") and (out == "done: t\n" if not faults else faults in out), f"{values}: {out}{err}")
    for values, message in TASKS:
        task.write_text(json.dumps(values))
        status, _, err = ended(FILE, "--task", task)
        check(status == 2 and err.startswith(f"memtape.events: {task}: {message}"), f"{values}: {status}, {err!r}; wanted {message}")
    page, values = FOLDER / "report.html", FOLDER / "report.json"
    equal(ended(FILE, "--html", page, "--json", values)[0], 0, "status of a report")
    read = json.loads(values.read_text())
    equal([read["saved"]["bytes"], read["steady"]["peak"], read["peak"]["step"], read["schema"]], [8, 1536, 2, "memtape.profile/1"], "a report")
    check("memtape.profile/1" in page.read_text(), "the page has no report")


def gradients_are_compared_with_differences():
    run = [phase("init"), {**ALLOC, "id": "w", "category": "parameter"}, phase("forward"), ALLOC, SAVE, phase("backward"), RELEASE, FREE]
    task = FOLDER / "task.json"
    task.write_text(json.dumps({"task": "t", "saved": 8, "gradients": ["w"]}))
    other = {**PROBE, "index": 1, "gradient": 0.001, "up": 1, "down": 1}  # within a thousandth of the largest
    for probes, status, fault in (([PROBE, other], 0, "Gradients of w: 2 compared with finite differences, all right"),
                                  ([], 1, "the gradient of w has no probe"), ([{**PROBE, "name": "v"}], 1, "the gradient of w has no probe"),
                                  ([{**PROBE, "up": 1, "down": 1}], 1, "the loss does not depend on w"),
                                  ([{**PROBE, "gradient": -2}, other], 1, "wrong at 1 of 2 places: w[0] has -2; the loss changes by 2 for each"),
                                  ([PROBE, {**other, "gradient": 0.01}], 1, "wrong at 1 of 2 places: w[1] has 0.01; the loss changes by 0 for each")):
        FILE.write_text("".join(json.dumps(e) + "\n" for e in [*run, *probes]))
        got, out, err = ended(FILE, "--task", task)
        equal((got, err), (status, ""), f"status with {probes}: {out}")
        check(fault in (ended(FILE)[1] if status == 0 else out), f"{probes}: {out}; wanted {fault}")
        equal(ended(FILE)[0], 0, "status of the report")


# What a terminal would obey, or shows in another order; one half of a character of UTF-16; no character.
FOREIGN = "n\x1b]0;t\x07\x7f\x9b31m\x85\u202e\u2066\u200f\u061c\ufffe z"
HALF = "n\ud800 z"
OBEYED = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufffe\uffff\ud800-\udfff]")


def program(*words, **env):
    """(status, output, messages) of the command as a process; none of what it prints is obeyed, or a traceback."""
    p = subprocess.run([sys.executable, "-m", "memtape.events", *words], capture_output=True, timeout=60, cwd=FOLDER,
                       env={**os.environ, **env})
    out, err = (text.decode(env.get("PYTHONIOENCODING", "utf-8"), "surrogateescape") for text in (p.stdout, p.stderr))
    for text in out, err:
        check(not OBEYED.search(text) and "Traceback" not in text, f"{words}: prints {text!r}")
    check(p.returncode in (0, 1, 2), f"{words}: status {p.returncode}")
    return p.returncode, out, err


def a_run(**names):
    """Events that have each of the texts that there are, and those that are given."""
    alloc = {**ALLOC, "op": "mul", "module": "m", **{k: v for k, v in names.items() if k in ("id", "dtype", "category")}}
    alloc.update({k: v for k, v in names.items() if k in ("op", "module")})
    save = {**SAVE, "module": "m", "role": "input", "id": alloc["id"]}
    save.update({k: v for k, v in names.items() if k in ("op", "module", "name", "role")})
    return [phase("init"), phase("forward"), alloc, save, phase("backward"), phase("step")]


def foreign_text_is_not_obeyed():
    task = FOLDER / "task.json"
    task.write_text(json.dumps({"task": "t", "peak": 1}))
    for key in ("id", "op", "module", "name", "role", "dtype", "category"):
        for text in FOREIGN, HALF, "f32\x00":
            FILE.write_text("".join(json.dumps(e) + "\n" for e in a_run(**{key: text})))
            taken = text is FOREIGN and key in ("id", "op", "module", "name")
            for words in [FILE], [FILE, "--task", task], [FILE, "--json", FOLDER / "r.json", "--html", FOLDER / "r.html"]:
                status, out, err = program(*words)
                equal(status, (1 if "--task" in words else 0) if taken else 2, f"status with {key} {text!r}: {err!r}")
                check(taken or key == "id" or err.startswith(f'memtape.events: {FILE}:') and f'"{key}" is "' in err, f"{key}: {err!r}")
        if taken and key != "id":
            equal(json.loads((FOLDER / "r.json").read_text())["saved"]["bytes"], 8, f"a report with {key}")
    # Names of fields, values that are no text, a run that goes on after a save
    for events in [{FOREIGN: 1}], [{**ALLOC, FOREIGN: 1}], [{**ALLOC, HALF: 1}], [{"event": FOREIGN}], [{"event": [HALF, FOREIGN]}], \
            [{**ALLOC, "shape": FOREIGN}], [{**ALLOC, "bytes": HALF}], [phase(FOREIGN)], [phase(HALF)], \
            [{**ALLOC}, {**SAVE, "op": FOREIGN, "name": FOREIGN}, FREE], [{**ALLOC}, {**SAVE, "op": FOREIGN}, RELEASE]:
        FILE.write_text("".join(json.dumps(e) + "\n" for e in events))
        equal(program(FILE)[0], 2, f"status of {events}")
    FILE.write_text("".join(json.dumps(e) + "\n" for e in a_run(module="mødul")))
    for values in {"task": FOREIGN}, {"hint": FOREIGN}, {"op": FOREIGN, "keeps": []}, {"task": HALF}, {"hint": HALF}, {FOREIGN: 1}, \
            {"op": "mul", "keeps": [{"name": FOREIGN, "shape": [9], "dtype": "f32"}]}, {"op": "mul", "keeps": [{FOREIGN: 1}]}:
        task.write_text(json.dumps({"task": "t", "peak": 1, **values}))
        program(FILE, "--task", task)
    for name in FOREIGN.encode(), b"a\xff\xc3(z", HALF.encode("utf-8", "surrogatepass"):
        own = os.path.join(os.fsencode(FOLDER), name + b".jsonl")
        Path(os.fsdecode(own)).write_bytes(FILE.read_bytes())
        for words in [own], [own, "--json", own + b".json", "--html", own + b".html"], [b"--" + name], [own, name], [own + b"none"], \
                [own, "--task", own], [FILE, "--task", own + b"none"], [FILE, "--html", b"none/" + name], [FILE, "--json", b"none/" + name]:
            status, _, err = program(*words)
            equal(status, 0 if words[0] == own and len(words) in (1, 5) else 2, f"status of {words}: {err}")
        check("memtape.profile/1" in Path(os.fsdecode(own + b".html")).read_text(), f"the page of {name}")
        equal(json.loads(Path(os.fsdecode(own + b".json")).read_text())["device"], "events", f"the report of {name}")
    # What the terminal has no letters for
    equal(program(FILE, PYTHONIOENCODING="ascii")[0], 0, "status where output is ASCII")
    report = memtape.report.Report({"model": {}}, FOREIGN)
    for text in str(report), repr(report), str(memtape.MemtapeError(FOREIGN + HALF)):
        check(not OBEYED.search(text), f"printed: {text!r}")


for test in (the_page_prints_what_it_shows, a_task_is_done_when_the_bytes_are_equal, a_class_is_graded, micrograd_is_watched,
             a_view_is_its_array_and_a_parameter_stays_one, what_cannot_be_is_refused, tasks_check_totals_and_are_checked,
             gradients_are_compared_with_differences,              foreign_text_is_not_obeyed):
    test()
done()
