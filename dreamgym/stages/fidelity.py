"""Stage: fidelity of the experience model on held-out tasks."""

from typing import Any

from dreamgym.build import chat as run_chat
from dreamgym.build import experience as run_experience
from dreamgym.build.costs import answers_per_query
from dreamgym.build.episodes import read
from dreamgym.build.experience import load_experience
from dreamgym.build.fidelity import measure
from dreamgym.config.settings import RunConfig
from dreamgym.evaluation.pages import scorecard_page
from dreamgym.run.cost import Cost, Workload
from dreamgym.run.directory import Run
from worldmodel.experience.base import ExperienceModel


def body(run: Run) -> dict[str, Any]:
    """Score the experience model on dev tasks; write fidelity.json and its plot."""
    experience = load_experience(run, stage="fidelity")
    with run_chat.experience_session(experience):
        return _score(run, experience)


def _score(run: Run, experience: ExperienceModel) -> dict[str, Any]:
    _, dev = read(run)
    run_experience.check_confidence(run, experience, dev)
    scorecard = measure(run, experience, "fidelity")
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
        "instruction_agreement": scorecard["instruction"]["agree"]["mean"],
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
