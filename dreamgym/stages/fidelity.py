"""Stage: fidelity of the experience model on held-out tasks."""

from typing import Any

from dreamgym.build import chat as run_chat
from dreamgym.build import experience as run_experience
from dreamgym.build.costs import answers_per_query
from dreamgym.build.environments import open_env
from dreamgym.build.episodes import read
from dreamgym.build.experience import load_experience
from dreamgym.config.settings import RunConfig
from dreamgym.evaluation import scorecard_page
from dreamgym.evaluation.fidelity import by_family
from dreamgym.run.cost import Cost, Workload
from dreamgym.run.directory import Run
from dreamgym.run.display import progress_bar
from worldmodel import fidelity
from worldmodel.experience.base import ExperienceModel
from worldmodel.text.identifiers import task_shares


def body(run: Run) -> dict[str, Any]:
    """Score the experience model on dev tasks; write fidelity.json and its plot."""
    experience = load_experience(run, stage="fidelity")
    with run_chat.experience_session(experience):
        return _score(run, experience)


def _score(run: Run, experience: ExperienceModel) -> dict[str, Any]:
    train, dev = read(run)
    run_experience.check_confidence(run, experience, dev)
    limit = run.config.fidelity.transitions
    with progress_bar(limit, "fidelity", "transition") as show, open_env(run) as env:
        scorecard = by_family(
            experience,
            dev,
            limit,
            lambda done, _: show(done),
            env=env,
            steps_left=lambda: run.real_steps.left,
            open_loop_steps=limit,
            shares=task_shares(train),
        )
    scale = fidelity.fit_calibration(experience, dev, limit=limit)
    scorecard["calibration"] = scale.json()
    gate = run.config.uncertainty.false_abort_rate
    threshold = fidelity.confidence_threshold(experience, dev, limit=limit, gate=gate)
    # The gate reads calibrated chances: so its threshold is one. 0 believes all.
    scorecard["threshold"] = scale.confidence(threshold) if threshold else 0.0
    run.write_json("fidelity.json", scorecard)
    scorecard_page.plot_states(scorecard, run.path("plots/fidelity.png"))
    print(scorecard_page.summary(scorecard))
    return {
        "transitions": scorecard["transitions"],
        **{f"exact_{k}": v["mean"] for k, v in scorecard["exact"].items()},
        "copy_accuracy": scorecard["copying"]["state"]["mean"],
        "copy_accuracy_unseen": scorecard["copying"]["state_unseen"]["mean"],
        "kept_all": scorecard["kept"]["all"]["mean"],
        "copy_all": scorecard["copy"]["all"]["mean"],
        "rewards_found": scorecard["reward"]["recall"]["mean"],
        "reward_false_positives": scorecard["reward"]["false_positives"]["mean"],
        "near_misses_rewarded": scorecard["reward"]["near_misses"]["mean"],
        "ends_found": scorecard["done"]["recall"]["mean"],
        "success_agreement": scorecard["open_loop"]["outcomes"]["agree"]["mean"],
        **run_chat.server_usage(experience),
    }


def cost(config: RunConfig, workload: Workload) -> Cost:
    """Return what the predictions of the dev transitions take."""
    count = config.fidelity.transitions
    answers = answers_per_query(config) * count
    seconds = 0.33 * count * workload.timings.update
    seconds += answers * workload.timings.answer
    return Cost(seconds, compile_seconds=4, answers=answers)
