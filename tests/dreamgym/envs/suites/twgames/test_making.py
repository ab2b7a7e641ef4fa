"""Games of TextWorld in the cache: made once, made again where broken, errors."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

pytest.importorskip("textworld")

from dreamgym import Task
from dreamgym.envs import base, registry
from dreamgym.envs.restarting import RestartingEnv
from dreamgym.envs.suites.twgames import env as twgames_env
from dreamgym.envs.suites.twgames import games, making
from dreamgym.envs.workers.env import process_env

pytestmark = pytest.mark.peer

GAME = games.Game("coin", "level1", "train", 0)
TASK = Task(
    id="t", instruction="", options={"game": "level1", "split": "train", "seed": 0}
)


@pytest.fixture(autouse=True)
def empty_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(twgames_env, "AHEAD", 0)


@pytest.mark.medium
def test_a_game_is_made_once_and_a_broken_one_again():
    assert games.load_game(GAME) is None
    assert making.make_games([GAME, GAME]) == {}
    files = games.load_game(GAME)
    assert files is not None
    written = GAME.path.stat().st_mtime_ns
    assert making.make_games([GAME]) == {}
    assert GAME.path.stat().st_mtime_ns == written
    whole = GAME.path.read_bytes()
    middle = len(whole) // 2
    flipped = bytearray(whole)
    flipped[middle] ^= 255
    for broken in (whole[:middle], b"", b"no archive", bytes(flipped)):
        GAME.path.write_bytes(broken)
        assert games.load_game(GAME) is None
    env = registry.make("twcoin:level1")
    base.begin(env, TASK)
    assert games.load_game(GAME) == files  # equal games in every process
    assert env.expert()
    env.close()
    left = [path.name for path in games.cache_folder().iterdir()]
    assert sorted(left) == [GAME.path.name, "lock"]


@pytest.mark.medium
def test_games_are_made_ahead(monkeypatch):
    monkeypatch.setattr(twgames_env, "AHEAD", 1)
    monkeypatch.setattr(twgames_env, "core_count", lambda: 2)
    env = registry.make("twcoin:level1")
    tasks = env.tasks("train")
    base.begin(env, tasks[5])
    made = [t.options["seed"] for t in tasks if env._game_of(t).path.exists()]
    assert made == [5, 6]
    monkeypatch.setitem(twgames_env.SIZES, "dev", 2)
    env.make_ahead("dev")
    assert all(env._game_of(task).path.exists() for task in env.tasks("dev"))
    env.close()


ANSWERING = "import sys, json\nfor line in sys.stdin: print(json.dumps('no such'))"
KILLED = "import os, signal\nos.kill(os.getpid(), signal.SIGKILL)"


def test_a_game_that_cannot_be_made_is_an_error_of_its_own(monkeypatch):
    monkeypatch.setattr(making, "START", ANSWERING)
    env = registry.make("twcoin:level1")
    with pytest.raises(games.GameError, match="no such"):
        env.reset(options={"task": TASK})
    with pytest.raises(games.GameError, match="no such"):
        env.make_ahead("train")


@pytest.mark.medium
def test_a_compiler_that_fails_is_an_error_of_the_game(monkeypatch, tmp_path):
    monkeypatch.setenv("INFORM_HOME", str(tmp_path / "nowhere"))
    env = registry.make("twcoin:level1")
    with pytest.raises(games.GameError, match=r"no game 'level1' of seed 0.*NotFound"):
        env.reset(options={"task": TASK})
    assert games.load_game(GAME) is None


def test_a_process_that_is_killed_is_a_lost_connection(monkeypatch):
    monkeypatch.setattr(making, "START", KILLED)
    env = registry.make("twcoin:level1")
    with pytest.raises(ConnectionError, match="ended: signal SIGKILL"):
        env.reset(options={"task": TASK})
    assert making.make_games([]) == {}  # the lock is free again


COUNTING = """
import sys
from dreamgym.envs.suites.twgames import making
making.compile_game = lambda game: print("made", game.seed, file=sys.stderr)
making.main()
"""


@pytest.mark.parametrize(("waits", "made"), [(True, 2), (False, 1)])
def test_a_process_ends_in_silence_where_nobody_waits_for_its_games(waits, made):
    process = subprocess.Popen(
        [sys.executable, "-c", COUNTING],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    answers = process.stdout
    if not waits:
        answers.close()
        process.stdout = None
    games_to_make = (GAME, GAME._replace(seed=1))
    lines = "".join(f"{json.dumps(game)}\n" for game in games_to_make)
    out, err = process.communicate(lines, timeout=60)
    assert err.splitlines() == [f"made {seed}" for seed in range(made)]
    assert process.returncode == 0
    assert out == ('""\n' * 2 if waits else None)


def test_the_generator_that_refuses_all_seeds_is_an_error(monkeypatch):
    def refuse(_, options):
        seeds.append(options.seeds)
        raise ValueError("high <= 0")

    seeds = []
    monkeypatch.setitem(games.MAKERS, "coin", refuse)
    with pytest.raises(games.GameError, match="refused 50 seeds"):
        games.compile_game(GAME)
    assert len({str(seed) for seed in seeds}) == games.ATTEMPTS


@pytest.mark.medium
def test_an_engine_that_is_killed_is_started_again():
    """The interpreter runs in the process of the environment, here a worker."""
    env = RestartingEnv(lambda: process_env("twcoin:level1", start_seconds=300.0))
    base.begin(env, TASK)
    plan = env.expert()
    os.kill(env.env._worker._process.pid, signal.SIGKILL)
    time.sleep(0.1)
    steps = [base.take(env, action) for action in plan]
    assert steps[-1].success
    env.close()


def test_progress_is_one_line_in_a_while(monkeypatch, capsys):
    now = 0.0
    monkeypatch.setattr(making.time, "monotonic", lambda: now)
    progress = making.Progress()
    for now in (1.0, making.INTERVAL, making.INTERVAL + 1):  # noqa: B007 - the clock
        progress.update("games", 5, 20)
    assert capsys.readouterr().err == "games [#####...............] 5 of 20\n"
