"""The keys of a Hugging Face config.json, with their aliases and documented defaults.

Source: the configuration classes of transformers (LlamaConfig, Gemma3TextConfig, DeepseekV3Config).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from twostroke.errors import CorruptCheckpoint

_LARGEST = 1 << 31
_DEFAULTS: dict[str, dict[str, Any]] = {
    "gemma": {"head_dim": 256},
    "gemma2": {"head_dim": 256, "sliding_window": 4096, "sliding_window_pattern": 2},
    "gemma3_text": {
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "vocab_size": 262208,
        "sliding_window": 4096,
        "sliding_window_pattern": 6,
        "max_position_embeddings": 131072,
    },
    "gpt_oss": {"sliding_window": 128, "sliding_window_pattern": 2},
    "cohere2": {"sliding_window_pattern": 4},
}
_ALIASES = {
    "num_hidden_layers": ("n_layer", "n_layers", "num_layers"),
    "num_attention_heads": ("n_head", "n_heads"),
    "hidden_size": ("n_embd", "d_model"),
    "intermediate_size": ("n_inner", "ffn_dim"),
    "max_position_embeddings": ("n_positions", "max_seq_len"),
    "num_experts": ("num_local_experts", "n_routed_experts"),
    "num_experts_per_tok": ("num_experts_per_token",),
    "torch_dtype": ("dtype",),
}


class ConfigKeys:
    """Reads values. assumed: defaults that were taken; missing: needed keys that are absent."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        inner = config.get("text_config")
        self.has_other_parts = isinstance(inner, Mapping) or "vision_config" in config
        self.values = {**config, **inner} if isinstance(inner, Mapping) else dict(config)
        kind = self.values.get("model_type")
        self.kind = kind if isinstance(kind, str) else ""
        if self.kind == "gemma3":
            self.kind = "gemma3_text"
        self.missing: list[str] = []
        self.assumed: list[str] = []

    def raw(self, key: str) -> Any:
        """Return a value as the config has it, else the documented default of the model_type."""
        for name in (key, *_ALIASES.get(key, ())):
            if self.values.get(name) is not None:
                return self.values[name]
        default = _DEFAULTS.get(self.kind, {}).get(key)
        if default is not None:
            self.note(f"{key} = {default}, the default of {self.kind}")
        return default

    def note(self, text: str) -> None:
        """Add an assumption once."""
        if text not in self.assumed:
            self.assumed.append(text)

    def number(self, key: str) -> int | None:
        """Return a whole number, None where it is absent.

        Raises:
            CorruptCheckpoint: another type, or out of range.
        """
        value = self.raw(key)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < _LARGEST:
            raise CorruptCheckpoint(
                f"config key {key} is no usable number",
                value=ascii(value)[:60],
                limit=f"an integer in [0, {_LARGEST})",
            )
        return value

    def needed(self, key: str) -> int | None:
        """Return a number above 0; where it is absent, note it as missing."""
        value = self.number(key)
        if not value:
            self.missing.append(key)
            return None
        return value
