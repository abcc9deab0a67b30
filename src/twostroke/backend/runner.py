"""The runner on a real model: a plan becomes arrays, the model runs them, rows become tokens."""

from __future__ import annotations

import time
from collections.abc import Callable

from twostroke.backend.arrays import CachedModel, Results
from twostroke.backend.inputs import WantedRow, step_arrays
from twostroke.errors import KernelError
from twostroke.request import TokenLogprob
from twostroke.step import Sampled, StepPlan, StepResult


class ModelRunner:
    """Implements `step.Runner` on a model with its cache."""

    def __init__(self, model: CachedModel, *, clock: Callable[[], float] = time.monotonic) -> None:
        self.model = model
        self.num_blocks = model.num_blocks
        self._clock = clock

    def run(self, plan: StepPlan) -> StepResult:
        """Compute every slice of the plan and sample where asked.

        Units: start_s and end_s on the runner's clock, array building included.
        Raises:
            KernelError: no logit of a wanted row is finite.
            ShapeError: more tokens than the model takes in a step, or blocks it does not have.
            InvalidSampling: logit_bias names an id outside the vocabulary.
        """
        start_s = self._clock()
        arrays, wanted = step_arrays(plan)
        results = self.model.step(arrays)
        end_s = self._clock()
        sampled: dict[str, Sampled] = {}
        scores: dict[str, list[float]] = {s.request_id: [] for s in plan.slices if s.score}
        if len(wanted) == 1 and wanted[0].spec is not None:
            sampled[wanted[0].request_id] = _sampled(results, 0, wanted[0])
            wanted = []
        if any(row.target >= 0 for row in wanted):
            targets = results["target_logprob"].tolist()
        for i, row in enumerate(wanted):
            if row.target >= 0:
                scores[row.request_id].append(targets[i])
            else:
                sampled[row.request_id] = _sampled(results, i, row)
        return StepResult(
            sampled=sampled,
            scores={name: tuple(values) for name, values in scores.items()},
            start_s=start_s,
            end_s=end_s,
        )


def _sampled(results: Results, i: int, row: WantedRow) -> Sampled:
    result = results[i]
    token_id = int(result["token_id"])
    if token_id < 0:
        raise KernelError("no token has a finite logit: the model or its weights are broken")
    if row.spec is None or row.spec.params.logprobs is None:
        return Sampled(token_id)
    n = int(result["num_top"])
    pairs = zip(result["top_ids"][:n].tolist(), result["top_logprobs"][:n].tolist(), strict=True)
    return Sampled(token_id, TokenLogprob(token_id, float(result["logprob"]), tuple(pairs)))
