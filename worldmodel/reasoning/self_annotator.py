"""Reasoning traces by the experience model itself, by rejection sampling (STaR).

transitions without a trace -> replies of the model, prompted as in the dream, each
under noise of its own -> the reasoning of the first reply whose next state, reward and
outcome are the real ones: a draw of the model's reasoning given that its conclusion is
correct. Where no reply is correct, the trace is written by rule.
"""

from collections.abc import Sequence

from worldmodel.data.records import Episode
from worldmodel.experience.base import Sampling, is_correct, query_after
from worldmodel.reasoning.annotator import Report
from worldmodel.reasoning.rule import annotate


class RejectionSamplingAnnotator:
    """Writes traces with the model that will learn from them.

    At most `samples` replies are drawn a transition. Reports `kept` and `fallbacks`
    (traces of the model and of the rule), `samples` (all replies drawn) and `tries`
    (those drawn up to the ones that were kept).
    """

    def __init__(self, sampler: Sampling, *, samples: int):
        if samples < 1:
            raise ValueError(f"samples must be >= 1, got {samples}")
        self.sampler, self.samples = sampler, samples
        self.report = Report({"kept": 0, "fallbacks": 0, "samples": 0, "tries": 0})

    def annotate(self, episodes: Sequence[Episode]) -> list[Episode]:
        """See Annotator."""
        queries = {
            (i, j): query_after(e.task, steps[:j], t.state, t.action)
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
                # A correct reply without reasoning is no trace.
                trace = reply.reasoning.strip()
                if trace and is_correct(reply, episodes[i].transitions[j]):
                    traces[i, j] = reply.reasoning
                    tries += number + 1
        self.report = Report(
            {
                "kept": len(traces),
                "fallbacks": len(queries) - len(traces),
                "samples": samples,
                "tries": tries,
            }
        )
        return [
            annotate(e, [traces.get((i, j)) for j in range(len(e.transitions))])
            for i, e in enumerate(episodes)
        ]
