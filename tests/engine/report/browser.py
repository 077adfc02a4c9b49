"""A headless Chromium, driven over its DevTools pipe: it opens pages, and records errors and network requests."""

import base64
import json
import os
import select
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
_TIMEOUT_SECONDS = 60


class Browser:
    """console: errors, warnings and exceptions of the pages. requests: the addresses that they loaded."""

    def __init__(self, folder: Path) -> None:
        """folder: for the browser's profile."""
        to_browser, self._output = os.pipe()
        self._input, from_browser = os.pipe()
        self._process = subprocess.Popen(
            ["bash", "-c", 'exec "$@" 3<&"$IN" 4>&"$OUT"', "bash", CHROMIUM, "--headless=new", "--no-sandbox",
             "--disable-gpu", "--hide-scrollbars", "--disable-background-networking", "--disable-component-update",
             "--no-first-run", "--remote-debugging-pipe", f"--user-data-dir={folder}", "about:blank"],
            env=os.environ | {"IN": str(to_browser), "OUT": str(from_browser)},
            pass_fds=(to_browser, from_browser),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )  # fmt: skip
        os.close(to_browser)
        os.close(from_browser)
        self._buffer, self._number, self._session = b"", 0, None
        self.console: list[str] = []
        self.requests: list[str] = []
        self._loaded = False
        targets = self.call("Target.getTargets")["targetInfos"]
        target = next(one["targetId"] for one in targets if one["type"] == "page")
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Sends a command, and returns its result."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._output, json.dumps(message).encode() + b"\0")
        while True:
            reply = self._receive()
            if reply.get("id") == self._number:
                assert "error" not in reply, reply
                return reply["result"]

    def open(self, page: Path, width: int = 1280, height: int = 900, dark: bool = False) -> float:
        """Opens a page, and returns the milliseconds until its load event, by the browser's clock."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        theme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[theme])
        self._loaded = False
        self.call("Page.navigate", url=page.absolute().as_uri())
        while not self._loaded:
            self._receive()
        return self.run("performance.getEntriesByType('navigation')[0].loadEventStart")

    def run(self, script: str) -> Any:
        """The value of a JavaScript expression."""
        result = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    def press(self, key: str) -> None:
        """Presses a key: 'Tab', 'Enter', 'ArrowLeft'."""
        codes = {"Tab": 9, "Enter": 13, "ArrowLeft": 37}
        text = {"text": "\r"} if key == "Enter" else {}
        for kind in ("keyDown", "keyUp"):
            event = {"type": kind, "key": key, "code": key, "windowsVirtualKeyCode": codes[key]}
            self.call("Input.dispatchKeyEvent", **event, **(text if kind == "keyDown" else {}))

    def screenshot(self, path: Path, whole_page: bool = False) -> None:
        options = {"captureBeyondViewport": True} if whole_page else {}
        if whole_page:
            size = self.call("Page.getLayoutMetrics")["cssContentSize"]
            options["clip"] = {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}
        path.write_bytes(base64.b64decode(self.call("Page.captureScreenshot", **options)["data"]))

    def close(self) -> None:
        self._process.terminate()
        self._process.wait()
        os.close(self._input)
        os.close(self._output)

    def _receive(self) -> dict[str, Any]:
        """The next message; events are recorded."""
        deadline = time.monotonic() + _TIMEOUT_SECONDS
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._input], [], [], max(0, deadline - time.monotonic()))
            assert ready, "the browser does not answer"
            data = os.read(self._input, 1 << 20)
            assert data, "the browser has ended"
            self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\0")
        message = json.loads(line)
        self._record(message.get("method"), message.get("params", {}))
        return message

    def _record(self, event: str | None, values: dict[str, Any]) -> None:
        if event == "Page.loadEventFired":
            self._loaded = True
        elif event == "Network.requestWillBeSent" and not values["request"]["url"].startswith("data:"):
            self.requests.append(values["request"]["url"])
        elif event == "Log.entryAdded":
            self.console.append(values["entry"]["text"])
        elif event == "Runtime.exceptionThrown":
            self.console.append(json.dumps(values["exceptionDetails"]))
        elif event == "Runtime.consoleAPICalled":
            self.console.append(json.dumps(values["args"]))
