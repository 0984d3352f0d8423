"""What the last full run passed, in tests/verified.txt: a line for each file or folder, with git's hash of it.

  verified.py PATH...      status 0 if all of these are as they were then, without a change that is not committed; otherwise 1,
                           and a line that says what differs
  verified.py --record     writes the file: for a full run that passed, of a tree without changes
  verified.py --quarter    which of four parts of what rotates runs at this commit: the next commit runs the next one"""
import os
import subprocess
import sys

ROOT = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")
RECORD = "tests/verified.txt"
DIVIDED = ("src", "models", "lab", "program", "tests", "tests/src", "tests/models", "tests/lab", "tests/program",
           "docs")  # each of their folders has a line


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


def present():
    """{path: hash} of the commit; None without git."""
    listed = git("ls-tree", "--full-tree", "HEAD")
    if listed is None or not is_a_repository():
        return None
    for folder in DIVIDED:
        listed += git("ls-tree", "--full-tree", "HEAD", folder + "/") or ""
    hashes = {}
    for line in listed.splitlines():
        about, path = line.split("\t")
        hashes[path] = about.split()[2]
    return {path: value for path, value in hashes.items() if path not in (*DIVIDED, RECORD)}


def recorded():
    try:
        with open(os.path.join(ROOT, RECORD), encoding="utf-8") as f:
            return dict(line.split() for line in f if line.strip() and not line.startswith("#"))
    except OSError:
        return None


def within(path, hashes):
    """The lines of a path: several for a folder that is divided."""
    return {at: value for at, value in hashes.items() if at == path or at.startswith(path + "/")}


def why_changed(paths):
    """What says that one of them is not as it was; None if they all are."""
    now, then = present(), recorded()
    if now is None:
        return "git does not know this tree"
    if then is None:
        return f"there is no {RECORD}"
    for path in paths:
        if not within(path, now) or within(path, now) != within(path, then):
            return f"{path} is not what the last full run passed"
    changes = git("status", "--porcelain", "--", *paths, f":(exclude){RECORD}")
    return None if changes == "" else "of these files not all changes are committed: " + " ".join(paths)


def record():
    now = present()
    if now is None or git("status", "--porcelain", "--", ".", f":(exclude){RECORD}") != "":
        print(f"verified: {RECORD} is left as it is: the tree has changes that are not committed, or no git")
        return
    with open(os.path.join(ROOT, RECORD), "w", encoding="utf-8") as f:
        f.write("# What the last full run, ./run test --all, passed: git's hash of each folder (tests/verified.py).\n")
        f.writelines(f"{path} {value}\n" for path, value in sorted(now.items()))
    print(f"verified: {RECORD} has what this run passed; commit it")


def quarter():
    """Empty, which stands for all four, where commits cannot be counted."""
    shallow, count = git("rev-parse", "--is-shallow-repository"), git("rev-list", "--count", "HEAD")
    return str(int(count) % 4) if count and is_a_repository() and shallow == "false\n" else ""


def main(words):
    if words == ["--record"]:
        record()
    elif words == ["--quarter"]:
        print(quarter())
    elif why := why_changed(words):
        print(why)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
