"""A headless Chromium, driven by chromedriver through the protocol of WebDriver (W3C)."""
import json
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path

# Debian's names, then those of other distributions.
CHROMIUM = next((p for p in map(shutil.which, ["chromium", "chromium-browser", "google-chrome"]) if p), None)
DRIVER = shutil.which("chromedriver") or shutil.which("chromium.chromedriver")
ELEMENT = "element-6066-11e4-a52e-4f735466cecf"  # the protocol's name for a reference to an element


def missing():
    """The names of the programs that are not there."""
    return [name for name, path in (("chromium", CHROMIUM), ("chromedriver", DRIVER)) if not path]


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Browser:
    """A window of the given width; a phone's below 600. Use it in `with`."""

    def __init__(self, width=1280, height=900, dark=False):
        self.port = free_port()
        self.driver = subprocess.Popen([DRIVER, f"--port={self.port}", "--log-level=OFF"],
                                       stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.session = ""
        arguments = ["--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--disable-dev-shm-usage"]
        wanted = {"browserName": "chrome", "goog:loggingPrefs": {"browser": "ALL"},
                  "goog:chromeOptions": {"binary": CHROMIUM, "args": arguments}}
        self.wait()
        self.session = "/session/" + self.post("/session", capabilities={"alwaysMatch": wanted})["sessionId"]
        self.cdp("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1,
                 mobile=width < 600)
        self.scheme(dark)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        try:
            self.call("DELETE", self.session)
        finally:
            self.driver.terminate()
            self.driver.wait(20)

    def wait(self):
        for _ in range(200):
            try:
                if self.call("GET", "/status")["ready"]:
                    return
            except OSError:
                pass
            time.sleep(0.1)
        raise RuntimeError("chromedriver does not answer")

    def call(self, method, path, body=None):
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}{path}", method=method,
                                         data=None if body is None else json.dumps(body).encode(),
                                         headers={"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=120) as answer:
                return json.load(answer)["value"]
        except urllib.error.HTTPError as error:
            raise RuntimeError(json.load(error)["value"]["message"]) from None

    def post(self, path, **body):
        return self.call("POST", self.session + path, body)

    def cdp(self, command, **parameters):
        return self.post("/goog/cdp/execute", cmd=command, params=parameters)

    # ---- what a reader does ----

    def open(self, path):
        """Loads the file; returns the milliseconds from the start of navigation to the end of loading."""
        self.post("/url", url=Path(path).resolve().as_uri())
        return self.js("const [n] = performance.getEntriesByType('navigation'); return n.loadEventEnd - n.startTime")

    def js(self, script, *arguments):
        return self.post("/execute/sync", script=script, args=list(arguments))

    def find(self, selector):
        return self.post("/element", using="css selector", value=selector)[ELEMENT]

    def click(self, selector):
        self.js("document.querySelector(arguments[0]).scrollIntoView({block: 'center', behavior: 'instant'})", selector)
        self.post(f"/element/{self.find(selector)}/click")

    def write(self, selector, text):
        self.post(f"/element/{self.find(selector)}/value", text=text)

    def pointer(self, *steps):
        """Mouse steps: ("move", x, y), in the window; ("down",), ("up",)."""
        kinds = {"move": "pointerMove", "down": "pointerDown", "up": "pointerUp"}
        actions = [{"type": kinds[kind], "button": 0, **dict(zip("xy", map(round, place)))} if not place else
                   {"type": kinds[kind], "duration": 0, **dict(zip("xy", map(round, place)))}
                   for kind, *place in steps]
        self.post("/actions", actions=[{"type": "pointer", "id": "mouse", "parameters": {"pointerType": "mouse"},
                                        "actions": actions}])

    def keys(self, text):
        """Presses keys in turn, on what has the focus."""
        actions = [{"type": kind, "value": key} for key in text for kind in ("keyDown", "keyUp")]
        self.post("/actions", actions=[{"type": "key", "id": "keyboard", "actions": actions}])

    def scheme(self, dark):
        self.cdp("Emulation.setEmulatedMedia",
                 features=[{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}])

    def console(self):
        """What the console says since the last call."""
        return [entry["message"] for entry in self.post("/se/log", type="browser")]
