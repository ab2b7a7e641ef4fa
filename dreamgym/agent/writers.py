"""Writers of reflections that are models: a teacher, and the policy's own model.

moments -> questions -> thoughts, each tried again until it makes sense and no leak is
found in it, or given up: None, which `reflections` leaves to the rule.
"""

import dataclasses
from collections import Counter
from collections.abc import Sequence

import jax
import numpy as np

from dreamgym.agent.policy import Policy
from dreamgym.agent.reflection import Moment, leaks_of, no_leaks, tally
from worldmodel.chat.client import ChatClient
from worldmodel.chat.protocol import ChatRequest
from worldmodel.chat.quoting import QUOTING, json_object, number_lines, quote, schema
from worldmodel.chat.retrying import RetryingAsker
from worldmodel.data.hashing import content_seed
from worldmodel.data.records import Transition
from worldmodel.fitting.batches import Example
from worldmodel.reasoning.annotator import Report
from worldmodel.reasoning.teacher import TeacherConfig, one_line
from worldmodel.text import prompts
from worldmodel.text.conversation import Message

_REFLECT = f"""\
You write the thought that an agent in a text environment has before it acts. You see
its task, what it did so far, the state it is in, what it does next and what it leaves
undone, each with what that leads to. A state is a list of lines; the number before a
line is not part of it.
{QUOTING}
Answer with one JSON object and nothing else:
{{"thought": "..."}}
thought: one to three short sentences, the agent's own inner voice. It looks at the
situation and the goal, weighs what could be done, names the clue in the task or state
that decides, and ends with why it does what it does next.
The agent has not acted yet. Let what things lead to guide the judgement, and speak of
what can be expected (would, should); never name anything that only stands under LEADS
TO. Call what it could do by its own words, never by a number, a letter or a place in a
list. Nobody showed the agent what to do: speak of no expert, example or right answer,
and not of being a model."""

_SCHEMA = schema(thought={"type": "string"})


class TeacherWriter:
    """Reflections by a model behind a chat server, one question a moment.

    A malformed or leaking answer is asked for again with another seed, the config's
    `retries` times; `trace_chars` bounds a thought. Resumable where the client has a
    cache. Reports `written`, and the leaks that were found on the way.
    """

    def __init__(self, client: ChatClient, config: TeacherConfig, *, seed: int = 0):
        self.client, self.config, self._seed = client, config, seed
        self.report = Report({"written": 0})
        self._asker = RetryingAsker(client, config.retries)

    def write(self, moments: Sequence[Moment]) -> list[str | None]:
        """See Writer.

        Raises:
          ChatError: as RetryingAsker.ask.
        """
        leaked: Counter[str] = Counter(no_leaks())

        def read(i: int, text: str) -> str:
            thought = read_thought(text, most=self.config.trace_chars)
            if found := leaks_of(thought, moments[i]):
                leaked.update(tally(found))
                raise ValueError(f"leaks: {', '.join(found)}")
            return thought

        found, problems = self._asker.ask(
            range(len(moments)), lambda i, n: self._request(moments[i], n), read
        )
        self.report = Report(
            {"written": len(found)} | dict(leaked),
            tuple(f"{moments[i].task.id!r}: {x}" for i, x in sorted(problems.items())),
        )
        return [found.get(i) for i in range(len(moments))]

    def _request(self, moment: Moment, attempt: int) -> ChatRequest:
        messages = reflect_messages(moment, state_chars=self.config.state_chars)
        seed = content_seed(self._seed, attempt, messages[1].content)
        return ChatRequest(messages, seed, _SCHEMA)


def reflect_messages(moment: Moment, *, state_chars: int) -> tuple[Message, ...]:
    """The question: task, past, state, and each action with its next state.

    After the paper's template (section 4.3), whose slots are named here such that
    nothing in them speaks of an expert or counts alternatives.
    """

    def about(t: Transition) -> str:
        state = number_lines(t.next_state, state_chars)
        return f"action {quote(t.action)}\nLEADS TO\n{state}"

    m = moment
    past = [quote(a) for a in m.past]
    parts = [
        f"TASK\n{quote(m.task.instruction)}",
        "\n".join(["DONE SO FAR, oldest first", *(past or ["nothing"])]),
        f"STATE\n{number_lines(m.expert.state, state_chars)}",
        f"WHAT THE AGENT DOES NEXT\n{about(m.expert)}",
        *(f"WHAT IT LEAVES UNDONE\n{about(t)}" for t in m.others),
        "Write the thought.",
    ]
    return Message("system", _REFLECT), Message("user", "\n\n".join(parts))


def read_thought(text: str, *, most: int) -> str:
    """The thought of an answer, in one line of at most `most` characters.

    Raises:
      ValueError: the answer is malformed.
    """
    try:
        return one_line(json_object(text, ("thought",))["thought"], most)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"malformed: {error}") from None


# --- the model itself --------------------------------------------------------


THOUGHT_TOKENS = 48
"""How long its thoughts may be where the policy itself does not think."""


class OwnWriter:
    """Reflections by the model that will learn from them, at most `samples` tries.

    It reads what the actions led to, expert's and others' in an order that tells
    nothing, in front of the context it acts in; then it thinks and acts. A thought is
    kept where the action it concludes is the expert's, and nothing in it leaks: that is
    rejection sampling, as in STaR (arXiv:2203.14465). Reports `written`, `samples`
    (drawn in all), `wrong` (concluded something else) and the leaks.
    """

    def __init__(
        self, policy: Policy, *, samples: int, temperature: float | int, seed: int = 0
    ):
        if samples < 1:
            raise ValueError(f"samples must be >= 1, got {samples}")
        c = policy.config
        if not c.thought_tokens:
            c = dataclasses.replace(c, thought_tokens=THOUGHT_TOKENS)
        self.policy = Policy(policy.model, policy.tokenizer, c)
        self.samples, self.temperature, self._seed = samples, float(temperature), seed
        self.report = Report({"written": 0, "samples": 0, "wrong": 0})

    def write(self, moments: Sequence[Moment]) -> list[str | None]:
        """See Writer."""
        contexts = [own_context(self.policy, m) for m in moments]
        found: dict[int, str] = {}
        counts: Counter[str] = Counter(samples=0, wrong=0, **no_leaks())
        for number in range(self.samples if moments else 0):
            left = [i for i in range(len(moments)) if i not in found]
            if not left:
                break
            seeds = [content_seed(self._seed, number, contexts[i]) for i in left]
            keys = jax.vmap(jax.random.key)(np.array(seeds, np.uint32))
            turns = self.policy.answer(
                [contexts[i] for i in left], keys, temperature=self.temperature
            )
            counts["samples"] += len(left)
            for i, turn in zip(left, turns, strict=True):
                thought = " ".join((turn.thought or "").split())
                leaked = leaks_of(thought, moments[i])
                counts.update(tally(leaked))
                right = turn.action == moments[i].expert.action
                counts["wrong"] += not right
                if right and thought and not leaked:
                    found[i] = thought
        self.report = Report({"written": len(found)} | dict(counts))
        return [found.get(i) for i in range(len(moments))]


def own_context(policy: Policy, moment: Moment) -> list[int]:
    """What the model reads to reflect: effects of the actions, then its own context."""
    tok, m = policy.tokenizer, moment
    rows = [m.expert, *m.others]
    order = np.random.default_rng(
        content_seed(m.task.id, m.past, m.expert.state, [t.action for t in rows])
    ).permutation(len(rows))
    shown = [x for i in order for x in prompts.demonstration_ids(tok, rows[i])]
    return [*shown, *policy.context(m.task, m.past, m.expert.state)]


def own_examples(
    policy: Policy, moments: Sequence[Moment], thoughts: Sequence[str | None]
) -> list[Example]:
    """What a reflection is, shown to a model too small to be asked for one."""
    out = []
    for m, thought in zip(moments, thoughts, strict=True):
        if thought is None:
            continue
        context = own_context(policy, m)
        turn = prompts.turn_ids(policy.tokenizer, m.expert.action, thought)
        ids = [*context, *turn]
        mask = [False] * len(context) + [True] * len(turn)
        out.append(Example(ids, mask, [0] * len(ids)))
    return out
