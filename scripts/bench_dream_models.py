"""What bench_dream.py times of models: a run's dream, a chat server in its place."""

import argparse
import itertools
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
from bench_common import median

from dreamgym.agent.rollout import rollout
from dreamgym.build.episodes import read
from dreamgym.build.experience import load_experience
from dreamgym.build.models import load_policy
from dreamgym.build.real.step_limit import step_limit
from dreamgym.envs.base import Step
from dreamgym.envs.dream import DreamVectorEnv
from dreamgym.envs.vector import VectorEnv
from dreamgym.run.directory import Run, RunError
from worldmodel.chat.client import ChatClient
from worldmodel.chat.config import ChatConfig
from worldmodel.chat.protocol import ChatError
from worldmodel.data.records import Episode, State, Task
from worldmodel.experience.base import query_after
from worldmodel.experience.config import PromptedConfig
from worldmodel.experience.local import LocalExperienceModel
from worldmodel.experience.prompted import PromptedExperienceModel
from worldmodel.memory import ReplayMemory
from worldmodel.text.state_format import state_formats

Row = dict[str, Any]


class Tape(VectorEnv):
    """An environment batch that records its calls, so that they can be repeated."""

    def __init__(self, env: VectorEnv):
        self.env, self.size = env, env.size
        self.orders: list[tuple[str, Any]] = []

    def reset(self, *, options: dict[str, Any]) -> list[State | None]:
        """See VectorEnv."""
        self.orders.append(("reset", options))
        return self.env.reset(options=options)

    def step(self, actions: Sequence[str | None]) -> list[Step | None]:
        """See VectorEnv."""
        self.orders.append(("step", list(actions)))
        out = self.env.step(actions)
        self.transitions = self.env.transitions
        return out

    def replay(self, env: VectorEnv) -> float:
        """Return the seconds that the recorded calls take in another batch."""
        start = time.perf_counter()
        for kind, order in self.orders:
            if kind == "reset":
                env.reset(options=order)
            else:
                env.step(order)
        return time.perf_counter() - start


def follow(env: VectorEnv, episodes: Iterable[Episode], batches: int) -> None:
    """Take the actions of episodes; a slot that is done takes the next episode."""
    episode_cycle = itertools.cycle(episodes)
    left: list[list[str]] = [[] for _ in range(env.size)]
    for _ in range(batches):
        fresh: list[Task | None] = [None] * env.size
        for i, actions in enumerate(left):
            if not actions:
                episode = next(episode_cycle)
                fresh[i] = episode.task
                left[i] = [t.action for t in episode.transitions]
        if any(fresh):
            mask = [task is not None for task in fresh]
            env.reset(options={"tasks": fresh, "reset_mask": mask})
        for i, step in enumerate(env.step([actions.pop(0) for actions in left])):
            if step is None or step.terminated or step.truncated:
                left[i] = []


def dreamed(
    what: str,
    run: Run,
    experience: LocalExperienceModel,
    size: int,
    work: Callable[[VectorEnv], Any],
    rounds: int,
    *,
    count_repeats: bool = False,
) -> tuple[Row, float]:
    """Return a row, and by how much the first time took longer (it compiles)."""

    def dream() -> DreamVectorEnv:
        experience.add_to_memory()  # no answer is known
        return DreamVectorEnv(experience, size, max_steps=step_limit(run))

    tape = Tape(dream())
    start = time.perf_counter()
    work(tape)
    first = time.perf_counter() - start
    seconds, before = [], (experience.queried, experience.computed)
    for _ in range(rounds):
        before = experience.queried, experience.computed
        seconds.append(tape.replay(dream()))
    num_queries, computed = (
        experience.queried - before[0],
        experience.computed - before[1],
    )
    rates = [(num_queries if count_repeats else computed) / s for s in seconds]
    row = {
        "what": what,
        "processes": 1,
        "steps/s": median(rates),
        "least": min(rates),
        "asked": num_queries,
        "computed": computed,
    }
    return row, first - median(seconds)


def dream_rows(run: Run, args: argparse.Namespace) -> tuple[list[Row], list[str]]:
    """Measure the dream at each number of slots, then a whole update's groups."""
    experience = load_experience(run)
    if not isinstance(experience, LocalExperienceModel):
        raise RunError(f"{run.root}: it asks a server; take another run, and --server")
    train, dev = read(run)
    dev = [e for e in dev if e.transitions and e.task.initial_state]
    if not dev:
        raise RunError(f"{run.root}: no dev episode with an initial state")
    size = sum(x.size for x in jax.tree.leaves(experience.model.params))
    marker = run.require("pretrain")["numbers"]
    about = [
        f"Experience model: {size:,} parameters, "
        f"{marker['tokens_per_transition']} tokens a transition."
    ]
    rows = []
    for slots in args.slots:
        batches = -(-args.steps // slots)
        row, extra = dreamed(
            f"dream, {slots} slots",
            run,
            experience,
            slots,
            lambda env, n=batches: follow(env, dev, n),
            args.rounds,
        )
        rows.append(row)
        about.append(f"Compilation for {slots} slots: {max(extra, 0.0):.1f} s.")
    loop = run.config.train
    name = f"dream, {loop.tasks_per_update} groups of {loop.group_size}"
    if run.done("warmstart") is None:
        why = "the run has no warm start: dreamgym warmstart"
        return [*rows, {"what": name, "blank": why}], about
    policy = load_policy(run, "warmstart")
    tasks = list({e.task.id: e.task for e in train}.values())[: loop.tasks_per_update]
    groups = [t for t in tasks for _ in range(loop.group_size)]

    def update(env: VectorEnv) -> None:
        rollout(
            policy,
            env,
            groups,
            key=jax.random.key(0),
            temperature=loop.update.temperature,
        )

    row, _ = dreamed(
        name, run, experience, len(groups), update, args.rounds, count_repeats=True
    )
    return [*rows, row], about


def prompted_row(run: Run, args: argparse.Namespace) -> tuple[Row, list[str]]:
    """Measure a chat server in place of the model: new queries each round, no cache."""
    what, n = f"prompted, {args.concurrency} at once", args.queries
    if not args.server:
        return {"what": what, "blank": "no --server given"}, []
    train, dev = read(run)
    every = [
        query_after(e.task, e.transitions[:i], x.state, x.action)
        for i in range(1, step_limit(run))
        for e in dev
        for x in e.transitions[i : i + 1]
    ]
    config = ChatConfig(
        base_url=args.server,
        model=args.server_model,
        concurrency=args.concurrency,
        max_tokens=args.server_tokens,
    )
    client = ChatClient(config)
    model = PromptedExperienceModel(
        client,
        ReplayMemory.from_episodes(train, capacity=50_000),
        PromptedConfig(),
        seed=run.config.seed,
        state_formats=state_formats(train),
    )
    rates, bad = [], 0
    try:
        for number in range(args.rounds):
            start = time.perf_counter()
            answers = model.predict(every[number * n : (number + 1) * n])
            rates.append(len(answers) / (time.perf_counter() - start))
            bad += sum(a.error is not None for a in answers)
    except ChatError as error:
        return {"what": what, "blank": str(error)}, []
    row = {
        "what": what,
        "processes": 1,
        "steps/s": median(rates),
        "least": min(rates),
        "asked": n,
        "computed": n,
    }
    used, num_queries = client.usage, n * args.rounds
    return row, [
        f"Prompted: {used.requests / num_queries:.2f} requests a query, "
        f"{used.prompt_tokens / used.requests:.0f} tokens read and "
        f"{used.completion_tokens / used.requests:.0f} written each; "
        f"{bad} of {num_queries} answers were malformed."
    ]
