"""Makes the reference of the public interface from the headers, with doxygen: make.py FOLDER. Fails if doxygen warns, or if a
function, type or macro has no text. The pages are FOLDER/html/index.html. 77 if there is no doxygen."""
import re
import shutil
import subprocess
import sys
import xml.etree.ElementTree as xml
from pathlib import Path
from headers import COMMENT, Header, escaped, stripped

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
INCLUDE = ROOT / "include" / "memtape"
# Those that only include others. The first and the last are named in the text of the first page.
GATHERED = ("memtape.h", "models.h", "lab.h", "all.h")


def included(name):
    """The headers that one gathers, in its order; a header that only gathers others stands for them."""
    names = re.findall(r'#include "memtape/([\w/]+\.h)"', (INCLUDE / name).read_text())
    return list(dict.fromkeys(inner for n in names for inner in (included(n) if n in GATHERED else [n])))


def about_example(path):
    """The first paragraph of its first comment."""
    text = "\n".join(stripped(COMMENT.search(path.read_text())[1]))
    return " ".join(text.split("\n\n")[0].split())


def write_sources(folder):
    """What doxygen reads; returns the headers in the order of memtape.h and all.h."""
    shutil.rmtree(folder, ignore_errors=True)
    for storey in ("", "models", "lab"):
        (folder / "memtape" / storey).mkdir(parents=True, exist_ok=True)
    names = included("all.h")
    absent = {str(p.relative_to(INCLUDE)) for p in INCLUDE.rglob("*.h")} - set(names) - set(GATHERED)
    if absent:
        sys.exit(f"reached neither by memtape.h nor by all.h: {sorted(absent)}")
    for name in names:
        Header.learn_enums((INCLUDE / name).read_text())
    headers = [Header(name, (INCLUDE / name).read_text()) for name in names]
    for header in headers:
        (folder / "memtape" / header.name).write_text(header.text)
    return headers


def write_first_page(folder, headers):
    engine = set(included("memtape.h"))

    def rows(wanted):
        return "\n".join(f"- @ref {h.group} \"{h.name}\": {escaped(h.title)}" for h in headers if (h.name in engine) == wanted)
    examples = sorted((ROOT / "examples").glob("*.c"))
    links = "\n".join(f"- @ref {p.name} \"{p.name}\": {escaped(about_example(p))}" for p in examples)
    pages = "\n".join(f"/** @example {p.name}\n{escaped(about_example(p))} */" for p in examples)
    text = (HERE / "first.txt").read_text().format(engine=rows(True), above=rows(False), examples=links)
    (folder / "first.dox").write_text(f"/** {text} */\n{pages}\n")


def doxygen(folder):
    settings = {"PROJECT_NAME": "memtape", "PROJECT_BRIEF": '"a tape that keeps exact books on memory"',
                "INPUT": f'"{folder / "source"}"', "RECURSIVE": "YES", "FILE_PATTERNS": "*.h *.dox",
                "OUTPUT_DIRECTORY": f'"{folder}"', "STRIP_FROM_PATH": f'"{folder / "source"}"',
                "STRIP_FROM_INC_PATH": f'"{folder / "source"}"', "EXAMPLE_PATH": f'"{ROOT / "examples"}"',
                "OPTIMIZE_OUTPUT_FOR_C": "YES", "TYPEDEF_HIDES_STRUCT": "YES", "MARKDOWN_SUPPORT": "NO",
                "INLINE_SIMPLE_STRUCTS": "NO", "JAVADOC_AUTOBRIEF": "YES", "HIDE_UNDOC_MEMBERS": "NO",
                "MACRO_EXPANSION": "YES", "EXPAND_ONLY_PREDEF": "YES",
                "PREDEFINED": '"MT_API=" "MT_PRINTF(a,b)=" "MT_C_BEGIN=" "MT_C_END=" "__GNUC__=12"',
                "GENERATE_LATEX": "NO", "GENERATE_XML": "YES", "XML_PROGRAMLISTING": "NO", "GENERATE_HTML": "YES",
                "HAVE_DOT": "NO", "HTML_EXTRA_STYLESHEET": f'"{HERE / "style.css"}"', "HTML_TIMESTAMP": "NO",
                "DISABLE_INDEX": "NO", "GENERATE_TREEVIEW": "YES", "FULL_SIDEBAR": "NO", "HTML_COLORSTYLE_SAT": "40",
                "SHOW_INCLUDE_FILES": "NO", "SHOW_USED_FILES": "NO", "VERBATIM_HEADERS": "NO", "SORT_MEMBER_DOCS": "NO",
                "QUIET": "YES", "WARNINGS": "YES", "WARN_IF_UNDOCUMENTED": "NO", "WARN_NO_PARAMDOC": "NO",
                "WARN_LOGFILE": f'"{folder / "warnings.txt"}"'}
    (folder / "Doxyfile").write_text("".join(f"{k} = {v}\n" for k, v in settings.items()))
    for old in ("html", "xml"):
        shutil.rmtree(folder / old, ignore_errors=True)
    p = subprocess.run(["doxygen", folder / "Doxyfile"], stdout=subprocess.DEVNULL, timeout=300)
    warnings = (folder / "warnings.txt").read_text().splitlines()
    return warnings + ([f"doxygen ended with {p.returncode}"] if p.returncode else [])


def said(element):
    return any("".join(element.find(k).itertext()).strip() for k in ("briefdescription", "detaileddescription"))


def described(folder):
    """{name: whether it has text} of functions, macros and types."""
    found = {}
    for path in (folder / "xml").glob("*.xml"):
        root = xml.parse(path).getroot()
        for e in root.iter("memberdef"):
            in_struct = e.get("id").startswith(("struct", "union"))
            if e.get("kind") in ("function", "define", "typedef", "enum") and not in_struct:
                found[e.findtext("name")] = found.get(e.findtext("name"), False) or said(e)
        for e in root.iter("compounddef"):
            if e.get("kind") == "struct":
                found[e.findtext("compoundname")] = said(e)
    return found


def main(folder):
    if not shutil.which("doxygen"):
        print("no doxygen")
        return 77
    folder.mkdir(parents=True, exist_ok=True)
    headers = write_sources(folder / "source")
    write_first_page(folder / "source", headers)
    faults = doxygen(folder)
    found = described(folder)
    declared = {name for path in INCLUDE.glob("*.h")
                for name in re.findall(r"^MT_API [^;]*?\b(mt_\w+)\(", path.read_text(), re.M)}
    faults += [f"{name} is not on the pages" for name in sorted(declared - set(found))]
    faults += [f"{name} has no text" for name, text in sorted(found.items()) if not text]
    print("\n".join(faults) if faults else
          f"{len(declared)} functions, {len(found) - len(declared)} types and macros of {len(headers)} headers: "
          f"{folder / 'html' / 'index.html'}")
    return int(bool(faults))


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]).resolve()))
