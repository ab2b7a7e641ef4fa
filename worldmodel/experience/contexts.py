"""The context of a query: what a fitted experience model reads before it answers.

query, demonstrations, settings -> ids, and the tokenizer with the references that stand
in them. Examples and questions are both written here, so that a model is asked as it
was taught.
"""

from collections.abc import Sequence
from typing import NamedTuple

from worldmodel.data.records import State, Transition
from worldmodel.experience.base import Query
from worldmodel.experience.config import ExperienceConfig
from worldmodel.text import prompts
from worldmodel.text.references import AnyTokenizer
from worldmodel.text.tokenizer import TextTokenizer


class Context(NamedTuple):
    """The ids of a query, and the tokenizer with the references that stand in them."""

    tokenizer: AnyTokenizer
    ids: list[int]


def query_context(
    tok: TextTokenizer,
    config: ExperienceConfig,
    query: Query,
    demos: Sequence[Transition],
    past_states: Sequence[State] | None = None,
) -> Context:
    """Return the context of a query, up to the control token of the reasoning.

    Args:
      demos: similar transitions, the most similar one last.
      past_states: the states of `query.past`, where the model reads them.
    """
    past = prompts.last_actions(query.past, config.history)
    if past_states is not None:
        past_states = past_states[len(past_states) - len(past) :]
    query_tokenizer = prompts.query_tokenizer(
        tok,
        query.task,
        past,
        demos,
        query.state,
        query.action,
        past_states=past_states,
        demonstration_states=config.demonstration_states,
    )
    ids = prompts.query_ids(
        query_tokenizer,
        query.task,
        past,
        demos,
        query.state,
        query.action,
        history=config.history,
        context_budget=config.context_budget,
        past_states=past_states,
        demonstration_states=config.demonstration_states,
    )
    return Context(query_tokenizer, ids)
