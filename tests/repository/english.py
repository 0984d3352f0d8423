"""English that one reads once. README, the tour, the lessons, the class and the first 20 lines of each page have at most 15 words a
sentence in the mean, and none above 30; the rest of a page has none above 40. README and the tour have at most 900 words
outside of their blocks of code, with their tables, and with each word of a command within a line. Comments above functions, and the texts
that the program prints, do without the words of WORDS. `list [PAGE]` prints the sentences, the longest first."""
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PLAIN = {ROOT / "README.md", DOCS / "tour.md", DOCS / "class.md", *(DOCS / "lessons").glob("*.md")}  # plain to their ends
HEAD, MEAN, PLAIN_MOST, MOST = 20, 15, 30, 40
WELCOME, WELCOME_WORDS = (ROOT / "README.md", DOCS / "tour.md"), 900
WORDS = ("no those", "the latter", "the same of", "of so many", "in its stead", "lets go", "stands beside", "held against", "can be told from",
         "but for", "of its own")
BLOCKS = r"^ *```.*?^ *```$|<!--.*?-->|<[^>]+>"


def prose(lines):
    """Paragraphs and items of a page: no code, no tables, no headings; code within a line and a link are the words that one reads."""
    text = re.sub(BLOCKS, lambda m: "\n" * m[0].count("\n"), "\n".join(lines), flags=re.S | re.M)
    text = re.sub(r"^(?: *\||#| {4,}(?=\S)(?! *(?:-|\d+\.) )).*$", "", text, flags=re.M)
    text = re.sub(r"!\[[^\]]*\]\([^)]*\)", "", text)
    text = re.sub(r"\]\([^)\s]*\)", "]", text)
    text = re.sub(r"`[^`]*`", lambda m: re.sub(r"\s+", "\u2423", m[0]), text)  # a word
    return [" ".join(part.split()) for part in re.split(r"\n\s*\n|^ *(?:-|\d+\.) ", text, flags=re.M) if part.strip()]


def sentences(lines):
    found = []
    for paragraph in prose(lines):
        whole = re.sub(r"\b(al|e\.g|i\.e|vs|No)\. ", r"\1 ", paragraph)
        found += [s for s in re.split(r"(?<=[.!?])[\"')*]*\s+(?=[\"'(*\[]*(?:[A-Z0-9`]|memtape|nvcc|inductor|fms-|torchtitan|bitsandbytes|d[awb] ))", whole) if words(s)]
    return found


def words(sentence):
    return [word for word in sentence.split() if re.search(r"\w", word)]


def n_words_of(text):
    """The words of a page outside of its blocks of code."""
    bare = re.sub(BLOCKS, "", text, flags=re.S | re.M)
    return len(words(re.sub(r"\]\([^)\s]*\)", "]", bare)))


def parts(path):
    """(lines, the most words of a sentence) of a page."""
    lines = path.read_text().splitlines()
    if path in PLAIN:
        return [(lines, PLAIN_MOST)]
    end = next((i for i in range(min(HEAD, len(lines)), 0, -1) if i == len(lines) or not lines[i].strip()), HEAD)  # not within a paragraph
    return [(lines[:end], PLAIN_MOST), (lines[end:], MOST)]


def of_page(path):
    """How many sentences are too long, and by how many words the plain part is above the mean, per hundred sentences."""
    long, mean = [], 0
    for lines, most in parts(path):
        found = sentences(lines)
        long += [s for s in found if len(words(s)) > most]
        if most == PLAIN_MOST and found:
            mean = sum(len(words(s)) for s in found) / len(found)
    return long, mean


def comments(text):
    """What stands above functions and types: comments that begin in the first column."""
    return re.findall(r"^/\*.*?\*/", text, re.S | re.M)


def texts(code):
    """The strings of a file of C, adjacent ones joined, without its comments and the names of headers."""
    bare = re.sub(r"/\*.*?\*/|^#[^\n]*", "", code, flags=re.S | re.M)
    return re.findall(r'"((?:[^"\\\n]|\\.)*)"', re.sub(r'"\s*"', "", bare))


def n_words(strings):
    return sum(len(re.findall(rf"\b{word}\b", string)) for word in WORDS for string in strings)


def of_file(path):
    return n_words([re.sub(r"\s+\*? ?", " ", comment) for comment in comments(path.read_text())])


def counts():
    """Of each page and file with something to count: what is counted, and how often."""
    found = {}
    for path in [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]:
        long, mean = of_page(path)
        found["long", path] = len(long)
        found["mean", path] = max(0, round(10 * (mean - MEAN)))  # tenths of a word
    for path in sorted(path for folder in ("src", "models", "lab", "program", "include") for path in (ROOT / folder).rglob("*.[ch]")):
        found["comments", path] = of_file(path)
    for path in sorted(path for folder in ("src", "models", "lab", "program") for suffix in ("c", "def") for path in (ROOT / folder).rglob(f"*.{suffix}")):
        found["printed", path] = n_words(texts(path.read_text()))
    return {(what, str(path.relative_to(ROOT))): n for (what, path), n in found.items() if n}


def check_itself():
    """A checker that finds nothing would pass."""
    text = ["# A heading", "One two three. Four `a b c` [five six](x.md#y) seven?", "", "| a | table |", "- An item. Another", "  item!", "```", "code", "```"]
    got = [len(words(s)) for s in sentences(text)]
    assert got == [3, 5, 2, 2], got
    assert n_words_of("\n".join(text)) == 18, n_words_of("\n".join(text))
    assert n_words(texts('/* "but for" */\n#include "but for.h"\nf("all but "\n  "for one", "of its own");')) == 2
    assert n_words([c.replace("\n *", "") for c in comments("/* All but\n * for one, of its own. */\nint x; /* but for */\n")]) == 2


def main(arguments):
    check_itself()
    if arguments[:1] == ["list"]:
        pages = [ROOT / name for name in arguments[1:]] or [ROOT / "README.md", *DOCS.rglob("*.md")]
        for path in pages:
            long, mean = of_page(path)
            print(f"{path.relative_to(ROOT)}: mean {mean:.1f}, {len(long)} too long")
            for s in sorted(long, key=lambda s: -len(words(s))) if arguments[1:] else ():
                print(f"  {len(words(s))}: {s}".replace("\u2423", " "))
        return 0
    found = counts()
    for (what, name), n in sorted(found.items()):
        kind = {"long": "sentences too long", "mean": "tenths of a word above the mean", "comments": "words that make readers stumble",
                "printed": "words that make readers stumble in what is printed"}[what]
        print(f"{name}: {n} {kind} (english.py list {name})")
    welcome = sum(n_words_of(path.read_text()) for path in WELCOME)
    if welcome > WELCOME_WORDS:
        print(f"README and the tour have {welcome} words, {WELCOME_WORDS} are allowed")
    totals = {what: sum(n for (w, _), n in found.items() if w == what) for what in ("long", "comments", "printed")}
    print(f"{totals['long']} sentences too long, {totals['comments']} words in comments, {totals['printed']} in what is printed; README and the tour: {welcome} words")
    return int(bool(found) or welcome > WELCOME_WORDS)


sys.exit(main(sys.argv[1:]))
