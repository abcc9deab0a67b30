"""How many prompt tokens one step may prefill beside its streams, in predicted time.

Knows slices and the predictor, no requests.
"""

from __future__ import annotations

from twostroke.scheduler.policy import MIN_CHUNK, UNKNOWN_CHUNK, largest_chunk, step_budget_s
from twostroke.step import NO_BLOCKS, Phase, Slice, StepPlan, StepPredictor


class StepBudget:
    """The prefill slices of one step in planning, and the time and tokens left for more."""

    def __init__(
        self,
        predictor: StepPredictor,
        streams: tuple[Slice, ...],
        *,
        target_s: float,
        prefill_chunk: int,
    ) -> None:
        self.slices: list[Slice] = []
        self._predictor = predictor
        self._streams = streams
        self._tokens_left = prefill_chunk
        self._budget_s: float | None = None  # without streams only the tokens are bounded
        if streams:
            decode_s = predictor.step_s(StepPlan(decode=streams))
            self._budget_s = step_budget_s(target_s, decode_s or 0.0)

    def add(self, chunk: Slice) -> None:
        """Take a slice into the step."""
        self.slices.append(chunk)
        self._tokens_left -= len(chunk.token_ids)

    def has_room(self) -> bool:
        """Whether another prompt's first tokens can join."""
        if not self.slices:
            return True
        if self._tokens_left < MIN_CHUNK:
            return False
        return self._budget_s is None or self._cost_s(MIN_CHUNK, 0) <= self._budget_s

    def chunk(self, start: int, num_left: int) -> int:
        """Return how many of a prompt's num_left tokens join; the step's first prompt gets some."""
        high = min(num_left, self._tokens_left)
        if self._budget_s is None or high <= 0:
            return high
        return largest_chunk(
            lambda n: self._cost_s(n, start),
            low=0 if self.slices else min(high, MIN_CHUNK),
            high=high,
            budget_s=self._budget_s,
        )

    def _cost_s(self, n: int, start: int) -> float:
        """Return the predicted time of the step with n more tokens."""
        prefill = (*self.slices, trial_slice(start, n))
        seconds = self._predictor.step_s(StepPlan(prefill=prefill, decode=self._streams))
        if seconds is not None:
            return seconds
        # Nothing measured yet: a small chunk is tried, so that something will be.
        return 0.0 if sum(len(s.token_ids) for s in prefill) <= UNKNOWN_CHUNK else float("inf")


def prefill_price_s(
    predictor: StepPredictor, start: int, num_tokens: int, prefill_chunk: int
) -> float | None:
    """Return the predicted time of prefilling [start, start + num_tokens) alone, in chunks."""
    total = 0.0
    for at in range(start, start + num_tokens, prefill_chunk):
        n = min(prefill_chunk, start + num_tokens - at)
        seconds = predictor.step_s(StepPlan(prefill=(trial_slice(at, n),)))
        if seconds is None:
            return None
        total += seconds
    return total


def trial_slice(start: int, n: int) -> Slice:
    """Return a prefill slice of [start, start + n) to ask the predictor about."""
    return Slice("", Phase.PREFILL, (0,) * n, start, NO_BLOCKS)
