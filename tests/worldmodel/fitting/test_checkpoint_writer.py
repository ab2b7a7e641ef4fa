"""Checkpoints that are written while the program goes on."""

import threading

import jax.numpy as jnp
import numpy as np
import pytest

from worldmodel.fitting import checkpoint


@pytest.fixture
def slow(monkeypatch):
    """Let writing wait for an event; return the event."""
    go, write = threading.Event(), checkpoint.save

    def save(*args):
        assert go.wait(30)
        return write(*args)

    monkeypatch.setattr(checkpoint, "save", save)
    return go


def test_what_changes_after_save_is_not_written(tmp_path, slow):
    arrays, host = {"x": np.arange(4.0)}, {"curve": [1]}
    with checkpoint.CheckpointWriter(tmp_path) as writer:
        writer.save(1, arrays, host)
        arrays["x"] += 100
        host["curve"].append(2)
        assert checkpoint.steps(tmp_path) == []  # it has not waited
        slow.set()
    restored = checkpoint.restore(tmp_path, {"x": jnp.zeros(4)})
    assert restored is not None
    step, values, saved = restored
    assert (step, saved) == (1, {"curve": [1]})
    np.testing.assert_array_equal(values["x"], np.arange(4.0))


def test_the_newest_state_alone_is_left(tmp_path):
    with checkpoint.CheckpointWriter(tmp_path) as writer:
        for step in (1, 2, 3):
            writer.save(step, {"x": jnp.full(2, step)}, {"step": step})
    assert checkpoint.steps(tmp_path) == [3]
    restored = checkpoint.restore(tmp_path, {"x": jnp.zeros(2, int)})
    assert restored is not None
    assert restored[1]["x"].tolist() == [3, 3]


def test_an_error_is_raised_by_the_next_call(tmp_path, monkeypatch):
    def save(*_):
        raise OSError("disk is full")

    monkeypatch.setattr(checkpoint, "save", save)
    writer = checkpoint.CheckpointWriter(tmp_path)
    writer.save(1, {"x": jnp.zeros(2)}, {})
    with pytest.raises(OSError, match="disk is full"):
        writer.save(2, {"x": jnp.zeros(2)}, {})
    writer.wait()  # said once
    with (
        pytest.raises(OSError, match="disk is full"),
        checkpoint.CheckpointWriter(tmp_path) as writer,
    ):
        writer.save(1, {"x": jnp.zeros(2)}, {})


def test_an_error_of_the_block_is_the_one_that_is_raised(tmp_path, slow):
    slow.set()

    def fail():
        with checkpoint.CheckpointWriter(tmp_path) as writer:
            writer.save(1, {"x": jnp.zeros(2)}, {})
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert checkpoint.steps(tmp_path) == [1]  # and what was saved is on disk


def test_large_states_are_written_at_once(tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoint, "MAX_COPY_BYTES", 7)
    writer = checkpoint.CheckpointWriter(tmp_path)
    writer.save(1, {"x": jnp.zeros(2)}, {})
    assert checkpoint.steps(tmp_path) == [1]
