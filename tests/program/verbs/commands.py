"""The commands that README and docs print run as they are printed: in a shell, with the PATH that README names, no
variable of ours, and only what ./run demo builds (DEMO). Not again those that a test compares with what a page
quotes of them: the blocks of the lessons (lessons.py), experiments.md, published.md. Without MTT_LONG=1: the short ones of
README and the tour, and by turns a quarter of the others that begin with mpirun."""
import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path
from lib import check, done, turn

LONG = os.environ.get("MTT_LONG") == "1"
ROOT = Path(__file__).parents[3]
DOCS = ROOT / "docs"
COMPARED = {"experiments.md", "published.md", "questions.md"}
COMPARED_LINE = re.compile(r"memtape (?!train (?!.*--device meta)|generate)")
# Not a command: words that stand for others; a verb and the option that a sentence is about.
PATTERN = re.compile(r"\.\.\.|\b(MODEL|TEXT|BYTES|OPTIONS|FOLDER|NAME|N|T)\b|config\.json|\w\|\w")
MENTION = re.compile(r"memtape( [a-z]+)?( --json| --version)?$|memtape (train|plan|profile|sweep) --(?!data)")
# What a command needs that is not here.
ENDS = {"memtape fit llama-3.1-8b --gpus 1 --gpu rtx4090": 1,  # nothing fits there
        "memtape fit llama-3.1-8b --gpus 8 --gpu rtx3090 -s 1024 --recipe llamafactory+zero3": 1}
SECONDS = ("memtape profile mlp -b 2 -s 4096", "memtape serve")  # each
NEEDS = {"SmolLM2-135M-Instruct.Q4_1.gguf": "what pip downloads", "-f hosts": "two machines", "--hostfile": "two machines", "--device cuda": "a GPU"}


def printed(page):
    """The commands of a page: between its sentences, and the lines of its blocks."""
    text = re.sub(r"\\\n\s*", "", page.read_text())
    for match in re.finditer(r"`((?:mpirun|memtape) [^`]+)`|^ *(?:\$ |    )((?:mpirun|memtape) .*)", text, re.M):
        command = " ".join((match[1] or match[2].partition("  # ")[0]).split())
        compared = page.parent.name == "lessons" and match[2] and re.match(COMPARED_LINE, command)
        if not (compared or PATTERN.search(command) or MENTION.match(command)):
            yield command if shutil.which("jq") else command.partition(" | ")[0]


def lay_out(folder):
    """A clone after ./run demo, and the files that the commands read."""
    build = Path(os.environ["BUILD"])
    for entry in ROOT.iterdir():
        if not entry.name.startswith((".", "build")):
            os.symlink(entry, folder / entry.name)
    for part in os.environ["DEMO"].split(":"):
        copy = folder / "build" / Path(part).relative_to(build)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(part, copy)
    for name in ("FILE", "notes.txt"):
        shutil.copy(ROOT / "README.md", folder / name)
    (folder / "run.log").write_text("max_memory_reserved: 2,399,141,888\n")
    (folder / "error.txt").write_text(" ".join(re.search(r"(?s)    (torch.OutOfMemoryError: .*?)\n\n", (ROOT / "docs" / "compare.md").read_text())[1].split()))
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("MEMTAPE", "MTT_", "OMP_", "DEMO"))}
    environment["PATH"] = f"{folder}/build:{os.environ['PATH']}"
    for snapshot, report in (("snapshot.pickle", "report.json"), ("memtape-oom.pickle", "memtape-oom.json")):
        subprocess.run(["memtape", "profile", "llama-3.1-8b", "-l", "1", "-s", "64", "-q", "--snapshot", snapshot, "--timeline", "--json", report],
                       cwd=folder, env=environment, check=True)
    return environment


def is_short(page, command):
    return page.name in ("README.md", "tour.md") and not command.startswith(SECONDS)


def runs(command, folder, environment, where):
    p = subprocess.run(command, shell=True, cwd=folder, env=environment, capture_output=True, text=True,
                       errors="replace", timeout=300, stdin=subprocess.DEVNULL)
    check(p.returncode == ENDS.get(command, 0), f"{where}: {command}: status {p.returncode}: {p.stderr}")


def runs_installed(folder):
    """Not only at its place, which is compiled in."""
    installed = subprocess.run(["meson", "install", "-C", os.environ["BUILD"], "--no-rebuild", "--tags", "runtime", "--destdir", folder],
                               capture_output=True, text=True)
    check(installed.returncode == 0, f"meson install: {installed.stdout} {installed.stderr}")
    programs = [str(path.parent) for path in Path(folder).rglob("bin/memtape")]
    path = ":".join([*programs, os.environ["PATH"]])
    runs("mpirun -n 2 memtape profile gpt -b 2 --dp 2", folder, {**os.environ, "PATH": path}, "installed")


skipped, seen, ran, of_ranks = {}, set(), 0, 0
if not os.environ.get("MPIRUN"):
    NEEDS["mpirun"] = "MPI"
with tempfile.TemporaryDirectory() as scratch:
    variables = lay_out(Path(scratch))
    for page in [ROOT / "README.md", *sorted(DOCS.glob("*.md")), *sorted((DOCS / "lessons").glob("*.md"))]:
        for command in printed(page) if page.name not in COMPARED else ():
            needs = [why for words, why in NEEDS.items() if words in command]
            if needs:
                skipped[command] = needs[0]
            elif command not in seen:
                of_ranks += command.startswith("mpirun")
                if LONG or is_short(page, command) or command.startswith("mpirun") and turn(of_ranks):
                    runs(command, scratch, variables, page.name)
                    ran += 1
            seen.add(command)
if "MPI" not in NEEDS.values():
    with tempfile.TemporaryDirectory() as scratch:
        runs_installed(scratch)
check(len(seen) > 30 and any(command.startswith("mpirun") for command in seen), f"{len(seen)} commands")
for command, why in skipped.items():
    print(f"not run, as it needs {why}: {command}")
print(f"{ran} of {len(seen)} commands ran as they are printed")
done()
