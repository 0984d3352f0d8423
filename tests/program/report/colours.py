"""One colour for each category of bytes: what svg_parts.c gives it, on light pages and on dark ones, is what the page of --html
and the lessons' own pictures have; and no picture uses a category's colour for something else."""
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
PARTS = (ROOT / "program/report/pictures/svg_parts.c").read_text()
CSS = (ROOT / "program/report/page/page.css").read_text()
SVG_H = (ROOT / "examples/svg.h").read_text()
faults = []


def equal(got, wanted, text):
    if got != wanted:
        faults.append(f"{text}: {got}, wanted {wanted}")


looks = {name.lower(): colour for name, colour in re.findall(r"\[MT_(\w+)\] = \{'.', \"(#\w+)\"\}", PARTS)}
darker = dict(re.findall(r"\{\"(#\w+)\", \"(#\w+)\"\}", PARTS))
on_dark = {name: darker.get(colour, colour) for name, colour in looks.items()}
light, dark = (dict(re.findall(r"--c-(\w+): (#\w+);", part)) for part in CSS.split(":root[data-theme=dark]"))
equal(len(looks), 12, "categories of svg_parts.c")
equal(len(set(looks.values())), len(looks), "colours that differ")
equal(light, looks, "the page's colours")
equal({**light, **dark}, on_dark, "the page's colours, dark")
equal({name for name in looks if f".c-{name} {{ background: var(--c-{name}); fill: var(--c-{name}); }}" not in CSS}, set(),
      "categories that the page does not fill")
own = {name.lower(): colour for name, colour in re.findall(r"#define SVG_(\w+) +\"(#\w+)\"", SVG_H) if name != "PALE"}
equal(own, {name: looks[name] for name in own}, "the colours of the lessons' pictures")
own_dark = dict(re.findall(r'\[fill=\\"(#\w+)\\"\] \{ fill: (#\w+) \}', SVG_H))
equal({name: own_dark.get(colour, colour) for name, colour in own.items()}, {name: on_dark[name] for name in own},
      "the colours of the lessons' pictures, dark")
for path in [*(ROOT / "program/report/pictures").glob("*.c"), *(ROOT / "examples").glob("*.c")]:
    used = set(re.findall(r"#[0-9a-f]{6}", path.read_text())) & set(looks.values())
    allowed = {"svg_parts.c": used, "svg.c": {looks["activation"]}}  # there it stands for what is saved
    equal(used - allowed.get(path.name, set()), set(), f"{path.name} has categories' colours")
print("\n".join(faults) if faults else "all passed")
sys.exit(bool(faults))
