"""The result of a step taken in: new tokens, shared blocks, finished requests."""

from __future__ import annotations

from collections.abc import Callable

from twostroke.events import Event, Finished
from twostroke.request import FinishReason
from twostroke.scheduler.memory import SequenceMemory
from twostroke.scheduler.progress import Progress, ProgressBoard
from twostroke.scheduler.queues import Queues
from twostroke.scheduler.sequence import Sequence
from twostroke.step import BLOCK_SIZE, Sampled, StepPlan, StepResult


class SequenceUpdater:
    """Appends tokens and ends sequences. Finished events go to `events`, progress to `board`.

    Units: block_bytes in bytes a KV block; None: unknown.
    """

    def __init__(
        self,
        queues: Queues,
        memory: SequenceMemory,
        *,
        clock: Callable[[], float],
        events: list[Event],
        block_bytes: int | None,
    ) -> None:
        self._queues = queues
        self._memory = memory
        self.board = ProgressBoard()
        self._clock = clock
        self._events = events
        self._block_bytes = block_bytes

    def take(self, plan: StepPlan, result: StepResult) -> list[Progress]:
        """Take in the result of a step; return the progress of each sequence that got a token."""
        return self._after_prefill(plan, result) + self._after_decode(plan, result)

    def _after_prefill(self, plan: StepPlan, result: StepResult) -> list[Progress]:
        progress: list[Progress] = []
        for s in plan.prefill:
            sequence = self._queues.get(s.request_id)
            assert sequence is not None
            sequence.num_computed_tokens = s.end
            is_done = s.end == sequence.num_tokens
            self._memory.commit(sequence, with_tail=is_done)
            if is_done and not sequence.output_token_ids:
                self._memory.remember_prompt(sequence)
            self.board.put(sequence)
            if s.sample is not None:
                progress.append(self._append(sequence, result.sampled[s.request_id]))
            elif is_done:
                self.finish(sequence, FinishReason.LENGTH)
                progress.append(Progress(sequence, None))
        return progress

    def _after_decode(self, plan: StepPlan, result: StepResult) -> list[Progress]:
        progress: list[Progress] = []
        for s in plan.decode:
            sequence = self._queues.get(s.request_id)
            assert sequence is not None
            sequence.num_computed_tokens = end = s.start + 1
            if not end % BLOCK_SIZE:
                self._memory.commit(sequence)
            progress.append(self._append(sequence, result.sampled[s.request_id]))
        return progress

    def _append(self, sequence: Sequence, sampled: Sampled) -> Progress:
        token_id = sampled.token_id
        sequence.output_token_ids.append(token_id)
        if token_id in sequence.end_ids:
            self.finish(sequence, FinishReason.STOP)
        elif token_id in sequence.stop_ids:
            self.finish(sequence, FinishReason.STOP)
            return Progress(sequence, sampled, token_id)
        elif sequence.num_tokens >= sequence.max_num_tokens:
            self.finish(sequence, FinishReason.LENGTH)
        return Progress(sequence, sampled)

    def finish(
        self, sequence: Sequence, reason: FinishReason, num_tokens_kept: int | None = None
    ) -> None:
        """End a sequence, keeping its first output tokens; None: all of them."""
        is_trusted = reason is not FinishReason.ERROR
        num_blocks = self._memory.release(sequence, is_trusted=is_trusted)
        self._queues.finish(sequence)
        self.board.drop(sequence.id)
        if num_tokens_kept is not None:
            del sequence.output_token_ids[num_tokens_kept:]
        sequence.finish_reason = reason
        kv_bytes = num_blocks * self._block_bytes if self._block_bytes is not None else None
        self._events.append(
            Finished(
                sequence.id,
                self._clock(),
                reason,
                sequence.num_tokens,
                kv_bytes,
                sequence.num_output_tokens,
            )
        )
