"""A model's sizes and switches: one frozen record that the forward pass and the planner read.

Knows no file and no weights. Families differ by the values of its fields, not by subclasses.
"""

from __future__ import annotations

from twostroke.dataclass import dataclass
from twostroke.model.rope import RopeConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """Sizes and switches of a decoder. The names are those of Hugging Face configs."""

    family: str
    name: str
    num_layers: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    context_length: int
    norm_eps: float
    rope: RopeConfig
    local_rope: RopeConfig | None = None  # of sliding layers, where it differs
    sliding_window: int = 0  # 0: none
    sliding_layers: tuple[bool, ...] = ()
    attention_scale: float = 0.0
    attention_soft_cap: float = 0.0  # 0: none
    logit_soft_cap: float = 0.0
    embedding_scale: float = 1.0
    activation: str = "silu"  # silu | gelu_tanh

    def window(self, layer: int) -> int:
        """Return the sliding window of a layer in tokens, 0 for full attention."""
        return self.sliding_window if self.sliding_layers and self.sliding_layers[layer] else 0

    def layer_rope(self, layer: int) -> RopeConfig:
        """Return the rotary embedding of a layer."""
        return self.local_rope if self.local_rope and self.window(layer) else self.rope
