"""Decoders that are trained from scratch, by name."""

import dataclasses

from worldmodel.backbone.config import ATTENTION, CONVOLUTION, ModelConfig


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelShape:
    """A decoder trained from scratch. Its tokenizer is trained on the episodes.

    A convolution before the attention: without it a model of this size learns later
    to look words up (docs/LOG.md, 2026-11-21, one seed).
    """

    vocab_size: int = 640
    hidden_size: int = 128
    layers: tuple[str, ...] = (CONVOLUTION, ATTENTION)
    num_heads: int = 4
    taps: int = 5
    intermediate_size: int = 384

    def model(self, vocab_size: int) -> ModelConfig:
        """Return the decoder's configuration for a tokenizer of that size."""
        return ModelConfig(
            vocab_size=vocab_size,
            hidden_size=self.hidden_size,
            num_hidden_layers=len(self.layers),
            num_attention_heads=self.num_heads,
            num_key_value_heads=self.num_heads,
            head_dim=self.hidden_size // self.num_heads,
            intermediate_size=self.intermediate_size,
            model_type="lfm2",
            qk_norm=True,
            conv_L_cache=self.taps,
            layer_types=self.layers,
        )


MODELS = {
    "nano": ModelShape(
        vocab_size=448, hidden_size=32, num_heads=1, intermediate_size=64
    ),
    "micro": ModelShape(),
    "milli": ModelShape(vocab_size=1024, layers=(CONVOLUTION, ATTENTION) * 2),
    "mini": ModelShape(
        vocab_size=1024,
        hidden_size=192,
        num_heads=6,
        intermediate_size=512,
        layers=(CONVOLUTION, ATTENTION) * 2,
    ),
}
