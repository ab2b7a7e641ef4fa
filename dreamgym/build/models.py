"""Models and policies of a run by name."""

import dataclasses
from collections.abc import Iterable, Sequence
from pathlib import Path

from dreamgym.agent.config import PolicyConfig
from dreamgym.agent.policy import Policy
from dreamgym.agent.shield import AUTO
from dreamgym.agent.strict_actions import StrictActions, strict_actions
from dreamgym.build.episodes import recorded_episodes
from dreamgym.config.shapes import MODELS
from dreamgym.run.directory import Run, RunError
from worldmodel.backbone.mesh import shard
from worldmodel.backbone.model import Model, create
from worldmodel.backbone.weights import check_model_directory, load_model, save_model
from worldmodel.data.records import Episode, Task, iter_episodes
from worldmodel.experience.examples import train_tokenizer
from worldmodel.fitting import supervised
from worldmodel.fitting.batches import Example
from worldmodel.fitting.config import FitConfig
from worldmodel.memory import Encoder, EpisodicMemory, Hidden
from worldmodel.memory.encoders import Lexical
from worldmodel.text.tokenizer import TextTokenizer
from worldmodel.text.tools.tool_schemas import ToolSchema, tool_schemas


def check_model(name: str) -> None:
    """Check a model's name before a run begins; no tensor is read.

    Raises:
      RunError: neither a known shape nor a model directory.
      ValueError, OSError: the directory cannot be used (check_model_directory).
    """
    if name in MODELS:
        return
    if not (Path(name) / "config.json").is_file():
        raise RunError(
            f"--model {name!r}: expected one of {sorted(MODELS)} or a directory "
            "with config.json, *.safetensors and tokenizer.json"
        )
    check_model_directory(name)


def initial_model(
    run: Run, train: Sequence[Episode] | None = None, *, for_rollouts: bool = False
) -> tuple[Model, TextTokenizer]:
    """Return the model that a fit starts from: of a directory, or newly initialized.

    With `train`, the tokenizer of a new model is trained on these episodes and written
    to tokenizer/; without, it is read from there. With `for_rollouts` it lies on the
    devices that roll out, if the run has such.

    Raises:
      RunError: neither a known shape nor a model directory.
    """
    name = run.config.model
    mesh = run.acting_mesh if for_rollouts else run.mesh
    if run.config.data.base_run:
        return load_model(Path(run.config.data.base_run) / "experience", mesh=mesh)
    if name not in MODELS:
        check_model(name)
        return load_model(name, mesh=mesh)
    size = MODELS[name].vocab_size
    if train is not None:
        c = run.config.pretrain
        tokenizer = train_tokenizer(
            train,
            size,
            references=c.references,
            markers=c.argument_markers,
            changes=c.number_changes,
            columns=c.grid_columns,
            directory=run.path("tokenizer"),
        )
    else:
        tokenizer = TextTokenizer.load(run.path("tokenizer"))
    shape = MODELS[name].model(tokenizer.vocab_size)
    model = create(shape, seed=run.config.seed)
    return model if mesh is None else shard(model, mesh), tokenizer


def initial_policy(run: Run) -> Policy:
    """Return the initial policy, from which all others start."""
    if run.config.bc.init == "base_model":
        model, tok = initial_model(run)
    else:
        model, tok = load_model(run.path("experience"), mesh=run.mesh)
    return _policy(run, model, tok)


def _policy(run: Run, model: Model, tokenizer: TextTokenizer) -> Policy:
    """Return a policy with the settings, strict actions and memory of the run."""
    strict = _strict_actions(run, tokenizer)
    return Policy(model, tokenizer, policy_config(run), strict, policy_memory(run))


def memory_encoder(run: Run) -> Encoder:
    """Return the encoder by which steps and transitions are retrieved.

    A model is the initial one, not the fitted one: the memory is needed to make the
    examples of the fit, and vectors must not change afterwards.
    """
    if run.config.memory.encoder == "lexical":
        return Lexical()
    # Rollouts retrieve, in a thread: not on devices that learn at the same time.
    return Hidden(*initial_model(run, for_rollouts=True))


_MEMORIES: dict[tuple, EpisodicMemory] = {}
"""That of the last run: a stage loads several policies."""


def policy_memory(run: Run) -> EpisodicMemory | None:
    """Return what the run's policies remember: its collected train episodes.

    None where they remember nothing (`policy.memories`).

    Raises:
      RunError: they do, and the run has no file of collected episodes.
    """
    if not run.config.policy.memories:
        return None
    path = run.path("episodes.jsonl")
    if not path.is_file():
        raise RunError(
            f"{path}: no such file; policies with policy.memories = "
            f"{run.config.policy.memories} read the collected episodes"
        )
    key = (path, path.stat().st_mtime_ns, run.config.memory.encoder)
    if key not in _MEMORIES:
        episodes = recorded_episodes(path)
        memory = EpisodicMemory(episodes, encoder=memory_encoder(run))
        _MEMORIES.clear()
        _MEMORIES[key] = memory
    return _MEMORIES[key]


def _strict_actions(run: Run, tokenizer: TextTokenizer) -> StrictActions | None:
    """Return the strict actions of a run, or None where it writes free text.

    Raises:
      RunError: strict actions are asked for, and tasks list no tools.
    """
    if run.config.policy.actions == "text":
        return None
    path = run.path("episodes.jsonl")
    tasks = (episode.task for episode in iter_episodes(path))
    return strict_actions(tokenizer, tools_to_call(tasks, str(path)))


def tools_to_call(tasks: Iterable[Task], place: str) -> dict[str, ToolSchema]:
    """Return the tools that strict actions may call, by name: those of all tasks.

    `place` is where the tasks are, for the message.

    Raises:
      RunError: a task does not list its tools, and would be played with actions that it
        does not read; or no task has any.
    """
    tools, by_id, without = {}, {task.id: task for task in tasks}, []
    for task in by_id.values():
        schemas = tool_schemas(task)
        if schemas is None:
            without.append(task.id)
        tools |= schemas or {}
    if without:
        raise RunError(
            f"{place}: policy.actions = json writes calls of tools and answers alone: "
            "expected tasks that list their tools in options['tools'], as those of a "
            f"ToolEnv do, and {len(without)} of {len(by_id)} do not, such as "
            f"{without[0]!r}; take policy.actions = text, or leave these tasks out. A "
            "task that needs an answer and no tool lists none: []"
        )
    if not tools:
        raise RunError(
            f"{place}: policy.actions = json needs tasks that list their tools in "
            "options['tools'], as those of a ToolEnv do; all lists are empty"
        )
    return tools


def fit_model(
    run: Run,
    name: str,
    model: Model,
    examples: list[Example],
    fit: FitConfig,
    held_out: Sequence[Example],
    seed: int | None = None,
) -> Model:
    """Fit a model under a name, with checkpoints, progress display and curve.

    Args:
      held_out: examples whose loss the curve has; it decides nothing.
      seed: that of the order of the examples; None: the run's.
    """
    directory = run.path(f"checkpoints/{name}")
    with run.progress_report(name, fit.steps) as report:
        model, curve = supervised.fit(
            model,
            examples,
            fit,
            seed=run.config.seed if seed is None else seed,
            directory=directory,
            held_out=held_out,
            progress=report,
        )
    run.write_curve(name, curve)
    return model


MAX_ACTION_TOKENS = 64
"""Upper limit of the token budget of an action that is derived from episodes.

A policy that has not learned to stop uses up the whole budget, which costs time."""


def action_token_budget(config: PolicyConfig, longest: int) -> int:
    """Return the token budget of an action; the `longest` in a success has so many.

    It adds a quarter, for names that do not occur in the episodes, and an end token. It
    is at most MAX_ACTION_TOKENS and at least the budget of the settings.
    """
    return max(config.action_tokens, min(longest + longest // 4 + 1, MAX_ACTION_TOKENS))


def policy_config(run: Run) -> PolicyConfig:
    """Return the settings of the run's policies, with a token budget for actions.

    Runs of older versions did not count them: theirs have the room of the settings.
    Where the environment draws lots, no action is drawn again because it was refused.
    Whether policies keep to the valid actions is decided in the stage `shield`; stages
    that do not need it have no shield.
    """
    config, longest = run.config.policy, run.numbers("pretrain").get("action_tokens", 0)
    deterministic = run.numbers("collect").get("deterministic", True)
    decided = config.shield == AUTO and run.knows("shield")
    shield = run.numbers("shield").get("shield", "") if decided else ""
    return dataclasses.replace(
        config,
        shield=shield or config.shield,
        action_tokens=action_token_budget(config, longest),
        max_redraws=config.max_redraws if deterministic else 0,
    )


def load_policy(run: Run | str | Path, name: str) -> Policy:
    """Return a policy of the run by name.

    Args:
      run: a run, or its directory.
      name: of the folder `policies`, such as "bc", "dream" or "s2r".

    Raises:
      RunError: there is no run, or the stage that makes the policy has not been run.
    """
    run = Run.of(run)
    path = run.path(f"policies/{name}")
    if not (path / "config.json").is_file():
        folders = sorted(path.parent.glob("*/config.json"))
        present = ", ".join(p.parent.name for p in folders) or "none yet"
        raise RunError(f"{path}: no policy {name!r} in this run; it has {present}")
    model, tok = load_model(path, mesh=run.mesh)
    return _policy(run, model, tok)


def save_policy(run: Run, name: str, policy: Policy) -> None:
    """Write a policy as a model directory."""
    save_model(run.path(f"policies/{name}"), policy.model, policy.tokenizer)
