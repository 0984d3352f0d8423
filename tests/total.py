"""Adds up the results of test runs: total.py LOG... prints what failed, what was not run with the reason for it,
and one line, `N passed, N failed, N skipped`.

Each LOG is one of these:
  a meson testlog            one JSON object per line
  ran:NAME:STATUS:FILE       a command with its exit status (77: skipped) and its output
  covers:LIST:LOG            a comparison, counted as one test: LOG has every test of LIST, which
                             `meson test --list` printed
  skipped:NAME               a run that could not be made
  left-out:FILE              the parts that could not be built, a line each, which says why
A test's own output gives its counts: the cases of a cmocka program, or a line `N passed, N failed, N skipped`;
otherwise it counts as one. Exit status 1 if anything failed, or if nothing passed, because then nothing was
tested."""

import json
import re
import sys

CMOCKA_RAN = re.compile(r"^\[==========\] (?:\S+: )?(\d+) test\(s\) run\.", re.M)
CMOCKA_STATE = {state: re.compile(r"^\[  %s *\] (?:\S+: )?(\d+) test\(s\)" % state, re.M)
                for state in ("PASSED", "FAILED", "SKIPPED")}
NO_MODULE = re.compile(r"^No module named '(\w+)'.*")
SAYS_WHY = re.compile(r"^FAILED: |: error: |^\[  ERROR|ERROR: \w+Sanitizer|^\w+(Error|Expired): ")
OWN_LINE = re.compile(r"^(\d+) passed, (\d+) failed, (\d+) skipped$", re.M)


def counts(test):
    """(passed, failed, skipped) of one meson test."""
    text = test.get("stdout", "") + "\n" + test.get("stderr", "")
    if test["result"] == "SKIP":
        return 0, 0, 1
    passed = failed = skipped = 0
    if CMOCKA_RAN.search(text):
        passed, failed, skipped = (sum(map(int, CMOCKA_STATE[state].findall(text)))
                                   for state in ("PASSED", "FAILED", "SKIPPED"))
    for own in OWN_LINE.findall(text):
        passed, failed, skipped = passed + int(own[0]), failed + int(own[1]), skipped + int(own[2])
    if test["result"] in ("OK", "EXPECTEDFAIL"):
        # The output counts even if a program reports failures and exits with 0.
        return (passed, failed, skipped) if passed + failed + skipped else (1, 0, 0)
    return passed, max(failed, 1), skipped  # also a crash, a time-out, a leak after the last case


def why_failed(test):
    """The lines of its output that say what failed, the first few; if none does, the last ones."""
    lines = [line.strip() for line in (test.get("stdout", "") + "\n" + test.get("stderr", "")).split("\n") if line.strip()]
    return [line for line in lines if SAYS_WHY.search(line)][:4] or lines[-4:]


def why_skipped(test):
    """The reason that a skipped test gave in its last line, with the command that lets it run."""
    lines = (test.get("stdout", "") + "\n" + test.get("stderr", "")).split("\n")
    why = ([line.strip() for line in lines if line.strip()] or ["no reason was given"])[-1]
    why = why.removeprefix("skipped: ")
    return NO_MODULE.sub(r"no Python module \1: python3 -m pip install \1", why)


def skipped_lines(skipped):
    """A line for each reason, of all tests that gave it: from (test, how many cases) of those that skipped."""
    whole, cases = {}, 0
    for test, n in skipped:
        if test["result"] == "SKIP":
            whole.setdefault(why_skipped(test), []).append(test["name"].rpartition(" / ")[2])
        else:
            cases += n
    for why, names in whole.items():
        shown = ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")
        yield f"skipped: {shown}: {why}"
    if cases:
        yield f"skipped: cases that do not apply to the device, the build or the tools they met: {cases}"


def command(name, status, path):
    """A command as meson would log it."""
    with open(path, encoding="utf-8", errors="replace") as output:
        result = {"0": "OK", "77": "SKIP"}.get(status, "FAIL")
        return {"name": name, "result": result, "stdout": output.read()}


def coverage(path, log):
    """The comparison as a test: it prints the names of the list that the log lacks, and fails if there are
    any."""
    with open(path, encoding="utf-8") as names:
        wanted = {line.rpartition(" / ")[2].strip() for line in names if line[:6] != "ninja:"}
    lacking = wanted - {test["name"].rpartition(" / ")[2] for test in read(log)}
    for name in sorted(lacking):
        print(f"FAILED: not run: {name}")
    return {"name": f"{len(wanted)} tests to cover", "result": "FAIL" if lacking or not wanted else "OK"}


def read(log):
    if log.startswith("ran:"):
        return [command(*log.split(":")[1:])]
    if log.startswith("covers:"):
        return [coverage(*log.split(":")[1:])]
    with open(log, encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def print_lines(path):
    """Prints the lines of the file; returns how many there are."""
    with open(path, encoding="utf-8") as file:
        lines = [line for line in file.read().splitlines() if line]
    for line in lines:
        print(f"skipped: {line}")
    return len(lines)


def main(logs):
    total, not_run = [0, 0, 0], []
    for log in logs:
        if log.startswith("skipped:"):
            print(f"skipped: {log.removeprefix('skipped:')} (not installed)")
            total[2] += 1
            continue
        try:
            if log.startswith("left-out:"):
                total[2] += print_lines(log.removeprefix("left-out:"))
                continue
            tests = read(log)
        except OSError as error:
            print(f"FAILED: {log}: {error.strerror}; the run did not happen")
            total[1] += 1
            continue
        for test in tests:
            passed, failed, skipped = counts(test)
            if failed:
                print(f"FAILED: {test['name']} ({failed}) in {log}")
                for line in why_failed(test):
                    print(f"  {line[:300]}")
            if skipped:
                not_run.append((test, skipped))
            total = [a + b for a, b in zip(total, (passed, failed, skipped))]
    for line in skipped_lines(not_run):
        print(line)
    print("%d passed, %d failed, %d skipped" % tuple(total))
    return 1 if total[1] or not total[0] else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
