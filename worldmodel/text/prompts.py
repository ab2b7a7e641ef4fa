"""The token grammar of prompts and replies of the language models.

Experience model (DreamGym, Eq. 4 and 5):
  demo* task past* state action  ->  think reasoning next edits reward number outcome
  where past is an action; if asked for, behind the lines that were gone after it:
  demo* past action
Policy:
  task past* state add* why*     ->  [why thought] action text end
  where past is the same, add stands before each action that the environment lists,
  if asked for, and why before its present subgoal, if it has one
Task variation (Eq. 6; task_variations.py):
  (vary outcome? task state)*    ->  task instruction state lines end

A segment is a run of token ids. Control tokens open every part, so that text from
outside cannot end one. Unlike in the paper, a retrieved demonstration is written as
action and effect without its state, unless the settings ask for it: a small model takes
little from a state that is not the present one.
"""

import itertools
import math
from collections.abc import Sequence
from typing import NamedTuple

from worldmodel.data.outcomes import OUTCOMES, number_text, outcome_of
from worldmodel.data.records import State, Task, Transition
from worldmodel.text import edits
from worldmodel.text.references import AnyTokenizer, with_references
from worldmodel.text.tokenizer import MAX_LINES, TextTokenizer

PARTS = ("reasoning", "state", "reward", "outcome", "variation")
"""Parts of an experience model's output; an Example refers to them by their index."""
NO_LINE = "no line begins with"
REPEATED = "an edit does not change its line"


class Reply(NamedTuple):
    """A parsed reply of the experience model; `error` is None if it is well-formed."""

    reasoning: str
    next_state: State
    reward: float
    outcome: str
    error: str | None


def state_ids(tok: AnyTokenizer, state: State, *, plain: bool = False) -> list[int]:
    """Return `state`, then each line behind the control token of its number.

    Markers of an action's arguments stand between the two. A `plain` state has no
    columns of a grid.
    """
    out = [tok.control("state")]
    state = state if plain else tok.writing.model_input(state)
    for i, (line, marks) in enumerate(zip(state, tok.line_marks(state), strict=True)):
        out += [tok.line(i), *marks, *tok.encode(line)]
    return out


def _part(tok: AnyTokenizer, name: str, text: str) -> list[int]:
    return [tok.control(name), *tok.encode(text)]


def last_actions(past: Sequence[str], limit: int) -> tuple[str, ...]:
    """Return the last `limit` actions."""
    return tuple(past[-limit:]) if limit else ()


def effect_ids(
    tok: AnyTokenizer, before: State, after: State, *, full: bool = False
) -> list[int]:
    """Return `next` and the edit script from `before` to `after`.

    With `full`, or for a state of more lines than there are line tokens, the whole next
    state takes the place of the script.
    """
    out = [tok.control("next")]
    whole = full or len(before) > MAX_LINES
    before, after = tok.writing.written(before, after, whole=whole)
    if whole:
        out += [tok.control("full"), *tok.encode("\n".join(after))]
        return out
    for index, new in edits.with_swaps(before, edits.diff(before, after)):
        out.append(tok.control("add") if index is None else tok.line(index))
        lines: list[str] = []
        for line in new:
            if isinstance(line, str):
                lines.append(line)
            elif isinstance(line, edits.Swap):
                out += [*_part(tok, "swap", line.old), tok.control("with")]
                lines.append(line.new)
            else:
                out += [*_lines_ids(tok, lines), tok.control("same")]
                lines = [edits.line_name(before, line) or before[line]]
        out += _lines_ids(tok, lines)
    return out


def _lines_ids(tok: AnyTokenizer, lines: Sequence[str]) -> list[int]:
    return tok.encode("\n".join(lines)) if any(lines) else []


def demonstration_ids(
    tok: AnyTokenizer, demo: Transition, *, with_state: bool = False
) -> list[int]:
    """Return a demonstration as action, state if asked for, effect and reward."""
    return [
        *_part(tok, "demo", demo.action),
        *(state_ids(tok, demo.state) if with_state else ()),
        *effect_ids(tok, demo.state, demo.next_state),
        *_part(tok, "reward", number_text(demo.reward)),
    ]


def newest_fitting(
    segments: Sequence[list[int]],
    budget: float | int,
    shorter: Sequence[list[int]] | None = None,
) -> list[int]:
    """Return the last segments that fit the budget together, uncut and in order.

    With `shorter`, a shorter form of each segment, as many as possible stand in that
    form, and the last ones of these whole, as far as the budget goes.
    """
    short = segments if shorter is None else shorter
    first = len(short)
    while first and len(short[first - 1]) <= budget:
        first -= 1
        budget -= len(short[first])
    whole = len(short)
    while whole > first:
        budget -= len(segments[whole - 1]) - len(short[whole - 1])
        if budget < 0:
            break
        whole -= 1
    return [i for x in (*short[first:whole], *segments[whole:]) for i in x]


def gone_lines(before: State, after: State) -> tuple[str, ...]:
    """Return the lines of a state that the next one does not have, in their order."""
    return tuple(line for line in before if line not in after)


def _observation_ids(
    tok: AnyTokenizer, past: Sequence[str], past_states: Sequence[State], state: State
) -> list[list[int]]:
    """Return a segment for each past action: what was seen and is gone, the action.

    So every line that was seen stands here or in the current state; since when a line
    of the current state has been there is not written. They stand behind a control
    token that there is already, because another one would change the vocabulary.
    """
    states = itertools.pairwise((*past_states, state))
    return [
        [
            *(i for line in gone_lines(*pair) for i in _part(tok, "demo", line)),
            *_part(tok, "past", action),
        ]
        for action, pair in zip(past, states, strict=True)
    ]


def _past_ids(
    tok: AnyTokenizer,
    past: Sequence[str],
    past_states: Sequence[State] | None,
    state: State,
    limit: int,
    budget: float | int,
) -> list[int]:
    """Return the last `limit` actions, the newest that fit the budget.

    `past_states` are the states in which the past actions were taken; with them each
    action stands behind what was seen and is gone, as far as that fits.
    """
    visible = last_actions(past, limit)
    actions = [_part(tok, "past", action) for action in visible]
    if past_states is None:
        return newest_fitting(actions, budget)
    seen = past_states[len(past_states) - len(visible) :]
    pairs = _observation_ids(tok, visible, seen, state)
    return newest_fitting(pairs, budget, actions)


def query_tokenizer(
    tok: TextTokenizer,
    task: Task,
    past: Sequence[str],
    demos: Sequence[Transition],
    state: State,
    action: str,
    *,
    past_states: Sequence[State] | None = None,
    demonstration_states: bool = False,
) -> AnyTokenizer:
    """Return the tokenizer with the markers and references of a query's context.

    What stands in the state comes first, where references do not suffice. `past_states`
    are those of `past` where the context holds what was seen in them. With
    `demonstration_states` it holds those of `demos`.
    """
    demo_states = [d.state if demonstration_states else () for d in demos]
    demo_texts = (
        x
        for d, before in zip(demos[::-1], demo_states[::-1], strict=True)
        for x in (d.action, *before, *d.next_state)
    )
    past_texts = (*past[::-1], *(x for s in (past_states or ())[::-1] for x in s))
    texts = (task.instruction, *state, *past_texts, *demo_texts)
    return with_references(tok, task.instruction, texts, action=action)


def query_ids(
    tok: AnyTokenizer,
    task: Task,
    past: Sequence[str],
    demos: Sequence[Transition],
    state: State,
    action: str,
    *,
    history: int,
    context_budget: int | None = None,
    past_states: Sequence[State] | None = None,
    demonstration_states: bool = False,
) -> list[int]:
    """Return the experience model's context, up to the action and `think`.

    With `past_states`, in which the past actions were taken, each of these stands
    behind what was seen and is gone (the pairs of Eq. 4). With `demonstration_states`
    each demonstration has its state, where both fit. `context_budget` is the
    maximal number of ids of past actions and demonstrations, without a limit where it
    is None. Segments that do not fit are left out whole: first the demonstrations least
    similar to the query (the best stand last), then what was seen before the oldest
    actions, then these. Task, state and action are never cut.
    """
    tok = tok.context_view
    tokens_remaining = math.inf if context_budget is None else context_budget
    past_ids = _past_ids(tok, past, past_states, state, history, tokens_remaining)
    shorter = [demonstration_ids(tok, d) for d in demos]
    segments = shorter
    if demonstration_states:
        segments = [demonstration_ids(tok, d, with_state=True) for d in demos]
    tokens_remaining -= len(past_ids)
    demonstrations = newest_fitting(segments, tokens_remaining, shorter)
    return [
        *demonstrations,
        *_part(tok, "task", task.instruction),
        *past_ids,
        *state_ids(tok, state),
        *_part(tok, "action", action),
        tok.control("think"),
    ]


def reward_and_outcome_ids(tok: AnyTokenizer, reward: float, outcome: str) -> list[int]:
    """Return the end of a reply, after the state: the reward and the outcome."""
    reward_ids = _part(tok.base, "reward", number_text(reward))
    return [*reward_ids, tok.control("outcome"), tok.control(outcome)]


def reply_ids(
    tok: AnyTokenizer, transition: Transition, *, full: bool = False
) -> list[int]:
    """Return the target of Eq. 5 after `think`, with reward and outcome."""
    return [
        *tok.encode(transition.reasoning or ""),
        *effect_ids(tok, transition.state, transition.next_state, full=full),
        *reward_and_outcome_ids(tok, transition.reward, outcome_of(transition)),
    ]


def policy_context_ids(
    tok: AnyTokenizer,
    task: Task,
    past: Sequence[str],
    state: State,
    *,
    history: int,
    valid_actions: Sequence[str] = (),
    past_states: Sequence[State] | None = None,
    context_budget: int | None = None,
) -> list[int]:
    """Return the policy's context: task, last actions, current state, valid actions.

    With `past_states`, in which the past actions were taken, each stands behind the
    lines that were gone after it: the pairs of observation and action, the newest of
    them that have at most `context_budget` ids together. An action stands alone where
    what was seen before it does not fit.
    """
    tok = tok.context_view
    limit = math.inf if context_budget is None else context_budget
    return [
        *_part(tok, "task", task.instruction),
        *_past_ids(tok, past, past_states, state, history, limit),
        *state_ids(tok, state),
        # Behind a token that there is already: another one would change the vocabulary.
        *(i for action in valid_actions for i in _part(tok, "add", action)),
    ]


def turn_ids(
    tok: AnyTokenizer, action: str, thought: str | None = None, *, thinks: bool = False
) -> list[int]:
    """Return a turn of the policy: an optional thought, the action, `end`.

    The turns of a policy that `thinks` begin with `why`, also before an empty thought.
    """
    why = _part(tok, "why", thought) if thought else [tok.control("why")] * thinks
    return [*why, *_part(tok, "action", action), tok.control("end")]


# --- parsing -----------------------------------------------------------------


def control_runs(tok: AnyTokenizer, ids: Sequence[int]) -> list[tuple[str, list[int]]]:
    """Return runs of text ids, each with the name of the control token before it.

    The first run has the name "".
    """
    out: list[tuple[str, list[int]]] = [("", [])]
    for token in ids:
        name = tok.name(int(token))
        if name is None:
            out[-1][1].append(int(token))
        else:
            out.append((name, []))
    return out


def _lines(text: str) -> State:
    return tuple(x.rstrip() for x in text.split("\n") if x.strip())


def parse_reply(
    tok: AnyTokenizer,
    ids: Sequence[int],
    before: State,
    *,
    distinct: bool = False,
    keyed_by_prefix: bool = False,
    repeats: bool = True,
) -> Reply:
    """Parse what the experience model wrote after `think`.

    Never raises: a malformed reply has an `error`. `distinct` and `keyed_by_prefix` are
    those of edits.apply. `repeats`: an edit may write its line as it was, which changes
    nothing, and which no edit of a real transition does.
    """
    parts = control_runs(tok, ids)
    lines_read = tok.writing.model_input(before)
    if lines_read != before:  # keys are those of recorded lines
        distinct = keyed_by_prefix = False
    reasoning, script, full = "", [], None
    reward, outcome, error = 0.0, "go", None
    for position, (name, run) in enumerate(parts):
        text = tok.decode(run)
        if position == 0:
            reasoning = text
        elif name == "full":
            full = _lines(text)
        elif name == "add" or name.startswith("line"):
            index = None if name == "add" else int(name[4:])
            script.append(edits.Edit(index, _lines(text)))
        elif name == "same" and script:
            moved, last = _lines(text), script.pop()
            index = edits.find_line(lines_read, moved[0]) if moved else None
            if index is None:
                error = f"{NO_LINE} {text!r}"
            else:
                lines = (*last.lines, index, *moved[1:])
                last = edits.Edit(last.index, lines)
            script.append(last)
        elif name == "with" and parts[position - 1][0] != "swap":
            error = f"new words without a swap: {text!r}"
        elif name == "with" and script:
            new, *more = text.split("\n")
            swap = edits.Swap(tok.decode(parts[position - 1][1]), new)
            script[-1] = edits.Edit(script[-1].index, (swap, *_lines("\n".join(more))))
        elif name == "reward":
            try:
                reward = float(text)
            except ValueError:
                error = f"reward {text!r} is not a number"
            if not math.isfinite(reward):
                error, reward = f"reward {text!r} is not finite", 0.0
        elif name in OUTCOMES:
            outcome = name
    try:
        after = full
        if after is None:
            after = edits.apply(
                lines_read,
                tuple(script),
                distinct=distinct,
                keyed_by_prefix=keyed_by_prefix,
            )
        if full is None and not repeats:
            line = edits.repeated_line(
                lines_read, tuple(script), keyed_by_prefix=keyed_by_prefix
            )
            if line is not None:
                error = error or f"{REPEATED}: {line!r}"
        after = tok.writing.read(before, after, whole=full is not None)
    except (IndexError, ValueError) as fault:
        after, error = before, str(fault)
    if parts[-1][0] not in OUTCOMES:
        error = "the reply has no outcome"
    return Reply(reasoning, after, reward, outcome, error)


def parse_turn(tok: AnyTokenizer, ids: Sequence[int]) -> tuple[str, str | None]:
    """Return (action, thought) of a policy's turn; the action may be empty.

    An empty thought is none.
    """
    texts = {name: tok.decode(run) for name, run in control_runs(tok, ids)}
    return texts.get("action", "").strip(), texts.get("why") or None
