"""The file of an interrupted collection: what is read again, and what is damaged."""

import collections
import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest

from dreamgym.agent import behavior
from dreamgym.agent.behavior import PlayedEpisode
from dreamgym.agent.config import CollectConfig
from dreamgym.build.real.collection_log import CollectionLog
from tests import doubles
from worldmodel.data.rates import Rate


def played(count=8):
    episodes = []
    behavior.collect(
        doubles.Corridor(),
        list(doubles.tasks("train")[:5]),
        count,
        CollectConfig(),
        seed=0,
        max_steps=8,
        record=episodes.append,
    )
    return episodes


def test_what_is_appended_is_read_again(tmp_path):
    path, episodes = tmp_path / "checkpoints" / "log.jsonl", played()
    log = CollectionLog(path)
    assert log.played == []
    assert log.steps == 0
    for episode in episodes[:5]:
        log.append(episode)
    log = CollectionLog(path)
    assert log.played == episodes[:5]
    assert log.steps == sum(len(p.episode.transitions) for p in episodes[:5])
    for episode in episodes[5:]:
        log.append(episode)
    assert CollectionLog(path).played == episodes


@pytest.mark.parametrize(
    "damage",
    [
        lambda line: line[:-20],  # a kill within the write
        lambda line: line[:40],
        lambda line: line.replace('"PCG64"', '"MT19937"'),
        lambda line: line.replace('"has_uint32"', '"other"'),
        lambda line: line.replace('"generator"', '"other"'),
        lambda line: line.replace('"listed": [', '"listed": ["x", '),
        lambda line: "\x00" * len(line),
    ],
)
def test_episodes_up_to_a_damaged_line_count(tmp_path, damage):
    path, episodes = tmp_path / "log.jsonl", played()
    log = CollectionLog(path)
    for episode in episodes:
        log.append(episode)
    lines = path.read_text().splitlines()
    assert damage(lines[4]) != lines[4]
    lines[4] = damage(lines[4])
    for end in (5, 8):  # the damaged line is the last one, or others follow
        path.write_text("\n".join(lines[:end]))
        log = CollectionLog(path)
        assert log.played == episodes[:4]
        log.append(episodes[4])
        assert CollectionLog(path).played == episodes[:5]


def test_an_episode_that_the_run_could_not_hold_is_left_out(tmp_path):
    episode = doubles.expert(doubles.tasks("train")[0])
    broken = doubles.episode(episode.task, ["lone \ud800 surrogate"])
    generator = np.random.default_rng(0).bit_generator.state
    log = CollectionLog(tmp_path / "log.jsonl")
    for e in (broken, None, episode):
        log.append(PlayedEpisode(e, generator, Rate.of(1, 2), "ValueError"))
    again = CollectionLog(tmp_path / "log.jsonl").played
    assert [p.episode for p in again] == [None, None, episode]
    assert again[0].generator == generator
    assert again[0].listed == Rate.of(1, 2)
    assert collections.Counter(p.failure for p in again) == {"ValueError": 3}
    assert all(json.loads(x) for x in (tmp_path / "log.jsonl").read_text().splitlines())


def test_an_episode_that_the_run_could_not_hold_counts_as_broken(tmp_path):
    task = doubles.tasks("train")[0]
    lone = doubles.episode(task, ["lone \ud800 surrogate"])
    step = dataclasses.replace(
        doubles.expert(task).transitions[0], rewards={"r": 1e308}
    )
    again = dataclasses.replace(step, state=step.next_state)
    huge = dataclasses.replace(lone, transitions=(step, again))
    generator = np.random.default_rng(0).bit_generator.state
    log = CollectionLog(tmp_path / "log.jsonl")
    for e in (lone, huge, None, doubles.expert(task)):
        log.append(PlayedEpisode(e, generator, Rate()))
    for _ in range(2):  # the first reading writes the file anew
        again = CollectionLog(tmp_path / "log.jsonl").played
        assert [p.failure for p in again] == ["unwritable", "unwritable", "", ""]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is full")
def test_a_full_disk_names_the_file(tmp_path):
    path = tmp_path / "log.jsonl"
    log = CollectionLog(path)
    path.symlink_to("/dev/full")
    with pytest.raises(OSError, match=r"No space left .*log\.jsonl"):
        log.append(played(1)[0])
