"""A real Chromium over its debugging pipe: no further package, no port, no network."""

from __future__ import annotations

import base64
import itertools
import json
import os
import select
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

CHROMIUM = (
    shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
)
QUIET = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-sync", "--disable-background-networking", "--disable-component-update",
    "--disable-dev-shm-usage", "--hide-scrollbars", "--remote-debugging-pipe",
)  # fmt: skip
PATIENCE = 120.0  # seconds; the machine may be busy


class PageGone(Exception):
    """The page was left while it was asked."""


class Browser:
    """One window. What pages complain about and what they ask for is kept."""

    def __init__(self, profile: Path) -> None:
        assert CHROMIUM is not None
        theirs_in, self._out = os.pipe()
        self._in, theirs_out = os.pipe()

        def hand_over() -> None:  # Chromium reads commands from 3 and answers on 4
            low_in, low_out = os.dup(theirs_in), os.dup(theirs_out)
            os.dup2(low_in, 3)
            os.dup2(low_out, 4)

        self._process = subprocess.Popen(
            [CHROMIUM, *QUIET, f"--user-data-dir={profile}", "about:blank"],
            preexec_fn=hand_over, close_fds=False, stderr=subprocess.DEVNULL,
        )  # fmt: skip
        os.close(theirs_in)
        os.close(theirs_out)
        self._numbers = itertools.count(1)
        self._buffer = b""
        self._session: str | None = None
        self.complaints: list[str] = []
        self.requests: list[str] = []
        target = self._page()
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def _page(self) -> str:
        return str(self.call("Target.createTarget", url="about:blank")["targetId"])

    def close(self) -> None:
        self._session = None
        try:
            self.call("Browser.close")
            self._process.wait(30)
        finally:
            self._process.kill()
            self._process.wait()
            os.close(self._in)
            os.close(self._out)

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        number = next(self._numbers)
        message = {"id": number, "method": method, "params": params}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while (reply := self._read()).get("id") != number:
            self._note(reply)
        if "navigated or closed" in str(reply.get("error")):
            raise PageGone(method)
        assert "error" not in reply, (method, reply)
        result: dict[str, Any] = reply["result"]
        return result

    def _read(self) -> dict[str, Any]:
        deadline = time.monotonic() + PATIENCE
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._in], [], [], max(0.0, deadline - time.monotonic()))
            assert ready, "the browser does not answer"
            piece = os.read(self._in, 1 << 16)
            assert piece, "the browser has gone"
            self._buffer += piece
        message, _, self._buffer = self._buffer.partition(b"\0")
        found: dict[str, Any] = json.loads(message)
        return found

    def _note(self, event: dict[str, Any]) -> None:
        params = event.get("params", {})
        if event.get("method") == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])
        elif event.get("method") == "Log.entryAdded":
            self.complaints.append(params["entry"]["text"])
        elif event.get("method") == "Runtime.exceptionThrown":
            self.complaints.append(json.dumps(params["exceptionDetails"]))
        elif event.get("method") == "Runtime.consoleAPICalled":
            self.complaints.append(json.dumps(params["args"]))

    def open(self, page: Path, fragment: str = "") -> None:
        self.call("Page.navigate", url="about:blank")  # a new fragment alone loads nothing
        self.call("Page.navigate", url=page.as_uri() + fragment)
        self.wait_until(f"document.readyState === 'complete' && {page.name!r} && "
                        f"location.pathname.endsWith({page.name!r})")  # fmt: skip

    def wait_until(self, condition: str) -> None:
        """Waits for a condition in the page, also across a navigation that is under way."""
        deadline = time.monotonic() + PATIENCE
        while not self._holds(condition):
            assert time.monotonic() < deadline, condition
            time.sleep(0.05)

    def _holds(self, condition: str) -> bool:
        try:
            return bool(self.ask(f"Boolean({condition})"))
        except PageGone:
            return False

    def ask(self, expression: str) -> Any:
        """The value of an expression in the page."""
        found = self.call(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def press(self, key: str) -> None:
        codes = {"Enter": 13, "Tab": 9, "ArrowDown": 40}
        text = "\r" if key == "Enter" else key if len(key) == 1 else ""
        known = {"key": key, "code": key, "windowsVirtualKeyCode": codes.get(key, 0)}
        self.call("Input.dispatchKeyEvent", type="keyDown", text=text, **known)
        self.call("Input.dispatchKeyEvent", type="keyUp", **known)

    def size(self, width: int, height: int, *, is_dark: bool = False) -> None:
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height,
            deviceScaleFactor=1, mobile=False,
        )  # fmt: skip
        scheme = {"name": "prefers-color-scheme", "value": "dark" if is_dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])

    def picture(self, path: Path) -> None:
        found = self.call("Page.captureScreenshot", format="png")
        path.write_bytes(base64.b64decode(found["data"]))
