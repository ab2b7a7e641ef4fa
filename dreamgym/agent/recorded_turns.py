"""A recorded action as a turn of a policy: its tokens, and which of them are choices.

situation, action, thought -> the ids that the policy would have written -> an example
with the mask and the token types of a turn that was sampled (Turn.example)
"""

from collections import Counter
from collections.abc import Sequence

from dreamgym.agent.policy import Policy, Situation, Turn
from worldmodel.backbone.grammar import Grammar
from worldmodel.data.records import Task, Transition
from worldmodel.fitting.batches import Example
from worldmodel.text import prompts

UNWRITABLE = "unwritable_action"
"""Why an attempt is left out: an action that the policy cannot write, because it is
empty, longer than the policy's limit, or has text that the tokenizer does not hold."""
TOO_LONG = "too_long"
"""Why an attempt is left out: what is read before an action does not fit a row."""


def recorded_turn(
    policy: Policy,
    grammar: Grammar,
    situation: Situation,
    action: str,
    thought: str | None = None,
) -> Example | None:
    """Return a given action as an example of a turn, in the context of the policy.

    Its mask is true for the tokens that would be choices if the policy wrote it, and
    `token_type` names the mask of allowed tokens, as in a turn that was sampled. A
    policy that thinks writes the thought before it, or an empty one; for others the
    thought does not count. None where the policy cannot write the action.

    Args:
      grammar: that of the policy's turns (Policy.grammar); compiled once, used often.
    """
    thinks = policy.config.thought_tokens > 0
    context = policy.context(*situation[:6])
    tokenizer = policy.tokenizer_in(*situation[:6])
    given = thought if thinks else None
    turn = prompts.turn_ids(tokenizer, action, given, thinks=thinks)
    parsed = grammar.parse(turn)
    text = prompts.parse_turn(tokenizer, turn)[0]
    if parsed is None or not text or text != action.strip():
        return None
    sampled, phases, first = parsed
    none = [0] * len(context)
    return Example(
        ids=[*context, *turn],
        mask=[False] * len(context) + sampled,
        token_type=none + [2 * p + f for p, f in zip(phases, first, strict=True)],
    )


def given_turn(
    policy: Policy, grammar: Grammar, situation: Situation, action: str
) -> Turn | None:
    """Return a given action as a turn, as if the policy had sampled it.

    Its log-probabilities are 0 until they are computed. None where the policy cannot
    write the action. See recorded_turn.
    """
    example = recorded_turn(policy, grammar, situation, action)
    if example is None:
        return None
    size = len(policy.context(*situation[:6]))
    sampled = tuple(map(bool, example.mask[size:]))
    part = tuple(int(x) for x in example.token_type[size:])
    ids = tuple(example.ids[size:])
    logp = (0.0,) * len(ids)
    return Turn(
        tuple(example.ids[:size]),
        ids,
        logp,
        sampled,
        part,
        action,
        None,
        policy.strict is not None,
        given=True,
    )


def recorded_attempt(
    policy: Policy,
    grammar: Grammar,
    task: Task,
    steps: Sequence[Transition],
    *,
    max_tokens: int,
    counts: Counter[str],
) -> list[Example] | None:
    """Return an example for each step of an attempt (recorded_turn).

    The past of its first step is empty, also where it is a part of an episode. None
    where it cannot be learnt from; `counts` then has one more of the reason.

    Args:
      max_tokens: the tokens of a row, of context and turn together.
    """
    out = list[Example]()
    for index, step in enumerate(steps):
        situation = Situation.at_step(
            task, steps, index, subgoal_steps=policy.config.subgoal_steps
        )
        example = recorded_turn(policy, grammar, situation, step.action, step.thought)
        if example is None or len(example.ids) > max_tokens:
            counts[UNWRITABLE if example is None else TOO_LONG] += 1
            return None
        out.append(example)
    return out
