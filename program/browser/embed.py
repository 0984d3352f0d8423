"""Joins the page's files into one: embed.py OUT.html MODULE.wasm COURSE.json PAGE.html WORKER.js STYLE.css... SCRIPT.js...

PAGE.html has five marks: {{style}}, {{script}}, {{worker}}, and {{module}} and {{course}}, compressed and as text."""
import base64
import gzip
import sys
from pathlib import Path

out, module, course, page, worker, *others = sys.argv[1:]


def read(*paths):
    return "\n".join(Path(path).read_text(encoding="utf-8") for path in paths)


def packed(path):
    return base64.b64encode(gzip.compress(Path(path).read_bytes(), mtime=0)).decode()


parts = {
    "style": read(*(path for path in others if path.endswith(".css"))),
    "script": '"use strict";\n(() => {\n' + read(*(path for path in others if path.endswith(".js"))) + "})();\n",
    "worker": '"use strict";\n' + read(worker),
    "module": packed(module),
    "course": packed(course),
}
text = read(page)
for name, part in parts.items():
    assert "</script" not in part and "<!--" not in part, f"{name} would end its own element"
    assert text.count("{{" + name + "}}") == 1, f"{page}: {name} has to stand in it once"
    text = text.replace("{{" + name + "}}", part)
Path(out).write_text(text, encoding="utf-8")
