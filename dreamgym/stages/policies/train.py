"""Stage: trust-region training in the dream, or in the real environment as control."""

import sys
from collections.abc import Mapping, Sequence
from typing import Any

from curriculum.sampler import max_generated
from dreamgym.agent.policy import Policy
from dreamgym.build import chat as run_chat
from dreamgym.build import experience as run_experience
from dreamgym.build.costs import (
    DREAMED_STEP,
    UNCACHED,
    answers_per_query,
    dev_games,
    game_seconds,
    loop_memory,
    refit_seconds,
    train_steps,
)
from dreamgym.build.episodes import read
from dreamgym.build.experience import (
    load_experience,
    remedy_folder,
    uncertainty_gate,
)
from dreamgym.build.loop import real_evaluation, reinforce
from dreamgym.build.models import load_policy, save_policy
from dreamgym.build.real import environments
from dreamgym.build.real.dev_choice import (
    compare_with_start,
    nothing_to_gain,
    player_of,
)
from dreamgym.build.real.dev_play import (
    dev_game_steps,
    paired_dev_games,
    plays_dev_games,
)
from dreamgym.build.real.environments import dreamable_tasks
from dreamgym.build.real.step_limit import lasting_wins, step_limit
from dreamgym.config.settings import RunConfig
from dreamgym.envs.dream import DreamVectorEnv
from dreamgym.evaluation import bounds
from dreamgym.evaluation.dream_check import dev_metrics
from dreamgym.rewards.config import RewardConfig
from dreamgym.run.cost import Cost, Workload
from dreamgym.run.directory import Run
from dreamgym.training import TrainingState
from dreamgym.training.metrics import training_note
from dreamgym.training.monitor import best_row, dev_score
from worldmodel import fidelity
from worldmodel.data.records import Episode
from worldmodel.experience.base import CachingExperienceModel

START = "expert_iteration"
"""The policy that training begins at."""

UNPROMISED = (
    "Theorem 1 says nothing of this update: its gain needs advantages in units of the "
    "return of a turn (credit turn, no shaping, advantage_estimator group_mean, "
    "leave_one_out, batch_mean or gae, not divided by a std, averaged over tokens, "
    "without replay)."
)


UNMEASURED = (
    "Theorem 1 says nothing of this update: it was paid other rewards than the "
    "environment's (train.reward, uncertainty.penalty, or a KL in the reward), and "
    "how far the dream is wrong about those was not measured."
)


def _share(curve: Sequence[dict[str, Any]], name: str) -> float:
    """A count of the curve as a share of all rollouts."""
    total = sum(row["rollouts"] for row in curve)
    return sum(row.get(name, 0.0) for row in curve) / max(total, 1)


def _lower_bound(
    run: Run,
    experience: CachingExperienceModel,
    dev: Sequence[Episode],
    curve: Sequence[dict[str, Any]],
) -> dict[str, Any] | None:
    """Return the bound of Theorem 1 for the updates of a curve; None if unknown."""
    loop = run.config.train
    if not loop.update.in_returns or loop.replay.ratio:
        return {"sentence": UNPROMISED}
    if _has_other_rewards(run.config):
        return {"sentence": UNMEASURED}
    limit = run.config.fidelity.transitions
    errors = fidelity.largest_errors(experience, dev, limit=limit)
    if errors is None:
        return None
    return bounds.best_bound(
        curve,
        discount=run.config.train.update.discount,
        eps_r=errors.reward,
        eps_p=errors.moves,
        r_max=errors.span,
        measured=errors.transitions,
    )


def _has_other_rewards(config: RunConfig) -> bool:
    """Whether updates in the dream earn more or less than what the dream says."""
    update = config.train.update
    withheld = (
        update.kl_penalty.coefficient > 0 and update.kl_penalty.placement == "reward"
    )
    shaped = config.train.reward != RewardConfig()
    weighted = bool(config.train.limits) or config.train.curriculum.lessons != "none"
    return shaped or weighted or withheld or config.uncertainty.penalty > 0


def body(run: Run) -> dict[str, Any]:
    """Train in the dream from the policy of expert iteration; write policies/dream.

    Nothing is trained if the stage dream_check found the dream wrong about the warm
    start. The trained policy is kept if it is better than where it began on real dev
    tasks or, without an environment, in the dream; else the first policy is kept.

    Answers of a chat server are cached on disk, so that an interrupted update is
    repeated without new requests; if the server stops answering the stage stops. With
    `train.environment` = "real" the policy is trained in the real environment instead.
    """
    check = run.numbers("dream_check")
    # A dream that is wrong about this policy teaches it what does not work.
    if check.get("refused") and not check["forced"]:
        note = f"not trained, so it is where it began: {check['refused']}"
        return _not_trained(run, {"kept": START, "note": note})
    if run.config.train.environment == "real":
        return _train_in_environment(run)
    metrics = _start_metrics(run).get("real", {})
    numbers = nothing_to_gain(run, metrics, START, "not trained")
    if numbers and not run.config.train.limits:  # it may win all games and cost much
        return _not_trained(run, numbers)
    experience = load_experience(
        run,
        stage="train",
        scaled=True,
        folder=remedy_folder(run),
        for_rollouts=True,
    )
    with run_chat.experience_session(experience):
        return _train_in_dream(run, experience)


def _train_in_environment(run: Run) -> dict[str, Any]:
    """The control: as many updates of the same loop on the real environment."""
    train_episodes, _ = read(run)
    start, envs = load_policy(run, START), environments.real_envs(run)
    tasks = environments.training_tasks(
        run, [e.task for e in train_episodes], run.config.train.fresh_tasks
    )
    # What is left for the evaluation that chooses between start and end.
    reserve = dev_game_steps(run, "dream")
    try:
        with real_evaluation(run, reserve) as probe:
            _, progress = reinforce(
                run,
                "dream",
                start,
                start,
                envs,
                tasks,
                run.config.train,
                reserve=reserve,
                probe=probe,
                baseline=_start_metrics(run).get("real"),
            )
    finally:
        envs.close()
    choice = _choose(run, progress, start)
    run.drop("checkpoints/dream")
    return _with_note(_numbers(progress) | choice)


def _train_in_dream(run: Run, experience: CachingExperienceModel) -> dict[str, Any]:
    train_episodes, dev = read(run)
    run_experience.check_confidence(run, experience, dev)
    for limit in run.config.train.limits:
        if not limit.pattern:
            print(
                f"train: a dream reports no costs, so that the limit of {limit.name!r} "
                "counts none there and lowers nothing: give it a pattern of actions "
                "(train.limits), or train in the real environment",
                file=sys.stderr,
            )
    start = load_policy(run, START)
    loop = run.config.train
    if run.config.policy.admissible_actions:
        print(
            "train: the dream lists no admissible actions: the policy acts there "
            "without them (policy.admissible_actions)",
            file=sys.stderr,
        )
    tasks = dreamable_tasks(
        environments.training_tasks(
            run, [e.task for e in train_episodes], loop.fresh_tasks
        )
    )
    envs = DreamVectorEnv(
        experience,
        loop.tasks_per_update * loop.group_size,
        max_steps=step_limit(run),
        uncertainty=uncertainty_gate(run, remedy_folder(run)),
        lasting_wins=lasting_wins(run),
    )
    with real_evaluation(run) as probe:
        _, progress = reinforce(
            run,
            "dream",
            start,
            start,
            envs,
            tasks,
            loop,
            experience=experience,
            rollout_lag=loop.rollout_lag,
            probe=probe,
            baseline=_start_metrics(run).get("real"),
        )
    choice = _choose(run, progress, start, experience)
    run.write_json("bound.json", _lower_bound(run, experience, dev, progress.curve))
    run.drop("checkpoints/dream")  # until here a kill costs no update
    numbers = {
        **_numbers(progress),
        "dream_transitions": progress.transitions,
        "broken_share": _share(progress.curve, "unscored_rollouts"),
        "computed_share": experience.computed / max(experience.queried, 1),
        **run_chat.server_usage(experience),
        **choice,
    }
    return _with_note(numbers)


def _with_note(numbers: dict[str, Any]) -> dict[str, Any]:
    """The numbers with one note, of what training did and of what was kept."""
    notes = [numbers.pop(k) for k in ("choice", "note") if k in numbers]
    return numbers | ({"note": "; ".join(notes)} if notes else {})


def _not_trained(run: Run, numbers: dict[str, Any]) -> dict[str, Any]:
    """Leave the policy where it began, and say the note of the numbers."""
    save_policy(run, "dream", load_policy(run, START))
    run.write_json("bound.json", None)
    print(
        f"train: {numbers['note']} (dream_check.force trains all the same)",
        file=sys.stderr,
    )
    return {"updates": 0, **numbers}


def _dev_metrics_of(
    run: Run, progress: TrainingState, start: Policy
) -> tuple[Mapping[str, Any], Mapping[str, Any]] | None:
    """The metrics on real dev games of the start and of the policy at the end.

    Where every policy that played them had destroyed a family's success, those of the
    one that won most; empty where all were reverted. None where no game was played,
    and a budget has no real steps left for that.
    """
    before = _start_metrics(run).get("real", {})
    best = best_row(progress.curve)
    if progress.best is not None and best is not None:
        return before, progress.curve[best]
    if progress.best is not None and any("real_success" in r for r in progress.curve):
        rejected = [r for r in progress.curve if any(map(_is_destruction, r))]
        return before, max(rejected, key=dev_score, default={})
    player = player_of(run, START)
    if not plays_dev_games(run, player, "dream"):
        return None
    trained = load_policy(run, "dream")
    games = paired_dev_games(run, (player, start), ("dream", trained))
    first, second = map(dev_metrics, games)
    return first, second


def _is_destruction(key: str) -> bool:
    return key.startswith("destroyed/")


def _choose(
    run: Run,
    progress: TrainingState,
    start: Policy,
    experience: CachingExperienceModel | None = None,
) -> dict[str, Any]:
    """Keep what was trained where it is better than where it began; say what is kept.

    By real dev games, of which it must win more by a standard error, else by success in
    the dream with a margin. Without `monitor.keep_best` it is always kept, and under
    `limits`: what it lost may be what they ask for, and only its costs are limited.
    """
    loop = run.config.train
    if loop.limits or not loop.monitor.keep_best:
        return {"kept": "dream"}
    choice = compare_with_start(
        run,
        "dream",
        load_policy(run, "dream"),
        _start_metrics(run),
        START,
        experience,
        real_metrics=lambda: _dev_metrics_of(run, progress, start),
        standard_errors=1.0,  # it is the best of several checkpoints on these games
    )
    if not choice.better:
        save_policy(run, "dream", start)
    return choice.numbers


def _start_metrics(run: Run) -> dict[str, Any]:
    """Return the metrics on dev tasks of the policy where training begins."""
    numbers = run.numbers(START)
    return {k: numbers[k] for k in ("real", "dreamed") if k in numbers}


def _refit_numbers(curve: Sequence[Mapping[str, float]]) -> dict[str, Any]:
    """Return the measures of the reward model at its first and its last refit.

    They are those before the refit, of rollouts that the model has not seen.
    """
    head, suffix = "reward_refit/", "_before"
    rows = [
        {
            name.removeprefix(head).removesuffix(suffix): value
            for name, value in row.items()
            if name.startswith(head) and name.endswith(suffix)
        }
        for row in curve
    ]
    rows = [row for row in rows if row]
    if not rows:
        return {}
    return {"reward_refit_first": rows[0], "reward_refit_last": rows[-1]}


def _numbers(progress: TrainingState) -> dict[str, Any]:
    """Return the numbers of the stage for a loop in the dream or the environment."""
    pool = progress.pool.entries.values()
    numbers: dict[str, Any] = (
        {"stop_reason": progress.stop_reason} if progress.stop_reason else {}
    )
    scored = [row for row in progress.curve if "success" in row]
    if scored:  # else nobody knows how often it won
        for name, row in (("first", scored[0]), ("last", scored[-1])):
            numbers[f"success_{name}"] = row["success"]
            numbers[f"success_{name}_of"] = int(
                row["rollouts"] - row["unscored_rollouts"]
            )
    if progress.curve and "kl" in progress.curve[-1]:
        numbers["kl"] = progress.curve[-1]["kl"]
    last = progress.curve[-1] if progress.curve else {}
    if costs := {k[5:]: v for k, v in last.items() if k.startswith("cost/")}:
        numbers |= {"costs_last": costs, "costs_last_of": int(last["rollouts"])}
    numbers |= _refit_numbers(progress.curve)
    note = training_note(progress.curve)
    if note is not None:
        numbers["note"] = note
        print(f"train: {note}", file=sys.stderr)
    best = best_row(progress.curve)
    if progress.best is not None and best is not None:
        row = progress.curve[best]
        numbers |= {
            "best_update": row["update"],
            "best_real_success": row["real_success"],
        }
    return numbers | {
        "updates": progress.update,
        "proposal_resets": progress.pool.resets,
        "generated_tasks": sum(e.generated for e in pool),
        "retired_tasks": sum(e.retired for e in pool),
        **{f"accepted_{k}": v for k, v in progress.pool.acceptance().items()},
    }


def cost(config: RunConfig, workload: Workload) -> Cost:
    """Return what the loop takes, and the dev games that choose between its policies.

    In the real environment the learning takes as long as after rollouts in the dream.
    """
    loop, timings = config.train, workload.timings
    steps = train_steps(config, workload)
    seconds, answers = DREAMED_STEP * steps * timings.update, 0.0
    if loop.environment == "real":
        seconds += steps * timings.step
    elif config.server is not None:
        answers = UNCACHED * answers_per_query(config) * steps
        if max_generated(loop.curriculum, loop.tasks_per_update):
            answers += loop.updates * loop.curriculum.proposals_per_update
        seconds += answers * timings.answer
    if games := dev_games(config, workload):
        checks = -(-loop.updates // loop.monitor.real_eval_every)
        seconds += checks * games * game_seconds(workload)
    return Cost(
        seconds + refit_seconds(loop, workload),
        compile_seconds=60,
        memory=loop_memory(loop, workload),
        disk=workload.model_bytes,
        answers=answers,
    )
