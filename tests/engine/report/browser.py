"""A headless Chromium, driven over its DevTools pipe: it opens pages, and records errors and network requests."""

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
_FLAGS = (
    "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--disable-background-networking",
    "--disable-component-update", "--no-first-run", "--remote-debugging-pipe", "about:blank",
)  # fmt: skip
_KEY_CODES = {"Enter": 13, "ArrowLeft": 37}


class Browser:
    """console: errors, warnings and exceptions of the pages. requests: the addresses that they loaded."""

    def __init__(self, folder: Path) -> None:
        """folder: for the browser's profile."""
        to_browser, self._output = os.pipe()
        self._input, from_browser = os.pipe()
        self._process = subprocess.Popen(
            ["bash", "-c", 'exec "$@" 3<&"$IN" 4>&"$OUT"', "bash", CHROMIUM, *_FLAGS, f"--user-data-dir={folder}"],
            env=os.environ | {"IN": str(to_browser), "OUT": str(from_browser)},
            pass_fds=(to_browser, from_browser),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(to_browser)
        os.close(from_browser)
        self._buffer, self._number, self._session, self._loaded = b"", 0, {}, False
        self.console: list[str] = []
        self.requests: list[str] = []
        targets = self.call("Target.getTargets")["targetInfos"]
        target = next(one["targetId"] for one in targets if one["type"] == "page")
        self._session = {"sessionId": self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]}
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Sends a command, and returns its result."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters, **self._session}
        os.write(self._output, json.dumps(message).encode() + b"\0")
        while (reply := self._receive()).get("id") != self._number:
            pass
        assert "error" not in reply, reply
        return reply["result"]

    def open(self, page: Path, width: int = 1280, dark: bool = False) -> None:
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False)
        theme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[theme])
        self._loaded = False
        self.call("Page.navigate", url=page.absolute().as_uri())
        while not self._loaded:
            self._receive()

    def run(self, script: str) -> Any:
        """The value of a JavaScript expression."""
        result = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in result, result
        return result["result"].get("value")

    def press(self, key: str) -> None:
        for kind in ("keyDown", "keyUp"):
            event = {"type": kind, "key": key, "code": key, "windowsVirtualKeyCode": _KEY_CODES[key]}
            text = {"text": "\r"} if (key, kind) == ("Enter", "keyDown") else {}
            self.call("Input.dispatchKeyEvent", **event, **text)

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
            data = os.read(self._input, 1 << 20) if ready else b""
            assert data, "the browser does not answer"
            self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\0")
        message = json.loads(line)
        event, values = message.get("method"), message.get("params", {})
        self._loaded |= event == "Page.loadEventFired"
        if event == "Network.requestWillBeSent" and not values["request"]["url"].startswith("data:"):
            self.requests.append(values["request"]["url"])
        elif event in ("Log.entryAdded", "Runtime.exceptionThrown", "Runtime.consoleAPICalled"):
            self.console.append(json.dumps(values))
        return message
