"""The classifier of components: how probably a decision is right, from expected calls.

episodes with expected calls -> questions with answers by rule -> the decoder and the
scalar head of the reward model, under the binary cross-entropy -> P(right | question):
P(a call is due | state), f(state, tool) and f(state, call)
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array, Bool, Float

from dreamgym.rewards.components.questions import COMPONENTS, Question, call_text
from dreamgym.rewards.reward_model import (
    AttemptBatches,
    Progress,
    RewardModel,
    fit_batches,
    score_learner,
)
from dreamgym.rewards.reward_model_config import RewardModelConfig
from worldmodel.backbone.model import Model
from worldmodel.backbone.scalar_head import with_scalar_head
from worldmodel.data.records import Episode
from worldmodel.fitting.arrays import AnyArray, Ratio
from worldmodel.fitting.batches import Example, Tokens
from worldmodel.text import prompts
from worldmodel.text.tokenizer import TextTokenizer
from worldmodel.text.tools.argument_score import argument_score
from worldmodel.text.tools.call_matching import match_calls
from worldmodel.text.tools.tool_calls import (
    Call,
    expected_calls,
    read_action,
)
from worldmodel.text.tools.tool_schemas import tool_schemas

OBJECTIVE = "components"
"""What the model directory of a classifier is marked with."""

Answered = tuple[Question, float]
"""A question, and its answer in [0, 1] by rule."""


def answered_questions(
    episodes: Sequence[Episode], match: str, *, seed: int
) -> list[list[Answered]]:
    """Return the questions of each episode with expected calls, answered by rule.

    Expected are the calls of the task or, where it has none, those that a won episode
    made and that were not refused. In each state a call is due if one of them, matched
    by `match`, is open. Where one is, its tool is right and as many other ones are
    wrong, its arguments are right, and those of another call of the tool as far as they
    resemble them; the others are drawn by `seed`. A task that expects no call teaches
    where none is due; episodes of tasks that say nothing are left out if they were
    lost, or have no call or a malformed one.

    Raises:
      ValueError: the expected calls or the tools of a task are malformed.
    """
    expected = [_expected(e) for e in episodes]
    calls_by_tool: dict[str, dict[str, Call]] = {}  # by tool, in a fixed order
    for calls in expected:
        for call in (c for step in calls or () for c in step):
            calls_by_tool.setdefault(call.tool, {})[call_text(call)] = call
    rng = np.random.default_rng(seed)
    rows = [
        _of_episode(e, calls, match, calls_by_tool, rng)
        for e, calls in zip(episodes, expected, strict=True)
        if calls is not None
    ]
    return [row for row in rows if row]


def _expected(episode: Episode) -> Sequence[Sequence[Call]] | None:
    """Return the calls that are right in an episode, None where nobody knows."""
    calls = expected_calls(episode.task)
    if calls is None and episode.success:
        # A call that the environment refused did not bring the win about.
        played = tuple(
            () if t.invalid else read_action(t.action).calls
            for t in episode.transitions
        )
        if any(played) and all(call.valid_json for step in played for call in step):
            calls = played
    return calls


def _of_episode(
    episode: Episode,
    expected: Sequence[Sequence[Call]],
    match: str,
    calls_by_tool: Mapping[str, Mapping[str, Call]],
    rng: np.random.Generator,
) -> list[Answered]:
    steps = episode.transitions
    calls = [read_action(t.action).calls for t in steps]
    return [
        answered
        for n in range(len(steps))
        for answered in _of_step(
            episode,
            n,
            calls[n],
            _due_calls(calls[:n], expected, match),
            calls_by_tool,
            rng,
        )
    ]


def _of_step(
    episode: Episode,
    number: int,
    calls: Sequence[Call],
    due: Sequence[Call],
    calls_by_tool: Mapping[str, Mapping[str, Call]],
    rng: np.random.Generator,
) -> list[Answered]:
    """Return the answered questions of a step, in which these calls are due."""
    task, state = episode.task, episode.transitions[number].state
    past = tuple(t.action for t in episode.transitions[:number])

    def question(component: str, text: str = "") -> Question:
        return Question(component, task, past, state, text)

    out = [(question("when"), float(bool(due)))]
    right = sorted({c.tool for c in due})
    if not right:
        return out
    tools = {c.tool for c in calls if c.tool} - {*right}
    others = sorted({*(tool_schemas(task) or {}), *calls_by_tool} - {*right})
    tools |= {others[i] for i in rng.permutation(len(others))[: len(right)]}
    out += [(question("which", tool), 1.0) for tool in right]
    out += [(question("which", tool), 0.0) for tool in sorted(tools)]
    for tool in right:
        wanted = [c for c in due if c.tool == tool]
        texts = {call_text(c): c for c in wanted}
        others = sorted(calls_by_tool.get(tool, {}).keys() - texts.keys())
        for i in rng.permutation(len(others))[: len(texts)]:
            texts[others[i]] = calls_by_tool[tool][others[i]]
        texts |= {call_text(c): c for c in calls if c.tool == tool and c.valid_json}
        out += [
            (question("arguments", text), _quality(call, wanted))
            for text, call in sorted(texts.items())
        ]
    return out


def _due_calls(
    calls: Sequence[Sequence[Call]], expected: Sequence[Sequence[Call]], match: str
) -> list[Call]:
    """Return the expected calls that are due after the steps that were taken.

    By "step" these are those of the next step, by "order" the first open ones, and by
    "assignment" all that are open.
    """
    number = len(calls)
    if match == "step":
        return list(expected[number]) if number < len(expected) else []
    missed = _open_calls(calls, expected, match)
    if match == "order":
        return [call for step, call in missed if step == missed[0][0]]
    return [call for _, call in missed]


def _open_calls(
    calls: Sequence[Sequence[Call]], expected: Sequence[Sequence[Call]], match: str
) -> Sequence[tuple[int, Call]]:
    """Return the expected calls, by their step, that no readable call has answered.

    A call is also matched with one of another tool, where nothing better is left: that
    one is still open, and so the wrong call is taken away before the next matching.
    """
    calls = [[c for c in step if c.valid_json] for step in calls]
    while True:
        matching = match_calls(calls, expected, match)
        right = [
            x
            for x in matching.made
            if x.expected is None or x.call.tool == x.expected.tool
        ]
        if len(right) == len(matching.made):
            return matching.missed
        calls = [[x.call for x in right if x.step == i] for i in range(len(calls))]


def _quality(call: Call, right: Sequence[Call]) -> float:
    return max(argument_score(call.arguments, c.arguments) for c in right)


def question_example(tok: TextTokenizer, question: Question, history: int) -> Example:
    """Return what the classifier reads of a question; its last id is scored."""
    q = question
    ids = prompts.query_ids(tok, q.task, q.past, (), q.state, q.text, history=history)
    ids = [*ids, tok.control("reward")]
    return Example(ids, [False] * (len(ids) - 1) + [True], [0] * len(ids))


def label_error(
    scores: Float[Array, "B T"],
    mask: Bool[AnyArray, "B T"],
    label: Float[AnyArray, "B T"],
) -> tuple[Ratio, Ratio]:
    """Return (binary cross-entropy with the labels, share on the right side of 0.5)."""
    error = jax.nn.softplus(scores) - label * scores
    right = (scores > 0) == (jnp.asarray(label) > 0.5)
    count = jnp.asarray(mask).sum().astype(scores.dtype)
    return (
        Ratio(jnp.where(mask, error, 0.0).sum(), count),
        Ratio((jnp.asarray(mask) & right).sum().astype(scores.dtype), count),
    )


def _loss(logits: Array, batch: Tokens):
    error, right = label_error(logits[..., 0], batch.mask, batch.columns["label"])
    return error, {"right": right}


class ComponentClassifier:
    """A fitted classifier, which answers questions about components."""

    def __init__(self, model: RewardModel):
        self.model = model

    def labels(self, questions: Sequence[Question]) -> list[float | str]:
        """Return the chance that each is right."""
        m = self.model
        examples = [question_example(m.tokenizer, q, m.history) for q in questions]
        scores = m.example_scores(examples)
        return [float(x) for x in 0.5 * (1.0 + np.tanh(0.5 * scores))]

    def save(self, directory: Path) -> None:
        """Write its model directory."""
        self.model.save(directory)

    @classmethod
    def load(cls, directory: Path, mesh: Mesh | None = None) -> "ComponentClassifier":
        """Load a classifier that `save` wrote.

        Raises:
          ValueError: the directory holds none.
        """
        model = RewardModel.load(directory, mesh)
        if model.objective != OBJECTIVE:
            raise ValueError(
                f"{directory}: expected a classifier of components, got a reward model "
                f"of the objective {model.objective!r}"
            )
        return cls(model)


def fit(
    model: Model,
    tok: TextTokenizer,
    answered: Sequence[Sequence[Answered]],
    config: RewardModelConfig,
    *,
    seed: int,
    directory: Path,
    progress: Progress | None = None,
) -> tuple[ComponentClassifier, list[dict[str, float | int]]]:
    """Fit a classifier, starting from a model's weights; return its learning curve too.

    A batch has the questions of twice as many episodes as `batch_pairs`. The fit
    resumes from a checkpoint in `directory`, if there is one.

    Raises:
      ValueError: there are no questions.
      FloatingPointError: the loss is not finite; the message names the update.
    """
    if not answered:
        raise ValueError("nothing to fit a classifier to: no questions")
    c = config
    groups = [
        [
            [
                question_example(tok, q, c.history).with_columns(label=label)
                for q, label in row
            ]
        ]
        for row in answered
    ]
    batches = AttemptBatches(groups, 2 * c.batch_pairs, width=c.row_tokens, seed=seed)
    start = with_scalar_head(model)
    learner = score_learner(start, _loss, c.learning_rate, c.steps)
    params, curve = fit_batches(
        learner, batches, c, measure="right", directory=directory, progress=progress
    )
    fitted = RewardModel(
        start._replace(params=params),
        tok,
        history=c.history,
        width=c.row_tokens,
        objective=OBJECTIVE,
    )
    return ComponentClassifier(fitted), curve


def accuracies(
    classifier: ComponentClassifier,
    fitted: Sequence[Sequence[Answered]],
    held_out: Sequence[Sequence[Answered]],
) -> dict[str, dict[str, float | int]]:
    """Return for each component how often held-out answers are on the right side.

    `majority` is that of the answer which most of the fitted questions have.
    """
    rows = [x for row in held_out for x in row]
    probabilities = np.array(classifier.labels([q for q, _ in rows]), float)
    named, truth = _components(rows)
    seen_named, seen = _components([x for row in fitted for x in row])
    out: dict[str, dict[str, float | int]] = {}
    for name in COMPONENTS:
        selection, before = named == name, seen_named == name
        if selection.any() and before.any():
            majority = seen[before].mean() > 0.5
            out[name] = {
                "held_out": int(selection.sum()),
                "accuracy": float(((probabilities > 0.5) == truth)[selection].mean()),
                "majority": float((truth[selection] == majority).mean()),
            }
    return out


def _components(rows: Sequence[Answered]) -> tuple[np.ndarray, np.ndarray]:
    """Return the component of each question, and whether its answer is above 0.5."""
    names = np.array([q.component for q, _ in rows], str)
    return names, np.array([label > 0.5 for _, label in rows], bool)
