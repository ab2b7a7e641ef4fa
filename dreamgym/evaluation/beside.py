"""A dreamed episode beside the real one, for the same actions: text and page."""

import html
import math
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from worldmodel.data.records import Episode, State, Transition, atomic_write
from worldmodel.experience.base import Prediction
from worldmodel.text.prompts import outcome_of


class Moment(NamedTuple):
    """One step: what really happened, what was dreamed, and what it was told.

    `dreamed` is None where the dream had ended before; `recalled` holds the retrieved
    transitions with their similarity, the nearest first.
    """

    real: Transition
    state: State
    dreamed: Prediction | None
    recalled: tuple[tuple[float, Transition], ...]


def _pairs(real: State, dream: State) -> list[tuple[str, str, str]]:
    """(mark, real line, dreamed line): `=` both say it, `-` and `+` one of them."""
    left = list(dream)
    out = []
    for line in real:
        if line in left:
            left.remove(line)
            out.append(("=", line, line))
        else:
            out.append(("-", line, ""))
    return out + [("+", "", line) for line in left]


def _ends(reward: float, outcome: str) -> str:
    return f"reward {reward:g}, {outcome}"


def _says(moment: Moment) -> list[str]:
    """What the dream thinks and remembers, a line each."""
    answer = moment.dreamed
    assert answer is not None
    out = [f"because {answer.reasoning}"] if answer.reasoning else []
    known = not math.isnan(answer.confidence)
    out.append(f"confidence {answer.confidence:.3f}" if known else "confidence unknown")
    if answer.problem is not None:
        out.append(f"makes no sense: {answer.problem}")
    for score, t in moment.recalled:
        after = " / ".join(x for x in t.next_state if x not in t.state) or "no change"
        out.append(f"recalls ({score:.2f}) {t.action}: {after}")
    return out


def text(episode: Episode, moments: Sequence[Moment], *, width: int = 100) -> str:
    """Two columns for a terminal, `-` what only reality says and `+` only the dream."""
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
    for line in moments[0].state if moments else ():
        row("=", line, line)
    for number, m in enumerate(moments, start=1):
        lines += ["", f"{number}. {m.real.action}"]
        if m.dreamed is None:
            for line in (*m.real.next_state, _ends(m.real.reward, outcome_of(m.real))):
                row("-", line, "")
            continue
        for mark, a, b in _pairs(m.real.next_state, m.dreamed.next_state):
            row(mark, a, b)
        real = _ends(m.real.reward, outcome_of(m.real))
        dream = _ends(m.dreamed.reward, m.dreamed.outcome)
        row("=" if real == dream else "!", real, dream)
        lines += [f"    {x}" for x in _says(m)]
    return "\n".join(lines)


_STYLE = """body{font:15px/1.4 system-ui,sans-serif;max-width:70rem;margin:2rem auto;
padding:0 1rem;color:#222}table{border-collapse:collapse;width:100%;margin-bottom:.4rem}
td{width:50%;padding:.1rem .6rem;border-left:3px solid #ddd;vertical-align:top}
tr.odd td{background:#fff3d6;border-left-color:#d90}ul{color:#555;margin:.2rem 0}
h2{font-size:1.05rem;margin:1.4rem 0 .3rem}"""


def write_page(episode: Episode, moments: Sequence[Moment], path: Path) -> None:
    """The same as one HTML file; lines that differ are marked."""
    title = html.escape(f"{episode.id}: {episode.task.instruction}")
    out = [f"<h1>{title}</h1>"
           "<table><tr><td><b>real</b></td><td><b>dream</b></td></tr>"]  # fmt: skip
    out += [_row("=", x, x) for x in (moments[0].state if moments else ())]
    out.append("</table>")
    for number, m in enumerate(moments, start=1):
        out.append(f"<h2>{number}. {html.escape(m.real.action)}</h2><table>")
        real = _ends(m.real.reward, outcome_of(m.real))
        if m.dreamed is None:
            out += [_row("-", x, "") for x in (*m.real.next_state, real)]
            out.append("</table>")
            continue
        dream = _ends(m.dreamed.reward, m.dreamed.outcome)
        found = _pairs(m.real.next_state, m.dreamed.next_state)
        found.append(("=" if real == dream else "!", real, dream))
        out += [_row(*x) for x in found]
        said = "".join(f"<li>{html.escape(x)}</li>" for x in _says(m))
        out.append(f"</table><ul>{said}</ul>")
    with atomic_write(path) as file:
        file.write(
            "<!doctype html><html lang='en'><meta charset='utf-8'><title>Real and dream"
            f"</title><style>{_STYLE}</style>{''.join(out)}</html>\n"
        )


def _row(mark: str, real: str, dream: str) -> str:
    kind = "" if mark == "=" else " class='odd'"
    return (f"<tr{kind}><td>{html.escape(real)}</td>"
            f"<td>{html.escape(dream)}</td></tr>")  # fmt: skip
