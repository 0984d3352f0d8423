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

# Colours; clear to the end of the line.
KNOWN = re.compile(r"\x1b\[[\d;]*([mK])")


class Screen:
    """Cells of a terminal, and what has scrolled out at its top."""

    def __init__(self, columns, rows):
        self.columns, self.rows = columns, rows
        self.lines, self.row, self.column = [""] * rows, 0, 0
        self.gone, self.faults = [], []

    def newline(self):
        self.column = 0
        self.row += 1
        if self.row == self.rows:
            self.gone.append(self.lines.pop(0))
            self.lines.append("")
            self.row -= 1

    def put(self, letter):
        if self.column == self.columns:
            self.faults.append(f"a line is wider than {self.columns} columns: {self.lines[self.row]!r}")
            self.newline()
        line = self.lines[self.row].ljust(self.column)
        self.lines[self.row] = line[:self.column] + letter + line[self.column + 1:]
        self.column += 1

    def feed(self, text):
        at = 0
        while at < len(text):
            known = KNOWN.match(text, at)
            if known:
                if known[1] == "K":
                    self.lines[self.row] = self.lines[self.row][:self.column]
                at = known.end()
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
    """Runs a command in it. Its lines must fit."""

    def __init__(self, command, columns=80, rows=24, **environment):
        self.master, self.slave = os.openpty()
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        self.screen = Screen(columns, rows)
        self.begun = ""
        self.decode = codecs.getincrementaldecoder("utf-8")("replace").decode
        env = {k: v for k, v in os.environ.items() if k not in ("NO_COLOR", "TERM")}
        self.process = subprocess.Popen(command, stdin=self.slave, stdout=self.slave, stderr=self.slave,
                                        env={**env, "TERM": "xterm-256color", **environment}, start_new_session=True,
                                        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0))

    def read(self, seconds):
        """Takes in what comes within that time, and returns it."""
        raw, end = b"", time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0 and select.select([self.master], [], [], left)[0]:
            raw += os.read(self.master, 65536)
        text = self.begun + self.decode(raw)
        end = re.search(r"(\x1b(\[[\d;]*)?)?\Z", text).start()
        text, self.begun = text[:end], text[end:]
        self.screen.feed(text)
        return text

    def wait(self, seconds=120):
        """Its status, once it has ended."""
        end = time.monotonic() + seconds
        while self.process.poll() is None and time.monotonic() < end:
            self.read(0.05)
        while self.read(0.2):  # what it wrote at last, however busy the machine is
            pass
        return self.process.wait(1)

    def hang_up(self):
        """Closes it."""
        os.close(self.master)
