"""The tape that the reader of the course builds: the file that the lessons' own blocks make passes the check of each lesson, and
a mistake that is put into it is found by the lesson that it is about, in words that name it."""
import contextlib
import io
import re
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "program" / "verbs"))
import tape
from lib import check, done, equal

# (lesson, right, wrong, what the check says)
MISTAKES = [
    (1, "    in_use -= bytes_of(v);\n", "", "in_use, after the first is dropped: 5720 bytes; memtape counts 5600"),
    (1, "sizeof(double) * (size_t)", "sizeof(float) * (size_t)", "bytes_of a value of 3 x 5: 60 bytes; memtape counts 120"),
    (3, "    v->holders++;\n", "", "after one of them has dropped it: 0 bytes; memtape counts 128"),
    (3, "    if (--v->holders > 0) return;\n", "    --v->holders;\n", "after one of them has dropped it"),
    (4, "a->cols + k] * b->data[k * b->cols + j]", "a->cols + k] * b->data[j * b->cols + k]", "matmul of 3 x 5 and 5 x 4: number"),
    (4, "x->data[i] / 2 * (1 + erf", "x->data[i] * (1 + erf", "gelu: number 0"),
    (5, "if (n && a->to) n->kept[1]", "if (n) n->kept[1]", "the first product keeps x for dw1, and not w1"),
    (5, "    if (n) n->kept[0] = hold(y);\n", "    if (n) n->kept[0] = hold(x);\n", "relu keeps its output"),
    (5, "    if (!a->to && !(b && b->to)) return NULL;\n", "", "where nobody wants a gradient: the nodes keep 2 values; memtape's keep 0"),
    (6, "|| v->parameter", "", "memtape counts"),
    (6, "seen = tape[j / 2].kept[j % 2] == v", "seen = false", "where x and w2 want a gradient: 3072 bytes; memtape counts 1536"),
    (7, "b->data[j * b->cols + k];\n        send", "b->data[k * b->cols + j];\n        send", "matmul_back: da[0,"),
    (7, "a->data[k * a->cols + i] * dy", "a->data[i * a->cols + k] * dy", "matmul_back: db[0,"),
    (7, "value_new(a->cols, dy->cols)", "value_new(dy->cols, a->cols)", "matmul_back: db is 4 x 5, but b is 5 x 4"),
    (7, "(below + x * density)", "below", "gelu_back: dx[0,0] is"),
    (7, "        send(n->to[1], db);\n", "", "matmul_back: nothing was sent to db"),
    (7, "(*to)->data[i] += g->data[i]", "(*to)->data[i] = g->data[i]", "gets the sum"),
    (8, "    if (n->grad) drop(n->grad);\n}", "}", "in_use after backward, with the gradients"),
    (8, "        forget(n);\n", "", "in_use after backward, with the gradients"),
    (12, "    send(y->to, hold(n->grad));\n", "", "no gradient of w1"),
    (12, "hold(n->grad)", "n->grad", "ended by signal"),
    (12, "    off = true;\n", "", "are 8 nodes"),
]


def ask(lesson, text):
    file.write_text(text)
    return tape.check(lesson, file)


with tempfile.TemporaryDirectory() as scratch:
    file = Path(scratch) / "tape.c"
    equal(tape.STAGES, [1, 3, 4, 5, 6, 7, 8, 12], "lessons that add to the tape")
    n_lines = {}
    for lesson in tape.STAGES:
        whole = tape.answer(lesson)
        n_lines[lesson] = len(whole.splitlines())
        status, told = ask(lesson, whole)
        check(status == 0 and "WRONG" not in told and "warning" not in told, f"lesson {lesson}: {told}")
        check(f"All of lesson {lesson} is right, in {n_lines[lesson]} lines." in told, f"lesson {lesson}: {told}")
    check(abs(n_lines[1] - 30) < 5 and abs(n_lines[12] - 250) < 10, f"lines, from 30 to 250: {n_lines}")
    for lesson, right, wrong, words in MISTAKES:
        whole = tape.answer(lesson)
        check(whole.count(right) == 1, f"lesson {lesson} has {whole.count(right)} times: {right}")
        status, told = ask(lesson, whole.replace(right, wrong))
        check(status == 1 and words in told, f"lesson {lesson}, with {wrong!r} for {right!r}, says {status}: {told}")
        check(f"lesson {lesson}: " in told and f"lessons/{lesson:02}-" in told, f"lesson {lesson}: does not say where to look: {told}")
    # What the page shows of the two that are the reader's, before he has written them.
    empty = tape.answer(7)
    for name in ("matmul_back", "gelu_back"):
        body = empty.index("{", empty.index(f"static void {name}(node *n)"))
        empty = empty[:body] + "{\n    (void)n; /* yours */\n}" + empty[empty.index("\n}", body) + 2:]
        check(f"static void {name}(node *n)\n{{\n    (void)n; /* yours */\n}}" in tape.page(7).read_text(), f"the page shows {name}")
    status, told = ask(7, empty)
    check(status == 1 and "matmul_back: nothing was sent to da" in told, f"without the two: {told}")
    # An op of the exercises is checked if the file has it.
    squared = tape.answer(7, exercise=True)
    status, told = ask(7, squared)
    check(status == 0 and "square_back: dx is what" in told and "warning" not in told, f"with square: {told}")
    status, told = ask(7, squared.replace("dx->data[i] = 2 * x", "dx->data[i] = x"))
    check(status == 1 and "square_back: dx[0,0] is" in told, f"with a wrong square: {told}")
    keeps_y = re.sub(r"(record\(SQUARE.*\n.*)hold\(x\)", r"\1hold(y)", squared)
    status, told = ask(7, keeps_y)
    check(status == 1 and "mean(square(x @ w1) @ w2)" in told, f"with a square that keeps its output: {told}")
    status, told = ask(7, "value *value_new(;\n")
    check(status == 1 and "does not compile for lesson 7" in told, f"not C: {told}")
# The key has a number and words for each exercise of each lesson.
key = tape.key()
n_exercises = sum(path.read_text().count("<details><summary>Answer</summary>") for path in tape.LESSONS.glob("[0-9]*.md"))
equal(len(re.findall(r"^  \d+\. ", key, re.M)), n_exercises, "answers of the key")
equal(len(re.findall(r"\*\*[\d,.]+\*\*", key)), n_exercises, "numbers of the key")
check("  1. What does the MLP keep with SiLU, in bytes? **150,994,944**\n     The ones whose slope" in key and "```" not in key, "an answer of the key")
for words, status in ([], 0), (["key"], 0), (["key", "3"], 2), (["3", "--answer"], 0), (["2"], 2), (["x"], 2), (["3", "a", "b"], 2), (["3", "/nowhere/tape.c"], 1):
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        got = tape.main(words)
    equal(got, status, f"status of lesson {words}")
done()
