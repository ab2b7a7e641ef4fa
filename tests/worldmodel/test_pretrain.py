import collections
import dataclasses
import json

import numpy as np
import pytest

from tests import helpers
from worldmodel import fidelity, pretrain, reasoning
from worldmodel.backbone.model import create
from worldmodel.data.records import Task
from worldmodel.fitting import checkpoint
from worldmodel.fitting.batches import Example
from worldmodel.fitting.learner import OptimizerConfig
from worldmodel.local import PARTS, ExperienceConfig, LocalExperience
from worldmodel.memory import ReplayMemory
from worldmodel.text import prompts
from worldmodel.text.tokenizer import TextTokenizer

SHAPE = ExperienceConfig(demos=1, history=2, reasoning_tokens=20, state_tokens=16)
EPISODES = [helpers.lamp_and_door(f"room-{i}") for i in range(3)]


# --- examples ----------------------------------------------------------------


def test_annotate_fills_only_what_is_missing():
    first, *rest = helpers.lamp_and_door().transitions
    given = dataclasses.replace(first, reasoning="because I say so")
    e = dataclasses.replace(helpers.lamp_and_door(), transitions=(given, *rest))
    got = [t.reasoning for t in reasoning.annotate(e).transitions]
    rule = [reasoning.explain(t) for t in rest]
    assert got == ["because I say so", *rule]


def test_the_tokenizer_sees_every_kind_of_text():
    e = reasoning.annotate(helpers.lamp_and_door())
    texts = pretrain.texts_of([e])
    for one in (
        e.task.instruction, "the lamp is off", "the door is open", "pull door",
        e.transitions[0].reasoning, "0.5",
    ):  # fmt: skip
        assert one in texts


def test_an_example_is_context_and_reply(tok):
    episodes = [reasoning.annotate(e) for e in EPISODES]
    memory = ReplayMemory.from_episodes(episodes, capacity=100)
    out = pretrain.transition_examples(tok, episodes, memory, SHAPE)
    assert len(out) == 9
    steps = [(e.task, i, t) for e in episodes for i, t in enumerate(e.transitions)]
    past = [[x.action for x in e.transitions] for e in episodes for _ in e.transitions]
    for example, (task, i, t), actions in zip(out, steps, past, strict=True):
        demos = memory.search([(task.id, t.state, t.action)], 1)[0]
        context = prompts.query_ids(
            tok, task, actions[:i], demos, t.state, t.action, history=2
        )
        reply = prompts.reply_ids(tok, t)
        assert example.ids == context + reply
        assert example.mask == [False] * len(context) + [True] * len(reply)
        assert example.part[: len(context)] == [0] * len(context)
        # Each structure token opens its part: next 1, reward 2, outcome 3.
        part = 0
        for token, got in zip(reply, example.part[len(context) :], strict=True):
            part = {"next": 1, "reward": 2, "outcome": 3}.get(
                str(tok.name(token)), part
            )
            assert got == part
        assert set(example.part) == {0, 1, 2, 3}


def test_no_example_shows_its_own_answer(tok):
    # One task, played twice: without another task there is nothing to show.
    twice = [EPISODES[0], dataclasses.replace(EPISODES[0], id="again")]
    memory = ReplayMemory.from_episodes(twice, capacity=100)
    out = pretrain.transition_examples(tok, twice, memory, SHAPE)
    assert len(out) == 3  # exact repeats are kept once
    assert not any(tok.control("demo") in e.ids for e in out)
    more = ReplayMemory.from_episodes([*twice, EPISODES[1]], capacity=100)
    out = pretrain.transition_examples(tok, twice, more, SHAPE)
    assert all(tok.control("demo") in e.ids for e in out)


def test_the_history_shown_decides_what_is_a_repeat(tok):
    e = helpers.lamp_and_door()
    repeated = helpers.episode(
        "r", e.task, [*e.transitions[:2], e.transitions[1], e.transitions[2]]
    )

    def count(history):
        config = dataclasses.replace(SHAPE, history=history, demos=0)
        memory = ReplayMemory()
        return len(pretrain.transition_examples(tok, [repeated], memory, config))

    # With a past, the second "nothing" is another question than the first one.
    assert [count(0), count(1), count(2)] == [3, 4, 4]


def test_tasks_of_one_family_vary_each_other(tok):
    tasks = [
        Task(id=f"{f}{i}", instruction=f"do {f} {i}", family=f, initial_state=(f"{i}",))
        for f, n in (("a", 3), ("b", 2), ("lonely", 1))
        for i in range(n)
    ]  # fmt: skip
    out = pretrain.variation_examples(tok, [*tasks, tasks[0]], repeats=4, seed=0)
    assert len(out) == 4 * (3 + 2)  # the copy and the lonely one give nothing
    by_context = {tuple(prompts.variation_ids(tok, t)): t for t in tasks}
    by_reply = {tuple(prompts.variation_reply_ids(tok, t)): t for t in tasks}
    seen = collections.Counter()
    for e in out:
        cut = e.mask.index(True)
        assert all(e.mask[cut:])
        assert set(e.part[cut:]) == {PARTS.index("variation")}
        source, target = by_context[tuple(e.ids[:cut])], by_reply[tuple(e.ids[cut:])]
        assert source.family == target.family
        assert source.id != target.id
        seen[target.id] += 1
    assert set(seen.values()) == {4}


def outcome(t):
    return (t.next_state, t.reward, t.terminated, t.success, t.truncated)


def test_the_control_permutes_outcomes_within_families():
    episodes = [
        helpers.lamp_and_door(f"{family}-{i}", family)
        for family in ("room", "cave")
        for i in range(3)
    ]
    # Every outcome is marked, so that it can be followed.
    episodes = [
        dataclasses.replace(
            e,
            transitions=tuple(
                dataclasses.replace(t, next_state=(f"{e.task.id} step {i}",))
                for i, t in enumerate(e.transitions)
            ),
        )
        for e in episodes
    ]
    out = pretrain.shuffled(episodes, seed=0)
    moved = 0
    for family in ("room", "cave"):
        was, now = (
            [t for e in es if e.task.family == family for t in e.transitions]
            for es in (episodes, out)
        )
        assert [(t.state, t.action) for t in now] == [(t.state, t.action) for t in was]
        assert sorted(map(outcome, now)) == sorted(map(outcome, was))
        moved += sum(outcome(a) != outcome(b) for a, b in zip(was, now, strict=True))
    assert moved > 9  # of 18; one permutation keeps about one place
    assert all(t.reasoning is None for e in out for t in e.transitions)
    assert [(e.id, e.task) for e in out] == [(e.id, e.task) for e in episodes]
    assert pretrain.shuffled(episodes, seed=0) == out
    assert pretrain.shuffled(episodes, seed=1) != out


def test_the_room_that_replies_need_by_hand(tok):
    episodes = [reasoning.annotate(e) for e in EPISODES]
    memory = ReplayMemory.from_episodes(episodes, capacity=100)
    examples = pretrain.transition_examples(tok, episodes, memory, SHAPE)
    steps = [t for e in episodes for t in e.transitions]
    found = pretrain.reply_tokens(examples)
    # `next` closes the reasoning and `reward` the state: neither takes room in them.
    assert found == {
        "reasoning_tokens": max(len(tok.encode(t.reasoning)) for t in steps),
        "state_tokens": max(
            len(prompts.effect_ids(tok, t.state, t.next_state)) - 1 for t in steps
        ),
        "reward_tokens": max(
            len(tok.encode(prompts.number_text(t.reward))) for t in steps
        ),
    }
    # One in a thousand may be cut, one in a hundred may not.
    long = Example([0] * 50, [True] * 50, [1] * 50)
    assert pretrain.reply_tokens([*examples * 200, long]) == found
    assert pretrain.reply_tokens([*examples * 10, long])["state_tokens"] == 49


def test_small_helpers(tmp_path):
    examples = [Example([1, 2], [False, True], [0, 0]), Example([1] * 5, [], [])]
    assert pretrain.mean_tokens(examples) == 3.5
    none = {"reasoning_tokens": 0, "state_tokens": 0, "reward_tokens": 0}
    assert pretrain.reply_tokens([]) == none
    curve = [{"step": 1, "loss": 2.0}, {"step": 2, "loss": 1.5}]
    pretrain.write_curve(tmp_path / "c.jsonl", curve)
    rows = (tmp_path / "c.jsonl").read_text().splitlines()
    assert [json.loads(r) for r in rows] == curve


# --- fitting -----------------------------------------------------------------

WIDTH = 12


def counting(n=12) -> list[Example]:
    """After k comes k + 1, over 13 tokens."""
    rng = np.random.default_rng(0)
    out = []
    for _ in range(n):
        start, length = rng.integers(0, 6), rng.integers(4, 7)
        ids = list(range(start, start + length))
        out.append(Example(ids, [False] + [True] * (length - 1), [0] * length))
    return out


def fit_config(**changes) -> pretrain.FitConfig:
    base = {
        "steps": 9, "rows": 4, "width": WIDTH, "eval_every": 3,
        "optimizer": OptimizerConfig(learning_rate=0.02, warmup=2),
    }  # fmt: skip
    return pretrain.FitConfig(**(base | changes))


@pytest.fixture(scope="module")
def uninterrupted(small_model, tmp_path_factory):
    root = tmp_path_factory.mktemp("fit")
    return pretrain.fit(
        small_model, counting(), fit_config(), seed=1, directory=root,
        held_out=counting(5),
    )  # fmt: skip


class Killed(Exception):
    pass


def test_a_fit_lowers_its_loss(uninterrupted, small_model):
    model, curve = uninterrupted
    assert [row["step"] for row in curve] == [3, 6, 9]
    assert curve[-1]["loss"] < 0.7 * curve[0]["loss"]
    assert curve[-1]["held_out/loss"] < curve[0]["held_out/loss"]
    assert helpers.distance(model.params, small_model.params) > 0.01


@pytest.mark.parametrize(("at", "kind"), [(3, "adamw"), (6, "adamw"), (3, "muon")])
def test_a_killed_fit_goes_on_bit_for_bit(
    uninterrupted, small_model, tmp_path, at, kind
):
    optimizer = OptimizerConfig(kind=kind, learning_rate=0.02, warmup=2)

    def go(directory, progress=None):
        return pretrain.fit(
            small_model, counting(), fit_config(optimizer=optimizer), seed=1,
            directory=tmp_path / directory, held_out=counting(5), progress=progress,
        )  # fmt: skip

    def kill(step, row):
        del row
        if step == at:
            raise Killed

    whole = uninterrupted if kind == "adamw" else go("whole")
    with pytest.raises(Killed):
        go("killed", kill)
    assert checkpoint.steps(tmp_path / "killed") == [at]
    steps = []
    model, curve = go("killed", lambda step, _: steps.append(step))
    assert steps == list(range(at + 3, 10, 3))  # nothing was done again
    helpers.assert_trees_equal(model.params, whole[0].params)
    assert curve == whole[1]
    again, same = go("killed", lambda *_: pytest.fail("nothing is left to do"))
    helpers.assert_trees_equal(again.params, model.params)
    assert same == curve


def test_the_context_is_trained_on_at_its_own_weight():
    example = Example([5, 6, 7, 8], [False, False, True, True], [0, 0, 1, 2])
    got = pretrain.with_context(example, 0.25)
    assert got.ids == [5, 6, 7, 8]
    assert got.part == [pretrain.CONTEXT, pretrain.CONTEXT, 1, 2]
    row = pretrain.pack([got], WIDTH)
    np.testing.assert_array_equal(row.mask[0, :4], [False, True, True, True])
    np.testing.assert_array_equal(row.weight[0, :4], [0.25, 0.25, 1.0, 1.0])
    with pytest.raises(ValueError, match="context_weight must be >= 0, got -1"):
        fit_config(context_weight=-1.0)


def test_rare_rewards_and_ends_weigh_as_if_they_were_not_rare(tok):
    steps = [helpers.transition(("s",), f"do {i}", ("t",)) for i in range(10)]
    steps[0] = dataclasses.replace(steps[0], rewards={"r": 1.0})
    steps[3] = dataclasses.replace(steps[3], rewards={"r": 1.0}, terminated=True)
    episode = helpers.episode("e", Task(id="a", instruction="go"), steps)

    def weights(balance):
        found = pretrain.transition_examples(
            tok,
            [episode],
            ReplayMemory.from_episodes([episode], capacity=9),
            SHAPE,
            balance=balance,
        )
        return [
            [np.broadcast_to(e.weight, len(e.ids))[np.array(e.mask)][where]
             for where in (np.flatnonzero(np.array(e.part)[e.mask] == p)
                           for p in range(4))]
            for e in found
        ]  # fmt: skip

    for e in (*weights(0.0), *weights(0.1)):  # one of ten is not rarer than 0.1
        assert all((part == 1).all() for part in e)
    half = weights(0.5)
    # 2 of 10 earn: 4 times; 1 of 10 ends: 9 times; states and reasoning never.
    for i, (why, state, reward, outcome) in enumerate(half):
        assert (why == 1).all()
        assert (state == 1).all()
        assert (reward == (4 if i in (0, 3) else 1)).all()
        assert (outcome == (9 if i == 3 else 1)).all()
    kept = pretrain.with_context(
        Example([1, 2, 3], [False, True, True], [0, 2, 3], weight=[1.0, 4.0, 9.0]), 0.25
    )
    assert kept.weight == [0.25, 4.0, 9.0]


def of_length(*lengths):
    return [Example([1] * n, [False] * (n - 1) + [True], [0] * n) for n in lengths]


@pytest.mark.parametrize(
    ("lengths", "wide", "kept"),
    [
        ((3, WIDTH), WIDTH, 2),
        ((3, WIDTH + 1), 64, 2),
        ((64, 3, 65), 8 * WIDTH, 3),
        ((3, 8 * WIDTH, 8 * WIDTH + 1), 8 * WIDTH, 2),
    ],
)
def test_rows_are_as_wide_as_the_longest_example_needs(lengths, wide, kept, capsys):
    assert pretrain.row_width(of_length(*lengths), WIDTH) == wide
    held = pretrain.held_by(of_length(*lengths), wide)
    assert held == of_length(*lengths)[:kept]
    said = f"1 of {len(lengths)} examples are longer than {wide} tokens"
    assert (said in capsys.readouterr().err) == (kept < len(lengths))


def test_an_example_that_fits_no_row_at_all_is_an_error(small_model, tmp_path):
    with pytest.raises(ValueError, match=f"longer than {8 * WIDTH} tokens: shorten"):
        pretrain.fit(
            small_model, of_length(999), fit_config(), seed=0, directory=tmp_path
        )


def test_a_fit_reads_long_examples_whole(small_model, tmp_path):
    # The answer stands in the first id alone, far beyond a row's width.
    def told(first):
        n = WIDTH + 5
        return Example([first] + [9] * (n - 2) + [first], [False] * (n - 1) + [True],
                       [0] * n)  # fmt: skip

    config = fit_config(steps=60, eval_every=60, rows=2)
    _, curve = pretrain.fit(
        small_model, [told(1), told(2)], config, seed=0, directory=tmp_path,
        held_out=[told(1), told(2)],
    )  # fmt: skip
    assert curve[-1]["held_out/loss"] < 0.5 * np.log(2)


def test_a_fit_with_context_learns_the_context(small_model, tmp_path):
    # The context counts up, the target is always 3: only the whole loss knows both.
    examples = [
        Example([k, k + 1, k + 2, 3], [False] * 3 + [True], [0] * 4) for k in range(6)
    ]
    held = [e._replace(mask=[False, True, True, False]) for e in examples]
    loss = {}
    for weight in (0.0, 1.0):
        _, curve = pretrain.fit(
            small_model, examples, fit_config(context_weight=weight), seed=0,
            directory=tmp_path / str(weight), held_out=held,
        )  # fmt: skip
        loss[weight] = curve[-1]["held_out/loss"]
    assert loss[1.0] < 0.7 * loss[0.0]


def test_the_seed_decides_the_order_of_a_fit(uninterrupted, small_model, tmp_path):
    model, _ = pretrain.fit(
        small_model, counting(), fit_config(), seed=2, directory=tmp_path
    )
    assert helpers.distance(model.params, uninterrupted[0].params) > 1e-4


def test_the_best_parameters_are_kept(small_model, tmp_path):
    # Held out is the opposite of what is fitted: every update makes it worse, so the
    # best parameters are those of the first evaluation, before and after a resume.
    backwards = [e._replace(ids=e.ids[::-1]) for e in counting(5)]
    first: list = []

    def fit(**changes):
        return pretrain.fit(
            small_model, counting(), fit_config(), seed=1, directory=tmp_path,
            held_out=backwards, **changes,
        )  # fmt: skip

    def look(step, row):
        del row
        if step == 3:
            shape = pretrain.Learner(
                small_model, OptimizerConfig(), pretrain.supervised_loss
            ).init()
            (_, (state, _), _) = checkpoint.restore(tmp_path, (shape, shape.params))
            first.append(pretrain.TrainState(*state).params)
        if step == 6:
            raise Killed

    with pytest.raises(Killed):
        fit(keep_best=True, progress=look)
    best, curve = fit(keep_best=True)
    losses = [row["held_out/loss"] for row in curve]
    assert losses[0] == min(losses) < losses[-1]
    helpers.assert_trees_equal(best.params, first[0])
    last, _ = fit(keep_best=False)
    assert helpers.distance(last.params, best.params) > 0.01


def test_held_out_losses_do_not_depend_on_the_rows(small_model):
    tokens = pretrain.pack(counting(16), WIDTH)
    learner = pretrain.Learner(small_model, OptimizerConfig(), pretrain.supervised_loss)
    params = learner.init().params
    one = pretrain.evaluate(learner, params, tokens, 4)
    assert tokens.ids.shape[0] % 3 or tokens.ids.shape[0] % 4  # a part is left over
    two = pretrain.evaluate(learner, params, tokens, 3)
    assert one.keys() == two.keys() == {"held_out/loss", "held_out/loss/reasoning"}
    for key, value in one.items():
        np.testing.assert_allclose(two[key], value, rtol=1e-5)
    # All targets are of part 0, so that its loss is the whole one.
    np.testing.assert_allclose(*one.values(), rtol=1e-5)


def test_a_loss_that_is_not_finite_stops_the_fit(small_model, tmp_path):
    bad = [e._replace(weight=float("nan")) for e in counting()]
    with pytest.raises(FloatingPointError, match="loss is nan at update 3"):
        pretrain.fit(small_model, bad, fit_config(), seed=0, directory=tmp_path)
    assert checkpoint.steps(tmp_path) == []  # nothing spoiled was kept


def test_nothing_to_fit_is_an_error(small_model, tmp_path):
    with pytest.raises(ValueError, match="nothing to fit"):
        pretrain.fit(small_model, [], fit_config(), seed=0, directory=tmp_path)
    for name in ("steps", "rows", "width", "eval_every"):
        with pytest.raises(ValueError, match="must be >= 1"):
            fit_config(**{name: 0})


# --- learning ----------------------------------------------------------------

THINGS = {"lamp": ("off", "on"), "door": ("shut", "open"), "bell": ("mute", "loud")}


def rooms() -> list:
    """Three rooms, in each of them every thing is turned once, in another order."""
    out = []
    for shift in range(3):
        names = [*THINGS][shift:] + [*THINGS][:shift]
        now, steps = dict.fromkeys(THINGS, 0), []
        for k, name in enumerate(names):
            before = tuple(f"{n} {THINGS[n][i]}" for n, i in now.items())
            now[name] = 1
            after = tuple(f"{n} {THINGS[n][i]}" for n, i in now.items())
            last = k == len(names) - 1
            steps.append(
                helpers.transition(
                    before, f"turn {name}", after, float(last),
                    terminated=last, success=last,
                )
            )  # fmt: skip
        about = Task(id=f"r{shift}", instruction="turn all", family="room")
        out.append(helpers.episode(f"e{shift}", about, steps))
    return out


def exact_after_fit(episodes, truth, directory) -> dict:
    config = ExperienceConfig(demos=0, temperature=0.0)
    episodes = [reasoning.annotate(e) for e in episodes]
    tok = TextTokenizer.train(pretrain.texts_of(episodes) * 5, 400)
    memory = ReplayMemory()
    examples = pretrain.transition_examples(tok, episodes, memory, config)
    shape = helpers.config(
        tok.vocab_size, hidden_size=32, num_hidden_layers=1, intermediate_size=64
    )
    model, _ = pretrain.fit(
        create(shape, seed=0), examples,
        pretrain.FitConfig(
            steps=150, rows=9, width=48, eval_every=150,
            optimizer=OptimizerConfig(learning_rate=0.01),
        ),
        seed=0, directory=directory,
    )  # fmt: skip
    local = LocalExperience(model, tok, memory, config)
    return fidelity.score(local, truth, limit=99)


def test_fitting_finds_what_happens_and_not_from_shuffled_outcomes(tmp_path):
    truth = rooms()
    card = exact_after_fit(truth, truth, tmp_path / "true")
    assert card["exact"]["all"] == {"mean": 1.0, "count": 9}
    assert card["reward"]["accuracy"]["mean"] == 1.0
    assert card["done"]["accuracy"]["mean"] == 1.0
    control = pretrain.shuffled(truth, seed=0)
    card = exact_after_fit(control, truth, tmp_path / "control")
    assert card["exact"]["all"]["mean"] <= 0.5
    assert card["reward"]["accuracy"]["mean"] < 1.0


def test_what_led_elsewhere_is_no_repeat(tok):
    def once(name, after, reward):
        step = helpers.transition(("a",), "go", (after,), reward)
        return helpers.episode(name, Task(id="t", instruction="i"), [step])

    one, again = once("1", "x", 0.0), once("2", "x", 0.0)
    memory = ReplayMemory.from_episodes([one], capacity=9)

    def count(*episodes):
        return len(pretrain.transition_examples(tok, episodes, memory, SHAPE))

    assert count(one, again) == 1
    assert count(one, again, once("3", "y", 0.0)) == 2
    assert count(one, again, once("3", "x", 0.5)) == 2
