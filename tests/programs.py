"""What tests of a build folder run and load, as ninja names it there, a line each:

  programs.py FOLDER NAME...             of these tests
  programs.py FOLDER --suite SUITE       of those of a suite
  programs.py FOLDER --without SUITE...  of all but those of these suites; without what lies in the first one's folder
  programs.py FOLDER --in PLACE [--no-suite SUITE]
                                         of tests that are not long and whose program or script lies in PLACE, such as tests/src
  programs.py FOLDER --names PLACE [--no-suite SUITE]
                                         the names of these"""
import json
import os
import sys

folder, words = sys.argv[1], sys.argv[2:]
SOURCE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..")


def read(what):
    with open(os.path.join(folder, "meson-info", f"intro-{what}.json"), encoding="utf-8") as f:
        return json.load(f)


def lies_in(place, command):
    """Whether the first word of a command that is a file of tests, source or built, lies there."""
    for word in command:
        for root in (SOURCE, folder):
            path = os.path.relpath(os.path.abspath(word), os.path.abspath(root))
            if path.startswith("tests" + os.sep):
                return path.startswith(place + os.sep)
    return False


def is_meant(test):
    suites = {suite.rpartition(":")[2] for suite in test["suite"]}
    if words[0] in ("--in", "--names"):
        return not suites & {"long", *words[3:]} and lies_in(words[1], test["cmd"])
    if words[0] == "--suite":
        return words[1] in suites
    if words[0] == "--without":
        return not suites & {*words[1:]}
    return test["name"] in words


left_out = f"tests/src/{words[1]}/" if words[0] == "--without" else None
meant = [test for test in read("tests") if is_meant(test)]
if words[0] == "--names":
    print("\n".join(test["name"] for test in meant))
    sys.exit()
files = {target["id"]: target["filename"] for target in read("targets")}
needed = {file for test in meant for target in test["depends"] for file in files[target]}
names = sorted(os.path.relpath(file, folder) for file in needed)
print("\n".join(name for name in names if not left_out or not name.startswith(left_out)))
