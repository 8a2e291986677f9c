"""Debian's chromium, driven headless over the DevTools protocol: just enough to open a page, touch it and look."""

import base64
import json
import shutil
import subprocess
import time
import urllib.request
from pathlib import Path
from types import TracebackType

import websocket

BINARY = next(
    (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None
)


class Browser:
    """One chromium with one tab; whatever the page logs and requests is kept."""

    def __init__(self, profile: Path, *, width: int = 1280, height: int = 900, dark: bool = False) -> None:
        assert BINARY is not None
        self.console: list[str] = []
        self.requests: list[str] = []
        self._last_id = 0
        self._events: list[dict] = []
        options = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"]
        options += [
            "--disable-background-networking",
            "--disable-component-update",
            "--disable-sync",
            "--hide-scrollbars",
        ]
        options += ["--remote-debugging-port=0", "--remote-allow-origins=*", f"--user-data-dir={profile}"]
        self._process = subprocess.Popen(
            [BINARY, *options, "about:blank"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        try:
            self._socket = websocket.create_connection(self._tab_address(profile), timeout=60)
            for domain in ("Page", "Runtime", "Log", "Network"):
                self.call(f"{domain}.enable")
            self.resize(width, height)
            scheme = "dark" if dark else "light"
            self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> "Browser":
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        if hasattr(self, "_socket"):
            self._socket.close()
        self._process.terminate()
        try:
            self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _tab_address(self, profile: Path) -> str:
        deadline = time.monotonic() + 60
        port_file = profile / "DevToolsActivePort"
        while time.monotonic() < deadline:
            assert self._process.poll() is None, f"chromium ended with {self._process.returncode}"
            if port_file.is_file() and (port := port_file.read_text().partition("\n")[0]):
                with urllib.request.urlopen(f"http://127.0.0.1:{port}/json/list", timeout=10) as answer:
                    pages = [tab for tab in json.load(answer) if tab["type"] == "page"]
                if pages:
                    return str(pages[0]["webSocketDebuggerUrl"])
            time.sleep(0.05)
        raise TimeoutError("chromium did not open its DevTools port within 60 s")

    def call(self, method: str, **parameters: object) -> dict:
        """Sends one command and returns its answer; events that arrive meanwhile are kept."""
        self._last_id += 1
        self._socket.send(json.dumps({"id": self._last_id, "method": method, "params": parameters}))
        while True:
            message = json.loads(self._socket.recv())
            if message.get("id") == self._last_id:
                assert "error" not in message, f"{method}: {message['error']}"
                return message["result"]
            self._note(message)

    def _note(self, message: dict) -> None:
        self._events.append(message)
        method, parameters = message.get("method"), message.get("params", {})
        if method == "Runtime.consoleAPICalled" and parameters["type"] in ("error", "warning", "assert"):
            self.console.append(str(parameters["args"]))
        elif method == "Runtime.exceptionThrown":
            self.console.append(str(parameters["exceptionDetails"]))
        elif method == "Log.entryAdded" and parameters["entry"]["level"] in ("error", "warning"):
            self.console.append(str(parameters["entry"]))
        elif method == "Network.requestWillBeSent":
            self.requests.append(parameters["request"]["url"])

    def open(self, path: Path) -> float:
        """Opens a file, waits for its load event and two frames; returns the seconds the page itself counted."""
        self.load(path)
        self.settle()
        return float(self.evaluate("performance.now()")) / 1000

    def load(self, path: Path) -> None:
        self._events.clear()
        self.call("Page.navigate", url=path.resolve().as_uri())
        deadline = time.monotonic() + 60
        while not any(event.get("method") == "Page.loadEventFired" for event in self._events):
            assert time.monotonic() < deadline, "the page did not load within 60 s"
            self._note(json.loads(self._socket.recv()))

    def settle(self) -> None:
        """Two frames later, whatever was asked to be drawn is drawn."""
        self.evaluate("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => done(1))))")

    def evaluate(self, expression: str) -> object:
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, f"{expression}: {answer['exceptionDetails']}"
        return answer["result"].get("value")

    def resize(self, width: int, height: int) -> None:
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)

    def mouse(self, kind: str, x: float, y: float, **more: object) -> None:
        self.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, **more)

    def drag(self, start: tuple[float, float], end: tuple[float, float]) -> None:
        self.mouse("mouseMoved", *start)
        self.mouse("mousePressed", *start, button="left", buttons=1, clickCount=1)
        self.mouse("mouseMoved", *end, button="left", buttons=1)
        self.mouse("mouseReleased", *end, button="left", clickCount=1)
        self.settle()

    def press(self, key: str) -> None:
        text = {"text": key} if len(key) == 1 else {}
        self.call("Input.dispatchKeyEvent", type="keyDown", key=key, **text)
        self.call("Input.dispatchKeyEvent", type="keyUp", key=key)
        self.settle()

    def screenshot(self, path: Path, *, whole_page: bool = True) -> None:
        height = self.evaluate("document.documentElement.scrollHeight")
        width = self.evaluate("innerWidth")
        clip = {"x": 0, "y": 0, "width": width, "height": height, "scale": 1}
        options = {"captureBeyondViewport": True, "clip": clip} if whole_page else {}
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", format="png", **options)["data"]))

    def print_pdf(self, path: Path) -> None:
        answer = self.call("Page.printToPDF", printBackground=True, preferCSSPageSize=True)
        path.write_bytes(base64.b64decode(answer["data"]))
