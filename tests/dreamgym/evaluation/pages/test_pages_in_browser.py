"""The pages in a real browser: no text runs, nothing is wider than a phone."""

import json
import re
import shutil
import subprocess

import pytest

from dreamgym.evaluation.comparisons.episode_comparison import LEGEND
from dreamgym.evaluation.pages import page, run_page, scorecard_page
from tests.dreamgym.evaluation import hostile
from tests.dreamgym.evaluation.pages import test_run_page

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser")
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--allow-file-access-from-files",
    "--virtual-time-budget=20000",
)
WIDTHS = {"phone": 390, "desktop": 1280}

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(BROWSER is None, reason="no chromium: apt-get install chromium"),
]


def frames(pages, folder):
    """A page of frames in each width that notes what their scripts call and how wide
    their content is; the scripts of a page reach `owned` at its top."""
    tags = "".join(
        f"<iframe src='{name}.html' data-name='{name} {label}' "
        f"style='width:{width}px;height:900px;border:0'></iframe>"
        for name in pages
        for label, width in WIDTHS.items()
    )
    script = """
    window.owned = [];
    addEventListener('load', () => setTimeout(() => {
      const out = {owned};
      for (const frame of document.querySelectorAll('iframe')) {
        const root = frame.contentDocument.documentElement;
        const boxes = [...root.querySelectorAll('*')].filter(x => {
          if (x.closest('.scroll, pre')) return false;  // these scroll by themselves
          return x.getBoundingClientRect().right > root.clientWidth + 1;
        });
        out[frame.dataset.name] = {
          width: root.scrollWidth, room: root.clientWidth, height: root.scrollHeight,
          wide: boxes.map(x => x.tagName + '.' + x.className),
          scripts: root.querySelectorAll('script').length,
          images: [...root.querySelectorAll('img')].map(x => x.naturalWidth),
          background: frame.contentWindow.getComputedStyle(
            frame.contentDocument.body).backgroundColor,
        };
      }
      document.getElementById('out').textContent = JSON.stringify(out);
    }, 500));
    """
    text = f"<!doctype html><script>{script}</script><pre id='out'></pre>{tags}"
    (folder / "frames.html").write_text(text)
    return folder / "frames.html"


def opened(pages, folder):
    """What the browser says of these pages, each in all widths."""
    for name, text in pages.items():
        (folder / f"{name}.html").write_text(text)
    command = [BROWSER, *FLAGS, f"--user-data-dir={folder / 'profile'}", "--dump-dom"]
    done = subprocess.run(
        [*command, frames(pages, folder).as_uri()],
        capture_output=True,
        text=True,
        timeout=180,
        check=True,
    )
    results = re.search(r'<pre id="out">(.*?)</pre>', done.stdout, re.DOTALL)
    assert results, done.stderr[-2000:]
    assert results[1], done.stderr[-2000:]
    return json.loads(results[1].replace("&gt;", ">").replace("&amp;", "&"))


def without_policy(text):
    """The page without its Content-Security-Policy, which would stop any script."""
    short = re.sub(r"<meta http-equiv[^>]*>", "", text)
    assert short != text
    return short.replace("<details", "<details open")  # what is closed is not laid out


def hostile_pages(folder):
    results, about, curves = test_run_page.hostile()
    run_page.write_page(folder / "a.html", results, curves, about)
    scorecard = results["fidelity"]
    scorecard["on_policy"] = {hostile.ATTACK: scorecard}
    scorecard["sources"] = scorecard["families"]
    scorecard_page.write_page(scorecard, folder / "b.html")
    (view,) = about.episodes
    page.write(
        folder / "c.html",
        "episodes.html",
        title=hostile.ATTACK,
        single=view,
        view=view,
        legend=LEGEND,
    )
    names = {"report": "a", "scorecard": "b", "show": "c"}
    return {n: (folder / f"{f}.html").read_text() for n, f in names.items()}


def test_hostile_text_runs_nothing_and_no_page_is_too_wide(tmp_path):
    pages = {n: without_policy(t) for n, t in hostile_pages(tmp_path).items()}
    results = opened(pages, tmp_path)
    assert results.pop("owned") == []
    assert len(results) == 6
    for name, seen in results.items():
        assert seen["scripts"] == 0, name
        assert seen["width"] <= seen["room"], (name, seen)
        assert seen["wide"] == [], (name, seen)
        assert seen["height"] > 500, name  # its style was not turned off
        if name.partition(" ")[0] != "show":
            assert seen["images"], name
            assert min(seen["images"]) > 100, name


def test_the_trap_works(tmp_path):
    """The same text, not escaped, runs; a table without its box is too wide."""
    text = f"<!doctype html><body>{hostile.ATTACK}".encode(errors="replace").decode()
    wide = "<!doctype html><body><div style='width:2000px'>x</div>"
    result = opened({"bad": text, "wide": wide}, tmp_path)
    assert {"script", "img"} <= set(result["owned"])
    assert result["wide phone"]["width"] > result["wide phone"]["room"]
    assert result["wide desktop"]["wide"]


def test_the_policy_of_a_page_stops_scripts_on_its_own(tmp_path):
    results, about, curves = test_run_page.hostile("tame")
    run_page.write_page(tmp_path / "r.html", results, curves, about)
    text = (tmp_path / "r.html").read_text()
    spoilt = text.replace("</main>", f"{hostile.ATTACK[:140]}</main>")
    spoilt = spoilt.encode(errors="replace").decode()
    assert spoilt != text
    assert opened({"spoilt": spoilt}, tmp_path)["owned"] == []
