"""Public headers as doxygen reads them: their plain comments become its comments, and nothing has to be marked up in the
headers themselves. What the position of a comment means to a reader is all that is used:

- the first comment of a file is about the file;
- `/* ---- title ---- */` begins a section, with text if more follows;
- a comment after code, on its line, is about what stands there;
- a comment before a declaration is about it, and about those that follow without an empty line and without one of
  their own;
- a comment that an empty line follows belongs to its section."""
import re

COMMENT = re.compile(r"/\*(.*?)\*/", re.S)
NAME = re.compile(r"\b(?:mt|MT)_[A-Za-z0-9_]+\b")
# Of the preprocessor alone, or defined by a condition that doxygen does not take.
NO_LINKS = {"MT_API"}
enum_of = {}  # of each value
DECLARED = re.compile(r"\b(mt_\w+)\)?(?:\(|;|,|\[)|\}\s*(mt_\w+);|#define (MT_\w+)")


def stripped(comment):
    """The lines of a comment without their stars."""
    lines = [re.sub(r"^ ?\* ?", "", line) for line in re.sub(r"^\s+(?=\*)", " ", comment, flags=re.M).split("\n")]
    lines[0] = lines[0].strip()
    return [line.rstrip() for line in lines]


def escaped(text):
    text = re.sub(r"([\\@&$#<>%])", r"\\\1", text)
    text = re.sub(r"`([^`]*)`", r"<tt>\1</tt>", text)
    text = re.sub(r"(?<![\w*])\*([a-z]+)\*(?![\w*])", r"<em>\1</em>", text)
    return NAME.sub(link, text)


def link(match):
    """To a declaration; for one of an enum's values, to the enum."""
    name = match[0]
    return name if name in NO_LINKS else f'@ref {enum_of.get(name, name)} "{name}"'


def marked_up(lines):
    """Doxygen's text: indented blocks are examples, lines that begin with "- " a list, names are links."""
    out, block = [], []

    def close():
        if block:
            out.extend(["@verbatim", *block, "@endverbatim"])
            block.clear()
    in_list = False
    for line in lines:
        indented = line.startswith("    ")
        if indented and not in_list:
            block.append(line)
        elif not line and block:
            block.append(line)
        else:
            while block and not block[-1]:
                block.pop()
            close()
            in_list = line.startswith("- ") or (in_list and line.startswith("  "))
            out.append(escaped(line) if line.startswith("- ") or not in_list else "  " + escaped(line.strip()))
    close()
    return "\n".join(out).strip()


def first_sentence(text):
    return re.split(r"(?<!\bal\.)(?<=[.:])\s", text.replace("\n", " "), maxsplit=1)[0]


def capital(text):
    return text[:1].upper() + text[1:]


class Header:
    """One header: `title` (after its name), and `text`, what doxygen reads."""

    @staticmethod
    def learn_enums(source):
        for values, enum in re.findall(r"typedef enum mt_\w+ \{(.*?)\} (mt_\w+);", COMMENT.sub("", source), re.S):
            enum_of.update(dict.fromkeys(re.findall(r"MT_\w+", values), enum))

    def __init__(self, name, source):
        self.name, self.group = name, name.removesuffix(".h").replace("/", "_")
        self.sections = 0
        first = COMMENT.search(source)
        about = stripped(first[1])
        about[0] = about[0].removeprefix(name + ":").strip()
        paragraphs = "\n".join(about).split("\n\n", 1)
        self.title = capital(first_sentence(paragraphs[0]).rstrip(".:"))
        self.text = (f"/** @file {name}\n@brief {escaped(self.title)}.\n\nSee @ref {self.group}. */\n"
                     f"/** @defgroup {self.group} {name}: {escaped(self.title)}\n{marked_up(about)} */\n/** @{{ */\n")
        body = source[first.end():]
        guard = re.search(r"#ifndef (MEMTAPE_\w+)\n#define \1\n", body)
        body = body[:guard.start()] + body[guard.end():]
        body = re.sub(r"#ifdef __cplusplus\n.*?#endif\n", "", body, flags=re.S)
        self.text += self.converted(body[:body.rindex("#endif")]) + "/** @} */\n"

    def converted(self, body):
        out, at = [], 0
        for m in COMMENT.finditer(body):
            out.append(body[at:m.start()])
            line = body[body.rfind("\n", 0, m.start()) + 1:m.start()]
            after = body[m.end():]
            out.append(self.comment(m[1], bool(line.strip()), after))
            at = m.end()
        out.append(body[at:])
        return share("".join(out))

    def comment(self, text, trails, after):
        lines = stripped(text)
        if lines[0].startswith("---- "):
            return self.section(lines)
        if trails:
            return f"/**< {marked_up(lines)} */"
        if re.match(r"\n\s*\n", after):
            group = f"{self.group}_{self.sections}" if self.sections else self.group
            return f"/** @}} */\n/** @addtogroup {group}\n\n{marked_up(lines)} */\n/** @{{ */"
        return f"/** {marked_up(lines)} */"

    def section(self, lines):
        whole = "\n".join(lines)[5:]
        title, _, rest = whole.partition(" ----")
        title, *more = re.split(r"[.:;] ", title.replace("\n", " "), maxsplit=1)
        self.sections += 1
        text = marked_up([capital(m) for m in more] + rest.strip("\n").split("\n"))
        return (f"/** @}} */\n/** @defgroup {self.group}_{self.sections} {escaped(capital(title))}\n@ingroup {self.group}\n{text} */\n"
                "/** @{ */")


def share(text):
    """Gives a comment also to the declarations below it that have none, up to an empty line."""
    out, comment, first = [], None, None
    pending, declaration, depth = [], "", 0
    for line in text.split("\n"):
        if pending or line.startswith("/**"):
            pending.append(line)
            if "*/" in line:
                whole = "\n".join(pending)
                comment, first = (None if "@" + "{" in whole or "@addtogroup" in whole or "@}" in whole else whole), None
                out.extend(pending)
                pending = []
            continue
        if not line.strip():
            comment = None
        starts = depth == 0 and not declaration and re.match(r"MT_API|#define", line)
        if starts and comment and first and "/**<" not in declaration_of(text, line):
            out.append(f'/** Together with @ref {first} "{first}": ' + comment.removeprefix("/** "))
        out.append(line)
        declaration += re.sub(r"/\*.*", "", line)
        depth += line.count("{") - line.count("}")
        if depth == 0 and (declaration.rstrip().endswith((";", "}")) or line.startswith("#")):
            named = DECLARED.search(declaration)
            if comment and not first and named:
                first = next(n for n in named.groups() if n)
            declaration = ""
        elif depth == 0 and declaration.rstrip().endswith(")") and not declaration.startswith("MT_API"):
            declaration = ""
    return "\n".join(out)


def declaration_of(text, line):
    """From this line to the end of the declaration, and of what follows on its last line."""
    if line.startswith("#"):
        return line
    at = text.index(line)
    end = text.find(";", at)
    return text[at:text.find("\n", end)]
