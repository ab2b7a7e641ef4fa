"""The part of the checker that is about tasks: their splits and their variations."""

import dataclasses
import itertools
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from dreamgym.envs import base
from dreamgym.envs.contract.player import Player, Trace
from worldmodel.data.records import MIN_DEV_GAMES, Task

MAX_STARTS = 300
"""Tasks of a split whose first states are compared with those of other splits."""

MAX_VARIATIONS = 100
"""Variations of a task that are looked at."""
MAX_SEEDS = 30
"""The same where tasks are seeds: two of them often begin equally by chance."""

TWINS = 0.1
"""The share of a split's starts that chance may make equal to those of another one."""

READ = 30
"""Train tasks that are begun to see whether `reset` reads its task."""

SECONDS = 5.0
"""Seconds after which no further task of a split is begun."""


LISTS_ANEW = "returns different tasks when it is called again"
"""The fault of a method that lists other tasks at each call."""

PAIRS = (("train", "dev"), ("train", "test"), ("dev", "test"))
"""Splits that have to hold different tasks."""


def sound_tasks(player: Player, where: str, value: Any) -> list[Task] | None:
    """Return a list of tasks, or None with a fault where it is something else."""
    if isinstance(value, Task):
        player.findings.fault(
            f"{where} must return a list of Tasks, got a single Task",
            where,
            "return [task]",
        )
        return None
    tasks = list(value) if isinstance(value, Iterable) else [value]
    wrong = [t for t in tasks if not isinstance(t, Task)]
    if wrong:
        player.findings.fault(
            f"{where} must return Tasks, got {wrong[0]!r:.60}",
            where,
            "make each one with Task(id=..., instruction=..., split=...), which is "
            "imported from dreamgym",
        )
        return None
    for name in ("id", "instruction", "env", "family", "split"):
        texts = [getattr(t, name) for t in tasks]
        others = [x for x in texts if not isinstance(x, str)]
        if others:
            player.findings.fault(
                f"a task's {name} must be a text, got {others[0]!r:.60}",
                where,
                f"make it with Task({name}=str(...))",
            )
            return None
    for name in ("initial_state", "lineage"):
        values = [getattr(t, name) for t in tasks]
        others = [x for x in values if not _are_texts(x)]
        if others:
            player.findings.fault(
                f"a task's {name} must be a list of texts, got {others[0]!r:.60}",
                where,
                "leave it out where a task has none",
            )
            return None
    others = [t.options for t in tasks if not isinstance(t.options, Mapping)]
    if others:
        player.findings.fault(
            f"a task's options must be a dict, got {others[0]!r:.60}",
            where,
            "leave them out where a task has none",
        )
        return None
    return tasks


def _are_texts(value: Any) -> bool:
    """Return whether a value is a list or a tuple of texts."""
    is_list = isinstance(value, list | tuple)
    return is_list and all(isinstance(text, str) for text in value)


def check_splits(player: Player, lister: base.HasTasks) -> dict[str, Sequence[Task]]:
    """Fault splits that are empty, share tasks, or name another split; warn of twins.

    Tasks of two splits are twins where instruction, first state and the expert's plan
    are the same. Returns the tasks of each split, none where one is no list of tasks.
    """
    fault = player.findings.fault
    splits: dict[str, Sequence[Task]] = {}
    for split in base.SPLITS:
        where = f"tasks({split!r})"
        tasks = player.call("tasks", where, lambda split=split: lister.tasks(split))
        sound = None if tasks is None else sound_tasks(player, where, tasks)
        if sound is None:
            return {}
        splits[split] = sound
        if not splits[split] and split != "train":
            uses = {
                "dev": "what is learnt is measured and chosen on them",
                "test": "policies are compared on them",
            }
            fault(
                f"{where} is empty",
                where,
                f"keep some tasks apart for it: {uses[split]}",
            )
        if split == "dev" and 0 < len(sound) < MIN_DEV_GAMES:
            player.findings.warn(
                f"{where} holds fewer than {MIN_DEV_GAMES} tasks",
                f"{len(sound)} task{'s' * (len(sound) != 1)}",
                "list more: dev games choose between policies, and a run plays none "
                "where there are so few",
            )
        if wrong := [t for t in splits[split] if t.split != split]:
            fault(
                f"{where} holds a task that says split {wrong[0].split!r}",
                f"task {wrong[0].id!r}, {len(wrong)} of {len(splits[split])}",
                f"make it with Task(..., split={split!r})",
            )
        counts = Counter(t.id for t in splits[split])
        if repeated_ids := [name for name, count in counts.items() if count > 1]:
            fault(
                f"{where} holds an id twice",
                f"{repeated_ids[0]!r:.80}, {len(repeated_ids)} of {len(counts)} ids",
                "give every task an id of its own",
            )
    for one, other in PAIRS:
        ids = {t.id: _content(t) for t in splits[one]}
        shared = {t.id: _content(t) for t in splits[other] if t.id in ids}
        if any(content == ids[name] for name, content in shared.items()):
            fault(
                f"the splits {one} and {other} share tasks",
                f"{sorted(shared)[:3]}",
                "a task belongs to one split: else the test is of what was trained on",
            )
        elif shared:
            fault(
                f"the splits {one} and {other} have task ids in common",
                f"{sorted(shared)[:3]}, for different tasks",
                "ids must be unique over all splits: put the split's name into them",
            )
    copied = check_copies_of_tasks(player, splits)
    check_twins(player, {s: tasks for s, tasks in splits.items() if s not in copied})
    return splits


def check_listing(player: Player, lister: base.HasTasks, tasks: Sequence[Task]) -> None:
    """Fault train tasks that differ when they are listed again, as runs do.

    `tasks` are the first ones of the listing before.
    """
    where = "tasks('train')"
    again = player.call("tasks", where, lambda: lister.tasks("train"))
    listed = None if again is None else sound_tasks(player, where, again)
    if listed is None:
        return
    if not (differs := listing_difference(tasks, listed[: len(tasks)])):
        return
    player.findings.fault(
        f"{where} {LISTS_ANEW}",
        differs,
        "return a list that is drawn with a fixed seed: a run that goes on after an "
        "interruption lists its tasks anew",
    )


def listing_difference(first: Sequence[Task], second: Sequence[Task]) -> str:
    """Return where two lists of tasks differ first, with both tasks; "" if nowhere."""
    texts = ([f"{t.id!r}: {_content(t)}" for t in tasks] for tasks in (first, second))
    pairs = itertools.zip_longest(*texts, fillvalue="nothing")
    return next((f"{a:.80} and then {b:.80}" for a, b in pairs if a != b), "")


def check_copies_of_tasks(
    player: Player, splits: dict[str, Sequence[Task]]
) -> list[str]:
    """Warn of dev and test tasks with the instruction and options of train tasks.

    Returns the splits that have some. All tasks are compared, without a step. Tasks
    without options may differ by their ids, and `reset` may read the id besides the
    options: so it is no fault.
    """
    out = []
    train = {_content(t): t.id for t in reversed(splits["train"]) if t.options}
    for split in ("dev", "test"):
        copies = [t for t in splits[split] if t.options and _content(t) in train]
        copies = [t for t in copies if train[_content(t)] != t.id]  # said already
        if copies:
            out.append(split)
            player.findings.warn(
                f"tasks of {split} have the same instruction and options as tasks of "
                "train",
                f"{train[_content(copies[0])]!r} and {copies[0].id!r}, under other "
                f"ids; {len(copies)} of {len(splits[split])} of {split}",
                "put equal ones into one split; leave it if reset reads the id",
            )
    return out


def check_twins(player: Player, splits: Mapping[str, Sequence[Task]]) -> None:
    """Warn of tasks of two splits that begin equally, under other ids.

    Up to a share TWINS of them is taken for chance: small games have few starts.
    """
    starts = {s: _starts(player, tasks[:MAX_STARTS]) for s, tasks in splits.items()}
    places = []
    for one, other in PAIRS:
        twins = [k for k in starts.get(other, ()) if k in starts.get(one, ())]
        if len(twins) <= TWINS * len(starts.get(other, ())):
            continue
        a, b = starts[one][twins[0]][0], starts[other][twins[0]][0]
        if a == b:
            continue  # the same id: said already
        places.append(
            f"{b!r} of {other} and {a!r} of {one}, as {len(twins)} of the "
            f"{len(starts[other])} different starts of {other}"
        )
    if places:
        player.findings.warn(
            "tasks of different splits have the same instruction and first state",
            f"under other ids: {'; '.join(places)}; the first {MAX_STARTS} tasks of "
            "each are compared",
            "put equal ones into one split (split by a hash of the start, not by the "
            "number); leave it if they differ only in something hidden",
        )


def check_task_read(
    player: Player, planned: Sequence[Trace], tasks: Sequence[Task]
) -> None:
    """Warn where different tasks are all the same game: reset may not read its task.

    The expert's plan and what it leads to must be the same as well, because what tasks
    differ in may be hidden at their starts.
    """
    played = {_content(trace.task) for trace in planned}
    if len(played) < 2 or len({trace.steps for trace in planned}) > 1:
        return
    starts = _starts(player, tasks[:READ])
    ids = [task_id for group in starts.values() for task_id in group]
    different = {_content(task) for task in tasks[:READ] if task.id in ids}
    if len({(start, plan) for _, start, plan in starts}) > 1 or len(different) < 2:
        return
    player.findings.warn(
        f"{len(different)} different tasks gave the same first state and the same plan "
        "of the expert",
        f"task {ids[0]!r} to task {ids[-1]!r}",
        "does reset read options['task']?",
    )


def _content(task: Task) -> str:
    """What makes a task differ from others of other ids, as text."""
    return f"{task.instruction} {sorted(map(repr, task.options.items()))}"


def _starts(
    player: Player, tasks: Sequence[Task]
) -> dict[tuple[str, str, str], list[str]]:
    """How tasks begin, with the expert's plan where there is one -> their ids.

    Tasks that are left after SECONDS are left out.
    """
    out: dict[tuple[str, str, str], list[str]] = {}
    expert = base.as_expert(player.env)
    deadline = time.monotonic() + SECONDS
    for task in tasks:
        if time.monotonic() > deadline:
            break
        start = player.reset(task)
        if start is None:
            continue
        where = f"task {task.id!r}"
        plan = None if expert is None else player.call("expert", where, expert.expert)
        instruction = task.instruction or str(start[1].get("instruction", ""))
        if not base.is_deterministic(player.env):
            # Lots may make two starts equal by chance; a seed alone makes no task.
            options = {k: v for k, v in task.options.items() if k != "seed"}
            instruction += _content(dataclasses.replace(task, options=options))
        key = (instruction, start[0], str(plan))
        out.setdefault(key, []).append(task.id)
    return out


def _variations(varied: base.HasVariations, task: Task) -> Any:
    variations = varied.variations(task, np.random.default_rng(0))
    if not isinstance(variations, Iterable):
        return variations
    # A run takes a few of them, so that a generator may be without an end.
    return list(itertools.islice(variations, MAX_VARIATIONS))


def check_variations(
    player: Player,
    varied: base.HasVariations,
    tasks: Sequence[Task],
    splits: Mapping[str, Sequence[Task]],
) -> None:
    """Fault variations of tasks that differ by call, or do not say where from.

    One that is a dev or test task, under whatever id, is a fault as well.
    """
    held_out = {
        _content(t): f"task {t.id!r} of {split}"
        for split in ("dev", "test")
        for t in splits.get(split, ())
        if t.options
    }
    for task in tasks:
        _check_variations_of(player, varied, task, held_out)


def _check_variations_of(
    player: Player,
    varied: base.HasVariations,
    task: Task,
    held_out: Mapping[str, str],
) -> None:
    """Add the faults of one task's variations.

    Args:
      held_out: the content of a dev or test task -> its name.
    """
    fault, where = player.findings.fault, f"variations of task {task.id!r}"
    draws = [
        player.call(
            "variations",
            where,
            lambda: _variations(varied, task),
        )
        for _ in range(2)
    ]
    if None in draws or (first := sound_tasks(player, where, draws[0])) is None:
        return
    if draws[0] != draws[1]:
        fault(
            "variations differ for the same generator",
            where,
            "draw only from the generator that is given",
        )
    for variation in first:
        if variation.id == task.id:
            fault(
                "variations hold the task itself", where, "give a variation its own id"
            )
        if variation.split != "generated":
            fault(
                "variations must be of split 'generated'",
                where,
                f"make {variation.id!r} with split='generated'",
            )
        if task.id not in variation.lineage:
            fault(
                "variations must name their task in their lineage",
                where,
                f"make {variation.id!r} with lineage=(*task.lineage, task.id)",
            )
        if (other := held_out.get(_content(variation))) is not None:
            fault(
                "variations hold tasks of dev or test",
                f"{where}: {variation.id!r} has the instruction and options of {other}",
                "leave out what the other splits hold: a policy would be trained on "
                "what it is tested on",
            )
        player.reset(variation)
