"""Reasoning traces by the experience model itself, kept where they lead to the truth.

transitions without a trace -> replies of the model, asked as in the dream, each under
noise of its own -> the reasoning of the first reply whose next state, reward and
outcome are the real ones. That is rejection sampling: a draw of the model's reasoning,
given that what follows it is right. Where no reply is right the trace is the rule's.
"""

from collections.abc import Sequence

from worldmodel.data.records import Episode
from worldmodel.experience.base import Query, Sampling, is_correct
from worldmodel.reasoning.annotator import Report
from worldmodel.reasoning.rule import annotate, explain


class RejectionSamplingAnnotator:
    """Traces by the model that will learn from them, at most `samples` tries each.

    Reports `kept` and `fallbacks` (traces of the model's own and of the rule),
    `samples` (replies drawn in all) and `tries` (those drawn for what was kept).
    """

    def __init__(self, sampler: Sampling, *, samples: int):
        if samples < 1:
            raise ValueError(f"samples must be >= 1, got {samples}")
        self.sampler, self.samples = sampler, samples
        self.report = Report({"kept": 0, "fallbacks": 0, "samples": 0, "tries": 0})

    def annotate(self, episodes: Sequence[Episode]) -> list[Episode]:
        """See Annotator."""
        queries = {
            (i, j): Query(e.task, tuple(x.action for x in steps[:j]), t.state, t.action)
            for i, e in enumerate(episodes)
            for steps in [e.transitions]
            for j, t in enumerate(steps)
            if t.reasoning is None
        }
        traces: dict[tuple[int, int], str] = {}
        samples = tries = 0
        for number in range(self.samples):
            remaining = [at for at in queries if at not in traces]
            if not remaining:
                break
            replies = self.sampler.sample([queries[at] for at in remaining], number)
            samples += len(remaining)
            for (i, j), reply in zip(remaining, replies, strict=True):
                # A reply may have no reasoning at all: right, but no trace.
                trace = reply.reasoning.strip()
                if trace and is_correct(reply, episodes[i].transitions[j]):
                    traces[i, j] = reply.reasoning
                    tries += number + 1
        self.report = Report(
            {"kept": len(traces), "fallbacks": len(queries) - len(traces),
             "samples": samples, "tries": tries}
        )  # fmt: skip
        return [
            annotate(
                e,
                [traces.get((i, j)) or explain(t) for j, t in enumerate(e.transitions)],
            )
            for i, e in enumerate(episodes)
        ]
