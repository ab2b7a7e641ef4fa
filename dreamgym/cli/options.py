"""Options that several commands have, and their texts."""

import argparse
from typing import Any

MESH_HELP = "devices, as data=N,fsdp=N,tensor=N; data=0 takes the rest (default: one)"


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
    from dreamgym.pipeline.config import ServerConfig
    from worldmodel.served.protocol import ChatConfig

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
