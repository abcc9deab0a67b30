"""Golden values, and the reference run on the model that they are from."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from twostroke.backend.reference import Sequences
from twostroke.backend.reference_model import ReferenceModel
from twostroke.config import KvType
from twostroke.formats.gguf import GGUFFile, open_gguf
from twostroke.formats.quant import dequantize
from twostroke.model.config import ModelConfig
from twostroke.model.gguf_config import config_from_gguf
from twostroke.model.ops import Batch
from twostroke.model.weights import ModelWeights, load_weights, vocab_size_of
from twostroke.step import BLOCK_SIZE

GOLDEN = Path(__file__).parent / "golden"


def golden(model: str) -> dict[str, Any]:
    """Return the golden data of a model by its file stem."""
    data: dict[str, Any] = json.loads((GOLDEN / f"{model}.json").read_text(encoding="utf-8"))
    return data


def open_model(path: Path) -> tuple[GGUFFile, ModelConfig, ModelWeights]:
    """Open a GGUF file and return it with its config and its weights."""
    file = open_gguf(path)
    factors: tuple[float, ...] = ()
    info = file.tensors.get("rope_freqs.weight")
    if info is not None:
        factors = tuple(dequantize(file.data(info.name), info.type, info.shape).tolist())
    config = config_from_gguf(file.metadata, vocab_size=vocab_size_of(file), freq_factors=factors)
    return file, config, load_weights(file, config)


class ReferenceRun:
    """One sequence on the reference backend, its blocks numbered in order."""

    def __init__(
        self,
        config: ModelConfig,
        weights: ModelWeights,
        *,
        max_tokens: int,
        kv_type: KvType | None = None,
    ) -> None:
        self.num_blocks = -(-max_tokens // BLOCK_SIZE)
        self.model = ReferenceModel(config, weights, num_blocks=self.num_blocks, kv_type=kv_type)
        self.length = 0

    def reset(self) -> None:
        """Start a new sequence. The old K and V stay in the cache; attention must not read them."""
        self.length = 0

    def feed(self, token_ids: list[int], rows: list[int] | None = None) -> np.ndarray:
        """Compute tokens and return the logits of `rows`, by default the last: [R, V]."""
        n = len(token_ids)
        positions = np.arange(self.length, self.length + n)
        self.length += n
        sequences = Sequences(
            np.array([0, n]), np.array([self.length]), np.arange(self.num_blocks)[None]
        )
        wanted = np.array([n - 1] if rows is None else rows)
        batch = Batch(np.array(token_ids), positions, positions, sequences, wanted)
        return self.model.forward(batch)


def nll(logits: np.ndarray, targets: list[int]) -> float:
    """Return the mean negative log-likelihood of targets under rows of logits, in nats."""
    x = logits.astype(np.float64)
    top = x.max(axis=-1, keepdims=True)
    total = np.log(np.exp(x - top).sum(axis=-1)) + top[:, 0]
    return float(np.mean(total - x[np.arange(len(targets)), targets]))
