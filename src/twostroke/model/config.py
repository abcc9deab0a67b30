"""A model's sizes and switches: one frozen record that the forward pass and the planner read.

Knows no file and no weights. Families differ by the values of its fields, not by subclasses. The
tables of the rotary embedding are computed here in float64, once for every backend.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from twostroke.dataclass import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeConfig:
    """How queries and keys are rotated: the angle of each pair of values, by position.

    Source: Su et al. 2021, arXiv:2104.09864; YaRN: Peng et al. 2023, arXiv:2309.00071.
    """

    base: float
    pairs: int
    interleaved: bool  # pairs are (2i, 2i + 1), as GGUF stores llama; else (i, i + pairs)
    scaling: str = "none"  # none | linear | yarn
    factor: float = 1.0
    original_context: int = 0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    attention_factor: float = 1.0
    freq_factors: tuple[float, ...] = ()  # llama3: each inverse frequency is divided by its factor

    def inverse_frequencies(self) -> npt.NDArray[np.float64]:
        """Return radians per position for each pair.

        Shapes: returns [pairs] float64
        """
        index = np.arange(self.pairs, dtype=np.float64)
        plain = self.base ** (-index / self.pairs)
        if self.freq_factors:
            plain = plain / np.asarray(self.freq_factors, dtype=np.float64)
        if self.scaling == "linear":
            return plain / self.factor
        if self.scaling == "yarn":
            ramp = self._yarn_extrapolation(index)
            return plain / self.factor * (1.0 - ramp) + plain * ramp
        return plain

    def _yarn_extrapolation(self, index: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        def pair_turning(rotations: float) -> float:
            ratio = self.original_context / (rotations * 2.0 * math.pi)
            return self.pairs * math.log(ratio) / math.log(self.base)

        low = max(math.floor(pair_turning(self.beta_fast)), 0)
        high = min(math.ceil(pair_turning(self.beta_slow)), 2 * self.pairs - 1)
        return 1.0 - np.clip((index - low) / max(high - low, 0.001), 0.0, 1.0)

    def amplitude(self) -> float:
        """Return the factor of cos and sin: YaRN's attention temperature."""
        if self.scaling == "yarn" and self.factor > 1.0:
            return self.attention_factor * (1.0 + 0.1 * math.log(self.factor))
        return self.attention_factor

    def table(self, positions: int) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
        """Return cos and sin of every position from 0.

        Shapes: both [positions, pairs] float32
        """
        angles = np.arange(positions, dtype=np.float64)[:, None] * self.inverse_frequencies()
        cos, sin = np.cos(angles) * self.amplitude(), np.sin(angles) * self.amplitude()
        return cos.astype(np.float32), sin.astype(np.float32)


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
