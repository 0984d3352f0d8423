#!/bin/sh
# Numbers and foreign text go through src/base/locale.c and print.c: elsewhere a number would be written or read with the decimal
# comma of the locale that the library's user has set, and a name could bring control sequences to a terminal.
# printing.sh [TREE]
exec python3 - "${1:-$(dirname "$0")/../..}" <<'END'
import re
import sys
from pathlib import Path

HOMES = {"src/base/locale.c", "models/files/json_text.c"}
CALL = re.compile(r"\b(v?(?:as|[fds]?n?|[fs]?w)printf|strto(?:d|f|ld)(?:_l)?|atof|v?[fs]?scanf|json_(?:load|dump)\w*|"
                  r"(?:set|use|new)locale|localeconv)\s*\(")
# A string, a character, a comment: of these only strings stay.
TOKEN = re.compile(r'"(?:[^"\\\n]|\\.)*"|\'(?:[^\'\\\n]|\\.)*\'|//[^\n]*|/\*.*?\*/', re.S)
REAL = re.compile(r"%[-+ #0]*[\d*]*(?:\.[\d*]*)?[lL]?[aefgAEFG]")
GROUPED = re.compile(r"%[-+ #0]*'")
TEXT = re.compile(r"%[-+ #0]*[\d*]*(?:\.[\d*]*)?[sc]")


def arguments(code, start):
    """The text from start to the parenthesis that ends the call."""
    depth, at = 1, start
    while at < len(code) and depth:
        string = TOKEN.match(code, at)
        if string:
            at = string.end()
            continue
        depth += {"(": 1, ")": -1}.get(code[at], 0)
        at += 1
    return code[start:at]


def fault(name, given):
    """Why the call has to go through them; None: it need not."""
    strings = " ".join(re.findall(r'"(?:[^"\\\n]|\\.)*"', given)).replace("%%", "")
    if name.startswith("v"):
        return "passes on a format, which may have numbers: mti_vformat, mti_vprint"
    if name.endswith("printf") and (REAL.search(strings) or GROUPED.search(strings)):
        return "writes a number by the locale: mti_format, mti_print"
    if name.endswith("printf") and '"' not in given:
        return "has its format elsewhere, where nobody looks for numbers: write it here"
    if name in ("printf", "fprintf", "dprintf") and TEXT.search(strings):
        return "prints text as it is: mti_print"
    if name.endswith("scanf"):
        return "reads a number by the locale: mti_strtod" if REAL.search(strings) else None
    if name.startswith("json"):
        return "jansson reads and writes numbers by the locale: files/json_text.h"
    return None if name.endswith("printf") else "reads or sets the locale: mti_strtod"


tree, found = Path(sys.argv[1]), 0
for folder in ("src", "models", "lab", "program", "include"):
    for path in sorted((tree / folder).rglob("*")):
        if path.suffix not in (".c", ".h", ".cu", ".cuh", ".def") or str(path.relative_to(tree)) in HOMES:
            continue
        code = TOKEN.sub(lambda t: t[0] if t[0][0] == '"' else re.sub(r"[^\n]", " ", t[0]), path.read_text())
        for call in CALL.finditer(code):
            why = fault(call[1], arguments(code, call.end()))
            if why:
                print(f"{path.relative_to(tree)}:{code.count(chr(10), 0, call.start()) + 1}: {call[1]}: {why}")
                found += 1
sys.exit(found > 0)
END
