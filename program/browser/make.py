"""Writes build-page/build.ninja: memtape compiled to WebAssembly, and the page with the module in it.

make.py ZIG JANSSON: the folder of the wheel ziglang (compiler, and musl's source), and jansson's source.

Sizes of models need 64 bits, and addresses on meta, too: the module is compiled for wasm64, and wasm-opt lowers that to
32-bit memory, which every browser has."""
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ZIG, JANSSON = (Path(p).resolve() for p in sys.argv[1:])
OUT = ROOT / "build-page"
LIBC = ZIG / "lib/libc"
MUSL = LIBC / "musl"
# There is no wasm64 among musl's; this one's types have its sizes.
ARCH = "riscv64"

# What needs processes, MPI, a GPU or the libraries of tokenizers; program/browser/start.c stands for verbs/start.c.
LEFT_OUT = re.compile(r"src/backends/(cuda/|loaded_module\.c)|models/(comm/mpi\.c|tokens/(?!token_list|no_tokens))|program/(browser/|verbs/start\.c|options/reference_pages\.c)")
STOREYS = ("src", "models", "lab", "program")
JANSSON_FILES = "dump error hashtable hashtable_seed load memory pack_unpack strbuffer strconv utf value version"
REPORT = ["page.html", "page.css", "text.js", "run.js", "head.js", "chart.js", "alive.js", "saved.js", "tape.js", "compare.js",
          "sweep.js", "plan.js", "pages.js", "main.js"]
SCRIPTS = ["program.js", "views.js", "live-tape.js", "training.js", "course.js", "measured.js", "page.js"]
FEATURES = "bulk-memory sign-ext mutable-globals nontrapping-float-to-int reference-types multivalue memory64"


def flags(*words):
    return " ".join(map(str, words))


def version():
    return re.search(r"version : '([^']+)'", (ROOT / "meson.build").read_text())[1]


TARGET = flags(ZIG / "zig", "cc -target wasm64-freestanding -w -DNDEBUG -fno-math-errno -MD -MF $out.d")
SYSTEM = flags(*(f"-I{p}" for p in (MUSL / "arch" / ARCH, LIBC / f"include/{ARCH}-linux-musl", LIBC / "include/generic-musl")))
OWN = flags("-std=c11 -O2 -D_GNU_SOURCE -DMTI_NO_MULTIVERSION -Dmain=mt_page_main", f"'-DMTI_VERSION=\"{version()}\"'",
            *(f"'-D{name}=\"/\"'" for name in ("MTI_SOURCE_DIR", "MTI_DATA_DIR", "MTI_MODULE_DIR", "MTI_LIBDIR")),
            *(f"-I{p}" for p in (ROOT / "include", *(ROOT / storey for storey in STOREYS), ROOT / "program/browser/include", JANSSON / "src")))
LIBRARY = flags("-std=c99 -ffreestanding -O2 -D_XOPEN_SOURCE=700",
                *(f"-I{p}" for p in (ROOT / "program/browser/libc", MUSL / "arch/generic", MUSL / "src/include", MUSL / "src/internal")))
JSON = flags(f"-O2 -D_GNU_SOURCE -DHAVE_STDINT_H -I{ROOT}/program/browser/include")


def sources():
    """(file, flags) of each."""
    for path in sorted(path for storey in STOREYS for path in (ROOT / storey).rglob("*.c")):
        if not LEFT_OUT.match(str(path.relative_to(ROOT))):
            yield path, OWN
    for name in re.findall(r"^EXAMPLE\((\w+),", (ROOT / "program/browser/examples.def").read_text(), re.M):
        yield ROOT / "examples" / f"{name}.c", OWN.replace("-Dmain=mt_page_main", f"-Dmain=mt_example_{name}")
    yield ROOT / "tests/src/gradcheck/audit.c", OWN  # of examples/audit.c
    for name in ("examples.c", "start.c", "products.c"):
        yield ROOT / "program/browser" / name, OWN
    yield OUT / "report.c", OWN
    yield ROOT / "program/browser/posix.c", LIBRARY
    for line in (ROOT / "program/browser/libc/files").read_text().splitlines():
        folder, names = line.split(":")
        for name in names.split():
            yield MUSL / "src" / folder / f"{name}.c", LIBRARY
    for name in JANSSON_FILES.split():
        yield JANSSON / "src" / f"{name}.c", JSON


def ninja():
    yield f"""rule cc
  command = {TARGET} $flags -c $in -o $out {SYSTEM}
  depfile = $out.d
  deps = gcc
  description = $in
rule link
  command = {ZIG}/zig cc -target wasm64-freestanding -Os -nostdlib -Wl,--no-entry -Wl,--gc-sections -Wl,--strip-all -Wl,--import-memory $
    -Wl,-z,stack-size=1048576 @$out.rsp -o $out
  rspfile = $out.rsp
  rspfile_content = $in
rule lower
  command = wasm-opt $in {flags(*(f"--enable-{f}" for f in FEATURES.split()))} --memory64-lowering -O1 -o $out
rule python
  command = python3 $script $out $in
"""
    objects = []
    for path, options in sources():
        base = MUSL if MUSL in path.parents else JANSSON if JANSSON in path.parents else ROOT
        object_ = OUT / "objects" / path.relative_to(base).with_suffix(".o")
        objects.append(str(object_))
        yield f"build {object_}: cc {path}\n  flags = {options}\n"
    report = ROOT / "program/report/page"
    yield f"build {OUT}/report.c: python {flags(*(report / f for f in REPORT))} | {report}/join.py\n  script = {report}/join.py\n"
    yield f"build {OUT}/memtape64.wasm: link {flags(*objects)}\n"
    yield f"build {OUT}/memtape.wasm: lower {OUT}/memtape64.wasm\n"
    own = ROOT / "program/browser"
    lessons = sorted((ROOT / "docs/lessons").glob("*.*"))
    yield f"build {OUT}/course.json: python | {flags(own / 'course.py', own / 'examples.def', *lessons)}\n  script = {own}/course.py\n"
    parts = [OUT / "memtape.wasm", OUT / "course.json", own / "page.html", own / "worker.js", *(report / f for f in REPORT[1:-1]), own / "page.css",
             *(own / f for f in SCRIPTS)]
    yield f"build {OUT}/memtape.html: python {flags(*parts)} | {ROOT}/program/browser/embed.py\n  script = {ROOT}/program/browser/embed.py\n"
    yield f"default {OUT}/memtape.html\n"


OUT.mkdir(exist_ok=True)
(OUT / "LICENCES.txt").write_text("\n\n".join(f"{path.parent.name}\n\n{path.read_text()}" for path in (MUSL / "COPYRIGHT", JANSSON / "LICENSE")))
(OUT / "build.ninja").write_text("".join(ninja()))
