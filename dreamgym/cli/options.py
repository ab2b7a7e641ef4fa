"""Options that several commands have, and their texts."""

import argparse
import json
import tomllib
from pathlib import Path
from typing import Any

MESH_HELP = "devices, as data=N,fsdp=N,tensor=N; data=0 takes the rest (default: one)"

NO_TUNING = "stop before the real fine-tuning; the command without it goes on"
ENV_HELP = (
    'a registered id (textworld, textcraft) or "module:Class" (default: textworld)'
)

_OWN = {
    **{n: f"--{n}" for n in ("preset", "seed", "env", "model", "episodes", "server")},
    "refit": "pretrain --from", "shuffled": "dreamgym control shuffled",
}  # fmt: skip
"""Settings that have options of their own."""


_DREAM = (
    "Any OpenAI-compatible server in the place of a model of ours (llama.cpp, "
    "vLLM, a provider). Nothing is fitted: it is asked what each action leads to, "
    "with similar real transitions as examples. Answers are kept in the run's "
    "answers.sqlite, so what was asked once costs nothing again."
)


def add_server(
    parser: argparse.ArgumentParser,
    title: str = "a chat server as the experience model",
    about: str = _DREAM,
) -> Any:
    """The options of a chat server, as a group that is returned."""
    group = parser.add_argument_group(title, about)
    add = group.add_argument
    add("--server", metavar="URL", help="what its /chat/completions follows, such as "
        "http://127.0.0.1:8080/v1")  # fmt: skip
    add("--server-model", metavar="NAME", help="its name of the model (default: "
        "default, which servers of one model take)")  # fmt: skip
    add("--server-key-env", metavar="VARIABLE", help="the environment variable that "
        "holds the key; the key itself is never given nor written")  # fmt: skip
    return group


def add_track(parser: argparse.ArgumentParser) -> None:
    """The option that sends metrics elsewhere, too."""
    parser.add_argument(
        "--track", action="append", default=[], metavar="NAME",
        help="send metrics to tensorboard or wandb as well (repeatable; extras of "
        "those names); RUN/metrics.jsonl has them always",
    )  # fmt: skip


def server_of(args: argparse.Namespace) -> Any:
    """The ServerConfig that the options ask for, or None.

    Raises:
      ValueError: no URL of a server, no name of a variable, or one without the URL.
    """
    from dreamgym.config.stages import ServerConfig
    from worldmodel.chat.protocol import ChatConfig

    if args.server is None:
        for name in ("server_model", "server_key_env"):
            if getattr(args, name) is not None:
                raise ValueError(f"--{name.replace('_', '-')} needs --server URL")
        return None
    model = "default" if args.server_model is None else args.server_model
    try:
        chat = ChatConfig(
            base_url=args.server, model=model, api_key_env=args.server_key_env,
            read_timeout=600.0,  # the deadline: a slow server lets requests queue
        )  # fmt: skip
    except ValueError as error:
        raise ValueError(f"--server: {error}") from None
    return ServerConfig(chat=chat)


def run_options(parser: argparse.ArgumentParser) -> None:
    """The settings of a run."""
    from dreamgym.config.presets import PRESETS
    from dreamgym.config.shapes import MODELS
    from dreamgym.rl.config import ALGORITHMS

    add = parser.add_argument
    add(
        "--run-dir",
        type=Path,
        help="where everything goes; other settings want another one (default: "
        "runs/PRESET-SEED, with -shuffled or -server behind it)",
    )
    add("--preset", default="default", help=f"one of {', '.join(PRESETS)}")
    add("--algorithm", metavar="NAME", help="the policy's update, in the dream and in "
        f"the real environment: {', '.join(sorted(ALGORITHMS))} (default: GRPO without "
        "the std, clipped higher)")  # fmt: skip
    add("--seed", type=int, default=0, help="the seed of everything (default: 0)")
    add("--env", help=ENV_HELP)
    add(
        "--model",
        help="policy and experience model start from: a Hugging Face "
        f"directory, or a shape trained from scratch: {', '.join(MODELS)}",
    )
    add("--mesh", default="", help=MESH_HELP)
    add(
        "--lora", type=int, default=0, metavar="RANK",
        help="fits of a pretrained --model train low-rank additions and embeddings",
    )  # fmt: skip
    add("--remat", action="store_true", help="fits compute layers again: less memory")
    add("--dtype", default="float32", choices=["float32", "bfloat16"],
        help="of the fits' passes; parameters stay float32")  # fmt: skip
    add(
        "--episodes", type=Path,
        help="a JSONL file of episodes to use in place of collecting; without --env "
        "the real stages are skipped",
    )  # fmt: skip
    add(
        "--set",
        dest="settings",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="any other setting by its name in manifest.json, dots between: "
        "--set experience.history=0 --set trust.gate=0.05",
    )
    add_track(parser)
    add_server(parser)


def changed_options(args: argparse.Namespace) -> list[str]:
    """Options that would change settings and are given, other than with their default.

    Where a run goes on under settings of its own, they would do nothing.
    """
    parser = argparse.ArgumentParser()
    run_options(parser)
    free = {"run_dir", "mesh", "episodes", "track", "help"}
    return [
        action.option_strings[0]
        for action in parser._actions
        if action.dest not in free
        and getattr(args, action.dest, action.default) != action.default
    ]


def _setting(text: str) -> tuple[str, Any]:
    """NAME=VALUE, the value as TOML or JSON has it; a bare word is a string."""
    name, sign, value = text.partition("=")
    if not name or not sign:
        raise ValueError(f"--set {text!r}: expected NAME=VALUE")
    if name in _OWN:
        raise ValueError(f"--set {text!r}: {name} is set by {_OWN[name]}")
    try:
        return name, tomllib.loads(f"x = {value}")["x"]
    except tomllib.TOMLDecodeError:
        pass
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value


def change_settings(config: Any, args: argparse.Namespace) -> Any:
    """Return the settings with those of --algorithm and --set replaced."""
    from dreamgym.config.overrides import changed_by
    from dreamgym.config.presets import with_algorithm

    if args.algorithm is not None:
        config = with_algorithm(config, args.algorithm)
    return changed_by(config, dict(map(_setting, args.settings)))


def config_of(args: argparse.Namespace) -> Any:
    """The RunConfig that the options ask for.

    Raises:
      ValueError, RunError, RecordError: a setting or a file that cannot be used.
    """
    from dreamgym.build.models import check_model
    from dreamgym.config.presets import for_pretrained, preset, with_fits
    from dreamgym.config.shapes import MODELS
    from dreamgym.envs.registry import parse_spec
    from worldmodel.backbone.model import LoraConfig
    from worldmodel.data.records import read_episodes
    from worldmodel.fitting.learner import ComputeConfig

    changes: dict[str, Any] = {"seed": args.seed, "server": server_of(args)}
    if args.episodes is not None:
        changes |= {"episodes": str(args.episodes.resolve()), "env": args.env or ""}
    elif args.env is not None:
        changes["env"] = args.env
    if args.model is not None:
        name = args.model
        changes["model"] = name if name in MODELS else str(Path(name).resolve())
    if args.command == "control":
        changes["shuffled"] = True
    config = preset(args.preset, **changes)
    lora = LoraConfig(rank=args.lora) if args.lora else None
    if config.model not in MODELS:
        config = for_pretrained(config, lora=lora)
    elif lora is not None:
        raise ValueError("--lora needs a pretrained --model DIR")
    beside = ("embed",) if lora is not None else ()
    compute = ComputeConfig(dtype=args.dtype, remat=args.remat, beside=beside)
    config = with_fits(config, compute=compute)
    config = change_settings(config, args)
    if config.env:
        parse_spec(config.env)
    check_model(config.model)
    if config.episodes:
        read_episodes(config.episodes)
    return config
