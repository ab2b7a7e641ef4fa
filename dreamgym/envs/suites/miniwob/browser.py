"""The browser of MiniWoB++: one headless Chromium of this process, a tab for each copy.

It is driven by Chrome's DevTools protocol over a pipe. No port is open, so that other
users of the machine cannot drive it, and Chromium ends by itself when the pipe closes,
however this process ends. A lost browser is a ConnectionError.
"""

import atexit
import contextlib
import functools
import importlib.util
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

BROWSERS = (
    "chromium",
    "chromium-browser",
    "google-chrome",
    "google-chrome-stable",
    "chrome",
    "chromium-headless-shell",
)
"""Names under which the browser is looked for on the PATH."""

BROWSER_VARIABLE = "CHROME_PATH"
"""The environment variable that names another browser."""

START_SECONDS, ANSWER_SECONDS = 90.0, 25.0
"""How long a browser may take to start, and to answer; then it is ended."""

FLAGS = (
    "--headless",
    "--remote-debugging-pipe",
    # Only pages of the installed package are opened, and nothing is loaded from a
    # network: containers mostly lack what the sandbox needs.
    "--no-sandbox",
    "--host-resolver-rules=MAP * ~NOTFOUND",
    "--disable-background-networking",
    "--disable-breakpad",
    "--disable-component-update",
    "--disable-crash-reporter",
    "--disable-dev-shm-usage",
    "--disable-extensions",
    "--disable-gpu",
    "--disable-sync",
    "--hide-scrollbars",
    "--lang=en-US",
    "--mute-audio",
    "--no-default-browser-check",
    "--no-first-run",
)

_WITH_PIPES = (
    sys.executable,
    "-ISc",
    # Chromium reads from 3 and writes to 4. A function of ours that moves them between
    # fork and exec could hang: other threads may hold locks there.
    "import fcntl, os, sys; "
    "ends = [fcntl.fcntl(int(end), fcntl.F_DUPFD, 10) for end in sys.argv[1:3]]; "
    "[os.dup2(end, number) for end, number in zip(ends, (3, 4))]; "
    "[os.close(end) for end in ends]; "
    "os.execv(sys.argv[3], sys.argv[3:])",
)
"""A program that gives two pipes the numbers of Chromium and becomes its process."""

_PAGE_SCRIPT = Path(__file__).with_name("page.js")


class PageError(RuntimeError):
    """A script failed in a page; the browser is sound."""


def html_folder() -> Path:
    """Return the folder of the pages in the `miniwob` package.

    Raises:
      ImportError: the package is not installed.
    """
    spec = importlib.util.find_spec("miniwob")
    if spec is None or not spec.submodule_search_locations:
        raise ImportError("MiniWoB++ needs pip install 'dreamgym[miniwob]'")
    return Path(spec.submodule_search_locations[0]) / "html" / "miniwob"


def browser_path() -> str:
    """Return the path of the browser: $CHROME_PATH, or one of BROWSERS on the PATH.

    Raises:
      ImportError: there is none.
    """
    chosen = os.environ.get(BROWSER_VARIABLE, "")
    if chosen:
        if path := shutil.which(chosen):
            return path
        raise ImportError(f"{BROWSER_VARIABLE}={chosen} is no program")
    for name in BROWSERS:
        if path := shutil.which(name):
            return path
    raise ImportError(
        "MiniWoB++ needs a browser: apt-get install chromium, or set "
        f"{BROWSER_VARIABLE} to the path of a Chromium or Chrome"
    )


class Browser:
    """A headless Chromium process and the connection to it.

    It is a session of its own, so that Ctrl-C on the terminal does not end it.
    """

    def __init__(self) -> None:
        self._lock, self._buffer, self._number = threading.Lock(), b"", 0
        self._crashed_targets = set[str]()
        self._folder = tempfile.TemporaryDirectory(
            prefix="dreamgym-chromium-", ignore_cleanup_errors=True
        )
        to_read, self._output = os.pipe()
        self._input, to_write = os.pipe()
        command = [browser_path(), *FLAGS, f"--user-data-dir={self._folder.name}"]
        self._errors = Path(self._folder.name) / "stderr.txt"
        with self._errors.open("wb") as errors:
            self._process = subprocess.Popen(
                [*_WITH_PIPES, str(to_read), str(to_write), *command, "about:blank"],
                pass_fds=(to_read, to_write),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=errors,
                start_new_session=True,
            )
        os.close(to_read)
        os.close(to_write)
        atexit.register(self.stop)
        try:
            self.call("Browser.getVersion", seconds=START_SECONDS)
            self.call("Target.setDiscoverTargets", discover=True)
        except ConnectionError as error:
            raise ConnectionError(f"the browser did not start: {error}") from None

    @property
    def alive(self) -> bool:
        """Whether the process runs and was not ended here."""
        return self._output >= 0 and self._process.poll() is None

    @property
    def pid(self) -> int:
        """The number of the process."""
        return self._process.pid

    def call(
        self,
        method: str,
        *,
        session: str = "",
        target: str = "",
        seconds: float = ANSWER_SECONDS,
        **parameters: Any,
    ) -> dict[str, Any]:
        """Return the result of a method of the DevTools protocol.

        Args:
          session: the session of a tab, "" for the browser itself.
          target: the tab; that it crashed is then a ConnectionError.
          seconds: the deadline of the answer.

        Raises:
          ConnectionError: the browser or the tab is lost; the browser is ended.
          PageError: the answer is an error.
        """
        with self._lock:
            if not self.alive:
                raise self._lost("the browser has ended")
            try:
                return self._exchange(method, session, target, seconds, parameters)
            except PageError:
                raise
            except OSError as error:
                raise self._lost(str(error)) from None
            except BaseException:  # a part of an answer may be lost
                self.stop()
                raise

    def _exchange(
        self,
        method: str,
        session: str,
        target: str,
        seconds: float,
        parameters: dict[str, Any],
    ) -> dict[str, Any]:
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if session:
            message["sessionId"] = session
        data, deadline = (
            json.dumps(message).encode() + b"\0",
            time.monotonic() + seconds,
        )
        while data:
            data = data[os.write(self._output, data) :]
        while True:
            if target in self._crashed_targets:
                raise ConnectionError("a tab of the browser crashed")
            answer = self._message(deadline, seconds)
            if answer.get("method") in (
                "Target.targetCrashed",
                "Target.targetDestroyed",
            ):
                self._crashed_targets.add(answer["params"]["targetId"])
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise PageError(f"{method}: {answer['error'].get('message')}")
                return answer["result"]

    def _message(self, deadline: float, seconds: float) -> dict[str, Any]:
        """Return the next message of the browser."""
        while b"\0" not in self._buffer:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self._input], [], [], left)[0]:
                raise ConnectionError(f"the browser gave no answer in {seconds:g} s")
            data = os.read(self._input, 1 << 20)
            if not data:
                raise ConnectionError("the browser has ended")
            self._buffer += data
        message, _, self._buffer = self._buffer.partition(b"\0")
        return json.loads(message)

    def _lost(self, reason: str) -> ConnectionError:
        """End the browser; return the error, with the last line that it printed."""
        lines = list[str]()
        with contextlib.suppress(OSError):
            lines = self._errors.read_text(errors="replace").split("\n")
        self.stop()
        last = next((line for line in reversed(lines) if "ERROR" in line), "")
        return ConnectionError(f"{reason} ({last.strip()})" if last else reason)

    def stop(self) -> None:
        """End the process and all of its children; its tabs are lost."""
        if self._output < 0:
            return
        atexit.unregister(self.stop)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        for end in (self._output, self._input):
            os.close(end)
        self._output = self._input = -1
        self._process.wait(timeout=10)
        self._folder.cleanup()


_browsers: list[Browser] = []
"""The browser of this process, or none before the first page."""


def current_browser() -> Browser:
    """Return the browser of this process; a new one where it has ended."""
    if not (_browsers and _browsers[0].alive):
        for browser in _browsers:
            browser.stop()
        _browsers[:] = [Browser()]
    return _browsers[0]


@functools.cache
def _page_script() -> str:
    return _PAGE_SCRIPT.read_text()


class Tab:
    """A tab with one page of MiniWoB++; see page.js for what runs in it."""

    def __init__(self, browser: Browser):
        self.browser = browser
        target = browser.call("Target.createTarget", url="about:blank")
        self._target = target["targetId"]
        attached = browser.call(
            "Target.attachToTarget", targetId=self._target, flatten=True
        )
        self._session = attached["sessionId"]
        self._call("Page.enable")
        self._call("Page.addScriptToEvaluateOnNewDocument", source=_page_script())
        # Otherwise only the tab in front gets events of the focus.
        self._call("Emulation.setFocusEmulationEnabled", enabled=True)
        self._call("Emulation.setTimezoneOverride", timezoneId="UTC")

    def _call(self, method: str, **parameters: Any) -> dict[str, Any]:
        return self.browser.call(
            method, session=self._session, target=self._target, **parameters
        )

    @property
    def alive(self) -> bool:
        """Whether the browser runs."""
        return self.browser.alive

    def open(self, path: Path) -> None:
        """Load a page from a file."""
        self._call("Page.navigate", url=path.as_uri())

    def evaluate(self, expression: str) -> Any:
        """Return what an expression that gives a JSON text holds.

        Raises:
          ConnectionError: the browser is lost.
          PageError: the expression raised an error.
        """
        answer = self._call(
            "Runtime.evaluate",
            expression=expression,
            awaitPromise=True,
            returnByValue=True,
        )
        if "exceptionDetails" in answer:
            details = answer["exceptionDetails"]
            thrown = details.get("exception", {}).get("description", details["text"])
            raise PageError(thrown.splitlines()[0])
        return json.loads(answer["result"]["value"])

    def close(self) -> None:
        """Close the tab, if its browser still runs."""
        if self.alive:
            with contextlib.suppress(ConnectionError, PageError):
                self.browser.call("Target.closeTarget", targetId=self._target)
