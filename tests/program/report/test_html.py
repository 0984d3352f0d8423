"""What `--html` writes, without a browser: it holds what --json writes, byte for byte, and every event; text of the
user's is only text; nothing is loaded from elsewhere."""
import json
import os
import re
import sys
import tempfile
from html.parser import HTMLParser
from pathlib import Path
sys.path.insert(0, str(Path(__file__).parent.parent / "verbs"))
from lib import check, done, equal, run  # noqa: E402

FOLDER = Path(tempfile.mkdtemp())
GPT = ["gpt", "-l", 3, "-d", 32, "-a", 2, "-b", 2, "-s", 16, "--vocab", 50]


class Page(HTMLParser):
    """The texts of the elements that have an id or are the title, and what the page refers to."""

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.texts, self.tags, self.links, self.inside = {}, [], [], None
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        attributes = dict(attributes)
        self.inside = attributes.get("id") or tag
        self.texts.setdefault(self.inside, "")
        self.links += [attributes[name] for name in ("src", "href") if attributes.get(name)]

    def handle_endtag(self, _):
        self.inside = None

    def handle_data(self, data):
        if self.inside:
            self.texts[self.inside] += data


def report(*args, status=0, verb="profile"):
    """A page, and the text of the JSON of the same run."""
    page, object_ = FOLDER / "r.html", FOLDER / "r.json"
    p = run(verb, *args, "-q", "--html", page, "--json", object_)
    equal(p.returncode, status, f"status of {args}: {p.stderr}")
    return Page(page.read_text()), object_.read_text()


def events_of(more):
    """The events of the page's short form, as --timeline --json has them, but for `reserved` (docs/report.md)."""
    t, storages, current = more["timeline"], {}, sum(more["timeline"]["before"])
    for kind, storage, place, *rest in t["events"]:
        phase, module, op = (t["texts"][i] for i in t["places"][place])
        was = None
        if kind == 1:
            category, allocated, requested = storages[storage]
            current -= allocated
        elif kind == 2:
            was, allocated, requested = storages[storage]
            category = t["categories"][rest[0]]
            storages[storage] = category, allocated, requested
        else:
            category, allocated = t["categories"][rest[0]], rest[1]
            requested = rest[2] if len(rest) > 2 else allocated
            if kind == 0:
                storages[storage] = category, allocated, requested
                current += allocated
        yield {"kind": ["alloc", "free", "recategory", "oom"][kind], "storage": storage, "bytes": requested,
               "allocated": allocated, "category": category, "was": was, "phase": phase, "module": module, "op": op,
               "current": current}


def page_holds_what_json_writes():
    for args, status in [(GPT, 0), ([*GPT, "--device", "meta", "--optimizer", "adamw"], 0),
                         (["linear", "-b", 2, "-d", 16], 0), ([*GPT, "--device", "meta", "--timeline"], 0),
                         ([*GPT, "--device", "meta", "--tp", 2, "--pp", 3, "--dp", 2, "--zero", 1], 0),
                         ([*GPT, "--device", "meta", "--capacity", "200kB"], 1)]:
        page, text = report(*args, status=status)
        equal(page.texts["report"], text, f"the report in the page of {args}")
        json.loads(page.texts["more"])


def pages_of_other_verbs_hold_what_json_writes():
    for verb, *args in [["sweep", "mlp", "-b", 2, "-s", 8, "-d", 16, "--row", "<b>&\u2029</script>: --act relu", "--row", "b:",
                         "--steps", 1],
                        ["sweep", "gpt", "-l", 2, "--device", "meta", "--over", "checkpoint=none,full"],
                        ["plan", "gpt2", "-s", 64, "--capacity", "3GiB", "--budget", "2GiB"]]:
        page, text = report(*args, verb=verb)
        equal(json.loads(page.texts["report"]), json.loads(text), f"the object in the page of {verb}")
        escaped = text.replace("<", "\\u003c").replace("\u2029", "\\u2029")
        equal(page.texts["report"], escaped, f"the report in the page of {verb}")
        equal(page.texts["more"].strip(), "null", f"more of {verb}")
        equal(page.tags.count("script"), 3, f"script elements of {verb}")


def page_holds_every_event():
    for args in [[*GPT, "--optimizer", "adamw"], [*GPT, "--checkpoint", "full", "--optimizer", "sgd-momentum"],
                 [*GPT, "--offload", "cpu"], ["gpt", "-l", 3, "-d", 64, "-a", 2, "-b", 8, "-s", 128, "--capacity", "13MB"]]:
        args += ["--device", "meta", "--timeline"]
        page, text = report(*args, status=1 if "--capacity" in args else 0)
        wanted = [{k: v for k, v in e.items() if k != "reserved"} for e in json.loads(text)["timeline"]]
        check(len(wanted) > 50, f"events of {args}: {len(wanted)}")
        equal(list(events_of(json.loads(page.texts["more"]))), wanted, f"the events of {args}")


def times_are_those_of_a_device_with_data():
    page, _ = report(*GPT)
    t = json.loads(page.texts["more"])["timeline"]
    equal(len(t["nanoseconds"]), len(t["events"]), "times of a run on the CPU")
    check(t["nanoseconds"] == sorted(t["nanoseconds"]) and t["nanoseconds"][-1] > 0, "times rise")
    page, _ = report(*GPT, "--device", "meta")
    equal(json.loads(page.texts["more"])["timeline"]["nanoseconds"], None, "times of a run on meta")


def both_steps_have_the_same_keepers():
    page, text = report(*GPT, "--optimizer", "adamw", "--device", "meta")
    t = json.loads(page.texts["more"])["timeline"]
    kept = [[t["texts"][i] for i in row[1:]] for row in t["kept"]]
    first = [[s[key] for key in ("module", "op", "role", "name")] for s in json.loads(text)["saved"]["tensors"]]
    equal(kept, first + first, "who keeps what in both steps")
    equal([row[0] for row in t["kept"]][:len(first)], [s["storage"] for s in json.loads(text)["saved"]["tensors"]],
          "storages kept in the first step")
    ops = json.loads(page.texts["more"])["ops"]
    savers = {s["op"] for s in json.loads(text)["saved"]["tensors"] for s in [s, *s["also"]]}
    equal(set(ops), savers, "ops whose formula is told")
    check(all(op["formula"] and op["why"] for op in ops.values()), "formulas and reasons")


def text_of_the_user_is_only_text():
    folder = FOLDER / "<script>x</script>&\u2028"
    os.makedirs(folder, exist_ok=True)
    config = folder / "config.json"
    config.write_text(json.dumps({"model_type": "gpt2", "n_embd": 32, "n_head": 2, "n_layer": 2, "vocab_size": 50,
                                  "n_positions": 64}))
    page, _ = report(config, "-b", 1, "-s", 8, "--device", "meta")
    equal(page.tags.count("script"), 3, "script elements: the report, the rest, the page's own")
    check(page.texts["title"].startswith(str(config).replace("\u2028", "?")), f"the title names the file: {page.texts['title']!r}")


def nothing_is_loaded_from_elsewhere():
    page, _ = report(*GPT, "--device", "meta")
    equal([link for link in page.links if not link.startswith("#")], [], "what the page refers to")
    source = (FOLDER / "r.html").read_text()
    equal(set(re.findall(r"https?://[^\"'\s)]*", source)), {"http://www.w3.org/2000/svg"}, "addresses in the page")
    check("default-src 'none'" in source, "the page forbids itself to load anything")


def refused_files_are_errors():
    bad = run("profile", "mlp", "--html", FOLDER / "no" / "r.html")
    equal(bad.returncode, 1, "status with a folder that does not exist")
    check("no/r.html" in bad.stderr, f"the file is named: {bad.stderr}")
    equal(sorted(os.listdir(FOLDER)), sorted(["<script>x<", "r.html", "r.json"]), "nothing else is left")


for test in [page_holds_what_json_writes, pages_of_other_verbs_hold_what_json_writes, page_holds_every_event,
             times_are_those_of_a_device_with_data, both_steps_have_the_same_keepers, text_of_the_user_is_only_text,
             nothing_is_loaded_from_elsewhere, refused_files_are_errors]:
    test()
done()
