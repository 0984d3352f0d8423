"""worker.py: the processes that measure, and the exchange of lines with them."""

import os
import subprocess
import sys


class Failed(Exception):
    """A worker reported a failure, or ended."""


class Worker:
    """One process that obeys lines: build/bench/memtape_bench or peer.py."""

    def __init__(self, command, *arguments, environment=None):
        self.name = os.path.basename(command[-1]) + " " + arguments[0]
        self.process = subprocess.Popen(
            [*command, *map(str, arguments)], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            text=True, bufsize=1, env=os.environ | (environment or {}))
        self.greeting = self._until("ready")

    def _until(self, last):
        """The lines before `last`, as lists of words."""
        lines = []
        for line in self.process.stdout:
            if line.strip() == last:
                return lines
            lines.append(line.split())
        raise Failed(f"{self.name} ended with status {self.process.wait()}")

    def ask(self, *words):
        try:
            self.process.stdin.write(" ".join(map(str, words)) + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            pass  # the reason is in its status
        return self._until("done")

    def end(self):
        """Ends the worker; returns its last lines by their first word."""
        out, _ = self.process.communicate("end\n")
        if self.process.returncode:
            raise Failed(f"{self.name} ended with status {self.process.returncode}")
        return {words[0]: words[1:] for words in (line.split() for line in out.splitlines()) if words}

    def stop(self):
        """Stops the worker in any state."""
        for pipe in (self.process.stdin, self.process.stdout):
            try:
                pipe.close()
            except BrokenPipeError:
                pass  # it ended with an unread line
        self.process.wait()


class Side:
    """memtape's side or the peer's: starts workers of one kind; those that train GPTs also get gpt_words."""

    def __init__(self, name, command, settings, gpt_words=()):
        self.name, self.command, self.settings = name, command, settings
        self.gpt_words = gpt_words
        self.threads, self.environment = settings.threads, {}

    def changed(self, threads=None, **environment):
        """The same side with so many threads, and with more in its environment."""
        other = Side(self.name, self.command, self.settings, self.gpt_words)
        other.threads, other.environment = threads or self.threads, self.environment | environment
        return other

    def with_words(self, *gpt_words):
        """The same side, but for these words to those that train GPTs."""
        other = self.changed()
        other.gpt_words = gpt_words
        return other

    def start(self, *arguments):
        threads = str(self.threads)
        more = self.gpt_words if arguments[0] == "gpt" else ()
        return Worker(self.command, *arguments, *more,
                      environment={"OMP_NUM_THREADS": threads, "MKL_NUM_THREADS": threads,
                                   "BENCH_CLOCK": self.settings.clock, **self.environment})


def peer_version():
    """PyTorch's version, or None and why not."""
    got = subprocess.run([sys.executable, "-c", "import torch; print(torch.__version__)"],
                         capture_output=True, text=True, check=False)
    if got.returncode == 0:
        return got.stdout.strip(), None
    reason = (got.stderr.strip().splitlines() or ["no reason given"])[-1]
    return None, f"not importable ({reason})"
