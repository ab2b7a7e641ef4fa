"""The command line: one subcommand a stage, one for all of them."""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

_EPILOG = """\
examples:
  dreamgym quickstart                              everything, under 10 minutes
  dreamgym quickstart --preset tiny --run-dir runs/t   every stage in under 90 s
  dreamgym quickstart --episodes mine.jsonl        your episodes, no environment
  dreamgym quickstart --env my_module:MyEnv        your environment
  dreamgym collect --run-dir runs/a                one stage; the next: pretrain,
                                                   fidelity, warmstart, train, ...
  dreamgym control shuffled --run-dir runs/a       the control that must not gain
  dreamgym check --env my_module:MyEnv             does it keep the contract?

Interrupted? Repeat the same command: it goes on where it was.
"""


def _parser() -> argparse.ArgumentParser:
    from dreamgym.pipeline.quickstart import STAGES

    parser = argparse.ArgumentParser(
        prog="dreamgym",
        description="Train a language agent in a dream of a real environment, and "
        "prove it in the real one.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    texts = {
        "quickstart": "all stages, then the table",
        "collect": "real episodes as JSONL",
        "pretrain": "fit the experience model to the episodes",
        "fidelity": "score the experience model on dev games",
        "warmstart": "behaviour cloning, IWM and SR: the policy before any reward",
        "train": "GRPO in the dream with the curriculum",
        "evaluate": "success of each policy on real test games",
        "transfer": "real fine-tuning (s2r) and its controls, then the table",
    }
    for name in ("quickstart", *STAGES):
        command = commands.add_parser(name, help=texts[name])
        _run_options(command)
        if name == "quickstart":
            command.add_argument("--no-transfer", action="store_true", help=_NO_TUNING)
    control = commands.add_parser("control", help="a control that must not gain")
    control.add_argument(
        "name", choices=["shuffled"],
        help="shuffled: the experience model fitted to permuted outcomes",
    )  # fmt: skip
    control.add_argument("--no-transfer", action="store_true", help=_NO_TUNING)
    _run_options(control)
    check = commands.add_parser("check", help="run the contract over an environment")
    check.add_argument("--env", default="textworld", help=_ENV_HELP)
    show = commands.add_parser("report", help="print the table of a finished run")
    show.add_argument("run_dir", type=Path)
    return parser


_NO_TUNING = "stop before the real fine-tuning; the command without it goes on"
_ENV_HELP = 'a registered id (textworld) or "module:Class" (default: textworld)'


def _run_options(parser: argparse.ArgumentParser) -> None:
    from dreamgym.pipeline.config import MODELS, PRESETS

    add = parser.add_argument
    add(
        "--run-dir", type=Path, help="where everything goes (default: runs/PRESET-SEED)"
    )
    add("--preset", default="default", help=f"one of {', '.join(PRESETS)}")
    add("--seed", type=int, default=0, help="the seed of everything (default: 0)")
    add("--env", help=_ENV_HELP)
    add(
        "--model",
        help="policy and experience model start from: a Hugging Face (Llama) "
        f"directory, or a shape trained from scratch: {', '.join(MODELS)}",
    )
    add(
        "--episodes", type=Path,
        help="a JSONL file of episodes to use in place of collecting; without --env "
        "the real stages are skipped",
    )  # fmt: skip


def _config(args: argparse.Namespace) -> Any:
    from dreamgym.envs.base import parse_spec
    from dreamgym.pipeline.config import MODELS, preset
    from dreamgym.pipeline.pretrain import check_model
    from worldmodel.text.records import read_episodes

    changes: dict[str, Any] = {"seed": args.seed}
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
    if config.env:
        parse_spec(config.env)
    check_model(config.model)
    if config.episodes:
        read_episodes(config.episodes)
    return config


def _stages(args: argparse.Namespace) -> None:
    from dreamgym.evaluation import report
    from dreamgym.pipeline import transfer
    from dreamgym.pipeline.quickstart import STAGES, quickstart, tune_process
    from dreamgym.pipeline.run import Run

    config = _config(args)
    suffix = "-shuffled" if config.shuffled else ""
    default = Path("runs") / f"{config.preset}-{config.seed}{suffix}"
    root = args.run_dir if args.run_dir is not None else default
    if args.command in STAGES:
        tune_process()
        run = Run(root, config)
        run.stage(args.command, lambda: STAGES[args.command](run))
        if args.command != "transfer":
            return
        results = transfer.write_results(run)
    else:
        results = quickstart(root, config, fine_tune=not args.no_transfer)
    print(report.table(results))
    print(f"results: {root / 'results.json'}   plots: {root / 'plots'}")


def _check(args: argparse.Namespace) -> None:
    from gymnasium.utils.env_checker import check_env

    from dreamgym.envs import base, contract

    env = base.make(args.env)
    check_env(env, skip_render_check=True)
    done = contract.check(env, name=args.env)
    print(f"{args.env} keeps the contract: {', '.join(done)}, check_env")
    env.close()


def _report(args: argparse.Namespace) -> None:
    from dreamgym.evaluation import report

    path = args.run_dir / "results.json"
    if not path.is_file():
        raise FileNotFoundError(f"{path}: no finished run there")
    print(report.table(json.loads(path.read_text())))


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit status."""
    args = _parser().parse_args(argv)
    from dreamgym.pipeline.run import RunError
    from worldmodel.text.records import RecordError

    body = {"check": _check, "report": _report}.get(args.command, _stages)
    try:
        body(args)
    except (RunError, RecordError, AssertionError, ValueError, OSError) as error:
        print(f"dreamgym {args.command}: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("interrupted: repeat the same command to go on", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
