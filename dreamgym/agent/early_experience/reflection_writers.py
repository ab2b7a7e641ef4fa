"""Models that write reflections: a teacher behind a server, and the policy itself.

cases -> questions -> thoughts. A malformed or leaking thought is sampled again; after
the last attempt the case has none (None), and `reflections` leaves it to the rule.
"""

import dataclasses
from collections import Counter
from collections.abc import Sequence

import jax
import numpy as np

from dreamgym.agent.early_experience.reflection import (
    ReflectionCase,
    case_leaks,
    count_leaks,
    no_leaks,
)
from dreamgym.agent.policy import Policy
from worldmodel.chat.client import ChatClient
from worldmodel.chat.protocol import ChatRequest
from worldmodel.chat.quoting import QUOTING, json_object, number_lines, quote, schema
from worldmodel.chat.retrying import RetryingClient
from worldmodel.data.hashing import content_seed
from worldmodel.data.records import Transition
from worldmodel.fitting.batches import Example
from worldmodel.reasoning.annotator import Report
from worldmodel.reasoning.teacher import TeacherConfig, one_line
from worldmodel.text import prompts
from worldmodel.text.conversation import Message
from worldmodel.text.references import AnyTokenizer

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
    """Writes reflections with a model behind a chat server, one request a case.

    A request whose answer is malformed or leaks is repeated with another seed, up to
    `config.retries` times; a thought has at most `config.trace_chars` characters. With
    a cache in the client an interrupted call can be repeated at no cost. `report` has
    the count of thoughts `written`, and of all leaks that were seen.
    """

    def __init__(self, client: ChatClient, config: TeacherConfig, *, seed: int = 0):
        self.client, self.config, self._seed = client, config, seed
        self.report = Report({"written": 0})
        self._requests = RetryingClient(client, config.retries)

    def write(self, cases: Sequence[ReflectionCase]) -> list[str | None]:
        """See Writer.

        Raises:
          ChatError: as RetryingClient.ask.
        """
        leak_counts: Counter[str] = Counter(no_leaks())

        def read(i: int, text: str) -> str:
            thought = read_thought(text, max_chars=self.config.trace_chars)
            if leaked := case_leaks(thought, cases[i]):
                leak_counts.update(count_leaks(leaked))
                raise ValueError(f"leaks: {', '.join(leaked)}")
            return thought

        thoughts, problems = self._requests.ask(
            range(len(cases)), lambda i, n: self._request(cases[i], n), read
        )
        self.report = Report(
            {"written": len(thoughts)} | dict(leak_counts),
            tuple(f"{cases[i].task.id!r}: {x}" for i, x in sorted(problems.items())),
        )
        return [thoughts.get(i) for i in range(len(cases))]

    def _request(self, case: ReflectionCase, attempt: int) -> ChatRequest:
        messages = reflection_messages(case, state_chars=self.config.state_chars)
        seed = content_seed(self._seed, attempt, messages[1].content)
        return ChatRequest(messages, seed, _SCHEMA)


def reflection_messages(
    case: ReflectionCase, *, state_chars: int
) -> tuple[Message, ...]:
    """Return the question: task, past, state, and each action with its next state.

    It follows the paper's template (section 4.3), but its headings name no expert and
    do not number the alternatives. States are shown up to `state_chars` characters.
    """

    def effect(t: Transition) -> str:
        state = number_lines(t.next_state, state_chars)
        return f"action {quote(t.action)}\nLEADS TO\n{state}"

    past = [quote(a) for a in case.past]
    parts = [
        f"TASK\n{quote(case.task.instruction)}",
        "\n".join(["DONE SO FAR, oldest first", *(past or ["nothing"])]),
        f"STATE\n{number_lines(case.expert.state, state_chars)}",
        f"WHAT THE AGENT DOES NEXT\n{effect(case.expert)}",
        *(f"WHAT IT LEAVES UNDONE\n{effect(t)}" for t in case.others),
        "Write the thought.",
    ]
    return Message("system", _REFLECT), Message("user", "\n\n".join(parts))


def read_thought(text: str, *, max_chars: int) -> str:
    """Return the thought of an answer, in one line of at most `max_chars` characters.

    Raises:
      ValueError: the answer is malformed.
    """
    try:
        return one_line(json_object(text, ("thought",))["thought"], max_chars)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"malformed: {error}") from None


# --- the policy itself -------------------------------------------------------


THOUGHT_TOKENS = 48
"""The length of its thoughts where the policy is configured without thoughts."""


class RejectionSamplingWriter:
    """Writes reflections with the policy that will learn from them.

    The policy reads what the expert's and the other actions led to, in random order, in
    front of its usual context; then it thinks and acts. A thought is accepted if it
    ends in the expert's action and nothing leaks: rejection sampling as in STaR
    (arXiv:2203.14465), with at most `samples` samples a case. `report` has the counts
    of thoughts `written`, of `samples`, of `wrong` actions, and of leaks.
    """

    def __init__(
        self, policy: Policy, *, samples: int, temperature: float | int, seed: int = 0
    ):
        if samples < 1:
            raise ValueError(f"samples must be >= 1, got {samples}")
        c = policy.config
        if not c.thought_tokens:
            c = dataclasses.replace(c, thought_tokens=THOUGHT_TOKENS)
        self.policy = Policy(
            policy.model, policy.tokenizer, c, policy.strict, policy.memory
        )
        self.samples, self.temperature, self._seed = samples, float(temperature), seed
        self.report = Report({"written": 0, "samples": 0, "wrong": 0})

    def write(self, cases: Sequence[ReflectionCase]) -> list[str | None]:
        """See Writer."""
        contexts = [writer_context(self.policy, c) for c in cases]
        thoughts: dict[int, str] = {}
        counts: Counter[str] = Counter(samples=0, wrong=0, **no_leaks())
        for number in range(self.samples if cases else 0):
            open_cases = [i for i in range(len(cases)) if i not in thoughts]
            if not open_cases:
                break
            seeds = [content_seed(self._seed, number, contexts[i]) for i in open_cases]
            keys = jax.vmap(jax.random.key)(np.array(seeds, np.uint32))
            turns = self.policy.answer(
                [contexts[i] for i in open_cases],
                [_tokenizer(self.policy, cases[i]) for i in open_cases],
                keys,
                temperature=self.temperature,
            )
            counts["samples"] += len(open_cases)
            for i, turn in zip(open_cases, turns, strict=True):
                # A thought that ends in another action argues for the wrong one.
                thought = " ".join((turn.thought or "").split())
                leaked = case_leaks(thought, cases[i])
                counts.update(count_leaks(leaked))
                right = turn.action == cases[i].expert.action
                counts["wrong"] += not right
                if right and thought and not leaked:
                    thoughts[i] = thought
        self.report = Report({"written": len(thoughts)} | dict(counts))
        return [thoughts.get(i) for i in range(len(cases))]


def _tokenizer(policy: Policy, case: ReflectionCase) -> AnyTokenizer:
    return policy.tokenizer_in(*case.situation[:6])


def writer_context(policy: Policy, case: ReflectionCase) -> list[int]:
    """Return the ids before a reflection: effects of the actions, the usual context."""
    tok, c = _tokenizer(policy, case), case
    # In random order, or the writer would learn that the first one is the right one.
    # Keyed by content, so that a case has the same order in every call.
    transitions = [c.expert, *c.others]
    order = np.random.default_rng(
        content_seed(c.task.id, c.past, c.expert.state, [t.action for t in transitions])
    ).permutation(len(transitions))
    effects = [x for i in order for x in prompts.demonstration_ids(tok, transitions[i])]
    return [*effects, *policy.context(*c.situation[:6])]


def writer_examples(
    policy: Policy, cases: Sequence[ReflectionCase], thoughts: Sequence[str | None]
) -> list[Example]:
    """Return reflections as examples that teach a model to write reflections.

    A model too small to follow the instruction unprompted is fitted to them first.
    """
    out = []
    for case, thought in zip(cases, thoughts, strict=True):
        if thought is None:
            continue
        context = writer_context(policy, case)
        tok = _tokenizer(policy, case)
        turn = prompts.turn_ids(tok, case.expert.action, thought)
        ids = [*context, *turn]
        mask = [False] * len(context) + [True] * len(turn)
        out.append(Example(ids, mask, [0] * len(ids)))
    return out
