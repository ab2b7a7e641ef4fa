"""A dreamed and a real episode of the same actions side by side, as text or HTML."""

import html
import math
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from worldmodel.data.records import Episode, State, Transition, atomic_write
from worldmodel.experience.base import Prediction
from worldmodel.text.prompts import outcome_of


class ComparedStep(NamedTuple):
    """One step: the real transition, and the prediction from the dream's own state.

    `dreamed` is None after the end of the dream. `recalled` holds the transitions that
    were retrieved for the prediction with their similarity, the most similar first.
    """

    real: Transition
    state: State
    dreamed: Prediction | None
    recalled: tuple[tuple[float, Transition], ...]


def _pairs(real: State, dream: State) -> list[tuple[str, str, str]]:
    """(mark, real line, dreamed line): `=` in both, `-` real only, `+` dreamed only."""
    left = list(dream)
    out = []
    for line in real:
        if line in left:
            left.remove(line)
            out.append(("=", line, line))
        else:
            out.append(("-", line, ""))
    return out + [("+", "", line) for line in left]


def _end_text(reward: float, outcome: str) -> str:
    return f"reward {reward:g}, {outcome}"


def _note_lines(step: ComparedStep) -> list[str]:
    """The reasoning, confidence, error and retrieved transitions, a line each."""
    answer = step.dreamed
    assert answer is not None
    out = [f"because {answer.reasoning}"] if answer.reasoning else []
    is_known = not math.isnan(answer.confidence)
    out.append(
        f"confidence {answer.confidence:.3f}" if is_known else "confidence unknown"
    )
    if answer.error is not None:
        out.append(f"makes no sense: {answer.error}")
    for score, t in step.recalled:
        after = " / ".join(x for x in t.next_state if x not in t.state) or "no change"
        out.append(f"recalls ({score:.2f}) {t.action}: {after}")
    return out


def text(episode: Episode, steps: Sequence[ComparedStep], *, width: int = 100) -> str:
    """Return two columns for a terminal: `-` marks real lines, `+` dreamed lines."""
    half = (width - 6) // 2
    lines = [f"{episode.id}: {episode.task.instruction}", ""]

    def row(mark: str, a: str, b: str) -> None:
        one = textwrap.wrap(a, half) or [""]
        two = textwrap.wrap(b, half) or [""]
        for i in range(max(len(one), len(two))):
            left = one[i] if i < len(one) else ""
            right = two[i] if i < len(two) else ""
            lines.append(f"{mark} {left:<{half}} | {right}".rstrip())

    row(" ", "REAL", "DREAM")
    for line in steps[0].state if steps else ():
        row("=", line, line)
    for number, m in enumerate(steps, start=1):
        lines += ["", f"{number}. {m.real.action}"]
        if m.dreamed is None:
            for line in (
                *m.real.next_state,
                _end_text(m.real.reward, outcome_of(m.real)),
            ):
                row("-", line, "")
            continue
        for mark, a, b in _pairs(m.real.next_state, m.dreamed.next_state):
            row(mark, a, b)
        real = _end_text(m.real.reward, outcome_of(m.real))
        dream = _end_text(m.dreamed.reward, m.dreamed.outcome)
        row("=" if real == dream else "!", real, dream)
        lines += [f"    {x}" for x in _note_lines(m)]
    return "\n".join(lines)


_STYLE = """body{font:15px/1.4 system-ui,sans-serif;max-width:70rem;margin:2rem auto;
padding:0 1rem;color:#222}table{border-collapse:collapse;width:100%;margin-bottom:.4rem}
td{width:50%;padding:.1rem .6rem;border-left:3px solid #ddd;vertical-align:top}
tr.odd td{background:#fff3d6;border-left-color:#d90}ul{color:#555;margin:.2rem 0}
h2{font-size:1.05rem;margin:1.4rem 0 .3rem}"""


def write_page(episode: Episode, steps: Sequence[ComparedStep], path: Path) -> None:
    """Write the comparison as one HTML file; lines that differ are marked."""
    title = html.escape(f"{episode.id}: {episode.task.instruction}")
    out = [f"<h1>{title}</h1>"
           "<table><tr><td><b>real</b></td><td><b>dream</b></td></tr>"]  # fmt: skip
    out += [_row("=", x, x) for x in (steps[0].state if steps else ())]
    out.append("</table>")
    for number, m in enumerate(steps, start=1):
        out.append(f"<h2>{number}. {html.escape(m.real.action)}</h2><table>")
        real = _end_text(m.real.reward, outcome_of(m.real))
        if m.dreamed is None:
            out += [_row("-", x, "") for x in (*m.real.next_state, real)]
            out.append("</table>")
            continue
        dream = _end_text(m.dreamed.reward, m.dreamed.outcome)
        lines = _pairs(m.real.next_state, m.dreamed.next_state)
        lines.append(("=" if real == dream else "!", real, dream))
        out += [_row(*x) for x in lines]
        notes = "".join(f"<li>{html.escape(x)}</li>" for x in _note_lines(m))
        out.append(f"</table><ul>{notes}</ul>")
    with atomic_write(path) as file:
        file.write(
            "<!doctype html><html lang='en'><meta charset='utf-8'><title>Real and dream"
            f"</title><style>{_STYLE}</style>{''.join(out)}</html>\n"
        )


def _row(mark: str, real: str, dream: str) -> str:
    kind = "" if mark == "=" else " class='odd'"
    return (f"<tr{kind}><td>{html.escape(real)}</td>"
            f"<td>{html.escape(dream)}</td></tr>")  # fmt: skip
