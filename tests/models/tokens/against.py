"""Our tokenizers through the library's interface, and their comparison with those of `tokenizers`."""
import ctypes
import os
import random
from lib import check



class Ids(ctypes.Structure):
    _fields_ = [("at", ctypes.POINTER(ctypes.c_int64)), ("n", ctypes.c_size_t), ("cap", ctypes.c_size_t)]


class Text(ctypes.Structure):
    _fields_ = [("at", ctypes.POINTER(ctypes.c_char)), ("n", ctypes.c_size_t), ("cap", ctypes.c_size_t)]


LIBRARY = ctypes.CDLL(os.environ["MEMTAPE_LIBRARY"])
SIGNATURES = {"mt_tokenizer_open": ("p", "s"), "mt_tokenizer_free": (None, "p"), "mt_last_error": ("s", ""),
              "mt_tokenizer_size": ("l", "p"),
              "mt_tokenizer_encode": ("i", "psnbp"), "mt_tokenizer_decode": ("i", "ppnbp"), "mt_token_list_free": (None, "p"),
              "mt_text_free": (None, "p"), "mt_token_stream_new": ("p", "pb"), "mt_token_stream_free": (None, "p"),
              "mt_token_stream_next": ("i", "plp"), "mt_token_stream_end": ("i", "pp"), "mt_tokenizer_id": ("l", "ps")}
CODES = {"p": ctypes.c_void_p, "s": ctypes.c_char_p, "l": ctypes.c_int64, "n": ctypes.c_size_t, "b": ctypes.c_bool,
         "i": ctypes.c_int, None: None}
for _name, (_result, _arguments) in SIGNATURES.items():
    getattr(LIBRARY, _name).restype = CODES[_result]
    getattr(LIBRARY, _name).argtypes = [CODES[c] for c in _arguments]


def last_error():
    return LIBRARY.mt_last_error().decode()


class Ours:
    def __init__(self, path):
        self.t = LIBRARY.mt_tokenizer_open(os.fsencode(path))
        if not self.t:
            raise ValueError(last_error())

    def encode(self, text, special=True):
        ids = Ids()
        if LIBRARY.mt_tokenizer_encode(self.t, text, len(text), special, ctypes.byref(ids)):
            raise ValueError(last_error())
        out = ids.at[:ids.n]
        LIBRARY.mt_token_list_free(ctypes.byref(ids))
        return out

    def text(self, text):
        out = ctypes.string_at(text.at, text.n) if text.n else b""
        LIBRARY.mt_text_free(ctypes.byref(text))
        return out.decode()

    def decode(self, ids, skip=True):
        text = Text()
        if LIBRARY.mt_tokenizer_decode(self.t, (ctypes.c_int64 * len(ids))(*ids), len(ids), skip, ctypes.byref(text)):
            raise ValueError(last_error())
        return self.text(text)

    def stream(self, ids, skip=True):
        """The parts that come out, and what comes at the end."""
        s, parts = LIBRARY.mt_token_stream_new(self.t, skip), []
        for i in [*ids, None]:
            text = Text()
            out = ctypes.byref(text)
            failed = LIBRARY.mt_token_stream_end(s, out) if i is None else LIBRARY.mt_token_stream_next(s, i, out)
            if failed:
                raise ValueError(last_error())
            parts.append(self.text(text))
        LIBRARY.mt_token_stream_free(s)
        return parts

    def close(self):
        LIBRARY.mt_tokenizer_free(self.t)


def compare(name, theirs, ours, texts):
    """Counts what is compared and what differs, of (what, bytes) pairs."""
    n = n_bad = 0
    for what, data in texts:
        text = data.decode("utf-8", "replace")
        for special in (True, False):
            wanted, got = theirs.encode(text, add_special_tokens=special).ids, ours.encode(data, special)
            n += 1
            if wanted != got:
                n_bad += 1
                at = next((i for i, (a, b) in enumerate(zip(wanted, got)) if a != b), min(len(wanted), len(got)))
                shown = [[t.id_to_token(i) for i in ids[max(at - 2, 0):at + 4]] for t, ids in ((theirs, wanted), (theirs, got))]
                check(n_bad > 3, f"{name}: {what}: {text[:60]!r} from token {at} on: wanted {shown[0]}, got {shown[1]}")
        for skip in (True, False):
            n += 1
            wanted_text, got_text = theirs.decode(wanted, skip_special_tokens=skip), ours.decode(wanted, skip)
            if wanted_text != got_text:
                n_bad += 1
                check(n_bad > 3, f"{name}: {what}: decoded, wanted {wanted_text[:80]!r}, got {got_text[:80]!r}")
            streamed = "".join(ours.stream(wanted, skip)) if len(wanted) < 2000 else got_text
            if streamed != got_text and "\ufffd" not in got_text:
                n_bad += 1
                check(n_bad > 3, f"{name}: {what}: as a stream {streamed[:80]!r}, at once {got_text[:80]!r}")
    return n, n_bad


def random_ids(theirs, ours, name, n):
    """Tokens that no text has in this order."""
    draw, bad = random.Random(2), 0
    for _ in range(n):
        ids = [draw.randrange(theirs.get_vocab_size()) for _ in range(draw.randrange(1, 12))]
        for skip in (True, False):
            wanted, got = theirs.decode(ids, skip_special_tokens=skip), ours.decode(ids, skip)
            bad += wanted != got
            check(wanted == got or bad > 3, f"{name}: {ids} decoded: wanted {wanted!r}, got {got!r}")
    return 2 * n, bad


def compare_all(name, theirs, path, texts):
    """Texts and random tokens; returns how many were compared, and how many differ."""
    ours = Ours(path)
    counts = [compare(name, theirs, ours, texts), random_ids(theirs, ours, name, len(texts) // 4)]
    n, bad = (sum(count[i] for count in counts) for i in range(2))
    print(f"{name}: {n} compared, {bad} differ", flush=True)
    ours.close()
    return n, bad
