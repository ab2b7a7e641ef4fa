"""The experience model as a decoder of our own, prompted with demonstrations.

query -> retrieve k demonstrations -> prompt -> decoding under a grammar -> Prediction
(DreamGym, Eq. 4). The noise of an answer is keyed by the content of its query: the same
task, history, memory, state and action have the same answer. A reveal, which no model
can know, is thus sampled once rather than averaged into its most common value.
"""

from collections.abc import Mapping, Sequence, Set

import jax
import numpy as np
from jaxtyping import Float

from worldmodel import completion
from worldmodel.backbone.generate import generate
from worldmodel.backbone.model import Model
from worldmodel.backbone.streams import SAMPLE_BUCKET, SampledTokens, bucket
from worldmodel.data.hashing import content_seed
from worldmodel.data.records import State, Task, Transition
from worldmodel.data.seed_tasks import SeedTask
from worldmodel.experience.attempts import last_attempt_of_pass
from worldmodel.experience.base import (
    SAMPLED,
    CachingExperienceModel,
    Prediction,
    Query,
    agreement,
    failed_prediction,
)
from worldmodel.experience.calibration import Calibration
from worldmodel.experience.config import SIGNALS, ExperienceConfig
from worldmodel.experience.contexts import Context, query_context
from worldmodel.experience.grammar import (
    OUTCOME,
    REWARD,
    REWARD_TOKENS,
    reply_grammar,
)
from worldmodel.experience.quotes import quotable_rows
from worldmodel.experience.task_writer import write_tasks
from worldmodel.memory import ReplayMemory
from worldmodel.text import edits, prompts
from worldmodel.text.persistence import LastingFacts, with_lasting_facts
from worldmodel.text.references import AnyTokenizer
from worldmodel.text.state_format import (
    REPEATED_WORDS,
    StateFormat,
    format_error,
    repeated_words,
)
from worldmodel.text.tokenizer import TextTokenizer

_keys_of_seeds = jax.jit(jax.vmap(jax.random.key))
MISSING = (prompts.NO_LINE, edits.NO_WORDS)
"""How errors begin of replies that refer to what the state does not have."""
_ODD = (prompts.REPEATED, REPEATED_WORDS)
"""How errors begin that are none where all other replies have worse ones."""


class LocalExperienceModel(CachingExperienceModel):
    """The experience model as a decoder of our own, with its replay memory.

    An answer's confidence is computed from one of SIGNALS.
    """

    def __init__(
        self,
        model: Model,
        tokenizer: TextTokenizer,
        memory: ReplayMemory,
        config: ExperienceConfig,
        *,
        seed: int = 0,
        state_formats: Mapping[str, StateFormat] | None = None,
        lasting_facts: Mapping[str, LastingFacts] | None = None,
        calibration: Calibration | None = None,
        members: Sequence[Model] = (),
        confidence_signal: str = "token_probability",
        reward_tokens: int = REWARD_TOKENS,
        quoting: Set[str] = frozenset(),
    ):
        """Build the model; further arguments are those of CachingExperienceModel.

        Args:
          lasting_facts: what stays in a family's states by its name; in those of other
            families everything may be removed.
          calibration: scales the probabilities; None leaves them as the model gives
            them.
          members: an ensemble next to the model (ensemble.py).
          confidence_signal: which of SIGNALS the confidence of an answer is.
          reward_tokens: the token limit of a reward; a longer one is an error.
          quoting: the families whose traces quote whole lines (quotes.py).

        Raises:
          ValueError: the signal is unknown, or is the ensemble's and there are no
            members.
        """
        if confidence_signal not in SIGNALS or (
            confidence_signal == "ensemble" and not members
        ):
            raise ValueError(
                "confidence_signal must be one of "
                f"{SIGNALS} (ensemble: with members), got "
                f"{confidence_signal!r} and {len(members)} members"
            )
        super().__init__(
            memory,
            history=config.history,
            history_states=config.history_states,
            seed=seed,
            state_formats=state_formats,
        )
        self._calibration, self._confidence_signal = calibration, confidence_signal
        self.members = list(members)
        self.model, self.tokenizer, self.config = model, tokenizer, config
        self._lasting_facts = (lasting_facts or {}) if config.keep_facts else {}
        self._quoting = quoting if config.whole_quotes else frozenset()
        self._grammar = reply_grammar(tokenizer, config, reward_tokens)
        self._max_tokens = (
            config.reasoning_tokens + config.state_tokens + reward_tokens + 6
        )

    def predict(self, queries: Sequence[Query]) -> list[Prediction]:
        """Return one prediction a query; equal queries are computed once."""
        keys, todo = self._unanswered(queries)
        if todo:
            new_queries = list(todo.values())
            answers = self._first_well_formed(new_queries)
            answers = self._with_confidence(new_queries, answers)
            self._answers.update(zip(todo, answers, strict=True))
        return [self._answers[k] for k in keys]

    def _first_well_formed(self, queries: Sequence[Query]) -> list[Prediction]:
        """Return the first reply to each query that has no error, else the last one.

        An edit that leaves its line as it was is an error, and so is a line that holds
        words twice which no line does (repeated_words), but not in the last attempt,
        nor in the first one where all others fail. Each attempt has noise of its own,
        so that several can be sampled in one pass. The last attempt may not refer to
        lines or words of the state where the one before referred to some that are not
        there. Where that error comes from the same pass, both forms are sampled.
        """
        last, contexts = self.config.retries, self._contexts(queries)
        none = [0] * len(queries), [True] * len(queries)
        answers = self._compute(queries, contexts, *none)
        first = list(answers)

        def may_refer(attempt: int, error: str | None) -> bool:
            return attempt < last or not (error or "").startswith(MISSING)

        attempt = 1
        while attempt <= last:
            bad = [
                i
                for i, context in enumerate(contexts)
                if answers[i].error and len(context.ids) <= self._max_context
            ]
            if not bad:
                break
            attempts = range(attempt, last_attempt_of_pass(len(bad), attempt, last) + 1)
            rows = [
                (i, a, refers)
                for i in bad
                for a in attempts
                for refers in (True, False)
                if (refers or a == last)
                and (a > attempt or refers == may_refer(a, answers[i].error))
            ]
            replies = self._compute(
                [queries[i] for i, _, _ in rows],
                [contexts[i] for i, _, _ in rows],
                [a for _, a, _ in rows],
                [refers for _, _, refers in rows],
            )
            replies_by_row = dict(zip(rows, replies, strict=True))
            for i in bad:
                for a in attempts:
                    answers[i] = replies_by_row[i, a, may_refer(a, answers[i].error)]
                    if not answers[i].error:
                        break
            attempt = attempts.stop
        return [
            b._replace(error=None)
            if a.error and (b.error or "").startswith(_ODD)
            else a
            for a, b in zip(answers, first, strict=True)
        ]

    def _contexts(self, queries: Sequence[Query]) -> list[Context]:
        """Return the context of each query, with its references."""
        c = self.config
        demos = self.memory.search(
            [(q.task.id, q.state, q.action) for q in queries], c.demonstrations
        )
        return [
            query_context(self.tokenizer, c, q, d, self._past_states(q))
            for q, d in zip(queries, demos, strict=True)
        ]

    def sample(self, queries: Sequence[Query], number: int) -> list[Prediction]:
        """Return reply `number` to each query, under its own noise and without retries.

        None of them is the answer of `predict`.
        """
        count = len(queries)
        attempts = [SAMPLED + number] * count
        return self._compute(queries, self._contexts(queries), attempts, [True] * count)

    def _with_confidence(
        self, queries: Sequence[Query], answers: Sequence[Prediction]
    ) -> list[Prediction]:
        """Return the answers with their confidence, calibrated."""
        if self._confidence_signal != "token_probability":
            confidences = self._signal(self._confidence_signal, queries, answers)
            pairs = zip(answers, confidences, strict=True)
            answers = [a._replace(confidence=float(x)) for a, x in pairs]
        scale = self._calibration
        return list(answers) if scale is None else [scale(a) for a in answers]

    def _signal(
        self, name: str, queries: Sequence[Query], answers: Sequence[Prediction]
    ) -> Float[np.ndarray, " N"]:
        """Return one of SIGNALS, larger for answers more likely correct."""
        if name == "nearest_neighbor":
            return np.array(self.neighbor_similarity(queries), float)
        if name == "self_consistency":
            return np.array(agreement(self, queries, answers), float)
        outcomes = [
            (
                a.next_state,
                prompts.reward_and_outcome_ids(self.tokenizer, a.reward, a.outcome),
            )
            for a in answers
        ]
        probabilities = [
            self._sequence_probability(m, queries, answers, outcomes)
            for m in self.members
        ]
        return np.min(np.array(probabilities), axis=0)

    def signals(self, queries: Sequence[Query]) -> dict[str, list[float]]:
        """Return all available SIGNALS, larger where more likely correct.

        The ensemble's needs members. The signal that the model uses as its confidence
        is returned as calibrated.
        """
        answers = self.predict(queries)
        confidence = {self._confidence_signal: [a.confidence for a in answers]}
        others = [
            n
            for n in ("nearest_neighbor", "self_consistency")
            if n != self._confidence_signal
        ]
        if self.members and self._confidence_signal != "ensemble":
            others.append("ensemble")
        return confidence | {
            n: self._signal(n, queries, answers).tolist() for n in others
        }

    def next_state_probability(
        self, queries: Sequence[Query], transitions: Sequence[Transition]
    ) -> list[float]:
        """Return p(real next state | query, the reasoning of this model's own answer).

        One sample of the reasoning stands for all, and all tokens count, also those
        that the grammar forbids: a lower estimate. 0 where the text exceeds the model's
        positions.
        """
        reward = [self.tokenizer.control("reward")]
        real = [(t.next_state, reward) for t in transitions]
        return self._sequence_probability(
            self.model, queries, self.predict(queries), real
        ).tolist()

    def _sequence_probability(
        self,
        model: Model,
        queries: Sequence[Query],
        answers: Sequence[Prediction],
        outcomes: Sequence[tuple[State, list[int]]],
    ) -> Float[np.ndarray, " N"]:
        """Return p of `model` for (next state, ids behind it), given each reasoning."""
        texts, starts = [], []
        rows = zip(queries, self._contexts(queries), answers, outcomes, strict=True)
        for query, (tok, context), answer, (state, tail) in rows:
            effect = prompts.effect_ids(
                tok, query.state, state, full=self.config.full_state
            )
            before = [*context, *tok.encode(answer.reasoning), effect[0]]
            texts.append([*before, *effect[1:], *tail])
            starts.append(len(before))
        max_positions = model.config.max_position_embeddings
        fits = [i for i, text in enumerate(texts) if len(text) <= max_positions]
        out = np.zeros(len(texts))
        scored = completion.score(model, (texts[i] for i in fits))
        for i, score in zip(fits, scored, strict=True):
            out[i] = np.exp(sum(score.logp[starts[i] :]))
        return out

    @property
    def _max_context(self) -> int:
        return self.model.config.max_position_embeddings - self._max_tokens

    def _compute(
        self,
        queries: Sequence[Query],
        contexts: Sequence[Context],
        attempts: Sequence[int],
        may_refer: Sequence[bool],
    ) -> list[Prediction]:
        """Return one reply a row, under the noise of its attempt.

        A query whose context is too long gets a failed prediction.
        """
        tok, limit = self.tokenizer, self._max_context
        message = "the question has {} tokens, and there is room for {}"
        out = [
            failed_prediction(q, message.format(len(c.ids), limit))
            for q, c in zip(queries, contexts, strict=True)
        ]
        fits = [i for i, context in enumerate(contexts) if len(context.ids) <= limit]
        if not fits:
            return out
        # History is left out, so that rollouts which reach a state in different ways
        # get the same answer.
        seeds = [
            content_seed(self._seed, attempts[i], q.task.id, q.state, q.action)
            for i in fits
            for q in (queries[i],)
        ]
        # More keys than rows, so that few shapes are compiled.
        padded = np.zeros(bucket(len(fits), SAMPLE_BUCKET), np.uint32)
        padded[: len(fits)] = seeds
        keys = _keys_of_seeds(padded)
        lines = [len(tok.writing.model_input(queries[i].state)) for i in fits]
        banned = np.stack([tok.unused_line_mask(n) for n in lines])
        for name in ("same", "swap", "with"):
            banned[:, tok.control(name)] = ~np.array([may_refer[i] for i in fits])
        banned |= np.stack([contexts[i].tokenizer.unused_references() for i in fits])
        replies = generate(
            self.model,
            [contexts[i].ids for i in fits],
            self._grammar,
            keys,
            max_tokens=self._max_tokens,
            banned=banned,
            quotable=quotable_rows(
                self._quoting, [(contexts[i].tokenizer, queries[i]) for i in fits]
            ),
        )
        for i, reply in zip(fits, replies, strict=True):
            repeats = attempts[i] >= self.config.retries
            out[i] = self._read(queries[i], contexts[i].tokenizer, reply, repeats)
        return out

    def _read(
        self,
        query: Query,
        tokenizer: AnyTokenizer,
        sampled: SampledTokens,
        repeats: bool = True,
    ) -> Prediction:
        """Return the prediction of a reply.

        `repeats` says that edits may leave their lines as they were (parse_reply), and
        lines hold words twice.
        """
        n = int(sampled.length[0])
        state_format = self._state_formats.get(query.task.family)
        reply = prompts.parse_reply(
            tokenizer,
            sampled.ids[0, :n].tolist(),
            query.state,
            distinct=state_format is not None and state_format.distinct,
            keyed_by_prefix=state_format is not None
            and state_format.keyed_by_prefix
            and not state_format.distinct,
            repeats=repeats,
        )
        logp, phase = sampled.logp[0, :n], sampled.phase[0, :n]
        cut = ~sampled.sampled[0, :n] & (phase > 0)
        p_reward_text, p_outcome = (
            float(np.exp(logp[phase == x].sum())) for x in (REWARD, OUTCOME)
        )
        next_state = reply.next_state
        repeated = (reply.error or "").startswith(prompts.REPEATED)
        error = None if repeated else reply.error
        facts = self._lasting_facts.get(query.task.family)
        if error is None and facts is not None:
            next_state = with_lasting_facts(query.state, next_state, facts)
        if error is None and cut.any():
            error = "the reply was cut: it is longer than there is room for"
        if error is None and state_format is None and not next_state:
            error = "the next state is empty"
        if error is None and state_format is not None:
            error = format_error(next_state, state_format)
            if error is None and not repeats:
                error = repeated_words(query.state, next_state, state_format)
        if error is None and repeated:
            error = reply.error
        return Prediction(
            next_state,
            reply.reward,
            reply.outcome,
            reply.reasoning,
            float(np.exp(logp[phase > 0].sum())),
            error,
            p_reward_text if reply.reward else 1 - p_reward_text,
            1 - p_outcome if reply.outcome == "go" else p_outcome,
        )

    def vary(
        self, groups: Sequence[Sequence[SeedTask]], *, key: jax.Array
    ) -> list[Task | None]:
        """See base.ExperienceModel; None is also what `write_tasks` refuses."""
        return write_tasks(self.model, self.tokenizer, self.config, groups, key=key)
