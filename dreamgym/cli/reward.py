"""The commands `judge`, `prefer`, `reward-model` and `dpo`: outcomes and pairs."""

import argparse
import contextlib
import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dreamgym.cli.options import add_server, change_settings, server_of
from dreamgym.run.terminal import short_path

_ABOUT = """\
Fit a reward model to which of two attempts at a task is better: successful over
failed episodes of RUN, or the pairs of a file (dreamgym.preferences/1, see
docs/concepts/rewards.md). It begins at RUN's experience model and is written to
RUN/reward_model/. Another run takes its rewards from it:
  dreamgym quickstart --run-dir NEW \\
    --set 'train.reward.sources=["rule", "reward_model"]' \\
    --set train.reward.reward_model.model=RUN/reward_model
and without the last setting it fits its own, to its own episodes.
Prints how many pairs of unseen tasks it ranks right, with an interval, and the same for
won attempts over flawed copies of them, by kind of the flaw.
With --objective progress it is fitted to the outcomes of RUN's episodes instead: each
step has a share, the shares of an episode sum to its outcome, and a step is paid its
share. Prints how well the sums predict the outcomes of unseen tasks.
Interrupted? The same command goes on."""


_DPO_ABOUT = """\
Train a policy from which of two attempts at a task is better, and from nothing else:
no reward model, no real step (DPO, arXiv:2305.18290). --pairs names them:

  FILE        a file (dreamgym.preferences/1, as `dreamgym prefer` writes it)
  collected   won over lost episodes of the same task that RUN collected
  planned     actions of one state whose values differ in a tree search in RUN's dream
              (step-level preferences, as in Agent Q); written to RUN/dpo_pairs.jsonl

Training begins at a policy of RUN, which is the reference; the result is
RUN/policies/dpo, and plays the test games. Prints how many pairs of unseen tasks it
ranks right, with an interval. Interrupted? The same command goes on. With other pairs
or settings it trains anew, and takes the place of the policy before. A whole run has
this policy with
  dreamgym quickstart --set dpo.pairs=collected"""

_PREFER_ABOUT = """\
Compare attempts at the same tasks, two at a time, and write a file of pairs, of which
one is better (dreamgym.preferences/1). A reward model is fitted to it, or a policy
trained from it:
  dreamgym reward-model RUN --pairs PAIRS
  dreamgym dpo RUN --pairs PAIRS

  --by person   you read both attempts in the terminal, and choose
  --by judge    a large model behind --server reads them in both orders; where it
                prefers another one when the order is turned, the pair is left out

With one file both attempts are of it; with two, the first attempt is of the first file,
and the win rate of the first over the second is printed as well. Files of episodes are
RUN/episodes.jsonl, RUN/dev_games/POLICY.jsonl, RUN/test/POLICY.jsonl, or your own.
Interrupted? The same command goes on with the pairs that PAIRS does not have; what is
printed at the end is of these. Pairs that were left out are asked about again."""

_EXAMPLES = """\
examples:
  dreamgym prefer runs/a/episodes.jsonl --to pairs.jsonl
  dreamgym prefer runs/a/episodes.jsonl --to pairs.jsonl --kind which,how
  dreamgym prefer runs/a/dev_games/warmstart.jsonl runs/a/dev_games/bc.jsonl \\
      --to pairs.jsonl --by judge --server http://127.0.0.1:8080/v1
"""


_JUDGE_ABOUT = """\
Let a large model behind --server say which episodes of FILE were won, for environments
that do not say it themselves. Episodes with a score keep it; some of them are judged as
well, and how often the judge finds what is known is printed. OUT holds
all of FILE, the others with the `success` that the judge finds, and `dreamgym
quickstart --episodes OUT` learns from it: imitation, the dream's ends and rewards, and
what is trained in it.
Interrupted? The same command goes on."""

_JUDGE_EXAMPLES = """\
examples:
  dreamgym judge traces.jsonl --to judged.jsonl --server http://127.0.0.1:8080/v1
  dreamgym judge runs/a/dev.jsonl --to /tmp/x.jsonl --audit 200 --server URL
                                  how good is the judge, where outcomes are known?
"""


def add(commands: Any) -> None:
    """Add the subcommands and the functions they run."""
    _add_judge(commands)
    _add_prefer(commands)
    command = commands.add_parser(
        "reward-model",
        help="Fit a run's reward model to pairs of attempts",
        description=_ABOUT,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    option = command.add_argument
    option("run_dir", type=Path, metavar="RUN", help="a run directory, pretrained")
    option("--pairs", type=Path, metavar="FILE", help="pairs (JSONL, gzip or not)")
    option("--steps", type=int, metavar="N", help="updates (default: the run's)")
    option(
        "--objective",
        choices=["preference", "progress"],
        help="fit pairs, or the outcomes of single episodes (default: the run's)",
    )
    command.set_defaults(body=_fit)
    _add_dpo(commands)


def _add_dpo(commands: Any) -> None:
    command = commands.add_parser(
        "dpo",
        help="Train a policy from pairs of attempts alone",
        description=_DPO_ABOUT,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    option = command.add_argument
    option("run_dir", type=Path, metavar="RUN", help="a run directory, warm-started")
    option(
        "--pairs",
        metavar="FILE",
        help='pairs (JSONL, gzip or not), "collected" or "planned" (default: dpo.pairs '
        "of RUN)",
    )
    option(
        "--start",
        metavar="POLICY",
        help="where training begins: untrained, bc or warmstart (default: the run's)",
    )
    option(
        "--set",
        dest="settings",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="another setting of dpo: --set dpo.updates=50; --dpo.updates 50 says the "
        "same, and `dreamgym settings dpo` lists them",
    )
    command.set_defaults(body=_dpo, algorithm=None)


def _dpo(args: argparse.Namespace) -> None:
    from dreamgym.build import rewards
    from dreamgym.commands import results as run_results
    from dreamgym.commands.inspection import report as run_report
    from dreamgym.evaluation import report
    from dreamgym.rewards.preferences import read_preferences
    from dreamgym.run.directory import Run
    from dreamgym.run.display import output_console
    from dreamgym.run.process import tune_process
    from dreamgym.run.runner import run_stages, without_outdated
    from dreamgym.stages.table import STAGES

    with Run.open(args.run_dir) as run:
        run.config = _dpo_settings(run.config, args)
        if run.config.dpo.file:
            read_preferences(run.config.dpo.file)  # before anything is loaded
        tune_process()
        names = ["dpo", "evaluate/dpo"]
        with without_outdated(run, STAGES, names):
            run_stages(run, STAGES, names)
        if run.path("results.json").is_file():  # the table of a finished run
            results = run_results.write_results(run)
            run_report.write_report(run, results)
            report.print_table(results, output_console())
        numbers = run.numbers("dpo")
        print(f"dpo: {rewards.summary(numbers)}; margin {numbers['margin']:+.3f}")
        print(f"policy: {short_path(run.path('policies/dpo'))}")


def _dpo_settings(config: Any, args: argparse.Namespace) -> Any:
    """Return the settings of a run with those of the options, all of them of dpo.

    Raises:
      ValueError: an option is of another group, has no effect, or there are no pairs.
    """
    named = {"pairs": args.pairs, "start": args.start}
    named = {k: v for k, v in named.items() if v is not None}
    dpo = dataclasses.replace(config.dpo, **named)
    changed = change_settings(dataclasses.replace(config, dpo=dpo), args)
    if dataclasses.replace(changed, dpo=config.dpo) != config:
        raise ValueError(
            "dreamgym dpo changes settings of the group dpo alone; the others are "
            f"those of {args.run_dir}"
        )
    if not changed.dpo.pairs:
        raise ValueError(
            f"{args.run_dir} names no pairs to train from: give --pairs FILE, or "
            "--pairs collected for its own won and lost episodes, or --pairs planned "
            "for those of a search in its dream"
        )
    if problem := changed.dpo.dead():
        raise ValueError(f"dpo.{problem}")
    return changed


def _fit(args: argparse.Namespace) -> None:
    from dreamgym.build import rewards
    from dreamgym.run.directory import Run
    from dreamgym.run.process import tune_process

    changes = {
        "steps": args.steps,
        "preferences": args.pairs and str(args.pairs),
        "objective": args.objective,
    }
    changes = {k: v for k, v in changes.items() if v is not None}
    with Run.open(args.run_dir) as run:
        config = dataclasses.replace(run.config.reward_model, **changes)
        tune_process()
        earlier = run.numbers(rewards.STAGE)
        numbers = rewards.fit(run, config)
        if "components" in earlier:  # the classifier of tool use stays as it is
            numbers = {**numbers, "components": earlier["components"]}
        run.mark(rewards.STAGE, numbers)
    for line in rewards.report_lines(numbers):
        print(line)
    print(f"model: {args.run_dir / rewards.DIRECTORY}")


def _add_judge(commands: Any) -> None:
    command = commands.add_parser(
        "judge",
        help="Let a judge say which episodes were won, where nobody scored them",
        description=_JUDGE_ABOUT,
        epilog=_JUDGE_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    option = command.add_argument
    option("file", type=Path, metavar="FILE", help="episodes (JSONL, gzip or not)")
    option("--to", type=Path, required=True, metavar="OUT", help="what to write")
    option(
        "--audit",
        type=int,
        default=100,
        metavar="N",
        help="episodes with a known outcome that are judged as well, at most (100)",
    )
    option("--seed", type=int, default=0, help="of the audit's draw and requests (0)")
    add_server(
        command,
        "the judge",
        "Any OpenAI-compatible server. OUT.chat_cache.sqlite keeps its answers.",
    )
    command.set_defaults(body=_judge)


def _judge(args: argparse.Namespace) -> None:
    from dreamgym.commands import judge
    from dreamgym.rewards.outcome_judge import OutcomeJudge
    from dreamgym.run.display import progress_bar
    from worldmodel.data.records import read_episodes

    if args.audit < 0:
        raise ValueError(f"--audit must be >= 0, got {args.audit}")
    server = server_of(args)
    if server is None:
        raise ValueError("judge needs --server URL")
    episodes = read_episodes(args.file)
    total = sum(map(judge.needs_verdict, episodes))
    total += min(args.audit, sum(e.success is not None for e in episodes))
    with (
        _judge_client(args.to, server) as (client, config),
        progress_bar(total, f"judge {args.file.name}", "episode") as show,
    ):
        result = judge.judge_outcomes(
            episodes,
            args.to,
            OutcomeJudge(client, config, seed=args.seed),
            audit=args.audit,
            seed=args.seed,
            progress=lambda n: show(n, {}),
        )
    print(judge.summary(result))
    print(f"episodes: {args.to}")


@contextlib.contextmanager
def _judge_client(out: Path, server: Any) -> Iterator[tuple[Any, Any]]:
    """Yield a client with the temperature of judges, and the settings of judges.

    The cache of its answers lies beside the file that is written.
    """
    from dreamgym.rewards.config import JudgeConfig
    from worldmodel.chat.client import ChatClient

    config = JudgeConfig()
    chat = dataclasses.replace(server.chat, temperature=config.chat.temperature)
    client = ChatClient(chat, out.with_name(f"{out.name}.chat_cache.sqlite"))
    with contextlib.closing(client):
        yield client, config


def _add_prefer(commands: Any) -> None:
    command = commands.add_parser(
        "prefer",
        help="Ask a person or a judge which of two attempts is better",
        description=_PREFER_ABOUT,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    option = command.add_argument
    option("file", type=Path, metavar="FILE", help="episodes (JSONL, gzip or not)")
    option("other", type=Path, nargs="?", metavar="OTHER", help="episodes as well")
    option("--to", type=Path, required=True, metavar="PAIRS", help="what to write")
    option("--by", default="person", choices=["person", "judge"], help="who chooses")
    option(
        "--max-pairs", type=int, default=1, metavar="N", help="of a task, at most (1)"
    )
    option(
        "--limit", type=int, metavar="N", help="pairs in all, at most (default: all)"
    )
    option(
        "--kind",
        metavar="KINDS",
        help="pairs that first differ in when a tool is called, which one, how, or in "
        "an action's text, separated by commas: when,which,how,text (default: all)",
    )
    option("--seed", type=int, default=0, help="of the order of pairs and requests (0)")
    add_server(
        command,
        "--by judge",
        "Any OpenAI-compatible server. PAIRS.chat_cache.sqlite keeps its answers.",
    )
    command.set_defaults(body=_prefer)


def _prefer(args: argparse.Namespace) -> None:
    import numpy as np
    from rich.console import Console

    from dreamgym.commands import prefer
    from dreamgym.rewards.comparison import KINDS, pair_attempts
    from worldmodel.data.records import read_episodes

    for name in ("max_pairs", "limit"):
        value = getattr(args, name)
        if value is not None and value < 1:
            raise ValueError(f"--{name.replace('_', '-')} must be >= 1, got {value}")
    server = server_of(args)
    if (server is None) != (args.by == "person"):
        needs = "needs --server URL" if server is None else "takes no --server"
        raise ValueError(f"--by {args.by} {needs}")
    kinds = KINDS if args.kind is None else tuple(args.kind.split(","))
    if wrong := [k for k in kinds if k not in KINDS]:
        raise ValueError(f"--kind must be among {KINDS}, got {wrong[0]!r}")
    episodes = read_episodes(args.file)
    others = None if args.other is None else read_episodes(args.other)
    pairs = pair_attempts(episodes, others, max_pairs=args.max_pairs, kinds=kinds)
    if not pairs:
        where = args.file if others is None else f"{args.file} and {args.other}"
        how = "" if args.kind is None else f" first in {' or '.join(kinds)}"
        raise ValueError(f"{where}: no two attempts at the same task differ{how}")
    order = np.random.default_rng(args.seed).permutation(len(pairs))
    left = prefer.open_pairs([pairs[i] for i in order], args.to)[: args.limit]
    if server is None:
        console = Console(highlight=False)
        result = prefer.ask_person(left, args.to, console, _choice)
    else:
        result = _ask_judge(args, server, left)
    names = None if args.other is None else (_name(args.file), _name(args.other))
    print(prefer.summary(result, names=names))
    if args.to.is_file():
        print(f"pairs: {args.to}")


def _ask_judge(args: argparse.Namespace, server: Any, pairs: list[Any]) -> Any:
    from dreamgym.commands import prefer
    from dreamgym.rewards.comparison import PairJudge
    from dreamgym.run.display import progress_bar

    with (
        _judge_client(args.to, server) as (client, config),
        progress_bar(len(pairs), f"prefer {args.file.name}", "pair") as show,
    ):
        judge = PairJudge(client, config, seed=args.seed)
        return prefer.ask_judge(pairs, args.to, judge, lambda n: show(n, {}))


def _name(file: Path) -> str:
    """Return a file with its folder: two runs have files of the same name."""
    return "/".join(file.parts[-2:])


def _choice() -> str | None:
    try:
        return input("better (a, b, e, q): ")
    except EOFError:
        return None
