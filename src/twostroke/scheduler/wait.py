"""How long the queue takes at this engine's recent speed, and when it is full."""

from __future__ import annotations

import math

from twostroke.errors import QueueFull
from twostroke.scheduler.entry import Entry
from twostroke.step import StepPlan

RATE_MEMORY = 0.9


class WaitLimit:
    """Bounds the queue in length and in predicted time. Sole writer of its rates.

    Units: max_wait_s in seconds.
    """

    def __init__(self, *, max_waiting: int, max_wait_s: float, max_num_seqs: int) -> None:
        self._max_waiting = max_waiting
        self._max_wait_s = max_wait_s
        self._max_num_seqs = max_num_seqs
        self._prefill_token_s: float | None = None
        self._decode_step_s: float | None = None

    def observe(self, plan: StepPlan, seconds: float) -> None:
        """Take note of a measured step."""
        if plan.prefill:
            per_token = seconds / sum(len(s.token_ids) for s in plan.prefill)
            self._prefill_token_s = _blend(self._prefill_token_s, per_token)
        else:
            self._decode_step_s = _blend(self._decode_step_s, seconds)

    def predicted_s(self, waiting: list[Entry], running: list[Entry]) -> float | None:
        """Return how long a request added now would wait; None while no speed is known.

        All prompts ahead come first; where no slot or no memory is free, all answers too.
        """
        everyone = waiting + running
        num_prefill = sum(e.num_prefill_left - bool(e.request.output_token_ids) for e in everyone)
        is_crowded = len(everyone) >= self._max_num_seqs or (
            bool(waiting) and waiting[0].failed_at is not None
        )
        num_output = sum(e.num_output_left for e in everyone) if is_crowded else 0
        if not num_prefill and not num_output:
            return 0.0
        if self._prefill_token_s is None or (num_output and self._decode_step_s is None):
            return None
        decode_s = (self._decode_step_s or 0.0) * num_output / max(len(running), 1)
        return num_prefill * self._prefill_token_s + decode_s

    def check(self, waiting: list[Entry], running: list[Entry]) -> None:
        """Refuse one more request where too much waits already.

        Raises:
            QueueFull: retry_after_s is the predicted time until one place is free.
        """
        if len(waiting) < self._max_waiting and self._max_wait_s == math.inf:
            return  # an offline caller's thousands are not summed for each of them
        wait_s = self.predicted_s(waiting, running) if waiting else None
        if len(waiting) >= self._max_waiting:
            raise QueueFull(
                "too many requests wait",
                value=len(waiting),
                limit=self._max_waiting,
                remedy="Come back later.",
                retry_after_s=self._retry_s((wait_s or 0.0) / len(waiting)),
            )
        if wait_s is not None and wait_s > self._max_wait_s:
            raise QueueFull(
                "the predicted wait is too long",
                value=f"{wait_s:.0f} s",
                limit=f"{self._max_wait_s:.0f} s",
                remedy="Come back later.",
                retry_after_s=self._retry_s(wait_s - self._max_wait_s),
            )

    def _retry_s(self, seconds: float) -> float:
        return min(max(seconds, 1.0), self._max_wait_s)


def _blend(old: float | None, new: float) -> float:
    return new if old is None else RATE_MEMORY * old + (1 - RATE_MEMORY) * new
