"""Options that several commands share, with their help texts."""

import argparse
import dataclasses
import json
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dreamgym.config.describe import group_text
from dreamgym.config.overrides import changed_by, flat
from dreamgym.config.presets import (
    PRESETS,
    RUN_CONTROLS,
    for_pretrained,
    for_server,
    preset,
    with_algorithm,
)
from dreamgym.config.settings import RunConfig
from dreamgym.config.shapes import MODELS
from dreamgym.config.stages import ServerConfig
from dreamgym.rl.config import ALGORITHMS
from dreamgym.run.stage import Stage
from worldmodel.backbone.config import LoraConfig
from worldmodel.chat.config import ChatConfig

MESH_HELP = "devices, as data=N,fsdp=N,tensor=N; data=0 takes the rest (default: one)"

NO_TUNING = "stop before the real fine-tuning; the command without it goes on"
NO_CONTROLS = (
    "leave out real_only and real_only_total, which fine-tune without a dream and tell "
    "whether dreaming paid: shorter; the command without it adds them"
)
ENV_HELP = (
    "a registered id (textworld or textworld:GAME, textcraft, alfworld or "
    "alfworld:TASK_TYPE, miniwob or miniwob:TASK, scienceworld or "
    "scienceworld:TASK, reasoning:TASK, bfcl or "
    "bfcl:CATEGORY, tau2 or tau2:DOMAIN, twcooking or twcooking:SKILLS, twcoin or "
    "twcoin:levelN, scenario or scenario:SEED), "
    '"module:Class", "gym:ID", "mix:A,B*2" (one policy on several environments, in '
    'this proportion), "mcp:FILE" (an MCP server with tasks) or the URL '
    "of an OpenEnv server, http://HOST:PORT (default: textworld)"
)

_OPTION_OF = {
    **{name: f"--{name}" for name in ("preset", "seed", "model", "server")},
    "env.id": "--env",
    "budget.real_steps": "--budget",
    "data.episodes": "--episodes",
    "data.base_run": "dreamgym refit",
    "pretrain.permute_outcomes": "dreamgym control shuffled",
    "server.chat.base_url": "--server",
    "server.chat.model": "--server-model",
    "server.chat.api_key_env": "--server-key-env",
}
"""Settings that have options of their own."""


_DREAM = (
    "Any OpenAI-compatible server in the place of a model of ours (llama.cpp, "
    "vLLM, a provider). Nothing is fitted: it is asked what each action leads to, "
    "with similar real transitions as examples. Answers are kept in the run's "
    "chat_cache.sqlite, so what was asked once costs nothing again."
)


def add_server(
    parser: argparse.ArgumentParser,
    title: str = "a chat server as the experience model",
    about: str = _DREAM,
) -> Any:
    """Add the options of a chat server as a group; return the group."""
    group = parser.add_argument_group(title, about)
    add = group.add_argument
    add(
        "--server",
        metavar="URL",
        help="what its /chat/completions follows, such as http://127.0.0.1:8080/v1",
    )
    add(
        "--server-model",
        metavar="NAME",
        help="its name of the model (default: "
        "default, which servers of one model take)",
    )
    add(
        "--server-key-env",
        metavar="VARIABLE",
        help="the environment variable that "
        "holds the key; the key itself is never given nor written",
    )
    return group


def add_track(parser: argparse.ArgumentParser) -> None:
    """Add the option that names additional trackers of metrics."""
    parser.add_argument(
        "--track",
        action="append",
        default=[],
        metavar="NAME",
        help="send metrics to tensorboard or wandb as well (repeatable; extras of "
        "those names); RUN/metrics.jsonl has them always",
    )


def server_of(args: argparse.Namespace) -> ServerConfig | None:
    """Return the ServerConfig of the options, or None without a server.

    Raises:
      ValueError: the URL or the name of the variable is malformed, or the URL is
        missing.
    """
    if args.server is None:
        for name in ("server_model", "server_key_env"):
            if getattr(args, name) is not None:
                raise ValueError(f"--{name.replace('_', '-')} needs --server URL")
        return None
    model = "default" if args.server_model is None else args.server_model
    try:
        chat = ChatConfig(
            base_url=args.server,
            model=model,
            api_key_env=args.server_key_env or "",
            read_timeout=600.0,  # the deadline: a slow server lets requests queue
        )
    except ValueError as error:
        raise ValueError(f"--server: {error}") from None
    return ServerConfig(chat=chat)


def run_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that set a run's settings."""
    add = parser.add_argument
    add(
        "--run-dir",
        type=Path,
        help="where everything goes; other settings want another one (default: "
        "runs/PRESET-SEED, with -server or the name of a control behind it). A run "
        "that exists can be named without the option: dreamgym STAGE RUN",
    )
    add(
        "--name",
        metavar="NAME",
        help="try stages of the run in --run-dir again, with other settings (--set): "
        "in RUN-NAME, which takes over every finished stage that they do not change",
    )
    add(
        "--config",
        type=Path,
        metavar="FILE",
        help="settings from a TOML file, over those of the preset and below options",
    )
    add("--preset", help=f"one of {', '.join(PRESETS)} (default: default)")
    add(
        "--algorithm",
        metavar="NAME",
        help="the policy's update by reinforcement learning, in the dream and, with "
        "transfer.method updates or dream_updates, in fine-tuning: "
        f"{', '.join(sorted(ALGORITHMS))} (default: turn_grpo, group-relative by "
        "turns)",
    )
    add("--seed", type=int, help="the seed of everything (default: 0)")
    add("--env", help=ENV_HELP)
    add(
        "--budget",
        type=int,
        metavar="N",
        help="real steps that the whole run may take, test games left out: it divides "
        "them among collection, selection and fine-tuning, and never takes more "
        "(default: no bound)",
    )
    add(
        "--model",
        help="policy and experience model start from: a Hugging Face "
        f"directory, or a shape trained from scratch: {', '.join(MODELS)}",
    )
    _add_devices(parser)
    add(
        "--lora",
        type=int,
        default=0,
        metavar="RANK",
        help="fits of a pretrained --model train low-rank additions and embeddings",
    )
    add("--remat", action="store_true", help="fits compute layers again: less memory")
    add(
        "--dtype",
        choices=["float32", "bfloat16"],
        help="of the fits' passes (default: float32); parameters stay float32",
    )
    add(
        "--episodes",
        type=Path,
        help="a JSONL file of episodes to use in place of collecting; without --env "
        "the real stages are skipped",
    )
    add(
        "--set",
        dest="settings",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="any other setting by its name: --set experience.history=0; "
        "--experience.history 0 says the same, and `dreamgym settings` lists them",
    )
    add_track(parser)
    add_server(parser)


def _add_devices(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--mesh", default="", help=MESH_HELP)
    add(
        "--rollout-mesh",
        default="",
        metavar="MESH",
        help="devices of their own, the last ones, for the rollouts that policies are "
        "trained on, as data=N,fsdp=N,tensor=N; the others are those of --mesh "
        "(default: rollouts are made where policies learn)",
    )
    add(
        "--distributed",
        default="",
        metavar="PROCESSES",
        help="several processes run this same command together, each on its devices: "
        "coordinator=HOST:PORT,processes=N,process=I (process 0 on HOST), or auto "
        "(Slurm, MPI, Cloud TPU); all need the same --run-dir on a shared disk",
    )


def changed_options(args: argparse.Namespace) -> list[str]:
    """Return the given options that change settings, unless they have their default.

    They would have no effect on an existing run, which keeps its settings.
    """
    parser = argparse.ArgumentParser()
    run_options(parser)
    devices = {"mesh", "rollout_mesh", "distributed"}
    free = {"run_dir", "name", "episodes", "track", "help"} | devices
    return [
        action.option_strings[0]
        for action in parser._actions
        if action.dest not in free
        and getattr(args, action.dest, action.default) != action.default
    ]


def _setting(text: str) -> tuple[str, Any]:
    """Parse NAME=VALUE with a TOML or JSON value; a bare word is a string."""
    name, sign, value = text.partition("=")
    if not name or not sign:
        raise ValueError(f"--set {text!r}: expected NAME=VALUE")
    if name in _OPTION_OF:
        raise ValueError(f"--set {text!r}: {name} is set by {_OPTION_OF[name]}")
    try:
        return name, tomllib.loads(f"x = {value}")["x"]
    except tomllib.TOMLDecodeError:
        pass
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value


def settings_help(stages: Sequence[Stage]) -> str:
    """Return the groups of settings that stages read, for their help."""
    groups = [f.name for f in dataclasses.fields(RunConfig)]
    read = {path.partition(".")[0] for stage in stages for path in stage.reads}
    config = PRESETS["default"]()
    lines = []
    for name in groups:
        part = getattr(config, name)
        part = ServerConfig if name == "server" else part
        if name in read and dataclasses.is_dataclass(part):
            lines.append(f"  --{name + '.*':<14} {group_text(part)}")
    return "\n".join(
        [
            "settings that it reads, as --GROUP.NAME VALUE (`dreamgym settings GROUP`",
            "lists them, and `dreamgym settings` all):",
            *lines,
        ]
    )


def read_config(path: Path | None) -> dict[str, Any]:
    """Return the settings of a TOML file by dotted names; empty without a file.

    Raises:
      ValueError: the file is not valid TOML.
    """
    if path is None:
        return {}
    try:
        return flat(tomllib.loads(path.read_text(encoding="utf-8")))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"--config {path}: expected TOML, {error}") from None


def _with_file(config: RunConfig, file: dict[str, Any]) -> RunConfig:
    """Return the settings with those of a file replaced."""
    settings = {name: value for name, value in file.items() if name != "algorithm"}
    if config.server is None and any(name.startswith("server.") for name in settings):
        url = settings.get("server.chat.base_url", "")
        config = dataclasses.replace(
            config, server=ServerConfig(chat=ChatConfig(base_url=url))
        )
    if "algorithm" in file:
        config = with_algorithm(config, file["algorithm"])
    return changed_by(config, settings)


def _with_typed(config: RunConfig, args: Sequence[str]) -> RunConfig:
    """Return the settings with those of options like --train.group_size 4 replaced.

    Raises:
      ValueError: a setting has an option of its own, which must be used.
      SystemExit: the setting does not exist or has a wrong value; a message is printed.
    """
    for option in args:
        name = option.partition("=")[0].removeprefix("--").replace("-", "_")
        if option.startswith("--") and name in _OPTION_OF:
            raise ValueError(f"{option}: {name} is set by {_OPTION_OF[name]}")
    import tyro  # only where it is needed: it takes as long as all the rest

    return tyro.cli(
        RunConfig,
        default=config,
        args=args,
        prog="dreamgym",
        use_underscores=True,
        add_help=False,
        config=(tyro.conf.AvoidSubcommands,),
    )


def change_settings(config: RunConfig, args: argparse.Namespace) -> RunConfig:
    """Return the settings with those of --algorithm, --set and typed options."""
    if args.algorithm is not None:
        config = with_algorithm(config, args.algorithm)
    config = changed_by(config, dict(map(_setting, args.settings)))
    return _with_typed(config, args.typed) if args.typed else config


def change_run_settings(config: RunConfig, args: argparse.Namespace) -> RunConfig:
    """Return the settings of an existing run, with those of the options replaced."""
    return change_settings(_with_file(config, read_config(args.config)), args)


def config_of(args: argparse.Namespace) -> RunConfig:
    """Return the settings of a new run: preset < --config FILE < options.

    Raises:
      ValueError, RunError, RecordError: a setting or a file that cannot be used.
    """
    from dreamgym.build.models import check_model
    from dreamgym.envs.registry import parse_spec
    from worldmodel.data.records import read_episodes

    file = read_config(args.config)
    first = {"preset": "default", "seed": 0, "model": None}
    for name in first:
        option, in_file = getattr(args, name), file.pop(name, first[name])
        first[name] = in_file if option is None else option
    config = _of_model(
        preset(first["preset"], seed=first["seed"]), first["model"], args
    )
    config = _with_file(config, file)
    config = changed_by(config, _of_options(args, file))
    if args.server is not None or args.server_model or args.server_key_env:
        config = dataclasses.replace(config, server=server_of(args))
    if config.server is not None and "expert_iteration.rounds" not in file:
        config = for_server(config, config.server)
    config = change_settings(config, args)
    control = getattr(args, "control", None)
    if control == "real-play" and not config.budget.real_steps:
        raise ValueError(
            "control real-play divides a number of real steps: give it by --budget N, "
            "above 0 (without one, a run's own table has the control real_only_total)"
        )
    if config.env.id:
        parse_spec(config.env.id)
    check_model(config.model)
    if config.data.episodes:
        read_episodes(config.data.episodes)
    return config


def _of_model(
    config: RunConfig, model: str | None, args: argparse.Namespace
) -> RunConfig:
    """Return the settings of a preset with another model, and what that changes."""
    if model is not None:
        model = model if model in MODELS else str(Path(model).resolve())
        config = dataclasses.replace(config, model=model)
    lora = LoraConfig(rank=args.lora) if args.lora else None
    if config.model in MODELS:
        if lora is not None:
            raise ValueError("--lora needs a pretrained --model DIR")
        return config
    return for_pretrained(config, lora=lora)


def _of_options(args: argparse.Namespace, file: dict[str, Any]) -> dict[str, Any]:
    """Return the settings that options with names of their own change."""
    out: dict[str, Any] = {}
    if args.episodes is not None:
        out["data.episodes"] = str(args.episodes.resolve())
        out |= {} if "env.id" in file else {"env.id": ""}
    if args.env is not None:
        out["env.id"] = args.env
    if args.budget is not None:
        out["budget.real_steps"] = args.budget
    if args.command == "control":
        out |= RUN_CONTROLS[args.control]
    for fit in ("pretrain.fit", "bc.fit"):
        if args.remat:
            out[f"{fit}.compute.remat"] = True
        if args.dtype is not None:
            out[f"{fit}.compute.dtype"] = args.dtype
    return out
