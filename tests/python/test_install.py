"""`pip install .` in a new environment gives a package, a program and nothing else to build; and nothing in the tree
changes. Exit status 77 if pip cannot fetch what builds the package."""
import os
import subprocess
import sys
import tempfile
from pathlib import Path
sys.path.append(str(Path(__file__).parent.parent / "cli"))
from lib import check, done, equal, run  # noqa: E402

ROOT = Path(__file__).parents[2]
with tempfile.TemporaryDirectory() as folder:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("MEMTAPE", "PYTHON"))}

    def call(*words):
        return subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True, timeout=800)

    call(sys.executable, "-m", "venv", "venv")
    pip, python, program = ([f"{folder}/venv/bin/{name}"] for name in ("pip", "python", "memtape"))
    fetched = call(*pip, "install", "-q", "meson-python>=0.15", "meson", "ninja")
    if fetched.returncode:
        print(f"skipped: {fetched.stderr.strip()[-300:]}")
        sys.exit(77)
    before = sorted(os.listdir(ROOT))
    # Without isolation and index: nothing but what has been fetched is needed.
    installed = call(*pip, "install", "-q", "--no-build-isolation", "--no-index", str(ROOT))
    equal(installed.returncode, 0, f"status of pip install: {installed.stdout} {installed.stderr}")
    equal(sorted(os.listdir(ROOT)), before, "what lies in the tree")
    equal(call(*program, "--version").stdout, run("--version").stdout, "the program")
    report = call(*python, "-c", "import memtape; r = memtape.profile('mlp', act='relu', seq=8); print(r['saved']['bytes']);"
                  "print(memtape.Report(r.to_dict(), 'x').html()[:15])")
    wanted = run("profile", "mlp", "--act", "relu", "-s", 8, "--device", "meta").stdout
    saved, _, page = report.stdout.partition("\n")
    check(saved and f"{int(saved):,} " in wanted, f"a profile: {report.stdout} {report.stderr}")
    equal(page, "<!doctype html>\n", f"a page by the library: {report.stderr}")
    listed = call(*pip, "show", "-f", "memtape").stdout
    check("memtape/libmemtape.so" in listed and ".h\n" not in listed, f"files of the package: {listed}")
    if mpirun := os.environ.get("MPIRUN", "").split():
        ranks = call(*mpirun, "-n", "2", *program, "profile", "gpt", "-b", "2", "--dp", "2")
        check(ranks.returncode == 0 and "2 ranks on cpu" in ranks.stdout, f"ranks of the package: {ranks.stderr}")
        check("memtape/libmemtape-mpi.so" in listed, f"MPI's module in the package: {listed}")
    else:
        print("skipped: no MPI: no ranks of the package")
    bad = call(*program, "profile", "nothing")
    equal(bad.returncode, 2, "status of a refusal")
done()
