"""Build your own tape: ./run lesson N [FILE] builds the reader's file with the check of lesson N (check.c), runs it, and says
what is right, what is wrong and what is next. ./run lesson N --answer prints the file as it is after that lesson: the blocks of
the lessons that are marked "c tape.c", put together. A block's definitions take the place of those with the same name; new
ones go to the end, or above the definition that the mark names. ./run lesson key prints the answers to the lessons' exercises."""
import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LESSONS = ROOT / "docs" / "lessons"
BUILD = Path(os.environ.get("BUILD", ROOT / "build"))
BLOCK = re.compile(r"^( *)```c tape\.c(?: above (\w+))?( exercise)?\n(.*?)^ *```$", re.S | re.M)
ASK = re.compile(r"<!-- ask: (.*?)-->.*?<summary>Answer</summary>(.*?)</details>", re.S)
EXTRA = ["square"]  # ops of exercises, which are checked if the file has them


def page(lesson):
    return next(iter(LESSONS.glob(f"{lesson:02}-*.md")))


def blocks(lesson, exercise=False):
    """The blocks of a lesson, or those of its exercises: (where, [definitions])."""
    for indent, above, of_exercise, text in BLOCK.findall(page(lesson).read_text()):
        if bool(of_exercise) != exercise:
            continue
        lines = [line.removeprefix(indent) for line in text.splitlines()]
        yield above, re.split(r"\n\n+", "\n".join(lines).strip())


STAGES = [lesson for lesson in range(1, 14) if BLOCK.search(page(lesson).read_text())]


def name_of(definition):
    """The name of a function, a type or a variable."""
    code = re.sub(r"/\*.*?\*/\s*", "", definition, flags=re.S)
    found = re.match(r"(?:typedef )?(?:struct|enum) (\w+)(?= \{)|[\w ]+?[ *]+(\w+)(?=[(;\[=]| =)", code)
    return (found[1] or found[2]) + ("()" if re.match(r"[^\n{]*\);", code) else "") if found else definition


def answer(lesson, exercise=False):
    """The file as it is after a lesson, and after its exercises."""
    definitions = []
    parts = [blocks(stage) for stage in STAGES if stage <= lesson] + [blocks(lesson, True)] * exercise
    for part in parts:
        for above, new in part:
            at = [name_of(d) for d in definitions].index(above) if above else len(definitions)
            for definition in new:
                names = [name_of(d) for d in definitions]
                if name_of(definition) in names:
                    definitions[names.index(name_of(definition))] = definition
                else:
                    definitions.insert(at, definition)
                    at += 1
    return "\n\n".join(definitions) + "\n"


def check(lesson, file):
    """(exit status, what to tell)."""
    program = BUILD / "lessons" / f"check-{lesson}-{os.getpid()}"
    program.parent.mkdir(parents=True, exist_ok=True)
    extra = [f"-DHAS_{name.upper()}" for name in EXTRA if re.search(rf"^value \*{name}\(", file.read_text(), re.M)]
    built = subprocess.run(
        [os.environ.get("CC", "cc"), "-std=c11", "-O0", "-g", "-Wall", "-Wextra", "-Wno-unused-function", f"-DLESSON={lesson}",
         *extra, f'-DTAPE="{file.resolve()}"', f"-I{ROOT / 'include'}", ROOT / "tests" / "lessons" / "check.c", "-o", program,
         f"-L{BUILD}", f"-Wl,-rpath,{BUILD}", "-lmemtape", "-lm"], capture_output=True, text=True)
    if built.returncode:
        return 1, f"{built.stderr}\n{file} does not compile for lesson {lesson}. {see(lesson)}"
    try:
        ran = subprocess.run([program], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", timeout=20)
    except subprocess.TimeoutExpired as late:
        return 1, f"{built.stderr}{(late.stdout or b'').decode()}\nIt has not ended after 20 seconds. {see(lesson)}"
    finally:
        program.unlink()
    told = built.stderr + ran.stdout
    if ran.returncode < 0:
        return 1, f"{told}\nThe check was ended by signal {-ran.returncode} after that line. {see(lesson)}"
    if ran.returncode:
        at = [int(n) for n in re.findall(r"^lesson (\d+)", ran.stdout, re.M)][-1]
        return 1, f"{told}\n{see(at)}"
    n_lines = len(file.read_text().splitlines())
    following = [stage for stage in STAGES if stage > lesson]
    then = f"Next: {see(following[0], '')}" if following else "That was the last: your tape is whole."
    return 0, f"{told}\nAll of lesson {lesson} is right, in {n_lines} lines. {then}"


def see(lesson, what="See "):
    return f'{what}"Your tape" in {page(lesson).relative_to(ROOT)}.'


def key():
    """The answers to all exercises, lesson by lesson: the number that the page asks for, and the words below the command."""
    lines = []
    for path in sorted(LESSONS.glob("[0-9][0-9]-*.md")):
        text = path.read_text()
        lines += ["", f"{int(path.name[:2])}. " + text.split("\n", 1)[0].strip("# ")]
        for n, (asked, answer) in enumerate(ASK.findall(text), 1):
            asked, _, number = " ".join(asked.split()).partition(" = ")
            number = number.partition("; ")[0]
            words = re.sub(r"^ *```.*?^ *```$", "", answer, flags=re.S | re.M)
            for paragraph in (f"{asked} **{number}**", *re.split(r"\n\s*\n", words.strip())):
                lines += textwrap.wrap(" ".join(paragraph.split()), 100, initial_indent=f"  {n}. " if paragraph.startswith(asked) else "     ",
                                       subsequent_indent="     ")
    return "\n".join(lines[1:])


def main(words):
    accepted = f"accepted: ./run lesson N [FILE], ./run lesson N --answer, with N one of {', '.join(map(str, STAGES))}, or ./run lesson key"
    if not words:
        print(f"The course begins in {LESSONS.relative_to(ROOT)}/README.md, and a tape of your own in its lesson 1.")
        return 0
    if words == ["key"]:
        print(key())
        return 0
    if len(words) > 2 or not words[0].isdecimal() or int(words[0]) not in STAGES:
        print(f'lesson: "{" ".join(words)}" is not known; {accepted}', file=sys.stderr)
        return 2
    lesson = int(words[0])
    if words[1:] == ["--answer"]:
        print(answer(lesson), end="")
        return 0
    file = Path(words[1] if words[1:] else ROOT / "my" / "tape.c")
    if not file.is_file():
        print(f"lesson: there is no {file} yet; {see(lesson, 'what to type is told by ')}", file=sys.stderr)
        return 1
    status, told = check(lesson, file)
    print(told)
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
