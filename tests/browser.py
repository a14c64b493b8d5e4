# SPDX-License-Identifier: GPL-2.0-only
"""Drive a headless Chromium over a pipe (the DevTools protocol) to see pages as a reader does."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

PROGRAMS = ("chromium-headless-shell", "chromium", "chromium-browser")
INSTALL = "apt-get install -y --no-install-recommends chromium-headless-shell"
OPTIONS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--remote-debugging-pipe",
)
ANSWER_S = 30.0


def program() -> str:
    """Return the browser; the test fails with the command that installs it if there is none."""
    for name in PROGRAMS:
        if found := shutil.which(name):
            return found
    raise AssertionError(f"no Chromium: {INSTALL}")


class Page:
    """A page of a running browser, and the addresses that it asked for."""

    def __init__(self, to: int, answers: int) -> None:
        self._to, self._answers = to, answers
        self._buffer = bytearray()
        self._calls = 0
        self._session: str | None = None
        self._events: list[dict[str, Any]] = []
        target = self._call("Target.createTarget", url="about:blank")["targetId"]
        attached = self._call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Network", "Runtime", "Log"):
            self._call(f"{domain}.enable")

    def open(
        self,
        file: Path,
        *,
        width: int,
        height: int = 900,
        scheme: Literal["light", "dark"] = "light",
        media: Literal["screen", "print"] = "screen",
    ) -> None:
        """Load a file, in a window of this size, by a reader who prefers this colour scheme.

        With the medium print the page looks as on paper of this width.
        """
        self._events.clear()
        self._call(
            "Emulation.setDeviceMetricsOverride",
            width=width, height=height, deviceScaleFactor=1, mobile=False,
        )  # fmt: skip
        self._call("Emulation.setScrollbarsHidden", hidden=True)
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self._call("Emulation.setEmulatedMedia", media=media, features=features)
        self._call("Page.navigate", url=file.resolve().as_uri())
        deadline = time.monotonic() + ANSWER_S
        while not any(event["method"] == "Page.loadEventFired" for event in self._events):
            self._events.append(self._message(deadline))

    def value(self, expression: str) -> Any:
        """Return the value of a JavaScript expression in the page."""
        answer = self._call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def screenshot(self, file: Path) -> None:
        """Write the whole page as PNG."""
        size = self._call("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}
        shot = self._call("Page.captureScreenshot", clip=clip, captureBeyondViewport=True)
        file.write_bytes(base64.b64decode(shot["data"]))

    def print_to(self, file: Path) -> None:
        """Write the page as PDF, as it would be printed."""
        file.write_bytes(base64.b64decode(self._call("Page.printToPDF")["data"]))

    @property
    def requested(self) -> list[str]:
        """Return the addresses requested since the page was opened."""
        return [
            event["params"]["request"]["url"]
            for event in self._events
            if event["method"] == "Network.requestWillBeSent"
        ]

    @property
    def complaints(self) -> list[str]:
        """Return what the browser logged about the page since it was opened."""
        return [
            event["params"]["entry"]["text"]
            for event in self._events
            if event["method"] == "Log.entryAdded"
        ]

    def _call(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._calls += 1
        call = {"id": self._calls, "method": method, "params": parameters}
        if self._session is not None:
            call["sessionId"] = self._session
        os.write(self._to, json.dumps(call).encode() + b"\0")
        deadline = time.monotonic() + ANSWER_S
        while (message := self._message(deadline)).get("id") != self._calls:
            self._events.append(message)
        assert "error" not in message, message
        answer = message["result"]
        assert isinstance(answer, dict)
        return answer

    def _message(self, deadline: float) -> dict[str, Any]:
        while (end := self._buffer.find(0)) < 0:
            left = max(0.0, deadline - time.monotonic())
            assert select.select([self._answers], [], [], left)[0], "the browser does not answer"
            chunk = os.read(self._answers, 1 << 20)
            assert chunk, "the browser ended"
            self._buffer += chunk
        message = json.loads(self._buffer[:end])
        del self._buffer[: end + 1]
        assert isinstance(message, dict)
        return message


@contextlib.contextmanager
def browsing(profile: Path) -> Iterator[Page]:
    """Run a browser with a new profile in this folder, without a network."""
    reading, to = os.pipe()
    answers, writing = os.pipe()
    # The browser reads calls from descriptor 3 and writes answers to 4.
    shell = f'exec "$@" 3<&{reading} 4>&{writing}'
    command = [program(), *OPTIONS, f"--user-data-dir={profile}"]
    process = subprocess.Popen(
        ["bash", "-c", shell, "bash", *command],
        pass_fds=(reading, writing),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    os.close(reading)
    os.close(writing)
    try:
        yield Page(to, answers)
    finally:
        os.close(to)  # which ends it
        os.close(answers)
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
