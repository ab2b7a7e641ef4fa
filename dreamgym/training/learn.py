"""From a batch of rollouts to a better policy: one update and what it tells.

trajectories -> rewards -> advantages of turns (rl/credit.py) -> examples, with what is
replayed -> the update (rl/update.py) -> a row of the curve.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from curriculum.lesson_tracker import LessonTracker
from dreamgym.agent.policy import Turn
from dreamgym.agent.rollout import Trajectory
from dreamgym.envs.base import UNTRUSTED
from dreamgym.rl.advantages import unit_rms
from dreamgym.rl.controllers import adapted
from dreamgym.rl.credit import Flat, Grid
from dreamgym.rl.critic import Critic
from dreamgym.rl.update import Updater
from dreamgym.rl.watch import Weights, weights_of
from dreamgym.training.config import LoopConfig
from dreamgym.training.gather import Rollouts
from dreamgym.training.metrics import rollout_metrics
from dreamgym.training.progress import Progress
from worldmodel.data.records import State
from worldmodel.fitting.batches import Example
from worldmodel.fitting.learner import TrainState

DENSE = ("milestone/", "tool/", "learned", "judge")
"""How components begin that are no outcome: the remedy "rewards" turns them down."""
TASK = "tool/task"


class Learned(NamedTuple):
    """After an update: the policy, its row of the curve, critic and replay."""

    state: TrainState
    row: dict[str, Any]
    critic: TrainState | None
    replay: tuple[Example, ...]


class _Batch:
    """The turns of some trajectories, one after the other, with what is known of them.

    `use` and `adv` are set by the method that finds the advantages.
    """

    def __init__(self, rows: Sequence[Trajectory], config: LoopConfig):
        self.rows, self.config = rows, config
        self.turns = [turn for t in rows for turn in t.turns]
        self.length = np.array([len(t.turns) for t in rows])
        self.written = np.array([sum(sum(x.sampled) for x in t.turns) for t in rows])
        self.won = np.array([bool(t.episode.success) for t in rows])
        void = [config.drop_void and any(x.void for x in t.turns) for t in rows]
        whole = ~np.array(void, bool)
        self.scored = np.array([t.error is None for t in rows]) & whole
        self.cut = np.array([(t.error or "").startswith(UNTRUSTED) for t in rows])
        self.cut &= whole
        self.examples = [
            turn_example(turn, 0.0, weight)
            for turn, weight in zip(self.turns, self._weights(), strict=True)
        ]

    def _weights(self) -> list[float]:
        """The weight of each turn's tokens, so that what is to counts the same."""
        average, out = self.config.update.surrogate.average, []
        for t, written in zip(self.rows, self.written, strict=True):
            for turn in t.turns:
                of = {"token": 1, "turn": sum(turn.sampled), "episode": int(written)}
                out.append(1.0 / max(of[average], 1))
        return out

    def visits(self, started: int) -> np.ndarray:
        """How often each turn counts in the gain of Theorem 1: discount**turn of the
        first `started` rows, divided by their episodes and normalised; 0 in forks.

        Advantages then add up to (1 - discount) times what an episode gains: to their
        mean over the discounted visits, of which those after an episode's end gain
        nothing. Without a discount there is no such sum: each turn counts alike.
        """
        rate = self.config.update.discount
        if rate == 1.0:
            turns = max(self.length[:started].sum(), 1)
            return np.concatenate(
                [np.full(n, (i < started) / turns) for i, n in enumerate(self.length)]
            )
        whole = (self.scored | self.cut)[:started].sum()
        return np.concatenate([
            (i < started) * (1.0 - rate) / max(whole, 1) * rate ** np.arange(n)
            for i, n in enumerate(self.length)
        ])  # fmt: skip

    def grid(self) -> Grid:
        """Of turns."""
        return Grid(self.length, self.scored, self.cut.astype(int))

    def states(self) -> np.ndarray:
        """Number the states in which turns begin; equal ones have one number."""
        numbers: dict[State, int] = {}
        return np.array(
            [
                numbers.setdefault(x.state, len(numbers))
                for t in self.rows
                for x in t.episode.transitions
            ],
            int,
        )

    def rewards(
        self, weights: Weights, updater: Updater, stages: LessonTracker | None
    ) -> Flat:
        """Of each turn; less the way to the reference, where that is paid here.

        A stage of the curriculum multiplies components by their names.
        """
        out = np.array([
            sum(
                v * (weights.dense if _dense(k) else 1.0)
                for k, v in (stages.rewards(x.rewards) if stages else x.rewards).items()
            )
            for t in self.rows for x in t.episode.transitions
        ], float)  # fmt: skip
        if weights.kl and self.config.update.penalty.place == "reward":
            out -= weights.kl * updater.surprise(self.examples)
        return out


def learn(
    updater: Updater,
    progress: Progress,
    found: Rollouts,
    config: LoopConfig,
    *,
    seed: int,
    critic: Critic | None = None,
    beside: Sequence[Example] = (),
) -> Learned:
    """One update of the policy, and of the critic where there is one.

    `beside` are the examples that may be imitated beside it.
    """
    number = progress.update
    start = first_weights(config)
    last = progress.curve[-1] if progress.curve else {}
    weights = weights_of(last, start)
    batch = _Batch(found.all, config)
    judge, fitted, scale = progress.critic, {}, 1.0
    if critic is None or judge is None:
        adv, use = _compared(batch, updater, weights, progress.stages)
        known = np.flatnonzero(use)
        if (
            config.update.normalize_advantages == "batch"
            and config.update.reads_rewards
        ):
            adv, scale = unit_rms(adv, use)
        examples = [
            batch.examples[i].with_columns(advantage=float(adv[i])) for i in known
        ]
    else:
        known, examples, judge, fitted = _judged(
            batch, critic, judge, progress.state,
            batch.rewards(weights, updater, progress.stages), seed=seed + number,
        )  # fmt: skip
    share = len(examples) / max(len(batch.examples), 1)
    rng = np.random.default_rng((seed, number, 1))
    again = _drawn(progress.replay, config.replay.share * len(examples), rng)
    replay = _kept(progress.replay, batch, examples, config)
    state, metrics = progress.state, {}
    if examples:
        visits = batch.visits(len(found.started))[known]
        trained = [*examples, *again]
        state, metrics = updater.update(
            progress.state, trained, seed=seed + number, weights=weights,
            beside=_drawn(beside, config.beside.turns, rng),
            visits=[*visits, *[0.0] * len(again)],
        )  # fmt: skip
        weights = _followed(weights, metrics, config)
        if "gain" in metrics:  # a sum, no mean, in units of the return
            metrics["gain"] *= len(trained) * scale
    turned = {
        f"{name}_weight": float(value)
        for name, value in weights._asdict().items()
        if value != getattr(start, name) or f"{name}_weight" in last
    }
    row = (
        metrics
        | fitted
        | turned
        | rollout_metrics(found, config)
        | {"used_turns": share}
    )
    if again:
        row["replayed"] = float(len(again))
    return Learned(state, row, judge, replay)


def _dense(name: str) -> bool:
    return name.startswith(DENSE) and name != TASK


def first_weights(config: LoopConfig) -> Weights:
    """What the terms of the loss weigh when training begins."""
    c = config.update
    return Weights(kl=c.kl, entropy=c.entropy, beside=config.beside.weight)


def _compared(
    batch: _Batch, updater: Updater, weights: Weights, stages: LessonTracker | None
) -> tuple[Flat, np.ndarray]:
    """(advantage, whether it counts) of each turn, without a critic."""
    c, size, grid = batch.config.update, batch.config.group_size, batch.grid()
    if c.baseline == "success":
        return grid.kept(batch.won)
    if c.baseline == "pairs":
        far = updater.surprise(batch.examples)
        return grid.preferred(far, batch.won, batch.written, c, size)
    rewards = batch.rewards(weights, updater, stages)
    return grid.compared(rewards, batch.states(), c, size)


def _judged(
    batch: _Batch,
    critic: Critic,
    judge: TrainState,
    state: TrainState,
    rewards: Flat,
    *,
    seed: int,
) -> tuple[list[int], list[Example], TrainState, dict[str, float]]:
    """Which turns count, these with a critic's advantages, and the critic fitted to the
    returns.

    Over tokens a turn's reward lies on its last one, and so does the discount.
    """
    c, examples = batch.config.update, batch.examples
    values = critic.values(judge, state.params, examples)
    places = [critic.places(e) for e in examples]
    count = np.array([len(p) for p in places])
    episode = np.repeat(np.arange(len(batch.rows)), batch.length)
    length = np.bincount(episode, count, len(batch.rows)).astype(int)
    final = batch.length.cumsum() - 1  # the last turn of each episode
    grid = Grid(length, batch.scored, np.where(batch.cut, count[final], 0))
    ends = count.cumsum() - 1
    paid, rate = np.zeros(len(values)), np.ones(len(values))
    paid[ends], rate[ends] = rewards, c.discount
    adv, use, returns = grid.judged(paid, values, rate, c)
    out: list[Example] = []
    known = []
    for i, (e, at) in enumerate(zip(examples, places, strict=True)):
        span = slice(ends[i] + 1 - count[i], ends[i] + 1)
        if not use[span].all():
            continue
        known.append(i)
        if critic.config.over == "turn":
            out.append(e.with_columns(advantage=float(adv[span][0])))
        else:
            each = np.zeros(len(e.ids), np.float32)
            each[at] = adv[span]
            out.append(e.with_columns(advantage=each))
    told = {}
    if known:
        judge, told = critic.fit(
            judge, state.params, [examples[i] for i in known], returns[use],
            values[use], seed=seed,
        )  # fmt: skip
    return known, out, judge, told


def _followed(weights: Weights, metrics: dict[str, float], config: LoopConfig):
    """The KL's weight after an update, where it has a target."""
    target = config.update.penalty.target
    if not target:
        return weights
    return weights._replace(kl=adapted(weights.kl, metrics["kl"], target))


def _drawn(
    examples: Sequence[Example], count: float | int, rng: np.random.Generator
) -> list[Example]:
    """About `count` of them, each at most once."""
    chosen = rng.permutation(len(examples))[: round(count)]
    return [examples[i] for i in chosen]


def _kept(
    before: Sequence[Example],
    batch: _Batch,
    examples: Sequence[Example],
    config: LoopConfig,
) -> tuple[Example, ...]:
    """The replay after this batch: turns of won episodes that were worth their while.

    Turns are known again by their ids; equal ones of a batch are one.
    """
    if not config.replay.share:
        return ()
    won = np.repeat(batch.won & batch.scored, batch.length)
    good = {tuple(e.ids) for e, w in zip(batch.examples, won, strict=True) if w}
    fresh = {
        tuple(e.ids): e
        for e in examples
        if tuple(e.ids) in good and np.mean(e.columns["advantage"]) > 0
    }
    return (*before, *fresh.values())[-config.replay.size :]


def turn_example(turn: Turn, advantage: float, weight: float = 1.0) -> Example:
    """A sampled turn in the context it was sampled in; only sampled tokens train."""
    context = len(turn.context)
    return Example(
        [*turn.context, *turn.ids],
        [False] * context + list(turn.sampled),
        [0] * context + list(turn.part),
        weight,
        {"advantage": advantage, "sampler_logp": [0.0] * context + list(turn.logp)},
    )
