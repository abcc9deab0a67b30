"""A model's matrices repacked by the native library, from the cache folder where they are there."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any

import numpy as np

from twostroke.backend.native_library import native_module
from twostroke.backend.packed import Bytes, PackedWeights, PackOne, cache_key, load_packed
from twostroke.backend.packed_folder import PackedFolder
from twostroke.errors import CapacityError
from twostroke.formats.ggml_types import GGMLType, row_bytes
from twostroke.model.weights import ModelWeights, Weight

_PROBE_SHAPE = 32, 256  # the smallest matrix that every format divides


def matrices_of(weights: ModelWeights) -> list[Weight]:
    """Return the matrices that a step multiplies by, in order of use; the output matrix last."""
    found = []
    for layer in weights.layers:
        found += [layer.q, layer.k, layer.v, layer.o, layer.gate, layer.up, layer.down]
    return [*found, weights.output]


def pack_weights(
    weights: ModelWeights,
    pool: Any,
    *,
    folder: PackedFolder | None = None,
    fingerprint: tuple[object, ...] = (),
    verify: bool = False,
) -> PackedWeights:
    """Map a model's repacked matrices from the cache folder, or repack them on a pool's threads.

    Raises:
        UnsupportedModel: a matrix that the kernels cannot take.
        CapacityError: the repacked weights do not fit into memory.
    """
    native = native_module()
    matrices = matrices_of(weights)
    key = ""
    if fingerprint:
        key = cache_key(fingerprint, _layout_probe(native, pool, (w.type for w in matrices)))
    try:
        return load_packed(
            matrices,
            pack=_packer(native, pool),
            packed_bytes=native.packed_bytes,
            allocate=native.huge_array,
            folder=folder,
            key=key,
            verify=verify,
        )
    except MemoryError:
        raise CapacityError(
            "the repacked weights do not fit into memory", remedy="Use a smaller model."
        ) from None


def _layout_probe(native: Any, pool: Any, kinds: Iterable[GGMLType]) -> str:
    """Return a hash of how this build packs these types: a changed layout gets another key."""
    digest = hashlib.sha256()
    n, k = _PROBE_SHAPE
    for kind in sorted(set(kinds)):
        nbytes = native.packed_bytes(int(kind), n, k)
        if nbytes is None:
            continue
        width = row_bytes(kind, k)
        out = np.zeros(nbytes, np.uint8)
        # Bytes without a pattern that a swap of two rows, blocks or nibbles would leave alone.
        rows = np.frombuffer(hashlib.shake_128(kind.name.encode()).digest(n * width), np.uint8)
        native.pack_matrix(pool, out, int(kind), rows, n, k, width)
        digest.update(f"{kind.name} {nbytes} ".encode() + out.tobytes())
    return digest.hexdigest()


def _packer(native: Any, pool: Any) -> PackOne:
    """Return the function that repacks one matrix on the threads of a pool."""

    def pack(out: Bytes, weight: Weight) -> None:
        n, k = weight.shape
        kind = int(weight.type)
        native.pack_matrix(pool, out, kind, weight.raw, n, k, row_bytes(kind, k))

    return pack
