"""Pages in a headless Chromium: no console error, no network request, no horizontal scrolling, keyboard and sorting."""

import json
import os
import select
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from run_folders import FACTS_OF_RUN, add_evaluation, make_evaluation_run, make_run, write_facts
from test_report_page import HOSTILE

from engine.report.page import write_report
from scripts.report import main

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


pytestmark = [pytest.mark.slow, pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")]

NAMES = ("cat", "dog", "fox", "n" * 300)
TELEPHONE = 360


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    browser = Browser(tmp_path_factory.mktemp("profile"))
    yield browser
    browser.close()


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """By name: the pages of a finished, failed, resumed and evaluated run, of hostile names, and of a comparison."""
    folder = tmp_path_factory.mktemp("runs")
    hostile = [name.encode("utf-8", "backslashreplace").decode() for name in HOSTILE]
    runs = {
        "finished": make_run(folder / "finished", 40, ["MODEL.NUM_CLASSES=10"]),
        "failed": make_run(folder / "failed", 0, state="failed", message="x" * 400),
        "resumed": make_run(folder / "resumed", 10, started="2026-01-03", state="interrupted", resume="y" * 200),
        "evaluation": make_evaluation_run(folder / "evaluation", [f"class {index}" for index in range(60)]),
        "hostile": make_run(folder / "<script>alert(1)<x>" / ("r" * 200)),
    }  # fmt: skip
    add_evaluation(runs["finished"], NAMES)
    add_evaluation(runs["hostile"], hostile)
    write_facts(runs["resumed"], FACTS_OF_RUN)
    pages = {name: write_report(run) for name, run in runs.items()}
    pages["comparison"] = folder / "compare.html"
    main([*(str(run) for name, run in runs.items() if name != "evaluation"), "-output", str(pages["comparison"])])
    return pages


@pytest.mark.parametrize("name", ["finished", "failed", "resumed", "evaluation", "hostile", "comparison"])
def test_a_page_has_no_error_no_request_and_fits_a_telephone(browser, pages, name):
    browser.console.clear()
    browser.requests.clear()
    for width, dark in ((1280, True), (TELEPHONE, False)):
        browser.open(pages[name], width, dark=dark)
        assert browser.run("document.documentElement.scrollWidth") == width
        background = browser.run("getComputedStyle(document.body).backgroundColor")
        assert background == ("rgb(18, 22, 27)" if dark else "rgb(255, 255, 255)")
    assert browser.console == [] and set(browser.requests) == {pages[name].as_uri()}
    assert browser.run("document.querySelectorAll('nav a').length") >= 3


def test_the_policy_blocks_what_a_hostile_name_would_load(browser, pages):
    """The check of the two tests above would notice a request, and an error on the console."""
    browser.open(pages["finished"])
    browser.console.clear()
    browser.run("document.body.append(Object.assign(new Image(), {src: 'http://127.0.0.1:9/x.png'}))")
    browser.run("new Promise(resolve => setTimeout(resolve, 200))")
    assert any("Content Security Policy" in line for line in browser.console)


def test_a_table_is_sorted_with_the_keyboard(browser, pages):
    browser.open(pages["finished"])
    recall = "document.querySelectorAll('#classes thead th')[4]"
    first = "document.querySelector('#classes tbody th').textContent"
    browser.run(f"{recall}.querySelector('button').focus()")
    assert browser.run(f"{recall}.ariaSort") == "none" and browser.run(first) == "cat"
    browser.press("Enter")
    assert browser.run(f"{recall}.ariaSort") == "descending" and browser.run(first).startswith("nnn")
    browser.press("Enter")
    assert browser.run(f"{recall}.ariaSort") == "ascending" and browser.run(first) == "cat"


def test_the_filter_shows_the_classes_that_contain_the_text(browser, pages):
    browser.open(pages["evaluation"])
    browser.run("Object.assign(filter = document.getElementById('classes-filter'), {value: 'class 5'})")
    browser.run("filter.dispatchEvent(new Event('input'))")
    assert browser.run("document.querySelectorAll('#classes tbody tr:not([hidden])').length") == 11
    assert browser.run("document.getElementById('classes-count').textContent") == "11 of 60"


def test_the_values_of_a_curve_are_read_with_the_arrow_keys_and_the_pointer(browser, pages):
    browser.open(pages["finished"])
    figure = "document.querySelectorAll('figure.chart')[1]"
    browser.run(f"{figure}.querySelector('input').focus()")
    browser.press("ArrowLeft")
    shown = browser.run(f"{figure}.querySelector('.readout').textContent")
    assert shown == "epoch 39: training 195, validation 390, validation top-5 780"
    assert browser.run(f"{figure}.querySelector('input').ariaValueText") == shown
    box = browser.run(f"(box => [box.left, box.top, box.width])({figure}.querySelector('svg').getBoundingClientRect())")
    browser.call("Input.dispatchMouseEvent", type="mouseMoved", x=box[0] + 0.118 * box[2], y=box[1] + 20)
    assert browser.run(f"{figure}.querySelector('.readout').textContent").startswith("epoch 1: training 5,")
