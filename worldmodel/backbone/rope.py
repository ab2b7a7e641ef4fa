"""Rotation rates of rotary position embeddings (RoPE, arXiv:2104.09864)."""

import math

import numpy as np
from jaxtyping import Float

from worldmodel.backbone.config import ModelConfig, RopeScaling


def rope_rates(config: ModelConfig) -> Float[np.ndarray, " H"]:
    """Radians per position of each rotated pair, in float64."""
    half = config.head_dim // 2
    base = config.rope_theta ** (-np.arange(half) / half)
    scaling = config.rope_scaling
    return base if scaling is None else scaled_rates(scaling, base, config.rope_theta)


def scaled_rates(
    scaling: RopeScaling, base: Float[np.ndarray, " H"], theta: float
) -> Float[np.ndarray, " H"]:
    """Return the scaled rates of the `base` rates theta ** (-i / H)."""
    if scaling.rope_type == "linear":
        return base / scaling.factor
    original = scaling.original_max_position_embeddings
    if scaling.rope_type == "llama3":
        # Llama 3.1: rates with many turns within the original context stay, those with
        # few are divided, and a ramp lies in between.
        turns = original * base / (2 * np.pi)
        span = scaling.high_freq_factor - scaling.low_freq_factor
        keep = np.clip((turns - scaling.low_freq_factor) / span, 0.0, 1.0)
        return base * (keep + (1 - keep) / scaling.factor)
    # YaRN (arXiv:2309.00071): the same idea, with the ramp over dimensions.
    size = 2 * base.size

    def dimension(rotations: float) -> float:
        ratio = original / (rotations * 2 * math.pi)
        return size * math.log(ratio) / (2 * math.log(theta))

    low = max(math.floor(dimension(scaling.beta_fast)), 0)
    high = min(math.ceil(dimension(scaling.beta_slow)), size - 1)
    ramp = (np.arange(base.size) - low) / max(high - low, 0.001)
    keep = 1 - np.clip(ramp, 0.0, 1.0)
    return base * (keep + (1 - keep) / scaling.factor)
