"""Preset lessons: the primer's for tool calling, and a ladder for plain text games."""

import math

from curriculum.lessons import Lesson, Range, TaskFilter

NO_CALL = (0.0, 0.0)
ONE_CALL = (1.0, 1.0)
CALLS = (1.0, math.inf)
SEVERAL = (2.0, math.inf)
NO_TYPOS = (0.0, 0.0)
NO_STEP_COST = {"cost/step": 0.0}
"""Steps cost nothing (`reward.cost.step`) before the lesson on pipelines."""
EARLY_PENALTIES = {"tool/syntax": 0.5, "tool/execution": 0.5, "tool/repeat": 0.0}
"""Errors cost less in the first lesson, and a wrong tool may be repeated for nothing
(`reward.tools.repeat_penalty`)."""


def tool_lessons() -> tuple[Lesson, ...]:
    """Return the primer's lessons on tool calling: supervised, when, which, how, ...

    The primer's section "Curriculum Design, Evaluation Strategy, and Diagnostics" gives
    these numbers, and no others:
      budgets ("Curriculum Scheduling"): "Stage 0 (SFT): 30k-200k examples", "Stage 1
        (When): 1-5 RL epochs", "Stage 2 (Which): 3-10", "Stage 3 (How): 5-20", "Stage 4
        (Pipelines): 10-30", "Stage 5 (Open-domain): continuous";
      the mixture of stage 1: "50% queries that require a specific tool", "50% queries
        that must be answered without tools". The rest it describes in words; those
        numbers are ours and not measured. Weights follow its "Reward emphasis": stage 1
        "increase w_call", "reduce penalties for syntax/execution errors"; 2 "shift
        weight from w_call to w_which", "introduce penalties for repeated incorrect tool
        choices" (so none before; they are `reward.tools.repeat_penalty`); 3 "increase
        w_args", "tighten penalty for malformed JSON"; 4 "add step penalties" (so none
        before; they are `reward.cost.step`), "strengthen outcome reward".

    Later lessons keep tasks of the earlier ones, as stage 3 says "start with minimal
    arguments (one field)", then "multi-argument calls". There it says "introduce noisy
    contexts (typos, ambiguity)": tasks that declare typos are left out before.
    Thresholds are on the metrics that the primer lists for each stage; the lesson on
    stage 5 is never passed and waits for none, such as the win rate of a judge.
    """
    no_call = _clear(0.5, NO_CALL, "call_precision")
    any_call = _clear(0.5, CALLS, "call_recall")
    clear_mixture = (
        _clear(0.2, NO_CALL, "call_precision"),
        _clear(0.8, CALLS, "tool_accuracy"),
    )
    some_no_call = TaskFilter(share=0.2, calls=NO_CALL, skill="call_precision")
    one = TaskFilter(share=0.4, calls=ONE_CALL, arguments=(0, 1), skill="tool_accuracy")
    rich = TaskFilter(
        share=0.4, calls=CALLS, arguments=(2, math.inf), skill="argument_score"
    )
    long = TaskFilter(share=0.6, calls=SEVERAL, skill="success")
    return (
        Lesson(
            name="supervised",
            task_mixture=(no_call, any_call),
            budget=(30e3, 200e3),
            unit="examples",
            promote={"valid_json": 0.8},
        ),
        Lesson(
            name="when",
            task_mixture=(no_call, any_call),
            budget=(1, 5),
            rewards={"tool/when": 2.0},
            penalties=EARLY_PENALTIES | NO_STEP_COST,
            promote={"call_precision": 0.9, "call_recall": 0.9},
        ),
        Lesson(
            name="which",
            task_mixture=clear_mixture,
            budget=(3, 10),
            rewards={"tool/when": 0.5, "tool/which": 2.0},
            penalties=NO_STEP_COST,
            promote={"tool_accuracy": 0.9},
        ),
        Lesson(
            name="how",
            task_mixture=(some_no_call, one, rich),
            budget=(5, 20),
            rewards={"tool/which": 0.5, "tool/arguments": 2.0},
            penalties={"tool/syntax": 2.0} | NO_STEP_COST,
            promote={"argument_score": 0.9, "valid_json": 0.95, "execution": 0.9},
        ),
        Lesson(
            name="pipelines",
            task_mixture=(some_no_call, TaskFilter(share=0.2, calls=ONE_CALL), long),
            budget=(10, 30),
            rewards={"tool/task": 2.0},
            promote={"success": 0.7},
        ),
        Lesson(
            name="open",
            task_mixture=(TaskFilter(share=1.0),),
            rewards={"tool/task": 2.0},
        ),
    )


def _clear(share: float, calls: Range, skill: str) -> TaskFilter:
    """Return a filter of tasks without typos in their instruction."""
    return TaskFilter(share=share, calls=calls, typos=NO_TYPOS, skill=skill)


def game_lessons(
    *, success: float = 0.6, plans: tuple[int, ...] = (4, 8), updates: float = 8.0
) -> tuple[Lesson, ...]:
    """Return lessons for text games without tools: short plans, longer ones, then all.

    `plans` are the longest known plans of all lessons but the last. A lesson is passed
    at a `success` rate, or after `updates` updates, and its episodes may take three
    times its plan. Half of a later lesson's tasks are new in it, half come from before.
    No lesson is returned to, because success on longer plans does not show success on
    shorter ones. All numbers are defaults of ours, not measured.

    Raises:
      ValueError: the plans do not grow, or the success rate is outside (0, 1].
    """
    if not plans or min(plans) < 1 or list(plans) != sorted(set(plans)):
        raise ValueError(f"plans must be >= 1 and grow, got {plans}")
    if not 0 < success <= 1:
        raise ValueError(f"success must be in (0, 1], got {success}")
    out, before = [], 0
    for plan in plans:
        new = TaskFilter(share=0.5, steps=(before + 1, plan), skill="success")
        old = TaskFilter(share=0.5, steps=(0, before)) if before else None
        out.append(
            Lesson(
                name=f"plans-{plan}",
                task_mixture=(new,) if old is None else (new, old),
                budget=(1.0, updates),
                unit="updates",
                can_regress=False,
                promote={"success": success},
                max_steps=3 * plan,
            )
        )
        before = plan
    return (*out, Lesson(name="all", task_mixture=(TaskFilter(share=1.0),)))
