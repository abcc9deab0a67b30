"""Values of the keys `tokenizer.ggml.*`, each checked for type, length and range.

Source: the GGUF specification (ggml, docs/gguf.md).
"""

from __future__ import annotations

from collections.abc import Mapping

from twostroke.errors import CorruptCheckpoint

PREFIX = "tokenizer.ggml."


def string_array(metadata: Mapping[str, object], key: str, limit: int) -> list[str]:
    """Return a non-empty array of strings.

    Raises:
        CorruptCheckpoint: the key is missing, its array empty, too long or of another type.
    """
    value = metadata.get(PREFIX + key)
    if not isinstance(value, (list, tuple)) or not value:
        raise CorruptCheckpoint(f"{PREFIX}{key} is missing or not an array of strings")
    if len(value) > limit:
        raise CorruptCheckpoint(f"{PREFIX}{key} is too long", value=len(value), limit=limit)
    if set(map(type, value)) != {str}:
        raise CorruptCheckpoint(f"{PREFIX}{key} holds values that are not strings")
    return list(value)


def number_array(metadata: Mapping[str, object], key: str, length: int) -> list[int]:
    """Return an array of numbers, one for each token; empty when the key is absent.

    Raises:
        CorruptCheckpoint: the array has another type or length.
    """
    value = metadata.get(PREFIX + key)
    if value is None:
        return []
    if hasattr(value, "tolist"):
        value = value.tolist()
    if not isinstance(value, (list, tuple)) or not set(map(type, value)) <= {int, float}:
        raise CorruptCheckpoint(f"{PREFIX}{key} is not an array of numbers")
    if len(value) != length:
        raise CorruptCheckpoint(
            f"{PREFIX}{key} does not have one value for each token", value=len(value), limit=length
        )
    return list(value)


def token_id(metadata: Mapping[str, object], key: str, vocab_size: int) -> int | None:
    """Return a token id, None when the key is absent.

    Raises:
        CorruptCheckpoint: the value is not a whole number below the vocabulary's size.
    """
    value = metadata.get(PREFIX + key)
    if value is None or value == 0xFFFFFFFF:  # some writers store "none" as -1 in 32 bits
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < vocab_size:
        raise CorruptCheckpoint(
            f"{PREFIX}{key} is not an id of the vocabulary", value=value, limit=vocab_size - 1
        )
    return value


def flag(metadata: Mapping[str, object], key: str, *, default: bool) -> bool:
    """Return a boolean, the default when the key is absent.

    Raises:
        CorruptCheckpoint: the value has another type.
    """
    value = metadata.get(PREFIX + key, default)
    if not isinstance(value, bool):
        raise CorruptCheckpoint(f"{PREFIX}{key} is not a boolean", value=repr(value)[:64])
    return value
