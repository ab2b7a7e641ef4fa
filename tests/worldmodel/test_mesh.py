"""Many devices give what one gives: 8 simulated ones, and two processes of 4."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

from tests.worldmodel.mesh_probe import LAYOUTS, MESHES, SHAPES
from worldmodel.backbone.generate import generate
from worldmodel.backbone.grammar import free_grammar
from worldmodel.backbone.mesh import (
    MeshConfig,
    copy_to_mesh,
    default_to,
    make_mesh,
    make_meshes,
    parameter_spec,
    parse_mesh,
)

ROOT = Path(__file__).parents[2]
PROBE = Path(__file__).with_name("mesh_probe.py")


def start(out: Path, devices: int, *more: str) -> subprocess.Popen:
    flags = f"--xla_force_host_platform_device_count={devices}"
    env = os.environ | {
        "XLA_FLAGS": flags,
        "JAX_PLATFORMS": "cpu",
        "PYTHONPATH": str(ROOT),
    }
    return subprocess.Popen(
        [sys.executable, str(PROBE), str(out), *more],
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def finish(*running: subprocess.Popen) -> None:
    for process in running:
        output, _ = process.communicate(timeout=900)
        assert process.returncode == 0, output[-3000:]


@pytest.fixture(scope="module")
def eight(tmp_path_factory) -> dict[str, np.ndarray]:
    """What one device and every mesh of eight computed, in one process."""
    out = tmp_path_factory.mktemp("eight") / "out.npz"
    finish(start(out, 8, "all"))
    return dict(np.load(out))


def assert_equal(got: dict, want: dict, family: str, mesh: str) -> None:
    def pair(name):
        return got[f"{family}/{mesh}/{name}"], want[f"{family}/one/{name}"]

    np.testing.assert_allclose(*pair("loss"), rtol=1e-5)
    grads, exact = pair("grads")
    np.testing.assert_allclose(grads, exact, atol=2e-5 * np.abs(exact).max())
    # Two updates of Adam: a gradient near 0 may step either way.
    params, exact = pair("params")
    assert np.mean(np.abs(params - exact) > 1e-4) < 0.01
    # Greedy text up to a near-tie, which is counted.
    ids, exact = pair("greedy")
    ties = int((ids != exact).any(1).sum())
    assert ties <= 1, f"{ties} of {len(ids)} texts differ"
    drawn, exact = pair("drawn")
    assert int((drawn != exact).any(1).sum()) <= 1
    assert len(np.unique(exact)) > 5


@pytest.mark.slow
@pytest.mark.parametrize("mesh", MESHES)
@pytest.mark.parametrize("family", SHAPES)
def test_a_mesh_of_eight_is_one_device(eight, family, mesh):
    assert_equal(eight, eight, family, mesh)


@pytest.mark.slow
def test_two_processes_are_one_device(eight, tmp_path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    out = tmp_path / "out.npz"
    finish(*(start(out, 4, "split", str(i), f"127.0.0.1:{port}") for i in range(2)))
    got = dict(np.load(out))
    for family, meshes in LAYOUTS["split"].items():
        for mesh in meshes:
            assert_equal(got, eight, family, mesh)


def test_meshes_by_text():
    assert parse_mesh("") == MeshConfig()
    assert parse_mesh("data=2, tensor=4") == MeshConfig(data=2, tensor=4)
    for bad in ("rows=2", "data", "data=two", "data=-1"):
        with pytest.raises(ValueError, match="a mesh is written as"):
            parse_mesh(bad)
    with pytest.raises(ValueError, match=r"fsdp and tensor >= 1, got 1, 0 and 1"):
        MeshConfig(fsdp=0)
    with pytest.raises(ValueError, match=r"needs 1\d devices, found \d"):
        make_mesh(parse_mesh("data=5,fsdp=3"))


def test_devices_that_roll_out_leave_some_to_learn(monkeypatch):
    assert make_meshes(None, None) == (None, None)
    whole = MeshConfig(data=0)
    assert make_meshes(whole, None) == (make_mesh(whole), None)
    # Which devices are which, only a process of several can show: test_rollout_mesh.py.
    four = jax.devices()[:1] * 4
    monkeypatch.setattr(jax, "devices", lambda: four)
    for count in (0, 4, 5):
        with pytest.raises(ValueError, match=f"one device .* got {count} of 4"):
            make_meshes(None, MeshConfig(data=count))
    message = "needs 4 devices, found 3: 1 of 4 are those of the rollout mesh"
    with pytest.raises(ValueError, match=message):
        make_meshes(MeshConfig(data=4), MeshConfig())


@pytest.mark.medium
def test_a_copy_on_a_mesh_of_one_device_samples_as_its_model(small_model):
    copy = copy_to_mesh(small_model, make_mesh(MeshConfig()))
    pairs = zip(*map(jax.tree.leaves, (copy.params, small_model.params)), strict=True)
    assert all(np.array_equal(a, b) for a, b in pairs)
    keys = jax.random.split(jax.random.key(0), 12)
    texts = [[1 + i % 5, 2, 3][: 1 + i % 3] for i in range(12)]
    grammar = free_grammar(13, temperature=1.0)
    with default_to(copy.mesh):
        got = generate(copy, texts, grammar, keys, max_tokens=8)
    want = generate(small_model, texts, grammar, keys, max_tokens=8)
    for a, b in zip(got, want, strict=True):
        assert all(np.array_equal(x, y) for x, y in zip(a, b, strict=True))


def test_layouts_by_hand():
    # Kernels are [in, out]: heads and inner widths go over the tensor axis, on
    # whichever side they stand.
    layer = ("layers", 0)
    assert tuple(parameter_spec((*layer, "mixer", "q", "kernel"))) == ("fsdp", "tensor")
    assert tuple(parameter_spec((*layer, "mixer", "o", "kernel"))) == ("tensor", "fsdp")
    assert tuple(parameter_spec((*layer, "down", "lora_a"))) == ("tensor", None)
    assert tuple(parameter_spec((*layer, "up", "lora_b"))) == (None, "tensor")
    assert tuple(parameter_spec((*layer, "input_norm", "scale"))) == ()
    assert tuple(parameter_spec(("embed",))) == (("tensor", "fsdp"),)
