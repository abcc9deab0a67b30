"""The reference model behind the same door as the native one: slow, for tests and for proof."""

from __future__ import annotations

import numpy as np

from twostroke.backend.arrays import SAMPLE_RESULT, Results, StepArrays
from twostroke.backend.reference import ReferenceModel, Sequences
from twostroke.config import KvType
from twostroke.errors import ShapeError
from twostroke.model.config import ModelConfig
from twostroke.model.ops import Batch
from twostroke.model.weights import ModelWeights
from twostroke.sampling import row_sampling, sample


class EagerModel:
    """Implements `arrays.Backend` on NumPy."""

    def __init__(
        self,
        config: ModelConfig,
        weights: ModelWeights,
        *,
        num_blocks: int,
        kv_type: KvType | None = None,
        max_tokens: int = 512,
    ) -> None:
        self.num_blocks, self.max_tokens = num_blocks, max_tokens
        self.model = ReferenceModel(config, weights, num_blocks=num_blocks, kv_type=kv_type)

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
            result = results[i]
            result["logprob"] = result["target_logprob"] = np.nan
            if target >= 0:
                row = logits[i].astype(np.float64)
                best = row.max()
                result["target_logprob"] = row[target] - best - np.log(np.exp(row - best).sum())
            if spec is None:
                continue
            chosen = sample(logits[i], row_sampling(spec))
            result["token_id"] = chosen.token_id
            if chosen.logprob is not None:
                top = chosen.logprob.top
                result["logprob"], result["num_top"] = chosen.logprob.logprob, len(top)
                result["top_ids"][: len(top)] = [token_id for token_id, _ in top]
                result["top_logprobs"][: len(top)] = [logprob for _, logprob in top]
        return results

    def logits(self, arrays: StepArrays) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
        """Run a step without sampling and return the logits of the wanted rows.

        Shapes: returns [R, V]
        """
        for block in arrays.new_blocks.tolist():
            self.model.cache.zero(block)
        for source, target, num_tokens in arrays.copies.tolist():
            self.model.cache.copy(source, target, num_tokens)
        sequences = Sequences(
            arrays.cu_seqlens_q.astype(np.int64),
            arrays.context_lens.astype(np.int64),
            arrays.block_tables.astype(np.int64),
        )
        return self.model.forward(
            Batch(
                arrays.token_ids.astype(np.int64),
                arrays.positions.astype(np.int64),
                arrays.slot_mapping,
                sequences,
                arrays.logit_rows.astype(np.int64),
            )
        )
