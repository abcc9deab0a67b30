"""Decides what the next step computes, under a budget of predicted time. Sole writer of Sequence.

Every running stream is in every step. Beside the streams one prompt is prefilled at a time, in
chunks that keep the streams' time per token; a second prompt joins only where the first leaves
room in the step. Memory is promised at admission (docs/laws.md, law 3).
Source: iteration-level batching, Yu et al. 2022 (Orca, OSDI); chunked prefill, Agrawal et al.
  2023, arXiv:2308.16369.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from collections.abc import Sequence as Ids

from twostroke.cache.manager import KVCacheManager
from twostroke.cache.radix import token_key
from twostroke.config import EngineConfig
from twostroke.errors import CapacityError, RequestError, TwoStrokeError
from twostroke.events import Event
from twostroke.request import FinishReason, Request, SamplingParams
from twostroke.scheduler.budget import prefill_price_s
from twostroke.scheduler.memory import SequenceMemory
from twostroke.scheduler.outlook import Outlook
from twostroke.scheduler.planning import StepPlanner
from twostroke.scheduler.policy import GROWTH_TOKENS, max_total_tokens, promised_tokens
from twostroke.scheduler.progress import PrefillProgress, Progress
from twostroke.scheduler.queues import Queues
from twostroke.scheduler.sequence import Sequence
from twostroke.scheduler.updater import SequenceUpdater
from twostroke.scheduler.wait import MAX_WAIT_S, MAX_WAITING, WaitLimit
from twostroke.step import BLOCK_SIZE, StepPlan, StepPredictor, StepResult

MAX_GAP_SHARE = 0.25  # most of a step's time that is added for the engine's own work before it


class Scheduler:
    """Requests in, step plans out. Not thread-safe: one thread calls it."""

    def __init__(
        self,
        config: EngineConfig,
        cache: KVCacheManager,
        predictor: StepPredictor,
        *,
        clock: Callable[[], float],
        max_waiting: int = MAX_WAITING,
        max_wait_s: float = MAX_WAIT_S,
        growth_tokens: int = GROWTH_TOKENS,
        block_bytes: int | None = None,
    ) -> None:
        assert config.max_model_len is not None, "the config must be resolved"
        self._max_model_len = config.max_model_len
        self._prefill_chunk = config.prefill_chunk
        self._cache = cache
        self._predictor = predictor
        self._growth_tokens = growth_tokens
        self._block_bytes = block_bytes
        self._queues = Queues()
        self._events: list[Event] = []
        self._wait = WaitLimit(predictor, config, max_waiting=max_waiting, max_wait_s=max_wait_s)
        self._memory = SequenceMemory(
            cache, growth_tokens=growth_tokens, prefill_price_s=self.predicted_prefill_s
        )
        self._planner = StepPlanner(
            config, self._queues, self._memory, predictor, clock=clock, events=self._events
        )
        self._updater = SequenceUpdater(
            self._queues, self._memory, clock=clock, events=self._events, block_bytes=block_bytes
        )
        self._serial = 0
        self._last_end_s: float | None = None  # of the step before, while there is work

    # Facts

    @property
    def has_work(self) -> bool:
        """Whether any request is waiting or running."""
        return len(self._queues) > 0

    @property
    def num_waiting(self) -> int:
        """Requests that hold no memory: new or preempted."""
        return len(self._queues.waiting)

    @property
    def num_running(self) -> int:
        """Requests that hold memory."""
        return len(self._queues.running)

    @property
    def num_blocks(self) -> int:
        """KV blocks of the pool."""
        return self._cache.num_blocks

    @property
    def max_model_len(self) -> int:
        """The longest prompt plus output of one request, in tokens."""
        return self._max_model_len

    @property
    def prefill_chunk(self) -> int:
        """Most prompt tokens of one step."""
        return self._prefill_chunk

    @property
    def num_used_blocks(self) -> int:
        """KV blocks that are not free."""
        return self._cache.num_used_blocks

    @property
    def prefill_progress(self) -> Mapping[str, PrefillProgress]:
        """The progress of each prompt whose request has not ended, by request id: a snapshot."""
        return self._updater.board.snapshot()

    def get(self, request_id: str) -> Sequence | None:
        """Return a sequence that has not ended."""
        return self._queues.get(request_id)

    def sequences(self) -> tuple[Sequence, ...]:
        """Return all sequences that have not ended, in the order of their arrival."""
        return self._queues.all()

    def predicted_wait_s(self) -> float | None:
        """Return how long a request added now would wait for admission, None while unknown."""
        return self._wait.predicted_s(self._queues)

    def predicted_prefill_s(self, start: int, num_tokens: int) -> float | None:
        """Return the predicted time of prefilling [start, start + num_tokens) alone."""
        return prefill_price_s(self._predictor, start, num_tokens, self._prefill_chunk)

    def outlook(
        self, prompt_token_ids: Ids[int], params: SamplingParams, salt: str = ""
    ) -> Outlook:
        """Return what a request would meet now; nothing changes, the cache's order included.

        Raises:
            RequestError: no prompt tokens, or an id that is no 32-bit number.
        """
        key, num_prompt = _checked_key(prompt_token_ids), len(prompt_token_ids)
        cached = self._cache.match(salt, key).num_tokens
        refusal: TwoStrokeError | None = None
        kv_bytes = None
        try:
            limit = self._total_limit(params, num_prompt)
            self._wait.check(self._queues)
            promised = promised_tokens(
                num_tokens=num_prompt,
                max_num_tokens=limit,
                is_declared=params.max_tokens is not None,
                num_preemptions=0,
                growth=self._growth_tokens,
            )
            blocks = -(-promised // BLOCK_SIZE) - cached // BLOCK_SIZE
            kv_bytes = blocks * self._block_bytes if self._block_bytes is not None else None
        except (RequestError, CapacityError) as error:
            refusal = error
        return Outlook(
            num_prompt=num_prompt,
            num_cached=cached,
            num_waiting=self.num_waiting,
            queue_s=self.predicted_wait_s(),
            kv_bytes=kv_bytes,
            streams=tuple(s.num_tokens for s in self._queues.running if s.output_token_ids),
            refusal=refusal,
        )

    # Requests in and out

    def add(self, request: Request) -> None:
        """Queue a request, or refuse it.

        Raises:
            RequestError: no prompt tokens, an id that is no 32-bit number, or a request id in use.
            ContextTooLong: prompt and output do not fit the context.
            OutOfBlocks: they can never fit the KV pool.
            QueueFull: too many wait, or for too long; retry_after_s says when to return.
        """
        if self._queues.get(request.id) is not None:
            raise RequestError("a request of this id is running", value=request.id, param="id")
        key = _checked_key(request.prompt_token_ids)
        limit = self._total_limit(request.params, request.num_prompt_tokens)
        self._wait.check(self._queues)
        self._serial += 1
        sequence = Sequence(request, key, max_num_tokens=limit, serial=self._serial)
        self._queues.add(sequence)
        self._updater.board.put(sequence)

    def _total_limit(self, params: SamplingParams, num_prompt: int) -> int:
        return max_total_tokens(
            params,
            num_prompt,
            max_model_len=self._max_model_len,
            num_blocks=self._cache.num_blocks,
        )

    def finish(
        self, request_id: str, reason: FinishReason, *, num_tokens_kept: int | None = None
    ) -> Sequence | None:
        """End a request from outside, keeping its first output tokens; None if it has ended."""
        sequence = self._queues.get(request_id)
        if sequence is not None:
            self._updater.finish(sequence, reason, num_tokens_kept)
        return sequence

    def take_events(self) -> list[Event]:
        """Return what happened since the last call, in order."""
        if not self._events:
            return []
        events = self._events[:]
        self._events.clear()
        return events

    # One step

    def plan(self) -> StepPlan:
        """Choose what the next step computes; empty only when there is no work."""
        return self._planner.plan()

    def update(
        self, plan: StepPlan, result: StepResult, *, is_cold: bool = False
    ) -> list[Progress]:
        """Take in a step's result: append tokens, share computed blocks, end finished requests."""
        self._cache.copies_done()
        if not is_cold and plan.slices:
            self._predictor.observe(plan, self._turn_s(result))
        progress = self._updater.take(plan, result)
        self._last_end_s = result.end_s if self.has_work else None
        return progress

    def _turn_s(self, result: StepResult) -> float:
        """Return the time of a step and of the engine's own work before it, as requests wait it.

        A longer gap is a caller's pause and not counted beyond MAX_GAP_SHARE.
        """
        step_s = result.end_s - result.start_s
        if self._last_end_s is None:
            return step_s
        gap_s = result.start_s - self._last_end_s
        return step_s + min(max(gap_s, 0.0), MAX_GAP_SHARE * step_s)


def _checked_key(token_ids: Ids[int]) -> bytes:
    if not token_ids:
        raise RequestError("the prompt has no tokens", param="prompt")
    try:
        return token_key(token_ids)
    except struct.error as error:
        raise RequestError("a prompt token id is out of range", param="prompt") from error
