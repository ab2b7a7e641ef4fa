"""Policies that play as they are, or planning in the run's dream."""

import contextlib
import dataclasses
from collections.abc import Sequence

import jax
import numpy as np

from dreamgym.agent.config import PlanConfig
from dreamgym.agent.demonstrations import shortened_wins
from dreamgym.agent.planning import PlanningPolicy
from dreamgym.agent.policy import Policy, Situation
from dreamgym.agent.search.controls import PermutedOutcomes, RealOutcomes
from dreamgym.agent.search.recorded import frequent_actions
from dreamgym.build.chat import experience_session
from dreamgym.build.episodes import read
from dreamgym.build.experience import (
    load_experience,
    read_scorecard,
    remedy_folder,
)
from dreamgym.build.models import load_policy
from dreamgym.build.real.instances import instance_maker
from dreamgym.build.real.step_limit import lasting_wins, step_limit
from dreamgym.config.settings import RunConfig
from dreamgym.envs import restarting
from dreamgym.envs.dream import DreamVectorEnv, UncertaintyGate
from dreamgym.run.directory import Run, RunError
from worldmodel.data.records import Episode
from worldmodel.experience.base import ExperienceModel
from worldmodel.fidelity.cases import UNPREDICTABLE

AGREEMENT_MOMENTS = 100
"""Recorded moments at which it is asked whether a policy's draws agree."""
MIN_AGREEMENT = 2 / 3
"""Share of the moments in which all draws are one action, from which "auto" searches by
A*: 74 to 100 % in FrozenLake, where "mpc" finds nothing to compare, and 21 to 60 % in
LightsOut, GoToObject and the games of TextWorldExpress (docs/LOG.md, 2026-11-27)."""
OFF = "off"
"""The status of a stage that the settings leave out."""
MAX_REVEALS = 0.1
"""Share of transitions that reveal something, up to which "auto" searches by A*: 4 % in
FrozenLake, where it wins more than "mpc", and 22 to 24 % in the games of
TextWorldExpress, where it does not (docs/LOG.md, 2026-11-27)."""
PLANNER = "planner"
"""The policy that plans wherever it plays."""


@dataclasses.dataclass
class Dreams:
    """Makes batches of dreamed episodes of an experience model."""

    experience: ExperienceModel
    max_steps: int
    uncertainty: UncertaintyGate | None = None
    lasting_wins: bool = False

    def __call__(self, size: int) -> DreamVectorEnv:
        """Return a dream of so many slots."""
        return DreamVectorEnv(
            self.experience,
            size,
            max_steps=self.max_steps,
            uncertainty=self.uncertainty,
            lasting_wins=self.lasting_wins,
        )


def load_player(run: Run, policy: str) -> Policy | PlanningPolicy:
    """Return a policy of the run, which plans at test games as `plan_of` says."""
    return planning_policy(
        run,
        load_policy(run, policy),
        plan_of(run, policy),
        stage=f"evaluate/{policy}",
        folder=paid_folder(run, policy),
    )


def plan_settings(config: RunConfig, policy: str) -> PlanConfig:
    """Return the settings by which a policy may plan at test games."""
    return config.planner if policy == PLANNER else config.evaluate.plan


def plan_of(run: Run, policy: str) -> PlanConfig:
    """Return how a policy plans at test games: as its settings say.

    The policy `planner` does so only where its stage has decided for the plan.
    """
    if policy == PLANNER and run.numbers(PLANNER).get("kept") != PLANNER:
        return PlanConfig()
    return plan_settings(run.config, policy)


def why_without_plan(run: Run) -> str:
    """Return why the stage `planner` plays no dev games with a plan, "" if it does.

    OFF where the settings say so; else the dream was refused.
    """
    c, check = run.config, run.numbers("dream_check")
    if c.planner.method == "none" or c.train.environment == "real":
        return OFF
    return check["refused"] if check.get("refused") and not check["forced"] else ""


def planning_policy(
    run: Run, policy: Policy, plan: PlanConfig, *, stage: str, folder: str
) -> Policy | PlanningPolicy:
    """Return the policy, which plans where the method of the plan is not "none".

    Args:
      stage: names the calls of a chat server.
      folder: that of the experience model in the run.
    """
    plan = chosen_plan(run, policy, plan)
    if plan.method == "none":
        return policy
    dreams = Dreams(
        _planning_world(run, plan, stage=stage, folder=folder),
        step_limit(run),
        lasting_wins=plan.world != "real" and lasting_wins(run),
    )
    if plan.method != "a_star":
        return PlanningPolicy(policy, dreams, plan)
    episodes = read(run)[0]
    return PlanningPolicy(
        policy,
        dreams,
        plan,
        won_actions=won_actions(episodes),
        recorded_actions=frequent_actions(episodes),
    )


def _planning_world(
    run: Run, plan: PlanConfig, *, stage: str, folder: str
) -> ExperienceModel:
    """Return what answers the sequences of a plan: the dream, or a control of it.

    Raises:
      RunError: the control replays episodes, and the environment is not deterministic.
    """
    if plan.world == "real":
        if not run.numbers("collect").get("deterministic", True):
            raise RunError(
                "evaluate.plan.world = real replays episodes, and the environment of "
                f"{run.root} declares deterministic = False"
            )
        env = run.config.env
        return RealOutcomes(restarting.open_env(env.id, make=instance_maker(env)))
    # Plans compare confidences with each other only: they need not be calibrated.
    experience = load_experience(run, stage=stage, folder=folder)
    if plan.world == "permuted":
        actions = [t.action for e in read(run)[0] for t in e.transitions]
        try:
            return PermutedOutcomes(experience, actions, seed=run.config.seed)
        except ValueError as error:
            raise RunError(f"{run.root}: {error}") from None
    return experience


def chosen_plan(
    run: Run, policy: Policy, plan: PlanConfig, otherwise: str = "mpc"
) -> PlanConfig:
    """Return the plan, with the method that "auto" stands for in this environment.

    That is A* where what follows from an action can be known, at most `MAX_REVEALS` of
    the transitions of the run's scorecard reveal something or show what is forgotten,
    and the policy alone offers little to choose from: its draws agree in at least
    `MIN_AGREEMENT` of the recorded moments. Elsewhere it is the method `otherwise`, and
    where nobody has won: A* looks for a win, which such a dream has never seen.
    """
    if plan.method != "auto":
        return plan
    if not won_actions(read(run)[0]):
        return dataclasses.replace(plan, method=otherwise)
    exact = read_scorecard(run)["exact"]
    hidden = sum(exact.get(k, {}).get("count", 0) for k in UNPREDICTABLE)
    hidden /= max(exact["all"]["count"], 1)
    if hidden > MAX_REVEALS or draw_agreement(run, policy, plan) < MIN_AGREEMENT:
        return dataclasses.replace(plan, method=otherwise)
    simulations, depth = max(plan.simulations // 2, 2), 2 * plan.depth
    return dataclasses.replace(
        plan, method="a_star", simulations=simulations, depth=depth
    )


def draw_agreement(run: Run, policy: Policy, plan: PlanConfig) -> float:
    """Return the share of recorded moments in which all draws are one action.

    They are drawn as "mpc" draws its candidates, in up to AGREEMENT_MOMENTS moments of
    the dev episodes, the same ones each time.
    """
    moments = [(e, i) for e in read(run)[1] for i in range(len(e.transitions))]
    order = np.random.default_rng(0).permutation(len(moments))[:AGREEMENT_MOMENTS]
    situations = [
        Situation(
            e.task,
            [t.action for t in e.transitions[:i]],
            e.transitions[i].state,
            (),
            [t.state for t in e.transitions[:i]],
        )
        for e, i in (moments[n] for n in order)
        for _ in range(plan.simulations)
    ]
    if not situations:
        return 0.0
    keys = jax.random.split(jax.random.key(0), len(situations))
    turns = policy.act(situations, keys, temperature=1.0)
    actions = np.array([t.action for t in turns]).reshape(-1, plan.simulations)
    return float(np.mean((actions == actions[:, :1]).all(1)))


def won_actions(episodes: Sequence[Episode]) -> list[list[str]]:
    """Return the actions of the shortest won episode of each task."""
    return [[t.action for t in e.transitions] for e in shortened_wins(episodes)]


def planning_session(
    player: Policy | PlanningPolicy,
) -> contextlib.AbstractContextManager[object]:
    """Return a `with` block for play; it closes what is planned in.

    Raises:
      ServerLost: in the block, when a server gave no answer.
    """
    if not isinstance(player, PlanningPolicy) or not isinstance(
        player.make_dream, Dreams
    ):
        return contextlib.nullcontext()
    world = player.make_dream.experience
    if isinstance(world, RealOutcomes):
        return contextlib.closing(world)
    return experience_session(
        world.model if isinstance(world, PermutedOutcomes) else world
    )


def paid_folder(run: Run, policy: str) -> str:
    """Return the folder of the experience model that a policy has paid for.

    Only `s2r`, which `planner` is as well, was fine-tuned with a refit, of which those
    that were left out have no model (refit_round); what was trained before the dream
    was checked, and what never saw it, plan in the model as it was pretrained.
    """
    if policy in ("s2r", PLANNER):
        rounds = [path.parent for path in run.path("s2r").glob("round-*/experience")]
        if rounds:
            last = max(rounds, key=lambda path: int(path.name.rsplit("-", 1)[1]))
            return f"s2r/{last.name}"
    reads_remedy = policy in ("expert_iteration", "dream", "s2r", PLANNER)
    return remedy_folder(run) if reads_remedy else ""
