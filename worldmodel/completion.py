"""Complete prompts and score lines with a decoder: raw text, no chat template, no BOS.

prompts -> ids -> streams -> ids, log-probabilities and text, until a stop token, a stop
string or a limit. Every step is plain, so that the result can be compared with another
engine token by token.
"""

import functools
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jaxtyping import Array, Float, Int

from worldmodel.backbone.grammar import Grammar
from worldmodel.backbone.mesh import place_rows, to_host
from worldmodel.backbone.model import Model, apply_decoder
from worldmodel.backbone.streams import Streams, bucket
from worldmodel.fitting.losses import read_logp
from worldmodel.text.tokenizer import Vocabulary

CHUNK = 16
"""Tokens that are sampled between two searches for a stop string."""
ROWS, SCORE_BUCKET = 8, 64


class Completion(NamedTuple):
    """The continuation of one prompt.

    `finish` is "stop" (`ids` ends with a stop token, which `text` leaves out), "string"
    (`ids` ends with the token that completed a stop string, `text` ends before the
    string) or "length". `logp` holds natural log-probabilities under the distribution
    that was sampled from.
    """

    prompt_ids: list[int]
    ids: list[int]
    logp: list[float]
    text: str
    finish: str


def complete(
    model: Model,
    vocabulary: Vocabulary,
    prompts: Sequence[Sequence[int]],
    grammar: Grammar,
    keys: Array,
    *,
    max_tokens: int,
    stop_strings: Sequence[str] = (),
) -> list[Completion]:
    """Complete each prompt by at most `max_tokens` tokens, with one PRNG key a prompt.

    Args:
      vocabulary: of the model's directory (worldmodel.text.tokenizer.Vocabulary.load).
      grammar: what may be sampled: anything by `free_grammar(vocab_size)` of
        worldmodel.backbone.grammar.

    Raises:
      ValueError: a prompt is empty, or together with `max_tokens` exceeds the positions
        of the model, or has ids outside its vocabulary; or there is not one key for
        each prompt.
    """
    if len(keys) != len(prompts):
        raise ValueError(f"{len(prompts)} prompts need a key each, got {len(keys)}")
    for number, prompt in enumerate(prompts, start=1):
        _check_ids(f"prompt {number}", prompt, model)
    longest = max((len(p) for p in prompts), default=0)
    max_positions = model.config.max_position_embeddings
    if not all(len(p) for p in prompts):
        raise ValueError("a prompt needs at least one token: there is no BOS")
    if longest + max_tokens > max_positions:
        raise ValueError(
            f"a prompt of {longest} tokens and {max_tokens} more exceed the "
            f"{max_positions} positions of this model"
        )
    if any(not s for s in stop_strings):
        raise ValueError("a stop string must not be empty")
    columns = min(bucket(longest), max_positions)
    step = CHUNK if stop_strings else max_tokens
    room = columns + -(-max_tokens // step) * step
    streams = Streams(model, len(prompts), room)
    streams.append(prompts, columns=columns)
    ids: list[list[int]] = [[] for _ in prompts]
    logp: list[list[float]] = [[] for _ in prompts]
    finish = ["length"] * len(prompts)
    active = np.ones(len(prompts), bool)
    for start in range(0, max_tokens, step):
        sampled = streams.sample(
            grammar,
            keys,
            max_tokens=min(step, max_tokens - start),
            active=active,
            resume=start > 0,
        )
        for b in np.flatnonzero(active):
            n = int(sampled.length[b])
            ids[b] += sampled.ids[b, :n].tolist()
            logp[b] += sampled.logp[b, :n].tolist()
            if not streams.live[b]:
                finish[b], active[b] = "stop", False
            length = _first_stop(vocabulary, ids[b], stop_strings)
            if length is not None:
                ids[b], logp[b] = ids[b][:length], logp[b][:length]
                finish[b], active[b] = "string", False
        if not active.any():
            break
    return [
        Completion(list(p), i, g, _text(vocabulary, p, i, f, stop_strings), f)
        for p, i, g, f in zip(prompts, ids, logp, finish, strict=True)
    ]


def _first_stop(
    vocabulary: Vocabulary, ids: Sequence[int], strings: Sequence[str]
) -> int | None:
    """Return the number of tokens up to the end of the first stop string, or None."""
    if not strings or not any(
        s in vocabulary.decode(ids, controls=True) for s in strings
    ):
        return None
    low, high = 1, len(ids)
    while low < high:  # the shortest prefix with a stop string in its text
        middle = (low + high) // 2
        text = vocabulary.decode(ids[:middle], controls=True)
        low, high = (
            (low, middle) if any(s in text for s in strings) else (middle + 1, high)
        )
    return low


def _text(
    vocabulary: Vocabulary,
    prompt: Sequence[int],
    ids: Sequence[int],
    finish: str,
    strings: Sequence[str],
) -> str:
    """Return the text of the sampled ids without the stop token or stop string."""
    ids = ids[:-1] if finish == "stop" else ids
    # Decoded with the prompt, because some decoders drop a text's first space.
    before = vocabulary.decode(prompt, controls=True)
    text = vocabulary.decode([*prompt, *ids], controls=True)
    is_prefix = text.startswith(before)
    text = text[len(before) :] if is_prefix else vocabulary.decode(ids, controls=True)
    if finish == "string":
        text = text[: min(text.find(s) for s in strings if s in text)]
    return text


class Score(NamedTuple):
    """The ids of a line and the log-probability of each id given those before it.

    The first id has no context: `logp[0]` is 0.
    """

    ids: list[int]
    logp: list[float]


def score(model: Model, texts: Iterable[Sequence[int]]) -> Iterator[Score]:
    """Yield the Score of each text of ids, in order, ROWS texts at a time.

    Raises:
      ValueError: a text is longer than the positions of the model, or has ids outside
        its vocabulary.
    """
    batch: list[list[int]] = []
    for number, ids in enumerate(texts, start=1):
        if len(ids) > model.config.max_position_embeddings:
            raise ValueError(
                f"line {number}: {len(ids)} tokens exceed the "
                f"{model.config.max_position_embeddings} positions of this model"
            )
        _check_ids(f"line {number}", ids, model)
        batch.append(list(ids))
        if len(batch) == ROWS:
            yield from _score_rows(model, batch)
            batch = []
    if batch:
        yield from _score_rows(model, batch)


def _check_ids(what: str, ids: Sequence[int], model: Model) -> None:
    """Raise a ValueError where an id is none of the model's vocabulary."""
    size = model.config.vocab_size
    wrong = [i for i in ids if not 0 <= i < size]
    if wrong:
        raise ValueError(f"{what}: ids must be 0 to {size - 1}, got {wrong[:3]}")


def _score_rows(model: Model, rows: Sequence[list[int]]) -> Iterator[Score]:
    width = bucket(max(map(len, rows)), SCORE_BUCKET)
    ids = np.zeros((ROWS, width), np.int32)
    real = np.zeros((ROWS, width), np.int32)
    for row, mask, row_ids in zip(ids, real, rows, strict=False):
        row[: len(row_ids)], mask[: len(row_ids)] = row_ids, 1
    mesh = model.mesh
    placed = (ids, real) if mesh is None else place_rows((ids, real), mesh)
    logp = to_host(_logp(model.definition, model.params, *placed))
    for row_ids, line in zip(rows, logp, strict=False):
        yield Score(row_ids, line[: len(row_ids)].tolist())


@functools.partial(jax.jit, static_argnums=0)
def _logp(
    definition: nnx.GraphDef,
    params: nnx.State,
    ids: Int[Array, "B T"],
    real: Int[Array, "B T"],
) -> Float[Array, "B T"]:
    positions = jnp.broadcast_to(jnp.arange(ids.shape[1])[None], ids.shape)
    return read_logp(apply_decoder(definition, params, ids, positions, real), ids)
