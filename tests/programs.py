"""programs.py FOLDER NAME...: what these tests of a build folder run and load, as ninja names it there, a line each."""
import json
import os
import sys

folder, names = sys.argv[1], sys.argv[2:]


def read(what):
    with open(os.path.join(folder, "meson-info", f"intro-{what}.json"), encoding="utf-8") as f:
        return json.load(f)


files = {target["id"]: target["filename"] for target in read("targets")}
needed = {file for test in read("tests") if test["name"] in names for target in test["depends"] for file in files[target]}
print("\n".join(sorted(os.path.relpath(file, folder) for file in needed)))
