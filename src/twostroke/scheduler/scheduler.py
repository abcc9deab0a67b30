"""Decides what the next step computes, under a budget of predicted time. Sole writer of Request.

Every running stream is in every step. Beside them one prompt is prefilled at a time, in chunks
that keep the streams' time per token; a second one joins only in what the first leaves of the
step. Memory is promised at admission (docs/laws.md, law 3). Knows no text, no model and no bytes.
Source: iteration-level batching, Yu et al. 2022 (Orca, OSDI); chunked prefill, Agrawal et al.
  2023, arXiv:2308.16369.
"""

from __future__ import annotations

import struct
from bisect import bisect_left, insort
from collections.abc import Callable, Sequence
from typing import NamedTuple

from twostroke.cache.explain import CacheExplainer, Explanation
from twostroke.cache.manager import Allocation, KVCacheManager
from twostroke.cache.radix import token_key
from twostroke.config import EngineConfig
from twostroke.errors import CapacityError, RequestError, TwoStrokeError
from twostroke.events import Admitted, Event, Finished, Preempted
from twostroke.request import FinishReason, Request, RequestState, SamplingParams
from twostroke.scheduler.budget import StepBudget, prefill_price_s
from twostroke.scheduler.entry import Entry, waits_for_head
from twostroke.scheduler.outlook import Outlook
from twostroke.scheduler.policy import GROWTH_TOKENS, promised_tokens, total_limit
from twostroke.scheduler.wait import WaitLimit
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
MAX_GAP_SHARE = 0.25  # of a step's time; what a caller did meanwhile beyond it is not the engine's
LAST = (float("inf"), 0)  # the place after everybody


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
        growth_tokens: int = GROWTH_TOKENS,
        block_bytes: int | None = None,
    ) -> None:
        assert config.max_model_len is not None, "the config must be resolved"
        self._config = config
        self._max_model_len = config.max_model_len
        self._cache = cache
        self._predictor = predictor
        self._clock = clock
        self._wait = WaitLimit(
            max_waiting=max_waiting, max_wait_s=max_wait_s, max_num_seqs=config.max_num_seqs
        )
        self._growth_tokens = growth_tokens
        self._block_bytes = block_bytes
        self._explainer = CacheExplainer()
        self._entries: dict[str, Entry] = {}
        self._waiting: list[Entry] = []  # in order
        self._running: list[Entry] = []  # in order
        self._events: list[Event] = []
        self._new_blocks: list[int] = []
        self._copies: list[BlockCopy] = []
        self._serial = 0
        self._last_end_s: float | None = None  # of the step before, while there is work

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
            QueueFull: too many wait, or for too long; retry_after_s says when to return.
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
        key = _key(request.prompt_token_ids)
        self._wait.check(self._waiting, self._running)
        self._serial += 1
        entry = Entry(request, key, limit, self._serial)
        self._entries[request.id] = entry
        insort(self._waiting, entry, key=_order)

    def predicted_wait_s(self) -> float | None:
        """Return how long a request added now would wait for admission, None while unknown."""
        return self._wait.predicted_s(self._waiting, self._running)

    def predicted_prefill_s(self, start: int, num_tokens: int) -> float | None:
        """Return the predicted time of prefilling [start, start + num_tokens) alone."""
        chunk = self._config.prefill_chunk
        return prefill_price_s(self._predictor, start, num_tokens, chunk)

    def outlook(
        self, prompt_token_ids: Sequence[int], params: SamplingParams, salt: str = ""
    ) -> Outlook:
        """Return what a request would meet now; nothing changes, the cache's order included.

        Raises:
            RequestError: no prompt tokens, or an id that is no 32-bit number.
        """
        num_prompt = len(prompt_token_ids)
        if not num_prompt:
            raise RequestError("the prompt has no tokens", param="prompt")
        key = _key(prompt_token_ids)
        cached = self._cache.match(salt, key).num_tokens
        refusal: TwoStrokeError | None = None
        kv_bytes = None
        try:
            limit = total_limit(
                params,
                num_prompt,
                max_model_len=self._max_model_len,
                num_blocks=self._cache.num_blocks,
            )
            self._wait.check(self._waiting, self._running)
            promised = promised_tokens(
                num_tokens=num_prompt,
                limit=limit,
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
            num_waiting=len(self._waiting),
            queue_s=self._wait.predicted_s(self._waiting, self._running),
            kv_bytes=kv_bytes,
            streams=tuple(
                e.request.num_tokens for e in self._running if e.request.output_token_ids
            ),
            refusal=refusal,
        )

    def finish(
        self, request_id: str, reason: FinishReason, *, num_tokens_kept: int | None = None
    ) -> Request | None:
        """End a request from outside, keeping its first output tokens; None if it has ended."""
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
            prefill = self._plan_prefill(decode)
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
        """Get a stream its next block, preempting younger ones; False: it was preempted itself."""
        request_id = entry.request.id
        if num_tokens > self._cache.num_reserved_tokens(request_id):
            generous = min(num_tokens + self._growth_tokens, max(num_tokens, entry.limit - 1))
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
        """Return who loses its blocks so that a growing request gets one: never an older one.

        A declared length was promised its memory, so it loses only to the oldest of all.
        """
        growing = [e for e in self._running if e.order >= entry.order and not e.is_declared]
        victim = growing[-1]
        return self._running[-1] if victim is self._running[0] else victim

    def _extend(self, entry: Entry, num_tokens: int) -> None:
        blocks = self._cache.extend(entry.request.id, num_tokens)
        if blocks:
            entry.request.block_table.extend(blocks)
            entry.table = tuple(entry.request.block_table)
            self._new_blocks.extend(blocks)

    def _preempt(self, entry: Entry) -> None:
        request = entry.request
        num_tokens = request.num_computed_tokens
        cost_s = self.predicted_prefill_s(0, num_tokens)
        self._events.append(Preempted(request.id, self._clock(), num_tokens, cost_s))
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

    def _plan_prefill(self, decode: list[Slice]) -> list[Slice]:
        """Choose prefill slices in order until the step is full; one that is cut is the last."""
        budget = StepBudget(
            self._predictor,
            tuple(decode),
            target_s=self._config.target_tpot_s,
            prefill_chunk=self._config.prefill_chunk,
        )
        for entry in tuple(self._running):
            if entry.num_prefill_left <= bool(entry.request.output_token_ids):
                continue  # a stream
            if not self._admit_before(entry.order, budget, decode):
                return budget.slices
            if not self._add_prefill(entry, budget):
                return budget.slices
        self._admit_before(LAST, budget, decode)
        return budget.slices

    def _admit_before(
        self, order: tuple[float, int], budget: StepBudget, decode: list[Slice]
    ) -> bool:
        """Admit waiting requests that come before a place in line; return whether room is left."""
        while len(self._running) < self._config.max_num_seqs:
            if not self._waiting or self._waiting[0].order > order:
                return True
            if not budget.has_room():
                return False
            admitted = self._admit_next(order)
            if admitted is None:
                return True
            if admitted.request.output_token_ids and admitted.num_prefill_left == 1:
                self._extend(admitted, admitted.request.num_tokens)
                decode.append(self._decode_slice(admitted))
            elif not self._add_prefill(admitted, budget):
                return False
        return True

    def _add_prefill(self, entry: Entry, budget: StepBudget) -> bool:
        """Plan the next chunk of a prompt; return whether all of it fits and others may follow."""
        request = entry.request
        start, left = request.num_computed_tokens, entry.num_prefill_left
        n = budget.chunk(start, left)
        if n <= 0:
            return False
        self._extend(entry, start + n)
        is_last = n == left and entry.limit > request.num_tokens
        budget.add(
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

    # Admission

    def _admit_next(self, order: tuple[float, int]) -> Entry | None:
        """Admit the first waiting request whose head nobody is computing; None: not now."""
        for entry in self._waiting[: MAX_HELD + 1]:
            if entry.order > order:
                return None
            if not (self._cache.is_enabled and waits_for_head(entry, self._running)):
                return entry if self._admit(entry) else None
        return None

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
            growth=self._growth_tokens,
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
        price_s = None
        if why.num_lost_tokens:
            price_s = self.predicted_prefill_s(request.num_cached_tokens, why.num_lost_tokens)
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
                price_s,
            )
        )

    def _explain(self, entry: Entry) -> Explanation:
        if not self._cache.is_enabled:
            return Explanation("disabled")
        return self._explainer.explain(entry.request, entry.key, entry.request.num_cached_tokens)

    # After the step

    def update(
        self, plan: StepPlan, result: StepResult, *, is_cold: bool = False
    ) -> list[Progress]:
        """Take in what a plan gave: append tokens, share computed blocks, end what is done."""
        self._cache.copies_done()
        if not is_cold and plan.slices:
            seconds = self._turn_s(result)
            self._predictor.observe(plan, seconds)
            self._wait.observe(plan, seconds)
        progress = self._progress(plan, result)
        self._last_end_s = result.end_s if self._entries else None
        return progress

    def _turn_s(self, result: StepResult) -> float:
        """Return a step's time and that of the turn around it: what a request waits for."""
        step_s = result.end_s - result.start_s
        if self._last_end_s is None:
            return step_s
        gap_s = result.start_s - self._last_end_s
        return step_s + min(max(gap_s, 0.0), MAX_GAP_SHARE * step_s)

    def _progress(self, plan: StepPlan, result: StepResult) -> list[Progress]:
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
            self._cache.free(request, is_trusted=reason is not FinishReason.ERROR)
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


def _key(token_ids: Sequence[int]) -> bytes:
    try:
        return token_key(token_ids)
    except struct.error as error:
        raise RequestError("a prompt token id is out of range", param="prompt") from error


def _order(entry: Entry) -> tuple[float, int]:
    return entry.order
