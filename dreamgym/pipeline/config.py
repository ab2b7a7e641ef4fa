"""Every setting of a run: plain frozen data, hashed into the run's manifest."""

import dataclasses
import hashlib
import json
import math
import types
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dreamgym.agent.behavior import CollectConfig
from dreamgym.agent.policy import PolicyConfig
from dreamgym.pipeline.warmstart_config import WarmstartConfig
from dreamgym.training import LoopConfig
from worldmodel.backbone.config import ATTENTION, CONVOLUTION, ModelConfig
from worldmodel.chat.protocol import ChatConfig
from worldmodel.experience.base import SIGNALS
from worldmodel.experience.ensemble import EnsembleConfig
from worldmodel.experience.grammar import ExperienceConfig
from worldmodel.experience.prompted import PromptedConfig
from worldmodel.fitting.supervised import FitConfig


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelShape:
    """A decoder trained from scratch. Its tokenizer is trained on the episodes.

    A convolution before the attention: without it a model of this size learns later
    to look words up (docs/LOG.md, 2026-11-21, one seed).
    """

    vocab_size: int = 640
    hidden_size: int = 128
    layers: tuple[str, ...] = (CONVOLUTION, ATTENTION)
    heads: int = 4
    taps: int = 5
    intermediate_size: int = 384

    def model(self, vocab_size: int) -> ModelConfig:
        """The decoder's configuration for a tokenizer of that size."""
        return ModelConfig(
            vocab_size=vocab_size,
            hidden_size=self.hidden_size,
            num_hidden_layers=len(self.layers),
            num_attention_heads=self.heads,
            num_key_value_heads=self.heads,
            head_dim=self.hidden_size // self.heads,
            intermediate_size=self.intermediate_size,
            model_type="lfm2",
            qk_norm=True,
            conv_L_cache=self.taps,
            layer_types=self.layers,
        )


MODELS = {
    "nano": ModelShape(vocab_size=448, hidden_size=32, heads=1, intermediate_size=64),
    "micro": ModelShape(),
    "milli": ModelShape(vocab_size=1024, layers=(CONVOLUTION, ATTENTION) * 2),
    "mini": ModelShape(
        vocab_size=1024,
        hidden_size=192,
        heads=6,
        intermediate_size=512,
        layers=(CONVOLUTION, ATTENTION) * 2,
    ),
}


RETRIEVALS = ("lexical", "hidden")
"""By what demonstrations are found (worldmodel.memory.encoders)."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class EvaluateConfig:
    """Test games a policy plays, and how it decodes there."""

    games: int = 120
    temperature: float = 0.5
    fidelity: int = 400
    slots: int = 64

    def __post_init__(self):
        if min(self.games, self.fidelity, self.slots) < 1 or self.temperature < 0:
            raise ValueError(
                "games, fidelity and slots must be >= 1 and temperature >= 0"
            )


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrustConfig:
    """How far the dream is believed while a policy trains in it.

    `gate` is the share of good dev answers (right, or of a reveal, which nobody can
    know) that may be cut; it decides the confidence below which a rollout ends
    unscored. 0 believes all. `pessimism` times the missing confidence is taken
    off rewards. `signal`, one of SIGNALS (worldmodel/experience/base.py), is what
    answers are trusted by (a server's: all but the ensemble's). Dreamed transitions
    enter the replay memory at a confidence of `enrich` or more.
    """

    gate: float = 0.0
    pessimism: float = 0.0
    signal: str = "token"
    enrich: float = 0.0

    def __post_init__(self):
        if not 0 <= self.gate < 1 or self.pessimism < 0:
            raise ValueError(
                "gate must be in [0, 1) and pessimism >= 0, got "
                f"{self.gate} and {self.pessimism}"
            )
        if not 0 <= self.enrich <= 1:
            raise ValueError(f"enrich must be in [0, 1], got {self.enrich}")
        if self.signal not in SIGNALS:
            raise ValueError(f"signal must be one of {SIGNALS}, got {self.signal!r}")


@dataclasses.dataclass(frozen=True, kw_only=True)
class ServerConfig:
    """A chat server as the experience model: who is asked, and what it is shown.

    `chat` holds the name of the variable of the key, never the key.
    """

    chat: ChatConfig
    prompt: PromptedConfig = PromptedConfig()


@dataclasses.dataclass(frozen=True, kw_only=True)
class RunConfig:
    """A whole run. Everything here enters the settings hash.

    `model` is a shape of MODELS or a Hugging Face directory; `env` a registered id,
    "module:Class", or "" where only `episodes` (a JSONL file) are at hand; `refit` is a
    run whose model, tokenizer and episodes this one goes on from; `share` of the
    episodes is what the experience model is fitted to and remembers; rewards and ends
    that are rarer than `balance` weigh as if they made up that share; `enrich` dreamed
    transitions enter the replay memory after each update. `retrieval` of demonstrations
    is "lexical", or "hidden": by what the model that the fit starts from (a directory's
    or a refit's) holds after state and action. With a `server` the dream is
    what it answers: nothing is fitted to the episodes, they are its demonstrations, and
    policies begin at the model as it is before any fit. `real` trains in the real
    environment, for as many updates, what is else trained in the dream: its control.
    """

    preset: str
    env: str = "textworld"
    model: str = "micro"
    episodes: str = ""
    refit: str = ""
    seed: int = 0
    max_steps: int = 16
    retrieval: str = "lexical"
    collect: CollectConfig = CollectConfig()
    experience: ExperienceConfig = ExperienceConfig()
    server: ServerConfig | None = None
    pretrain: FitConfig
    share: float = 1.0
    balance: float = 0.0
    ensemble: EnsembleConfig = EnsembleConfig()
    shuffled: bool = False
    policy: PolicyConfig = PolicyConfig()
    warmstart: WarmstartConfig
    dream: LoopConfig
    transfer: LoopConfig
    transfer_budget: int = 3000
    enrich: int = 64
    trust: TrustConfig = TrustConfig()
    evaluate: EvaluateConfig = EvaluateConfig()
    real: bool = False

    def __post_init__(self):
        if self.real and (not self.env or self.dream.forks):
            raise ValueError(
                "real = true needs an environment, and no dream.forks: it cannot go "
                f"back; got env {self.env!r} and forks {self.dream.forks}"
            )
        real = self.transfer
        if real.forks or real.watch.probe or real.limit:
            raise ValueError(
                "transfer.forks and transfer.watch.probe must be 0 (the real "
                "environment cannot go back, and its rollouts are real already), and "
                "transfer.limit too (transfer_budget is that); got "
                f"{real.forks}, {real.watch.probe} and {real.limit}"
            )
        if self.seed < 0:
            raise ValueError(f"--seed must be >= 0, got {self.seed}")
        if self.max_steps < 1:
            raise ValueError(f"max_steps must be >= 1, got {self.max_steps}")
        self._check_loops()
        if self.enrich < 0 or self.transfer_budget < 0:
            raise ValueError(
                "enrich and transfer_budget must be >= 0, got "
                f"{self.enrich} and {self.transfer_budget}"
            )
        if not 0 < self.share <= 1:
            raise ValueError(f"share must be in (0, 1], got {self.share}")
        if self.server is not None and not self.server.chat.temperature:
            samples = self.dream.curriculum.feasibility.samples
            compared = ["trust.signal = agreement"] * (self.trust.signal == "agreement")
            compared += ["dream.curriculum.feasibility.samples"] * bool(samples)
            if compared:
                raise ValueError(
                    f"{compared[0]} compares answers under different noise: "
                    "server.chat.temperature must be > 0"
                )
        if self.trust.signal == "ensemble" and not self.ensemble.members:
            raise ValueError("trust.signal = ensemble needs ensemble.members > 0")
        if self.retrieval not in RETRIEVALS:
            got = self.retrieval
            raise ValueError(f"retrieval must be one of {RETRIEVALS}, got {got!r}")
        if self.retrieval == "hidden" and self.model in MODELS and not self.refit:
            raise ValueError(
                "retrieval = hidden goes by a model that has read something: give a "
                "model directory, or go on from a run"
            )
        if not 0 <= self.balance < 1:
            raise ValueError(f"balance must be in [0, 1), got {self.balance}")
        fitted = {
            "shuffled": self.shuffled, "refit": self.refit, "balance": self.balance,
            "ensemble": self.ensemble.members,
        }  # fmt: skip
        about = [name for name, set_ in fitted.items() if set_]
        if self.server is not None and about:
            raise ValueError(
                f"{about[0]} is about a fitted experience model, and the one of a "
                "server is not fitted: drop one of them"
            )

    def _check_loops(self):
        """What a loop, or the warm start, asks of the run it is part of."""
        for name, loop in (("dream", self.dream), ("transfer", self.transfer)):
            first = loop.curriculum.horizon.first
            if first > self.max_steps:
                raise ValueError(
                    f"{name}.curriculum.horizon.first must be at most max_steps = "
                    f"{self.max_steps}, got {first}"
                )
        if self.dream.watch.probe and not self.env:
            raise ValueError("dream.watch.probe plays real dev games: give --env")
        both = self.warmstart.method in ("both", "iwm")
        if both and self.warmstart.fit.steps < 2:
            raise ValueError(
                f"warmstart.method = {self.warmstart.method} is two fits: "
                "warmstart.fit.steps must be >= 2, got 1"
            )

    def check_new(self) -> None:
        """Refuse settings that nothing would come of, before a run begins with them.

        Raises:
          ValueError: such a setting, by its whole name. Runs that stand are not asked.
        """
        for name, loop in (("dream", self.dream), ("transfer", self.transfer)):
            if told := loop.dead():
                raise ValueError(f"{name}.{told}")
        update = self.dream.update
        if self.trust.pessimism and not update.reads_rewards:
            raise ValueError(
                "trust.pessimism takes from rewards, which dream.update.baseline = "
                f"{update.baseline} does not read"
            )

    def json(self) -> dict[str, Any]:
        """The settings as plain data."""
        return dataclasses.asdict(self)

    def digest(self) -> str:
        """A hash of all settings, and of the episodes' content where given."""
        return digest_of(self.json(), self.episodes)


def digest_of(settings: dict[str, Any], episodes: str) -> str:
    """The hash of settings as plain data, of this version or of one before."""
    digest = hashlib.sha256(json.dumps(settings, sort_keys=True).encode())
    if episodes:
        digest.update(Path(episodes).read_bytes())
    return digest.hexdigest()[:16]


def changed(part: Any, name: str, value: Any) -> Any:
    """A configuration with one setting, named by dots, replaced.

    Raises:
      ValueError: no such setting, or a value of another kind; the message lists the
        settings that are there, or says what was expected.
    """
    first, _, rest = name.partition(".")
    known = [f.name for f in dataclasses.fields(part)]
    if first not in known:
        raise ValueError(f"no setting {first!r} in {type(part).__name__}; have {known}")
    now = getattr(part, first)
    if rest:
        if not dataclasses.is_dataclass(now):
            raise ValueError(f"{first!r} is {now!r} and has no settings, got {name!r}")
        value = changed(now, rest, value)
    elif dataclasses.is_dataclass(now):
        raise ValueError(f"{name!r} is a group of settings: name one of them")
    elif isinstance(value, list):
        value = restored(typing.get_type_hints(type(part))[first], value)
    if now is None:
        raise ValueError(f"{first}: there is none here that could be changed")
    if not rest:
        kinds = (float, int) if type(now) is float else (type(now),)
        if type(value) not in kinds:
            raise ValueError(
                f"{first}: expected {kinds[0].__name__}, like {now!r}, got {value!r}"
            )
        value = float(value) if type(now) is float else value
        if type(now) is float and not math.isfinite(value):
            raise ValueError(f"{first}: expected a finite number, got {value}")
    return dataclasses.replace(part, **{first: value})


def changed_by(part: Any, settings: Mapping[str, Any]) -> Any:
    """A configuration with settings replaced, in whatever order they stand together.

    Some values are only good beside others: what is refused is tried again after the
    rest.

    Raises:
      ValueError: as `changed`, of the first that cannot be made to stand, by its whole
        name.
    """
    left = dict(settings)
    while left:
        refused: dict[str, Exception] = {}
        for name, value in left.items():
            try:
                part = changed(part, name, value)
            except (ValueError, TypeError) as error:
                refused[name] = error
        if len(refused) == len(left):
            name, error = next(iter(refused.items()))
            if name in str(error):
                raise error
            raise ValueError(f"{name} = {left[name]!r}: {error}") from None
        left = {name: left[name] for name in refused}
    return part


def restored(kind: Any, value: Any) -> Any:
    """A value of `asdict` as the dataclass, tuple or plain value of its type again.

    Raises:
      ValueError: a field that the dataclass does not have, or lacks; the message names
        it.
    """
    if typing.get_origin(kind) is tuple:
        item = typing.get_args(kind)[0]  # all of one kind
        return tuple(restored(item, x) for x in value)
    if typing.get_origin(kind) is types.UnionType:  # a part or None
        parts = [k for k in typing.get_args(kind) if dataclasses.is_dataclass(k)]
        return restored(parts[0], value) if parts and value is not None else value
    if kind is float and type(value) is int:  # as JSON may write it
        return float(value)
    if not (isinstance(kind, type) and dataclasses.is_dataclass(kind)):
        return value
    if not isinstance(value, dict):
        raise ValueError(f"expected the settings of a {kind.__name__}, got {value!r}")
    hints = typing.get_type_hints(kind)
    if unknown := set(value) - set(hints):
        raise ValueError(f"{kind.__name__} has no {sorted(unknown)}")
    known = {k: restored(hints[k], v) for k, v in value.items()}
    try:
        return kind(**known)
    except TypeError as error:  # one without a default
        raise ValueError(f"{kind.__name__}: {error}") from None
