"""Commands that look into finished runs: steps, causes, cards, other environments."""

import argparse
import json
from pathlib import Path
from typing import Any


def add(commands: Any) -> None:
    """Add the subcommands and the functions they run."""
    _add_show(commands)
    card = commands.add_parser(
        "card",
        help="Print the evaluation card of each policy of a run",
        description="Success, efficiency, robustness, safety and traceability of each "
        "policy that has played the test games, each with its number of cases and a 95 "
        "% interval; writes RUN/card.json.",
    )
    card.add_argument("run_dir", type=Path, metavar="RUN")
    card.set_defaults(body=_card)
    command = commands.add_parser(
        "robustness",
        help="Play the test games in other words",
        description="Play RUN's test games with its policies while what they read is "
        "perturbed, or two games in a row; writes RUN/robustness.json. The real steps "
        "are not counted as training.",
    )
    argument = command.add_argument
    argument("run_dir", type=Path, metavar="RUN")
    argument("--policy", action="append", default=[], help="a policy (default: all)")
    argument(
        "--perturb",
        default="rename,rephrase,order,lost,garbled,longer",
        metavar="KINDS",
        help="kinds, separated by commas (%(default)s)",
    )
    argument(
        "--rate",
        type=float,
        default=0.1,
        help="probability of a lost reply, and of a wrong letter (%(default)s)",
    )
    command.set_defaults(body=_robustness)
    matrix = commands.add_parser(
        "transfer-matrix",
        help="Play policies in each other's environments",
        description="A policy of each RUN plays the test games of every RUN. The table "
        "has a row for each policy and a column for each environment; differences are "
        "to the policy that was trained there, paired by game.",
    )
    argument = matrix.add_argument
    argument("run_dirs", type=Path, nargs="+", metavar="RUN", help="two runs or more")
    argument(
        "--policy",
        default="",
        help="its name (default: the last trained one, controls and planner left out)",
    )
    argument("--games", type=int, metavar="N", help="games of each run (default: all)")
    argument("--json", action="store_true", help="everything as one JSON object")
    matrix.set_defaults(body=_transfer_matrix)


def _add_show(commands: Any) -> None:
    show = commands.add_parser(
        "show",
        help="Show a dreamed step next to the real one",
        description="Show one step of a dev episode of RUN, real and dreamed: states, "
        "reward and end, the dream's reasoning, its confidence and what it recalled, "
        "with a legend. --html writes the same as a page, with the whole episode; "
        "--wrong shows what the dream gets wrong.",
    )
    doctor = commands.add_parser(
        "doctor",
        help="Explain a disappointing run, and what to change first",
        description="Read RUN and list the likely causes of its result, most likely "
        "first, with what to change.",
    )
    doctor.add_argument("run_dir", type=Path, metavar="RUN")
    doctor.set_defaults(body=_doctor)
    add = show.add_argument
    add("run_dir", type=Path, metavar="RUN")
    add(
        "--episode",
        metavar="ID",
        help="an id in RUN/dev.jsonl, or with --why that of a test game (default: the "
        "first)",
    )
    add(
        "--step",
        type=int,
        metavar="N",
        help="from 1 (default: one with a change; with --why the last one)",
    )
    add("--all", action="store_true", help="all steps; the dream goes on from its own")
    add("--html", type=Path, metavar="FILE", help="write a page to FILE, too")
    add(
        "--update",
        type=int,
        metavar="N",
        help="the rollouts that update N learned from (train.keep_rollouts); with "
        "--episode one of them, step by step, with every part of its rewards",
    )
    add(
        "--why",
        action="store_true",
        help="which lines of the state moved an action: the step of a test game of "
        "--policy, and how much less likely its action is without each line",
    )
    add(
        "--wrong",
        type=int,
        nargs="?",
        const=3,
        metavar="N",
        help="how often the dream is right, by the first word of the action, and N of "
        "its wrong steps (default: 3)",
    )
    add(
        "--policy",
        help="whose training --update is of (default: dream), or whose game --why "
        "explains (default: the last policy that was tested)",
    )
    show.set_defaults(body=_show)
    report = commands.add_parser(
        "report",
        help="Print the table of a finished run, write its report.html",
        description="Print the table of a finished RUN and write RUN/report.html.",
    )
    report.add_argument("run_dir", type=Path, metavar="RUN")
    report.set_defaults(body=_report)


def _card(args: argparse.Namespace) -> None:
    from dreamgym.commands.audits.card import cards, table
    from dreamgym.run.directory import Run

    with Run.open(args.run_dir) as run:
        print(table(cards(run)))


def _robustness(args: argparse.Namespace) -> None:
    from dreamgym.commands.audits.robustness import robustness, table
    from dreamgym.run.directory import Run
    from dreamgym.run.process import tune_process

    tune_process()
    kinds = [kind for kind in args.perturb.split(",") if kind]
    with Run.open(args.run_dir) as run:
        print(table(robustness(run, args.policy, kinds, args.rate)))


def _transfer_matrix(args: argparse.Namespace) -> None:
    from dreamgym.commands.audits.transfer_matrix import table, transfer_matrix
    from dreamgym.run.process import tune_process

    tune_process()
    result = transfer_matrix(args.run_dirs, policy=args.policy, games=args.games)
    print(json.dumps(result) if args.json else table(result))


def _show(args: argparse.Namespace) -> None:
    from dreamgym.commands.inspection.show import show
    from dreamgym.run.directory import Run
    from dreamgym.run.display import output_console
    from dreamgym.run.process import tune_process

    one_step = args.episode or args.step or args.all or args.html is not None
    if args.wrong is not None and (one_step or args.why or args.update is not None):
        raise ValueError("--wrong chooses the steps itself: drop the other options")
    if args.wrong is not None and args.wrong < 0:
        raise ValueError(f"--wrong must be >= 0, got {args.wrong}")
    if args.why and (args.update is not None or args.all or args.html is not None):
        raise ValueError("--why explains one action: drop --update, --all and --html")
    if args.update is not None and (args.all or args.html is not None or args.step):
        raise ValueError(
            "--update prints rollouts of training: drop --all, --html and --step"
        )
    if args.policy and args.update is None and not args.why:
        raise ValueError("--policy has no effect without --update or --why")
    run = Run.open(args.run_dir)
    if args.update is not None:
        from dreamgym.commands.inspection.rollouts import show_rollouts

        show_rollouts(
            run,
            output_console(),
            args.update,
            policy=args.policy or "dream",
            episode=args.episode,
        )
        return
    if args.why:
        from dreamgym.commands.audits.attribution import (
            explain_action,
            print_explanation,
        )

        tune_process()
        explained = explain_action(
            run, policy=args.policy or "", episode=args.episode, step=args.step
        )
        print_explanation(explained, output_console())
        return
    tune_process()
    if args.wrong is not None:
        from dreamgym.commands.inspection.wrong_steps import show_wrong_steps

        show_wrong_steps(run, output_console(), args.wrong)
        return
    show(
        run,
        output_console(),
        episode=args.episode,
        step=args.step,
        whole=args.all,
        html=args.html,
    )
    if args.html is not None:
        print(f"page: {args.html}")


def _doctor(args: argparse.Namespace) -> None:
    from dreamgym.commands.inspection.doctor import explain
    from dreamgym.run.directory import Run

    print(explain(Run.open(args.run_dir)))


def _report(args: argparse.Namespace) -> None:
    from dreamgym.commands.inspection.report import write_report
    from dreamgym.commands.results import read_results
    from dreamgym.evaluation import report
    from dreamgym.run.directory import Run
    from dreamgym.run.display import output_console
    from dreamgym.run.process import tune_process
    from worldmodel.data.json_reading import RecordError

    run = Run.open(args.run_dir)
    results = read_results(run)
    try:
        report.print_table(results, output_console())
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        path = run.path("results.json")
        raise RecordError(f"{path}: no results of a run ({error!r})") from None
    tune_process()
    with run:  # the table is for all to read, also while another command runs
        print(f"report: {write_report(run, results)}")
