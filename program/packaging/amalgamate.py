#!/usr/bin/env python3
"""amalgamate.py FOLDER: writes the engine, with the CPU and meta backends, as memtape.c and memtape.h into FOLDER.

A program then needs no build system:  cc -O2 -fopenmp mine.c memtape.c -lopenblas -lm

Headers are expanded where they are first included, .def and .inc files wherever they are. A name that two files define for
themselves (a static function, a type) gets the file's name behind it; macros of a file end with it."""
import re
import sys
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ROOMS = ("base", "backends", "memtrack", "tensor", "autograd", "ops", "hooks")
BACKENDS = ("cpu", "meta")
# A loadable module's side, and how tests call each op.
LEFT_OUT = ("backends/loaded_module.c", "ops/op_cases.c")
INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*"([^"]+)"[^\n]*\n', re.M)
PUBLIC = re.compile(r'^[ \t]*#[ \t]*include[ \t]*[<"](memtape/[^">]+)[">][^\n]*\n', re.M)
COMMENT = re.compile(r'/\*.*?\*/|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])+\'', re.S)


def sources():
    for room in ROOMS:
        folder = ROOT / "src" / room
        paths = sorted(folder.glob("*.c"))
        if room == "backends":
            paths += [path for backend in BACKENDS for path in sorted((folder / backend).rglob("*.c"))]
        yield from (path for path in paths if str(path.relative_to(ROOT / "src")) not in LEFT_OUT)


def blank(text):
    """The text without what stands in comments and quotes; as many characters and lines."""
    return COMMENT.sub(lambda m: re.sub(r"[^\n]", " ", m[0]), text)


def at_file_scope(text):
    """Lines of code outside of braces, in which names are defined, with what a brace opens cut off."""
    depth, line, lines = 0, "", []
    in_macro = False
    for raw in blank(text).split("\n"):
        if in_macro or raw.lstrip().startswith("#"):
            in_macro = raw.rstrip().endswith("\\")
            continue
        for c in raw + "\n":
            if c == "{":
                depth += 1
                line += "{" if depth == 1 else ""
            elif c == "}":
                depth -= 1
                line += "}" if depth == 0 else ""
            elif depth == 0:
                line += c
                if c == ";":
                    lines.append(line)
                    line = ""
            if depth == 0 and c == "}" and re.match(r"(?!\s*typedef)[^={]*\(", line):  # a function's end
                lines.append(line)
                line = ""
    return lines


def own_names(text):
    """What a file defines for itself alone: static functions and variables, types, constants of enums."""
    names = set()
    for line in at_file_scope(text):
        line = re.sub(r"__attribute__ ?\(\(.*?\)\)(?= ?[;{*]| \w)", "", " ".join(line.split()))
        line = re.sub(r"\b[A-Z_0-9]+\((\w+)\) ?\(", r"\1(", line)  # TYPED(name)(...)
        names |= set(re.findall(r"\b(?:struct|enum|union) (\w+) ?\{", line))
        if line.startswith("typedef"):
            names |= set(re.findall(r"(\w+)(?:\[[^\]]*\])? ?;$", line)) | set(re.findall(r"\(\*?(\w+)\)\(", line))
        elif re.match(r"(?:_Thread_local )?(?:static|MTI_INLINE)\b", line):
            found = re.search(r"(\w+) ?(?:\(|=|\[|;)", line)
            names |= {found[1]} if found else set()
    for body in re.findall(r"\benum\b[^{;()]*\{([^}]*)\}", blank(text)):
        names |= set(re.findall(r"(?:^|,)\s*(\w+)", body))
    macros_ = set(re.findall(r"^[ \t]*#[ \t]*define[ \t]+(\w+)", text, re.M))
    return names - macros_


def renamed(text, names, suffix):
    """The text with these names changed, except where they are members: behind a dot or an arrow."""
    if not names:
        return text
    word = re.compile(r"(?<![\w.])(?<!->)(?<!\. )(" + "|".join(sorted(names)) + r")(?=_f32\b|_f64\b|\b)")
    hidden = blank(text)
    out, last = [], 0
    for m in word.finditer(hidden):
        out += [text[last:m.end()], suffix]
        last = m.end()
    return "".join(out) + text[last:]


class Expander:
    def __init__(self):
        self.seen = set()

    def find(self, name, folder):
        for base in (folder, ROOT / "src", ROOT / "include"):
            if (base / name).is_file():
                return (base / name).resolve()
        raise SystemExit(f"amalgamate: {name}, included from {folder}, is not there")

    def expand(self, path, text=None):
        text = path.read_text() if text is None else text

        def included(m):
            if m[1].startswith("memtape/"):
                return ""
            target = self.find(m[1], path.parent)
            if target.suffix == ".h" and "#ifndef" in target.read_text():
                if target in self.seen:
                    return ""
                self.seen.add(target)
            return self.expand(target)
        return INCLUDE.sub(included, PUBLIC.sub("", text))


def public_header():
    seen = set()

    def expand(path):
        if path in seen:
            return ""
        seen.add(path)
        return PUBLIC.sub(lambda m: expand(ROOT / "include" / m[1]), path.read_text())
    return "/* The engine's public headers as one. */\n" + expand(ROOT / "include/memtape/memtape.h")


def macros(text):
    names = re.findall(r"^[ \t]*#[ \t]*define[ \t]+(\w+)", text, re.M)
    return "".join(f"#undef {name}\n" for name in dict.fromkeys(names) if not name.startswith("_"))


def joined_inc(path, text):
    """What a file includes from its own folder again and again, in the file itself, so that its names are the file's."""
    def included(m):
        for base in (path.parent, ROOT / "src"):
            target = base / m[1]
            if target.name == "typed.inc" and target.is_file():  # includes the file that the macro before it names
                typed = ROOT / "src" / re.findall(r'define MTI_TYPED "([^"]+)"', text[:m.start()])[-1]
                return joined_inc(target, re.sub(r"#include MTI_TYPED\n", lambda _: typed.read_text(), target.read_text()))
            if target.suffix == ".inc" and target.is_file():
                return joined_inc(target, target.read_text())
        return m[0]
    return INCLUDE.sub(included, text)


def engine():
    texts = {path: joined_inc(path, path.read_text()) for path in sources()}
    owned = {path: own_names(text) for path, text in texts.items()}
    count = Counter(name for names in owned.values() for name in names)
    expander = Expander()
    yield ("/* memtape.c: the engine of memtape, with the CPU and meta backends, as one file.\n"
           " *   cc -O2 -fopenmp mine.c memtape.c -lopenblas -lm */\n"
           "#ifndef _GNU_SOURCE\n#define _GNU_SOURCE\n#endif\n"
           "#ifndef MTI_MODULE_DIR\n#define MTI_MODULE_DIR \"/usr/local/lib\"\n#endif\n"
           "#ifndef MTI_LIBDIR\n#define MTI_LIBDIR \"lib\"\n#endif\n"
           '#include "memtape.h"\n')
    for path, text in texts.items():
        name = path.relative_to(ROOT / "src")
        suffix = "_in_" + re.sub(r"\W", "_", str(name.with_suffix("")))
        text = renamed(text, {n for n in owned[path] if count[n] > 1}, suffix)
        yield f"\n/* ==== {name} ==== */\n" + expander.expand(path, text) + "\n" + macros(text)


def main():
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in (("memtape.h", public_header()), ("memtape.c", "".join(engine()))):
        temporary = folder / (name + ".part")
        temporary.write_text(text)
        temporary.replace(folder / name)


main()
