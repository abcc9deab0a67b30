"""How long a request added now would wait for admission, and when the queue is full."""

from __future__ import annotations

import math

from twostroke.config import EngineConfig
from twostroke.errors import QueueFull
from twostroke.scheduler.budget import prefill_price_s
from twostroke.scheduler.queues import Queues
from twostroke.scheduler.sequence import Sequence
from twostroke.step import NO_BLOCKS, Phase, Slice, StepPlan, StepPredictor

MAX_WAITING = 1024
MAX_WAIT_S = 600.0


class WaitLimit:
    """Bounds the queue in length and in predicted time.

    Units: max_wait_s in seconds; infinite for a caller that waits for its own requests.
    """

    def __init__(
        self,
        predictor: StepPredictor,
        config: EngineConfig,
        *,
        max_waiting: int,
        max_wait_s: float,
    ) -> None:
        self._predictor = predictor
        self._max_waiting = max_waiting
        self._max_wait_s = max_wait_s
        self._max_num_seqs = config.max_num_seqs
        self._prefill_chunk = config.prefill_chunk

    def predicted_s(self, queues: Queues) -> float | None:
        """Return how long a request added now would wait; None while a needed speed is unknown.

        All prompts ahead come first; where no place or no memory is free, all answers too. With
        an unbounded wait nothing is predicted: the caller's thousands are not summed every step.
        """
        if self._max_wait_s == math.inf:
            return None
        total = 0.0
        for sequence in (*queues.waiting, *queues.running):
            if sequence.is_decoding:
                continue
            seconds = self._prefill_left_s(sequence)
            if seconds is None:
                return None
            total += seconds
        if not self._is_crowded(queues):
            return total
        decode_s = self._decode_left_s(queues)
        return None if decode_s is None else total + decode_s

    def _is_crowded(self, queues: Queues) -> bool:
        waiting = queues.waiting
        if len(waiting) + len(queues.running) >= self._max_num_seqs:
            return True
        return bool(waiting) and waiting[0].num_available_at_refusal is not None

    def _prefill_left_s(self, sequence: Sequence) -> float | None:
        """Return the predicted time of the rest of a prompt, as a share of the whole."""
        whole_s, num_tokens = sequence.predicted_prefill_s, sequence.num_tokens
        if whole_s is None:
            whole_s = prefill_price_s(self._predictor, 0, num_tokens, self._prefill_chunk)
            sequence.predicted_prefill_s = whole_s
        return None if whole_s is None else whole_s * sequence.num_prefill_left / num_tokens

    def _decode_left_s(self, queues: Queues) -> float | None:
        """Return the predicted time of all answers ahead, decoded side by side."""
        everyone = (*queues.waiting, *queues.running)
        num_output = sum(sequence.num_output_left for sequence in everyone)
        if not num_output:
            return 0.0
        batch = queues.running or queues.waiting[:1]
        streams = tuple(
            Slice(s.id, Phase.DECODE, (0,), max(s.num_tokens - 1, 0), NO_BLOCKS) for s in batch
        )
        step_s = self._predictor.step_s(StepPlan(decode=streams))
        return None if step_s is None else step_s * num_output / len(batch)

    def check(self, queues: Queues) -> None:
        """Refuse one more request where too many wait, or for too long.

        Raises:
            QueueFull: retry_after_s is the predicted time until one place is free.
        """
        num_waiting = len(queues.waiting)
        if num_waiting < self._max_waiting and self._max_wait_s == math.inf:
            return
        wait_s = self.predicted_s(queues) if num_waiting else None
        if num_waiting >= self._max_waiting:
            raise QueueFull(
                "too many requests wait",
                value=num_waiting,
                limit=self._max_waiting,
                remedy="Come back later.",
                retry_after_s=self._retry_s((wait_s or 0.0) / num_waiting),
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
