"""Facts about a GGUF file from its header alone, for `show`; unknown is None.

Metadata is untrusted: a value of the wrong type or size counts as absent. This module knows the
names of keys, not how any family computes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from twostroke.dataclass import dataclass
from twostroke.formats.gguf import GGUFFile
from twostroke.formats.gguf_facts import ArchitectureFacts
from twostroke.formats.gguf_metadata import Value

# A file with one of these keys keeps another state than K and V: their number is not given.
_OTHER_STATE = ("attention.kv_lora_rank", "ssm.state_size", "wkv.head_size")


@dataclass(frozen=True, slots=True)
class TypeShare:
    """The part of a file that is stored in one tensor type."""

    type: str
    num_tensors: int
    nbytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GGUFSummary:
    """The facts. Units: bytes; kv_values_per_token counts all layers, as if none had a window."""

    name: str | None
    architecture: str | None
    license: str | None
    num_parameters: int
    tensor_bytes: int
    file_bytes: int
    types: tuple[TypeShare, ...]
    context_length: int | None
    num_layers: int | None
    num_heads: int | None
    num_kv_heads: tuple[int, ...] | None  # one number where all layers agree
    key_length: int | None
    value_length: int | None
    kv_values_per_token: int | None
    sliding_window: int | None
    tokenizer: str | None
    pre_tokenizer: str | None
    vocab_size: int | None
    has_chat_template: bool


def summarize(model: GGUFFile) -> GGUFSummary:
    """Return the facts of an open model."""
    metadata = model.metadata
    architecture = _text(metadata, "general.architecture")
    facts = ArchitectureFacts(metadata, architecture or "")
    tokens = metadata.get("tokenizer.ggml.tokens")
    heads = facts.per_layer("attention.head_count_kv") or facts.per_layer("attention.head_count")
    return GGUFSummary(
        name=_text(metadata, "general.name"),
        architecture=architecture,
        license=_text(metadata, "general.license"),
        num_parameters=sum(math.prod(info.shape) for info in model.tensors.values()),
        tensor_bytes=sum(info.nbytes for info in model.tensors.values()),
        file_bytes=model.fingerprint().size_bytes,
        types=_type_shares(model),
        context_length=facts.number("context_length"),
        num_layers=facts.number("block_count"),
        num_heads=facts.number("attention.head_count"),
        num_kv_heads=tuple(heads[:1] if len(set(heads)) == 1 else heads) if heads else None,
        key_length=_head_length(facts, "attention.key_length"),
        value_length=_head_length(facts, "attention.value_length"),
        kv_values_per_token=_kv_values_per_token(facts, heads),
        sliding_window=facts.number("attention.sliding_window"),
        tokenizer=_text(metadata, "tokenizer.ggml.model"),
        pre_tokenizer=_text(metadata, "tokenizer.ggml.pre"),
        vocab_size=len(tokens) if isinstance(tokens, list) else None,
        has_chat_template=bool(_text(metadata, "tokenizer.chat_template")),
    )


def _type_shares(model: GGUFFile) -> tuple[TypeShare, ...]:
    """Return the tensor types, the one with most bytes first."""
    counts: dict[str, list[int]] = {}
    for info in model.tensors.values():
        entry = counts.setdefault(info.type.name, [0, 0])
        entry[0] += 1
        entry[1] += info.nbytes
    shares = (TypeShare(name, number, nbytes) for name, (number, nbytes) in counts.items())
    return tuple(sorted(shares, key=lambda share: -share.nbytes))


def _text(metadata: Mapping[str, Value], key: str) -> str | None:
    value = metadata.get(key)
    return value if isinstance(value, str) and value else None


def _head_length(facts: ArchitectureFacts, key: str) -> int | None:
    """Return the size of one attention head's K or V; without the key, width by heads."""
    length = facts.number(key)
    if length is not None:
        return length
    width, heads = facts.number("embedding_length"), facts.number("attention.head_count")
    return width // heads if width is not None and heads is not None else None


def _kv_values_per_token(facts: ArchitectureFacts, kv_heads: list[int] | None) -> int | None:
    """Return the values of K and V of one token."""
    key, value = (_head_length(facts, f"attention.{part}_length") for part in ("key", "value"))
    has_other_state = any(facts.value(name) is not None for name in _OTHER_STATE)
    if kv_heads is None or key is None or value is None or has_other_state:
        return None
    shared = facts.number("attention.shared_kv_layers") or 0
    return (key + value) * sum(kv_heads[: max(len(kv_heads) - shared, 0)])
