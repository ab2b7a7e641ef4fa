"""Layouts over many devices: which axis of an array lies along which axis of a mesh.

A mesh has the axes data (rows of a batch), fsdp (rows too, and parameters are sharded
over it) and tensor (heads, inner widths, the vocabulary). Arrays are placed, and the
compiler inserts the communication.
"""

import contextlib
import dataclasses
import math
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.experimental import multihost_utils
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from worldmodel.backbone.model import Model

DATA, FSDP, TENSOR = "data", "fsdp", "tensor"
ROWS = (DATA, FSDP)

_INWARD = {"q", "k", "v", "gate", "up", "into"}
_OUTWARD = {"o", "down", "out"}


@dataclasses.dataclass(frozen=True, kw_only=True)
class MeshConfig:
    """Devices along each axis; their product is the number of devices.

    `data` 0 takes all devices that the other two leave.
    """

    data: int = 1
    fsdp: int = 1
    tensor: int = 1

    def __post_init__(self):
        if self.data < 0 or min(self.fsdp, self.tensor) < 1:
            raise ValueError(
                "data must be >= 0, fsdp and tensor >= 1, got "
                f"{self.data}, {self.fsdp} and {self.tensor}"
            )


def parse_mesh(text: str) -> MeshConfig:
    """Return the mesh of a text such as "data=2,tensor=4".

    Raises:
      ValueError: another axis, or a size that is no whole number.
    """
    sizes: dict[str, int] = {}
    for part in filter(None, text.split(",")):
        name, _, number = part.partition("=")
        if name.strip() not in (DATA, FSDP, TENSOR) or not number.strip().isdigit():
            raise ValueError(
                f"a mesh is written as data=N,fsdp=N,tensor=N, got {part!r}"
            )
        sizes[name.strip()] = int(number)
    return MeshConfig(**sizes)


def make_mesh(config: MeshConfig, devices: Sequence[Any] | None = None) -> Mesh:
    """Return the mesh over all devices of all processes, or over the given ones.

    Raises:
      ValueError: the axes do not multiply to the number of devices.
    """
    count = jax.device_count() if devices is None else len(devices)
    rest = config.fsdp * config.tensor
    data = config.data if config.data else max(count // rest, 1)
    if data * rest != count:
        raise ValueError(
            f"a mesh of data={data}, fsdp={config.fsdp}, tensor={config.tensor} needs "
            f"{data * rest} devices, found {count}"
        )
    axes = (AxisType.Auto,) * 3
    shape = (data, config.fsdp, config.tensor)
    if devices is None:
        return jax.make_mesh(shape, (DATA, FSDP, TENSOR), axis_types=axes)
    # In their order: jax.make_mesh refuses a part of a TPU that is no cuboid.
    grid = np.asarray(devices).reshape(shape)
    return Mesh(grid, (DATA, FSDP, TENSOR), axis_types=axes)


def make_meshes(
    learning: MeshConfig | None, rollouts: MeshConfig | None
) -> tuple[Mesh | None, Mesh | None]:
    """Return the mesh that learns and the one that rolls out, which share no device.

    The first devices learn and the last ones roll out. A mesh without a config is None:
    JAX's first device learns, and what learns rolls out, too.

    Raises:
      ValueError: there are too few devices, or the axes of `learning` do not multiply
        to the number of those that `rollouts` leaves.
    """
    if rollouts is None:
        return None if learning is None else make_mesh(learning), None
    devices = jax.devices()
    count = rollouts.data * rollouts.fsdp * rollouts.tensor
    if not 0 < count < len(devices):
        raise ValueError(
            "a rollout mesh needs data >= 1 and leaves at least one device to learn "
            f"on, got {count} of {len(devices)} devices"
        )
    mesh = None
    if learning is not None:
        try:
            mesh = make_mesh(learning, devices[:-count])
        except ValueError as error:
            raise ValueError(
                f"{error}: {count} of {len(devices)} are those of the rollout mesh"
            ) from None
    return mesh, make_mesh(rollouts, devices[-count:])


def parameter_spec(path: tuple[Any, ...]) -> P:
    """Return the layout of the parameter at `path` (kernels are [in, out])."""
    *before, leaf = map(str, path)
    part = before[-1] if before else ""
    if leaf in ("embed", "head"):
        return P((TENSOR, FSDP))  # shard rows only: activations hold whole vectors
    if leaf == "kernel" and part in _INWARD:
        return P(FSDP, TENSOR)
    if leaf == "kernel" and part in _OUTWARD:
        return P(TENSOR, FSDP)
    if leaf == "lora_a":
        return P(FSDP if part in _INWARD else TENSOR, None)
    if leaf == "lora_b":
        return P(None, TENSOR if part in _INWARD else FSDP)
    if leaf == "bias" and part in _INWARD:
        return P(TENSOR)
    return P()


def sharding_for(spec: P, shape: tuple[int, ...], mesh: Mesh) -> NamedSharding:
    """Return the layout on a mesh; axes that do not divide evenly are replicated."""
    # An axis that does not divide evenly would need padding in every program.
    names = []
    for size, name in zip(shape, tuple(spec) + (None,) * len(shape), strict=False):
        axes = (name,) if isinstance(name, str) else tuple(name or ())
        ways = math.prod(mesh.shape[a] for a in axes)
        names.append(name if size % ways == 0 else None)
    return NamedSharding(mesh, P(*names))


def parameter_sharding(
    path: tuple[Any, ...], shape: tuple[int, ...], mesh: Mesh
) -> NamedSharding:
    """Return the sharding of the parameter at `path` on a mesh."""
    return sharding_for(parameter_spec(path), shape, mesh)


def shard(model: Model, mesh: Mesh) -> Model:
    """Return the model with its parameters laid out on a mesh."""
    flat = [
        (
            path,
            leaf.replace(
                device_put_global(leaf[...], parameter_sharding(path, leaf.shape, mesh))
            ),
        )
        for path, leaf in nnx.to_flat_state(model.params)
    ]
    return model._replace(params=nnx.from_flat_state(flat), mesh=mesh)


def copy_to_mesh(model: Model, mesh: Mesh) -> Model:
    """Return a copy of the model on a mesh of other devices.

    It begins no collective operation: a shard of both layouts goes from device to
    device, and what is divided in another way through the memory of the host.
    """
    flat = nnx.to_flat_state(model.params)
    layouts = [parameter_sharding(path, leaf.shape, mesh) for path, leaf in flat]
    values = jax.device_put([leaf[...] for _, leaf in flat], layouts)
    copies = [
        (path, leaf.replace(value))
        for (path, leaf), value in zip(flat, values, strict=True)
    ]
    return model._replace(params=nnx.from_flat_state(copies), mesh=mesh)


def default_to(mesh: Mesh | None) -> contextlib.AbstractContextManager[Any]:
    """Return a context in which new arrays of this thread lie on a mesh.

    They lie on its first device; without a mesh they lie where they did.
    """
    if mesh is None:
        return contextlib.nullcontext()
    return jax.default_device(mesh.devices.flat[0])


def place_rows(tree: Any, mesh: Mesh) -> Any:
    """Return arrays whose first axis is the batch, sharded over the data axes."""
    return jax.tree.map(
        lambda x: device_put_global(x, sharding_for(P(ROWS), jnp.shape(x), mesh)), tree
    )


def device_put_global(value: Any, sharding: NamedSharding) -> jax.Array:
    """Return an array that is equal in every process, laid out over all devices."""
    if isinstance(value, jax.Array) and not value.is_fully_addressable:
        # It is laid out already and moves between devices.
        return jax.device_put(value, sharding)
    return jax.make_array_from_callback(
        jnp.shape(value), sharding, lambda index: value[index]
    )


def to_host(value: jax.Array) -> np.ndarray:
    """Return the whole of an array in every process, however it is laid out.

    All processes must call.
    """
    if not value.is_fully_addressable and not value.is_fully_replicated:
        return np.asarray(multihost_utils.process_allgather(value, tiled=True))
    return np.asarray(value)
