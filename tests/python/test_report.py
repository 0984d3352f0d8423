"""The package without PyTorch: profiles and reports are the program's, errors are exceptions with its message."""
import builtins
import html
import importlib
import json
import os
import pickle
import re
import subprocess
import sys
import tempfile
from pathlib import Path
sys.path.append(str(Path(__file__).parent.parent / "program" / "verbs"))
from lib import check, done, equal, profile, run  # noqa: E402

import memtape  # noqa: E402
from refusals import refused  # noqa: E402

FOLDER = Path(tempfile.mkdtemp())


def python(code, **environment):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300,
                          env={**os.environ, **environment})


def profile_is_the_program_s():
    for words, options in [(["mlp", "--act", "gelu"], {"act": "gelu"}),
                           (["gpt", "-l", 2, "--kv-heads", 1, "--dropout", 0.25, "-b", 3], {"layers": 2, "kv_heads": 1, "dropout": 0.25,
                                                                                     "batch": 3, "causal": None}),
                           (["gpt:untied,norm-kind=rmsnorm", "--recipe", "plain:rms-norm=unfused"], {"untied": True, "norm_kind": "rmsnorm", "rms_norm": "unfused"}),
                           (["block", "--checkpoint", "full", "--optimizer", "adamw"],
                            {"checkpoint": "full", "optimizer": "adamw", "inplace": False})]:
        report = memtape.profile(words[0].split(":")[0], **options)
        equal(report.to_dict(), profile(*words, "--device", "meta"), f"the report of {words}")
        equal(list(report), list(report.to_dict()), "keys")
        equal(report["saved"]["bytes"], sum(t["bytes"] for t in report.tensors()), "saved bytes")
        check(words[0].split(":")[0] in repr(report), repr(report))
    for size, rank in (("PMI_SIZE", "PMI_RANK"), ("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK")):
        p = python("import memtape; print(memtape.profile('mlp')['saved']['bytes'])", **{size: "2", rank: "1", "PMI_FD": "77"})
        equal(p.stdout, f"{memtape.profile('mlp')['saved']['bytes']}\n", f"the script of a rank, by {size}: {p.stderr}")
    cpu = memtape.profile("mlp", device="cpu", batch=1, seq=8, hidden=16)
    equal(cpu["device"], "cpu", "device")
    check(cpu["phases"][1]["seconds"] is not None, "times of a run on the CPU")


def page_is_the_program_s():
    path = FOLDER / "page.html"
    report = memtape.profile("mlp", act="relu")
    run("profile", "mlp", "--act", "relu", "--device", "meta", "-q", "--html", path)
    equal(report.html(), path.read_text(), "the page")
    report.write_html(FOLDER / "written.html")
    equal((FOLDER / "written.html").read_text(), report.html(), "the page written")
    equal((FOLDER / "written.html").stat().st_mode & 0o777, path.stat().st_mode & 0o777, "mode of the file")
    frame = report._repr_html_()
    source = re.search(r'srcdoc="([^"]*)"', frame)
    check(frame.startswith("<iframe ") and 'sandbox="allow-scripts"' in frame, "a frame that cannot reach the notebook")
    equal(html.unescape(source[1]), report.html(), "the page in the frame")


def reports_of_json_have_a_page():
    values = memtape.profile("mlp", act="relu").to_dict()
    report = memtape.Report(values, "<b>& \u2028</title>")
    page = report.html()
    equal(json.loads(re.search(r'id="report">(.*?)</script>', page, re.S)[1]), values, "the report in the page")
    check("<title>&lt;b&gt;&amp; " in page, "the title is only text")
    report.write_html(FOLDER / "made.html")
    equal((FOLDER / "made.html").read_text(), page, "the page written")
    copy = pickle.loads(pickle.dumps(report))
    equal((dict(copy), copy.title), (dict(report), report.title), "a pickled copy")
    values["saved"]["tensors"][0]["also"].append({"module": "</script><script>alert(1)</script>"})
    equal(memtape.Report(values, "x").html().count("<script"), 3, "text of a report is only text")


def a_name_need_not_be_utf8():
    folder = os.fsencode(tempfile.mkdtemp()) + b"/a\xff\x1b[2J\xc2\x9b\xe2\x80\xae"
    os.mkdir(folder)
    with open(folder + b"/config.json", "w") as f:
        json.dump({"model_type": "gpt2", "n_embd": 16, "n_head": 2, "n_layer": 1, "vocab_size": 300, "n_positions": 64}, f)
    for name in folder, os.fsdecode(folder):
        report = memtape.profile(name, batch=1, seq=8)
        for text in report.title, report.json(), report.html():
            text.encode()
        memtape.Report(dict(report), os.fsdecode(folder)).html()
        check("\x1b" not in memtape.run("explain", name, "-b", 1, "-s", 8), "control sequences of a name")


def bad_reports_are_refused():
    values = memtape.profile("mlp").to_dict()
    for what, said, changed in [("another schema", "accepted: memtape.profile/1", {**values, "schema": "memtape.fit/1"}),
                                ("no schema", "schema is missing", {"saved": {}}), ("nothing", "schema is missing", {})]:
        refused(what, said, memtape.Report(changed, "x").html)
        refused(what, said, lambda: memtape.Report(changed, "x").write_html(FOLDER / "no.html"))
    not_json = memtape.Report({**values, "device": float("nan")}, "x")
    refused("a number that JSON lacks", "line", not_json.html)
    for report in (memtape.profile("mlp"), memtape.Report(values, "x")):
        refused("a folder that does not exist", f"{FOLDER / 'no'}", lambda: report.write_html(FOLDER / "no" / "r.html"),
                (memtape.MemtapeError, OSError))
    equal(sorted(p.name for p in FOLDER.iterdir()), ["made.html", "page.html", "written.html"], "nothing else is left")


def errors_are_the_program_s():
    for call, said in [(lambda: memtape.profile("mlp", act="rellu"), 'unknown "rellu", did you mean relu?'),
                       (lambda: memtape.profile("gpt3"), "gpt3"), (lambda: memtape.profile("mlp", batch=0), "--batch"),
                       (lambda: memtape.profile("mlp", colour="red"), "--colour"),
                       (lambda: memtape.profile("--help"), "./--help"), (lambda: memtape.profile("-h"), "./-h"),
                       (lambda: memtape.profile("mlp", help=True), "made no report"),
                       (lambda: memtape.profile("gpt2", capacity="1MiB"), "1 MiB"), (lambda: memtape.run("nothing"), "verb")]:
        refused(f"{said}", said, call)
    equal(memtape.run("explain", "mlp", "--act", "gelu"), run("explain", "mlp", "--act", "gelu").stdout, "run")


def the_package_is_run_as_the_program():
    for words in (["--version"], ["plan", "gpt2"], ["plan", "gpt3"], []):
        found = subprocess.run([sys.executable, "-m", "memtape", *words], capture_output=True, text=True, timeout=300)
        wanted = run(*words)
        equal((found.returncode, found.stdout), (wanted.returncode, wanted.stdout), f"python -m memtape {words}: {found.stderr}")


def what_is_missing_is_named():
    importing = builtins.__import__

    def without(name, *rest):
        if name.split(".")[0] in ("torch", "pandas"):
            raise ImportError(f"no {name}")
        return importing(name, *rest)

    builtins.__import__ = without
    try:
        refused("memtape.torch without PyTorch", "pip install torch", lambda: importlib.import_module("memtape.torch"), ImportError)
        refused("a DataFrame without pandas", "pip install pandas", memtape.profile("mlp").dataframe, ImportError)
    finally:
        builtins.__import__ = importing
    profile = "import memtape; memtape.profile('mlp')"
    page = "import memtape; memtape.Report({'schema': 'memtape.profile/1'}, 'x').html()"
    for code, name in [(profile, "MEMTAPE"), (page, "MEMTAPE_LIBRARY")]:
        ended = python(code, **{name: "/nowhere"})
        check(ended.returncode and f"MemtapeError: {name}=/nowhere is not a file" in ended.stderr, ended.stderr)
        ended = python(code, **{name: ""})
        check("install the package with pip" in ended.stderr, ended.stderr)
    ended = python(page, MEMTAPE_LIBRARY=__file__)
    check("MemtapeError: " in ended.stderr and "test_report.py" in ended.stderr, ended.stderr)
    equal(python("import memtape, sys; print({'torch', 'numpy', 'pandas', 'ctypes'} & set(sys.modules))").stdout,
          "{'ctypes'}\n", "what importing the package imports")


def data_frame_has_a_row_for_each_storage():
    try:
        import pandas  # noqa: F401
    except ImportError:
        print("skipped: pandas is not installed")
        return
    report = memtape.profile("gpt", layers=2)
    frame = report.dataframe()
    equal(frame["bytes"].sum(), report["saved"]["bytes"], "sum of bytes")
    equal(list(frame["op"]), [t["op"] for t in report.tensors()], "ops")
    equal(int(frame["shared_by"].sum()), sum(len(t["also"]) for t in report.tensors()), "other savers")


def types_are_clean():
    try:
        importlib.import_module("mypy")
    except ImportError:
        print("skipped: mypy is not installed")
        return
    root = Path(__file__).parent.parent.parent
    ended = subprocess.run([sys.executable, "-m", "mypy", "--strict", "--cache-dir", FOLDER / "mypy", "python/memtape"],
                           cwd=root, capture_output=True, text=True, timeout=300)
    check(ended.returncode == 0, ended.stdout)


def every_module_is_installed():
    root = Path(__file__).parent.parent.parent / "python"
    named = re.findall(r"'memtape/([\w.]+)'", (root / "meson.build").read_text())
    equal(sorted(named), sorted(path.name for path in (root / "memtape").iterdir() if path.suffix in (".py", ".typed")), "modules that are installed")


for test in [profile_is_the_program_s, page_is_the_program_s, reports_of_json_have_a_page, a_name_need_not_be_utf8, bad_reports_are_refused,
             errors_are_the_program_s, the_package_is_run_as_the_program, what_is_missing_is_named, data_frame_has_a_row_for_each_storage, types_are_clean, every_module_is_installed]:
    test()
done()
