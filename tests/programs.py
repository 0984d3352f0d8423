"""What tests of a build folder run and load, as ninja names it there, a line each:

  programs.py FOLDER NAME...            of these tests
  programs.py FOLDER --suite SUITE      of those of a suite
  programs.py FOLDER --without SUITE    of all but those of a suite, and of the suite long; without what lies in the suite's folder"""
import json
import os
import sys

folder, words = sys.argv[1], sys.argv[2:]


def read(what):
    with open(os.path.join(folder, "meson-info", f"intro-{what}.json"), encoding="utf-8") as f:
        return json.load(f)


def is_meant(test):
    suites = {suite.rpartition(":")[2] for suite in test["suite"]}
    if words[0] == "--suite":
        return words[1] in suites
    if words[0] == "--without":
        return not suites & {words[1], "long"}
    return test["name"] in words


left_out = f"tests/{words[1]}/" if words[0] == "--without" else None
files = {target["id"]: target["filename"] for target in read("targets")}
needed = {file for test in read("tests") if is_meant(test) for target in test["depends"] for file in files[target]}
names = sorted(os.path.relpath(file, folder) for file in needed)
print("\n".join(name for name in names if not left_out or not name.startswith(left_out)))
