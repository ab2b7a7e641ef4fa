"""Serves the dream of a run, or a real environment, until it is asked to stop."""

import contextlib
import itertools
import os
import socket
from collections.abc import Iterator
from pathlib import Path

from dreamgym.build.chat import experience_session
from dreamgym.run.directory import Run, RunError
from dreamgym.serving.batching import MAX_BATCH, BatchedExperienceModel
from dreamgym.serving.config import ServingConfig
from dreamgym.serving.dream import Dream, load_dream
from dreamgym.serving.guard import check_binding
from dreamgym.serving.observability import Metrics, log_event
from dreamgym.serving.server import GracefulServer
from dreamgym.serving.worlds import World, dream_world, real_world
from worldmodel.experience.base import Query


def serve(
    target: str,
    *,
    host: str,
    port: int,
    token_env: str,
    config: ServingConfig,
    processes: bool = False,
) -> int:
    """Serve a run directory or an environment; return the number of hung sessions.

    Args:
      target: a run directory, or an environment as `--env` names it.
      token_env: the environment variable that holds the token; "" asks for none.
      processes: whether each session's environment has a process of its own.

    Raises:
      RunError: the target is a directory without a run, or the run has no dream yet.
      ValueError: there is no such environment or no token in the variable, or others
        could reach the server without one.
      OSError: the port is taken.
    """
    token = token_of(token_env)
    check_binding(host, token)
    require_free(host, port)
    metrics = Metrics()
    with open_world(target, metrics, processes=processes) as world:
        server = GracefulServer(
            world, metrics, config, host=host, port=port, token=token
        )
        server.run()
    if not server.started:
        raise OSError(f"{host}:{port}: the server could not start; is the port taken?")
    return server.table.active


def require_free(host: str, port: int) -> None:
    """Check that a server can listen here, before a model is loaded for it.

    Raises:
      OSError: the port is taken, or the host is none of this machine.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        socket.create_server((host, port), family=family).close()
    except OSError as error:
        raise OSError(
            f"{host}:{port}: {error.strerror or error}; choose another --port (0 takes "
            "a free one) or --host"
        ) from None


def token_of(variable: str) -> str:
    """Return the token that an environment variable holds; "" for no variable.

    Raises:
      ValueError: the variable is not set.
    """
    token = os.environ.get(variable, "") if variable else ""
    if variable and not token:
        raise ValueError(f"--token-env {variable}: the variable is not set")
    return token


@contextlib.contextmanager
def open_world(
    target: str, metrics: Metrics, *, processes: bool = False
) -> Iterator[World]:
    """Open what a server plays, within a `with` block.

    Raises:
      RunError, ValueError: as serve.
    """
    if (Path(target) / "manifest.json").is_file():
        with open_dream(load_dream(Run.open(target)), metrics) as world:
            yield world
    elif Path(target).is_dir():
        raise RunError(f"{target}: no run there (no manifest.json)")
    elif "/" in target and ":" not in target:
        raise RunError(f"{target}: no such run directory")
    else:
        yield real_world(target, processes=processes)


@contextlib.contextmanager
def open_dream(dream: Dream, metrics: Metrics) -> Iterator[World]:
    """Open the world of a dream, whose sessions' queries are answered in batches."""
    with experience_session(dream.model):
        warm_up(dream)
        batched = BatchedExperienceModel(dream.model, on_batch=metrics.on_batch)
        metrics.waiting.set_function(lambda: batched.waiting)
        try:
            yield dream_world(dream, batched)
        finally:
            batched.close()


def warm_up(dream: Dream) -> None:
    """Ask the model one question, then many: no client waits until it is compiled."""
    log_event("model_warms_up", model_version=dream.version)
    tasks = itertools.islice(itertools.cycle(dream.tasks), MAX_BATCH)
    queries = [
        Query(task, (), task.initial_state, f"look {number}")
        for number, task in enumerate(tasks)
    ]
    dream.model.predict(queries[:1])
    dream.model.predict(queries)
