"""What the dear parts of ./run test passed when they last ran whole, in tests/verified.txt: a line for each part and each file or
folder that it depends on, with git's hash.

  verified.py PART               status 0 if its files are as they were then, without a change that is not committed; otherwise 1,
                                 and a line that says what differs
  verified.py --record PART...   writes the lines of those of these parts that depend on few files: for parts that passed, of a tree
                                 without changes
  verified.py --quarter          which of four parts of what rotates runs at this commit: the next commit runs the next one"""
import os
import subprocess
import sys

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")
RECORD = "tests/verified.txt"
# The files that a change must touch for .ci/run to run the part. A full run finds what comes from elsewhere.
FILES = {
    "cuda": "src/backends tests/src/cudasim tests/src/backends tests/src/backends_cuda tests/gpu bench/gpu",
    "op": "src/ops src/autograd tests/lessons tests/src/gradcheck docs/lessons",
    "install": "python pyproject.toml meson.build program tests/python",
    "page": "src/base program/browser program/options program/report program/verbs docs/lessons tests/program/browser",
    "kernels": "src/backends src/ops src/autograd tests/src tests/models tests/helpers",
    "threads": "src models lab tests/threads tests/helpers",
    "macos": "program/packaging src/base models/files models/comm program/verbs meson.build",
}


def git(*words):
    """What git prints; None if there is no git, or no such thing."""
    try:
        got = subprocess.run(["git", "-C", ROOT, *words], capture_output=True, text=True, check=False)
    except OSError:
        return None
    return got.stdout if got.returncode == 0 else None


def is_a_repository():
    """This folder itself: it may lie in another one's."""
    return git("rev-parse", "--show-prefix") == "\n"


def present(part):
    """{path: hash} in the commit; None without git. A path that is not there has none."""
    if not is_a_repository():
        return None
    return {path: (git("rev-parse", "--verify", "--quiet", f"HEAD:{path}") or "").strip() for path in FILES[part].split()}


def recorded():
    """{part: {path: hash}}."""
    parts = {}
    try:
        with open(os.path.join(ROOT, RECORD), encoding="utf-8") as f:
            for part, path, value in (line.split() for line in f if line.strip() and not line.startswith("#")):
                parts.setdefault(part, {})[path] = value
    except OSError:
        pass
    return parts


def changes(paths):
    """What git tells of changes that are not committed."""
    return git("status", "--porcelain", "--", *paths, f":(exclude){RECORD}")


def why_changed(part):
    """What says that one of its files is not as it was; None if they all are."""
    now, then = present(part), recorded().get(part)
    if now is None:
        return "git does not know this tree"
    if then is None:
        return f"{RECORD} does not have it"
    for path, value in now.items():
        if not value or value != then.get(path):
            return f"{path} is not what it last passed with"
    return None if changes(now) == "" else "of its files not all changes are committed"


def record(parts):
    parts = [part for part in parts if part in FILES]
    if not parts:
        return
    if not is_a_repository() or changes(["."]) != "":
        print(f"verified: {RECORD} is left as it is: the tree has changes that are not committed, or no git")
        return
    rows = recorded() | {part: present(part) for part in parts}
    with open(os.path.join(ROOT, RECORD), "w", encoding="utf-8") as f:
        f.write("# What parts of ./run test passed when they last ran whole: part, path, git's hash of it (tests/verified.py).\n")
        f.writelines(f"{part} {path} {value}\n" for part in sorted(rows) for path, value in sorted(rows[part].items()) if value)
    print(f"verified: {RECORD} has what {', '.join(parts)} passed with; commit it")


def quarter():
    """Empty, which stands for all four, where commits cannot be counted."""
    shallow, count = git("rev-parse", "--is-shallow-repository"), git("rev-list", "--count", "HEAD")
    return str(int(count) % 4) if count and is_a_repository() and shallow == "false\n" else ""


def main(words):
    if words[:1] == ["--record"]:
        record(words[1:])
    elif words == ["--quarter"]:
        print(quarter())
    elif len(words) != 1 or words[0] not in FILES:
        print(__doc__, file=sys.stderr)
        return 2
    elif why := why_changed(words[0]):
        print(why)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
