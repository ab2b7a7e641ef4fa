"""Stage: a small ensemble of experience models, if the settings ask for one."""

from typing import Any

from dreamgym.build.episodes import read, read_names
from dreamgym.build.experience import fit_data
from dreamgym.config.settings import RunConfig
from dreamgym.run.cost import Cost, Workload
from dreamgym.run.directory import Run
from worldmodel.backbone.weights import load_model, save_model
from worldmodel.experience.ensemble import members


def body(run: Run) -> dict[str, Any]:
    """Fit the members to the experience model's examples; write ensemble/NUMBER.

    A stage of its own, so that runs that differ in it share their experience model.
    """
    c = run.config
    if not c.ensemble.members:
        return {"members": 0}
    run.require("pretrain")
    model, tok = load_model(run.path("experience"), mesh=run.mesh)
    train, _ = read(run)
    examples = fit_data(run, tok, train, names=read_names(run)).examples
    work = run.path("checkpoints/ensemble")
    with run.progress_report(
        "ensemble", c.ensemble.members * c.ensemble.steps
    ) as report:
        fits = members(
            model,
            examples,
            c.pretrain.fit,
            c.ensemble,
            seed=c.seed,
            directory=work,
            progress=report,
        )
    for number, member in enumerate(fits):
        save_model(run.path(f"ensemble/{number}"), member, tok)
    run.drop("checkpoints/ensemble")
    return {"members": c.ensemble.members}


def cost(config: RunConfig, workload: Workload) -> Cost:
    """Return what the fits of the members take."""
    count = config.ensemble.members
    if not count:
        return Cost()
    fit = workload.fit(count * config.ensemble.steps)
    return fit._replace(disk=count * workload.model_bytes)
