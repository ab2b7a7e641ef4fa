"""Rollouts on devices of their own: 4 simulated ones learn and roll out as one does."""

import json
import os
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

from dreamgym import training
from dreamgym.envs.dream import DreamVectorEnv
from dreamgym.training import LoopParts
from tests import doubles
from tests.dreamgym.training.common import CONFIG, Recorder, fresh, updater
from worldmodel.backbone.mesh import MeshConfig, make_mesh

ROOT = Path(__file__).parents[3]
PROBE = Path(__file__).with_name("rollout_mesh_probe.py")


@pytest.fixture(scope="module")
def left(tmp_path_factory) -> dict:
    """What each way to train left, in a process of 4 devices.

    "shared" learns and rolls out on device 0; "one" learns on it and rolls out on
    device 3, without a collective operation; "two" learns on 0 and 1, and rolls out on
    2 and 3, over which parameters are divided.
    """
    out = tmp_path_factory.mktemp("left") / "out.json"
    env = os.environ | {
        "XLA_FLAGS": "--xla_force_host_platform_device_count=4",
        "JAX_PLATFORMS": "cpu",
        "PYTHONPATH": str(ROOT),
        "JAX_COMPILATION_CACHE_DIR": str(jax.config.jax_compilation_cache_dir),
    }
    process = subprocess.run(
        [sys.executable, str(PROBE), str(out)],
        env=env,
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )
    assert process.returncode == 0, process.stderr[-3000:]
    return json.loads(out.read_text(encoding="utf-8"))


@pytest.mark.slow
@pytest.mark.parametrize("lag", [0, 1])
def test_another_device_rolls_out_what_the_same_one_does(left, lag):
    shared, apart = left[f"{lag}/shared"], left[f"{lag}/one"]
    for part in ("curve", "params", "predictions"):
        assert shared[part] == apart[part], part
    assert len(apart["curve"]) == 4
    assert len(apart["predictions"]) > 50
    # Another lag learns something else, so that equality says something.
    assert apart["params"] != left[f"{1 - lag}/one"]["params"]


@pytest.mark.slow
@pytest.mark.parametrize("lag", [0, 1])
def test_two_devices_that_learn_and_two_that_roll_out_are_one(left, lag):
    shared, apart = left[f"{lag}/shared"], left[f"{lag}/two"]
    assert apart["learning"] == [0, 1]
    assert {tuple(where) for _, where, _ in apart["acting"]} == {(2, 3)}
    # Sums over two devices are rounded otherwise: 7e-6 where this was written.
    np.testing.assert_allclose(shared["params"], apart["params"], atol=1e-3)
    other = left[f"{1 - lag}/two"]
    assert np.abs(np.subtract(apart["params"], other["params"])).max() > 5e-3


@pytest.mark.slow
def test_the_policy_learns_on_the_first_devices_and_acts_on_the_last(left):
    # The thread, the devices of the policy that acts, and that of new arrays there.
    for way in ("0/shared", "0/one", "1/shared", "1/one"):
        assert left[way]["learning"] == [0]
    assert left["0/shared"]["acting"] == [["MainThread", [0], 0]]
    assert left["0/one"]["acting"] == [["MainThread", [3], 3]]
    both = [["MainThread", [3], 3], ["rollouts_0", [3], 3]]
    assert left["1/one"]["acting"] == both
    curve = left["1/one"]["curve"]
    assert [row["rollout_lag"] for row in curve] == [0.0, 1.0, 1.0, 1.0]
    kl = [row["sampler_kl"] for row in curve]
    assert kl[0] < 1e-6 < 1e-4 < min(kl[1:])


@pytest.mark.slow
@pytest.mark.parametrize("devices", ["one", "two"])
def test_a_killed_loop_goes_on_with_the_rollouts_that_were_under_way(left, devices):
    whole, resumed = left[f"1/{devices}"], left[f"resumed/{devices}"]
    assert resumed["curve"] == whole["curve"]
    assert resumed["params"] == whole["params"]
    # Those of the last update alone are made: the checkpoint holds the ones before.
    count = len(resumed["predictions"])
    assert 0 < count < len(whole["predictions"]) / 2
    assert resumed["predictions"] == whole["predictions"][-count:]
    assert [name for name, *_ in resumed["acting"]] == ["rollouts_0"]


def test_a_device_that_learns_may_not_roll_out():
    mesh = make_mesh(MeshConfig())
    with pytest.raises(ValueError, match=r"not learn, got for both: \['cpu:0'\]"):
        training.train(
            doubles.Scripted(doubles.expert_rule),
            DreamVectorEnv(doubles.RuleModel(), 4, max_steps=5),
            updater(),
            fresh(doubles.tasks("train")[:2]),
            CONFIG,
            seed=0,
            recorder=Recorder(),
            parts=LoopParts(rollout_mesh=mesh),
        )
