"""Stages: real fine-tuning of the dream's policy, and its controls.

s2r: the loop on the real environment from dream, or rounds of real play, a refit and
the loop in the refitted dream. real_only: the same from warmstart.
real_only_total: from warmstart, with the collected transitions as extra budget. What
was trained is kept where it is better on real dev games than what it began at; where it
imitates more real wins, unless these games speak clearly against it.
"""

import contextlib
import sys
from typing import Any

from dreamgym.agent.policy import Policy
from dreamgym.build import episodes as run_episodes
from dreamgym.build.costs import (
    DREAMED_STEP,
    REAL_STEP,
    dev_games,
    dreamed_wins_cost,
    game_seconds,
    loop_memory,
    loop_steps,
    plan_cost,
    refit_seconds,
)
from dreamgym.build.loop import reinforce
from dreamgym.build.models import load_policy, save_policy
from dreamgym.build.planning import why_without_plan
from dreamgym.build.real import dev_play, environments
from dreamgym.build.real.dev_choice import (
    compare_on_dev_games,
    nothing_to_gain,
    player_of,
    say_unchecked,
)
from dreamgym.build.real.dream_rounds import dream_rounds
from dreamgym.build.real.real_iteration import iterate
from dreamgym.build.real.step_limit import step_limit
from dreamgym.build.refit import can_refit
from dreamgym.config.budget import division
from dreamgym.config.settings import RunConfig
from dreamgym.evaluation.dream_check import dev_metrics
from dreamgym.run.cost import Cost, Workload
from dreamgym.run.directory import Run

ERRORS = 2.0
"""Standard errors by which a policy that imitates more real wins must be worse to be
left out: few dev games decide, and with one fewer won it was mostly better."""
NOT_TUNED = "not fine-tuned, the budget has no real steps left for"


def body(run: Run, name: str, start: str) -> dict[str, Any]:
    """Fine-tune the policy `start` in the real environment; write policies/NAME."""
    if not run.config.env.id:
        return {"status": environments.NO_ENV}
    loop = run.config.transfer
    budget = loop.real_transitions
    if name == "real_only_total":
        # What the dream was fitted to has cost as much: the fair comparison in real
        # steps.
        budget += run.numbers("collect")["real_transitions"]
    method, reason = _method(run, start)
    policy, reserve = load_policy(run, start), dev_play.dev_game_steps(run, name)
    player = player_of(run, start)
    if run.real_steps.limit is not None:  # of the whole run
        # The start plays before the loop, which leaves the evaluations after it.
        later = int(not why_without_plan(run))
        games = dev_play.dev_game_steps(run, player, name, later=later)
        budget = run.real_steps.limit - games
        minimum, unit = 1, "an episode"
        if method == "dream_updates":
            minimum, unit = loop.iteration.rounds, "an episode in each round"
        elif method == "updates":
            minimum, unit = loop.group_size, "a group of rollouts"
        if budget < minimum * step_limit(run):
            return _not_tuned(run, name, start, policy, unit)
        budget = _budget_of_first_attempt(run, name, budget)
    if dev_play.plays_dev_games(run, player):
        metrics = dev_metrics(dev_play.play_dev_games(run, player, policy))
        if numbers := nothing_to_gain(run, metrics, start, "not fine-tuned"):
            save_policy(run, name, policy)
            return {"updates": 0, **numbers}
    if reason:
        print(f"{name}: updates, not {loop.method}: {reason}", file=sys.stderr)
    if method == "expert_iteration":
        _warn_of_unread_settings(run, name)
        tuned, numbers = iterate(
            run,
            name,
            policy,
            steps=budget,
            dreams=start == "dream" and run.numbers("expert_iteration")["rounds"] > 0,
            reserve=reserve,
        )
        save_policy(run, name, tuned)
    elif method == "dream_updates":
        tuned, numbers = dream_rounds(run, name, policy, steps=budget, reserve=reserve)
        save_policy(run, name, tuned)
    else:
        tuned, numbers = _reinforce(run, name, policy, budget, reserve)
    new_wins = "collected_demonstrations" in numbers and (
        numbers["rounds"][-1]["real_demonstrations"]
        > numbers["collected_demonstrations"]
    )
    choice = _better_policy(run, name, start, policy, tuned, new_wins=new_wins)
    run.drop(f"checkpoints/{name}")
    return numbers | choice


def _warn_of_unread_settings(run: Run, name: str) -> None:
    """Say which settings expert iteration does not read: it imitates what was won."""
    loop = run.config.transfer
    unread = {
        "limits": loop.limits,
        "reward.novelty.weight": loop.reward.novelty.weight,
        "keep_rollouts": loop.keep_rollouts,
    }
    if names := [f"transfer.{setting}" for setting, value in unread.items() if value]:
        print(
            f"{name}: without effect: {', '.join(names)}; expert iteration imitates "
            "what was won, and only transfer.method=updates reads them",
            file=sys.stderr,
        )


def _budget_of_first_attempt(run: Run, name: str, steps: int) -> int:
    """Return the real steps with which the first attempt at this stage began.

    The dev games that it has played since would count as a larger budget, and rounds
    would end at other steps than without an interruption.
    """
    file = f"{name}/budget.json"
    if not run.path(file).is_file():
        run.write_json(file, {"real_steps": steps})
    return int(run.read_json(file)["real_steps"])


def _method(run: Run, start: str) -> tuple[str, str]:
    """Return how this fine-tuning learns, and why where it is not as the settings say.

    A control has no dream, so that its updates are as the settings say.
    """
    c, method = run.config, run.config.transfer.method
    if method == "expert_iteration":
        if run.numbers("collect").get("deterministic", True):
            return method, ""
        return "updates", "the environment draws lots, so that wins may be luck"
    if method == "updates" or start != "dream" or c.train.environment == "real":
        return "updates", ""
    check = run.numbers("dream_check")
    if check.get("refused") and not check["forced"]:
        return "updates", f"the dream was refused: {check['refused']}"
    if not can_refit(c):
        return "updates", "this experience model cannot be fitted further"
    return method, ""


def _reinforce(
    run: Run, name: str, policy: Policy, budget: int, reserve: int
) -> tuple[Policy, dict[str, Any]]:
    """Train by trust-region updates on real rollouts; return policy and numbers."""
    loop, (train, _) = run.config.transfer, run_episodes.read(run)
    tasks = environments.training_tasks(run, [e.task for e in train], loop.fresh_tasks)
    with contextlib.closing(environments.real_envs(run)) as envs:
        tuned, progress = reinforce(
            run,
            name,
            policy,
            policy,
            envs,
            tasks,
            loop,
            budget=budget,
            reserve=reserve,
        )
    return tuned, {"updates": progress.update}


def _not_tuned(
    run: Run, name: str, start: str, policy: Policy, unit: str
) -> dict[str, Any]:
    """Leave the policy as its start, and say that the budget pays for no `unit`."""
    save_policy(run, name, policy)
    note = f"{NOT_TUNED} {unit}, so it is {start}"
    print(f"{name}: {note}", file=sys.stderr)
    return {"updates": 0, "kept": start, "note": note, "by_rule": True}


def _better_policy(
    run: Run,
    name: str,
    start: str,
    before: Policy,
    tuned: Policy,
    *,
    new_wins: bool = False,
) -> dict[str, Any]:
    """Keep what was trained where it is better than the start; say what is kept.

    Real dev games tell, by family; without them, what was trained is kept. A policy
    that imitates more real wins than imitation had at first (`new_wins`) is expected to
    be better: it is left out only where it wins fewer of these games by more than
    ERRORS standard errors, or destroys a family's success.
    """
    numbers = compare_on_dev_games(
        run,
        (player_of(run, start), before),
        (name, tuned),
        start=start,
        what="fine-tuning",
        expected_better=new_wins,
        standard_errors=ERRORS,
    )
    if not numbers:
        say_unchecked(run, name)
    if numbers.get("kept") == start:
        save_policy(run, name, before)
    return numbers


def cost(config: RunConfig, workload: Workload, name: str) -> Cost:
    """Return what the real loop takes, and the dev games of its policy."""
    if not config.env.id:
        return Cost()
    budget = config.transfer.real_transitions
    if name == "real_only_total":
        budget += workload.transitions
    if config.budget.real_steps:
        budget = division(config.budget, workload.transitions)["fine_tune"]
    games = dev_games(config, workload) * game_seconds(workload)
    if config.transfer.method == "expert_iteration":
        part = _iteration_cost(config, workload, budget, dreams=name == "s2r")
        seconds = part.seconds + budget * workload.timings.step + games
        return part._replace(seconds=seconds, disk=workload.model_bytes)
    dreams = config.train.environment == "dream" and can_refit(config)
    if config.transfer.method == "dream_updates" and name == "s2r" and dreams:
        return _dream_rounds_cost(config, workload, budget, games)
    steps = min(budget, loop_steps(config.transfer, workload.max_steps))
    seconds = steps * (REAL_STEP * workload.timings.update + workload.timings.step)
    return Cost(
        seconds + refit_seconds(config.transfer, workload) + games,
        compile_seconds=30,
        memory=loop_memory(config.transfer, workload),
        disk=workload.model_bytes,
    )


def _dream_rounds_cost(
    config: RunConfig, workload: Workload, budget: int, games: float
) -> Cost:
    """Return what real play, the refits and the updates in the dream take."""
    rounds, timings = config.transfer.iteration.rounds, workload.timings
    refits = config.transfer.iteration.refit_share * config.pretrain.fit.steps
    fit = workload.fit(1.1 * rounds * refits)
    steps = rounds * loop_steps(config.transfer, workload.max_steps)
    seconds = budget * timings.step + DREAMED_STEP * steps * timings.update + games
    return Cost(
        fit.seconds + seconds + rounds * refit_seconds(config.transfer, workload),
        compile_seconds=30,
        memory=loop_memory(config.transfer, workload),
        disk=workload.model_bytes,
    )


def _iteration_cost(
    config: RunConfig, workload: Workload, budget: int, *, dreams: bool
) -> Cost:
    """Return what the fits of all rounds take, and what is dreamed in them.

    A plan dreams up to its simulations times its depth in each of the `budget` steps.
    """
    c, rounds = config.expert_iteration, config.transfer.iteration.rounds
    fit = workload.fit(1.1 * rounds * 2 * config.bc.fit.steps)
    if not dreams or not c.rounds:
        return fit
    refits = config.transfer.iteration.refit_share * config.pretrain.fit.steps
    refit = workload.fit(1.1 * rounds * refits)
    plan = config.transfer.iteration.plan
    parts = [dreamed_wins_cost(config, workload, rounds)]
    if plan.method not in ("none", "auto"):  # "auto" plans here in few environments
        parts.append(plan_cost(config, workload, plan, budget))
    return fit._replace(
        seconds=fit.seconds + refit.seconds + sum(p.seconds for p in parts),
        compile_seconds=4 * rounds,
        answers=sum(p.answers for p in parts),
    )
