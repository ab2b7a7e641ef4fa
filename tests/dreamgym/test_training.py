"""The loop: what enters an update, the curriculum, budget, resume, learning."""

import dataclasses
import functools

import jax
import numpy as np
import pytest

from curriculum.generator import FunctionProposer
from curriculum.sampler import CurriculumConfig, pool_of
from dreamgym import training
from dreamgym.agent.policy import Policy
from dreamgym.agent.rollout import rollout
from dreamgym.envs.base import Step
from dreamgym.envs.dream import DreamVectorEnv
from dreamgym.envs.vector import VectorEnv
from dreamgym.rl.config import PenaltyConfig, SurrogateConfig, UpdateConfig
from dreamgym.rl.critic import Critic, CriticConfig
from dreamgym.rl.update import Updater
from dreamgym.training import LoopConfig, Parts, Progress, ReplayConfig
from dreamgym.training.gather import Rollouts
from tests import doubles
from worldmodel.data.records import Task
from worldmodel.fitting.batches import pack

CONFIG = LoopConfig(
    updates=3, tasks=2, group_size=2,
    update=UpdateConfig(
        rows=8, width=80, minibatches=1, warmup=1, normalize_advantages="none",
    ),
    curriculum=CurriculumConfig(proposals=1),
)  # fmt: skip


class Recorder:
    """Stands for the updater: keeps the examples it is given."""

    def __init__(self):
        self.examples, self.seeds, self.weights, self.beside = [], [], [], []


@pytest.fixture
def recorder(monkeypatch):
    found = Recorder()

    def update(self, state, examples, *, seed, weights, beside, visits):
        del self, visits
        found.weights.append(weights.kl)
        found.beside.append(list(beside))
        found.examples.append(list(examples))
        found.seeds.append(seed)
        return state._replace(step=state.step + 1), {"loss": 0.5, "kl": 0.25}

    monkeypatch.setattr(Updater, "update", update)
    return found


@functools.cache
def updater(config=CONFIG.update):
    policy = doubles.policy()
    return Updater(policy.model, policy.model.params, policy.grammar(1.0), config)


def fresh(tasks, config=CONFIG):
    return Progress(
        0, updater().learner.init(), pool_of(tasks, config.curriculum), 0, []
    )


class Hooks:
    def __init__(self):
        self.seen = []

    def after_update(self, progress, trajectories):
        self.seen.append((progress, trajectories))


# --- one update --------------------------------------------------------------


def test_an_example_is_the_turn_with_its_advantage_and_nothing_of_the_context():
    task = doubles.task(0, 1, 2)
    (turn, _) = doubles.trajectory(task, ["go right", "take coin"]).turns
    example = training.turn_example(turn, -0.5)
    n = len(turn.context)
    assert list(example.ids) == [*turn.context, *turn.ids]
    assert not any(example.mask[: n + 1])  # the opener was forced
    assert all(example.mask[n + 1 :])
    assert list(example.columns["sampler_logp"]) == [0.0] * n + list(turn.logp)
    assert list(example.token_type) == [0] * n + list(turn.part)
    tokens = pack([example], len(example.ids) + 3)
    assert tokens.mask.sum() == len(turn.ids) - 1
    np.testing.assert_allclose(
        tokens.columns["advantage"][tokens.mask], -0.5, atol=1e-7
    )
    np.testing.assert_allclose(
        tokens.columns["sampler_logp"][tokens.mask], -1.0, atol=1e-7
    )


def test_learn_takes_groups_and_leaves_out_what_carries_no_signal(recorder):
    a, b, c = (doubles.task(0, 1, e) for e in (2, 3, 4))
    win, lose = ["go right", "take coin"], ["go left"]
    rows = [
        doubles.trajectory(a, win), doubles.trajectory(a, lose),
        doubles.trajectory(a, ["fly", "go left"]),
        doubles.trajectory(b, win), doubles.trajectory(b, win),
        doubles.trajectory(b, win),
        doubles.trajectory(c, win), doubles.trajectory(c, lose, error="broke"),
        doubles.trajectory(c, lose, error="broke"),
    ]  # fmt: skip
    config = dataclasses.replace(CONFIG, group_size=3)
    progress = fresh([a, b, c])._replace(update=4)
    state, row, *_ = training.learn(
        updater(), progress, Rollouts(rows, []), config, seed=100
    )
    (examples,) = recorder.examples
    # Group a: to go 0.9 and 1, 0, 0 and 0. At the first turn their mean is 0.3, at
    # the second two act. Group b agrees; group c has one scored member only.
    got = [e.columns["advantage"] for e in examples]
    np.testing.assert_allclose(got, [0.6, 0.5, -0.3, -0.3, -0.5], rtol=1e-6)
    assert list(examples[0].ids[: len(rows[0].turns[0].context)]) == list(
        rows[0].turns[0].context
    )
    assert recorder.seeds == [104]
    assert int(state.step) == 1
    assert row["success"] == pytest.approx(5 / 7)
    assert row["return"] == pytest.approx(5 / 7)
    assert row["unscored"] == 2.0
    assert row["used_turns"] == pytest.approx(5 / 15)
    assert row["steps"] == pytest.approx((2 + 1 + 2 + 2 * 3 + 2 + 1 + 1) / 9)
    assert (row["loss"], row["kl"]) == (0.5, 0.25)


def groups_of_two():
    a, b = doubles.task(0, 1, 2), doubles.task(0, 1, 3)
    win, lose = ["go right", "take coin"], ["go left"]
    rows = [
        doubles.trajectory(a, win), doubles.trajectory(a, lose),
        doubles.trajectory(b, win), doubles.trajectory(b, lose),
    ]  # fmt: skip
    return [a, b], rows


@pytest.mark.parametrize("average", ["token", "turn", "episode"])
def test_what_is_averaged_weighs_the_same(recorder, average):
    tasks, rows = groups_of_two()
    surrogate = SurrogateConfig(average=average)
    update = dataclasses.replace(CONFIG.update, surrogate=surrogate)
    config = dataclasses.replace(CONFIG, update=update)
    training.learn(updater(), fresh(tasks), Rollouts(rows, []), config, seed=0)
    (examples,) = recorder.examples
    tokens = [sum(e.mask) * e.weight for e in examples]
    assert len(examples) == 4  # the first turns; at the second one member is left
    written = [sum(sum(t.sampled) for t in r.turns) for r in rows]
    first = [sum(r.turns[0].sampled) for r in rows]
    expected = {
        "token": first, "turn": [1.0] * 4,
        "episode": [a / b for a, b in zip(first, written, strict=True)],
    }  # fmt: skip
    np.testing.assert_allclose(tokens, expected[average])


def test_the_distance_to_the_reference_may_be_taken_off_the_reward(
    recorder, monkeypatch
):
    tasks, rows = groups_of_two()
    update = dataclasses.replace(
        CONFIG.update, kl=0.5, penalty=PenaltyConfig(place="reward"), discount=1.0
    )
    config = dataclasses.replace(CONFIG, update=update)
    far = [0.2, 0.4, 0.6, 0.0, 0.0, 0.0]  # of the six turns, in order
    monkeypatch.setattr(Updater, "surprise", lambda _, e: np.array(far[: len(e)]))
    training.learn(updater(), fresh(tasks), Rollouts(rows, []), config, seed=0)
    (examples,) = recorder.examples
    # To go: 1 - (0.2 + 0.4) / 2 and 0 - 0.6 / 2; then 1 and 0.
    np.testing.assert_allclose(
        [e.columns["advantage"] for e in examples], [0.5, -0.5, 0.5, -0.5]
    )


def test_the_weight_of_the_kl_follows_its_target_and_is_kept(recorder):
    tasks, rows = groups_of_two()
    update = dataclasses.replace(
        CONFIG.update, kl=0.1, penalty=PenaltyConfig(target=0.1)
    )
    config = dataclasses.replace(CONFIG, update=update)
    progress, weight = fresh(tasks), 0.1
    for number in range(3):
        state, row, *_ = training.learn(
            updater(), progress, Rollouts(rows, []), config, seed=0
        )
        assert recorder.weights[-1] == pytest.approx(weight)
        weight *= 1.1  # measured 0.25: more than 20 % above the target
        assert row["kl_weight"] == pytest.approx(weight)
        progress = progress._replace(
            update=number + 1, state=state, curve=[*progress.curve, row]
        )


def test_without_a_signal_the_parameters_stay(recorder):
    task = doubles.task(0, 1, 2)
    rows = [doubles.trajectory(task, ["go left"], error="broke") for _ in range(2)]
    progress = fresh([task])
    config = dataclasses.replace(CONFIG, tasks=1)
    state, row, *_ = training.learn(
        updater(), progress, Rollouts(rows, []), config, seed=0
    )
    assert recorder.examples == []
    assert state is progress.state
    assert row["unscored"] == 2.0
    assert not {"success", "return"} & row.keys()  # nobody knows


def test_the_advantage_may_be_divided_by_the_std(recorder):
    task = doubles.task(0, 1, 2)
    rows = [
        doubles.trajectory(task, a) for a in (["go right", "take coin"], ["go left"])
    ]
    config = dataclasses.replace(
        CONFIG, update=dataclasses.replace(CONFIG.update, normalize_advantages="group")
    )
    training.learn(updater(), fresh([task]), Rollouts(rows, []), config, seed=0)
    got = [e.columns["advantage"] for e in recorder.examples[0]]
    # At the second turn one is left, and nothing to compare it with.
    np.testing.assert_allclose(got, [1.0, -1.0], rtol=1e-3)


# --- the loop ----------------------------------------------------------------


def mixed(task, past, state):
    """Wins the even corridors, falls in the odd ones."""
    if int(task.id.split("-")[2]) % 2:
        return "go left"
    return doubles.expert_rule(task, past, state)


def loop(progress=None, *, config=CONFIG, hooks=None, **settings):
    tasks = doubles.tasks("train")[:8]
    envs = DreamVectorEnv(doubles.RuleModel(), 4, max_steps=9)
    progress = fresh(tasks, config) if progress is None else progress
    return training.train(
        doubles.Scripted(mixed), envs, updater(), progress, config, seed=3,
        hooks=Hooks() if hooks is None else hooks, **settings,
    )  # fmt: skip


def test_the_loop_rolls_out_groups_and_tells_its_hooks(recorder):
    hooks = Hooks()
    end = loop(hooks=hooks)
    assert end.update == 3
    assert len(end.curve) == 3
    assert [row["update"] for row in end.curve] == [1, 2, 3]
    total = 0
    for number, (progress, found) in enumerate(hooks.seen, start=1):
        assert progress.update == number
        names = [t.episode.task.id for t in found]
        assert names[0::2] == names[1::2]  # each task twice, side by side
        assert len(names) == 4
        total += sum(len(t.turns) for t in found)
        assert progress.transitions == total == progress.curve[-1]["transitions"]
    assert not recorder.examples  # a rule's group never differs


def test_a_loop_that_goes_on_equals_one_that_was_never_stopped():
    hooks = Hooks()
    whole = loop(hooks=hooks)
    first = loop(config=dataclasses.replace(CONFIG, updates=1))
    pool = pool_of(doubles.tasks("train")[:2], CONFIG.curriculum)
    pool.load(first.pool.state())
    again = loop(first._replace(pool=pool))
    assert again.curve == whole.curve
    assert again.pool.entries == whole.pool.entries
    assert again.transitions == whole.transitions


def test_the_loop_ends_at_its_budget():
    one = loop(config=dataclasses.replace(CONFIG, updates=1)).transitions
    end = loop(config=dataclasses.replace(CONFIG, updates=50), budget=one + 1)
    assert end.update == 2
    assert end.transitions > one
    assert loop(budget=0).update == 0


def test_invented_tasks_enter_the_pool_and_then_the_batch():
    model = doubles.RuleModel()

    @FunctionProposer
    def propose(seeds):
        return model.vary(seeds, key=jax.random.key(0))

    config = LoopConfig(
        updates=3, tasks=4, group_size=2, update=CONFIG.update,
        curriculum=CurriculumConfig(proposals=3, generated_share=0.5),
    )  # fmt: skip
    hooks = Hooks()
    end = loop(config=config, hooks=hooks, parts=Parts(propose=propose))
    made = [e for e in end.pool.entries.values() if e.generated]
    assert made
    for progress, found in hooks.seen:
        told = progress.curve[-1]
        share = np.mean([t.episode.task.split == "generated" for t in found])
        assert told["tasks/generated_share"] == pytest.approx(share)
        assert share <= 0.5
        counts = sum(
            told.get(f"tasks/{k}", 0) for k in ("accepted", "duplicate", "form")
        )
        assert counts == 3
    assert end.curve[-1]["tasks/generated_share"] > 0


def test_progress_is_shown_with_the_number_of_the_update():
    shown = []
    loop(show=lambda *x: shown.append(x))
    assert sorted({n for n, _, _ in shown}) == [0, 1, 2]
    assert shown[-1] == (2, 4, 4)


@pytest.mark.parametrize(
    ("setting", "value"), [("group_size", 1), ("updates", 0), ("tasks", 0)]
)
def test_bad_settings_are_refused_by_name(setting, value):
    with pytest.raises(ValueError, match=f"{setting}.*{value}"):
        LoopConfig(**{setting: value})


# --- learning, and the control that must fail --------------------------------

WORDS = ("go left", "go right", "take coin", "goal 2")
GOOD = "go right"


class Bandit(VectorEnv):
    """One step an episode; `pay(action)` is the reward and the success."""

    def __init__(self, size, pay):
        self.size, self._pay, self._live = size, pay, [False] * size
        self.transitions = 0

    def reset(self, *, options):
        mask = options.get("reset_mask", [True] * self.size)
        self._live = [a or b for a, b in zip(mask, self._live, strict=True)]
        return [t.initial_state if t else None for t in options["tasks"]]

    def step(self, actions):
        out = [None] * self.size
        for i, action in enumerate(actions):
            if self._live[i] and action is not None:
                paid = self._pay(action)
                out[i] = Step(
                    ("said ok",), {"pay": float(paid)}, True, False, paid, None, None
                )
                self._live[i] = False
                self.transitions += 1
        return out


ARM = Task(id="arm", instruction="take the coin", family="arm",
           initial_state=("said ok",))  # fmt: skip


def undecided() -> Policy:
    return doubles.cloned(WORDS, (ARM,))


def share_of_good(policy, seed):
    envs = Bandit(64, lambda action: action == GOOD)
    found = rollout(
        policy, envs, [ARM] * 64, key=jax.random.key(seed + 77), temperature=1.0
    )
    return np.mean([t.episode.success for t in found])


def learned(seed, pay, *, loop=None, **settings):
    update = {
        "learning_rate": 6e-3, "kl": 0.0, "rows": 8, "width": 64, "minibatches": 1,
        "warmup": 1,
    }  # fmt: skip
    size = {"updates": 20, "tasks": 2, "group_size": 16} | (loop or {})
    config = LoopConfig(**size, update=UpdateConfig(**(update | settings)))
    start, c = undecided(), config.update
    tasks = [ARM, dataclasses.replace(ARM, id="arm2")]
    learner = Updater(start.model, start.model.params, start.grammar(1.0), c)
    critic = None
    if c.baseline == "critic":
        critic = Critic(start.model, c.critic, rows=c.rows, width=c.width)
    progress = Progress(
        0, learner.learner.init(), pool_of(tasks, config.curriculum), 0, [],
        None if critic is None else critic.init(),
    )  # fmt: skip
    end = training.train(
        start, Bandit(32, pay), learner, progress, config, seed=seed, hooks=Hooks(),
        parts=Parts(critic=critic),
    )  # fmt: skip
    policy = start.replace(start.model._replace(params=end.state.params))
    return share_of_good(policy, seed), end


def finds(seed, **settings):
    """Whether what pays is found; and where every action pays alike, nothing."""
    found, _ = learned(seed, lambda action: action == GOOD, **settings)
    rng = np.random.default_rng(seed)
    # The same rate, and no news in it.
    control, _ = learned(seed, lambda _: bool(rng.random() < 0.25), **settings)
    return found, control


def test_grpo_finds_what_pays_and_only_where_it_is_told():
    """Noise drives a policy to some arm, now and then to this one: not on average."""
    seeds = (0, 1, 2)
    assert all(0.05 < share_of_good(undecided(), seed) < 0.55 for seed in seeds)
    results = [finds(seed) for seed in seeds]
    assert min(found for found, _ in results) > 0.9
    assert np.mean([control for _, control in results]) < 0.5


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings",
    [
        {"baseline": "critic"},
        {"baseline": "critic",
         "critic": CriticConfig(trunk="own")},
        {"baseline": "others"}, {"baseline": "batch"},
        {"surrogate": SurrogateConfig(ratio="turn", average="turn")},
        {"normalize_advantages": "group", "credit": "episode",
         "surrogate": SurrogateConfig(average="episode")},
        {"credit": "state"},
        {"surrogate": SurrogateConfig(dual_clip=3.0, truncate=2.0),
         "minibatches": 4, "entropy": 0.001},
        {"kl": 0.01, "penalty": PenaltyConfig(kind="k3")},
        {"kl": 0.01, "penalty": PenaltyConfig(place="reward", target=0.5)},
        {"radius": 0.05},
        {"baseline": "others", "surrogate": SurrogateConfig(ratio="none")},
        {"baseline": "critic",
         "critic": CriticConfig(over="token"),
         "loop": {"tasks": 32, "group_size": 1}},
        {"baseline": "success", "surrogate": SurrogateConfig(ratio="none"),
         "loop": {"replay": ReplayConfig(share=0.5)}},
        {"baseline": "pairs", "beta": 0.5, "learning_rate": 1e-2,
         "surrogate": SurrogateConfig(ratio="none", average="episode")},
        {"loop": {"replay": ReplayConfig(share=1.0), "resample": 1}},
    ],
    ids=lambda s: "-".join(f"{k}={v}" for k, v in s.items())[:60],
)  # fmt: skip
def test_its_relatives_find_it_too(settings):
    found, control = finds(0, **settings)
    assert found > 0.85
    assert control < 0.65


def test_no_update_leaves_the_trust_region():
    def moves(**settings):
        _, end = learned(0, lambda action: action == GOOD, **settings)
        return [row for row in end.curve if "moved" in row]  # else nothing to learn

    free = moves(radius=0.0, max_turn_kl=0.0)
    radius = max(row["moved"] for row in free) / 4
    held = moves(radius=radius)
    assert max(row["moved"] for row in held) <= radius
    assert min(row["step"] for row in held) < 1.0
    assert all(row["moved"] <= row["moved_most"] for row in free)
