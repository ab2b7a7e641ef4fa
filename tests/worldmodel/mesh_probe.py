"""A program that computes the same things on one device and on meshes of eight.

    python mesh_probe.py OUT.npz all|split [PROCESS COORDINATOR]

Run by test_mesh.py: alone with 8 simulated devices, or as two processes of 4 each.
"""

import sys
from pathlib import Path

import jax
import numpy as np
from flax import nnx

SHAPES = {
    "llama": {"num_key_value_heads": 4},
    "lfm2": {
        "model_type": "lfm2",
        "layer_types": ("conv", "full_attention"),
        "qk_norm": True,
    },
}
MESHES = ("data=8", "fsdp=8", "data=2,fsdp=2,tensor=2", "fsdp=2,tensor=4")
LAYOUTS = {
    "all": dict.fromkeys(SHAPES, MESHES),
    # Each takes half a minute to compile, in two processes more.
    "split": {"llama": MESHES[1:3], "lfm2": MESHES[3:]},
}
"""The meshes that each family is laid out on, by the second argument."""
PROMPTS = [[3 + b, 1, 4, 1, 5][: 2 + b % 4] for b in range(8)]


def batch():
    from worldmodel.fitting.batches import Example, pack, rows_of

    rng = np.random.default_rng(0)
    examples = []
    for length in rng.integers(4, 15, 24):
        mask = [False, *(rng.random(length - 1) < 0.8).tolist()]
        ids = rng.integers(1, 32, length).tolist()
        examples.append(Example(ids, mask, [0] * int(length)))
    return rows_of(pack(examples, 32), np.arange(8), 8)


def loss(readout, batch):
    from worldmodel.fitting.losses import cross_entropy, read_logp

    return cross_entropy(read_logp(readout, batch.ids), batch.mask, batch.weight), {}


def whole(tree) -> np.ndarray:
    """All leaves of a tree in one vector, from wherever they lie."""
    from worldmodel.backbone.mesh import to_host

    return np.concatenate([to_host(x).ravel() for x in jax.tree.leaves(tree)])


def outcome(model, saved=None, restored=None) -> dict[str, np.ndarray]:
    """Loss, gradient, parameters after two updates, and text, of one layout."""
    from worldmodel.backbone.grammar import free_grammar
    from worldmodel.backbone.streams import Streams
    from worldmodel.fitting import checkpoint
    from worldmodel.fitting.config import OptimizerConfig
    from worldmodel.fitting.learner import Learner, TrainState

    kind = "muon" if "conv" in model.config.mixers else "adamw"
    config = OptimizerConfig(name=kind, warmup_steps=0, learning_rate=1e-2)
    learner = Learner(model, config, loss, steps=9)
    state, rows = learner.init(), batch()
    grads, metrics = learner.gradient(state.params, rows)
    state, _ = learner.update(state, [rows])
    layout = [x.sharding for x in jax.tree.leaves(state)]
    spread_out = [x.sharding for x in jax.tree.leaves(state.opt) if x.ndim > 1]
    if model.mesh is not None and model.mesh.shape["fsdp"] > 1:
        assert not all(s.is_fully_replicated for s in spread_out)
    if saved is not None:
        checkpoint.save(saved, 1, state, {})
        results = checkpoint.restore(restored, state)  # of another mesh
        assert results is not None
        state = TrainState(*results[1])
    state, _ = learner.update(state, [rows])
    assert [x.sharding for x in jax.tree.leaves(state)] == layout
    streams = Streams(model, 8, 40)
    streams.append(PROMPTS, columns=8)
    keys = jax.random.split(jax.random.key(0), 8)
    greedy = streams.sample(free_grammar(32, temperature=0.0), keys, max_tokens=12)
    streams.rewind([len(p) for p in PROMPTS])
    streams.append([[7]] * 8, columns=8)
    drawn = streams.sample(free_grammar(32, temperature=1.0), keys, max_tokens=12)
    return {
        "loss": np.asarray(metrics["loss"].value()),
        "grads": whole(grads),
        "params": whole(state.params),
        "greedy": greedy.ids,
        "logp": greedy.logp,
        "drawn": drawn.ids,
    }


def main() -> None:
    """Compute everything, write OUT.npz (the first process)."""
    out = Path(sys.argv[1])
    layouts = LAYOUTS[sys.argv[2]]
    if len(sys.argv) > 3:
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
        jax.distributed.initialize(sys.argv[4], 2, int(sys.argv[3]))
    from tests import helpers
    from worldmodel.backbone.mesh import make_mesh, parse_mesh, shard

    value = {}
    for family, meshes in layouts.items():
        changes = SHAPES[family]
        shape = helpers.config(32, hidden_size=32, intermediate_size=64, **changes)
        model = helpers.lively_model(shape, embed=3.0)
        if jax.process_count() == 1:
            value |= {f"{family}/one/{k}": v for k, v in outcome(model).items()}
        before = None
        for text in meshes:
            mesh = make_mesh(parse_mesh(text))
            placed = shard(model, mesh)
            everywhere = {
                path[-1]: leaf[...].sharding.is_fully_replicated
                for path, leaf in nnx.to_flat_state(placed.params)
            }
            if "fsdp" in text:
                assert not everywhere["kernel"], everywhere
            saved = out.with_suffix(f".{family}.{text}")
            result = outcome(placed, saved, before or saved)
            before = saved
            value |= {f"{family}/{text}/{k}": v for k, v in result.items()}
    if jax.process_index() == 0:
        np.savez(out, **value)


if __name__ == "__main__":
    main()
