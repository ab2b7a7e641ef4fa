"""Settings of a decoder: its shape as in a Hugging Face config.json, and LoRA."""

import dataclasses
import math
from typing import Any

ATTENTION, SLIDING, CONVOLUTION = "full_attention", "sliding_attention", "conv"
MIXERS = (ATTENTION, SLIDING, CONVOLUTION)


@dataclasses.dataclass(frozen=True, kw_only=True)
class RopeScaling:
    """How rotary rates are scaled for contexts longer than in the first training.

    `rope_type` "linear" divides all rates by `factor`, "llama3" those of long waves
    (Llama 3.1), "yarn" ramps between the two and scales attention by `attention_factor`
    (arXiv:2309.00071; None: 0.1 ln factor + 1).
    """

    rope_type: str
    factor: float
    original_max_position_embeddings: int = 0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attention_factor: float | None = None

    def __post_init__(self):
        kinds = ("linear", "llama3", "yarn")
        if self.rope_type not in kinds:
            raise ValueError(
                f"rope_type must be one of {list(kinds)}, got {self.rope_type!r}"
            )
        _numbers(self)
        if self.factor < 1:
            raise ValueError(f"factor must be >= 1, got {self.factor}")
        if self.rope_type != "linear" and self.original_max_position_embeddings < 1:
            raise ValueError(
                f"{self.rope_type} needs original_max_position_embeddings >= 1, got "
                f"{self.original_max_position_embeddings}"
            )

    @property
    def attention_scale(self) -> float:
        """The factor of cosines and sines."""
        if self.rope_type != "yarn":
            return 1.0
        if self.attention_factor is not None:
            return self.attention_factor
        return 0.1 * math.log(self.factor) + 1.0


def _numbers(config: Any) -> dict[str, float | int]:
    """Return the fields of a config that are numbers.

    Raises:
      ValueError: one is no finite number of its type.
    """
    numbers = {}
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        optional = field.type == float | None and value is not None
        if field.type not in (int, float) and not optional:
            continue
        number = isinstance(value, int if field.type is int else int | float)
        if isinstance(value, bool) or not number or not math.isfinite(value):
            raise ValueError(
                f"{field.name} must be a finite "
                f"{'int' if field.type is int else 'float'}, got {value!r:.60}"
            )
        numbers[field.name] = value
    return numbers


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """A decoder: RMSNorm, RoPE, grouped queries, SwiGLU.

    `layer_types` is the mixer of each layer: attention over all earlier tokens
    ("full_attention") or over the last `sliding_window` ("sliding_attention"), or a
    gated convolution over the last `conv_L_cache` tokens ("conv"). Empty means full
    attention everywhere. `attention_bias` names the projections with a bias, some of
    "qkvo". `model_type` is the family whose names a saved directory uses (families.py).
    """

    vocab_size: int
    hidden_size: int = 128
    num_hidden_layers: int = 4
    num_attention_heads: int = 4
    num_key_value_heads: int = 4
    head_dim: int = 32
    intermediate_size: int = 384
    rope_theta: float = 10_000.0
    rope_scaling: RopeScaling | None = None
    rms_norm_eps: float = 1e-5
    tie_word_embeddings: bool = True
    qk_norm: bool = False
    attention_bias: str = ""
    mlp_bias: bool = False
    sliding_window: int = 4096
    max_position_embeddings: int = 4096
    model_type: str = "llama"
    layer_types: tuple[str, ...] = ()
    conv_L_cache: int = 3

    def __post_init__(self):
        for name, value in _numbers(self).items():
            if value <= 0:
                raise ValueError(f"{name} must be > 0, got {value}")
        if self.num_attention_heads % self.num_key_value_heads:
            raise ValueError(
                "num_attention_heads must be a multiple of num_key_value_heads, got "
                f"{self.num_attention_heads} and {self.num_key_value_heads}"
            )
        if self.head_dim % 2:
            raise ValueError(f"head_dim must be even for RoPE, got {self.head_dim}")
        if not set(self.attention_bias) <= set("qkvo"):
            raise ValueError(
                f"attention_bias must be some of 'qkvo', got {self.attention_bias!r}"
            )
        if set(self.mixers) - set(MIXERS) or len(self.mixers) != self.num_hidden_layers:
            raise ValueError(
                f"layer_types must be {self.num_hidden_layers} of {list(MIXERS)}, got "
                f"{list(self.layer_types)}"
            )

    @property
    def mixers(self) -> tuple[str, ...]:
        """The mixer of each layer."""
        return self.layer_types or (ATTENTION,) * self.num_hidden_layers


@dataclasses.dataclass(frozen=True, kw_only=True)
class LoraConfig:
    """Low-rank additions to projections (arXiv:2106.09685)."""

    rank: int = 8
    """Rank of the additions."""
    alpha: float = 16.0
    """Scale of the additions is `alpha` / `rank`."""
    targets: tuple[str, ...] = ("q", "k", "v", "o", "gate", "up", "down")
    """Projections that have them: q, k, v, o of attention, gate, up, down of the
    feed-forward, into and out of a convolution."""

    def __post_init__(self):
        names = ("q", "k", "v", "o", "gate", "up", "down", "into", "out")
        if self.rank < 1 or self.alpha <= 0:
            raise ValueError(
                f"rank must be >= 1 and alpha > 0, got {self.rank} and {self.alpha}"
            )
        wrong = sorted(set(self.targets) - set(names))
        if wrong or not self.targets:
            raise ValueError(f"targets must be some of {list(names)}, got {wrong}")
