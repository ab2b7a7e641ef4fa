"""Doubles: a corridor that costs nothing, a model that answers like it, tiny policies.

The corridor: rooms 0 to END in a row, a coin in room GOAL. `go right` and `go left`
walk, `take coin` in the coin's room wins, `go left` from room 0 falls and loses.
"""

import dataclasses
import functools
import tempfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from dreamgym.agent.config import PolicyConfig
from dreamgym.agent.early_experience.examples import demonstration_example
from dreamgym.agent.policy import Policy, Situation, Turn
from dreamgym.agent.rollout import Trajectory
from tests import corridor
from worldmodel.backbone.config import ModelConfig
from worldmodel.backbone.model import Model, create, forward
from worldmodel.data.records import Episode, State, Task, Transition, lines
from worldmodel.data.seed_tasks import SeedTask
from worldmodel.experience.base import Prediction, Query
from worldmodel.experience.config import ExperienceConfig
from worldmodel.experience.local import LocalExperienceModel
from worldmodel.fitting import supervised
from worldmodel.fitting.batches import Example
from worldmodel.fitting.config import OptimizerConfig
from worldmodel.memory import ReplayMemory
from worldmodel.text.tokenizer import TextTokenizer

# Tests use them by these names.
ACTIONS, STEPS = corridor.ACTIONS, corridor.STEPS
start_state, walk, plan = corridor.start_state, corridor.walk, corridor.plan
task, tasks = corridor.task, corridor.tasks
Corridor, Bare, Outcome = corridor.Corridor, corridor.Bare, corridor.Outcome


class RuleModel:
    """An experience model that knows the corridor's rules, without an error.

    `broken` actions get a reply that makes no sense.
    """

    def __init__(self, broken: Iterable[str] = ()):
        self.broken, self.queries = set(broken), []

    def predict(self, queries: Sequence[Query]) -> list[Prediction]:
        self.queries.append(list(queries))
        return [self._one(q) for q in queries]

    def _one(self, query: Query) -> Prediction:
        got = walk(query.state, query.action)
        outcome = "win" if got.success else "lose" if got.terminated else "go"
        problem = "garbled" if query.action in self.broken else None
        return Prediction(got.state, got.reward, outcome, "", 1.0, problem)

    def vary(
        self, groups: Sequence[Sequence[SeedTask]], *, key: jax.Array
    ) -> list[Task | None]:
        del key  # deterministic: the coin moves one room on
        return [self._moved(group[0].task) for group in groups]

    def _moved(self, seed: Task) -> Task:
        at, goal, end = (int(line.split()[1]) for line in seed.initial_state[:3])
        goal = (goal + 1) % (end + 1)
        return dataclasses.replace(
            seed,
            id=f"dream-{at}-{goal}-{end}",
            split="generated",
            options={},
            initial_state=start_state(at, goal, end),
            lineage=(*seed.lineage, seed.id),
        )


def episode(
    task: Task, actions: Sequence[str], *, name: str = "", source: str = "expert"
) -> Episode:
    """What the corridor answers to the actions, as a record."""
    state, rows = task.initial_state, []
    for action in actions:
        got = walk(state, action)
        rows.append(
            Transition(
                state=state,
                action=action,
                next_state=got.state,
                rewards={"coin": got.reward},
                terminated=got.terminated,
                success=got.success,
                invalid=got.invalid,
            )
        )
        state = got.state
    return Episode(
        id=name or f"{source}-{task.id}",
        task=task,
        transitions=tuple(rows),
        source=source,
        success=rows[-1].success,
    )


def expert(task: Task) -> Episode:
    return episode(task, plan(task.initial_state))


def costly(episode: Episode, cost: float = 2.0) -> Episode:
    """The episode with the cost `harm` of its first step."""
    first, *rest = episode.transitions
    first = dataclasses.replace(first, costs={"harm": cost})
    return dataclasses.replace(episode, transitions=(first, *rest))


class Known(LocalExperienceModel):
    """A local experience model whose answers come from the rules: memory and all."""

    def __init__(self, memory: ReplayMemory):
        super().__init__(model(), tokenizer(), memory, ExperienceConfig())
        self._rules = RuleModel()

    def predict(self, queries: Sequence[Query]) -> list[Prediction]:
        return self._rules.predict(queries)

    def vary(
        self, groups: Sequence[Sequence[SeedTask]], *, key: jax.Array
    ) -> list[Task | None]:
        return self._rules.vary(groups, key=key)


# --- policies ----------------------------------------------------------------


@functools.cache
def tokenizer() -> TextTokenizer:
    texts = ["take the coin", *ACTIONS, *start_state(1, 2, 3), *"0123456789"]
    texts += ["said you fall", "said no coin", "said wall", "said unknown action"]
    return TextTokenizer.train(texts * 4, 392)


@functools.cache
def model(seed: int = 0) -> Model:
    """One layer of width 16: enough to be wrong in every way that matters."""
    shape = ModelConfig(
        vocab_size=tokenizer().vocab_size,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=1,
        num_key_value_heads=1,
        head_dim=16,
        intermediate_size=32,
    )
    return create(shape, seed=seed)


@functools.cache
def _forward():
    return jax.jit(functools.partial(forward, model().definition))


def logits(ids, position=None, segment=None) -> np.ndarray:
    """What the model of seed 0 says of rows of ids, compiled once for each shape."""
    if position is None:
        position = np.broadcast_to(np.arange(ids.shape[1], dtype=np.int32), ids.shape)
    segment = np.ones_like(ids) if segment is None else segment
    return np.asarray(_forward()(model().params, ids, position, segment))


def policy(*, seed: int = 0, **settings: Any) -> Policy:
    return Policy(model(seed), tokenizer(), PolicyConfig(**settings))


_CLONED: dict[tuple, Policy] = {}


def cloned(words: tuple[str, ...], some: Sequence[Task]) -> Policy:
    """A policy that says each of the words about equally often where tasks begin."""
    key = (words, tuple(t.id for t in some))
    if key not in _CLONED:
        _CLONED[key] = _clone(words, some)
    return _CLONED[key]


def _clone(words: tuple[str, ...], some: Sequence[Task]) -> Policy:
    actor = policy(action_tokens=6)
    examples = [
        demonstration_example(actor, Situation(t, (), t.initial_state), word)
        for t in some
        for word in words
    ]
    fitted = fit(actor.model, examples, batch_rows=2, row_tokens=64, learning_rate=2e-2)
    return actor.replace(fitted)


def fit(
    model: Model,
    examples: Sequence[Example],
    *,
    batch_rows: int = 8,
    row_tokens: int = 96,
    learning_rate: float = 1e-2,
) -> Model:
    """The model after 150 updates on the examples, by seed 0."""
    config = supervised.FitConfig(
        steps=150,
        batch_rows=batch_rows,
        row_tokens=row_tokens,
        eval_every=150,
        optimizer=OptimizerConfig(learning_rate=learning_rate, warmup_steps=5),
    )
    with tempfile.TemporaryDirectory() as folder:
        fitted, _ = supervised.fit(
            model, examples, config, seed=0, directory=Path(folder)
        )
    return fitted


Rule = Callable[[Task, tuple[str, ...], State], str]


class Scripted(Policy):
    """A policy that follows a rule; its turns hold plausible tokens."""

    def __init__(self, rule: Rule):
        super().__init__(model(), tokenizer(), PolicyConfig())
        self.rule = rule
        self.calls: list[int] = []
        self.keys: list[np.ndarray] = []

    def replace(self, model: Model) -> "Scripted":
        del model  # rules have no parameters
        return self

    def act(self, situations, keys, *, temperature):
        del temperature
        self.calls.append(len(situations))
        data = np.asarray(jax.random.key_data(keys))
        self.keys += list(data[: len(situations)])
        return [self._turn(*s[:3]) for s in situations]

    def _turn(self, task, past, state, valid_actions=()) -> Turn:
        del valid_actions  # rules know what they do
        action = self.rule(task, tuple(past), state)
        return turn(self, task, past, state, action)


def turn(
    policy: Policy, task: Task, past: Sequence[str], state: State, action: str
) -> Turn:
    """A turn as if sampled: the opener forced, the rest at log-probability -1."""
    tok = policy.tokenizer
    text = tok.encode(action)
    ids = (tok.control("action"), *text, tok.control("end"))
    n = len(ids)
    return Turn(
        tuple(policy.context(task, past, state)),
        ids,
        (0.0, *[-1.0] * (n - 1)),
        (False, *[True] * (n - 1)),
        (1, 3, *[2] * (n - 2)),
        action,
        None,
    )


def expert_rule(task: Task, past: tuple[str, ...], state: State) -> str:
    del task, past
    return plan(state)[0]


def trajectory(
    task: Task, actions: Sequence[str], *, error: str | None = None, index: int = 0
) -> Trajectory:
    """A trajectory of scripted turns in the corridor; with an error, unscored."""
    actor = Scripted(expert_rule)
    e = episode(task, actions, name=f"t-{index}-{task.id}", source="policy")
    turns = tuple(
        turn(actor, task, [x.action for x in e.transitions[:i]], t.state, t.action)
        for i, t in enumerate(e.transitions)
    )
    if error is not None:
        e = dataclasses.replace(e, success=None)
    return Trajectory(e, turns, error)


def text(state: State) -> str:
    out = "\n".join(state)
    assert lines(out) == state
    return out
