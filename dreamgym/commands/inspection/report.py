"""Writes the page of a run, report.html, with three dreamed episodes."""

import dataclasses
import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from dreamgym.build import chat as run_chat
from dreamgym.build.experience import load_experience, remedy_folder
from dreamgym.commands.inspection.show import run_readable_states
from dreamgym.config import presets
from dreamgym.config.settings import RunConfig
from dreamgym.config.shapes import MODELS
from dreamgym.config.stages import ServerConfig
from dreamgym.evaluation.comparisons.episode_comparison import (
    compare_episode,
    episode_view,
    recall_from,
)
from dreamgym.evaluation.pages import run_page
from dreamgym.evaluation.pages.curves import read_curves
from dreamgym.run.directory import VERSION, Run, RunError
from dreamgym.stages.table import STAGES
from worldmodel.backbone.config import LoraConfig
from worldmodel.chat.cache import CacheError
from worldmodel.chat.config import ChatConfig
from worldmodel.data.hashing import content_hash
from worldmodel.data.records import Episode, read_episodes

PAGE = "report.html"
VIEWS = "report/episodes.json"
"""The compared episodes, so that the page can be written again without a model."""
COUNT = 3
OPTIONS = {
    "seed": "--seed",
    "env.id": "--env",
    "budget.real_steps": "--budget",
    "model": "--model",
    "data.episodes": "--episodes",
    "server.chat.base_url": "--server",
    "server.chat.model": "--server-model",
    "server.chat.api_key_env": "--server-key-env",
}
"""Settings that have options of their own."""


def write_report(run: Run, results: Mapping[str, Any]) -> Path:
    """Write report.html of a finished run; return its path."""
    if run.config.train.environment == "real":  # nobody asked its model for a dream
        results = {**results, "fidelity": None}
        views, text = [], "None: no policy was trained in a dream (train.environment)."
    else:
        views, text = episode_views(run)
    versions = results.get("versions", {})
    facts = run_page.RunFacts(
        title=f"Run {run.root.resolve().name}",
        request=list(_request(run)),
        settings=run_page.settings_lines(run.config.json(), versions),
        stages=list(_stages(run)),
        episodes=views,
        episodes_text=text,
        next_steps=list(_next_steps(run)),
        scorecard_command=f"dreamgym scorecard {_quoted(run.root)}",
        version=versions.get("dreamgym", VERSION),
    )
    path = run.path(PAGE)
    run_page.write_page(path, results, read_curves(run.path("curves")), facts)
    return path


# --- episodes ----------------------------------------------------------------


def episode_views(run: Run) -> tuple[list[dict[str, Any]], str]:
    """Return views of three episodes, and a sentence on which they are.

    They are dreamed once and kept in the run. Without an answer of the run's chat
    server there are none, and the sentence says so.
    """
    path = run.path("test/dream.jsonl")
    if path.is_file():
        episodes = read_episodes(path)
        text = "Test games that the policy dream played in the real environment."
    else:
        episodes = read_episodes(run.path("dev.jsonl"))
        text = "Held-out dev episodes."
    selection = choose_episodes([e for e in episodes if e.transitions], COUNT)
    # Ids of test games are the same for whatever is played there, by whatever model.
    marker = run.done("pretrain") or {}
    digest = content_hash(
        [[dataclasses.asdict(e) for e in selection], marker.get("numbers")]
    )
    if run.path(VIEWS).is_file():
        saved = run.read_json(VIEWS)
        if saved.get("digest") == digest:
            return saved["views"], text
    try:
        views = _dream_views(run, selection)
    except (RunError, CacheError) as error:
        return [], f"None: the experience model gave no answer ({error})."
    run.write_json(VIEWS, {"digest": digest, "views": views})
    return views, text


def _dream_views(run: Run, episodes: Sequence[Episode]) -> list[dict[str, Any]]:
    experience = load_experience(run, scaled=True, folder=remedy_folder(run))
    recall = recall_from(experience.memory, experience.config.demonstrations)
    with run_chat.experience_session(experience), run_readable_states(run) as read:
        return [
            episode_view(e, compare_episode(experience, recall, e), read)
            for e in episodes
        ]


def choose_episodes(episodes: Sequence[Episode], count: int) -> list[Episode]:
    """Return successful and failed episodes in turn, of different families if possible.

    Among equals the first one is taken.
    """
    remaining, selection = list(episodes), list[Episode]()
    while remaining and len(selection) < count:
        won = len(selection) % 2 == 0
        families = [e.task.family for e in selection]

        def rank(e: Episode, won=won, families=families) -> tuple[bool, int]:
            return bool(e.success) != won, families.count(e.task.family)

        selection.append(min(remaining, key=rank))
        remaining.remove(selection[-1])
    return selection


# --- what was asked, what to do next -----------------------------------------


def _quoted(path: Any) -> str:
    return shlex.quote(str(path))


def _flat(value: Any, prefix: str = "") -> dict[str, Any]:
    """Nested settings by dotted names."""
    if not isinstance(value, Mapping):
        return {prefix: value}
    out: dict[str, Any] = {}
    for name, part in value.items():
        out |= _flat(part, f"{prefix}.{name}" if prefix else name)
    return out


def repeat_command(config: RunConfig, *command: str) -> str:
    """Return a command that runs with these settings.

    It is `command`, by default `quickstart` or the control that these settings are.
    """
    if config.data.base_run and not command:
        words = ["dreamgym", "refit", config.data.base_run]
        return shlex.join([*words, "--episodes", config.data.episodes])
    default = _flat(_option_defaults(config).json())
    default.pop("server.chat.base_url", None)  # it has to be named
    settings = _flat(config.json())
    changed = {k: v for k, v in settings.items() if v != default.get(k)}
    words = ["dreamgym", *(command or ("quickstart",))]
    for name, control in presets.RUN_CONTROLS.items():
        if not command and control.items() <= settings.items():
            words = ["dreamgym", "control", name]
            changed = {k: v for k, v in changed.items() if k not in control}
    words += ["--preset", config.preset]
    if (lora := config.pretrain.fit.lora) is not None:
        words += ["--lora", str(lora.rank)]
    for name, option in OPTIONS.items():
        # Episodes alone are learnt from without an environment, unless one is named.
        needs_name = name == "env.id" and config.data.episodes and config.env.id
        if changed.pop(name, None) or name == "seed" or needs_name:
            words += [option, str(settings[name])]
    for name, value in changed.items():
        words += ["--set", f"{name}={json.dumps(value)}"]
    return shlex.join(words)


def _data_options(config: RunConfig) -> list[str]:
    """Return the options that say what a run learns from, if not the default."""
    usual = "" if config.data.episodes else presets.preset(config.preset).env.id
    out = ["--env", config.env.id] if config.env.id not in ("", usual) else []
    return [*out, *(["--episodes", config.data.episodes] * bool(config.data.episodes))]


def _option_defaults(config: RunConfig) -> RunConfig:
    """Return the settings that the options of model and server alone stand for.

    The model is still to be named.
    """
    out = presets.preset(config.preset)
    if config.model not in MODELS:
        lora = config.pretrain.fit.lora
        rank = None if lora is None else LoraConfig(rank=lora.rank)
        out = presets.for_pretrained(out, lora=rank)
    if config.server is not None:
        address = config.server.chat.base_url
        chat = ChatConfig(base_url=address, read_timeout=600.0)
        server = ServerConfig(chat=chat)
        out = presets.for_server(out, server)
    return out


def _request(run: Run) -> Iterator[tuple[str, str]]:
    c = run.config
    yield "command", repeat_command(c)
    yield "preset", c.preset
    yield "environment", c.env.id or "none: episodes alone"
    if c.data.episodes:
        yield "episodes", c.data.episodes
    yield "model", c.model
    if c.server is not None:
        yield "dream", f"{c.server.chat.model} at {c.server.chat.base_url}"
    yield "seed", str(c.seed)
    yield "version", f"dreamgym {VERSION}"
    yield "folder", str(run.root.resolve())


def _stages(run: Run) -> Iterator[dict[str, str]]:
    for name in STAGES:
        marker = run.done(name)
        if marker is not None:
            real = int(marker["numbers"].get("real_transitions", 0))
            yield {
                "name": name,
                "seconds": f"{marker['seconds']:,.0f}",
                "real": f"{real:,}" if real else "–",  # noqa: RUF001
            }


def _next_steps(run: Run) -> Iterator[tuple[str, Sequence[str]]]:
    root = _quoted(run.root)
    controls = run.config.train.environment == "real"
    if not controls:
        yield (
            "One dreamed step next to the real one, with reasoning and what was "
            "recalled:",
            [f"dreamgym show {root}"],
        )
        yield "The full scorecard of the dream:", [f"dreamgym scorecard {root}"]
    if run.config.env.id and run.done("s2r") is None and not controls:
        at_cost = "" if run.config.budget.real_steps else ", with controls at its cost"
        yield (
            f"Fine-tune in the real environment{at_cost}:",
            [f"dreamgym transfer --run-dir {root}"],
        )
    c = run.config
    dreams = not controls and c.server is None and not c.data.base_run
    if dreams and not c.pretrain.permute_outcomes:
        yield (
            "The control that must not gain, a dream fitted to permuted outcomes:",
            [
                repeat_command(run.config, "control", "shuffled")
                + f" --run-dir {_quoted(f'{run.root}-shuffled')}"
            ],
        )
    if run.config.preset == "tiny":
        data = _data_options(run.config)
        yield (
            "A run that learns something (tiny only proves the machinery):",
            [shlex.join(["dreamgym", "quickstart", *data])],
        )
    yield (
        "The same on another environment, or from your own episodes:",
        [
            "dreamgym quickstart --env my_module:MyEnv",
            "dreamgym quickstart --episodes mine.jsonl",
        ],
    )
    yield "Compare with another run:", [f"dreamgym compare {root} OTHER"]
