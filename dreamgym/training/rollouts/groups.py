"""The rollouts of an update in groups, and which groups a policy can learn from."""

from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from dreamgym.agent.rollout import Trajectory
from worldmodel.data.records import Task


class Rollouts(NamedTuple):
    """The rollouts of an update, in consecutive groups of `group_size`.

    `started` begin where their task begins, `forked` in a state on the way, and
    `from_demonstrations` in a state of a demonstration. `guided` are retries of tasks
    that no started rollout won, whose first actions were given.
    `reward_metrics` says where their rewards come from, once they are rescored.
    """

    started: list[Trajectory]
    forked: list[Trajectory]
    reward_metrics: Mapping[str, float] = MappingProxyType({})
    from_demonstrations: Sequence[Trajectory] = ()
    guided: Sequence[Trajectory] = ()

    @property
    def all(self) -> list[Trajectory]:
        """The started, the forked and the other rollouts, in this order."""
        unguided = (*self.started, *self.forked, *self.from_demonstrations)
        return [*unguided, *self.guided]

    def learned(self, size: int) -> list[Trajectory]:
        """Return what an update learns from: all but the guided rollouts.

        In a group whose task was won with guidance, won guided rollouts stand in the
        places of rollouts that were not scored, then of the last lost ones, in at most
        half of the group. One lost rollout stays, with which they are compared.
        """
        out = [*self.started, *self.forked, *self.from_demonstrations]
        wins: dict[str, list[Trajectory]] = {}
        for t in self.guided:
            if t.error is None and t.episode.success:
                wins.setdefault(t.episode.task.id, []).append(t)
        for number, group in enumerate(groups_of(self.started, size)):
            if is_lost(group):
                won = wins.pop(group[0].episode.task.id, [])[: max(size // 2, 1)]
                places = sorted(_places_for_wins(group)[: len(won)])
                for place, win in zip(places, won, strict=False):
                    out[number * size + place] = win
        return out


def groups_of(rows: Sequence[Trajectory], size: int) -> Iterator[Sequence[Trajectory]]:
    """Yield consecutive groups of `size` rollouts."""
    for start in range(0, len(rows), size):
        yield rows[start : start + size]


def is_informative(group: Sequence[Trajectory]) -> bool:
    """Return whether some scored rollouts of the group succeeded and others failed."""
    return len({bool(t.episode.success) for t in group if t.error is None}) > 1


def is_lost(group: Sequence[Trajectory]) -> bool:
    """Return whether rollouts of a group were scored, and none of them succeeded."""
    return {bool(t.episode.success) for t in group if t.error is None} == {False}


def _places_for_wins(group: Sequence[Trajectory]) -> list[int]:
    """Return where guided wins may stand in a lost group, the best places first."""
    unscored = [i for i, t in enumerate(group) if t.error is not None]
    lost = [i for i, t in enumerate(group) if t.error is None]
    return [*unscored, *lost[: 0 if len(group) > 1 else None : -1]]


def lost_tasks(rows: Sequence[Trajectory], size: int) -> list[Task]:
    """Return the tasks of lost groups that no rollout won, each once.

    A task may have several groups; one that was won in another of them is not lost, and
    has forks.
    """
    won = {t.episode.task.id for t in rows if t.error is None and t.episode.success}
    groups = groups_of(rows, size)
    tasks = [group[0].episode.task for group in groups if is_lost(group)]
    return list({t.id: t for t in tasks if t.id not in won}.values())
