"""Process settings: the compilation cache, memory, and processes that run together."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax

from dreamgym.run.allocator import keep_freed_memory
from worldmodel.data.processes import is_first_process


def tune_process() -> None:
    """Keep compiled programs on disk, and freed memory in the process.

    The latter helps only where JAX has not computed anything yet: the command line asks
    for it at its start.
    """
    keep_freed_memory()
    if getattr(jax.config, "jax_compilation_cache_dir", None) is None:
        path = Path.home() / ".cache" / "dreamgym" / "xla"
        jax.config.update("jax_compilation_cache_dir", str(path))
        # Small programs, too: a run has a hundred of them.
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)


AUTO = "auto"
_KEYS = ("coordinator", "processes", "process")


def join_processes(text: str) -> None:
    """Make this process one of several that run the same command together.

    Each drives its own devices, and `jax.devices()` has those of all. To be called
    before anything uses JAX.

    Args:
      text: "coordinator=HOST:PORT,processes=N,process=I", where the process with I = 0
        runs on HOST; or "auto" on a cluster that JAX knows (Slurm, MPI, Cloud TPU).

    Raises:
      ValueError: another text.
      RuntimeError: the others do not come, or JAX knows no such cluster.
    """
    arguments: dict[str, Any] = {}
    if text != AUTO:
        parts = (part.partition("=") for part in text.split(","))
        values = {name: value for name, _, value in parts}
        numbers = [values.get(k, "") for k in _KEYS[1:]]
        host, _, port = values.get("coordinator", "").rpartition(":")
        named = set(values) == set(_KEYS) and host and port.isdigit()
        if not named or not all(x.isdigit() for x in numbers):
            raise ValueError(
                "--distributed is coordinator=HOST:PORT,processes=N,process=I, or "
                f"{AUTO}; got {text!r}"
            )
        count, index = map(int, numbers)
        if not 0 <= index < count:
            raise ValueError(
                "--distributed: processes must be >= 1 and process in [0, processes), "
                f"got {count} and {index}"
            )
        arguments = {
            "coordinator_address": values["coordinator"],
            "num_processes": count,
            "process_id": index,
        }
    # JAX's default collectives on CPUs work within one process only. Other devices
    # ignore this.
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(**arguments)


@contextlib.contextmanager
def quiet_followers() -> Iterator[None]:
    """Let only the first process print in the block; errors are raised as usual."""
    if is_first_process():
        yield
        return
    with (
        open(os.devnull, "w", encoding="utf-8") as nowhere,
        contextlib.redirect_stdout(nowhere),
        contextlib.redirect_stderr(nowhere),
    ):
        yield
