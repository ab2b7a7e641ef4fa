"""The commands for environments: `check`, `new-env`."""

import argparse
import contextlib
import dataclasses
import functools
import json
import os
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dreamgym.cli.options import ENV_HELP

if TYPE_CHECKING:
    from dreamgym.envs.contract.findings import Report

PROCESS_SECONDS = 60.0
"""Seconds in which the environment must be made in another process to be compared."""

THREAD_SECONDS = 0.5
"""Seconds that the threads of a closed environment have to end."""

_CHECK = """\
Play a few tasks of an environment with nonsense, with random valid actions and with
the expert's plan, each twice, and tell everything that is wrong (faults) or will hurt
(warnings), with what to do. docs/how-to/environments.md describes the contract. The
exit status is 1 where there are faults, 2 where there is no environment, else 0. An
environment that ends the process of the check is a fault, too; the exit status is then
that of the process."""

_EXAMPLES = """\
examples:
  dreamgym check --env my_module:MyEnv
  dreamgym check --env gymnasium:Taxi-v4
  dreamgym check --env my_module:MyEnv --learn
  python -m dreamgym check --env my_module:MyEnv --json
"""


_NEW = """\
Write an environment that runs, NAME.py, and its tests, test_NAME.py, into the present
directory. Then put your own rules in its place, method by method; the guide is
docs/how-to/environments.md."""

_NEW_EXAMPLES = """\
examples:
  dreamgym new-env web_shop                    states and actions are text
  dreamgym new-env crm --kind tools            actions are calls of Python functions
  dreamgym new-env quiz --kind answer          one question, one answer
  dreamgym new-env lake --kind gymnasium       around an environment of Gymnasium
"""


def add(commands: Any) -> None:
    """Add the subcommands and the functions they run."""
    _add_new(commands)
    check = commands.add_parser(
        "check",
        help="Check that an environment keeps its contract",
        description=_CHECK,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    option = check.add_argument
    option("environment", nargs="?", metavar="ENV", help="the same as --env ENV")
    option("--env", help=ENV_HELP)
    option(
        "--tasks",
        type=int,
        default=3,
        metavar="N",
        help="train tasks that are played (3)",
    )
    option(
        "--max-episode-steps",
        type=int,
        default=0,
        metavar="N",
        help="the step limit of your run (default: the environment's)",
    )
    option(
        "--learn",
        action="store_true",
        help="also fit a model and a policy to a few tasks, and tell what they cannot "
        "learn by heart (a minute or two)",
    )
    option("--json", action="store_true", help="the findings as one JSON object")
    check.set_defaults(body=_check)


def _add_new(commands: Any) -> None:
    new = commands.add_parser(
        "new-env",
        help="Write an environment of your own that runs, with tests",
        description=_NEW,
        epilog=_NEW_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    new.add_argument("name", metavar="NAME", help="the module, such as web_shop")
    new.add_argument(
        "--kind",
        choices=("text", "tools", "answer", "gymnasium"),
        default="text",
        help="what it begins with (text)",
    )
    new.add_argument(
        "--to",
        type=Path,
        default=Path(),
        metavar="DIR",
        help="the directory (the present one)",
    )
    new.set_defaults(body=_new)


def _new(args: argparse.Namespace) -> int:
    from dreamgym.envs import new_env

    files = new_env.new_files(args.name, args.kind)
    paths = {args.to / name: text for name, text in files.items()}
    for path in paths:
        if path.exists():
            raise ValueError(f"{path} exists: choose another name or directory")
    if (other := new_env.shadowed_module(args.name)) is not None:
        raise ValueError(
            f"there is a module {args.name} already ({other}): choose another name"
        )
    args.to.mkdir(parents=True, exist_ok=True)
    for path, text in paths.items():
        path.write_text(text, encoding="utf-8")
        print(f"wrote {path}")
    spec = f"{args.name}:{new_env.class_name_of(args.name)}"
    place = "" if args.to == Path() else f"cd {args.to} && "
    print("It runs as it is. Put your own rules in its place, then:")
    print(f"  {place}dreamgym check --env {spec}")
    print(f"  {place}python -m pytest {list(files)[1]}")
    print(f"  {place}dreamgym quickstart --env {spec} --budget 5000")
    return 0


def _check(args: argparse.Namespace) -> int:
    from dreamgym.commands.death_notice import death_notice

    if args.tasks < 1 or args.max_episode_steps < 0:
        raise ValueError("--tasks must be >= 1 and --max-episode-steps >= 0")
    if args.env and args.environment:
        raise ValueError(f"two environments: {args.environment} and {args.env}")
    name = args.env or args.environment or "textworld"
    before = threading.enumerate()
    with death_notice(_death_text(name, as_json=args.json)):
        report = _report(name, args.tasks, args.max_episode_steps)
        threads = _threads_since(before)
        if threads:
            report = _with_thread_warning(report, threads)
        data, text = report.json(), report.text(name)
        if args.learn and report.faults:
            print("--learn: left out until the faults are mended", file=sys.stderr)
        elif args.learn:
            learned = _learn(name, args.max_episode_steps)
            data["learning"], text = learned[0], f"{text}\n{learned[1]}"
    print(json.dumps(data) if args.json else text)
    status = 1 if report.faults else 0
    if any(thread.is_alive() for thread in threads):  # Python would wait for them
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
    return status


def _threads_since(before: Sequence[threading.Thread]) -> list[threading.Thread]:
    """Return the new threads for which Python waits before it ends.

    Those of an executor are left out: Python tells them to end.
    """
    new = [t for t in threading.enumerate() if t not in before and not t.daemon]
    out = [t for t in new if not t.name.startswith("ThreadPoolExecutor")]
    end = time.monotonic() + THREAD_SECONDS
    for thread in out:
        thread.join(max(end - time.monotonic(), 0.0))
    return [thread for thread in out if thread.is_alive()]


def _with_thread_warning(
    report: "Report", threads: Sequence[threading.Thread]
) -> "Report":
    """Return a report that warns of threads which run on after `close`."""
    from dreamgym.envs.contract.findings import Finding

    warning = Finding(
        "threads of the environment run on after it was closed",
        f"{len(threads)}, the first of them {threads[0].name!r}",
        "end them in close(), or make them with daemon=True: a command would wait for "
        "them at its end, for ever if need be",
    )
    return dataclasses.replace(report, warnings=(*report.warnings, warning))


def _report(name: str, tasks: int, max_steps: int) -> "Report":
    """Return what the checker says of an environment."""
    from dreamgym.config.stages import EnvConfig
    from dreamgym.envs import registry
    from dreamgym.envs.contract import checker
    from dreamgym.envs.workers.env import rehashed_env
    from dreamgym.run.display import progress_bar

    start = functools.partial(registry.start, seconds=EnvConfig().start_seconds)
    elsewhere = functools.partial(rehashed_env, name, start_seconds=PROCESS_SECONDS)
    remote = name.startswith(registry.SCHEMES)  # its server hashes, and no process here
    # What the environment itself prints must not stand in the report.
    with contextlib.redirect_stdout(sys.stderr):
        env = start(name)
    try:
        with (
            progress_bar(0, f"check {name}"),
            contextlib.redirect_stdout(sys.stderr),
        ):
            return checker.check(
                env,
                name=name,
                tasks=tasks,
                max_steps=max_steps,
                make=lambda: start(name),
                make_elsewhere=None if remote else elsewhere,
            )
    finally:
        with contextlib.redirect_stdout(sys.stderr):
            env.close()


def _death_text(name: str, *, as_json: bool) -> str:
    """Return what to print if the environment ends the process of the check."""
    from dreamgym.envs.contract.findings import Finding

    fault = Finding(
        "the environment ended the process in which it was checked",
        f"{name}: its code or a library that it uses crashed, called os._exit, or used "
        "so much memory that the system killed it; after a crash, standard error has "
        "the line",
        "mend it; until then only runs with worker processes (--env.workers 2) survive "
        "it, and each episode in which it happens again is lost",
    )
    if as_json:
        return json.dumps({"faults": [fault._asdict()], "warnings": []})
    return f"{name} breaks the contract:\nfault: {fault}"


def _learn(name: str, max_steps: int) -> tuple[dict[str, Any], str]:
    """Return what can be learned by heart, as data and as text, or why it failed."""
    from dreamgym.commands.learning_check import check_learning
    from dreamgym.envs.failures import EnvironmentDown
    from dreamgym.run.directory import RunError

    try:
        with contextlib.redirect_stdout(sys.stderr):
            learned = check_learning(name, max_steps)
    except (RunError, EnvironmentDown, ValueError) as error:
        return {"error": str(error)}, f"nothing could be learned: {error}"
    return learned.json(), learned.text()
