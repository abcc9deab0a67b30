"""The one count of KV bytes, for our own types and for those of other engines.

A count follows from a layer's shape and the KV type; how many tokens an engine keeps in a layer is
that engine's rule (planner/memory.py). Our pool keeps every token in every layer, sliding or not.
Source: block sizes of the GGUF format for ggml's types; vLLM's documentation for fp8 types.
"""

from __future__ import annotations

from collections.abc import Iterable

from twostroke.dataclass import dataclass
from twostroke.errors import ConfigError
from twostroke.formats.ggml_types import GGMLType, row_bytes
from twostroke.predict.shape import LayerShape
from twostroke.step import BLOCK_SIZE

_GGML = {
    "q8_0": GGMLType.Q8_0,
    "q5_1": GGMLType.Q5_1,
    "q5_0": GGMLType.Q5_0,
    "q4_1": GGMLType.Q4_1,
    "q4_0": GGMLType.Q4_0,
    "iq4_nl": GGMLType.IQ4_NL,
}
_PLAIN_BYTES = {"f32": 4, "bf16": 2, "f16": 2, "fp8": 1}
_DS_MLA_ROW = 656  # 512 fp8 values, 16 bytes of scales, 64 bf16 values
OURS = ("bf16", "f16", "q8")
KV_FORMATS = (*OURS, "f32", *_GGML, "fp8", "fp8_ds_mla")


@dataclass(frozen=True, slots=True)
class KvFormat:
    """One way to store K and V, by name."""

    name: str

    @property
    def is_ours(self) -> bool:
        """Whether this program's cache can store it."""
        return self.name in OURS

    @property
    def unit(self) -> str:
        """Unit that our kernels multiply it with: int8, bf16 or fp32."""
        return {"q8": "int8", "bf16": "bf16"}.get(self.name, "fp32")

    def row_bytes(self, num_heads: int, head_dim: int) -> float:
        """Return the bytes of one token's K (or V) of one layer.

        Raises:
            ShapeError: the row is not a whole number of the type's blocks.
            ConfigError: a format that stores MLA rows only.
        """
        values = num_heads * head_dim
        if self.name == "q8":  # a float scale per token and head
            return values + 4 * num_heads
        if self.name in _GGML:
            return row_bytes(_GGML[self.name], values)
        if self.name == "fp8_ds_mla":
            if values != 576:
                raise ConfigError("fp8_ds_mla stores MLA rows of 576 values", value=values)
            return _DS_MLA_ROW
        return values * _PLAIN_BYTES[self.name]


def kv_format(name: str) -> KvFormat:
    """Return the format of that name.

    Raises:
        ConfigError: unknown; never a default.
    """
    if name not in KV_FORMATS:
        raise ConfigError("unknown KV type", value=name, limit=", ".join(KV_FORMATS))
    return KvFormat(name)


def layer_token_bytes(layer: LayerShape, kv: KvFormat) -> float:
    """Return the bytes that attention in this layer reads of one token.

    Raises:
        ShapeError: a row that the KV type's blocks do not divide.
    """
    if layer.latent_dim:
        return kv.row_bytes(1, layer.latent_dim)
    key = kv.row_bytes(layer.kv_heads, layer.key_dim)
    return key + kv.row_bytes(layer.kv_heads, layer.value_dim)


def kv_bytes_per_token(layers: Iterable[LayerShape], kv: KvFormat) -> float:
    """Return the bytes that one token takes over all layers; a layer that shares KV adds none.

    Raises:
        ShapeError: a row that the KV type's blocks do not divide.
    """
    return sum(layer_token_bytes(layer, kv) for layer in layers if layer.keeps_kv)


def kv_block_bytes(layers: Iterable[LayerShape], kv: KvFormat) -> int:
    """Return the bytes of one block of BLOCK_SIZE tokens over all layers of our pool.

    Raises:
        ShapeError: a row that the KV type's blocks do not divide.
    """
    return int(BLOCK_SIZE * kv_bytes_per_token(layers, kv))
