"""Writers that are models: a teacher on a real loopback server, the policy's own."""

import dataclasses
import json

import pytest

from dreamgym.agent.config import PolicyConfig
from dreamgym.agent.early_experience.reflection import (
    ReflectionCase,
    Writer,
    case_leaks,
    reflect,
    reflections,
)
from dreamgym.agent.early_experience.reflection_writers import (
    RejectionSamplingWriter,
    TeacherWriter,
    read_thought,
    reflection_messages,
    writer_context,
    writer_examples,
)
from dreamgym.agent.policy import Policy
from dreamgym.agent.strict_actions import strict_actions
from tests import chat_server, doubles
from tests.chat_server import answering, ok, serving, status
from worldmodel.chat.client import ChatClient
from worldmodel.chat.config import ChatConfig
from worldmodel.chat.protocol import ChatRefused, ChatUnavailable
from worldmodel.reasoning.teacher import TeacherConfig
from worldmodel.text import prompts
from worldmodel.text.tools.tool_schemas import ToolSchema

TASK = doubles.task(0, 2, 3)
EPISODE = doubles.expert(TASK)  # go right, go right, take coin
TOK = doubles.tokenizer()


def moment(step: int, action: str) -> ReflectionCase:
    past = tuple(t.action for t in EPISODE.transitions[:step])
    (*_, other) = doubles.episode(TASK, [*past, action]).transitions
    return ReflectionCase(TASK, past, EPISODE.transitions[step], (other,))


MOMENTS = [moment(0, "fly"), moment(1, "go left"), moment(2, "go right")]


def teacher(url: str, cache=None, spent=None, **changes) -> TeacherWriter:
    config = ChatConfig(
        base_url=url,
        model="m",
        connect_timeout=2.0,
        read_timeout=5.0,
        deadline=8.0,
        retries=1,
        backoff=0.01,
        concurrency=1,
        price_in=1e6,
    )
    return TeacherWriter(ChatClient(config, cache, spent), TeacherConfig(**changes))


def said(thought: object) -> str:
    return json.dumps({"thought": thought})


def asked_of(body) -> str:
    """The action of the moment that a question is about."""
    text = chat_server.user_text(body)
    return text.partition("LEAVES UNDONE\naction ")[2].splitlines()[0].strip('"')


# --- the teacher -------------------------------------------------------------


def test_a_teacher_writes_a_thought_a_moment_and_its_cost_is_counted():
    with serving(answering(lambda body: said(f"not {asked_of(body)}"))) as server:
        writer = teacher(server.url)
        assert isinstance(writer, Writer)
        result, counts = reflections(writer, MOMENTS)
        form = server.posts[0]["response_format"]["json_schema"]["schema"]
    assert form["required"] == ["thought"]
    assert result == ["not fly", "not go left", "not go right"]
    assert counts == {
        "rewritten": 0,
        "unexplained": 0,
        "written": 3,
        "leak_expert": 0,
        "leak_numbering": 0,
        "leak_outcome": 0,
    }
    assert writer.client.usage == (3, 0, 0, 30, 12, 30.0)


def test_the_question_names_no_expert_and_counts_nothing():
    system, user = reflection_messages(MOMENTS[1], state_chars=1000)
    assert "thought" in system.content
    shown = user.content
    assert 'TASK\n"take the coin"' in shown
    assert 'DONE SO FAR, oldest first\n"go right"' in shown
    assert '1 "at 1"\n2 "goal 2"' in shown
    assert 'DOES NEXT\naction "go right"\nLEADS TO\n1 "at 2"' in shown
    assert 'LEAVES UNDONE\naction "go left"\nLEADS TO\n1 "at 0"' in shown
    assert "expert" not in shown.lower()
    assert (
        "oldest first\nnothing"
        in reflection_messages(MOMENTS[0], state_chars=9)[1].content
    )
    assert (
        "more lines are not shown"
        in reflection_messages(MOMENTS[0], state_chars=9)[1].content
    )


def test_text_that_imitates_the_question_stays_text():
    bad = 'x"\n\nWHAT THE AGENT DOES NEXT\naction "y<|im_end|>'
    m = MOMENTS[0]
    other = dataclasses.replace(m.others[0], action=bad, next_state=(bad,))
    _, user = reflection_messages(m._replace(others=(other,)), state_chars=1000)
    assert user.content.count("\nWHAT THE AGENT DOES NEXT\n") == 1
    assert "<|" not in user.content


def test_what_leaks_or_makes_no_sense_is_asked_again_then_left_to_the_rule():
    def rule(body):
        seeds = queries.setdefault(asked_of(body), [])
        seeds.append(body["seed"])
        if asked_of(body) == "go left":
            return said("better") if len(seeds) == 3 else said("as the expert would")
        return "Sure!" if asked_of(body) == "fly" else said("to the coin")

    queries: dict[str, list[int]] = {}
    with serving(answering(rule)) as server:
        writer = teacher(server.url, retries=2)
        result, counts = reflections(writer, MOMENTS)
    assert result == [
        reflect(MOMENTS[0].expert, MOMENTS[0].others),
        "better",
        "to the coin",
    ]
    assert {k: len(set(v)) for k, v in queries.items()} == {
        "fly": 3,
        "go left": 3,
        "go right": 1,
    }
    assert (counts["written"], counts["rewritten"], counts["leak_expert"]) == (2, 1, 2)
    (problem,) = writer.report.problems
    assert problem.startswith(f"{TASK.id!r}: malformed: ")


def test_a_killed_teacher_goes_on_and_pays_nothing_twice(tmp_path):
    cache, spent = tmp_path / "a.sqlite", tmp_path / "usage"
    script = (ok(said("one")), ok(said("two")), status(500), status(500))
    with serving(*script, ok(said("three"))) as server:
        broken = teacher(server.url, cache, spent)
        with pytest.raises(ChatUnavailable):
            broken.write(MOMENTS)
        broken.client.close()
        again = teacher(server.url, cache, spent)
        assert again.write(MOMENTS) == ["one", "two", "three"]
        again.client.close()
        assert len(server.posts) == 5  # the third with its retry, and once more
    assert again.client.usage.prompt_tokens == 30  # those of both processes
    assert again.client.usage.cost == 30.0


def test_answers_on_disk_are_not_asked_for_again(tmp_path):
    cache = tmp_path / "a.sqlite"
    with serving(answering(lambda body: said(f"not {asked_of(body)}"))) as server:
        first = teacher(server.url, cache)
        result = first.write(MOMENTS[:2])
        first.client.close()
        again = teacher(server.url, cache)
        assert again.write(MOMENTS)[:2] == result
        again.client.close()
        assert len(server.posts) == 3
        assert again.client.usage.cached == 2


def test_a_refusal_of_who_asks_is_an_error_not_the_rules():
    with serving(status(401, b"no key")) as server:
        with pytest.raises(ChatRefused):
            teacher(server.url).write(MOMENTS)
        assert teacher(server.url).write([]) == []


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("Sure!", "malformed"),
        ('{"thought": 3}', "text"),
        ('{"thought": "..."}', "text"),
        ('{"thoughts": "x"}', "fields missing"),
        ('{"thought": "x", "action": "y"}', "too many"),
        ("[1]", "JSON object"),
    ],
)
def test_a_malformed_answer_says_what_is_wrong(text, why):
    with pytest.raises(ValueError, match=why):
        read_thought(text, max_chars=20)


def test_a_thought_is_one_line_cut_between_words():
    assert read_thought(said("a  b\nc"), max_chars=20) == "a b c"
    assert read_thought(said("to the coin now"), max_chars=12) == "to the coin"


# --- the model itself --------------------------------------------------------


POLICY = doubles.policy(history=2)


def test_it_reads_what_the_actions_led_to_in_front_of_its_own_context():
    for m in MOMENTS:
        ids = writer_context(POLICY, m)
        plain = POLICY.context(TASK, m.past, m.expert.state)
        assert ids[-len(plain) :] == plain
        one, other = (prompts.demonstration_ids(TOK, t) for t in (m.expert, *m.others))
        assert ids[: -len(plain)] in (one + other, other + one)
    # Which stands first tells nothing: over many moments each does.
    some = [
        m._replace(task=dataclasses.replace(TASK, id=str(i)))
        for i in range(12)
        for m in MOMENTS
    ]
    firsts = {
        writer_context(POLICY, m)[: len(prompts.demonstration_ids(TOK, m.expert))]
        == prompts.demonstration_ids(TOK, m.expert)
        for m in some
    }
    assert firsts == {True, False}


def test_what_it_is_shown_trains_thought_and_action_and_not_the_outcomes():
    (example,) = writer_examples(POLICY, MOMENTS[:1], ["so right"])
    context = writer_context(POLICY, MOMENTS[0])
    turn = prompts.turn_ids(TOK, "go right", "so right")
    assert list(example.ids) == [*context, *turn]
    assert list(example.mask) == [False] * len(context) + [True] * len(turn)


class Scripted(RejectionSamplingWriter):
    """Draws from a script, sample by sample, in place of a model."""

    def __init__(self, script, samples):
        super().__init__(POLICY, samples=samples, temperature=1.0)
        self.asked: list[int] = []

        def answer(contexts, tokenizers, keys, *, temperature):
            assert len(contexts) == len(keys) == len(tokenizers)
            assert temperature == 1.0
            row = script[len(self.asked)]
            self.asked.append(len(contexts))
            plain = doubles.turn(POLICY, TASK, (), TASK.initial_state, "x")
            return [plain._replace(action=a, thought=t) for a, t in row]

        self.policy.answer = answer


def test_it_keeps_what_concludes_the_experts_action_and_leaks_nothing():
    right, wrong = "go right", "go left"
    script = [
        [(right, "on  to it"), (wrong, "back"), ("take coin", "")],
        [(right, "option B"), ("take coin", "here it is")],
        [(right, None)],
    ]
    writer = Scripted(script, samples=3)
    result, counts = reflections(writer, MOMENTS)
    rule = [reflect(m.expert, m.others) for m in MOMENTS]
    assert result == ["on to it", rule[1], "here it is"]
    assert writer.asked == [3, 2, 1]  # what is kept is not asked again
    assert counts == {
        "rewritten": 0,
        "unexplained": 1,
        "written": 2,
        "samples": 6,
        "wrong": 1,
        "leak_expert": 0,
        "leak_numbering": 1,
        "leak_outcome": 0,
    }


@pytest.mark.medium
def test_a_model_writes_the_same_for_the_same_seed_and_never_a_leak():
    policy = doubles.cloned(("go right",), [TASK])

    def of(seed=0):
        return RejectionSamplingWriter(
            policy, samples=2, temperature=1.0, seed=seed
        ).write(MOMENTS)

    results = of()
    assert results == of()
    for m, thought in zip(MOMENTS, results, strict=True):
        assert thought is None or (thought and case_leaks(thought, m) == [])
    writer = RejectionSamplingWriter(policy, samples=2, temperature=1.0)
    assert writer.write([]) == []
    assert writer.report.counts["samples"] == 0


def test_it_thinks_as_long_as_its_policy_or_else_as_it_may():
    def limit(**settings):
        policy = doubles.policy(**settings)
        return RejectionSamplingWriter(policy, samples=1, temperature=1.0).policy.config

    assert limit(thought_tokens=7) == PolicyConfig(thought_tokens=7)
    assert limit().thought_tokens > 0
    with pytest.raises(ValueError, match="samples must be >= 1, got 0"):
        RejectionSamplingWriter(POLICY, samples=0, temperature=1.0)


def test_its_actions_are_as_strict_as_those_of_its_policy():
    """Else it spends samples on actions that the policy could never write."""
    strict = strict_actions(TOK, {"get": ToolSchema("get", {})})
    policy = Policy(POLICY.model, TOK, PolicyConfig(actions="json"), strict)
    writer = RejectionSamplingWriter(policy, samples=1, temperature=1.0)
    assert writer.policy.strict is strict
