"""The groups of settings that belong to one stage or part of a run."""

import dataclasses

from worldmodel.chat.protocol import ChatConfig
from worldmodel.experience.base import SIGNALS
from worldmodel.experience.prompted import PromptedConfig
from worldmodel.fitting.supervised import FitConfig

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
class TeacherServerConfig:
    """The chat server that writes reflections; `key_env` names the key's variable.

    Prices are for a million tokens.
    """

    url: str = ""
    model: str = "default"
    key_env: str = ""
    max_tokens: int = 512
    price_in: float = 0.0
    price_out: float = 0.0

    def __post_init__(self):
        if self.url:
            self.chat()  # says what is wrong

    def chat(self) -> ChatConfig:
        """As the client takes it, patient: an answer comes when it is written."""
        return ChatConfig(
            base_url=self.url, model=self.model, api_key_env=self.key_env or None,
            max_tokens=self.max_tokens, read_timeout=600.0,
            price_in=self.price_in, price_out=self.price_out,
        )  # fmt: skip


METHODS = ("sr", "iwm", "both", "bc")


SOURCES = ("valid", "policy")


WRITERS = ("rule", "teacher", "own")


STARTS = ("experience", "model")


@dataclasses.dataclass(frozen=True, kw_only=True)
class WarmstartConfig:
    """The control BC, and the warm start by a `method` within the same updates.

    `start` is where all policies begin: at the "experience" model, which knows what
    actions do, or, as in the papers, at the "model" which that itself began at.

    "sr": SR with BC; "iwm": IWM, then BC; "both": IWM, then SR with BC; "bc": the
    control itself. IWM is not the default: the experience model foretells next states
    already, and policies that began there became worse by it (docs/LOG.md).
    `iwm_share` of the warm start's updates go to implicit world modelling, first. A
    `share` of the expert episodes is learned from, the smaller one always part of the
    larger; early stopping looks at all dev ones whatever the share.

    `alternatives` (K) at each state of `branched` of those episodes come from a
    `source`: the environment's valid actions, or the untrained policy, sampled at
    `temperature`; at most the share `errors` of them are error transitions.

    `reflections` of each state are by a `writer`: by rule, by a `teacher` behind a chat
    server, or by the model's own, which tries `samples` times at `temperature`. It is a
    BC'd policy that was first shown what a reflection is: those of the rule, on the
    share `primer` of the moments, for that share of the fit's updates; at 0 it is asked
    as it is. Its updates come on top of the budget, as a teacher's do.
    """

    fit: FitConfig
    start: str = "experience"
    method: str = "sr"
    experts: int = 1200
    share: float = 1.0
    branched: int = 60
    alternatives: int = 4
    source: str = "valid"
    errors: float = 0.25
    reflections: int = 4
    writer: str = "rule"
    teacher: TeacherServerConfig = TeacherServerConfig()
    samples: int = 4
    primer: float = 0.25
    temperature: float = 1.0
    iwm_share: float = 0.1

    def __post_init__(self):
        for name, known in (
            ("start", STARTS), ("method", METHODS), ("source", SOURCES),
            ("writer", WRITERS),
        ):  # fmt: skip
            if getattr(self, name) not in known:
                got = getattr(self, name)
                raise ValueError(f"{name} must be one of {known}, got {got!r}")
        if not 0.0 <= self.iwm_share < 1.0:
            raise ValueError(f"iwm_share must be in [0, 1), got {self.iwm_share}")
        if not 0 < self.share <= 1:
            raise ValueError(f"share must be in (0, 1], got {self.share}")
        if not 0 <= self.errors <= 1 or not 0 <= self.primer <= 1:
            raise ValueError(
                "errors and primer must be in [0, 1], got "
                f"{self.errors} and {self.primer}"
            )
        if min(self.experts, self.samples) < 1:
            raise ValueError(
                "experts and samples must be >= 1, got "
                f"{self.experts} and {self.samples}"
            )
        counts = (self.branched, self.alternatives, self.reflections, self.temperature)
        if min(counts) < 0:
            raise ValueError(
                "branched, alternatives, reflections and temperature must be >= 0, got "
                f"{counts}"
            )
        if self.writer == "teacher" and not self.teacher.url:
            raise ValueError(
                "writer = teacher needs teacher.url, a chat server's, set before it"
            )
