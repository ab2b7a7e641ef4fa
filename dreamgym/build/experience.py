"""The experience model of a run with its replay memory, local or behind a server."""

import dataclasses
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from dreamgym.build.chat import run_client
from dreamgym.build.episodes import read, recorded_episodes
from dreamgym.build.models import memory_encoder
from dreamgym.config.stages import ServerConfig
from dreamgym.envs.dream import UncertaintyGate
from dreamgym.run.directory import Run, RunError
from worldmodel import reasoning
from worldmodel.backbone.weights import load_model
from worldmodel.data.records import Episode
from worldmodel.experience.base import ExperienceModel
from worldmodel.experience.calibration import Calibration
from worldmodel.experience.config import ExperienceConfig
from worldmodel.experience.examples import (
    TransitionSource,
    mean_tokens,
    permute_outcomes,
    reply_tokens,
    text_sizes,
    transition_examples,
    variation_examples,
)
from worldmodel.experience.grammar import REWARD_TOKENS
from worldmodel.experience.local import LocalExperienceModel
from worldmodel.experience.prompted import PromptedExperienceModel
from worldmodel.experience.quotes import quoting_families
from worldmodel.fidelity.cases import sample_cases
from worldmodel.fitting import supervised
from worldmodel.fitting.batches import Example
from worldmodel.memory import ReplayMemory
from worldmodel.text import persistence, state_format
from worldmodel.text.names import MAX_DRAWS, Groups
from worldmodel.text.state_format import StateFormat
from worldmodel.text.tokenizer import TextTokenizer
from worldmodel.text.writing.states import StateWriting, with_written_states

CAPACITY = 50_000
"""Real transitions that the replay memory begins with, the newest, at most."""


def with_rule_traces(
    run: Run, episode: Episode, writing: StateWriting | None = None
) -> Episode:
    """Return the episode with traces by rule where it has none, or without any.

    The settings say which. With `writing` they are of the states as models write them.
    """
    c = run.config.experience
    return reasoning.set_rule_traces(
        episode, enabled=c.reasoning, writing=writing, style=c.reasoning_style
    )


def training_share(run: Run, train: list[Episode]) -> list[Episode]:
    """Return the episodes for fitting and memory: a share of all, or the control.

    The control permutes the outcomes of actions (`pretrain.permute_outcomes`), which
    destroys the information about what an action leads to.
    """
    c = run.config
    share = train[: max(round(c.pretrain.data_share * len(train)), 1)]
    if not c.pretrain.permute_outcomes:
        return share
    permuted = permute_outcomes(share, seed=c.seed)
    return [with_rule_traces(run, e) for e in permuted]


REMEDY = "remedy"
"""The folder of a refit that mended a dream: its model, scorecard and episodes."""


def remedy_folder(run: Run) -> str:
    """Return the folder of the experience model that policies are trained in.

    It is REMEDY where the stage dream_check refitted the model with success, else "",
    the run's own.
    """
    remedy = run.numbers("dream_check").get("remedy", {})
    return REMEDY if remedy.get("helped") else ""


def refit_episodes(run: Run, folder: str) -> list[Episode]:
    """Return the real episodes of policies that a folder's model was fitted to.

    Those of the remedy before it are among them.
    """
    played = [
        episode
        for name in dict.fromkeys((REMEDY, folder))
        for episode in recorded_episodes(run.path(f"{name}/episodes.jsonl"))
    ]
    return [with_rule_traces(run, e) for e in played if e.success is not None]


def _in_folder(run: Run, folder: str, name: str) -> Path:
    return run.path(f"{folder}/{name}" if folder else name)


def replay_memory(run: Run, train: list[Episode], folder: str = "") -> ReplayMemory:
    """Return the replay memory of a run, with the encoder of its settings.

    It holds the training share of the episodes `train`, and those of a refit in its
    `folder`. Vectors of a model are expensive to compute and are saved in memory/.
    """
    episodes = training_share(run, train)
    if folder:
        episodes = [*episodes, *refit_episodes(run, folder)]
    if run.config.memory.encoder == "lexical":
        return ReplayMemory.from_episodes(episodes, capacity=CAPACITY)
    encoder = memory_encoder(run)
    path = _in_folder(run, folder, "memory")
    if path.is_dir():
        return ReplayMemory.load(path, encoder=encoder)
    memory = ReplayMemory.from_episodes(episodes, capacity=CAPACITY, encoder=encoder)
    memory.save(path)
    return memory


class FitData(NamedTuple):
    """What the experience model is fitted to and looks at, and their sizes."""

    examples: list[Example]
    held_out: list[Example]
    numbers: dict[str, float]


def transition_source(
    run: Run,
    tok: TextTokenizer,
    train: list[Episode],
    names: Mapping[str, Groups],
    *,
    folder: str = "",
    rare_event_share: float | None = None,
) -> TransitionSource:
    """Return what the experience model is fitted to, as the settings of a run say.

    These are the training share of the episodes `train` or, with the `folder` of a
    refit, the episodes of the policy there. `rare_event_share` is that of the settings
    unless given.
    """
    c, share = run.config, rare_event_share
    episodes = refit_episodes(run, folder) if folder else training_share(run, train)
    return TransitionSource(
        tok=tok,
        episodes=_with_tokenizer_traces(run, tok, episodes),
        memory=replay_memory(run, train, folder),
        config=c.experience,
        names=names,
        rare_event_share=c.pretrain.rare_event_share if share is None else share,
    )


def _with_tokenizer_traces(
    run: Run, tok: TextTokenizer, episodes: Sequence[Episode]
) -> list[Episode]:
    """Return the episodes with traces by rule as the tokenizer writes states."""
    return [with_rule_traces(run, e, tok.writing) for e in episodes]


def _quoting(run: Run, tok: TextTokenizer, train: Sequence[Episode]) -> frozenset[str]:
    """Return the families whose traces quote whole lines, as models read them."""
    if not run.config.experience.whole_quotes:
        return frozenset()
    if tok.writing.columns:
        traced = _with_tokenizer_traces(run, tok, train)
        train = with_written_states(traced, tok.writing)
    return quoting_families(train)


def fit_data(
    run: Run,
    tok: TextTokenizer,
    train: list[Episode],
    dev: Sequence[Episode] = (),
    *,
    names: Mapping[str, Groups],
    rare_event_share: float | None = None,
) -> FitData:
    """Return the examples that the experience model is fitted to, and held-out ones.

    Transitions come first, then copies of them, with other names where some stand for
    each other (TransitionSource), then variations of tasks. Held-out are the
    transitions of `dev`. `names` are those that stand for each other
    (interchangeable_names), and `rare_event_share` is that of the settings unless
    given.
    """
    c = run.config
    source = transition_source(
        run, tok, train, names, rare_event_share=rare_event_share
    )
    first = source.examples(0)
    variations = variation_examples(
        tok, train, c.experience, repeats=2, seed=c.seed, names=names
    )
    held_out = _held_out_examples(run, tok, dev, source.memory)
    sizes = text_sizes(tok, train, dev) | reply_tokens(first)
    tokens = round(mean_tokens(first), 1)
    # As many copies as the fit reads, whether names are exchanged in them or not:
    # variations of tasks, which are read once, then take no share of its updates.
    draws = min(supervised.epochs_read(c.pretrain.fit, first), MAX_DRAWS)
    copies = [
        e
        for draw in range(1, draws)
        for e in (source.examples(draw) if names else first)
    ]
    counts = {
        "distinct_transitions": len(first),
        "redrawn_examples": len(copies) if names else 0,
        "tokens_per_transition": tokens,
    }
    return FitData([*first, *copies, *variations], held_out, counts | sizes)


def held_out_by_family(
    run: Run, tok: TextTokenizer, dev: Sequence[Episode], memory: ReplayMemory
) -> dict[str, list[Example]]:
    """Return the distinct transitions of dev episodes as examples, by family."""
    families: dict[str, list[Episode]] = {}
    for e in dev:
        families.setdefault(e.task.family, []).append(e)
    return {
        family: _held_out_examples(run, tok, families[family], memory)
        for family in sorted(families)
    }


def _held_out_examples(
    run: Run, tok: TextTokenizer, dev: Sequence[Episode], memory: ReplayMemory
) -> list[Example]:
    """Return the distinct transitions of dev episodes as examples.

    They are unweighted, so that their loss can be compared with that of other settings.
    """
    traced = _with_tokenizer_traces(run, tok, dev)
    return transition_examples(tok, traced, memory, run.config.experience)


def fidelity_file(folder: str) -> str:
    """Return the file of the scorecard of a run's model, or of a refit's."""
    return f"{folder}/fidelity.json" if folder else "fidelity.json"


def read_scorecard(run: Run, folder: str = "") -> dict[str, Any]:
    """Return the scorecard of a run's model, or of a refit's.

    Raises:
      RecordError: the file is missing.
      RunError: it is no scorecard.
    """
    scorecard = run.read_json(fidelity_file(folder))
    for part, name in (
        ("exact", "predictable"),
        ("reward", "recall"),
        ("done", "recall"),
    ):
        rates = scorecard.get(part)
        rate = rates.get(name) if isinstance(rates, dict) else None
        if not isinstance(rate, dict) or not {"mean", "count"} <= rate.keys():
            raise RunError(
                f"{run.path(fidelity_file(folder))}: expected a scorecard with a rate "
                f"{part}.{name}, got {rate!r:.60}; remove the marker of the stage that "
                f"wrote it ({run.root / 'stages/fidelity.json'} for the first model), "
                "and it is measured again"
            )
    return scorecard


def _calibration(run: Run, folder: str) -> Calibration | None:
    """Return the calibration of the fidelity stage; None if it found none."""
    has_scorecard = folder or run.done("fidelity")
    scorecard = run.read_json(fidelity_file(folder)) if has_scorecard else {}
    values = scorecard.get("calibration")
    try:
        return None if values is None else Calibration.parsed(values)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise RunError(
            f"{run.path('fidelity.json')}: its calibration cannot be read ({error}); "
            f"remove {run.root / 'stages/fidelity.json'} and it is measured again"
        ) from None


def _with_reply_room(run: Run) -> ExperienceConfig:
    """Return the prompt settings, with room for replies as long as it was fitted to.

    Runs of older versions did not count them and have the room of the settings.
    """
    numbers, config = run.numbers("pretrain"), run.config.experience
    budgets = {
        "reasoning_tokens": config.reasoning_tokens,
        "state_tokens": config.state_tokens,
    }
    return dataclasses.replace(
        config, **{k: max(n, numbers.get(k, 0)) for k, n in budgets.items()}
    )


def load_experience(
    run: Run,
    *,
    stage: str | None = None,
    server: ServerConfig | None = None,
    scaled: bool = False,
    folder: str = "",
    for_rollouts: bool = False,
) -> LocalExperienceModel | PromptedExperienceModel:
    """Return the run's experience model with its memory of real transitions.

    Args:
      stage: the stage under whose name requests to a server are counted.
      server: used in place of the run's own model.
      scaled: whether probabilities are calibrated as measured by the fidelity stage.
      folder: that of a refit (remedy_folder), whose model is loaded in place of it.
      for_rollouts: whether it lies on the devices that roll out, if the run has such.
    """
    mesh = run.acting_mesh if for_rollouts else run.mesh
    run.require("pretrain" if server is None else "collect")
    train, _ = read(run)
    memory = replay_memory(run, train, folder)
    forms = state_format.state_formats(train)
    server = run.config.server if server is None else server
    scale = _calibration(run, folder) if scaled else None
    if server is not None:
        return prompted(run, server, memory, forms, stage, scale)
    model, tok = load_model(_in_folder(run, folder, "experience"), mesh=mesh)
    c, numbers = run.config, run.numbers("pretrain")
    keep_facts = c.experience.keep_facts
    if c.ensemble.members:
        run.require("ensemble")
    paths = (run.path(f"ensemble/{i}") for i in range(c.ensemble.members))
    return LocalExperienceModel(
        model,
        tok,
        memory,
        _with_reply_room(run),
        seed=c.seed,
        state_formats=forms,
        lasting_facts=persistence.lasting_facts(train) if keep_facts else None,
        members=[load_model(p, mesh=mesh)[0] for p in paths],
        confidence_signal=c.uncertainty.signal,
        calibration=scale,
        reward_tokens=max(REWARD_TOKENS, numbers.get("reward_tokens", 0)),
        quoting=_quoting(run, tok, train),
    )


PROBES = 4
"""Dev transitions that are predicted to see whether the server gives a confidence."""


def prompted(
    run: Run,
    server: ServerConfig,
    memory: ReplayMemory,
    forms: Mapping[str, StateFormat],
    stage: str | None,
    scale: Calibration | None,
) -> PromptedExperienceModel:
    """Return an experience model behind a chat server, with the run's memory.

    Its answers are cached in chat_cache.sqlite. The requests of a `stage`, in all its
    attempts, are counted in stages/STAGE.usage.json.
    """
    client = run_client(run, server.chat, stage, "server")
    return PromptedExperienceModel(
        client,
        memory,
        server.prompt,
        seed=run.config.seed,
        state_formats=forms,
        scale=scale,
        confidence_signal=run.config.uncertainty.signal,
    )


def check_confidence(
    run: Run, experience: ExperienceModel, episodes: Sequence[Episode]
) -> None:
    """Check that predictions have a confidence where the settings need one.

    The dream treats an unknown confidence as 0: the uncertainty gate would abort every
    rollout, and the uncertainty penalty would lower every reward by the same amount.
    Predicts a few transitions of `episodes`; the answers are cached. Where only some
    confidences are unknown, the threshold of the gate treats those as 0, too.

    Raises:
      RunError: a false-abort rate or a penalty is set, and no prediction has a
        confidence.
    """
    settings = run.config.uncertainty
    needs_confidence = settings.false_abort_rate > 0 or settings.penalty > 0
    if not needs_confidence or not isinstance(experience, PromptedExperienceModel):
        return
    cases = sample_cases(episodes, PROBES)
    answers = experience.predict([r.query for r in cases])
    confidences = [a.confidence for a in answers if a.error is None]
    if confidences and all(math.isnan(x) for x in confidences):
        raise RunError(
            f"uncertainty.false_abort_rate {settings.false_abort_rate:g} and penalty "
            f"{settings.penalty:g} need to know how sure an answer is, and the server "
            "tells no log-probabilities: set both to 0, ask a server that does, or "
            "take another uncertainty.signal (nearest_neighbor or self_consistency)"
        )


def uncertainty_gate(run: Run, folder: str = "") -> UncertaintyGate:
    """Return the uncertainty gate of a run, its threshold measured on dev episodes."""
    c, threshold = run.config.uncertainty, 0.0
    if c.false_abort_rate:
        run.require("fidelity")
        threshold = run.read_json(fidelity_file(folder)).get("threshold")
        if not isinstance(threshold, int | float):
            raise RunError(
                f"{run.path('fidelity.json')}: expected a number 'threshold', got "
                f"{threshold!r:.60}; remove {run.root / 'stages/fidelity.json'} and "
                "it is measured again"
            )
    return UncertaintyGate(threshold=threshold, penalty=c.penalty)
