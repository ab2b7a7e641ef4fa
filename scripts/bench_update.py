"""What a policy update costs, and which part of it are guard and critic.

    python scripts/bench_update.py RUN                      # a run with a warm start
    python scripts/bench_update.py RUN --turns 256,1024 --history 0,6

Turns that the run's warm start samples in real states of its dev games, with advantages
of either sign; each row is the median over rounds, after one that compiles. `update` is
all that Updater.update does: four minibatches with their reference pass, then the
trust region's measure, which `guard` is the share of. `critic` is what values and fit
cost beside it, as a share of the update: `shared` reads the policy's trunk, `own` has a
network. More history makes longer contexts.
"""

import argparse
import dataclasses
import itertools
import json
import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from bench_common import median, table

from dreamgym.agent.policy import Policy
from dreamgym.build.episodes import read
from dreamgym.build.models import load_policy
from dreamgym.rl.config import CriticConfig
from dreamgym.rl.critic import Critic
from dreamgym.rl.update import Updater
from dreamgym.run.directory import Run
from dreamgym.run.process import tune_process
from worldmodel.fitting.batches import Example, pack


def sampled(policy: Policy, run: Run, count: int) -> list[Example]:
    """Return turns of the policy in dev states, every other one good."""
    _, dev = read(run)
    places = [
        (e.task, tuple(t.action for t in e.transitions[:i]), t.state)
        for e in dev
        for i, t in enumerate(e.transitions)
    ]
    if not places:
        raise SystemExit(f"{run.root}: no dev transitions to act in")
    sample = list(itertools.islice(itertools.cycle(places), count))
    turns = policy.act(
        sample, jax.random.split(jax.random.key(0), count), temperature=1.0
    )
    return [t.example(advantage=1.0 - 2.0 * (i % 2)) for i, t in enumerate(turns)]


def timed(body: Callable[[], Any], rounds: int) -> float:
    """Return the median seconds of a round, after one that compiles."""
    seconds = []
    for number in range(rounds + 1):
        start = time.perf_counter()
        jax.block_until_ready(body())
        if number:
            seconds.append(time.perf_counter() - start)
    return median(seconds)


def measured(
    policy: Policy, run: Run, examples: list[Example], rounds: int
) -> dict[str, Any]:
    """Return one row of the table."""
    config = run.config.train.update
    grammar = policy.grammar(config.temperature)
    updater = Updater(policy.model, policy.model.params, grammar, config)
    params = policy.model.params

    def update() -> Any:
        return updater.update(updater.learner.init(), examples, seed=0)[0].params

    tokens = pack(examples, config.row_tokens)
    whole = timed(update, rounds)
    guard = timed(lambda: updater.update_size(params, params, tokens).mean_kl, rounds)
    row = {
        "turns": len(examples),
        "tokens a turn": float(np.mean([len(e.ids) for e in examples])),
        "update s": whole,
        "ms a turn": 1000 * whole / len(examples),
        "guard": guard / whole,
    }
    returns = np.linspace(0.0, 1.0, len(examples), dtype=np.float32)
    for trunk in ("shared", "separate"):
        critic = Critic(
            policy.model,
            CriticConfig(network=trunk),
            rows=config.batch_rows,
            width=config.row_tokens,
        )

        def judge(critic: Critic = critic) -> Any:
            state = critic.init()
            values = critic.values(state, params, examples)
            fitted = critic.fit(state, params, examples, returns, values, seed=0)
            return fitted[0].params

        row[f"critic, {trunk}"] = timed(judge, rounds) / whole
    return row


def numbers(text: str) -> list[int]:
    """Parse whole numbers that are separated by commas."""
    return [int(x) for x in text.split(",")]


def main() -> None:
    """Parse the arguments, measure, and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("run", help="a run directory with a warm start")
    add("--turns", type=numbers, default=[256, 1024], help="turns of a batch")
    add("--history", type=numbers, default=[0, 6], help="past actions in a context")
    add("--rounds", type=int, default=3, help="rounds, of which the median counts")
    add("--json", action="store_true", help="rows as one JSON object")
    args = parser.parse_args()
    tune_process()
    run = Run.open(args.run)
    base = load_policy(run, "warmstart")
    rows = []
    for history in args.history:
        config = dataclasses.replace(base.config, history=history)
        policy = Policy(base.model, base.tokenizer, config)
        for count in args.turns:
            examples = sampled(policy, run, count)
            row = measured(policy, run, examples, args.rounds)
            rows.append({"history": history, **row})
    print(json.dumps({"rows": rows}) if args.json else table(rows))


if __name__ == "__main__":
    main()
