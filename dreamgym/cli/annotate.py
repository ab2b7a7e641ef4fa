"""The command `annotate`, which writes reasoning traces into episodes."""

import argparse
import dataclasses
import sys
from pathlib import Path
from typing import Any

from dreamgym.cli.options import MESH_HELP, add_server, server_of

_ABOUT = """\
Write into episodes why each next state follows: the reasoning traces that
an experience model learns to write before it answers. Traces that are there
already are kept. `dreamgym quickstart --episodes OUT` reads the result.

  --by rule      which lines change, for any states: no model, no cost. It is
                 what a run does by itself with episodes that have no traces
  --by teacher   a large model behind --server sees each episode whole, with
                 its outcome, and explains every step
  --by own       the experience model of --run is asked for each transition;
                 its own reasoning is kept where the next state, the reward
                 and the end it led to are right (rejection sampling)

Where teacher and model fail the rule's trace stands, and is counted.
Interrupted? The same command goes on; no answer is paid for twice."""

_EXAMPLES = """\
examples:
  dreamgym annotate mine.jsonl --to traced.jsonl.gz --by rule
  dreamgym annotate mine.jsonl --to traced.jsonl --by own --run runs/default-0
  dreamgym annotate mine.jsonl --to traced.jsonl --by teacher \\
      --server https://api.example.com/v1 --server-model large \\
      --server-key-env EXAMPLE_KEY --price-in 0.5 --price-out 1.5
"""
_WAYS = {
    "rule": (),
    "teacher": (
        "server",
        "server_model",
        "server_key_env",
        "max_tokens",
        "price_in",
        "price_out",
    ),
    "own": ("run", "samples", "mesh"),
}
_NEEDS = {"teacher": "--server URL", "own": "--run RUN"}
_SAMPLES, _MAX_TOKENS = 4, 4096


def add(commands: Any) -> None:
    """Add the subcommand and the function it runs."""
    command = commands.add_parser(
        "annotate",
        help="Write reasoning traces into episodes",
        description=_ABOUT,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    option = command.add_argument
    option("file", type=Path, metavar="FILE", help="episodes (JSONL, gzip or not)")
    option(
        "--to",
        type=Path,
        required=True,
        metavar="OUT",
        help="what to write: .jsonl, or .jsonl.gz; not to be there yet",
    )
    option("--by", required=True, choices=list(_WAYS), help="who writes the traces")
    group = command.add_argument_group("--by own").add_argument
    group("--run", type=Path, metavar="RUN", help="a run directory, pretrained")
    group(
        "--samples",
        type=int,
        metavar="N",
        help=f"replies to a transition at most (default: {_SAMPLES})",
    )
    group("--mesh", help=MESH_HELP)
    group = add_server(
        command,
        "--by teacher",
        "Any OpenAI-compatible server. Its answers are kept in OUT.chat_cache.sqlite.",
    ).add_argument
    group(
        "--max-tokens",
        type=int,
        metavar="N",
        help=f"of an answer (default: {_MAX_TOKENS})",
    )
    for name, what in (("in", "read"), ("out", "written")):
        group(
            f"--price-{name}",
            type=float,
            metavar="PRICE",
            help=f"of a million tokens {what}, to tell the cost",
        )
    command.set_defaults(body=_annotate)


def _check(args: argparse.Namespace) -> None:
    """Raise ValueError if an option is missing or belongs to another annotator."""
    for way, names in _WAYS.items():
        options = [n for n in names if getattr(args, n) is not None]
        if way == args.by:
            if names and names[0] not in options:
                raise ValueError(f"--by {way} needs {_NEEDS[way]}")
        elif options:
            name = options[0].replace("_", "-")
            raise ValueError(f"--{name} is for --by {way}, not --by {args.by}")


def _annotate(args: argparse.Namespace) -> None:
    from dreamgym.commands import annotate
    from worldmodel.chat.protocol import ChatError
    from worldmodel.reasoning import RuleAnnotator

    _check(args)
    chat, run, settings = None, None, {"by": args.by}
    if args.by == "teacher":
        chat = _chat(args)
        settings |= {"server": chat.base_url, "model": chat.model}
    elif args.by == "own":
        run, samples = _run(args), _SAMPLES if args.samples is None else args.samples
        settings |= {"run": run.config.digest(), "samples": samples}
    survey, client = annotate.survey(args.file, args.to), None
    if chat is not None:
        annotator = annotate.teacher(chat, args.to)
        client = annotator.client
    elif run is not None:
        annotator = annotate.model_annotator(run, settings["samples"])
    else:
        annotator = RuleAnnotator()
    try:
        report = annotate.annotate(args.file, args.to, annotator, settings, survey)
        print(_report_text(args, survey, report))
        if client is not None:
            print(_usage(client))
    except (ChatError, KeyboardInterrupt):
        if client is not None:  # what is paid for is kept, and told
            print(_usage(client), file=sys.stderr)
        raise
    finally:
        if client is not None:
            client.close()


def _chat(args: argparse.Namespace) -> Any:
    """Return the server's ChatConfig, with long timeouts: answers are not streamed."""
    from worldmodel.chat.client import ChatClient

    server = server_of(args)
    if server is None:
        raise ValueError("--by teacher needs --server URL")
    more = {
        name: value
        for name in ("price_in", "price_out")
        if (value := getattr(args, name)) is not None
    }
    max_tokens = _MAX_TOKENS if args.max_tokens is None else args.max_tokens
    chat = dataclasses.replace(
        server.chat, max_tokens=max_tokens, read_timeout=600.0, deadline=1800.0, **more
    )
    ChatClient(chat)  # a key that is not there is told before a long file is read
    return chat


def _run(args: argparse.Namespace) -> Any:
    from dreamgym.run.directory import Run
    from dreamgym.run.process import tune_process
    from worldmodel.backbone.mesh import make_mesh, parse_mesh

    tune_process()
    run = Run.open(args.run, make_mesh(parse_mesh(args.mesh)) if args.mesh else None)
    run.require("pretrain")
    return run


def _usage(client: Any) -> str:
    u, priced = client.usage, client.config.price_in or client.config.price_out
    cost = f", cost {u.cost:.4g}" if priced else ""
    return (
        f"asked this time: {u.requests - u.cached:,} requests sent, {u.cached:,} known "
        f"before, {u.retries:,} tried again; {u.prompt_tokens:,} tokens read, "
        f"{u.completion_tokens:,} written{cost}"
    )


def _report_text(args: argparse.Namespace, survey: Any, report: Any) -> str:
    counts = report.counts
    had = survey.transitions - survey.missing
    out = [
        f"{args.to}: {survey.episodes:,} episodes, {survey.transitions:,} transitions; "
        f"{had:,} had a trace"
    ]
    if args.by == "rule":
        out.append(f"{counts.get('written', 0):,} traces by rule")
    elif args.by == "teacher":
        out.append(
            f"episodes: {counts.get('annotated', 0):,} by the teacher, "
            f"{counts.get('fallbacks', 0):,} by rule"
        )
        out += [f"  {x}" for x in report.problems]
    else:
        accepted, fallbacks = counts.get("kept", 0), counts.get("fallbacks", 0)
        samples, tries = counts.get("samples", 0), counts.get("tries", 0)
        out += [
            f"traces: {accepted:,} of the model's own, {fallbacks:,} by rule: no reply "
            "was right"
            f" ({_share(accepted, accepted + fallbacks)} kept)",
            f"replies: {samples:,}, {_share(accepted, samples)} accepted; "
            f"{tries / max(accepted, 1):.2f} for a trace that was kept",
        ]
    return "\n".join(out)


def _share(part: int, whole: int) -> str:
    return f"{100 * part / max(whole, 1):.1f} %"
