"""A model's shape from the header of its GGUF file: exact tensor bytes, rules of each family.

Also of families that we do not run. Metadata is untrusted: a value of the wrong type counts as
absent, and an absent value stays unknown.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping

from twostroke.formats.gguf_facts import ArchitectureFacts
from twostroke.formats.gguf_metadata import Value
from twostroke.formats.gguf_tensors import TensorInfo
from twostroke.predict.shape import (
    LayerShape,
    ModelShape,
    WeightGroup,
    WeightSizes,
    unit_of,
)

_EXPERTS = re.compile(r"^blk\.\d+\.ffn_(gate|up|down|gate_up)_exps\.weight$")
_MATRIX = re.compile(r"^blk\.\d+\..*\.weight$")
# Local layers to one global one where the file does not say which slide (ggml's own reading).
_PERIODS = {"gemma2": 2, "gemma3": 6, "gpt-oss": 2, "cohere2": 4}
_ALL_SLIDE = ("phi3",)
_STATE_KEYS = ("ssm.state_size", "wkv.head_size")
_NO_CACHE = ("bert", "nomic-bert", "jina-bert-v2", "t5encoder")


def shape_of_gguf(
    metadata: Mapping[str, Value], tensors: Iterable[TensorInfo], *, name: str = "model"
) -> ModelShape:
    """Return the shape that a header tells; see the module's docstring."""
    family = metadata.get("general.architecture")
    family = family if isinstance(family, str) else ""
    facts = ArchitectureFacts(metadata, family)
    infos = tuple(tensors)
    missing: list[str] = []
    layers = _layers(facts, family, missing)
    embedding = next((t for t in infos if t.name == "token_embd.weight"), None)
    return ModelShape(
        name=name,
        layers=layers,
        hidden_size=facts.number("embedding_length"),
        intermediate_size=facts.number("feed_forward_length"),
        vocab_size=embedding.shape[0] if embedding and len(embedding.shape) == 2 else None,
        context_length=facts.number("context_length"),
        weights=_weights(infos),
        num_experts=facts.number("expert_count") or 0,
        experts_per_token=facts.number("expert_used_count") or 0,
        family=family or None,
        source="gguf",
        missing=tuple(missing),
    )


def _weights(infos: tuple[TensorInfo, ...]) -> WeightSizes:
    body: list[TensorInfo] = []
    experts: list[TensorInfo] = []
    lm_head = embedding = None
    for info in infos:
        if info.name == "token_embd.weight":
            embedding = info
        elif info.name == "output.weight":
            lm_head = info
        elif _EXPERTS.match(info.name):
            experts.append(info)
        elif _MATRIX.match(info.name) and len(info.shape) == 2:
            body.append(info)
    lm_head = lm_head or embedding  # a tied output matrix is the embedding table
    return WeightSizes(
        total_bytes=sum(info.nbytes for info in infos),
        body=_group(body),
        lm_head=_group([lm_head] if lm_head else []),
        experts=_group(experts),
    )


def _group(infos: Iterable[TensorInfo]) -> WeightGroup:
    values: dict[str, float] = {}
    num_bytes = 0
    for info in infos:
        unit = unit_of(info.type)
        values[unit] = values.get(unit, 0.0) + math.prod(info.shape)
        num_bytes += info.nbytes
    return WeightGroup(num_bytes, values)


def _layers(
    facts: ArchitectureFacts, family: str, missing: list[str]
) -> tuple[LayerShape, ...] | None:
    heads, width = facts.per_layer("attention.head_count"), facts.number("embedding_length")
    kv_heads = facts.per_layer("attention.head_count_kv") or heads
    for key, value in (
        ("block_count", facts.num_layers),
        ("attention.head_count", heads),
        ("embedding_length", width),
    ):
        if value is None:
            missing.append(key)
    if missing or heads is None or kv_heads is None or width is None:
        return None
    if family in _NO_CACHE:
        return tuple(LayerShape() for _ in heads)
    if any(facts.value(key) is not None for key in _STATE_KEYS):
        missing.append("recurrent state of this family")
        return None
    windows = _windows(facts, family, len(heads), missing)
    if windows is None:
        return None
    latent = _latent_dim(facts)
    key_dim, value_dim = _head_dims(facts, width // max(heads[0], 1), is_latent=latent > 0)
    shared = facts.number("attention.shared_kv_layers") or 0
    return tuple(
        LayerShape(
            heads=heads[i],
            kv_heads=kv_heads[i],
            key_dim=key_dim,
            value_dim=value_dim,
            window=windows[i],
            latent_dim=latent if kv_heads[i] else 0,
            shares_kv=i >= len(heads) - shared,
        )
        for i in range(len(heads))
    )


def _head_dims(facts: ArchitectureFacts, plain: int, *, is_latent: bool) -> tuple[int, int]:
    """Return the sizes of K and V that one attention head multiplies; plain: without any key.

    With MLA these are the long forms, while the cache keeps the latent row.
    """
    key_dim = facts.number("attention.key_length") or plain
    value_dim = facts.number("attention.value_length") or plain
    if is_latent:
        key_dim = facts.number("attention.key_length_mla") or key_dim
        value_dim = facts.number("attention.value_length_mla") or value_dim
    return key_dim, value_dim


def _latent_dim(facts: ArchitectureFacts) -> int:
    """Return the row that absorbed MLA keeps; 0 for files from before that (un-absorbed K and V).

    Files made since then say the long forms in key_length_mla.
    """
    rank, rope = facts.number("attention.kv_lora_rank"), facts.number("rope.dimension_count")
    if rank is None or rope is None or facts.number("attention.key_length_mla") is None:
        return 0
    return rank + rope


def _windows(
    facts: ArchitectureFacts, family: str, num_layers: int, missing: list[str]
) -> list[int] | None:
    window = facts.number("attention.sliding_window")
    if not window:
        return [0] * num_layers
    pattern = facts.value("attention.sliding_window_pattern")
    if isinstance(pattern, list) and len(pattern) == num_layers:
        return [window if slides else 0 for slides in pattern]
    period = facts.number("attention.sliding_window_pattern") or _PERIODS.get(family)
    if period:
        return [window if i % period < period - 1 else 0 for i in range(num_layers)]
    if family in _ALL_SLIDE:
        return [window] * num_layers
    if family in ("llama", "qwen2", "qwen3", "mistral"):
        return [0] * num_layers  # these files name a window that no engine applies
    missing.append("attention.sliding_window_pattern")
    return None
