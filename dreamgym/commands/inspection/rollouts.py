"""Rollouts of an update that a run has kept, in the terminal."""

from collections.abc import Iterator

from rich.console import Console
from rich.text import Text

from dreamgym.build.loop_checkpoint import rollouts_file
from dreamgym.run.directory import Run, RunError
from worldmodel.data.records import Episode, read_episodes


def show_rollouts(
    run: Run,
    console: Console,
    update: int,
    *,
    policy: str = "dream",
    episode: str | None = None,
) -> None:
    """Print the rollouts that an update learned from, or one of them step by step.

    Args:
      policy: whose training it is.
      episode: the id of a rollout, whose steps are printed with every reward part.

    Raises:
      RunError: nothing was kept, or there is no such rollout; the message says what
        there is.
    """
    episodes = _saved_rollouts(run, policy, update)
    if episode is None:
        console.print(
            Text(f"update {update} of {policy}: rollouts that it kept", "bold")
        )
        for e in episodes:
            console.print(Text(_summary(e)), soft_wrap=True)
        return
    by_id = {e.id: e for e in episodes}
    if episode not in by_id:
        raise RunError(f"no rollout {episode!r} in update {update}; have {list(by_id)}")
    for line in _lines(by_id[episode]):
        console.print(Text(line), soft_wrap=True)


def _saved_rollouts(run: Run, policy: str, update: int) -> list[Episode]:
    folder = run.path(f"rollouts/{policy}")
    path = folder / rollouts_file(update)
    if path.is_file():
        return read_episodes(path)
    updates = sorted(int(p.stem) for p in folder.glob("*.jsonl"))
    have = f"have {updates[0]} to {updates[-1]}" if updates else "none was kept"
    rounds = sorted(p.name for p in folder.glob("round-*") if p.is_dir())
    if rounds:  # each round of fine-tuning counts its own updates
        names = ", ".join(f"{policy}/{name}" for name in rounds)
        raise RunError(f"{path}: no rollouts; its rounds have some: --policy {names}")
    group = "train" if policy == "dream" else "transfer"
    raise RunError(
        f"{path}: no rollouts of update {update} ({have}); a run keeps them with "
        f"--set {group}.keep_rollouts=32"
    )


def _summary(e: Episode) -> str:
    outcome = {True: "won", False: "lost", None: f"not scored: {e.error}"}[e.success]
    return f"{e.id}  {len(e.transitions)} steps  {e.episode_return:+.3f}  {outcome}"


def _lines(e: Episode) -> Iterator[str]:
    yield _summary(e)
    yield f"task: {e.task.instruction}"
    yield from (f"  {line}" for line in e.transitions[0].state)
    for i, t in enumerate(e.transitions, 1):
        yield f"{i}. {t.action}" + (f"   (thought: {t.thought})" if t.thought else "")
        parts = [f"{name} {value:+.3f}" for name, value in sorted(t.rewards.items())]
        parts += [f"cost {name} {value:g}" for name, value in sorted(t.costs.items())]
        flags = [n for n in ("invalid", "terminated", "truncated") if getattr(t, n)]
        yield f"   paid {t.reward:+.3f}: " + (", ".join(parts) or "nothing")
        if flags:
            yield "   " + ", ".join(flags)
        yield from (f"  {line}" for line in t.next_state)
