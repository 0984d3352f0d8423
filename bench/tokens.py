"""tokens.py [TOKENIZER_JSON...]: MB/s of text that tokenizers divide and join in one thread, beside Hugging Face's `tokenizers`, in
processor time; of the pages of docs. Without files: of the families that the tests make. MEMTAPE_LIBRARY names the library."""
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests" / folder) for folder in ("models/tokens", "program/verbs")]
import tokenizers  # noqa: E402
from against import Ours  # noqa: E402
from families import ALL  # noqa: E402

PAGES = [path.read_text() for path in sorted(ROOT.glob("docs/*.md"))]
MB = sum(len(page.encode()) for page in PAGES) / 1e6


def mb_per_s(call, items):
    seconds = []
    for _ in range(3):
        begin = time.process_time()
        for item in items:
            call(item)
        seconds.append(time.process_time() - begin)
    return MB / min(seconds)


def row(name, path):
    theirs, ours = tokenizers.Tokenizer.from_file(str(path)), Ours(path)
    theirs.no_truncation(), theirs.no_padding()
    ids = [theirs.encode(page).ids for page in PAGES]
    if ids != [ours.encode(page.encode()) for page in PAGES]:
        sys.exit(f"{name}: the tokens differ")
    pairs = [(mb_per_s(ours.encode, [page.encode() for page in PAGES]), mb_per_s(theirs.encode, PAGES)),
             (mb_per_s(ours.decode, ids), mb_per_s(theirs.decode, ids))]
    print(f"{name:12}" + "".join(f"{mine:10.1f} {other:10.1f} {mine / other:6.1f}" for mine, other in pairs), flush=True)


print(f"{'MB/s':12}    divided     theirs  ratio    joined     theirs  ratio")
with tempfile.TemporaryDirectory() as folder:
    for file in sys.argv[1:]:
        row(Path(file).parent.name, file)
    for family in [] if sys.argv[1:] else ALL:
        family().save(f"{folder}/tokenizer.json")
        row(family.__name__, f"{folder}/tokenizer.json")
