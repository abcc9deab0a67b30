"""What a request would meet if it came now: a look at the scheduler that changes nothing.

Taken on the scheduler's own thread; what is predicted from it may be predicted elsewhere.
"""

from __future__ import annotations

from twostroke.dataclass import dataclass
from twostroke.scheduler.budget import StepBudget
from twostroke.step import Phase, Predictor, Slice, StepPlan

_MOST_STEPS = 4096  # of a prefill that is played through; a longer one is not predicted


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlook:
    """The state that decides a new request's wait. Units: tokens; seconds; bytes.

    queue_s None: no speed is known yet. kv_bytes: what it would be promised beyond what is cached.
    streams: context of each running stream. refusal: why it would be refused at the door.
    """

    num_prompt: int
    num_cached: int
    num_waiting: int
    queue_s: float | None
    kv_bytes: int | None
    streams: tuple[int, ...]
    refusal: Exception | None = None


def prefill_beside_s(
    predictor: Predictor,
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
        decode = tuple(Slice(str(i), Phase.DECODE, (0,), c, ()) for i, c in enumerate(contexts))
        budget = StepBudget(predictor, decode, target_s=target_s, prefill_chunk=prefill_chunk)
        n = max(budget.chunk(start, end - start), 1)
        piece = Slice("", Phase.PREFILL, (0,) * n, start, ())
        seconds = predictor.step_s(StepPlan(prefill=(piece,), decode=decode))
        if seconds is None:
            return None
        total += seconds
        start += n
        contexts = [context + 1 for context in contexts]
    return None
