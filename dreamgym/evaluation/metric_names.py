"""Metrics of fits and training loops: their keys, and what people see in their place.

The one table of the keys that the display, the plots and the pages show.
"""

from collections.abc import Mapping
from typing import NamedTuple


class Metric(NamedTuple):
    """The name of a metric on a screen, and whether it is a share (in per cent)."""

    label: str
    share: bool = False


METRICS: Mapping[str, Metric] = {
    "success": Metric("success", share=True),
    "return": Metric("return"),
    "loss": Metric("loss"),
    "held_out/loss": Metric("held-out loss"),
    "kl": Metric("KL to the start"),
    "update_kl": Metric("KL of the update"),
    "entropy": Metric("entropy"),
    "invalid_action_share": Metric("invalid actions", share=True),
    "broken_share": Metric("rollouts that broke off", share=True),
    "real_success": Metric("success on real dev games", share=True),
    "tokens/s": Metric("tokens/s"),
}
"""The metrics of the live display, in order."""


class Line(NamedTuple):
    """One line of a panel: the key of a metric, its name in the legend, its style.

    With `per` the metric is divided by another one.
    """

    key: str
    label: str = ""
    style: str = "-"
    per: str = ""


class Panel(NamedTuple):
    """A plot of one or a few metrics over updates, with a sentence on what it shows.

    `prefix` stands for all metrics whose keys begin with it.
    """

    title: str
    caption: str
    lines: tuple[Line, ...] = ()
    prefix: str = ""
    share: bool = False
    log: bool = False


PANELS = (
    Panel(
        "Success of rollouts",
        "Share of the scored rollouts of an update that reach the goal, in the "
        "environment that the policy trains in. Dotted: what it would be if all "
        "rollouts without a score had been lost, or won.",
        (
            Line("success"),
            Line("success_at_least", "others lost", ":"),
            Line("success_at_most", "others won", ":"),
        ),
        share=True,
    ),
    Panel(
        "Success by family",
        "The same for each family of tasks.",
        prefix="success/",
        share=True,
    ),
    Panel(
        "Success on real dev games",
        "Played in the real environment during training. Where it falls while the "
        "success of rollouts rises, the policy exploits errors of the dream.",
        (Line("real_success"),),
        share=True,
    ),
    Panel(
        "Real dev games by family",
        "The same for each family of tasks: one may rise while another is forgotten.",
        prefix="real_success/",
        share=True,
    ),
    Panel(
        "Groups with a signal",
        "Share of groups of rollouts in which some succeed and others fail: only these "
        "can teach. Dotted: the share of rollouts that could not be scored.",
        (
            Line("informative_groups", "signal"),
            Line("unscored_rollouts", "unscored", ":", per="rollouts"),
        ),
        share=True,
    ),
    Panel(
        "Rollouts that broke off by family",
        "Share of the rollouts of a family of tasks that could not be scored: the "
        "dream's answer made no sense, or its confidence was too low. The success "
        "above is of the others.",
        prefix="unscored_share/",
        share=True,
    ),
    Panel(
        "KL of an update by turn",
        "KL(new || old) of one update: the mean over turns, and dashed the turn that "
        "changed most. The trust region limits both.",
        (
            Line("update_kl_mean_turn", "mean"),
            Line("update_kl_max_turn", "largest turn", "--"),
        ),
        log=True,
    ),
    Panel(
        "KL to the start",
        "How far the policy is from the one that training began with, in nats a token.",
        (Line("kl"),),
    ),
    Panel(
        "Held-out loss of fits",
        "Cross-entropy on episodes that were not fitted, in nats a token.",
        (Line("held_out/loss"),),
    ),
)
"""The plots of a run, in reading order."""
