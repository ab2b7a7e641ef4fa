"""Settings of supervised fits: optimiser, passes, batches."""

import dataclasses

from worldmodel.backbone.config import LoraConfig


@dataclasses.dataclass(frozen=True, kw_only=True)
class OptimizerConfig:
    """Optimiser, learning-rate schedule and gradient clipping.

    The rate warms up and decays by a cosine to a hundredth. A rate that stays large to
    the end leaves rare events too improbable where batches are small, because
    normalised updates follow most batches rather than their mean (docs/LOG.md).
    """

    name: str = "adamw"
    """"muon" orthogonalises the updates of matrices (arXiv:2502.16982) and uses Adam
    elsewhere; "adamw" uses Adam everywhere."""
    learning_rate: float = 2e-3
    """The largest learning rate."""
    warmup_steps: int = 20
    """Steps over which the rate rises."""
    cosine_decay: bool = True
    """Whether the rate decays over the steps of the fit; otherwise it stays."""
    weight_decay: float = 0.01
    """Decoupled weight decay."""
    max_grad_norm: float = 1.0
    """Global norm that gradients are clipped to."""
    beta2: float = 0.98
    """Decay of Adam's average of squared gradients."""

    def __post_init__(self):
        if self.name not in ("adamw", "muon"):
            raise ValueError(f"name must be 'adamw' or 'muon', got {self.name!r}")
        if self.learning_rate <= 0 or self.max_grad_norm <= 0:
            raise ValueError(
                "learning_rate and max_grad_norm must be > 0, got "
                f"{self.learning_rate} and {self.max_grad_norm}"
            )
        if self.warmup_steps < 0:
            raise ValueError(f"warmup_steps must be >= 0, got {self.warmup_steps}")


@dataclasses.dataclass(frozen=True, kw_only=True)
class ComputeConfig:
    """How a pass is computed, and which parameters it trains."""

    dtype: str = "float32"
    """Type of the forward and backward pass, "float32" or "bfloat16"; norms, softmax
    and losses stay float32."""
    remat: bool = False
    """Whether a backward pass computes each layer again, which saves memory."""
    frozen: tuple[str, ...] = ()
    """Parameters that are not trained, by the start of their dotted path ("embed",
    "layers.0")."""
    extra_trainable: tuple[str, ...] = ()
    """Parameters that are trained besides the adapters of LoRA (new tokens need their
    embeddings), by the start of their dotted path."""
    ema_decay: float = 0.0
    """Decay an update of the moving average of the parameters, in [0, 1); 0 keeps
    none."""

    def __post_init__(self):
        if self.dtype not in ("float32", "bfloat16"):
            raise ValueError(
                f"dtype must be 'float32' or 'bfloat16', got {self.dtype!r}"
            )
        for name in ("frozen", "extra_trainable"):  # hashable, also where it is a list
            object.__setattr__(self, name, tuple(getattr(self, name)))
        if not 0 <= self.ema_decay < 1:
            raise ValueError(f"ema_decay must be in [0, 1), got {self.ema_decay}")


@dataclasses.dataclass(frozen=True, kw_only=True)
class FitConfig:
    """One supervised fit."""

    steps: int
    """Optimiser steps."""
    batch_rows: int = 32
    """Packed rows of a batch."""
    row_tokens: int = 128
    """Tokens of a row; up to 8 times as many where an example needs them."""
    optimizer: OptimizerConfig = OptimizerConfig()
    eval_every: int = 100
    """Steps between two rows of the curve, with the loss on held-out examples."""
    context_loss_weight: float = 0.0
    """Weight of the context's tokens in the loss; 0 trains on the targets alone. For a
    model trained from scratch, predicting the context too lowers the loss of the
    targets (docs/LOG.md, 2026-11-21, one seed)."""
    compute: ComputeConfig = ComputeConfig()
    lora: LoraConfig | None = None
    """Low-rank additions that are trained in place of the model's own parameters, and
    merged into it at the end; None trains the parameters (`--lora RANK`)."""

    def __post_init__(self):
        if min(self.steps, self.batch_rows, self.row_tokens, self.eval_every) < 1:
            raise ValueError(
                "steps, batch_rows, row_tokens and eval_every must be >= 1"
            )
        if self.context_loss_weight < 0:
            raise ValueError(
                f"context_loss_weight must be >= 0, got {self.context_loss_weight}"
            )
