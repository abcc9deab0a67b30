"""Decides what the next step computes, under a budget of predicted time. Sole writer of Request.

Every running stream is in every step. Beside them one prompt is prefilled at a time, in chunks that keep the streams'
time per token; a second one joins only in what the first leaves of the step. Memory is promised at admission (DESIGN
law 3). Knows no text, no model and no bytes.
Source: iteration-level batching, Yu et al. 2022 (Orca, OSDI); chunked prefill, Agrawal et al. 2023, arXiv:2308.16369.
"""

from __future__ import annotations

import struct
from bisect import bisect_left, insort
from collections.abc import Callable
from typing import NamedTuple

from twostroke.cache.explain import CacheExplainer, Explanation
from twostroke.cache.manager import Allocation, KVCacheManager
from twostroke.cache.radix import common_tokens, token_key
from twostroke.config import EngineConfig
from twostroke.errors import QueueFull, RequestError
from twostroke.events import Admitted, Event, Finished, Preempted
from twostroke.request import FinishReason, Request, RequestState, SamplingParams
from twostroke.scheduler.entry import Entry, Rates
from twostroke.scheduler.policy import (
    GROWTH_TOKENS,
    MIN_CHUNK,
    UNKNOWN_CHUNK,
    is_decode,
    largest_chunk,
    promised_tokens,
    step_budget_s,
    total_limit,
)
from twostroke.step import (
    BLOCK_SIZE,
    BlockCopy,
    Phase,
    Predictor,
    Sampled,
    Slice,
    StepPlan,
    StepResult,
)

MAX_WAITING = 1024
MAX_WAIT_S = 600.0
MAX_HELD = 16  # waiting requests that are passed over because their head is being computed
MIN_SHARED_HEAD = BLOCK_SIZE  # a shorter common head is not worth waiting for


class Progress(NamedTuple):
    """What a step gave one request. request.finish_reason says whether it ended."""

    request: Request
    sampled: Sampled | None  # None: prefill only
    stop_reason: int | None = None  # the stop token id that ended it


class Scheduler:
    """Requests in, step plans out. Not thread-safe: one thread calls it."""

    def __init__(
        self,
        config: EngineConfig,
        cache: KVCacheManager,
        predictor: Predictor,
        *,
        clock: Callable[[], float],
        max_waiting: int = MAX_WAITING,
        max_wait_s: float = MAX_WAIT_S,
        block_bytes: int | None = None,
    ) -> None:
        assert config.max_model_len is not None, "the config must be resolved"
        self._config = config
        self._max_model_len = config.max_model_len
        self._cache = cache
        self._predictor = predictor
        self._clock = clock
        self._max_waiting = max_waiting
        self._max_wait_s = max_wait_s
        self._block_bytes = block_bytes
        self._explainer = CacheExplainer()
        self._rates = Rates()
        self._entries: dict[str, Entry] = {}
        self._waiting: list[Entry] = []  # in order
        self._running: list[Entry] = []  # in order
        self._events: list[Event] = []
        self._new_blocks: list[int] = []
        self._copies: list[BlockCopy] = []
        self._serial = 0

    # Requests in and out

    @property
    def has_work(self) -> bool:
        """Whether any request is waiting or running."""
        return bool(self._entries)

    @property
    def num_waiting(self) -> int:
        """Requests that hold no memory: new or preempted."""
        return len(self._waiting)

    @property
    def num_running(self) -> int:
        """Requests that hold memory."""
        return len(self._running)

    def get(self, request_id: str) -> Request | None:
        """Return a request that has not ended."""
        entry = self._entries.get(request_id)
        return entry.request if entry is not None else None

    def requests(self) -> tuple[Request, ...]:
        """Return all requests that have not ended, in the order they were added."""
        return tuple(e.request for e in self._entries.values())

    def max_prompt_tokens(self, params: SamplingParams) -> int:
        """Return the longest prompt that fits the context and the pool with these parameters."""
        room = min(self._max_model_len, self._cache.num_blocks * BLOCK_SIZE)
        return max(room - (params.max_tokens if params.max_tokens is not None else 1), 0)

    def add(self, request: Request) -> None:
        """Queue a request, or refuse it at the door.

        Raises:
            RequestError: no prompt tokens, an id that is no 32-bit number, or a request id in use.
            ContextTooLong: prompt and output do not fit the context.
            OutOfBlocks: they can never fit the KV pool.
            QueueFull: too many wait, or the predicted wait is too long; retry_after_s says when to return.
        """
        if request.id in self._entries:
            raise RequestError("a request of this id is running", value=request.id, param="id")
        if not request.prompt_token_ids:
            raise RequestError("the prompt has no tokens", param="prompt")
        limit = total_limit(
            request.params,
            request.num_prompt_tokens,
            max_model_len=self._max_model_len,
            num_blocks=self._cache.num_blocks,
        )
        try:
            key = token_key(request.prompt_token_ids)
        except struct.error as error:
            raise RequestError("a prompt token id is out of range", param="prompt") from error
        self._check_queue()
        self._serial += 1
        entry = Entry(request, key, limit, self._serial)
        self._entries[request.id] = entry
        insort(self._waiting, entry, key=_order)

    def _check_queue(self) -> None:
        wait_s = self.predicted_wait_s() if self._waiting else None
        is_full = len(self._waiting) >= self._max_waiting
        if not is_full and (wait_s is None or wait_s <= self._max_wait_s):
            return
        # A place is free when one request has left; the whole wait is needed where time is the limit.
        share = len(self._waiting) if is_full else 2
        raise QueueFull(
            "too many requests wait" if is_full else "the predicted wait is too long",
            value=len(self._waiting) if is_full else f"{wait_s:.0f} s",
            limit=self._max_waiting if is_full else f"{self._max_wait_s:.0f} s",
            remedy="Come back later.",
            retry_after_s=min(max((wait_s or 0.0) / share, 1.0), self._max_wait_s),
        )

    def predicted_wait_s(self) -> float | None:
        """Return how long a request added now would wait for admission, None while no speed is known."""
        everyone = self._waiting + self._running
        num_prefill = sum(
            max(e.request.num_tokens - e.request.num_computed_tokens, 0) for e in everyone
        )
        is_crowded = len(everyone) >= self._config.max_num_seqs or any(
            e.failed_at is not None for e in self._waiting[:1]
        )
        num_output = sum(e.num_output_left for e in everyone) if is_crowded else 0
        return self._rates.wait_s(num_prefill, num_output, len(self._running))

    def finish(
        self, request_id: str, reason: FinishReason, *, num_tokens_kept: int | None = None
    ) -> Request | None:
        """End a request from outside, keeping the first num_tokens_kept output tokens; None if it has ended."""
        entry = self._entries.get(request_id)
        if entry is None:
            return None
        self._finish(entry, reason, num_tokens_kept)
        return entry.request

    def take_events(self) -> list[Event]:
        """Return what happened since the last call, in order."""
        events, self._events = self._events, []
        return events

    # One step

    def plan(self) -> StepPlan:
        """Choose what the next step computes; empty only when there is no work."""
        self._new_blocks = []
        self._copies = []
        decode = self._plan_decode()
        prefill: list[Slice] = []
        if self._waiting or len(decode) < len(self._running):
            self._plan_prefill(prefill, decode)
        return StepPlan(tuple(prefill), tuple(decode), tuple(self._new_blocks), tuple(self._copies))

    def _plan_decode(self) -> list[Slice]:
        slices = []
        for entry in tuple(self._running):
            request = entry.request
            computed = request.num_computed_tokens
            output = request.output_token_ids
            if not output or request.state is not RequestState.RUNNING:
                continue
            if computed != len(request.prompt_token_ids) + len(output) - 1:
                continue
            if computed >= len(entry.table) * BLOCK_SIZE and not self._grow(entry, computed + 1):
                continue
            slices.append(self._decode_slice(entry))
        return slices

    @staticmethod
    def _decode_slice(entry: Entry) -> Slice:
        request = entry.request
        return Slice(
            request.id,
            Phase.DECODE,
            (request.output_token_ids[-1],),
            request.num_computed_tokens,
            entry.table,
            entry.sample_spec(),
        )

    def _grow(self, entry: Entry, num_tokens: int) -> bool:
        """Get a running request its next block, preempting younger ones if need be; False: it was preempted itself."""
        request_id = entry.request.id
        if num_tokens > self._cache.num_reserved_tokens(request_id):
            generous = min(num_tokens + GROWTH_TOKENS, max(num_tokens, entry.limit - 1))
            while not (
                self._cache.reserve(request_id, generous)
                or self._cache.reserve(request_id, num_tokens)
            ):
                victim = self._victim(entry)
                self._preempt(victim)
                if victim is entry:
                    return False
        self._extend(entry, num_tokens)
        return True

    def _victim(self, entry: Entry) -> Entry:
        """Return the youngest running request without a declared length, else the youngest; never one older."""
        younger = [e for e in self._running if e.order > entry.order]
        growing = [e for e in younger if not e.is_declared]
        return (growing or younger or [entry])[-1]

    def _extend(self, entry: Entry, num_tokens: int) -> None:
        blocks = self._cache.extend(entry.request.id, num_tokens)
        if blocks:
            entry.request.block_table.extend(blocks)
            entry.table = tuple(entry.request.block_table)
            self._new_blocks.extend(blocks)

    def _preempt(self, entry: Entry) -> None:
        request = entry.request
        self._events.append(Preempted(request.id, self._clock(), request.num_computed_tokens))
        self._cache.free(request)
        self._running.remove(entry)
        entry.key = entry.full_key()
        entry.table = ()
        entry.failed_at = None
        request.state = RequestState.PREEMPTED
        request.block_table = []
        request.num_computed_tokens = 0
        request.num_preemptions += 1
        insort(self._waiting, entry, key=_order)

    def _plan_prefill(self, prefill: list[Slice], decode: list[Slice]) -> None:
        """Add prefill slices in order until the step is full; the first one that is cut is the last."""
        streams = tuple(decode)
        budget_s = self._budget_s(streams)
        for entry in tuple(self._running):
            request = entry.request
            if request.num_computed_tokens >= request.num_tokens - bool(request.output_token_ids):
                continue  # a stream
            if not self._add_prefill(entry, prefill, streams, budget_s):
                return
        while self._waiting and len(self._running) < self._config.max_num_seqs:
            if prefill and not self._has_room(prefill, streams, budget_s):
                return
            admitted = self._admit_next()
            if admitted is None:
                return
            request = admitted.request
            if is_decode(
                num_output=request.num_output_tokens,
                num_tokens=request.num_tokens,
                num_computed=request.num_computed_tokens,
            ):
                self._extend(admitted, request.num_tokens)
                decode.append(self._decode_slice(admitted))
            elif not self._add_prefill(admitted, prefill, streams, budget_s):
                return

    def _budget_s(self, streams: tuple[Slice, ...]) -> float | None:
        if not streams:
            return None
        decode_s = self._predictor.step_s(StepPlan(decode=streams))
        return step_budget_s(self._config.target_tpot_s, decode_s or 0.0)

    def _has_room(
        self, prefill: list[Slice], streams: tuple[Slice, ...], budget_s: float | None
    ) -> bool:
        if _num_tokens(prefill) + MIN_CHUNK > self._config.prefill_chunk:
            return False
        return budget_s is None or self._cost_s(prefill, streams, MIN_CHUNK, 0) <= budget_s

    def _add_prefill(
        self,
        entry: Entry,
        prefill: list[Slice],
        streams: tuple[Slice, ...],
        budget_s: float | None,
    ) -> bool:
        """Plan the next chunk of a prompt; return whether all of it fits and others may follow."""
        request = entry.request
        start = request.num_computed_tokens
        left = request.num_tokens - start
        high = min(left, self._config.prefill_chunk - _num_tokens(prefill))
        n = high
        if budget_s is not None and high > 0:
            n = largest_chunk(
                lambda n: self._cost_s(prefill, streams, n, start),
                low=0 if prefill else min(high, MIN_CHUNK),
                high=high,
                budget_s=budget_s,
            )
        if n <= 0:
            return False
        self._extend(entry, start + n)
        is_last = n == left and entry.limit > request.num_tokens
        prefill.append(
            Slice(
                request.id,
                Phase.PREFILL,
                request.token_ids(start, start + n),
                start,
                entry.table,
                entry.sample_spec() if is_last else None,
            )
        )
        return n == left

    def _cost_s(
        self, prefill: list[Slice], streams: tuple[Slice, ...], n: int, start: int
    ) -> float:
        """Return the predicted time of the step with n more prefill tokens; beyond UNKNOWN_CHUNK unknown is infinite."""
        trial = Slice("", Phase.PREFILL, (0,) * n, start, ())
        seconds = self._predictor.step_s(StepPlan(prefill=(*prefill, trial), decode=streams))
        if seconds is not None:
            return seconds
        return 0.0 if _num_tokens(prefill) + n <= UNKNOWN_CHUNK else float("inf")

    # Admission

    def _admit_next(self) -> Entry | None:
        """Admit the first waiting request whose head is not being computed by another; None: not now."""
        for entry in self._waiting[: MAX_HELD + 1]:
            if not self._waits_for_head(entry):
                return entry if self._admit(entry) else None
        return None

    def _waits_for_head(self, entry: Entry) -> bool:
        """Whether an older prompt in flight will soon have cached a head that this one shares."""
        if not self._cache.is_enabled:
            return False
        for other in self._running:
            computing = other.request
            if computing.num_computed_tokens >= len(other.key) // 4 or other.order > entry.order:
                continue
            if computing.salt != entry.request.salt:
                continue
            shared = entry.shared_with.get(computing.id)
            if shared is None:
                shared = common_tokens(entry.key, other.key)
                entry.shared_with[computing.id] = shared
            if shared >= MIN_SHARED_HEAD and computing.num_computed_tokens < shared:
                return True
        return False

    def _admit(self, entry: Entry) -> bool:
        request = entry.request
        available = self._cache.num_available
        if entry.failed_at is not None and available <= entry.failed_at and self._running:
            return False
        lookup_start_s = self._clock()
        match = self._cache.match(request.salt, entry.key)
        promised = promised_tokens(
            num_tokens=request.num_tokens,
            limit=entry.limit,
            is_declared=entry.is_declared,
            num_preemptions=request.num_preemptions,
        )
        allocation = self._cache.allocate(request.id, match, promised)
        if allocation is None:
            assert self._running, "a request that fits the empty pool was not admitted to it"
            entry.failed_at = available
            return False
        self._start(entry, allocation, lookup_start_s)
        return True

    def _start(self, entry: Entry, allocation: Allocation, lookup_start_s: float) -> None:
        request = entry.request
        is_first = request.state is RequestState.WAITING
        del self._waiting[bisect_left(self._waiting, entry.order, key=_order)]
        insort(self._running, entry, key=_order)
        entry.shared_with.clear()
        entry.failed_at = None
        entry.table = allocation.block_ids
        request.state = RequestState.RUNNING
        request.block_table = list(allocation.block_ids)
        request.num_computed_tokens = allocation.num_cached_tokens
        self._new_blocks.extend(allocation.new_blocks)
        self._copies.extend(allocation.copies)
        why = Explanation(None)
        if is_first:
            request.num_cached_tokens = allocation.num_cached_tokens
            why = self._explain(entry)
        self._events.append(
            Admitted(
                request.id,
                self._clock(),
                lookup_start_s,
                allocation.num_cached_tokens,
                why.reason,
                why.diverged_token,
                why.diverged_message,
                why.diverged_char,
                why.matches_again_at_token,
                self._price_s(why.num_lost_tokens, allocation.num_cached_tokens),
            )
        )

    def _explain(self, entry: Entry) -> Explanation:
        if not self._cache.is_enabled:
            return Explanation("disabled")
        return self._explainer.explain(entry.request, entry.key, entry.request.num_cached_tokens)

    def _price_s(self, num_tokens: int | None, start: int) -> float | None:
        """Return the predicted time of recomputing tokens that were once computed, in chunks as they would run."""
        if not num_tokens:
            return None
        total = 0.0
        for at in range(start, start + num_tokens, self._config.prefill_chunk):
            n = min(self._config.prefill_chunk, start + num_tokens - at)
            chunk = Slice("", Phase.PREFILL, (0,) * n, at, ())
            seconds = self._predictor.step_s(StepPlan(prefill=(chunk,)))
            if seconds is None:
                return None
            total += seconds
        return total

    # After the step

    def update(
        self, plan: StepPlan, result: StepResult, *, is_cold: bool = False
    ) -> list[Progress]:
        """Take in what a plan gave: append tokens, share computed blocks, end what is done."""
        self._cache.copies_done()
        if not is_cold and plan.slices:
            seconds = result.end_s - result.start_s
            self._predictor.observe(plan, seconds)
            self._rates.observe(plan, seconds)
        progress: list[Progress] = []
        for s in plan.prefill:
            entry = self._entries[s.request_id]
            request = entry.request
            request.num_computed_tokens = s.end
            is_done = s.end == request.num_tokens
            self._commit(entry, with_tail=is_done)
            if is_done and not request.output_token_ids:
                self._explainer.remember(request, entry.prompt_key)
            if s.sample is not None:
                progress.append(self._append(entry, result.sampled[s.request_id]))
            elif is_done:
                self._finish(entry, FinishReason.LENGTH)
                progress.append(Progress(request, None))
        for s in plan.decode:
            entry = self._entries[s.request_id]
            entry.request.num_computed_tokens = end = s.start + 1
            if not end % BLOCK_SIZE:
                self._commit(entry)
            progress.append(self._append(entry, result.sampled[s.request_id]))
        return progress

    def _commit(self, entry: Entry, *, with_tail: bool = False) -> None:
        replaced = self._cache.commit(entry.request, with_tail=with_tail)
        for index, block in replaced:
            entry.request.block_table[index] = block
        if replaced:
            entry.table = tuple(entry.request.block_table)

    def _append(self, entry: Entry, sampled: Sampled) -> Progress:
        request = entry.request
        token_id = sampled.token_id
        request.output_token_ids.append(token_id)
        if token_id in entry.end_ids:
            self._finish(entry, FinishReason.STOP)
        elif token_id in entry.stop_ids:
            self._finish(entry, FinishReason.STOP)
            return Progress(request, sampled, token_id)
        elif len(request.prompt_token_ids) + len(request.output_token_ids) >= entry.limit:
            self._finish(entry, FinishReason.LENGTH)
        return Progress(request, sampled)

    def _finish(self, entry: Entry, reason: FinishReason, num_kept: int | None = None) -> None:
        request = entry.request
        num_blocks = len(request.block_table)
        if request.state is RequestState.RUNNING:
            self._explainer.remember(request, entry.full_key())
            self._cache.free(request)
            self._running.remove(entry)
        else:
            del self._waiting[bisect_left(self._waiting, entry.order, key=_order)]
        del self._entries[request.id]
        if num_kept is not None:
            del request.output_token_ids[num_kept:]
        request.state = RequestState.FINISHED
        request.finish_reason = reason
        request.block_table = []
        kv_bytes = num_blocks * self._block_bytes if self._block_bytes is not None else None
        self._events.append(
            Finished(
                request.id,
                self._clock(),
                reason,
                request.num_tokens,
                kv_bytes,
                request.num_output_tokens,
            )
        )


def _order(entry: Entry) -> tuple[float, int]:
    return entry.order


def _num_tokens(slices: list[Slice]) -> int:
    return sum(len(s.token_ids) for s in slices)
