"""MiniWoB++ in a real browser: experts, determinism, refusals, lost browsers."""

import importlib.util
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from dreamgym.cli import main
from dreamgym.envs import base, registry, restarting
from dreamgym.envs.failures import EnvironmentDown
from dreamgym.envs.suites.miniwob import browser as browsers
from dreamgym.envs.suites.miniwob import experts
from worldmodel.data.records import Task

SUITE = "dreamgym.envs.suites.miniwob.env"


@pytest.fixture
def suite():
    """The module of the environment; skipped where package or browser is missing."""
    try:
        registry.parse_spec("miniwob")
    except ValueError as error:
        pytest.skip(str(error))
    return importlib.import_module(SUITE)


@pytest.fixture
def env(suite):
    env = suite.MiniWoB()
    yield env
    env.close()


def task(page, seed, split="train"):
    options = {"page": page, "seed": seed}
    return Task(id=f"{page}-{seed}", instruction="", split=split, options=options)


def start(env, page, seed):
    return env.reset(options={"task": task(page, seed)})


# --- what is missing is said in one line ---


def forget(monkeypatch):
    for name in (SUITE, "dreamgym.envs.suites.miniwob.browser"):
        monkeypatch.delitem(sys.modules, name, raising=False)


def test_a_missing_package_is_one_line(monkeypatch, capsys):
    forget(monkeypatch)
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util,
        "find_spec",
        lambda n, *a: None if n == "miniwob" else find(n, *a),
    )
    for words in (
        ["check", "--env", "miniwob"],
        ["check", "--env", "miniwob:enter-date"],
    ):
        assert main(words) != 0
        (line,) = capsys.readouterr().err.strip().splitlines()
        assert "pip install 'dreamgym[miniwob]'" in line


def test_a_missing_browser_is_one_line(monkeypatch, tmp_path):
    monkeypatch.delenv(browsers.BROWSER_VARIABLE, raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(
        ImportError, match=r"apt-get install chromium, or set CHROME_PATH"
    ):
        browsers.browser_path()
    monkeypatch.setenv(browsers.BROWSER_VARIABLE, str(tmp_path / "none"))
    with pytest.raises(ImportError, match=r"CHROME_PATH=.*none is no program"):
        browsers.browser_path()
    program = tmp_path / "mine"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    monkeypatch.setenv(browsers.BROWSER_VARIABLE, str(program))
    assert browsers.browser_path() == str(program)


# --- tasks ---


def test_splits_are_apart_and_two_pages_are_met_in_the_test_alone(suite):
    env = suite.MiniWoB()
    tasks = {split: env.tasks(split) for split in base.SPLITS}
    ids = [t.id for split in base.SPLITS for t in tasks[split]]
    assert len(set(ids)) == len(ids)
    pages = {split: {t.family for t in tasks[split]} for split in base.SPLITS}
    assert pages["train"] == pages["dev"]
    assert pages["test"] - pages["train"] == set(suite.TEST_ONLY)
    assert len(pages["train"]) >= 16
    # Pages in turn: the first tasks of a split are of all pages.
    count = len(pages["train"])
    assert {t.family for t in tasks["train"][:count]} == pages["train"]
    seeds = {split: {t.options["seed"] for t in tasks[split]} for split in base.SPLITS}
    assert not seeds["train"] & (seeds["dev"] | seeds["test"])
    for page, twins in suite.TWINS.items():
        assert page in experts.EXPERTS
        of_page = [t for s in base.SPLITS for t in tasks[s] if t.family == page]
        assert len(of_page) > 90
        assert not {t.options["seed"] for t in of_page} & twins


def test_one_task_is_an_environment_by_its_name(suite):
    made = registry.make("miniwob:login-user-popup")
    for split in base.SPLITS:
        listed = base.tasks_of(made, "miniwob", split, 100)
        assert {t.family for t in listed} == {"login-user-popup"}
    with pytest.raises(ValueError, match=r"unknown task .*'login'.*'login-user'"):
        registry.parse_spec("miniwob:login")
    with pytest.raises(ValueError, match="split must be one of"):
        base.tasks_of(made, "miniwob", "all", 1)
    with pytest.raises(ValueError, match="max_steps must be >= 1, got 0"):
        suite.MiniWoB(max_steps=0)


def test_a_task_without_a_page_is_refused(suite):
    with pytest.raises(ValueError, match=r"'x': options must name a page .*got \{\}"):
        suite.MiniWoB().reset(options={"task": Task(id="x", instruction="")})
    with pytest.raises(RuntimeError, match="call reset"):
        suite.MiniWoB().step("click 1")
    with pytest.raises(RuntimeError, match="call reset"):
        suite.MiniWoB().expert()


# --- pages ---


@pytest.mark.slow
@pytest.mark.parametrize("page", experts.EXPERTS)
def test_every_expert_wins_in_every_split(suite, env, page):
    for split in base.SPLITS:
        for listed in suite._tasks(page, split)[:2]:
            first, info = env.reset(options={"task": listed})
            assert info["instruction"]
            plan = env.expert()
            assert first == env._text("ok")  # the expert plays in another tab
            for number, action in enumerate(plan, start=1):
                assert 1 <= number <= suite.MAX_STEPS
                _, reward, ended, truncated, info = env.step(action)
                assert not truncated
                assert not info["invalid"]
                assert ended == (number == len(plan)), (plan, number)
                assert reward == (1.0 if ended else 0.0)
            assert info["success"]


@pytest.mark.slow
def test_the_same_seed_gives_the_same_page_whatever_was_played_before(suite, env):
    pages = ("search-engine", "click-collapsible-2", "use-autocomplete")
    seen = {}
    other = suite.MiniWoB()
    for place in (env, other, env):
        for page in pages:
            texts = []
            obs, info = start(place, page, 3)
            texts += [info["instruction"], obs]
            for action in place.expert():
                texts.append(place.step(action)[0])
            assert seen.setdefault(page, texts) == texts
    other.close()
    assert start(env, pages[0], 4)[0:2] != tuple(seen[pages[0]][:2])
    assert env._instruction != seen[pages[0]][0]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("page", "first", "twin"), [("search-engine", 5, 26), ("form-sequence-2", 29, 47)]
)
def test_a_seed_that_is_left_out_begins_like_an_earlier_one(
    suite, env, page, first, twin
):
    assert twin in suite.TWINS[page]
    assert first not in suite.TWINS[page]
    assert start(env, page, first) == start(env, page, twin)
    assert start(env, page, first) != start(env, page, first + 1)


@pytest.mark.slow
def test_a_refused_action_costs_nothing_and_leaves_the_page(env):
    obs, _ = start(env, "enter-date", 1)
    plan = env.expert()
    for action, message in (
        ("fly", "unknown action"),
        ("click 99", "no such element"),
        ("type 1 16 March", "it takes no such text"),  # by the page
        ("type 2 2016-03-16", "no text goes there"),
    ):
        text, reward, ended, truncated, info = env.step(action)
        assert text.splitlines() == [*obs.splitlines()[:-1], f"said {message}"]
        assert (reward, ended, truncated) == (0.0, False, False)
        assert info["invalid"]
        assert not info["success"]
    for action in plan:
        _, reward, _, _, info = env.step(action)
    assert reward == 1.0
    assert info["success"]
    with pytest.raises(RuntimeError, match="call reset"):
        env.step("click 1")


@pytest.mark.slow
def test_a_wrong_end_pays_nothing_and_a_part_is_no_success(env):
    start(env, "login-user", 1)
    _, reward, ended, _, info = env.step("click 3")
    assert (reward, ended, info["success"]) == (0.0, True, False)
    start(env, "click-checkboxes-large", 1)
    *boxes, submit = env.expert()
    for action in (*boxes[1:], submit):
        _, reward, ended, _, info = env.step(action)
    assert ended
    assert 0 < reward < 1  # the raw reward: the share of right boxes less that of wrong
    assert not info["success"]


@pytest.mark.slow
def test_steps_run_out_without_an_end(suite):
    env = suite.MiniWoB(max_steps=2)
    start(env, "login-user", 1)
    assert env.step("type 1 a")[2:4] == (False, False)
    assert env.step("type 1 b")[2:4] == (False, True)
    with pytest.raises(RuntimeError, match="call reset"):
        env.step("click 3")
    env.close()


@pytest.mark.slow
def test_hidden_words_are_reveals_and_those_of_every_page_are_not(env):
    start(env, "click-collapsible-2", 1)
    assert env.step("click 1")[4]["reveals"]
    start(env, "login-user", 1)
    assert not env.step("type 1 zebra")[4]["reveals"]


# --- the browser ---


def processes_of(pid):
    """The processes of a browser's session that are no zombies."""
    out = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                fields = (folder / "stat").read_text().rpartition(")")[2].split()
                command = (folder / "cmdline").read_text()
            except OSError:
                continue
            if int(fields[3]) == pid and fields[0] != "Z":
                out[int(folder.name)] = command
    return out


def wait_until(condition, seconds=20):
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.05)
    return condition()


@pytest.mark.slow
@pytest.mark.parametrize("victim", ["browser", "renderers"])
def test_a_killed_browser_is_replaced_in_the_middle_of_an_episode(suite, victim):
    del suite
    with_both = [restarting.open_env("miniwob") for _ in range(2)]
    plans = []
    for env in with_both:
        env.reset(options={"task": task("login-user", 5)})
        plans.append(env.get_wrapper_attr("expert")())
        env.step(plans[-1][0])
    pid = browsers.current_browser().pid  # one for both copies
    doomed = (
        [pid]
        if victim == "browser"
        else [p for p, c in processes_of(pid).items() if "--type=renderer" in c]
    )
    assert doomed
    for number in doomed:
        os.kill(number, signal.SIGKILL)
    for env, plan in zip(with_both, plans, strict=True):
        for action in plan[1:]:
            _, reward, ended, _, info = env.step(action)
        assert (reward, ended, info["success"]) == (1.0, True, True)
        env.close()
    assert browsers.current_browser().pid != pid
    assert wait_until(lambda: not processes_of(pid))


@pytest.mark.slow
def test_a_browser_that_does_not_start_ends_with_a_sentence(suite, monkeypatch):
    del suite
    browsers.current_browser().stop()
    monkeypatch.setenv(browsers.BROWSER_VARIABLE, "true")  # it ends at once
    env = restarting.open_env("miniwob")
    for _ in range(restarting.PATIENCE - 1):
        with pytest.raises(ConnectionError, match="the browser did not start"):
            env.reset(options={"task": task("login-user", 5)})
    with pytest.raises(EnvironmentDown, match=r"MiniWoB is down.*did not start"):
        env.reset(options={"task": task("login-user", 5)})
    monkeypatch.delenv(browsers.BROWSER_VARIABLE)
    assert "Username" in env.reset(options={"task": task("login-user", 5)})[0]
    env.close()


@pytest.mark.slow
def test_a_page_that_hangs_ends_the_browser_and_not_the_run(suite, env, monkeypatch):
    del suite
    start(env, "login-user", 5)
    call = browsers.Browser.call
    monkeypatch.setattr(
        browsers.Browser,
        "call",
        lambda self, method, **more: call(self, method, **{**more, "seconds": 1.0}),
    )
    assert env._tab is not None
    with pytest.raises(ConnectionError, match="no answer in 1 s"):
        env._tab.evaluate("(() => { for (;;) {} })()")
    monkeypatch.undo()
    assert not env._tab.alive
    assert "Username" in start(env, "login-user", 5)[0]


PROGRAM = """
import sys, time
from dreamgym.envs import registry
from dreamgym.envs.suites.miniwob import browser
env = registry.make("miniwob:login-user")
env.reset()
print(browser.current_browser().pid, flush=True)
if sys.argv[1] != "end":
    time.sleep(60)
"""


@pytest.mark.slow
@pytest.mark.parametrize("way", ["end", "SIGINT", "SIGTERM", "SIGKILL"])
def test_no_browser_outlives_its_process_however_that_ends(suite, way):
    del suite
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM, way],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as program:
        assert program.stdout is not None
        pid = int(program.stdout.readline())
        if way != "end":
            assert processes_of(pid)
            program.send_signal(getattr(signal, way))
        program.wait(timeout=30)
    assert wait_until(lambda: not processes_of(pid))
