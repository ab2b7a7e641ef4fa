"""Prints compared steps in two columns, with marks where they differ and a legend.

Text of episodes is put into rich's Text objects, never parsed as its markup.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from dreamgym.evaluation.comparisons.episode_comparison import LEGEND


def _column(lines: Sequence[Sequence[Any]], mark: str, end: str, same: bool) -> Table:
    """The lines of one side, those that differ marked, and how the step ended."""
    out = Table.grid(padding=(0, 1, 0, 0))
    for line, is_same in lines:
        style = "" if is_same else "yellow"
        out.add_row(Text("" if is_same else mark, style), Text(line, style))
    style = "dim" if same else "yellow"
    out.add_row(Text("" if same else "!", style), Text(end, style))
    return out


def _labelled(label: str, text: str) -> Text:
    return Text.assemble((f"{label}: ", "bold"), text)


def _answer_lines(dream: Mapping[str, Any]) -> list[RenderableType]:
    """The reasoning, confidence, error and recalled steps of a dreamed answer."""
    confidence = dream["confidence"]
    sure = "not known" if confidence is None else f"{confidence:.3f}"
    out: list[RenderableType] = []
    if dream["reasoning"]:
        out.append(_labelled("Reasoning", dream["reasoning"]))
    out.append(_labelled("Confidence", sure))
    if dream["error"] is not None:
        out.append(_labelled("Malformed answer", dream["error"]))
    if dream["recalled"]:
        out.append(Text("Recalled:", "bold"))
    for memory in dream["recalled"]:
        text = f"({memory['similarity']:.2f}) {memory['action']}: "
        text += f"{' / '.join(memory['effect'])}; {memory['end']}"
        out.append(Padding(Text(text), (0, 0, 0, 2)))
    return out


def _step(view: Mapping[str, Any], *, with_state: bool) -> RenderableType:
    dream = view["dream"]
    right = dream is not None and dream["same_state"] and dream["same_end"]
    remark = "the dream is right" if right else "the dream differs"
    if dream is None:
        remark = "the dream has ended"
    head = Text.assemble(
        (f"{view['number']}. {view['action']}", "bold"),
        ("   " + remark, "green" if right else "dim" if dream is None else "yellow"),
    )
    parts: list[RenderableType] = [head]
    if with_state:
        parts.append(Text("Before:\n  " + "\n  ".join(view["before"]), "dim"))
    table = Table(box=None, expand=True, padding=(0, 2, 0, 0), show_edge=False)
    table.add_column("REALITY", ratio=1)
    table.add_column("DREAM", ratio=1)
    real = _column(
        view["real"], "-", view["real_end"], dream is None or dream["same_end"]
    )
    if dream is None:
        table.add_row(real, Text(""))
        return Group(*parts, table)
    table.add_row(real, _column(dream["lines"], "+", dream["end"], dream["same_end"]))
    if view["hidden_difference"]:
        note = "The states differ in the model's own form alone."
        parts.append(Text(note, "dim"))
    return Group(*parts, table, *_answer_lines(dream))


def print_episode(
    view: Mapping[str, Any], console: Console, *, legend: bool = True
) -> None:
    """Print a view of an episode (episode_comparison.episode_view) to a console."""
    facts = " · ".join(filter(None, (view["family"], view["id"], view["real_outcome"])))
    console.print(Text(view["title"], "bold"), Text(facts, "dim"), sep="\n")
    for number, step in enumerate(view["steps"]):
        console.print(Rule(style="dim"))
        console.print(_step(step, with_state=number == 0))
    if legend:
        console.print(Rule(style="dim"))
        table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
        table.add_column(style="bold", no_wrap=True)
        for name, meaning in LEGEND:
            table.add_row(Text(name), Text(meaning, "dim"))
        console.print(table)
