import collections
import dataclasses
import itertools

import numpy as np
import pytest
import tokenizers

from tests import doubles, helpers
from worldmodel import fidelity, reasoning
from worldmodel.backbone.model import create
from worldmodel.data import outcomes
from worldmodel.data.records import Task, Transition
from worldmodel.data.seed_tasks import SeedTask
from worldmodel.experience.base import Query, query_after
from worldmodel.experience.config import ExperienceConfig
from worldmodel.experience.examples import (
    mean_tokens,
    permute_outcomes,
    reply_tokens,
    text_sizes,
    texts_of,
    transition_examples,
    unwritable_texts,
    variation_examples,
)
from worldmodel.experience.local import LocalExperienceModel
from worldmodel.fitting import supervised
from worldmodel.fitting.batches import Example
from worldmodel.fitting.config import OptimizerConfig
from worldmodel.memory import ReplayMemory
from worldmodel.text import prompts
from worldmodel.text.prompts import PARTS
from worldmodel.text.task_variations import variation_ids, variation_reply_ids
from worldmodel.text.tokenizer import TextTokenizer

SHAPE = ExperienceConfig(
    demonstrations=1, history=2, reasoning_tokens=20, state_tokens=16
)
EPISODES = [helpers.lamp_and_door(f"room-{i}") for i in range(3)]


def test_the_tokenizer_sees_every_kind_of_text():
    e = reasoning.annotate(helpers.lamp_and_door())
    texts = texts_of([e])
    for one in (
        e.task.instruction,
        "the lamp is off",
        "the door is open",
        "pull door",
        e.transitions[0].reasoning,
        "0.5",
    ):
        assert one in texts


@pytest.mark.medium
def test_a_query_without_past_states_is_refused_where_they_are_read(tok, text_model):
    config = dataclasses.replace(SHAPE, history_states=True)
    model = LocalExperienceModel(text_model, tok, ReplayMemory(), config)
    e = EPISODES[0]
    query = Query(e.task, ("press lamp",), e.transitions[1].state, "pull door")
    with pytest.raises(ValueError, match="a past state for each past action, got 0"):
        model.predict([query])
    dark, lit = e.transitions[0].state, e.transitions[1].state
    # What led here is part of the question now.
    one, two = (query._replace(past_states=(s,)) for s in (dark, lit))
    model.predict([one, two])
    assert model.computed == 2
    assert query_after(e.task, e.transitions[:1], lit, "pull door") == one


def test_an_example_is_context_and_reply(tok):
    episodes = [reasoning.annotate(e) for e in EPISODES]
    memory = ReplayMemory.from_episodes(episodes, capacity=100)
    out = transition_examples(tok, episodes, memory, SHAPE)
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
        assert example.token_type[: len(context)] == [0] * len(context)
        # Each structure token opens its part: next 1, reward 2, outcome 3.
        part = 0
        for token, got in zip(reply, example.token_type[len(context) :], strict=True):
            part = {"next": 1, "reward": 2, "outcome": 3}.get(
                str(tok.name(token)), part
            )
            assert got == part
        assert set(example.token_type) == {0, 1, 2, 3}


def test_demonstrations_have_their_states_where_asked_for(tok):
    memory = ReplayMemory.from_episodes(EPISODES, capacity=100)
    shape = dataclasses.replace(SHAPE, demonstration_states=True, context_budget=999)
    with_states = transition_examples(tok, EPISODES, memory, shape)
    without = transition_examples(tok, EPISODES, memory, SHAPE)
    starts = [ids.index(tok.control("task")) for ids in (x.ids for x in with_states)]
    for example, start, short in zip(with_states, starts, without, strict=True):
        names = [tok.name(i) for i in example.ids[:start]]
        assert names[0] == "demo"
        assert "state" in names  # of the demonstration; that of the query follows
        # Nothing else differs.
        after = short.ids.index(tok.control("task"))
        assert example.ids[start:] == short.ids[after:]
        assert "state" not in [tok.name(i) for i in short.ids[:after]]


def test_no_example_shows_its_own_answer(tok):
    # One task, played twice: without another task there is nothing to show.
    twice = [EPISODES[0], dataclasses.replace(EPISODES[0], id="again")]
    memory = ReplayMemory.from_episodes(twice, capacity=100)
    out = transition_examples(tok, twice, memory, SHAPE)
    assert len(out) == 3  # exact repeats are kept once
    assert not any(tok.control("demo") in e.ids for e in out)
    more = ReplayMemory.from_episodes([*twice, EPISODES[1]], capacity=100)
    out = transition_examples(tok, twice, more, SHAPE)
    assert all(tok.control("demo") in e.ids for e in out)


def test_the_history_shown_decides_what_is_a_repeat(tok):
    e = helpers.lamp_and_door()
    repeated = helpers.episode(
        "r", e.task, [*e.transitions[:2], e.transitions[1], e.transitions[2]]
    )

    def count(history):
        config = dataclasses.replace(SHAPE, history=history, demonstrations=0)
        memory = ReplayMemory()
        return len(transition_examples(tok, [repeated], memory, config))

    # With a past, the second "nothing" is another question than the first one.
    assert [count(0), count(1), count(2)] == [3, 4, 4]


def task_episodes(task, *outcomes):
    steps = [helpers.transition(task.initial_state, "go", ("x",))]
    return [
        dataclasses.replace(helpers.episode(f"{task.id}-{i}", task, steps), success=won)
        for i, won in enumerate(outcomes)
    ]


def test_tasks_are_written_from_similar_ones_of_their_family(tok):
    tasks = [
        Task(id=f"{f}{i}", instruction=f"do {f} {i}", family=f, initial_state=(f"{i}",))
        for f, n in (("a", 4), ("b", 2), ("lonely", 1))
        for i in range(n)
    ]
    episodes = [e for t in tasks for e in task_episodes(t, True, False)]
    config = ExperienceConfig(variation_seeds=2)
    out = variation_examples(tok, episodes, config, repeats=3, seed=0)
    assert len(out) == 3 * (4 + 2)  # a second episode and the lonely one give nothing
    by_context = {
        tuple(variation_ids(tok, list(map(SeedTask, pair, outcomes)))): (
            pair,
            outcomes,
        )
        for n in (1, 2)
        for pair in itertools.permutations(tasks, n)
        for outcomes in itertools.product((0.5, None), repeat=n)
    }
    by_reply = {tuple(variation_reply_ids(tok, t)): t for t in tasks}
    targets, scored = collections.Counter(), collections.Counter()
    for e in out:
        cut = e.mask.index(True)
        assert all(e.mask[cut:])
        assert set(e.token_type[cut:]) == {PARTS.index("variation")}
        seeds, outcomes = by_context[tuple(e.ids[:cut])]
        scored.update(x is not None for x in outcomes)
        target = by_reply[tuple(e.ids[cut:])]
        assert {s.family for s in seeds} == {target.family}
        assert target not in seeds
        assert len(seeds) == {"a": 2, "b": 1}[target.family]
        targets[target.id] += 1
    assert set(targets.values()) == {3}
    # As among the seeds that a policy has not tried, some have no outcome.
    assert min(scored[True], scored[False]) >= 8


def test_seeds_of_unscored_episodes_have_no_outcome(tok):
    tasks = [
        Task(id=f"{i}", instruction=f"do {i}", initial_state=("x",)) for i in range(2)
    ]
    episodes = [*task_episodes(tasks[0], None), *task_episodes(tasks[1], None, True)]
    config = ExperienceConfig(variation_seeds=1)
    contexts = [
        e.ids[: e.mask.index(True)]
        for e in variation_examples(tok, episodes, config, repeats=9, seed=0)
    ]
    unscored = variation_ids(tok, [SeedTask(tasks[0])])
    assert contexts[1::2] == [unscored] * 9
    scored = [variation_ids(tok, [SeedTask(tasks[1], x)]) for x in (1.0, None)]
    assert all(context in scored for context in contexts[::2])
    assert all(context in contexts for context in scored)


def test_tasks_are_asked_for_again_with_other_names(tok):
    rooms = ("hall", "attic", "cellar", "study")
    tasks = [
        Task(id=room, instruction=f"go to the {room}", initial_state=(f"at {room}",))
        for room in rooms
    ]
    episodes = [e for t in tasks for e in task_episodes(t, True)]
    real = [tuple(variation_reply_ids(tok, t)) for t in tasks]
    groups = {"": (rooms,)}

    def replies(**names):
        out = variation_examples(
            tok, episodes, ExperienceConfig(), repeats=3, seed=0, **names
        )
        return [tuple(e.ids[e.mask.index(True) :]) for e in out]

    assert replies() == real * 3
    exchanged = replies(names=groups)
    assert exchanged[:4] == real
    assert exchanged[4:] != real * 2
    # Each is a task of the same form: of one room only, in instruction and state.
    assert set(exchanged) <= set(real)


def test_seeds_of_a_task_are_those_that_read_most_alike(tok):
    """Of forty tasks in two wordings those of the same one are the nearest."""
    tasks = [
        Task(id=f"{kind}{i}", instruction=f"{kind} {i}", initial_state=(f"row {i}",))
        for i in range(20)
        for kind in ("count the sheep", "find a way home")
    ]
    episodes = [e for t in tasks for e in task_episodes(t, True)]
    out = variation_examples(tok, episodes, ExperienceConfig(), repeats=1, seed=0)
    assert len(out) == 40
    for e in out:
        cut = e.mask.index(True)
        context, reply = tok.decode(e.ids[:cut]), tok.decode(e.ids[cut:])
        assert ("sheep" in context, "home" in context) == (
            "sheep" in reply,
            "home" in reply,
        )


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
    out = permute_outcomes(episodes, seed=0)
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
    assert permute_outcomes(episodes, seed=0) == out
    assert permute_outcomes(episodes, seed=1) != out


def test_the_room_that_replies_need_by_hand(tok):
    episodes = [reasoning.annotate(e) for e in EPISODES]
    memory = ReplayMemory.from_episodes(episodes, capacity=100)
    examples = transition_examples(tok, episodes, memory, SHAPE)
    steps = [t for e in episodes for t in e.transitions]
    result = reply_tokens(examples)
    # `next` closes the reasoning and `reward` the state: neither takes room in them.
    assert result == {
        "reasoning_tokens": max(len(tok.encode(t.reasoning)) for t in steps),
        "state_tokens": max(
            len(prompts.effect_ids(tok, t.state, t.next_state)) - 1 for t in steps
        ),
        "reward_tokens": max(
            len(tok.encode(outcomes.number_text(t.reward))) for t in steps
        ),
    }
    # One in a thousand may be cut, one in a hundred may not.
    long = Example([0] * 50, [True] * 50, [1] * 50)
    assert reply_tokens([*examples * 200, long]) == result
    assert reply_tokens([*examples * 10, long])["state_tokens"] == 49


def test_tokens_are_counted_by_hand():
    examples = [Example([1, 2], [False, True], [0, 0]), Example([1] * 5, [], [])]
    assert mean_tokens(examples) == 3.5
    none = {"reasoning_tokens": 0, "state_tokens": 0, "reward_tokens": 0}
    assert reply_tokens([]) == none


def test_a_cost_of_every_step_hides_no_rare_reward(tok):
    """Rare is what the commonest reward is not, whatever that is."""
    steps = [
        dataclasses.replace(
            helpers.transition(("s",), f"do {i}", ("t",)),
            rewards={"r": 1.0 if i == 3 else -0.01},
        )
        for i in range(10)
    ]
    episode = helpers.episode("e", Task(id="a", instruction="go"), steps)
    memory = ReplayMemory.from_episodes([episode], capacity=9)
    out = transition_examples(tok, [episode], memory, SHAPE, balance=0.5)
    for i, example in enumerate(out):
        of_reward = np.array(example.token_type) == 2
        weight = np.broadcast_to(example.weight, len(example.ids))[of_reward]
        assert (weight == (9 if i == 3 else 1)).all()


def test_rare_rewards_and_ends_weigh_as_if_they_were_not_rare(tok):
    steps = [helpers.transition(("s",), f"do {i}", ("t",)) for i in range(10)]
    steps[0] = dataclasses.replace(steps[0], rewards={"r": 1.0})
    steps[3] = dataclasses.replace(steps[3], rewards={"r": 1.0}, terminated=True)
    episode = helpers.episode("e", Task(id="a", instruction="go"), steps)

    def weights(balance):
        results = transition_examples(
            tok,
            [episode],
            ReplayMemory.from_episodes([episode], capacity=9),
            SHAPE,
            balance=balance,
        )
        return [
            [
                np.broadcast_to(e.weight, len(e.ids))[np.array(e.mask)][where]
                for where in (
                    np.flatnonzero(np.array(e.token_type)[e.mask] == p)
                    for p in range(4)
                )
            ]
            for e in results
        ]

    for e in (*weights(0.0), *weights(0.1)):  # one of ten is not rarer than 0.1
        assert all((part == 1).all() for part in e)
    half = weights(0.5)
    # 2 of 10 earn: 4 times; 1 of 10 ends: 9 times; states and reasoning never.
    for i, (why, state, reward, outcome) in enumerate(half):
        assert (why == 1).all()
        assert (state == 1).all()
        assert (reward == (4 if i in (0, 3) else 1)).all()
        assert (outcome == (9 if i == 3 else 1)).all()
    kept = supervised.with_context_loss(
        Example([1, 2, 3], [False, True, True], [0, 2, 3], weight=[1.0, 4.0, 9.0]), 0.25
    )
    assert kept.weight == [0.25, 4.0, 9.0]


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
                    before,
                    f"turn {name}",
                    after,
                    float(last),
                    terminated=last,
                    success=last,
                )
            )
        about = Task(id=f"r{shift}", instruction="turn all", family="room")
        out.append(helpers.episode(f"e{shift}", about, steps))
    return out


def exact_after_fit(episodes, truth, directory) -> dict:
    config = ExperienceConfig(demonstrations=0, temperature=0.0)
    episodes = [reasoning.annotate(e) for e in episodes]
    tok = TextTokenizer.train(texts_of(episodes) * 5, 400)
    memory = ReplayMemory()
    examples = transition_examples(tok, episodes, memory, config)
    shape = helpers.config(
        tok.vocab_size, hidden_size=32, num_hidden_layers=1, intermediate_size=64
    )
    model, _ = supervised.fit(
        create(shape, seed=0),
        examples,
        supervised.FitConfig(
            steps=150,
            batch_rows=9,
            row_tokens=48,
            eval_every=150,
            optimizer=OptimizerConfig(learning_rate=0.01),
        ),
        seed=0,
        directory=directory,
    )
    local = LocalExperienceModel(model, tok, memory, config)
    return fidelity.score(local, truth, limit=99)


@pytest.mark.slow
def test_fitting_finds_what_happens_and_not_from_shuffled_outcomes(tmp_path):
    truth = rooms()
    card = exact_after_fit(truth, truth, tmp_path / "true")
    assert (card["exact"]["all"]["mean"], card["exact"]["all"]["count"]) == (1.0, 9)
    assert card["reward"]["accuracy"]["mean"] == 1.0
    assert card["done"]["accuracy"]["mean"] == 1.0
    control = permute_outcomes(truth, seed=0)
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
        return len(transition_examples(tok, episodes, memory, SHAPE))

    assert count(one, again) == 1
    assert count(one, again, once("3", "y", 0.0)) == 2
    assert count(one, again, once("3", "x", 0.5)) == 2


def test_room_for_actions_is_measured_on_what_may_be_imitated():
    """On wins; without any on episodes that were paid, and never on others."""
    tok = doubles.tokenizer()
    task = doubles.tasks("train")[0]
    won, long = doubles.expert(task), "go right " * 4
    lost = doubles.episode(task, [long], name="lost")
    step = dataclasses.replace(lost.transitions[0], rewards={"progress": 0.5})
    paid = dataclasses.replace(lost, transitions=(step,))
    words = max(len(tok.encode(t.action)) for t in won.transitions)
    assert len(tok.encode(long)) > words
    for episodes, tokens in (
        ([won, paid], words),
        ([paid], len(tok.encode(long))),
        ([lost], 0),
    ):
        assert text_sizes(tok, episodes, [])["action_tokens"] == tokens


def test_texts_that_a_tokenizer_cannot_write_are_counted_once(tok):
    state = ("a Key", "queue", "plain")
    steps = [
        Transition(state=state, action=action, next_state=state, rewards={})
        for action in ("go", "Go", "Go")
    ]
    episode = dataclasses.replace(
        doubles.expert(doubles.tasks("train")[0]),
        transitions=tuple(steps),
        success=None,
    )
    words = {w: i for i, w in enumerate("<unk> a key go plain".split())}
    core = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="<unk>"))
    core.normalizer = tokenizers.normalizers.Lowercase()
    core.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    share, example = unwritable_texts(TextTokenizer(core), [episode])
    assert share == 3 / 5  # "a Key", "queue" and "Go" of five texts
    assert example == "Go"
    assert unwritable_texts(tok, [episode]) == (0.0, "")
    assert unwritable_texts(tok, []) == (0.0, "")
