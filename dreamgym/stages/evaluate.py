"""Stages: a policy plays the real test games, the same for every policy."""

import sys
from collections.abc import Callable
from typing import Any

from dreamgym.build.environments import NO_ENV, play_test_games
from dreamgym.evaluation.evaluate import summary
from dreamgym.evaluation.report import counts_text
from dreamgym.run.directory import Run


def body_of(name: str) -> Callable[[Run], dict[str, Any]]:
    """Return the body of the stage that plays the test games with a policy."""

    def body(run: Run) -> dict[str, Any]:
        if not run.config.env:
            return {"status": NO_ENV}
        row = summary(play_test_games(run, name), real_transitions=0)
        success = row["success"]
        out = {"success": success["mean"], "games": success["episodes"]}
        if row["errors"]:
            out["unscored"] = success["unscored"]
            print(
                f"evaluate: {name}: {success['unscored']} games were not scored: "
                f"{counts_text(row['errors'])}",
                file=sys.stderr,
            )
        return out

    body.__doc__ = f"Play the real test games with {name}; writes test/{name}.jsonl."
    return body
