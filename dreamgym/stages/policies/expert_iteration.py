"""Stage: expert iteration in the dream (arXiv:1705.08439; STaR, arXiv:2203.14465).

tasks -> rollouts in the dream, and a search for a win in what they do not win -> won
episodes without their detours -> a fit from the initial policy on these and the real
demonstrations -> the next round. Where the policy wins less than random players did,
one that imitates these plays as well.

No real step is spent on demonstrations: the dream is where they are found, and tasks of
which nothing was collected have some, too. Each round fits from the same initial
policy, so that errors of an earlier one do not add up.
"""

from collections.abc import Sequence
from typing import Any

from dreamgym.agent.demonstrations import random_success, without_surpassed
from dreamgym.agent.policy import Policy
from dreamgym.build import chat as run_chat
from dreamgym.build.costs import dev_games, dreamed_wins_cost, game_seconds
from dreamgym.build.curriculum import invented_tasks
from dreamgym.build.episodes import imitated_episodes, known_solutions, read
from dreamgym.build.experience import load_experience, read_scorecard, remedy_folder
from dreamgym.build.imitation import (
    dreamed_wins,
    exploration_policy,
    fit_demonstrations,
)
from dreamgym.build.models import load_policy, save_policy
from dreamgym.build.real.dev_choice import (
    Choice,
    compare_on_dev_games,
    compare_with_start,
    nothing_to_gain,
    player_of,
)
from dreamgym.build.real.dev_play import (
    dreamed_dev_games,
    play_dev_games,
    plays_dev_games,
)
from dreamgym.build.real.environments import dreamable_tasks, training_tasks
from dreamgym.config.settings import RunConfig
from dreamgym.evaluation.dream_check import dev_metrics
from dreamgym.evaluation.leading_numbers import is_trusted
from dreamgym.run.cost import Cost, Workload
from dreamgym.run.directory import Run
from worldmodel.data.records import Episode, Task, write_episodes
from worldmodel.experience.base import CachingExperienceModel

NAME = "expert_iteration"


def body(run: Run) -> dict[str, Any]:
    """Imitate what the policy wins in the dream; write policies/expert_iteration.

    It is the warm start where nothing is imitated, or where that did not help on dev
    tasks. The marker has the metrics of the policy that is kept, `real` and `dreamed`.
    """
    check, warm = run.numbers("dream_check"), load_policy(run, "warmstart")
    start = {k: check[k] for k in ("real", "dreamed") if k in check}
    if reason := _reason_to_skip(run, check):
        save_policy(run, NAME, warm)
        return {"rounds": 0, "kept": "warmstart", **reason, **start}
    folder = remedy_folder(run)
    experience = load_experience(run, stage=NAME, scaled=True, folder=folder)
    with run_chat.experience_session(experience):
        policy, numbers = _iterate(run, experience, warm)
        if policy is None:
            note = "nothing was imitated: the dream was won in no further task"
            choice = Choice(False, {"kept": "warmstart", "note": note}, start)
        else:
            choice = _choose(run, experience, warm, policy, start)
    save_policy(run, NAME, policy if policy is not None and choice.better else warm)
    run.drop(f"checkpoints/{NAME}")
    return numbers | choice.numbers | choice.metrics


def _choose(
    run: Run,
    experience: CachingExperienceModel,
    warm: Policy,
    policy: Policy,
    start: dict[str, Any],
) -> Choice:
    """Choose between the warm start and the policy of the last round.

    In a dream whose leading numbers reach what is required, it is expected to be
    better: it imitates more wins. It is then kept unless it wins fewer dev games.
    """
    player = player_of(run, "warmstart")
    if not plays_dev_games(run, player, NAME):
        return compare_with_start(run, NAME, policy, start, "warmstart", experience)
    numbers = compare_on_dev_games(
        run,
        (player, warm),
        (NAME, policy),
        start="warmstart",
        what="imitating dreamed wins",
        expected_better=is_trusted(read_scorecard(run, remedy_folder(run))),
        standard_errors=0.0,
    )
    if numbers["kept"] != NAME:
        return Choice(False, numbers, start)
    played = {"real": play_dev_games(run, NAME, policy)}
    if run.config.budget.real_steps:
        # What trains from this policy is compared with it in the dream, where no real
        # steps are left.
        folder = remedy_folder(run)
        played["dreamed"] = dreamed_dev_games(run, experience, policy, folder)
    return Choice(True, numbers, {k: dev_metrics(v) for k, v in played.items()})


def _reason_to_skip(run: Run, check: dict[str, Any]) -> dict[str, Any] | None:
    """Return why nothing is imitated, with a note where a user would want one."""
    c = run.config
    if not c.expert_iteration.rounds or c.train.environment == "real":
        return {"status": "off"}
    if check.get("refused") and not check["forced"]:
        return {"note": f"nothing was imitated: {check['refused']}"}
    done = nothing_to_gain(run, check.get("real", {}), "warmstart", "not iterated")
    if done is not None:
        return done
    if not run.numbers("collect").get("deterministic", True):
        return {
            "note": "nothing was imitated: the environment draws lots, so that what "
            "was won may have been lucky",
            "by_rule": True,
        }
    return None


def _iterate(
    run: Run, experience: CachingExperienceModel, warm: Policy
) -> tuple[Policy | None, dict[str, Any]]:
    """Return the policy of the last round, and the numbers of all rounds.

    There is no policy if nothing was won, nor earned where few tasks are won, in tasks
    without a real win. What an interrupted stage dreamed in whole rounds, and its fits,
    are not repeated.
    """
    c, episodes = run.config.expert_iteration, read(run)[0]
    fresh = training_tasks(run, [e.task for e in episodes], c.fresh_tasks)
    tasks, chance = dreamable_tasks(fresh), random_success(episodes)
    missing = min(c.invented_tasks, c.tasks - len(tasks))
    invented: list[Task] = []
    if missing > 0:
        startable = [e for e in episodes if e.task.initial_state]
        seed = run.config.policy_seed
        invented = invented_tasks(experience, startable, missing, seed=seed)
    tasks = [*tasks, *invented]
    real, imitated = known_solutions(run), imitated_episodes(run)
    won: list[Episode] = []
    counts: list[int] = []
    explorer_wins: list[int] = []
    policy: Policy | None = None
    explorer: Policy | None = None

    def play(player: Policy, name: str) -> tuple[list[Episode], int]:
        """Add what a player shows; return that, and how many tasks it played."""
        solved = {e.task.id for e in (*real, *won) if e.success}
        # Another win of a task would add nothing: one episode of each is imitated.
        unsolved = [t for t in tasks if t.id not in solved]
        new = dreamed_wins(
            run,
            experience,
            player,
            unsolved,
            name,
            remedy_folder(run),
            won_tasks=solved,
        )
        won[:] = without_surpassed([*won, *new])
        return new, min(len(unsolved), c.tasks)

    for number in range(1, c.rounds + 1):
        name = f"{NAME}/round-{number}"
        new, played = play(warm if policy is None else policy, name)
        weak = c.explore and _wins(new) < chance * played
        if weak and (number == 1 or explorer is not None):
            if explorer is None:
                explorer = exploration_policy(run, f"{NAME}/explorer")
            explored, _ = play(explorer, f"{name}-explorer")
            explorer_wins.append(_wins(explored))
            new = [*new, *explored]
        counts.append(_wins(won))
        if new:
            policy = fit_demonstrations(run, without_surpassed([*imitated, *won]), name)
    write_episodes(run.path(f"{NAME}.jsonl"), won, check=False)
    numbers = {
        "rounds": c.rounds,
        "tasks": len(tasks),
        **({"invented_tasks": len(invented)} if c.invented_tasks else {}),
        "real_demonstrations": _wins(real),
        "dreamed_demonstrations": counts,
        **({"dreamed_parts": len(won) - counts[-1]} if len(won) > counts[-1] else {}),
        **({"explorer_demonstrations": explorer_wins} if explorer_wins else {}),
        **run_chat.server_usage(experience),
    }
    return policy, numbers


def _wins(episodes: Sequence[Episode]) -> int:
    return sum(bool(e.success) for e in episodes)


def cost(config: RunConfig, workload: Workload) -> Cost:
    """Return what the dreamed steps and the fits of all rounds take.

    An explorer is left out: few runs need one, and it takes as much again at most.
    """
    c = config.expert_iteration
    if not c.rounds or config.train.environment == "real":
        return Cost(disk=workload.model_bytes)
    dreamed = dreamed_wins_cost(config, workload, c.rounds)
    # Later rounds imitate more, and fit up to 1.45 times as long as imitation does.
    fit = workload.fit(1.1 * c.rounds * 1.25 * config.bc.fit.steps)
    games = dev_games(config, workload) * game_seconds(workload)
    return fit._replace(
        seconds=dreamed.seconds + fit.seconds + games,
        compile_seconds=4 * c.rounds,
        answers=dreamed.answers,
    )
