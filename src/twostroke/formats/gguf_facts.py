"""Numbers that a GGUF file gives about its own architecture, where nothing depends on them.

Metadata is untrusted: here a value of the wrong type or size counts as absent. (Reading a model to
run it refuses such a value instead.)
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeGuard

from twostroke.formats.gguf_metadata import Value

_MAX_LAYERS = 4096
_LARGEST = 1 << 31


class ArchitectureFacts:
    """Values of the keys that begin with the architecture's name."""

    def __init__(self, metadata: Mapping[str, Value], architecture: str) -> None:
        self._metadata, self._architecture = metadata, architecture
        layers = self.number("block_count")
        self.num_layers = layers if layers is not None and layers <= _MAX_LAYERS else None

    def value(self, key: str) -> Value | None:
        """Return a value as it is stored."""
        return self._metadata.get(f"{self._architecture}.{key}")

    def number(self, key: str) -> int | None:
        """Return a positive whole number."""
        value = self.value(key)
        if isinstance(value, int) and not isinstance(value, bool) and 0 < value < _LARGEST:
            return value
        return None

    def per_layer(self, key: str) -> list[int] | None:
        """Return one number per layer; a single value counts for all, a list must have one each."""
        value, layers = self.value(key), self.num_layers
        if layers is None:
            return None
        if isinstance(value, list):
            numbers = [v for v in value if _is_count(v)]
            return numbers if len(numbers) == len(value) == layers else None
        one = self.number(key)
        return [one] * layers if one is not None else None


def _is_count(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < _LARGEST
