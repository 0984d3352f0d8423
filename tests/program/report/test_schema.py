"""docs/schema: what --json writes is valid under the schema of its verb, has no key that the schema lacks, and the schema
has the keys of the page that documents them, and is what schema.c makes of the functions that write the JSON.
test_schema.py --write writes the files anew."""
import copy
import json
import os
import re
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path
sys.path.insert(0, str(Path(__file__).parent.parent / "verbs"))
from lib import MEMTAPE, check, done, documented_keys, equal, run  # noqa: E402

try:
    import jsonschema
except ImportError:
    print("no python3-jsonschema")
    sys.exit(77)

FOLDER = Path(__file__).parents[3] / "docs" / "schema"
SMALL = Path(tempfile.mkdtemp()) / "gpus.json"
SMALL.write_text('{"h100": {"memory": "2MB"}}')
GPT = ["gpt", "-l", 2, "-d", 32, "-a", 2, "-b", 2, "-s", 16, "--vocab", 50]
META = ["--device", "meta"]
SNAPSHOT, LOG = SMALL.parent / "measured.pickle", SMALL.parent / "measured.log"
run("profile", *GPT, *META, "-q", "--snapshot", SNAPSHOT)
LOG.write_text("step: 1 memory: 42.08GiB(44.27%)\nmax_memory_allocated: 3 GB\n")
# Commands with their exit status.
RUNS = {
    "profile": [
        (["linear"], 0), (["mlp:out-act=sigmoid", "--act", "relu"], 0), (["attention"], 0), (["block", "--norm", "post"], 0),
        ([*GPT, "--timeline", "--optimizer", "adamw"], 0), ([*GPT, *META, "--budget", "1MB"], 0),
        ([*GPT, "--offload", "cpu", "--inference"], 0), ([*GPT, *META, "--compress", "bits", "--inference"], 0),
        ([*GPT, "--amp", "f16", "--optimizer", "adamw", "--loss-scale", "dynamic"], 0),
        ([*GPT, *META, "--lora-rank", 3, "--qlora", "--checkpoint", "ops"], 0),
        ([*GPT, *META, "--tp", 2, "--sp", "--pp", 2, "--recipe", "plain:interleave=1", "--dp", 3, "--zero", 2], 0),
        (["gpt", "-l", 2, *META, "--outside"], 0), ([*GPT, *META, "--recipe", "plain:gemm-workspace=1MiB", "--recipe", "plain:scratch=cpu"], 0), ([*GPT, *META, "--recipe", "fsdp2", "--dp", 2, "--timeline"], 0),
        (["llama", "-l", 2, "-a", 4, "--kv-heads", 2, "--attention", "math", "--dtype", "bf16", "--recipe", "hf", *META], 0),
        (["llama", "-l", 2, "--loss", "fused", "--checkpoint", "sqrt", *META], 0), (["bert", "-l", 2, *META], 0),
        (["gpt", "-l", 3, "-d", 64, "-a", 2, "-b", 8, "-s", 128, "--capacity", "13MB", "--timeline", *META], 1),
        (["gpt", "-b", 8, "--capacity", "2MiB"], 1)],
    "plan": [
        (["gpt2", "-s", 32, "--capacity", "3GiB", "--budget", "2GiB"], 0), (["gpt2", "--kv", 3, "-s", 5, "--tokens", "1B"], 0),
        (["gpt2", "--tokens", "1B", "--flops-rate", "1T"], 0), (["mlp"], 0), (["linear"], 0), (["attention"], 0),
        (["bert-base", "-s", 32], 0), (["llama", "-l", 4, "--tp", 2, "--pp", 2], 0), (["gpt", "-l", 2, "--capacity", "1KiB"], 0)],
    "sweep": [
        (["mlp", "--steps", 1, "--over", "act=relu,gelu"], 0), (["gpt", *META, "--over", "checkpoint=none,full"], 0),
        (["gpt", "-l", 4, *META, "--capacity", "2MB", "--over", "batch=1,8"], 0),
        (["block", "--steps", 1, "--dropout", 0.1, "--over", "compress=8bit,bits"], 0)],
    "fit": [
        (["gpt", "-l", 2, "-d", 64, "--gpus", 2, "--gpu", "h100:price=2", "--tokens", "1B"], 0),
        (["gpt", "-l", 2, "-d", 64, "--gpus", 2, "--gpu", "h100:keep-aside=0", "--gpus-file", SMALL, "--zero", 0], 1)],
    "serve": [(["gpt", "-l", 2, "--gpu", "h100", "--capacity", "30MiB"], 0), (["gpt", "-l", 2, "--capacity", "30MiB", "--weights", "nf4"], 0),
              (["gpt", "-l", 2, "--capacity", "1KiB"], None)],
    "explain": [(["--expr", "h = x@w; checkpoint(relu(h))*h", "--shapes", "x=4x5,w=5x4"], 0), (["--expr", "x*x", "--shapes", "x=3", "--no-grad", "x"], 0)],
    "compare": [([SNAPSHOT, LOG, *GPT], 0), ([SNAPSHOT, "mlp", "--checkpoint", "full"], 0)],
}
PAGES = {"profile": ("profile-json.md", lambda key: not key.startswith("rows")), "plan": ("plan-json.md", None), "compare": ("compare.md", None),
         "sweep": ("profile-json.md", lambda key: key.startswith("rows"))}


def made(verb):
    """The file that belongs in docs/schema, in lines of at most 120 columns."""
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "title": f"memtape.{verb}/1" if verb != "train" else
            "memtape.ranks/1 of memtape train"}
    schema = json.loads(subprocess.run([os.environ["SCHEMA"], verb], capture_output=True, text=True, check=True).stdout)
    return pretty({**head, **schema}) + "\n"


def pretty(value, indent=0):
    line = json.dumps(value)
    if len(line) + indent <= 110 or not isinstance(value, (dict, list)):
        return line
    before = " " * (indent + 2)
    if isinstance(value, list) and all(isinstance(v, str) for v in value):  # in lines that end between two of them
        whole = json.dumps([v.replace(" ", "\0") for v in value]).replace("\\u0000", "\0")
        return "\n".join(textwrap.wrap(whole, 118, subsequent_indent=before, break_on_hyphens=False)).replace("\0", " ")
    parts = [f"{json.dumps(k)}: {pretty(v, indent + 2)}" for k, v in value.items()] if isinstance(value, dict) else \
        [pretty(v, indent + 2) for v in value]
    brackets = "{}" if isinstance(value, dict) else "[]"
    return f"{brackets[0]}\n{before}" + f",\n{before}".join(parts) + f"\n{' ' * indent}{brackets[1]}"


def files_are_those_that_the_program_makes():
    for verb in SCHEMAS:
        check((FOLDER / f"{verb}.schema.json").read_text() == made(verb), f"docs/schema/{verb}.schema.json is old: run this test with --write")


def strict(schema):
    """The same, and no other keys: readers must expect new ones, this test must not."""
    if isinstance(schema, list):
        return [strict(s) for s in schema]
    if not isinstance(schema, dict):
        return schema
    made = {key: value if key in ("if", "then") else strict(value) for key, value in schema.items()}
    if isinstance(schema.get("properties"), dict):
        made["additionalProperties"] = False
    return made


def leaves(schema, whole, path=""):
    """The paths of a schema's leaves, as lib.paths() gives those of a value."""
    for other in schema.get("anyOf", []):
        yield from leaves(other, whole, path)
    if "$ref" in schema:
        yield from leaves(whole["$defs"][schema["$ref"].rsplit("/", 1)[1]], whole, path)
    for key, inner in schema.get("properties", {}).items():
        yield from leaves(inner, whole, f"{path}.{key}" if path else key)
    if "items" in schema:
        yield from leaves(schema["items"], whole, path + "[]")
    simple = not {"anyOf", "$ref", "properties", "items"} & set(schema)
    nullable = isinstance(schema.get("type"), list) and "null" in schema["type"]
    if path and (simple or nullable) and schema.get("type") != "null" or path and schema == {"type": "null"}:
        yield path


if "--write" in sys.argv:
    for verb in [*RUNS, "train"]:
        (FOLDER / f"{verb}.schema.json").write_text(made(verb))
    sys.exit()
SCHEMAS = {verb: json.loads((FOLDER / f"{verb}.schema.json").read_text()) for verb in [*RUNS, "train"]}


def outputs_are_valid():
    for verb, runs in RUNS.items():
        schema = SCHEMAS[verb]
        jsonschema.Draft202012Validator.check_schema(schema)
        loose, exact = jsonschema.Draft202012Validator(schema), jsonschema.Draft202012Validator(strict(schema))
        for args, status in runs:
            p = run(verb, *args, "--json", "-")
            if status is not None:
                equal(p.returncode, status, f"status of {verb} {args}: {p.stderr}")
            value = json.loads(p.stdout)
            errors = list(exact.iter_errors(value))
            for error in errors[:5]:
                check(False, f"{verb} {args}: {error.json_path}: {error.message[:200]}")
            if args == runs[0][0]:
                value["a key of a later version"] = 1
                check(errors or loose.is_valid(value), f"{verb}: a new key is valid")


def objects_of_ranks_that_train_are_valid():
    schema = SCHEMAS["train"]
    jsonschema.Draft202012Validator.check_schema(schema)
    if "MPIRUN" not in os.environ:
        print("no mpirun: the objects of ranks that train are not looked at")
        return
    exact = jsonschema.Draft202012Validator(strict(schema))
    for args in (["--tp", 2, "--sp"], ["--pp", 2, "--microbatches", 2, *META], ["--cp", 2, "--zero", 3, "--steps", 1]):
        words = ["train", "--data", __file__, "--steps", 3, "-b", 2, "-s", 16, "-d", 16, "-a", 2, "-l", 2, *args, "--json", "-"]
        p = subprocess.run([*os.environ["MPIRUN"].split(), "-n", "2", MEMTAPE, *map(str, words)], capture_output=True, text=True, timeout=120)
        equal((p.returncode, p.stderr), (0, ""), f"train {args}")
        value = json.loads(p.stdout)
        for error in list(exact.iter_errors(value))[:5]:
            check(False, f"train {args}: {error.json_path}: {error.message[:200]}")
        for number, change in enumerate([lambda v: v["ranks"][1].pop("predicted"), lambda v: v["ranks"][0].update(loss="1"),
                       lambda v: v["ranks"][0].update(schema="memtape.profile/1"), lambda v: v["ranks"].pop(),
                       lambda v: v["ranks"][0]["parallel"].update(zero=4), lambda v: v["ranks"][0].update(peak=-1)]):
            other = copy.deepcopy(value)
            change(other)
            check(not exact.is_valid(other), f"train {args}: changed object {number} is not valid")


def wrong_objects_are_not_valid():
    value = json.loads(run("profile", *GPT, *META, "--timeline", "--json", "-").stdout)
    validator = jsonschema.Draft202012Validator(SCHEMAS["profile"])
    check(validator.is_valid(value), "the object as it was written")
    for number, change in enumerate([lambda v: v.pop("saved"), lambda v: v["saved"].update(bytes="12"), lambda v: v["saved"].update(bytes=-1),
                   lambda v: v.update(schema="memtape.profile/2"), lambda v: v["timeline"][0].update(kind="allocated"),
                   lambda v: v["steady"]["by_category"].pop("packed"), lambda v: v["saved"]["tensors"][0].update(role="x")]):
        other = copy.deepcopy(value)
        change(other)
        check(not validator.is_valid(other), f"changed object {number} is not valid")


def keys_are_those_documented():
    for verb, (page, belongs) in PAGES.items():
        found = set(leaves(SCHEMAS[verb], SCHEMAS[verb]))
        wanted = {key for key in documented_keys(page) if not belongs or belongs(key)}
        if verb in ("plan", "compare"):  # their model is a profile's
            found = {key for key in found if not key.startswith("model.")}
        if verb == "sweep":
            found.discard("schema")
        equal((sorted(found - wanted), sorted(wanted - found)), ([], []), f"keys of the schema and of {page}")


def pages_name_their_schemas():
    text = "".join(p.read_text() for p in FOLDER.parent.rglob("*.md"))
    for verb in SCHEMAS:
        check(re.search(rf"schema/{verb}\.schema\.json", text), f"no page refers to the schema of {verb}")


for test in [files_are_those_that_the_program_makes, outputs_are_valid, objects_of_ranks_that_train_are_valid, wrong_objects_are_not_valid, keys_are_those_documented, pages_name_their_schemas]:
    test()
done()
