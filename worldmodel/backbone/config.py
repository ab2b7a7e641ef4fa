"""The shape of a decoder, in the words of a Hugging Face config.json."""

import dataclasses

ATTENTION, CONVOLUTION = "full_attention", "conv"
FAMILIES = ("llama", "lfm2")


@dataclasses.dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """A decoder: RMSNorm, RoPE, grouped queries, SwiGLU.

    `model_type` "llama" attends in every layer. "lfm2" normalises queries and keys and
    mixes tokens as `layer_types` says, by attention or by a gated convolution over
    the last `conv_L_cache` tokens; empty means attention everywhere.
    """

    vocab_size: int
    hidden_size: int = 128
    num_hidden_layers: int = 4
    num_attention_heads: int = 4
    num_key_value_heads: int = 4
    head_dim: int = 32
    intermediate_size: int = 384
    rope_theta: float = 10_000.0
    rms_norm_eps: float = 1e-5
    tie_word_embeddings: bool = True
    model_type: str = "llama"
    layer_types: tuple[str, ...] = ()
    conv_L_cache: int = 3

    def __post_init__(self):
        for field in dataclasses.fields(self):
            value = getattr(self, field.name)
            if isinstance(value, int | float) and not isinstance(value, bool):
                if value <= 0:
                    raise ValueError(f"{field.name} must be > 0, got {value}")
        if self.num_attention_heads % self.num_key_value_heads:
            raise ValueError(
                "num_attention_heads must be a multiple of num_key_value_heads, got "
                f"{self.num_attention_heads} and {self.num_key_value_heads}"
            )
        if self.head_dim % 2:
            raise ValueError(f"head_dim must be even for RoPE, got {self.head_dim}")
        if self.model_type not in FAMILIES:
            raise ValueError(
                f"model_type must be one of {list(FAMILIES)}, got {self.model_type!r}"
            )
        known = {ATTENTION} if self.model_type == "llama" else {ATTENTION, CONVOLUTION}
        wrong = set(self.mixers) - known
        if wrong or len(self.mixers) != self.num_hidden_layers:
            raise ValueError(
                f"layer_types of {self.model_type} must be {self.num_hidden_layers} of "
                f"{sorted(known)}, got {list(self.layer_types)}"
            )

    @property
    def mixers(self) -> tuple[str, ...]:
        """How each layer mixes tokens."""
        return self.layer_types or (ATTENTION,) * self.num_hidden_layers

    @property
    def qk_norm(self) -> bool:
        """Whether queries and keys are normalised head by head."""
        return self.model_type == "lfm2"
