"""Joins the page's files into one text and writes it as C: join.py OUT.c PAGE.html CSS JS...

PAGE.html has five marks: {{style}} and {{script}} are replaced here, {{title}}, {{report}} and {{more}} are
where html.c fills in the run's own text (page.h)."""
import re
import sys


def read(path):
    with open(path, encoding="utf-8") as f:
        return f.read()


def array(name, text):
    data = text.encode()
    rows = (", ".join(map(str, data[i:i + 24])) for i in range(0, len(data), 24))
    return f"static const unsigned char {name}[] = {{\n" + ",\n".join(rows) + "};\n"


out, page, style, *scripts = sys.argv[1:]
script = '"use strict";\n(() => {\n' + "\n".join(read(path) for path in scripts) + "})();\n"
assert "</script" not in script and "<!--" not in script, "the script would end its own element"
text = read(page).replace("{{style}}", read(style)).replace("{{script}}", script)
parts = re.split(r"\{\{(title|report|more)\}\}", text)
assert parts[1::2] == ["title", "report", "more"], f"{page}: its marks are {parts[1::2]}"
names = ["to_title", "to_report", "to_more", "to_end"]
with open(out, "w") as f:
    f.write('/* Made by program/report/page/join.py. */\n#include "report/page.h"\n\n')
    for name, part in zip(names, parts[::2]):
        f.write(array(name, part))
    f.write("\nconst mti_page_text mti_page[MTI_PAGE_PARTS] = {\n")
    f.writelines(f"    {{{name}, sizeof {name}}},\n" for name in names)
    f.write("};\n")
