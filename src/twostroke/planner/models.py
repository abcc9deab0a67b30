"""MODEL of `plan` and `predict` becomes a shape: a local file, a config.json, the hub, or flags."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from twostroke.dataclass import dataclass
from twostroke.errors import (
    ConfigError,
    CorruptCheckpoint,
    ModelError,
    ModelNotFound,
    UnsupportedModel,
)
from twostroke.formats.gguf import open_gguf
from twostroke.formats.quant import DEQUANTIZABLE
from twostroke.model.gguf_config import config_from_gguf
from twostroke.model.hub import resolve
from twostroke.model.names import HubName, parse_name
from twostroke.model.weights import vocab_size_of
from twostroke.planner.remote_header import remote_shape
from twostroke.predict.gguf_shape import shape_of_gguf
from twostroke.predict.hf_shape import shape_of_hf_config
from twostroke.predict.shape import LayerShape, ModelShape, WeightGroup, WeightSizes

_MOST_JSON_BYTES = 1 << 22


@dataclass(frozen=True, slots=True)
class PlannedModel:
    """A shape and where it is from. path: the local GGUF file. runs_here: our engine takes it."""

    shape: ModelShape
    path: Path | None = None
    runs_here: bool = False


def find_model(name: str, environ: Mapping[str, str] | None = None) -> PlannedModel:
    """Return the shape behind a name without downloading weights.

    Raises:
        ModelError: not found, broken, or the hub cannot be asked.
    """
    if name.lower().endswith(".json"):
        return PlannedModel(shape_of_hf_config(read_json(Path(name).expanduser()), name=name))
    try:
        parsed = parse_name(name)
    except ModelNotFound:
        parsed = None  # `resolve` says more, such as a file of that name here
    if isinstance(parsed, HubName):
        try:
            return _local(resolve(name, download=False).path, name)
        except ModelNotFound:
            return PlannedModel(remote_shape(parsed, environ))
    return _local(resolve(name, download=False).path, name)


def read_json(path: Path) -> dict[str, Any]:
    """Return a JSON object from a file of bounded size.

    Raises:
        ModelNotFound: no such file. CorruptCheckpoint: no JSON object, or too large.
    """
    try:
        with path.open("rb") as file:
            data = file.read(_MOST_JSON_BYTES + 1)
    except OSError as error:
        raise ModelNotFound("cannot read the config", value=f"{path}: {error.strerror}") from None
    if len(data) > _MOST_JSON_BYTES:
        raise CorruptCheckpoint("the config is too large", limit=f"{_MOST_JSON_BYTES} bytes")
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        raise CorruptCheckpoint(f"{path.name} is no JSON") from None
    if not isinstance(value, dict):
        raise CorruptCheckpoint(f"{path.name} is no JSON object")
    return value


def _local(path: Path, name: str) -> PlannedModel:
    with open_gguf(path) as file:
        shape = shape_of_gguf(file.metadata, file.tensors.values(), name=name)
        try:
            config_from_gguf(file.metadata, vocab_size=vocab_size_of(file))
            runs = all(info.type in DEQUANTIZABLE for info in file.tensors.values())
        except (UnsupportedModel, ModelError):
            runs = False
    return PlannedModel(shape, path, runs)


@dataclass(frozen=True, slots=True, kw_only=True)
class ShapeFlags:
    """A shape said on the command line. Units: weights in bytes; params in values."""

    layers: int | None = None
    kv_heads: int | None = None
    head_dim: int | None = None
    heads: int | None = None
    hidden_size: int | None = None
    intermediate_size: int | None = None
    vocab_size: int | None = None
    params: float | None = None
    bits: float | None = None
    weights_bytes: float | None = None
    window: int | None = None
    full_every: int | None = None

    @property
    def is_empty(self) -> bool:
        """Whether nothing was said."""
        return all(getattr(self, name) is None for name in self.__dataclass_fields__)


def shape_of_flags(flags: ShapeFlags) -> ModelShape:
    """Return the shape that the flags tell; a fact that they leave out is missing, never a default.

    Raises:
        ConfigError: a number out of range.
    """
    for name in flags.__dataclass_fields__:
        value = getattr(flags, name)
        if value is not None and not 0 < value < 1e16:
            raise ConfigError(f"--{name.replace('_', '-')} cannot be this", value=value)
    if flags.layers is not None and flags.layers > 4096:
        raise ConfigError("--layers is out of range", value=flags.layers, limit=4096)
    needed = ("layers", "kv_heads", "head_dim")
    missing = [f"--{n.replace('_', '-')}" for n in needed if getattr(flags, n) is None]
    layers = None
    if flags.layers and flags.kv_heads and flags.head_dim:
        layers = tuple(_flag_layer(flags, i) for i in range(flags.layers))
    weights = _flag_weights(flags)
    if weights is None:
        missing.append("weights: --weights, or --params and --bits")
    return ModelShape(
        name="shape",
        layers=layers,
        hidden_size=flags.hidden_size,
        intermediate_size=flags.intermediate_size,
        vocab_size=flags.vocab_size,
        weights=weights,
        missing=tuple(missing),
    )


def _flag_layer(flags: ShapeFlags, index: int) -> LayerShape:
    assert flags.kv_heads and flags.head_dim
    slides = flags.window and (not flags.full_every or (index + 1) % flags.full_every)
    return LayerShape(
        heads=flags.heads or flags.kv_heads,
        kv_heads=flags.kv_heads,
        key_dim=flags.head_dim,
        value_dim=flags.head_dim,
        window=flags.window or 0 if slides else 0,
    )


def _flag_weights(flags: ShapeFlags) -> WeightSizes | None:
    num_bytes = flags.weights_bytes
    if num_bytes is None and flags.params is not None and flags.bits is not None:
        num_bytes = flags.params * flags.bits / 8
    if num_bytes is None:
        return None
    values = {"bf16": flags.params} if flags.params is not None else {}
    group = WeightGroup(num_bytes, values)
    return WeightSizes(total_bytes=num_bytes, body=group)
