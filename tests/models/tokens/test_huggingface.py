"""Tokenizers of each family, compared with Hugging Face's `tokenizers` both ways: whole files, texts of each kind, and random ones.
test_huggingface.py [FAMILY...]; exit status 77 if `tokenizers` is not installed."""
import os
import sys
import tempfile
from pathlib import Path
sys.path.append(str(Path(__file__).parents[2] / "program" / "verbs"))
from lib import check, done  # noqa: E402

try:
    import tokenizers  # noqa: F401
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)
from against import compare_all  # noqa: E402
from families import ALL  # noqa: E402
from texts import corpus, strings  # noqa: E402

N_STRINGS = 2000 if os.environ.get("MTT_LONG") == "1" else 120  # for each family


def main(names):
    families = [f for f in ALL if not names or f.__name__ in names]
    texts = list(corpus().items()) + [(f"string {i}", s) for i, s in enumerate(strings(N_STRINGS))]
    total = bad = 0
    with tempfile.TemporaryDirectory() as folder:
        for family in families:
            theirs, path = family(), f"{folder}/{family.__name__}.json"
            theirs.save(path)
            n, n_bad = compare_all(family.__name__, theirs, path, texts)
            total, bad = total + n, bad + n_bad
    print(f"{len(families)} families, {len(texts)} texts each: {total} compared, {bad} differ")
    check(bad == 0, f"{bad} of {total} differ")
    check(total > 500 * len(families) > 0, "hardly anything was compared")


main(sys.argv[1:])
done()
