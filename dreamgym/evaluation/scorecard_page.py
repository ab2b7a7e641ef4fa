"""The fidelity scorecard for people: a table in the terminal, and a page with plots."""

import base64
import html
import io
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt

from dreamgym.evaluation.statistics import wilson_of
from worldmodel.data.records import atomic_write


def _rate(rate: dict[str, Any] | None) -> str:
    """Format a rate with its Wilson interval and number of cases.

    The interval is that of the effective number of cases, where these weigh unequally.
    """
    if rate is None or rate["mean"] is None:
        return "- (n=0)"
    effective = max(rate["effective"], 1.0)
    low, high = wilson_of(rate["mean"], effective)
    return f"{rate['mean']:6.1%} [{low:.1%}, {high:.1%}] n={rate['count']}"


def _plain(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def headlines(scorecard: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield (what, value) of the figures that decide whether a dream can be used.

    Those on the policies' own episodes come first, if the scorecard has any.
    """
    for name, part in scorecard.get("on_policy", {}).items():
        for what, value in _decisive(part):
            yield f"{what}, episodes of {name}", value
    yield from _decisive(scorecard)


def _decisive(scorecard: dict[str, Any]) -> Iterator[tuple[str, str]]:
    yield "predictable next states right", _rate(scorecard["exact"]["predictable"])
    yield "unusual rewards found", _rate(scorecard["reward"]["recall"])
    yield "ends found", _rate(scorecard["done"]["recall"])
    if "open_loop" in scorecard:
        outcomes = scorecard["open_loop"]["outcomes"]
        yield "success as in reality, dreamed whole", _rate(outcomes["agree"])
        yield "... really won", _rate(outcomes["real_success"])
        yield "... won in the dream", _rate(outcomes["dreamed_success"])
        outcomes = scorecard["open_loop"]["outcomes_without_reveal"]
        yield "... as in reality where nothing is revealed", _rate(outcomes["agree"])


def summary(scorecard: dict[str, Any]) -> str:
    """Return the decisive figures, a line each."""
    return _aligned(headlines(scorecard))


def _aligned(pairs: Iterable[tuple[str, str]]) -> str:
    pairs = list(pairs)
    width = max(len(what) for what, _ in pairs)
    return "\n".join(f"{what:<{width}}  {value}" for what, value in pairs)


def rows(scorecard: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield (what, value with interval) of the whole scorecard, in reading order."""
    exact, share, facts = scorecard["exact"], scorecard["share"], scorecard["kept"]
    yield from headlines(scorecard)
    yield "next state exact", _rate(exact["all"])
    for kind, label in (
        ("predictable", "all but reveals"),
        ("unchanged", "nothing changes"), ("changed", "something changes"),
        ("one_line", "... one line"), ("many_lines", "... many lines"),
        ("reveal", "reveals"),
    ):  # fmt: skip
        yield f"  {label} ({share[kind]:.0%} of all)", _rate(exact[kind])
    yield "known facts kept", _rate(facts["all"])
    yield "  all but reveals", _rate(facts["predictable"])
    yield "  reveals", _rate(facts["reveal"])
    yield "copying the state instead", _rate(scorecard["copy"]["all"])
    if "ceiling" in scorecard:
        yield "the real environment played again", _rate(scorecard["ceiling"])
    yield "changed lines: precision", _rate(scorecard["lines"]["precision"])
    yield "changed lines: recall", _rate(scorecard["lines"]["recall"])
    reward, done = scorecard["reward"], scorecard["done"]
    yield "reward right", _rate(reward["accuracy"])
    yield (
        f"another reward than the usual {reward['usual']:g}",
        _rate(reward["false_positives"]),
    )
    near = reward["near_misses"]
    yield f"rewarded one step too early ({near['known']} verified)", _rate(near)
    yield "end right", _rate(done["accuracy"])
    yield "said to end where it goes on", _rate(done["false_positives"])
    yield "malformed replies", _rate(scorecard["malformed"])
    yield "names what no one mentioned", _rate(scorecard["hallucinated"])
    reveals = scorecard["reveals"]
    yield "reveals: in the form of a real state", _rate(reveals["form"])
    yield "reveals: new words, of the real number", _plain(reveals["informativeness"])
    yield "reveals: distinct states, of the real number", _plain(reveals["diversity"])
    sure = scorecard["confidence"]
    yield "confidence: calibration error", _plain(sure["calibration_error"])
    for name, label in (("earns", "a reward"), ("ends", "an end")):
        errors = scorecard["probabilities"][name]
        yield (
            f"probability of {label}: calibration error, scaled",
            f"{_plain(errors['calibration_error'])}, "
            f"{_plain(errors['calibrated_error'])}",
        )
    detectors = scorecard.get("error_detection_auroc", {"confidence": sure["auroc"]})
    for name, value in detectors.items():
        yield f"wrong answers told by {name} (AUROC)", _plain(value)
    if scorecard.get("consistency") is not None:
        yield "consistency under other noise", _plain(scorecard["consistency"])
    if "missing_probability" in scorecard:
        for name, statistic in scorecard["missing_probability"].items():
            yield f"1 - p(real next state), {name}", _plain(statistic["mean"])
    if "open_loop" in scorecard:
        yield from _open_loop(scorecard["open_loop"])


def _open_loop(drift: dict[str, Any]) -> Iterator[tuple[str, str]]:
    for name, label in (("exact", "all"), ("predictable", "before a reveal")):
        for step in (1, 4, 8, 16):
            if step <= len(drift[name]):
                yield (
                    f"open loop, {label}: exact after {step}",
                    _rate(drift[name][step - 1]),
                )
    outcomes = drift["outcomes"]
    yield (
        "open loop: lost episodes that the dream wins",
        _rate(outcomes["over_optimistic"]),
    )
    yield (
        "open loop: won episodes that the dream loses",
        _rate(outcomes["over_pessimistic"]),
    )


def table(scorecard: dict[str, Any]) -> str:
    """Return the whole scorecard, a line each, and rates by family and actor."""
    out = [
        f"{scorecard['transitions']} held-out transitions of whole episodes, "
        "95 % intervals",
        "",
        _aligned(rows(scorecard)),
    ]
    for key, label in (("families", "family"), ("sources", "who acted")):
        parts = scorecard.get(key, {})
        out += ["", f"by {label}"] if parts else []
        out += [
            f"{name or '(none)'}: all but reveals "
            f"{_rate(part['exact']['predictable'])}, "
            f"changed {_rate(part['exact']['changed'])}, "
            f"known facts kept {_rate(part['kept']['all'])}"
            for name, part in parts.items()
        ]
    if scorecard.get("failed_replays"):
        out += ["", f"{scorecard['failed_replays']} replays in the environment failed"]
    if scorecard.get("seen_tasks"):
        out += ["", f"{scorecard['seen_tasks']} of its tasks were in the training data"]
    return "\n".join(out)


def side_by_side(scorecards: dict[str, dict[str, Any]]) -> str:
    """Return several scorecards as one table, a column for each."""
    columns = {name: dict(rows(scorecard)) for name, scorecard in scorecards.items()}
    what = list(dict.fromkeys(w for column in columns.values() for w in column))
    left = max(map(len, what))
    width = 2 + max(len(v) for column in columns.values() for v in column.values())
    lines = [" " * left + "  " + "".join(f"{name:<{width}}" for name in columns)]
    for row in what:
        cells = "".join(f"{c.get(row, '-'):<{width}}" for c in columns.values())
        lines.append(f"{row:<{left}}  {cells}".rstrip())
    return "\n".join(lines)


# --- plots -------------------------------------------------------------------


def _bars(axis: Any, scorecard: dict[str, Any]) -> None:
    kinds = list(scorecard["exact"])
    for offset, key, label in ((-0.2, "exact", "experience model"),
                               (0.2, "copy", "copy the state")):  # fmt: skip
        heights = [scorecard[key][k]["mean"] or 0.0 for k in kinds]
        axis.bar([i + offset for i in range(len(kinds))], heights, 0.4, label=label)
    names = [
        f"{k.replace('_', chr(10))}\nn={scorecard['exact'][k]['count']}" for k in kinds
    ]
    axis.set_xticks(range(len(kinds)), names, fontsize=8)
    axis.set_ylabel("next state exact")
    axis.set_ylim(0, 1)
    axis.legend(frameon=False, loc="upper left", bbox_to_anchor=(1.0, 1.0))


def plot_states(scorecard: dict[str, Any], path: Path) -> None:
    """Plot exact next states by kind, next to the copy-the-state baseline."""
    figure, axis = plt.subplots(figsize=(7, 3.6))
    _bars(axis, scorecard)
    axis.set_title("fidelity on held-out real transitions")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    plt.close(figure)


def _reliability(axis: Any, scorecard: dict[str, Any]) -> None:
    bins = scorecard["confidence"]["bins"]
    axis.plot([0, 1], [0, 1], color="0.7", lw=1)
    axis.plot([b["confidence"] for b in bins], [b["right"] for b in bins], "o-")
    axis.set_xlabel("confidence")
    axis.set_ylabel("share right")
    axis.set_xlim(0, 1)
    axis.set_ylim(0, 1)
    axis.set_title("calibration, reveals left out")


def _drift(axis: Any, scorecard: dict[str, Any]) -> None:
    for name, label in (("exact", "all"), ("predictable", "before a reveal")):
        rates = scorecard["open_loop"][name]
        axis.plot(range(1, len(rates) + 1), [x["mean"] for x in rates], "o-",
                  label=label)  # fmt: skip
    axis.set_xlabel("steps on dreamed states")
    axis.set_ylabel("state still the real one")
    axis.set_ylim(0, 1)
    axis.legend(frameon=False)
    axis.set_title("open-loop drift")


def _picture(scorecard: dict[str, Any]) -> str:
    """All plots of a scorecard as one PNG, in a data URL."""
    parts = [_bars, _reliability] + ([_drift] if "open_loop" in scorecard else [])
    figure, axes = plt.subplots(1, len(parts), figsize=(5.4 * len(parts), 3.8))
    for axis, draw in zip(axes, parts, strict=True):
        draw(axis, scorecard)
    figure.tight_layout()
    with io.BytesIO() as file:
        figure.savefig(file, dpi=110, format="png")
        plt.close(figure)
        return "data:image/png;base64," + base64.b64encode(file.getvalue()).decode()


_STYLE = """body{font:15px/1.45 system-ui,sans-serif;max-width:75rem;margin:2rem auto;
padding:0 1rem;color:#222}table{border-collapse:collapse}td{padding:.15rem .8rem
.15rem 0;border-bottom:1px solid #eee;white-space:pre}img{max-width:100%}
h2{margin-top:2rem}"""


def write_page(scorecard: dict[str, Any], path: Path) -> None:
    """Write one self-contained HTML file with all numbers and the plots."""
    body = [f"<h1>Fidelity</h1><p>{html.escape(scorecard.get('episodes', ''))}</p>"]
    if scorecard.get("seen_tasks"):
        seen = scorecard["seen_tasks"]
        body.append(f"<p><b>{seen} of its tasks were in the training data.</b></p>")
    for title, part in [
        ("All families", scorecard),
        *scorecard.get("families", {}).items(),
    ]:
        if not part["transitions"]:
            continue
        cells = "".join(
            f"<tr><td>{html.escape(a)}</td><td>{html.escape(b)}</td></tr>"
            for a, b in rows(part)
        )
        body.append(
            f"<h2>{html.escape(title)}: {part['transitions']} transitions</h2>"
            f"<img alt='plots' src='{_picture(part)}'><table>{cells}</table>"
        )
    with atomic_write(path) as file:
        file.write(
            "<!doctype html><html lang='en'><meta charset='utf-8'><title>Fidelity"
            f"</title><style>{_STYLE}</style>{''.join(body)}</html>\n"
        )
