"""The table of stages: what each needs, reads, writes and costs, and its policies.

The order of a run, the stages that runs of a study share, the subcommands, the list of
policies and the estimates are derived from this table. Only this module imports the
stages.
"""

from dreamgym.agent.config import FLOORS
from dreamgym.config.settings import RunConfig
from dreamgym.run.stage import Late, Stage, StageTable

_ROOM = "dreamgym.stages"
SEEDS = ("seed", "train.seed")
"""The seeds of the stages that train a policy after its warm start."""
OPEN_ENV = (
    *("env.id", "env.workers", "env.worker_memory_gb"),
    *("env.worker_cpus", "env.fleet", "env.start_seconds"),
)
"""The settings of opening the environment."""
ENV = (*OPEN_ENV, "env.max_episode_steps")
EPISODES = ("experience.reasoning", "experience.reasoning_style")
"""The settings of reading episodes: with reasoning traces or without."""
INITIAL = ("model", "data.base_run")
"""The settings of the initial model: from scratch or from a directory."""
FITTED = ("experience", "memory.encoder", "pretrain")
"""The settings of the experience model's fit."""
EXPERIENCE = (
    "experience",
    "server",
    "memory.encoder",
    "pretrain.data_share",
    "pretrain.permute_outcomes",
    "ensemble.members",
    "uncertainty.signal",
    *INITIAL,
)
"""The settings of predictions."""
RECALL = ("memory.encoder", *INITIAL)
"""The settings by which a policy finds what it remembers."""
POLICY = (
    "policy",
    "bc.init",
    "bc.imitate",
    "bc.min_wins",
    "bc.max_demonstrations",
    "bc.demonstration_share",
    "bc.mixture",
)
"""The settings of a policy, and of the demonstrations that updates may imitate."""
PLAY = ("env.num_envs", "evaluate.temperature")
DEV_GAMES = ("train.monitor.real_eval_every", "train.monitor.real_eval_tasks", "budget")
"""The real dev games that choose between policies."""


CONTROLS = ("real_only", "real_only_total")
"""The controls of fine-tuning, for which a run with a budget has no real steps."""
DPO = "dpo"
"""The stage and policy of offline DPO, in runs whose settings name pairs."""


def is_in_run(stage: str, config: RunConfig, *, controls: bool = True) -> bool:
    """Return whether a run has a stage, with the `controls` of fine-tuning or not."""
    policy = stage.removeprefix("evaluate/")
    if policy in CONTROLS:
        return controls and not config.budget.real_steps
    return policy != DPO or bool(config.dpo.pairs)


def _dev_games(*players: str) -> tuple[str, ...]:
    """Return the files of the real dev games of players."""
    return tuple(f"dev_games/{name}.jsonl" for name in players)


def _evaluation(policy: str, maker: str, command: str = "evaluate") -> Stage:
    """Return the stage that plays the test games with a policy."""
    return Stage(
        f"evaluate/{policy}",
        Late(f"{_ROOM}.evaluate", arguments={"policy": policy}),
        cost=Late(f"{_ROOM}.evaluate", "cost", {"policy": policy}),
        about=f"Play the real test games with {policy}",
        needs=(maker, "shield"),
        reads=(
            *("seed", *ENV, "policy", "env.num_envs", "evaluate", *EXPERIENCE),
            *(("planner",) if policy == "planner" else ()),
        ),
        writes=(f"test/{policy}.jsonl",),
        command=command,
        test=True,
    )


def _floor(name: str) -> Stage:
    """Return the stage that plays the test games with an actor that nobody trained."""
    return Stage(
        f"evaluate/{name}",
        Late(f"{_ROOM}.evaluate", "floor_body", {"name": name}),
        cost=Late(f"{_ROOM}.evaluate", "floor_cost"),
        about=f"Play the real test games with an actor that nobody trained ({name})",
        needs=("collect",),
        reads=("seed", *ENV, "evaluate.tasks"),
        writes=(f"test/{name}.jsonl",),
        command="evaluate",
        test=True,
    )


def _fine_tuning(policy: str, start: str, maker: str) -> Stage:
    """Return the stage that trains a policy in the real environment."""
    total = policy == "real_only_total"
    added = ", with the collected transitions as additional budget" if total else ""
    return Stage(
        policy,
        Late(f"{_ROOM}.policies.transfer", arguments={"name": policy, "start": start}),
        cost=Late(f"{_ROOM}.policies.transfer", "cost", {"name": policy}),
        about=f"Fine-tune {start} in the real environment{added}",
        needs=(maker,) if maker == "train" else (maker, "reward_model"),
        reads=(
            *SEEDS,
            *ENV,
            *EPISODES,
            *INITIAL,
            *EXPERIENCE,
            *FITTED,
            *POLICY,
            *PLAY,
            *DEV_GAMES,
            "bc.fit",
            "expert_iteration",
            "fidelity",
            "transfer",
            "memory",
            "uncertainty",
            "dream_check.force",
            "planner.method",  # whose dev games are played after this stage
            "train.environment",
        ),
        writes=(
            f"policies/{policy}",
            policy,
            f"curves/{policy}",
            f"curves/{policy}.jsonl",
            f"dev_games/{policy}.jsonl",
            f"rollouts/{policy}",
        ),
        policies=(policy,),
        command="transfer",
        share="" if policy in CONTROLS else "fine_tune",
    )


STAGES = StageTable(
    (
        Stage(
            "collect",
            Late(f"{_ROOM}.collect"),
            cost=Late(f"{_ROOM}.collect", "cost"),
            about="Collect real episodes, or take those of a file",
            reads=(
                "seed",
                *ENV,
                "data",
                "budget",
                "collect",
                "policy.admissible_actions",
            ),
            writes=("episodes.jsonl", "dev.jsonl"),
            share="collect",
        ),
        *map(_floor, FLOORS),
        Stage(
            "pretrain",
            Late(f"{_ROOM}.pretrain"),
            cost=Late(f"{_ROOM}.pretrain", "cost"),
            about="Fit the experience model",
            needs=("collect",),
            reads=("seed", *INITIAL, *FITTED, "server", "fidelity"),
            writes=(
                "tokenizer",
                "names.json",
                "experience",
                "memory",
                "curves/pretrain.jsonl",
            ),
        ),
        Stage(
            "ensemble",
            Late(f"{_ROOM}.ensemble"),
            cost=Late(f"{_ROOM}.ensemble", "cost"),
            about="Fit the members of an ensemble to what the model was fitted to",
            needs=("pretrain",),
            reads=("seed", *INITIAL, *FITTED, "ensemble"),
            writes=("ensemble",),
        ),
        Stage(
            "fidelity",
            Late(f"{_ROOM}.fidelity"),
            cost=Late(f"{_ROOM}.fidelity", "cost"),
            about="Score the experience model on dev tasks",
            needs=("pretrain", "ensemble"),
            reads=(
                "seed",
                *OPEN_ENV,
                *EXPERIENCE,
                "uncertainty",
                "fidelity",
                "budget",
            ),
            writes=("fidelity.json", "plots/fidelity.png"),
            share="score",
        ),
        Stage(
            "reward_model",
            Late(f"{_ROOM}.reward_model"),
            cost=Late(f"{_ROOM}.reward_model", "cost"),
            about="Fit the reward model or the classifier that rewards need",
            needs=("pretrain",),
            reads=(
                "seed",
                *EPISODES,
                "server",
                "reward_model",
                "train.reward",
                "transfer.reward",
            ),
            writes=(
                "reward_model",
                "curves/reward_model.jsonl",
                "component_classifier",
                "curves/component_classifier.jsonl",
            ),
            command="reward-model",
        ),
        Stage(
            "bc",
            Late(f"{_ROOM}.policies.bc"),
            cost=Late(f"{_ROOM}.policies.bc", "cost"),
            about="Fit a policy to the demonstrations",
            needs=("pretrain",),
            reads=("seed", *EPISODES, *RECALL, "policy", "bc"),
            writes=("policies/untrained", "policies/bc", "curves/bc.jsonl"),
            policies=("untrained", "bc"),
        ),
        Stage(
            "shield",
            Late(f"{_ROOM}.policies.shield"),
            cost=Late(f"{_ROOM}.policies.shield", "cost"),
            about="Decide whether policies keep to the valid actions",
            needs=("bc",),
            reads=("seed", *ENV, *EPISODES, *RECALL, "policy", *PLAY, *DEV_GAMES),
            writes=_dev_games("bc", "bc-shielded", "bc-unshielded"),
            command="bc",
            share="select",
        ),
        _evaluation("untrained", "bc"),
        _evaluation("bc", "bc"),
        Stage(
            "branch",
            Late(f"{_ROOM}.policies.branch"),
            cost=Late(f"{_ROOM}.policies.branch", "cost"),
            about="Take real alternatives at states of the demonstrations",
            needs=("bc",),
            reads=(
                "seed",
                *ENV,
                *EPISODES,
                *RECALL,
                *POLICY,
                *DEV_GAMES,
                "warmstart.method",
                "branch",
            ),
            writes=("branches.jsonl",),
            share="branch",
        ),
        Stage(
            "warmstart",
            Late(f"{_ROOM}.policies.warmstart"),
            cost=Late(f"{_ROOM}.policies.warmstart", "cost"),
            about="Warm-start the policy by early experience",
            needs=("branch", "shield"),
            reads=(
                "seed",
                *ENV,
                *EPISODES,
                *RECALL,
                "policy",
                "bc",
                "warmstart",
                *PLAY,
                *DEV_GAMES,
                "dream_check.force",
            ),
            writes=(
                "policies/warmstart",
                *_dev_games("bc", "warmstart"),
                "curves/iwm.jsonl",
                "curves/writer.jsonl",
                "curves/warmstart.jsonl",
            ),
            policies=("warmstart",),
            share="select",
        ),
        _evaluation("warmstart", "warmstart"),
        Stage(
            DPO,
            Late(f"{_ROOM}.policies.dpo"),
            cost=Late(f"{_ROOM}.policies.dpo", "cost"),
            about="Train a policy from preference pairs alone, by offline DPO",
            needs=("warmstart", "ensemble"),
            reads=(
                *("seed", *EPISODES, *RECALL, *EXPERIENCE, "policy", "dpo"),
                "env.max_episode_steps",
            ),
            writes=("policies/dpo", "curves/dpo.jsonl", "dpo_pairs.jsonl"),
            policies=(DPO,),
        ),
        _evaluation(DPO, DPO),
        Stage(
            "dream_check",
            Late(f"{_ROOM}.dream_check"),
            cost=Late(f"{_ROOM}.dream_check", "cost"),
            about="Compare the dream with real dev games before training in it",
            needs=("warmstart", "fidelity"),
            reads=(
                "seed",
                *ENV,
                *EXPERIENCE,
                *POLICY,
                *PLAY,
                *DEV_GAMES,
                *FITTED,
                "fidelity",
                "uncertainty",
                "train.environment",
                "train.limits",  # costs that are counted in dev games
                "dream_check",
            ),
            writes=(
                *_dev_games("warmstart", "warmstart-no-shield", "bc-no-shield"),
                *("remedy", "curves/dream_check.jsonl"),
            ),
            command="dream-check",
            share="select",
        ),
        Stage(
            "expert_iteration",
            Late(f"{_ROOM}.policies.expert_iteration"),
            cost=Late(f"{_ROOM}.policies.expert_iteration", "cost"),
            about="Imitate what the policy wins in the dream",
            needs=("dream_check",),
            reads=(
                *SEEDS,
                *ENV,
                *EXPERIENCE,
                "policy",
                "bc",
                *PLAY,
                *DEV_GAMES,
                "uncertainty",
                "train.environment",
                "dream_check.margin",
                "dream_check.force",
                "expert_iteration",
            ),
            writes=(
                "policies/expert_iteration",
                "expert_iteration.jsonl",
                "curves/expert_iteration",
                "dev_games/expert_iteration.jsonl",
            ),
            share="select",
            policies=("expert_iteration",),
            command="expert-iteration",
        ),
        _evaluation("expert_iteration", "expert_iteration"),
        Stage(
            "train",
            Late(f"{_ROOM}.policies.train"),
            cost=Late(f"{_ROOM}.policies.train", "cost"),
            about="Train in the dream by trust-region updates",
            needs=("expert_iteration", "reward_model"),
            reads=(
                "seed",
                *ENV,
                *EXPERIENCE,
                *POLICY,
                *PLAY,
                "fidelity",
                "train",
                "memory",
                "uncertainty",
                "dream_check.margin",
                "dream_check.force",
                "budget",
            ),
            writes=(
                "policies/dream",
                "curves/dream.jsonl",
                "rollouts/dream",
                "bound.json",
                "dev_games/dream.jsonl",
            ),
            policies=("dream",),
            share="train",
        ),
        _evaluation("dream", "train"),
        Stage(
            "off_policy",
            Late(f"{_ROOM}.off_policy"),
            cost=Late(f"{_ROOM}.off_policy", "cost"),
            about="Compare the policies with recorded episodes, without an environment",
            needs=("train",),
            reads=(
                *("seed", *ENV, *EXPERIENCE, *POLICY, *PLAY, *DEV_GAMES),
                "uncertainty",
            ),
            writes=("off_policy.json",),
            command="evaluate",
        ),
        _fine_tuning("s2r", "dream", "train"),
        _evaluation("s2r", "s2r", "transfer"),
        Stage(
            "planner",
            Late(f"{_ROOM}.policies.planner"),
            cost=Late(f"{_ROOM}.policies.planner", "cost"),
            about="Let s2r plan in the dream, where scorecard and dev games allow it",
            needs=("s2r",),
            reads=(
                *("seed", *ENV, *EXPERIENCE, *POLICY, *PLAY, *DEV_GAMES),
                *("planner", "train.environment", "dream_check.force"),
            ),
            writes=("policies/planner", "dev_games/planner.jsonl"),
            policies=("planner",),
            command="transfer",
            share="fine_tune",
        ),
        _evaluation("planner", "planner", "transfer"),
        _fine_tuning("real_only", "warmstart", "warmstart"),
        _evaluation("real_only", "real_only", "transfer"),
        _fine_tuning("real_only_total", "warmstart", "warmstart"),
        _evaluation("real_only_total", "real_only_total", "transfer"),
    )
)
"""In the order of a run."""

POLICIES = tuple(STAGES.policies())
"""Policies that a run makes, in its order."""

PLAYERS = (*FLOORS, *POLICIES)
"""All that play the test games of a run."""
