"""The commands `serve` and `play`."""

import argparse
import importlib.util
import os
import sys
from pathlib import Path
from typing import Any

_SERVE = """\
Serve the dream of RUN, or a real environment, in OpenEnv's protocol (HTTP and
WebSocket): any trainer that consumes OpenEnv can play it. Model calls of all sessions
are answered together. A page to play on is at /, metrics for Prometheus are at
/metrics, and log lines are JSON on stderr. Ctrl-C or SIGTERM stops it: running episodes
may end first. Needs the extra serve: pip install 'dreamgym[serve]'."""

_SERVE_EXAMPLES = """\
examples:
  dreamgym serve runs/a                          a dream, at http://127.0.0.1:8000
  dreamgym serve textworld --port 8001           the real environment
  DREAM_TOKEN=... dreamgym serve runs/a --host 0.0.0.0 --token-env DREAM_TOKEN
"""

_PLAY = """\
Play the dream of RUN in the terminal: state, then what the experience model reasons,
how sure it is, and what it recalls, after each action. `:memory` prints what was seen
and is gone, and how often each verb was taken and refused; `:new` plays the next task,
with an empty memory, and `:quit` ends."""

EXTRA = ("fastapi", "uvicorn", "websockets", "prometheus_client")
"""The modules of the extra serve."""


def add(commands: Any) -> None:
    """Add the subcommands and the functions they run."""
    serve = commands.add_parser(
        "serve",
        help="Serve a run's dream, or an environment, to other trainers",
        description=_SERVE,
        epilog=_SERVE_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    option = serve.add_argument
    option(
        "target",
        metavar="RUN_OR_ENV",
        help="a run directory, pretrained, or an environment as --env names it",
    )
    option(
        "--host",
        default="127.0.0.1",
        help="the address to listen at; others than this machine's own need a token "
        "(127.0.0.1)",
    )
    option("--port", type=int, default=8000, help="0 takes a free one (8000)")
    option(
        "--token-env",
        default="",
        metavar="VARIABLE",
        help="the environment variable that holds the token which clients send as "
        "Authorization: Bearer TOKEN; the token itself is never given nor written",
    )
    option(
        "--max-sessions",
        type=int,
        default=64,
        metavar="N",
        help="sessions at once; further ones are refused (64)",
    )
    option(
        "--idle-seconds",
        type=float,
        default=600.0,
        metavar="S",
        help="a session without a message for so long ends (600)",
    )
    option(
        "--turn-seconds",
        type=float,
        default=120.0,
        metavar="S",
        help="a reset or step that takes longer ends its session (120)",
    )
    option(
        "--grace-seconds",
        type=float,
        default=10.0,
        metavar="S",
        help="how long running episodes may go on when the server stops (10)",
    )
    option(
        "--processes",
        action="store_true",
        help="a process for the environment of each session, which is ended where it "
        "crashes or hangs; a dream needs none",
    )
    serve.set_defaults(body=_serve)
    play = commands.add_parser("play", help="Play a run's dream", description=_PLAY)
    option = play.add_argument
    option("run_dir", type=Path, metavar="RUN", help="a run directory, pretrained")
    option("--split", default="", help="of the tasks (default: the first there is)")
    option("--seed", type=int, default=0, help="draws the task (0)")
    option("--index", type=int, metavar="N", help="the task's number in its split")
    play.set_defaults(body=_play)


def _serve(args: argparse.Namespace) -> int:
    missing = [name for name in EXTRA if importlib.util.find_spec(name) is None]
    if missing:
        raise ValueError(
            f"{missing[0]} is not installed: pip install 'dreamgym[serve]'"
        )
    from dreamgym.commands.serve import serve
    from dreamgym.run.process import tune_process
    from dreamgym.serving.config import ServingConfig

    if not 0 <= args.port < 65536:
        raise ValueError(f"--port must be 0 to 65535, got {args.port}")
    tune_process()
    hung = serve(
        args.target,
        host=args.host,
        port=args.port,
        token_env=args.token_env,
        processes=args.processes,
        config=ServingConfig(
            max_sessions=args.max_sessions,
            idle_seconds=args.idle_seconds,
            turn_seconds=args.turn_seconds,
            grace_seconds=args.grace_seconds,
        ),
    )
    if hung:  # Python would wait for the threads of environments that hang
        sys.stderr.flush()
        os._exit(1)
    return 0


def _play(args: argparse.Namespace) -> None:
    from dreamgym.commands.play import play
    from dreamgym.run.directory import Run
    from dreamgym.run.display import output_console
    from dreamgym.run.process import tune_process

    if args.seed < 0 or (args.index is not None and args.index < 0):
        raise ValueError("--seed and --index must be >= 0")
    tune_process()
    play(
        Run.open(args.run_dir),
        output_console(),
        _read_action,
        split=args.split,
        seed=args.seed,
        index=args.index,
    )


def _read_action() -> str | None:
    """Return a line of standard input, or None at its end."""
    try:
        return input("> ").strip()
    except EOFError:
        return None
