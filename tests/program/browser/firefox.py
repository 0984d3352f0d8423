"""A headless Firefox, driven by its own protocol, Marionette: each message is its length, a colon, and JSON."""
import json
import re
import shutil
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from browser import free_port

FIREFOX = shutil.which("firefox-esr") or shutil.which("firefox")
# What pages write to the console comes to the standard output, without the name of a part of Firefox before it.
PREFERENCES = 'user_pref("devtools.console.stdout.content", true);\nuser_pref("browser.dom.window.dump.enabled", true);\n'
OF_A_PAGE = re.compile(r"console\.\w+: (?!\w+: )|JavaScript (error|warning): (file|blob):")


class Firefox:
    """Use it in `with`."""

    def __init__(self):
        port, self.folder, self.id = free_port(), tempfile.TemporaryDirectory(), 0
        self.output = Path(self.folder.name) / "output"
        (Path(self.folder.name) / "user.js").write_text(f'{PREFERENCES}user_pref("marionette.port", {port});\n')
        with self.output.open("wb") as output:
            self.process = subprocess.Popen([FIREFOX, "--headless", "--marionette", "--no-remote", "--profile", self.folder.name],
                                            stdout=output, stderr=subprocess.STDOUT)
        self.socket = self.connected(port)
        self.stream = self.socket.makefile("rb")
        self.read()
        self.call("WebDriver:NewSession", capabilities={})

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.socket.close()
        self.process.terminate()
        self.process.wait(20)
        self.folder.cleanup()

    def connected(self, port):
        for _ in range(300):
            try:
                return socket.create_connection(("127.0.0.1", port), timeout=120)
            except OSError:
                time.sleep(0.1)
        raise RuntimeError("Firefox does not answer")

    def read(self):
        length = b""
        while not length.endswith(b":"):
            length += self.stream.read(1)
        return json.loads(self.stream.read(int(length[:-1])))

    def call(self, command, **parameters):
        self.id += 1
        text = json.dumps([0, self.id, command, parameters]).encode()
        self.socket.sendall(b"%d:%s" % (len(text), text))
        _, _, error, result = self.read()
        if error:
            raise RuntimeError(f"{command}: {error['message']}")
        return result

    def open(self, path):
        self.call("WebDriver:Navigate", url=Path(path).resolve().as_uri())

    def js(self, script, *arguments):
        return self.call("WebDriver:ExecuteScript", script=script, args=list(arguments))["value"]

    def console(self):
        """What pages wrote to it."""
        return [line for line in self.output.read_text(errors="replace").splitlines() if OF_A_PAGE.match(line)]
