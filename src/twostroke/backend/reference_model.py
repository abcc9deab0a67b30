"""The reference ops as a model with its cache, and as a backend: slow; tests compare with it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from twostroke.backend.arrays import SAMPLE_RESULT, Results, StepArrays
from twostroke.backend.reference import Floats, Ints, ReferenceCache, ReferenceOps, Sequences
from twostroke.backend.runner import ModelRunner
from twostroke.config import EngineConfig, KvType
from twostroke.errors import ConfigError, ShapeError
from twostroke.model.config import ModelConfig
from twostroke.model.decoder import forward
from twostroke.model.loaded import LoadedModel
from twostroke.model.ops import Batch
from twostroke.model.weights import ModelWeights
from twostroke.predict.kv import KvFormat, kv_block_bytes
from twostroke.predict.shape import config_layers
from twostroke.sampling import row_sampling, sample
from twostroke.step import SampleSpec


class ReferenceModel:
    """Implements `arrays.CachedModel` on NumPy.

    kv_type: None keeps K and V in float32, as goldens are.
    """

    def __init__(
        self,
        config: ModelConfig,
        weights: ModelWeights,
        *,
        num_blocks: int,
        kv_type: KvType | None = None,
        max_tokens: int = 512,
    ) -> None:
        self.config, self.weights = config, weights
        self.num_blocks, self.max_tokens = num_blocks, max_tokens
        self.cache = ReferenceCache(config, num_blocks, kv_type)
        self._ops = ReferenceOps(config)

    def forward(self, batch: Batch[Ints, Sequences]) -> Floats:
        """Return the logits of the wanted rows.

        Shapes: returns [R, V]
        """
        return forward(self._ops, self.config, self.weights, batch, self.cache)

    def step(self, arrays: StepArrays) -> Results:
        """Prepare blocks, run the forward pass, sample the wanted rows.

        Shapes: returns [R] SAMPLE_RESULT
        Raises:
            ShapeError: more tokens than a step may hold.
        """
        if len(arrays.token_ids) > self.max_tokens:
            raise ShapeError(
                "too many tokens in a step", value=len(arrays.token_ids), limit=self.max_tokens
            )
        logits = self.logits(arrays)
        results = np.zeros(len(arrays.specs), SAMPLE_RESULT)
        for i, (spec, target) in enumerate(zip(arrays.specs, arrays.targets, strict=True)):
            _fill(results[i], logits[i], spec, target)
        return results

    def logits(self, arrays: StepArrays) -> Floats:
        """Run a step without sampling and return the logits of the wanted rows.

        Shapes: returns [R, V]
        """
        for block in arrays.new_blocks.tolist():
            self.cache.zero(block)
        for source, target, num_tokens in arrays.copies.tolist():
            self.cache.copy(source, target, num_tokens)
        sequences = Sequences(
            arrays.cu_seqlens_q.astype(np.int64),
            arrays.context_lens.astype(np.int64),
            arrays.block_tables.astype(np.int64),
        )
        return self.forward(
            Batch(
                arrays.token_ids.astype(np.int64),
                arrays.positions.astype(np.int64),
                arrays.slot_mapping,
                sequences,
                arrays.logit_rows.astype(np.int64),
            )
        )


def _fill(result: np.void, logits: Floats, spec: SampleSpec | None, target: int) -> None:
    """Write one wanted row's choice, its log-probabilities and that of its target."""
    result["logprob"] = result["target_logprob"] = np.nan
    if target >= 0:
        row = logits.astype(np.float64)
        best = row.max()
        result["target_logprob"] = row[target] - best - np.log(np.exp(row - best).sum())
    if spec is None:
        return
    chosen = sample(logits, row_sampling(spec))
    result["token_id"] = chosen.token_id
    if chosen.logprob is not None:
        top = chosen.logprob.top
        result["logprob"], result["num_top"] = chosen.logprob.logprob, len(top)
        result["top_ids"][: len(top)] = [token_id for token_id, _ in top]
        result["top_logprobs"][: len(top)] = [logprob for _, logprob in top]


class ReferenceBackend:
    """Implements `choose.Backend` on NumPy."""

    summary = "reference backend (NumPy float32)"
    profile = None
    packed_bytes = None

    def __init__(self, model: LoadedModel, config: EngineConfig) -> None:
        self._model, self._config = model, config
        # K and V lie in memory as float32 values, rounded to the KV type
        self.block_bytes = kv_block_bytes(config_layers(model.config), KvFormat("f32"))

    def probe(self) -> Callable[[], tuple[float, float]]:
        """Refuse: NumPy's peaks are not measured."""
        raise ConfigError("this backend has no peaks to fit to", remedy="Use the native backend.")

    def runner(self, num_blocks: int, *, max_tokens: int, max_positions: int) -> ModelRunner:
        """Return a runner whose steps hold at most max_tokens tokens."""
        model = ReferenceModel(
            self._model.config,
            self._model.weights,
            num_blocks=num_blocks,
            kv_type=self._config.kv_type,
            max_tokens=max_tokens,
        )
        return ModelRunner(model)
