"""How many attempts at malformed replies are sampled in one pass."""

from worldmodel.backbone.generate import BATCHES


def last_attempt_of_pass(queries: int, attempt: int, last: int) -> int:
    """Return the last attempt at malformed replies that a pass samples.

    A pass costs its compiled batch, however many of its rows are used: where few
    queries are left, its rows hold several attempts of each. The last attempt takes two
    rows, with and without references to the state, unless the pass begins with it.
    """
    rows = BATCHES[0] // queries
    if attempt == last or rows >= last - attempt + 2:
        return last
    return max(min(attempt + rows, last) - 1, attempt)
