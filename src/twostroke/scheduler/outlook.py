"""The state that a request would meet if it were added now.

Taken on the scheduler's thread without changing anything; predictions from it may run elsewhere.
"""

from __future__ import annotations

from twostroke.dataclass import dataclass
from twostroke.scheduler.budget import StepBudget, trial_slice
from twostroke.step import NO_BLOCKS, Phase, Slice, StepPlan, StepPredictor

_MOST_STEPS = 4096  # of a prefill that is played through; a longer one is not predicted


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlook:
    """The facts that decide a new request's wait. Units: tokens; seconds; bytes.

    queue_s None: no speed is known yet. kv_bytes: memory promised beyond the cached prefix.
    streams: context of each running stream. refusal: the error that its admission would raise.
    """

    num_prompt: int
    num_cached: int
    num_waiting: int
    queue_s: float | None
    kv_bytes: int | None
    streams: tuple[int, ...]
    refusal: Exception | None = None


def prefill_beside_s(
    predictor: StepPredictor,
    streams: tuple[int, ...],
    start: int,
    end: int,
    *,
    target_s: float,
    prefill_chunk: int,
) -> float | None:
    """Return the predicted time of prefilling [start, end) while streams of these contexts run.

    Every step is sized as the scheduler sizes it. None: unknown, or more steps than are played.
    """
    contexts = list(streams)
    total = 0.0
    for _ in range(_MOST_STEPS):
        if start >= end:
            return total
        decode = tuple(Slice("", Phase.DECODE, (0,), c, NO_BLOCKS) for c in contexts)
        budget = StepBudget(predictor, decode, target_s=target_s, prefill_chunk=prefill_chunk)
        n = max(budget.chunk(start, end - start), 1)
        plan = StepPlan(prefill=(trial_slice(start, n),), decode=decode)
        seconds = predictor.step_s(plan)
        if seconds is None:
            return None
        total += seconds
        start += n
        contexts = [context + 1 for context in contexts]
    return None
