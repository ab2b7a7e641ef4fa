import dataclasses

import jax
import numpy as np
import pytest

from tests import helpers
from tests.worldmodel.experience.test_grammar import HERE, SHAPE, phases_of, task
from worldmodel.backbone.streams import SampledTokens
from worldmodel.data import outcomes
from worldmodel.data.hashing import content_seed
from worldmodel.experience import attempts, local
from worldmodel.experience.base import Query
from worldmodel.experience.config import ExperienceConfig
from worldmodel.experience.grammar import reply_grammar
from worldmodel.experience.local import LocalExperienceModel
from worldmodel.memory import ReplayMemory
from worldmodel.text import prompts
from worldmodel.text.persistence import LastingFacts
from worldmodel.text.state_format import state_format


def ask(action="press lamp", past=(), state=HERE, name="t1") -> Query:
    return Query(task(name), tuple(past), state, action)


def others(tok, text_model, config=SHAPE, seed=0, tasks=("t8", "t9")):
    """An experience model whose memory holds a transition of each task."""
    memory = ReplayMemory()
    for name in tasks:
        after = (f"the lamp is {name}",)
        memory.add([name], [helpers.transition(HERE, "press lamp", after)])
    return LocalExperienceModel(text_model, tok, memory, config, seed=seed)


QUERIES = [
    ask(action, past, state)
    for action in ("press lamp", "pull door", "<|dg_win|> now")
    for past, state in (((), HERE), (("nothing",), ("a",) * 3), ((), ()))
]


@pytest.mark.medium
def test_every_answer_has_a_form(tok, text_model):
    for q, p in zip(QUERIES, others(tok, text_model).predict(QUERIES), strict=True):
        assert p.outcome in outcomes.OUTCOMES
        assert np.isfinite(p.reward)
        assert 0.0 < p.confidence <= 1.0
        assert p.error != "the reply has no outcome"
        assert p.error is not None or p.next_state
        assert all(line.strip() and "\n" not in line for line in p.next_state)
        if p.error is not None and "in a state of" in p.error:
            assert p.next_state == q.state


def test_a_reply_never_edits_a_line_that_is_not_there(tok, text_model):
    # An untrained model at temperature 1 would name any of 32 lines.
    queries = [ask(f"press {i}", state=HERE[: 1 + i % 2]) for i in range(24)]
    results = others(tok, text_model).predict(queries)
    assert not [p for p in results if p.error and "in a state of" in p.error]


def test_the_same_question_has_the_same_answer(tok, text_model):
    one = others(tok, text_model).predict(QUERIES)
    again = others(tok, text_model)
    assert again.predict(QUERIES[::-1])[::-1] == one
    assert again.predict(QUERIES) == one
    apart = others(tok, text_model)
    assert [apart.predict([q])[0] for q in QUERIES[:3]] == one[:3]


def test_the_seed_and_the_place_decide_the_noise(tok, text_model):
    one = others(tok, text_model).predict(QUERIES)
    other = others(tok, text_model, seed=1).predict(QUERIES)
    assert [p.reasoning for p in one] != [p.reasoning for p in other]
    assert len({p.reasoning for p in one}) > len(QUERIES) // 2


def test_the_noise_leaves_history_out_but_the_context_does_not(
    tok, text_model, monkeypatch
):
    seen = []

    def spy(model, contexts, grammar, keys, **settings):
        seen.append((contexts, jax.random.key_data(keys).tolist()))
        return real_generate(model, contexts, grammar, keys, **settings)

    real_generate = local.generate
    monkeypatch.setattr(local, "generate", spy)
    others(tok, text_model).predict([ask(), ask(past=("nothing",)), ask("pull door")])
    (contexts, keys), *_ = seen
    assert keys[0] == keys[1] != keys[2]
    assert contexts[0] != contexts[1]


def test_few_shapes_of_keys_are_compiled(tok, text_model, monkeypatch):
    # A program for each number of questions, all in all seconds of a quickstart.
    sizes = []

    def spy(model, contexts, grammar, keys, **settings):
        sizes.append(len(keys))
        return real_generate(model, contexts, grammar, keys, **settings)

    real_generate = local.generate
    monkeypatch.setattr(local, "generate", spy)
    once = dataclasses.replace(SHAPE, retries=0)
    for count in (1, 4, 9):
        model = others(tok, text_model, once)
        assert len(model.predict([ask(f"press {i}") for i in range(count)])) == count
    assert sizes == [16, 16, 16]


def test_equal_questions_are_computed_once(tok, text_model):
    model = others(tok, text_model)
    got = model.predict([ask(), ask("pull door"), ask()])
    assert got[0] == got[2] != got[1]
    assert (model.queried, model.computed) == (3, 2)
    # Only the last two actions are read, so an older one makes no new question.
    long = [ask(past=("a", "b", "c")), ask(past=("x", "b", "c"))]
    one, two = model.predict(long)
    assert one == two
    assert (model.queried, model.computed) == (5, 3)
    model.add_to_memory()
    model.predict([ask()])
    assert (model.queried, model.computed) == (6, 4)


def test_without_history_all_pasts_are_one(tok, text_model):
    bare = ExperienceConfig(
        reasoning_tokens=6, state_tokens=10, demonstrations=0, history=0
    )
    model = others(tok, text_model, bare)
    model.predict([ask(), ask(past=("nothing",))])
    assert (model.queried, model.computed) == (2, 1)


def test_refresh_shows_new_demonstrations(tok, text_model):
    model = others(tok, text_model, tasks=())
    (before,) = model.predict([ask()])
    model.add_to_memory(
        ["t9"], [helpers.transition(HERE, "press lamp", ("it is lit",))]
    )
    assert len(model.memory) == 1
    (after,) = model.predict([ask()])
    assert (before.reasoning, before.confidence) != (after.reasoning, after.confidence)


def test_the_own_task_never_answers_itself(tok, text_model):
    alone, output = (others(tok, text_model, tasks=()) for _ in range(2))
    output.add_to_memory(
        ["t1"], [helpers.transition(HERE, "press lamp", ("the answer",))]
    )
    assert output.predict([ask()]) == alone.predict([ask()])


def scripted(*texts):
    """Samples that say the given ids, half of each token's probability."""
    out = []
    for ids, phase in texts:
        row = np.array([[*ids, 0, 0]], np.int32)  # padding behind
        flags = np.ones(row.shape, bool)
        logp = np.full(row.shape, np.log(0.5), np.float32)
        phases = np.array([[*phase, 9, 9]], np.int32)
        out.append(
            SampledTokens(row, logp, flags, phases, ~flags, np.array([len(ids)]))
        )

    def generate(model, contexts, grammar, keys, **settings):
        del model, grammar, keys, settings  # scripted
        assert len(contexts) == len(out)
        return out

    return generate


def test_the_reply_is_read_by_hand(tok, text_model, monkeypatch):
    t = helpers.transition(
        HERE,
        "press lamp",
        ("the lamp is on", "the door is shut"),
        0.5,
        terminated=True,
        success=True,
        reasoning="the lamp change",
    )
    ids = prompts.reply_ids(tok, t)
    why, script, value, end = phases_of(tok, ids)
    rest = len(script) + len(value) + len(end)
    phase = [0] * len(why) + [1] * rest
    monkeypatch.setattr(local, "generate", scripted((ids, phase)))
    (p,) = others(tok, text_model).predict([ask()])
    assert (p.next_state, p.reward, p.outcome) == (t.next_state, 0.5, "win")
    assert (p.reasoning, p.error) == ("the lamp change", None)
    # The reasoning is not counted, nor the padding.
    np.testing.assert_allclose(p.confidence, 0.5**rest, rtol=1e-4)


@pytest.mark.parametrize("keep", [True, False])
def test_what_no_real_step_removes_is_put_back(tok, text_model, monkeypatch, keep):
    facts = LastingFacts(
        frozenset({"the"}), frozenset({"the"}), frozenset({("the", "door")})
    )
    t = helpers.transition(HERE, "press lamp", ("the lamp is on",))
    ids = prompts.reply_ids(tok, t)
    why, *rest = phases_of(tok, ids)
    phase = [0] * len(why) + [1] * sum(map(len, rest))
    monkeypatch.setattr(local, "generate", scripted((ids, phase)))
    model = LocalExperienceModel(
        text_model,
        tok,
        ReplayMemory(),
        dataclasses.replace(SHAPE, keep_facts=keep),
        lasting_facts={"room": facts},
    )
    (p,) = model.predict([ask()])
    kept = ("the lamp is on", "the door is shut") if keep else ("the lamp is on",)
    assert (set(p.next_state), p.error) == (set(kept), None)


@pytest.mark.parametrize(
    ("change", "earns", "ends"),
    [
        ({}, 1 - 0.5**2, 0.5),
        ({"terminated": True}, 1 - 0.5**2, 0.5),
        ({"rewards": {"r": 1.0}}, 0.5**2, 0.5),
        ({"rewards": {"r": 1.0}, "terminated": True}, 0.5**2, 0.5),
    ],
)
def test_chances_to_earn_and_to_end_by_hand(
    tok, text_model, monkeypatch, change, earns, ends
):
    t = helpers.transition(HERE, "press lamp", ("the lamp is on",))
    ids = prompts.reply_ids(tok, dataclasses.replace(t, **change))
    why, script, value, end = phases_of(tok, ids)
    assert (len(value), len(end)) == (2, 2)
    # Each phase ends with the token that opens the next part: 2 is digit and `outcome`.
    phase = [0] * (len(why) + 1) + [1] * len(script) + [2] * 2 + [3]
    monkeypatch.setattr(local, "generate", scripted((ids, phase)))
    (p,) = others(tok, text_model).predict([ask()])
    np.testing.assert_allclose([p.p_reward, p.p_terminal], [earns, ends], rtol=1e-4)


def test_an_empty_next_state_is_a_problem(tok, text_model, monkeypatch):
    ids = prompts.reply_ids(tok, helpers.transition(("a",), "x", ()))
    monkeypatch.setattr(local, "generate", scripted((ids, [1] * len(ids))))
    once = dataclasses.replace(SHAPE, retries=0)
    (p,) = others(tok, text_model, once).predict([ask(state=("a",))])
    assert (p.next_state, p.error) == ((), "the next state is empty")


def end_of_reply(tok):
    """A reply's reward of 0 and outcome, as ids."""
    reward = [tok.control("reward"), *tok.encode("0")]
    return [*reward, tok.control("outcome"), tok.control("go")]


def replies_by_attempt(tok, monkeypatch, queries, reply):
    """Let `reply(query index, attempt, may move lines)` give the ids; record passes."""
    numbers = {
        content_seed(0, a, q.task.id, q.state, q.action): (i, a)
        for i, q in enumerate(queries)
        for a in range(9)
    }
    passes = []

    def generate(model, contexts, grammar, keys, *, banned, **settings):
        seeds = jax.random.key_data(keys)[: len(contexts), -1].tolist()
        moves = (~banned[:, tok.control("same")]).tolist()
        for name in ("swap", "with"):  # these refer to the state as well
            assert (~banned[:, tok.control(name)]).tolist() == moves
        rows = [(*numbers[s], m) for s, m in zip(seeds, moves, strict=True)]
        passes.append(rows)
        texts = [reply(*row) for row in rows]
        made = scripted(*[(ids, [1] * len(ids)) for ids in texts])
        return made(model, contexts, grammar, keys, **settings)

    monkeypatch.setattr(local, "generate", generate)
    return passes


def test_attempts_of_a_pass_by_hand():
    # 16 rows. One query: attempts 1, 2 and 3 with and without moves take 4 rows.
    assert attempts.last_attempt_of_pass(1, 1, 3) == 3
    assert attempts.last_attempt_of_pass(4, 1, 3) == 3
    assert attempts.last_attempt_of_pass(5, 1, 3) == 2  # 3 rows a query, 4 are needed
    assert attempts.last_attempt_of_pass(8, 1, 3) == 2
    assert attempts.last_attempt_of_pass(9, 1, 3) == 1
    assert attempts.last_attempt_of_pass(9, 3, 3) == 3
    assert attempts.last_attempt_of_pass(99, 1, 3) == 1
    assert attempts.last_attempt_of_pass(6, 2, 3) == 2  # the last one takes two rows
    assert attempts.last_attempt_of_pass(5, 2, 3) == 3
    assert attempts.last_attempt_of_pass(2, 1, 9) == 8


@pytest.mark.parametrize(("retries", "left"), [(0, 3), (1, 2), (2, 0), (5, 0)])
def test_a_malformed_reply_is_sampled_again(
    tok, text_model, monkeypatch, retries, left
):
    # Of three questions one makes sense at the second attempt, two at the third.
    move = [tok.control("next"), tok.line(0), tok.control("same")]
    bad, good = (
        [*move, *tok.encode(name), *end_of_reply(tok)] for name in ("gone", HERE[1])
    )
    queries = [ask(a) for a in ("press lamp", "pull door", "wait")]
    passes = replies_by_attempt(
        tok, monkeypatch, queries, lambda i, a, _: good if a >= 1 + (i > 0) else bad
    )
    config = dataclasses.replace(SHAPE, retries=retries)
    answers = others(tok, text_model, config).predict(queries)
    assert sum(p.error == "no line begins with 'gone'" for p in answers) == left
    assert passes[0] == [(i, 0, True) for i in range(3)]
    # Only the last attempt may be without moved lines, and it has to be, since the
    # error before it was of a line that is not there.
    rows = [row for rows in passes[1:] for row in rows]
    assert {a for _, a, moves in rows if not moves} <= {retries}
    assert len(set(rows)) == len(rows)


def test_a_state_that_breaks_the_format_is_sampled_again(tok, text_model, monkeypatch):
    edit = [tok.control("next"), tok.line(0)]
    bad, good = (
        [*edit, *tok.encode(x), *end_of_reply(tok)] for x in ("dark", HERE[0] + " now")
    )
    # Families whose format is not known are not checked.
    hall = ask()._replace(task=dataclasses.replace(task("t2"), family="hall"))
    passes = replies_by_attempt(
        tok,
        monkeypatch,
        [ask(), hall],
        # It was no line that is not there, so the last attempt may move lines.
        lambda _, a, moves: good if a == 2 and moves else bad,
    )
    model = LocalExperienceModel(
        text_model,
        tok,
        ReplayMemory(),
        dataclasses.replace(SHAPE, retries=2),
        state_formats={"room": state_format([HERE])},
    )
    answer, other = model.predict([ask(), hall])
    assert (answer.error, answer.next_state[0]) == (None, f"{HERE[0]} now")
    assert (other.next_state[0], other.error) == ("dark", None)
    assert [len(rows) for rows in passes] == [2, 3]


@pytest.mark.parametrize("change_at", [1, 2, 9])
def test_an_edit_that_changes_nothing_is_sampled_again(
    tok, text_model, monkeypatch, change_at
):
    edit = [tok.control("next"), tok.line(0)]
    same, other = (
        [*edit, *tok.encode(x), *end_of_reply(tok)] for x in (HERE[0], "dark")
    )
    passes = replies_by_attempt(
        tok, monkeypatch, [ask()], lambda _, a, __: other if a >= change_at else same
    )
    model = others(tok, text_model, dataclasses.replace(SHAPE, retries=2))
    (answer,) = model.predict([ask()])
    # What the last attempt says counts, even if nothing changes.
    assert answer.error is None
    assert answer.next_state[0] == (HERE[0] if change_at == 9 else "dark")
    assert len(passes) == 2
    # Where all other attempts are malformed, the first one counts.
    move = [tok.control("next"), tok.line(0), tok.control("same")]
    bad = [*move, *tok.encode("gone"), *end_of_reply(tok)]
    replies_by_attempt(tok, monkeypatch, [ask()], lambda _, a, __: bad if a else same)
    model = others(tok, text_model, dataclasses.replace(SHAPE, retries=2))
    (answer,) = model.predict([ask()])
    assert (answer.error, answer.next_state) == (None, HERE)
    # Samples for confidence are taken as they are.
    monkeypatch.setattr(local, "generate", scripted((same, [1] * len(same))))
    (sample,) = model.sample([ask()], 0)
    assert (sample.error, sample.next_state) == (None, HERE)


@pytest.mark.parametrize("change_at", [0, 1, 9])
def test_a_line_that_repeats_words_as_no_real_line_does_is_sampled_again(
    tok, text_model, monkeypatch, change_at
):
    """It is a small mistake: the last attempt may make it."""
    edit = [tok.control("next"), tok.line(0)]
    odd, other = (
        [*edit, *tok.encode(x), *end_of_reply(tok)]
        for x in ("the lamp is on the lamp is", "the lamp is on")
    )
    passes = replies_by_attempt(
        tok, monkeypatch, [ask()], lambda _, a, __: other if a >= change_at else odd
    )
    form = state_format([HERE])._replace(distinct_before=frozenset({"is"}))
    model = LocalExperienceModel(
        text_model,
        tok,
        ReplayMemory(),
        dataclasses.replace(SHAPE, retries=2),
        state_formats={"room": form},
    )
    (answer,) = model.predict([ask()])
    line = "the lamp is on the lamp is" if change_at == 9 else "the lamp is on"
    assert (answer.error, answer.next_state[0]) == (None, line)
    assert len(passes) == (2 if change_at else 1)


@pytest.mark.parametrize("queries", [1, 3, 5, 9, 17])
def test_passes_of_several_attempts_give_what_one_at_a_time_gives(
    tok, text_model, monkeypatch, queries
):
    # Errors drawn at random, of both kinds; the oracle asks one attempt after another.
    rng, last = np.random.default_rng(queries), 3
    kinds = {
        (i, a, moves): rng.choice(["good", "missing line", "format"])
        for i in range(queries)
        for a in range(last + 1)
        for moves in (True, False)
    }
    edit = [tok.control("next"), tok.line(0)]
    missing = [*edit, tok.control("same"), *tok.encode("gone"), *end_of_reply(tok)]

    def reply(i, attempt, moves):
        kind = kinds[i, attempt, moves]
        if kind == "missing line":
            return missing
        text = f"{HERE[0] if kind == 'good' else 'dark'} {attempt} {moves}"
        return [*edit, *tok.encode(text), *end_of_reply(tok)]

    requests = [ask(f"press {i}") for i in range(queries)]
    replies_by_attempt(tok, monkeypatch, requests, reply)
    model = LocalExperienceModel(
        text_model,
        tok,
        ReplayMemory(),
        dataclasses.replace(SHAPE, retries=last),
        state_formats={"room": state_format([HERE])},
    )
    for i, answer in enumerate(model.predict(requests)):
        attempt, moves = 0, True
        while kinds[i, attempt, moves] != "good" and attempt < last:
            error, attempt = kinds[i, attempt, moves], attempt + 1
            moves = attempt < last or error != "missing line"
        kind = kinds[i, attempt, moves]
        assert (answer.error is None) == (kind == "good")
        if kind != "missing line":
            assert answer.next_state[0].endswith(f" {attempt} {moves}")


def test_where_heads_are_distinct_a_written_line_replaces_the_old_one(
    tok, text_model, monkeypatch
):
    # The status is written in the place of the map: the old status may not stay.
    before = ("hall north attic", "said ok")
    ids = [tok.control("next"), tok.line(0), *tok.encode("hall south\nsaid no")]
    ids += [tok.control("reward"), *tok.encode("0"), tok.control("outcome")]
    ids += [tok.control("go")]
    monkeypatch.setattr(local, "generate", scripted((ids, [1] * len(ids))))

    def answer(forms):
        model = LocalExperienceModel(
            text_model,
            tok,
            ReplayMemory(),
            dataclasses.replace(SHAPE, retries=0),
            state_formats=forms,
        )
        (result,) = model.predict([ask(state=before)])
        return result.next_state, result.error

    held = answer({"room": state_format([before])})
    assert held == (("hall south", "said no"), None)
    assert answer({}) == (("hall south", "said no", "said ok"), None)


def test_where_lines_keep_their_stems_the_number_of_a_line_does_not_matter(
    tok, text_model, monkeypatch
):
    before = ("lamp 1", "door 2", "the lamp off")
    ids = [tok.control("next"), tok.line(1), *tok.encode("lamp 0")]
    ids += [tok.control("reward"), *tok.encode("0"), tok.control("outcome")]
    ids += [tok.control("go")]
    monkeypatch.setattr(local, "generate", scripted((ids, [1] * len(ids))))
    form = state_format([before])
    for stems, want in ((True, ("lamp 0", *before[1:])), (False, ("lamp 1", "lamp 0"))):
        model = LocalExperienceModel(
            text_model,
            tok,
            ReplayMemory(),
            dataclasses.replace(SHAPE, retries=0),
            state_formats={
                "room": form._replace(keyed_by_prefix=stems, distinct=False)
            },
        )
        (result,) = model.predict([ask(state=before)])
        assert result.next_state[: len(want)] == want


# --- ablations ---------------------------------------------------------------


def test_without_reasoning_none_is_written(tok, text_model):
    silent = dataclasses.replace(SHAPE, reasoning=False)
    assert any(p.reasoning for p in others(tok, text_model).predict(QUERIES))
    for p in others(tok, text_model, silent).predict(QUERIES):
        assert p.reasoning == ""


def test_full_text_is_written_and_read_as_a_whole_state(tok, text_model):
    whole = dataclasses.replace(SHAPE, full_state=True, state_tokens=30)
    for p in others(tok, text_model, whole).predict(QUERIES):
        # Nothing of the state before is kept by itself.
        assert p.error is None or "in a state of" not in p.error
    grammar = reply_grammar(tok, whole)
    assert np.flatnonzero(grammar.first[1]).tolist() == [tok.control("full")]
    after = ("the lamp is on", "the door is shut")
    t = helpers.transition(HERE, "press lamp", after)
    ids = prompts.reply_ids(tok, t, full=True)
    read = prompts.parse_reply(tok, ids, ("some other state",))
    assert (read.next_state, read.error) == (after, None)


# --- what has no room ---------------------------------------------------------


def said(tok, transition, forced=()) -> SampledTokens:
    """The right reply as a model's own; `forced`: tokens by name that were not."""
    ids = prompts.reply_ids(tok, transition)
    n, chosen = len(ids), np.ones((1, len(ids)), bool)
    phase = np.zeros((1, n), np.int32)
    for name, number in forced:
        at = ids.index(tok.control(name))
        chosen[0, at], phase[0, at] = False, number
    return SampledTokens(
        np.array([ids]),
        np.zeros((1, n), np.float32),
        chosen,
        phase,
        np.zeros((1, n), bool),
        np.array([n]),
    )


def test_a_reply_that_is_cut_is_a_problem(tok, text_model):
    """Its rest is nowhere: what stands there is no state of the model's."""
    model = others(tok, text_model)
    t = helpers.transition(HERE, "press lamp", ("the lamp is on", HERE[1]))
    assert model._read(ask(), tok, said(tok, t)).error is None
    assert (
        model._read(ask(), tok, said(tok, t, [("next", 0)])).error is None
    )  # thoughts
    for name, phase in (("reward", 1), ("outcome", 2)):
        result = model._read(ask(), tok, said(tok, t, [(name, phase)]))
        assert result.error == "the reply was cut: it is longer than there is room for"


def test_a_question_longer_than_the_positions_has_no_answer(tok, text_model):
    known = text_model.config.max_position_embeddings
    long = ask(state=tuple(f"line {i}" for i in range(known)))
    model = others(tok, text_model)
    before, answer, after = model.predict([QUERIES[0], long, QUERIES[1]])
    assert "tokens, and there is room for" in answer.error
    assert np.isnan(answer.confidence)
    alone = others(tok, text_model).predict(QUERIES[:2])
    assert [before, after] == alone
    real = [helpers.transition(HERE, "press lamp", ("the lamp is on",))] * 2
    one, none = model.next_state_probability([QUERIES[0], long], real)
    assert one > none == 0.0


def test_an_empty_state_is_an_answer_where_real_ones_are_empty(tok, text_model):
    t = helpers.transition(("a file",), "remove", ())
    query = ask("remove", state=("a file",))
    for states, problem in (
        ([("a file",), ()], None),
        ([("a file",)], "0 lines of text, at least 1 expected"),
        (None, "the next state is empty"),
    ):
        forms = {} if states is None else {"room": state_format(states)}
        model = LocalExperienceModel(
            text_model, tok, ReplayMemory(), SHAPE, state_formats=forms
        )
        assert model._read(query, tok, said(tok, t)).error == problem
