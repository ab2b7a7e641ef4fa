"""The page to play on in a real browser: a person wins, and no text runs."""

import itertools
import json
import shutil
import subprocess
import time
import urllib.request

import pytest

pytest.importorskip("fastapi", reason="the extra serve is not installed")
pytest.importorskip("uvicorn", reason="the extra serve is not installed")

from tests import doubles
from tests.dreamgym.serving.common import Client as Socket
from tests.dreamgym.serving.common import dream, plan_of, running_dream

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(BROWSER is None, reason="no chromium: apt-get install chromium"),
]
HOSTILE = "<img src=x onerror='window.owned=1'><script>window.owned=1</script>"


class Hostile(doubles.RuleModel):
    """The rules, with a thought that is markup."""

    def predict(self, queries):
        return [p._replace(reasoning=HOSTILE) for p in super().predict(queries)]


class Browser:
    """A headless browser that opens one page and evaluates expressions in it."""

    def __init__(self, url, folder):
        from websockets.sync.client import connect

        assert BROWSER is not None
        flags = ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run"]
        flags += ["--remote-debugging-port=0", f"--user-data-dir={folder}"]
        flags += ["--disable-background-networking", "--remote-allow-origins=*"]
        self._process = subprocess.Popen(
            [BROWSER, *flags, url], stderr=subprocess.DEVNULL
        )
        port_file = folder / "DevToolsActivePort"
        wait_until(lambda: port_file.is_file() and port_file.read_text())
        self._port = port_file.read_text().split()[0]
        wait_until(self._page)
        page = self._page()
        self._context = connect(page["webSocketDebuggerUrl"], proxy=None)
        self._socket = self._context.__enter__()
        self._ids = itertools.count(1)

    def _page(self):
        url = f"http://127.0.0.1:{self._port}/json"
        with urllib.request.urlopen(url) as answer:
            rows = json.load(answer)
        return next((r for r in rows if r["type"] == "page"), None)

    def run(self, expression):
        number = next(self._ids)
        params = {"expression": expression, "returnByValue": True}
        call = {"id": number, "method": "Runtime.evaluate", "params": params}
        self._socket.send(json.dumps(call))
        while True:
            answer = json.loads(self._socket.recv(timeout=20))
            if answer.get("id") == number:
                return answer["result"]["result"].get("value")

    def text(self, name):
        return self.run(f"document.getElementById({name!r})?.textContent ?? ''")

    def close(self):
        self._context.__exit__(None, None, None)
        self._process.terminate()
        self._process.wait(20)


def wait_until(condition, seconds=20):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)


@pytest.mark.parametrize("token", ["", "a-token-of-16-or-more"])
def test_a_person_wins_and_sees_what_the_dream_thinks(tmp_path, token):
    with running_dream(dream(Hostile()), token=token) as server:
        bearer = {"Authorization": f"Bearer {token}"} if token else {}
        with Socket(server.url, additional_headers=bearer) as client:
            plan = plan_of(client.reset(seed=0))
        browser = Browser(server.url, tmp_path / "profile")
        try:
            if token:
                wait_until(lambda: "asks for a token" in browser.text("status"))
                browser.run(f"document.getElementById('token').value = {token!r}")
                browser.run("document.getElementById('connect').requestSubmit()")
            wait_until(lambda: browser.text("name") == "corridor")
            browser.run("document.getElementById('begin').requestSubmit()")
            wait_until(lambda: "Step 0" in browser.text("status"))
            assert "goal" in browser.text("state")
            for number, action in enumerate(plan, 1):
                browser.run(f"document.getElementById('action').value = {action!r}")
                browser.run("document.getElementById('act').requestSubmit()")
                wait_until(lambda n=number: f"Step {n} " in browser.text("status"))
            assert browser.text("status").endswith("return 1. Won.")
            assert browser.text("reasoning") == HOSTILE
            assert browser.text("confidence") == "1.000"
            assert "go right" in browser.text("recalled")
            assert browser.run("window.owned") is None
            assert browser.run("document.images.length") == 0
            wide = "document.documentElement.scrollWidth - innerWidth"
            assert browser.run(wide) <= 0
            assert browser.run("document.getElementById('action').disabled") is True
        finally:
            browser.close()
        server.wait_for_sessions(0)
