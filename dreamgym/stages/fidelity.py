"""Stage: how far the experience model can be trusted, on unseen games."""

from typing import Any

from dreamgym.build import chat as run_chat
from dreamgym.build import experience as run_experience
from dreamgym.build.episodes import read
from dreamgym.build.experience import load_experience
from dreamgym.evaluation import scorecard_page
from dreamgym.evaluation.fidelity import by_family
from dreamgym.run.directory import Run
from dreamgym.run.display import bar
from worldmodel import fidelity
from worldmodel.experience.base import ExperienceModel


def body(run: Run) -> dict[str, Any]:
    """Score the experience model on dev games; writes fidelity.json and its plot."""
    experience = load_experience(run, stage="fidelity")
    with run_chat.asking(experience):
        return _measured(run, experience)


def _measured(run: Run, experience: ExperienceModel) -> dict[str, Any]:
    _, dev = read(run)
    run_experience.check_trust(run, experience, dev)
    limit = run.config.evaluate.fidelity
    with bar(limit, "fidelity", "transition") as show:
        card = by_family(
            experience, dev, limit, lambda done, _: show(done), env=run.config.env,
            open_loop_steps=limit,
        )  # fmt: skip
    scale = fidelity.fit_calibration(experience, dev, limit=limit)
    card["calibration"] = scale.json()
    gate = run.config.trust.gate
    least = fidelity.confidence_threshold(experience, dev, limit=limit, gate=gate)
    # The gate reads calibrated chances: so its threshold is one. 0 believes all.
    card["threshold"] = scale.confidence(least) if least else 0.0
    run.write_json("fidelity.json", card)
    scorecard_page.plot_states(card, run.path("plots/fidelity.png"))
    print(scorecard_page.summary(card))
    return {
        "transitions": card["transitions"],
        "real_transitions": card["real_transitions"],
        **{f"exact_{k}": v["mean"] for k, v in card["exact"].items()},
        "kept_all": card["kept"]["all"]["mean"],
        "copy_all": card["copy"]["all"]["mean"],
        "rewards_found": card["reward"]["recall"]["mean"],
        "reward_false_positives": card["reward"]["false_positives"]["mean"],
        "near_misses_rewarded": card["reward"]["near_misses"]["mean"],
        "ends_found": card["done"]["recall"]["mean"],
        "success_agreement": card["open_loop"]["outcomes"]["agree"]["mean"],
        **run_chat.spent(experience),
    }
