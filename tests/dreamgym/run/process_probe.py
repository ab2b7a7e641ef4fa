"""What two processes that run one program see; started twice by test_processes.py.

python process_probe.py FOLDER INDEX PROCESSES
"""

import json
import os
import sys
from pathlib import Path

from dreamgym.run.process import join_processes, quiet_followers
from worldmodel.data import processes
from worldmodel.data.records import Task, atomic_write
from worldmodel.fitting import checkpoint

SIZES = (0, 5, processes.FRAME_BYTES - 8, processes.FRAME_BYTES - 7, 300_000)


def messages() -> list[int]:
    """Send messages of many lengths; return the sum of the bytes that came."""
    sums = []
    for size in SIZES:
        mine = bytes(i % 251 for i in range(size))
        sent = mine if processes.is_first_process() else b"of the second process"
        came = processes.from_first_process(sent)
        assert came == mine
        sums.append(sum(came))
    return sums


def files(folder: Path) -> list[str]:
    """Let both write one file, in blocks within blocks; return what is read."""
    with atomic_write(folder / "one.txt") as file:
        file.write(f"by process {int(not processes.is_first_process())}")
    with processes.first_process_writes("two") as writes:
        if writes:
            with atomic_write(folder / "two.txt") as file:
                file.write("two")
    return [(folder / f"{name}.txt").read_text() for name in ("one", "two")]


def games(folder: Path) -> list[str]:
    """Play in a shared environment, with faults; return all that is seen."""
    from dreamgym.envs import vector
    from dreamgym.envs.counting import RealSteps
    from dreamgym.envs.restarting import RestartingEnv
    from dreamgym.envs.workers.env import shared_env

    os.environ["PROBE_FILE"] = str(folder / "steps.txt")
    steps = RealSteps()
    name = "tests.dreamgym.run.probe_env:Steps"
    out = []
    with steps.recorded(folder / "count.steps"):
        envs = vector.RealVectorEnv.growing(
            lambda: RestartingEnv(lambda: shared_env(name, start_seconds=60.0)),
            limit=2,
            max_steps=9,
        )
        task = Task(id="t", instruction="go")
        for action in ("go", "fail", "hang", "go"):
            out += [repr(envs.reset(options={"tasks": [task] * envs.size}))]
            out += [repr(envs.step([action] * envs.size))]
            steps.add()
        out += [repr(envs.valid_actions(0)), repr(envs.transitions)]
        envs.close()
    return out


def main() -> None:
    """Do everything, and write what this process saw."""
    folder, index = Path(sys.argv[1]), sys.argv[2]
    join_processes(sys.argv[3])
    import numpy as np
    from jax.sharding import PartitionSpec

    from worldmodel.backbone import mesh
    from worldmodel.backbone.mesh import to_host

    with quiet_followers():
        print(f"printed by {index}")
    seen = {"messages": messages(), "files": files(folder), "games": games(folder)}
    devices = mesh.make_mesh(mesh.parse_mesh("data=0"))
    layout = mesh.sharding_for(PartitionSpec(mesh.DATA), (4,), devices)
    saved = {"x": mesh.device_put_global(np.arange(4.0), layout)}
    checkpoint.save(folder / "checkpoint", 4, saved, {"host": 1})
    restored = checkpoint.restore(folder / "checkpoint", saved)
    assert restored is not None
    seen["checkpoint"] = [restored[0], restored[2], to_host(restored[1]["x"]).tolist()]
    (folder / f"seen-{index}.json").write_text(json.dumps(seen))


if __name__ == "__main__":
    main()
