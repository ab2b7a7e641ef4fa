"""The loop of a run: built from its settings, saved after every update, resumed.

policy, environment, settings -> the parts the loop needs (updater, critic, curriculum,
rewards) -> checkpoints/NAME after each update -> policies/NAME and curves/NAME.jsonl.
"""

import contextlib
import dataclasses
import json
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from curriculum.lesson_tracker import lesson_tracker_for
from curriculum.sampler import max_generated, pool_of
from dreamgym.agent import early_experience as early
from dreamgym.agent.policy import Policy
from dreamgym.agent.rollout import Trajectory
from dreamgym.envs.base import UNTRUSTED
from dreamgym.envs.dream import Trust
from dreamgym.envs.vector import VectorEnv
from dreamgym.pipeline import clone, proposals
from dreamgym.pipeline.config import RunConfig
from dreamgym.pipeline.feasibility import feasibility_filter_for
from dreamgym.pipeline.policies import save_policy
from dreamgym.pipeline.pretrain import episodes_of
from dreamgym.pipeline.reward import scoring
from dreamgym.pipeline.run import Run, RunError
from dreamgym.rewards.config import RewardConfig
from dreamgym.rl.critic import Critic
from dreamgym.rl.update import Updater
from dreamgym.training import LoopConfig, LoopParts, TrainingState, train
from dreamgym.training.rollouts import ScoreEpisodes
from worldmodel.data.records import Task, Transition, atomic_write, read_branches
from worldmodel.experience.base import CachingExperienceModel, Query
from worldmodel.fitting import checkpoint
from worldmodel.fitting.batches import Example
from worldmodel.fitting.learner import TrainState


class _Kept:
    """What dreams added to the memory: a task and a transition a line of a file.

    A checkpoint holds how many of the lines are its own: were they in it, all that was
    ever kept would be written anew after each update.
    """

    def __init__(self, path: Path):
        self._path, self.count = path, 0

    def add(self, rows: Iterable[tuple[str, Transition]]) -> None:
        """Rows behind those that are there, on disk before the checkpoint is."""
        told = [json.dumps([task, dataclasses.asdict(x)]) + "\n" for task, x in rows]
        self._path.parent.mkdir(parents=True, exist_ok=True)
        with self._path.open("a", encoding="utf-8") as file:
            file.writelines(told)
            file.flush()
            os.fsync(file.fileno())
        self.count += len(told)

    def first(self, count: int) -> list[tuple[str, Transition]]:
        """The first rows; those behind them, of an update that was cut, are dropped.

        Raises:
          RunError: the file has fewer.
        """
        text = self._path.read_text("utf-8") if self._path.is_file() else ""
        found = text.splitlines(keepends=True)
        lines = found[:count]
        if len(lines) < count:
            raise RunError(
                f"{self._path}: expected the {count} transitions that the checkpoint "
                f"beside it was made with, found {len(lines)}; remove "
                f"{self._path.parent} to train anew"
            )
        if len(found) > count:
            with atomic_write(self._path) as file:
                file.writelines(lines)
        self.count = count
        return [(task, _transition(x)) for task, x in map(json.loads, lines)]


class _Saver:
    """Saves after each update, and enriches the memory where there is one.

    `told` hears of the progress first: a kill in between does not leave a row out.
    """

    def __init__(
        self,
        directory: Path,
        experience: CachingExperienceModel | None,
        config: RunConfig,
        told: Callable[[TrainingState], None] = lambda _: None,
    ):
        self._directory, self._experience, self._told = directory, experience, told
        self._enrich, self._least = config.enrich, config.trust.enrich
        self._seed = config.seed
        self._kept = _Kept(directory / "remembered.jsonl")

    def record(
        self, progress: TrainingState, trajectories: Sequence[Trajectory]
    ) -> None:
        """See training.Recorder."""
        self._told(progress)
        if self._experience is not None:
            self._remember(progress.update, trajectories)
        _said(progress)
        host = {
            "pool": progress.pool.state(),
            "transitions": progress.transitions,
            "curve": progress.curve,
            "remembered": self._kept.count,
            "stages": None if progress.lessons is None else progress.lessons.to_json(),
            "replay": [_plain(e) for e in progress.replay],
            "halted": progress.stop_reason,
        }
        checkpoint.save(self._directory, progress.update, _arrays(progress), host)

    def _remember(self, update: int, trajectories: Sequence[Trajectory]) -> None:
        assert self._experience is not None
        rows = [row for t in trajectories if t.error is None for row in _asked(t)]
        if self._least and rows:  # known answers: nothing is computed again
            answers = self._experience.predict([query for query, _ in rows])
            pairs = zip(rows, answers, strict=True)
            rows = [row for row, a in pairs if a.confidence >= self._least]
        rng = np.random.default_rng((self._seed, update))
        chosen = [rows[i] for i in rng.permutation(len(rows))[: self._enrich]]
        picked = [(query.task.id, x) for query, x in chosen]
        self._kept.add(picked)
        self._experience.add_to_memory([t for t, _ in picked], [x for _, x in picked])

    def restore(self, start: TrainingState) -> TrainingState:
        """The newest checkpoint, or `start` where there is none."""
        found = checkpoint.restore(self._directory, _arrays(start))
        if found is None:
            self._kept.first(0)
            return start
        number, arrays, host = found
        states = {name: TrainState(*found) for name, found in arrays.items()}
        start.pool.load(host["pool"])
        if start.lessons is not None:
            start.lessons.load(host["stages"])
        kept = self._kept.first(host.get("remembered", 0))
        if "fresh" in host:  # a checkpoint of an older version had them in it
            kept = [(task, _transition(x)) for task, x in host["fresh"]]
            self._kept.add(kept)
        if self._experience is not None:
            self._experience.add_to_memory([t for t, _ in kept], [x for _, x in kept])
        return TrainingState(
            number, states["policy"], start.pool, host["transitions"], host["curve"],
            states.get("critic"), tuple(Example(**e) for e in host["replay"]),
            start.lessons, host["halted"], states.get("best"),
        )  # fmt: skip


def _said(progress: TrainingState) -> None:
    """Alarms of the last update (training/monitor.py) and skills' red flags, aloud."""
    row = progress.curve[-1]
    for key in row:
        kind, _, name = key.partition("/")
        if kind == "alarm":
            undone = ", undone" * bool(row.get("undone"))
            told = f"alarm, update {progress.update}: {name}{undone} (see watch in "
            print(f"{told}the settings)", file=sys.stderr)
        elif kind == "flags":
            print(f"red flag, update {progress.update}: {name}", file=sys.stderr)


def _plain(example: Example) -> dict[str, Any]:
    """An example as JSON."""
    return {k: _listed(v) for k, v in example._asdict().items()}


def _listed(value: Any) -> Any:
    """Arrays as lists, in columns too."""
    if isinstance(value, Mapping):
        return {k: _listed(v) for k, v in value.items()}
    return value.tolist() if isinstance(value, np.ndarray) else value


def _arrays(progress: TrainingState) -> dict[str, TrainState]:
    """What of the progress is arrays."""
    named = {
        "policy": progress.policy, "critic": progress.critic, "best": progress.best
    }  # fmt: skip
    return {name: state for name, state in named.items() if state is not None}


def _asked(trajectory: Trajectory) -> list[tuple[Query, Transition]]:
    """Each dreamed transition with the question that it answers."""
    episode = trajectory.episode
    acted = tuple(x.action for x in episode.transitions)
    return [
        (Query(episode.task, acted[:i], x.state, x.action), x)
        for i, x in enumerate(episode.transitions)
    ]


def _transition(row: dict[str, Any]) -> Transition:
    states: dict[str, Any] = {k: tuple(row[k]) for k in ("state", "next_state")}
    return Transition(**(row | states))


def reinforce(
    run: Run,
    name: str,
    policy: Policy,
    reference: Policy,
    envs: VectorEnv,
    tasks: Sequence[Task],
    config: LoopConfig,
    *,
    experience: CachingExperienceModel | None = None,
    budget: int | None = None,
    probe: Callable[[Policy], dict[str, float]] | None = None,
) -> tuple[Policy, TrainingState]:
    """The loop from `policy`, resumable under checkpoints/NAME, with its curve.

    Whoever calls drops the checkpoint, once all that needs the progress is written.
    """
    grammar = policy.grammar(config.update.temperature)
    update, critic = config.update, None
    updater = Updater(policy.model, reference.model.params, grammar, update)
    if update.baseline == "critic":
        critic = Critic(
            policy.model, update.critic, rows=update.rows, width=update.width
        )
    keep = config.watch.keep and probe is not None
    start = TrainingState(
        0, updater.learner.init(),
        pool_of(tasks, config.curriculum, seed=run.config.seed), 0, [],
        None if critic is None else critic.init(),
        lessons=lesson_tracker_for(config.curriculum),
        best=updater.learner.init() if keep else None,
    )  # fmt: skip
    total, unit, stage = config.updates, "update", "train"
    if budget is not None:
        total, unit, stage = budget, "step", "transfer"

    def position(now: TrainingState) -> int:
        return now.update if budget is None else now.transitions

    with (
        scorer(run, config, stage) as score,
        run.following(name, total, unit) as told,
    ):
        reached = 0

        def after(now: TrainingState) -> None:
            nonlocal reached
            reached, row = position(now), now.curve[-1]
            gate = {"gate": row.get(f"unscored/{UNTRUSTED}", 0.0) / row["rollouts"]}
            told(now.update, row | gate, reached)

        saver = _Saver(run.path(f"checkpoints/{name}"), experience, run.config, after)
        progress = saver.restore(start)
        reached = position(progress)
        told(progress.update, {}, reached)
        parts = _parts(run, policy, progress, config, experience)
        progress = train(
            policy, envs, updater, progress, config, seed=run.config.seed,
            recorder=saver, budget=budget, show=lambda at, *_: told(at, {}, reached),
            parts=dataclasses.replace(
                parts, critic=critic, real_eval=probe, score=score
            ),
        )  # fmt: skip
    if progress.stop_reason:
        print(f"{name}: {progress.stop_reason}", file=sys.stderr)
    params = progress.result.params
    result = policy.replace(policy.model._replace(params=params))
    save_policy(run, name, result)
    run.write_curve(name, progress.curve)
    return result, progress


def _parts(
    run: Run,
    policy: Policy,
    progress: TrainingState,
    config: LoopConfig,
    experience: CachingExperienceModel | None,
) -> LoopParts:
    """What the loop is given by the settings of its curriculum and of imitation."""
    parts = LoopParts(
        auxiliary=supervised(run, policy, config) if config.supervised else (),
        plan_lengths=_plans(run) if progress.lessons is not None else {},
    )
    if experience is None:
        return parts
    c, seed, propose = config.curriculum, run.config.seed, None
    if max_generated(c, config.tasks):  # else proposals are paid for and never drawn
        propose = proposals.proposer(
            progress.pool, c, experience, env=run.config.env, seed=seed
        )
    trial = feasibility_filter_for(
        c, experience, policy, max_steps=run.config.max_steps,
        temperature=config.update.temperature, seed=seed, trust=trust_of(run),
    )  # fmt: skip
    return dataclasses.replace(parts, propose=propose, feasibility=trial)


@contextlib.contextmanager
def scorer(run: Run, config: LoopConfig, stage: str) -> Iterator[ScoreEpisodes | None]:
    """What pays the steps of a loop; None where rewards stay as they are."""
    if config.reward == RewardConfig():
        yield None
        return
    with scoring(run, config.reward, stage) as built:
        yield built.score


def supervised(run: Run, policy: Policy, config: LoopConfig) -> list[Example]:
    """What may be imitated beside the update's own loss (training.BesideConfig).

    Raises:
      RunError: none of the collected episodes was won.
    """
    if config.beside.kind == "own":
        return []  # the loop's own rollouts
    experts, _ = clone.taught(run)  # no more of them than the warm start was shown
    if config.beside.kind == "bc":
        return early.bc_examples(policy, experts)
    branches = run.path("branches.jsonl")
    known = read_branches(branches) if branches.is_file() else []
    return early.iwm_examples(policy, experts, known)


def _plans(run: Run) -> dict[str, int]:
    """The fewest steps in which a task of the training episodes was won."""
    out: dict[str, int] = {}
    for e in episodes_of(run)[0]:
        if e.success:
            steps = len(e.transitions)
            out[e.task.id] = min(out.get(e.task.id, steps), steps)
    return out


def trust_of(run: Run) -> Trust:
    """The trust that the run's settings ask for, by what was measured on dev games."""
    c, threshold = run.config.trust, 0.0
    if c.gate:
        run.require("fidelity")
        threshold = run.read_json("fidelity.json")["threshold"]
    return Trust(threshold=threshold, pessimism=c.pessimism)
