"""How K and V are stored: bytes of a row, for our own types and for those of other engines.

Source: block sizes of the GGUF format for ggml's types; vLLM's documentation for fp8 types.
"""

from __future__ import annotations

from twostroke.dataclass import dataclass
from twostroke.errors import ConfigError
from twostroke.formats.ggml_types import GGMLType, row_bytes

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
