import json
import os
import shutil

import jax.numpy as jnp
import numpy as np
import pytest

from tests import helpers
from worldmodel.fitting import checkpoint


def arrays(x: float):
    return {"w": jnp.full((2, 3), x), "n": (jnp.asarray(int(x), jnp.int32),)}


def test_nothing_there_is_none(tmp_path):
    assert checkpoint.restore(tmp_path / "none", arrays(0)) is None
    assert checkpoint.steps(tmp_path) == []


def test_the_newest_step_is_restored_and_the_older_dropped(tmp_path):
    for step in (3, 12, 100):
        path = checkpoint.save(tmp_path, step, arrays(step), {"curve": [step]})
    assert checkpoint.steps(tmp_path) == [100]
    assert sorted(os.listdir(tmp_path)) == [path.name]
    step, result, host = checkpoint.restore(tmp_path, arrays(0))
    assert (step, host) == (100, {"curve": [100]})
    helpers.assert_trees_equal(result, arrays(100))
    assert result["n"][0].dtype == jnp.int32


def test_the_newest_is_the_largest_number_not_the_last_name(tmp_path):
    # Both whole, as after a kill between the rename and the removal of the old one.
    checkpoint.save(tmp_path, 2, arrays(2), {})
    shutil.copytree(tmp_path / "step_00000002", tmp_path / "kept")
    checkpoint.save(tmp_path, 10, arrays(10), {})
    (tmp_path / "kept").rename(tmp_path / "step_00000002")
    assert checkpoint.steps(tmp_path) == [2, 10]
    step, result, _ = checkpoint.restore(tmp_path, arrays(0))
    assert (step, float(result["w"][0, 0])) == (10, 10.0)


def test_half_written_directories_are_ignored(tmp_path):
    checkpoint.save(tmp_path, 5, arrays(5), {"whole": True})
    (tmp_path / "step_00000009" / "arrays").mkdir(parents=True)  # no host.json yet
    (tmp_path / ".tmp_123").mkdir()
    (tmp_path / ".tmp_123" / "host.json").write_text("{}")
    assert checkpoint.steps(tmp_path) == [5]
    step, result, host = checkpoint.restore(tmp_path, arrays(0))
    assert (step, host) == (5, {"whole": True})
    np.testing.assert_array_equal(result["w"], np.full((2, 3), 5.0))


def test_a_failed_save_leaves_the_old_step(tmp_path):
    checkpoint.save(tmp_path, 1, arrays(1), {})
    with pytest.raises(TypeError, match="not JSON serializable"):
        checkpoint.save(tmp_path, 2, arrays(2), {"bad": object()})
    step, result, _ = checkpoint.restore(tmp_path, arrays(0))
    assert (step, float(result["w"][0, 0])) == (1, 1.0)
    checkpoint.save(tmp_path, 2, arrays(2), {})  # what it left is in nobody's way
    assert checkpoint.steps(tmp_path) == [2]


def test_the_same_step_again_replaces_it(tmp_path):
    checkpoint.save(tmp_path, 1, arrays(1), {"n": 1})
    path = checkpoint.save(tmp_path, 1, arrays(7), {"n": 2})
    _, result, host = checkpoint.restore(tmp_path, arrays(0))
    assert (float(result["w"][0, 0]), host) == (7.0, {"n": 2})
    assert json.loads((path / "host.json").read_text()) == {"n": 2}


def test_a_full_disk_is_found_before_anything_is_written(tmp_path, monkeypatch):
    checkpoint.save(tmp_path, 1, arrays(1), {})
    before = sorted(p.name for p in tmp_path.rglob("*"))
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=50_000))
    with pytest.raises(OSError, match=r"no space left .* 1\.0 MB, 0\.1 MB are free"):
        checkpoint.save(tmp_path, 2, arrays(2), {})
    assert sorted(p.name for p in tmp_path.rglob("*")) == before
    monkeypatch.undo()
    checkpoint.save(tmp_path, 2, arrays(2), {})
    assert checkpoint.steps(tmp_path) == [2]


def test_a_flipped_byte_of_the_arrays_is_an_error_with_the_name_of_the_file(tmp_path):
    path = checkpoint.save(tmp_path, 3, {"w": jnp.arange(4096.0)}, {"a": 1})
    files = [p for p in (path / "arrays").rglob("*") if p.is_file()]
    largest = max(files, key=lambda p: p.stat().st_size)
    raw = bytearray(largest.read_bytes())
    raw[len(raw) // 2] ^= 1
    largest.write_bytes(raw)
    with pytest.raises(ValueError, match=f"{largest.name}.*damaged.*remove {tmp_path}"):
        checkpoint.restore(tmp_path, {"w": jnp.zeros(4096)})


@pytest.mark.parametrize("text", ["", "[]", "null", '{"a":'])
def test_a_damaged_host_state_is_an_error_with_the_name_of_the_file(tmp_path, text):
    path = checkpoint.save(tmp_path, 3, arrays(3), {"a": 1})
    (path / "host.json").write_text(text)
    with pytest.raises(ValueError, match=r"host\.json.*remove"):
        checkpoint.restore(tmp_path, arrays(0))
