"""Copy accuracy: are identifiers and numbers of the context reproduced exactly?

A model that cannot copy what stands in its context is of no use for tools, web pages or
files, however well it knows the words that recur.
"""

from collections.abc import Iterable, Sequence
from typing import Any

from worldmodel.data.rates import Rate
from worldmodel.data.records import State
from worldmodel.experience.base import Prediction
from worldmodel.fidelity.cases import Case
from worldmodel.text.identifiers import Shares, copied


def copy_accuracy(
    cases: Sequence[Case], answers: Sequence[Prediction], shares: Shares
) -> dict[str, Any]:
    """Return the shares of identifiers and numbers of the context that are reproduced.

    `state` counts those of the lines that the next state has and the state has not,
    because unchanged lines are not written; `reasoning` those of the real reasoning
    trace, where there is one. `state_unseen` and `reasoning_unseen` count only those
    that no training episode held. What is to be copied stands in the instruction, the
    past actions, the state or the action (text/identifiers.py, which also defines
    `shares`, those of the training episodes). An answer with an error reproduces none.
    """
    rates = {
        name: Rate()
        for name in ("state", "state_unseen", "reasoning", "reasoning_unseen")
    }
    training_words = {word for words in shares.values() for word in words}
    for case, answer in zip(cases, answers, strict=True):
        q, t = case.query, case.transition
        context = (q.task.instruction, *q.past, *q.state, q.action)
        parts = (
            (
                "state",
                _new_lines(q.state, t.next_state),
                _new_lines(q.state, answer.next_state),
            ),
            ("reasoning", [t.reasoning or ""], [answer.reasoning]),
        )
        for name, real, predicted in parts:
            expected, hits = copied(
                context,
                real,
                predicted if answer.error is None else (),
                shares.get(q.task.family, {}),
            )
            for word, number in expected.items():
                for i in range(number):
                    rates[name].add(i < hits[word], case.weight)
                    if word not in training_words:
                        rates[f"{name}_unseen"].add(i < hits[word], case.weight)
    return {name: rate.json() for name, rate in rates.items()}


def _new_lines(state: State, next_state: State) -> Iterable[str]:
    """Return the lines of the next state that the state does not have."""
    return [line for line in next_state if line not in state]
