"""`memtape train --live` in a terminal: the picture is drawn in its place, its figures are the allocator's, nothing of the
terminal is changed, and the run is the same as without."""
import os
import re
import signal
import tempfile
from lib import MEMTAPE, check, done, equal, refused, run
from terminal import Terminal

folder = tempfile.TemporaryDirectory()
os.chdir(folder.name)
with open("text", "w") as f:
    f.write("".join(chr(97 + i * i % 23) for i in range(3000)))
MODEL = ["train", "--data", "text", "-l", 2, "-d", 32, "-a", 2, "-s", 32, "-b", 4]


def live(*args, columns=80, rows=24, **environment):
    return Terminal([MEMTAPE, *map(str, [*MODEL, "--live", *args])], columns, rows,
                    whole="step |the peak|.{10} \\||  +|[a-z\u2588] [a-z ]+ [\\d.]+ %", **environment)


def frames(text):
    """The frames of a text, from their first line to their last."""
    return re.findall(r"^step \d+/\d+  .*(?:\n(?!step \d).*)*", text, re.M)


def check_frame(frame, name):
    """Its figures agree with each other and with the allocator's own, which the first line has."""
    first = re.search(r"\(peak ([\d.]+ \w+)\)", frame)[1]
    equal(re.search(r"(?:v|\u25bc) peak ([\d.]+ \w+)|peak ([\d.]+ \w+) (?:v|\u25bc)", frame)[0].strip("v \u25bc"),
          f"peak {first}", f"{name}: the events' peak and the allocator's")
    where = re.search(r"^the peak: event (\d+) of (\d+), in (forward|backward|step)", frame, re.M)
    check(where and 0 < int(where[1]) <= int(where[2]), f"{name}: what made the peak: {frame}")
    shares = dict(re.findall(r"[\w\u2588] (\w[\w ]*?) ([\d.]+) %", frame))
    check(abs(sum(map(float, shares.values())) - 100) < 0.06 * len(shares), f"{name}: shares {shares}")
    check({"parameter", "optimizer", "activation"} <= set(shares), f"{name}: categories {shares}")
    for phase in ("|forward", "|backward", "|step"):
        check(phase in frame, f"{name}: {phase} below the picture:\n{frame}")


def picture(frame):
    return [line[12:] for line in frame.splitlines() if re.match(r".{10} \|", line)]


def whole_run(name, *args, **more):
    t = live(*args, "--steps", 60, **more)
    equal(t.wait(), 0, f"{name}: status")
    equal(t.screen.faults, [], f"{name}: faults")
    check(t.unchanged(), f"{name}: the terminal's settings")
    return t


def picture_is_drawn_in_its_place():
    for columns, rows in [(80, 24), (132, 50), (60, 20), (40, 16)]:
        name = f"{columns}x{rows}"
        t = whole_run(name, columns=columns, rows=rows)
        text = t.screen.text()
        found = frames(text)
        equal(len(found), 1, f"{name}: frames on the screen, one over the other:\n{text}")
        check(found[0].startswith("step 60/60"), f"{name}: the last step stays")
        if columns >= 80:
            check_frame(found[0], name)
        check(re.search(r"%\nheld-out bits", text), f"{name}: what follows comes below:\n{text}")
        check(not t.screen.ink, f"{name}: colours end")
        check({"32", "34", "36"} <= t.screen.colours, f"{name}: colours {t.screen.colours}")
        check("\u2588" in "".join(picture(found[0])), f"{name}: filled cells")


def small_screens_have_a_line():
    for columns, rows in [(80, 6), (20, 24), (1, 1), (12, 3)]:
        t = live("--steps", 8, "-q", columns=columns, rows=rows)
        equal(t.wait(), 2, "refused with --quiet")
        t = live("--steps", 8, columns=columns, rows=rows)
        equal(t.wait(), 0, f"{columns}x{rows}: status")
        check(not re.search("the peak:", t.screen.text()), f"{columns}x{rows}: no picture")


def no_color_has_letters():
    t = whole_run("NO_COLOR", NO_COLOR="1")
    equal(t.screen.colours, set(), "colours with NO_COLOR")
    frame = frames(t.screen.text())[0]
    check_frame(frame, "NO_COLOR")
    letters = set("".join(picture(frame))) - {" "}
    check({"p", "o", "a"} <= letters <= set("pgoiayrkctw"), f"letters {letters}")
    for letter in letters:
        check(re.search(rf"(^|  ){letter} [a-z]+ [\d.]+ %", frame, re.M), f"{letter} is explained")


def where_lines_stay_frames_follow_each_other():
    t = whole_run("dumb", TERM="dumb")
    p = run(*MODEL, "--live", "--steps", 60)
    equal(p.returncode, 0, f"piped: {p.stderr}")
    for name, text in [("dumb", t.screen.text()), ("piped", p.stdout)]:
        found = frames(text)
        check("\x1b" not in text, f"{name}: no sequences")
        equal([int(f.split("/")[0][5:]) for f in found], list(range(3, 61, 3)), f"{name}: each twentieth of the run")
        check_frame(found[-1], name)


def terminal_may_be_resized():
    t = live("--steps", 10**6)
    check(t.until("the peak:"), "a first frame")
    for columns, rows in [(60, 24), (120, 40), (80, 18)]:
        t.resize(columns, rows)
        # The next frame clears the screen; one before it may be of the old size, and scroll.
        t.screen.faults.clear()
        t.read(1)
        t.screen.faults.clear()
        t.read(1)
        shown = "\n".join(t.screen.lines)
        equal(len(frames(shown)), 1, f"frames at {columns}x{rows}:\n{shown}")
        equal(t.screen.faults, [], f"faults at {columns}x{rows}")
    t.type("\x03")
    equal(t.wait(), 130, "status after Ctrl-C")


def ends_of_all_kinds_leave_the_terminal():
    t = live("--steps", 10**6, "--save", "stopped")
    check(t.until("the peak:"), "a first frame")
    t.type("\x03")
    equal(t.wait(), 130, "status after Ctrl-C")
    text = t.screen.text()
    check(re.search(r"^memtape train: stopped by signal 2 after step \d+; the run is saved", text, re.M),
          f"the message has its own line:\n{text}")
    check(t.unchanged() and not t.screen.ink and not t.screen.faults, f"after Ctrl-C: {t.screen.faults}")

    for read in range(300, 6000, 700):
        t = live("--steps", 10**6, "--save", "stopped")
        check(t.until("the peak:"), "a first frame")
        t.read(1, most=read)  # of a frame that the Ctrl-C cuts
        t.type("\x03")
        equal(t.wait(), 130, "status after Ctrl-C within a frame")
        check(re.search(r"^saved stopped at step \d+\n", t.screen.text(), re.M), f"its own line:\n{t.screen.text()}")
        # What the terminal drops at Ctrl-C may join halves of lines, and of codes. A further frame would go up from there.
        faults = [fault for fault in t.screen.faults if "lines up" in fault]
        check(not t.screen.ink and not faults, f"after Ctrl-C within a frame, {read}: {faults}")

    t = live("--steps", 10**6, "--save", "closed")
    check(t.until("the peak:"), "a first frame")
    os.close(t.slave)
    t.hang_up()
    equal(t.process.wait(60), 128 + signal.SIGHUP, "status after the terminal has closed")
    check(os.path.exists("closed"), "the run is saved")

    t = live("--steps", 10**6, "--lr", 1000, "--optimizer", "adamw:warmup=0,min-lr=1000,clip=0", "--dtype", "f16")
    equal(t.wait(), 1, "status of a loss that is no number")
    check(re.search(r"^memtape train: the loss became", t.screen.text(), re.M), f"the error:\n{t.screen.text()}")
    check(t.unchanged() and not t.screen.ink and not t.screen.faults, f"after an error: {t.screen.faults}")


def messages_stand_above_the_picture():
    t = whole_run("messages", "--save", ".", "--save-every", 20, "--eval-every", 30, rows=40)
    lines = t.screen.text().splitlines()
    for text in ["saved ./step-20.safetensors at step 20", "step 30  held-out bits per byte"]:
        equal(sum(line.startswith(text) for line in lines), 1, f"{text}: once, in\n" + "\n".join(lines))
    equal(len([f for f in frames(t.screen.text()) if "the peak:" in f]), 1, "frames")


def run_is_the_same():
    for options in [[], ["--checkpoint", "full", "--accumulate", 2], ["--offload", "cpu"], ["--compress", "8bit"]]:
        for name, more in [("with", ["--live"]), ("without", [])]:
            p = run(*MODEL, *options, "--steps", 12, "--save", name, *more)
            equal(p.returncode, 0, f"{name} {options}: {p.stderr}")
        with open("with", "rb") as a, open("without", "rb") as b:
            check(a.read() == b.read(), f"the same bits with --live and {options}")


def it_is_drawn_of_what_has_no_values():
    p = run(*MODEL, "--live", "--steps", 20, "--device", "meta")
    equal(p.returncode, 0, f"meta: {p.stderr}")
    check_frame(frames(p.stdout)[-1].split("\nat most")[0], "meta")
    refused(["--live", "quiet"], *MODEL, "--live", "--quiet")


for test in [picture_is_drawn_in_its_place, small_screens_have_a_line, no_color_has_letters,
             where_lines_stay_frames_follow_each_other, terminal_may_be_resized, ends_of_all_kinds_leave_the_terminal,
             messages_stand_above_the_picture, run_is_the_same, it_is_drawn_of_what_has_no_values]:
    test()
done()
