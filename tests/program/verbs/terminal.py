"""A program in a terminal of its own: what is on its screen, by the few sequences that memtape uses. Any other one is a
fault."""
import codecs
import fcntl
import os
import re
import select
import struct
import subprocess
import termios
import time

# Colours; up N lines; clear to the end of the line, of the screen; to the first cell.
KNOWN = re.compile(r"\x1b\[([\d;]*)([mAKJH])")
# At Ctrl-C the kernel drops what the terminal has not read yet, within a sequence too, and echoes ^C.
CUT = re.compile(r"(\x1b(\[[\d;]*)?)?\^C")


class Screen:
    """Cells of a terminal, and what has scrolled out at its top."""

    def __init__(self, columns, rows, whole):
        self.whole = re.compile(whole)
        self.columns, self.rows = columns, rows
        self.lines, self.row, self.column = [""] * rows, 0, 0
        self.gone, self.faults, self.colours, self.ink = [], [], set(), False

    def resize(self, columns, rows):
        """The text stays at the top left, as far as there is room."""
        self.columns, self.rows = columns, rows
        self.lines = [line[:columns] for line in (self.lines + [""] * rows)[:rows]]
        self.row = min(self.row, rows - 1)

    def newline(self):
        self.column = 0
        self.row += 1
        if self.row == self.rows:
            self.gone.append(self.lines.pop(0))
            self.lines.append("")
            self.row -= 1

    def put(self, letter):
        if self.column == self.columns:
            if self.whole.match(self.lines[self.row]) and "^C" not in self.lines[self.row]:
                self.faults.append(f"a line is wider than {self.columns} columns: {self.lines[self.row]!r}")
            self.newline()
        line = self.lines[self.row].ljust(self.column)
        self.lines[self.row] = line[:self.column] + letter + line[self.column + 1:]
        self.column += 1

    def obey(self, number, what):
        line = self.lines[self.row]
        if what == "m":
            self.colours.update(number.split(";"))
            self.ink = number != "0"
        elif what == "A":
            if int(number) > self.row:
                self.faults.append(f"{number} lines up from line {self.row}")
            self.row = max(0, self.row - int(number))
        elif what == "K":
            self.lines[self.row] = line[:self.column]
        elif what == "J":
            self.lines[self.row:] = [line[:self.column]] + [""] * (self.rows - self.row - 1)
        elif what == "H":
            self.row = self.column = 0

    def feed(self, text):
        at = 0
        while at < len(text):
            known = KNOWN.match(text, at)
            if known:
                self.obey(known[1], known[2])
                at = known.end()
                continue
            cut = CUT.match(text, at)
            if cut:  # in any column: what the line lost is not known
                self.lines[self.row] += "^C"
                at = cut.end()
                continue
            letter = text[at]
            if letter == "\n":
                self.newline()
            elif letter == "\r":
                self.column = 0
            elif letter < " " or letter == "\x7f":
                self.faults.append(f"unknown: {text[at:at + 12]!r}")
            else:
                self.put(letter)
            at += 1

    def text(self):
        return "\n".join(line.rstrip() for line in self.gone + self.lines).strip("\n")


class Terminal:
    """Runs a command in it. Lines that begin as `whole` says must fit."""

    def __init__(self, command, columns=80, rows=24, whole="", **environment):
        self.master, self.slave = os.openpty()
        self.size(columns, rows)
        self.before = termios.tcgetattr(self.slave)
        self.screen = Screen(columns, rows, whole)
        self.begun = ""
        self.decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        env = {k: v for k, v in os.environ.items() if k not in ("NO_COLOR", "TERM")}
        self.process = subprocess.Popen(command, stdin=self.slave, stdout=self.slave, stderr=self.slave,
                                        env={**env, "TERM": "xterm-256color", **environment}, start_new_session=True,
                                        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0))

    def size(self, columns, rows):
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def resize(self, columns, rows):
        self.read(0.05)
        self.size(columns, rows)
        self.screen.resize(columns, rows)

    def read(self, seconds, most=1 << 30):
        """Takes in what comes within that time, at most so many bytes, and returns it."""
        raw, end = b"", time.monotonic() + seconds
        while len(raw) < most and (left := end - time.monotonic()) > 0 and select.select([self.master], [], [], left)[0]:
            raw += os.read(self.master, min(65536, most - len(raw)))
        text = self.begun + self.decode(raw)
        end = re.search(r"(\x1b(\[[\d;]*)?)?\^?\Z", text).start()
        text, self.begun = text[:end], text[end:]
        self.screen.feed(text)
        return text

    def until(self, pattern, seconds=60):
        """Reads until the screen shows it."""
        end = time.monotonic() + seconds
        while not re.search(pattern, self.screen.text()):
            if time.monotonic() > end or self.process.poll() is not None:
                return False
            self.read(0.05)
        return True

    def type(self, text):
        os.write(self.master, text.encode())

    def wait(self, seconds=120):
        """Its status, once it has ended."""
        end = time.monotonic() + seconds
        while self.process.poll() is None and time.monotonic() < end:
            self.read(0.05)
        while self.read(0.2):  # what it wrote at last, however busy the machine is
            pass
        return self.process.wait(1)

    def unchanged(self):
        """Whether its settings are as before."""
        return termios.tcgetattr(self.slave) == self.before

    def hang_up(self):
        """Closes it."""
        os.close(self.master)
