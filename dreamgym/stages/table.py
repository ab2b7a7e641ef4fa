"""The stages of a run, each with what it needs, reads, writes and makes.

The order of a run, what runs of a study share, the subcommands and the list of policies
follow from this table. It is what `dreamgym.run.runner` runs; nothing else imports a
stage.
"""

from dreamgym.run.stage import Stage, StageTable
from dreamgym.stages import (
    bc,
    branch,
    collect,
    ensemble,
    evaluate,
    fidelity,
    pretrain,
    reward_model,
    train,
    transfer,
    warmstart,
)

ENV = ("env", "max_steps")
EPISODES = ("experience.reasoning",)
"""How episodes are read: with traces or without."""
INITIAL = ("model", "refit")
"""What a fit from scratch or from a directory begins at."""
FITTED = ("share", "shuffled", "balance", "retrieval", "experience", "pretrain")
"""What the experience model is fitted to, and how."""
EXPERIENCE = (
    "experience", "server", "share", "shuffled", "retrieval", *INITIAL,
    "ensemble.members", "trust.signal",
)  # fmt: skip
"""What the fitted experience model is asked with."""
POLICY = ("policy", "warmstart.start", "warmstart.experts", "warmstart.share")
PLAY = ("evaluate.slots", "evaluate.temperature", "evaluate.games")


def _evaluation(policy: str, maker: str, command: str = "evaluate") -> Stage:
    """Return the stage that plays the test games with a policy."""
    return Stage(
        f"evaluate/{policy}",
        evaluate.body_of(policy),
        needs=(maker,),
        reads=("seed", *ENV, "policy", *PLAY),
        writes=(f"test/{policy}.jsonl",),
        command=command,
    )


def _fine_tuning(policy: str, start: str, maker: str) -> Stage:
    """Return the stage that trains a policy in the real environment."""
    return Stage(
        policy,
        transfer.body_of(policy, start),
        needs=(maker,) if maker == "train" else (maker, "reward_model"),
        reads=(
            "seed",
            *ENV,
            *EPISODES,
            *INITIAL,
            *POLICY,
            *PLAY,
            "transfer",
            "transfer_budget",
            "enrich",
            "trust",
        ),
        writes=(f"policies/{policy}", f"curves/{policy}.jsonl"),
        policies=(policy,),
        command="transfer",
    )


STAGES = StageTable(
    (
        Stage(
            "collect",
            collect.body,
            reads=("seed", *ENV, "episodes", "refit", "collect"),
            writes=("episodes.jsonl", "dev.jsonl"),
        ),
        Stage(
            "pretrain",
            pretrain.body,
            needs=("collect",),
            reads=("seed", *INITIAL, *FITTED, "server", "evaluate.fidelity"),
            writes=("tokenizer", "experience", "memory", "curves/pretrain.jsonl"),
        ),
        Stage(
            "ensemble",
            ensemble.body,
            needs=("pretrain",),
            reads=("seed", *INITIAL, *FITTED, "ensemble"),
            writes=("ensemble",),
        ),
        Stage(
            "fidelity",
            fidelity.body,
            needs=("pretrain", "ensemble"),
            reads=(
                "seed",
                "env",
                *EXPERIENCE,
                "trust.gate",
                "trust.pessimism",
                "evaluate.fidelity",
            ),
            writes=("fidelity.json", "plots/fidelity.png"),
        ),
        Stage(
            "reward_model",
            reward_model.body,
            needs=("pretrain",),
            reads=(
                "seed",
                *EPISODES,
                "server",
                "dream.reward",
                "transfer.reward",
            ),
            writes=("reward",),
            command="reward-model",
        ),
        Stage(
            "bc",
            bc.body,
            needs=("pretrain",),
            reads=("seed", *EPISODES, *INITIAL, *POLICY, "warmstart.fit"),
            writes=("policies/untrained", "policies/bc", "curves/bc.jsonl"),
            policies=("untrained", "bc"),
        ),
        _evaluation("untrained", "bc"),
        _evaluation("bc", "bc"),
        Stage(
            "branch",
            branch.body,
            needs=("bc",),
            reads=(
                "seed",
                "env",
                *EPISODES,
                *INITIAL,
                *POLICY,
                "warmstart.method",
                "warmstart.branched",
                "warmstart.alternatives",
                "warmstart.source",
                "warmstart.errors",
                "warmstart.temperature",
            ),
            writes=("branches.jsonl",),
        ),
        Stage(
            "warmstart",
            warmstart.body,
            needs=("branch",),
            reads=("seed", *EPISODES, *INITIAL, "policy", "warmstart"),
            writes=(
                "policies/warmstart",
                "curves/iwm.jsonl",
                "curves/writer.jsonl",
                "curves/warmstart.jsonl",
            ),
            policies=("warmstart",),
        ),
        _evaluation("warmstart", "warmstart"),
        Stage(
            "train",
            train.body,
            needs=("warmstart", "fidelity", "reward_model"),
            reads=(
                "seed",
                *ENV,
                *EXPERIENCE,
                *POLICY,
                *PLAY,
                "evaluate.fidelity",
                "dream",
                "real",
                "enrich",
                "trust",
            ),
            writes=("policies/dream", "curves/dream.jsonl", "bound.json"),
            policies=("dream",),
        ),
        _evaluation("dream", "train"),
        _fine_tuning("s2r", "dream", "train"),
        _evaluation("s2r", "s2r", "transfer"),
        _fine_tuning("real_only", "warmstart", "warmstart"),
        _evaluation("real_only", "real_only", "transfer"),
        _fine_tuning("real_only_total", "warmstart", "warmstart"),
        _evaluation("real_only_total", "real_only_total", "transfer"),
    )
)
"""In the order of a run."""

POLICIES = tuple(STAGES.policies())
"""Policies that a run makes, in its order."""
