"""Turns docs/lessons into what the page's course shows: course.py OUT.json. The Markdown files are the only source.

Of Markdown only what the lessons use. A marker of theirs asks for a number before an exercise's answer:
<!-- ask: What is allocated, in bytes? = 40,960; 40,400 = Those are requested. -->: the number, then others with what is
wrong with them. The number has to stand in the answer below it."""
import base64
import html
import json
import re
import sys
from pathlib import Path

LESSONS = Path(__file__).resolve().parents[2] / "docs/lessons"
LIST = re.compile(r"(\d+\.|-) +")


# ---- within a line ----
def picture(match):
    data = base64.b64encode((LESSONS / match[2]).read_bytes()).decode()
    return f'<img alt="{match[1]}" src="data:image/svg+xml;base64,{data}">'


def link(match):
    """To a lesson, to a page of the web, or the plain text: other documents are not in the page."""
    lesson = re.fullmatch(r"([\w-]+)\.md(#.*)?", match[2])
    if lesson and (LESSONS / (lesson[1] + ".md")).exists():
        return f'<a href="#view=course&amp;lesson={lesson[1]}">{match[1]}</a>'
    if match[2].startswith("https://"):
        return f'<a href="{match[2]}" target="_blank" rel="noopener noreferrer">{match[1]}</a>'
    return match[1]


def words(text):
    text = html.escape(text, quote=True)
    text = re.sub(r"!\[([^\]]*)\]\(([\w.-]+\.svg)\)", picture, text)
    text = re.sub(r"\[((?:[^\[\]]|\[[^\]]*\])+)\]\(([^)\s]+)\)", link, text)
    text = re.sub(r"\*\*(.+?)\*\*", r"<strong>\1</strong>", text, flags=re.S)
    text = re.sub(r"(?<![\w*])\*(?=\S)([^*]+?)(?<=\S)\*(?![\w*])", r"<em>\1</em>", text)
    return text.replace("\\\n", "<br>\n")


def inline(text):
    """Code is what it is; a link's text may have code in it."""
    codes = []

    def hide(match):
        codes.append(f"<code>{html.escape(match[1])}</code>")
        return f"\0{len(codes) - 1}\0"
    return re.sub("\0(\\d+)\0", lambda m: codes[int(m[1])], words(re.sub(r"`([^`]+)`", hide, text)))


# ---- blocks ----
def code(info, lines):
    if info != "console":
        name = " ".join(info.split()[1:])
        caption = f"<figcaption>{html.escape(name)}</figcaption>" if name else ""
        return f'<figure class="code">{caption}<pre tabindex="0">{html.escape(chr(10).join(lines))}</pre></figure>'
    cells = re.split(r"^\$ ", "\n".join(lines), flags=re.M)[1:]
    parts = [re.sub(r"\\\n\s*", "", cell).split("\n", 1) for cell in cells]
    return "".join(f'<div class="cell" data-command="{html.escape(part[0], quote=True)}"><pre tabindex="0">'
                   f'{html.escape(part[1] if len(part) > 1 else "").rstrip()}</pre></div>' for part in parts)


def table(lines):
    rows = [[inline(cell.strip()) for cell in re.split(r"(?<!\\)\|", line.strip().strip("|"))] for line in lines]
    head = "".join(f'<th scope="col">{cell}</th>' for cell in rows[0])
    body = "".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>" for row in rows[2:])
    return f'<div class="scroll" tabindex="0" role="region" aria-label="Table"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def ask(text, following):
    question, rest = re.fullmatch(r"ask: (.*?) = (.*)", " ".join(text.split())).groups()
    number, *others = [part.strip() for part in rest.split("; ")]
    answer = following[:following.index("</details>")]
    assert re.search(rf"(?<![\d,.]){re.escape(number)}(?![,.]?\d)", answer), f"the answer to {question} does not have {number}"
    others = [other.split(" = ", 1) for other in others]
    return (f'<div class="ask" data-question="{html.escape(question, quote=True)}" data-number="{number.replace(",", "")}" '
            f'data-wrong="{html.escape(json.dumps({a.replace(",", ""): b for a, b in others}), quote=True)}"></div>')


def taken(lines, i, end):
    """Lines from i on, to the first for which end() is true."""
    j = i
    while j < len(lines) and not end(lines[j]):
        j += 1
    return lines[i:j], j


def list_of(lines, i):
    """An item's lines are those that are indented, and empty ones between them."""
    ordered, items = lines[i][0].isdigit(), []
    while i < len(lines) and LIST.match(lines[i]):
        first = LIST.match(lines[i]).end()
        rest, i = taken(lines, i + 1, lambda line: line.strip() != "" and not line.startswith("  "))
        inner = [lines[i - len(rest) - 1][first:], *(re.sub(f"^ {{1,{first}}}", "", line) for line in rest)]
        items.append(f"<li>{blocks(inner)}</li>")
    tag = "ol" if ordered else "ul"
    return f"<{tag}>{''.join(items)}</{tag}>", i


def is_block(line):
    return line.strip() == "" or re.match(r"```|#+ |\||<details>|</?div|<!--", line) or LIST.match(line)


def block(lines, i):
    """The block that begins at line i, and where the next one does."""
    line = lines[i]
    if line.startswith("```"):
        inner, j = taken(lines, i + 1, lambda other: other.startswith("```"))
        return code(line[3:].strip(), inner), j + 1
    if heading := re.match(r"(#+) +(.*)", line):
        level = len(heading[1]) + 1
        return f"<h{level}>{inline(heading[2])}</h{level}>", i + 1
    if line.startswith("|"):
        rows, j = taken(lines, i, lambda other: not other.startswith("|"))
        return table(rows), j
    if line.startswith("<details>"):
        inner, j = taken(lines, i + 1, lambda other: other.strip() == "</details>")
        summary = re.search("<summary>(.*)</summary>", line)[1]
        return f"<details><summary>{inline(summary)}</summary>{blocks(inner)}</details>", j + 1
    if line.startswith("    "):
        inner, j = taken(lines, i, lambda other: not other.startswith("    "))
        return code("", [other[4:] for other in inner]), j
    if line.startswith("<!--"):
        inner, j = taken(lines, i, lambda other: other.endswith("-->"))
        text = "\n".join([*inner, lines[j]])[4:-3].strip()
        return ask(text, "\n".join(lines[j + 1:])) if text.startswith("ask: ") else "", j + 1
    if LIST.match(line):
        return list_of(lines, i)
    inner, j = taken(lines, i + 1, is_block)
    return f"<p>{inline(chr(10).join([line, *inner]))}</p>", j


def blocks(lines):
    parts, i = [], 0
    while i < len(lines):
        part, i = block(lines, i) if lines[i].strip() else ("", i + 1)
        parts.append(part)
    return "".join(parts)


def course():
    readme = (LESSONS / "README.md").read_text(encoding="utf-8")
    routes = []
    for name, text in re.findall(r"^## (Student|Engineer|Hacker)\n(.*?)(?=^## |\Z)", readme, re.S | re.M):
        about = re.search(r"\n(.*?)\n\n1\.", text, re.S)[1]
        steps = [{"lesson": lesson, "about": inline(" ".join(about.split()))}
                 for lesson, about in re.findall(r"^\d+\. \[.*?\]\(([\w-]+)\.md\) (.*?)(?=^\d+\. |\n\n|\Z)", text, re.S | re.M)]
        routes.append({"name": name, "about": inline(about.strip()), "steps": steps})
    lessons = {}
    for path in sorted(LESSONS.glob("*.md")):
        if path.name != "README.md":
            title, text = path.read_text(encoding="utf-8").split("\n", 1)
            lessons[path.stem] = {"title": title.strip("# "), "html": blocks(text.split("\n"))}
    examples = re.findall(r"^EXAMPLE\((\w+),", Path(__file__).with_name("examples.def").read_text(), re.M)
    return {"routes": routes, "lessons": lessons, "programs": ["memtape", *("build/examples/" + name for name in examples)]}


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(json.dumps(course()), encoding="utf-8")
