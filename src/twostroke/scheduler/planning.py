"""One step in planning: every stream decodes, then prompts are prefilled while the step has room.

Admission and preemption happen here, because both depend on what the step already holds.
"""

from __future__ import annotations

from collections.abc import Callable

from twostroke.config import EngineConfig
from twostroke.events import Admitted, Event, Preempted
from twostroke.scheduler.budget import StepBudget, prefill_price_s
from twostroke.scheduler.memory import SequenceMemory
from twostroke.scheduler.queues import Queues
from twostroke.scheduler.sequence import Sequence, waits_for_prefix
from twostroke.step import Phase, Slice, StepPlan, StepPredictor

MAX_PASSED_OVER = 16  # waiting requests that may be passed because their prefix is being computed
LAST = (float("inf"), 0)  # an order behind every sequence


class StepPlanner:
    """Makes the plan of each step. Events of admission and preemption go to `events`."""

    def __init__(
        self,
        config: EngineConfig,
        queues: Queues,
        memory: SequenceMemory,
        predictor: StepPredictor,
        *,
        clock: Callable[[], float],
        events: list[Event],
    ) -> None:
        self._config = config
        self._queues = queues
        self._memory = memory
        self._predictor = predictor
        self._clock = clock
        self._events = events

    def plan(self) -> StepPlan:
        """Return the next step with its predicted time; empty only when there is no work."""
        self._memory.begin_plan()
        streams = self._plan_decode()
        prefill: list[Slice] = []
        if self._queues.waiting or len(streams) < len(self._queues.running):
            prefill = self._plan_prefill(streams)
        if not prefill and not streams:
            return StepPlan()
        priced = StepPlan(tuple(prefill), tuple(streams))
        return StepPlan(
            priced.prefill,
            priced.decode,
            tuple(self._memory.new_blocks),
            tuple(self._memory.copies),
            self._predictor.step_s(priced),
        )

    # Decode

    def _plan_decode(self) -> list[Slice]:
        slices = []
        for sequence in tuple(self._queues.running):
            if not sequence.is_decoding:
                continue  # a prompt, or a stream that this loop has just preempted
            if self._memory.has_slot(sequence) or self._grow(sequence):
                slices.append(_decode_slice(sequence))
        return slices

    def _grow(self, sequence: Sequence) -> bool:
        """Give a stream its next block, preempting others; False: the stream lost its own."""
        num_tokens = sequence.num_computed_tokens + 1
        while not self._memory.reserve(sequence, num_tokens):
            victim = self._victim(sequence)
            self._preempt(victim)
            if victim is sequence:
                return False
        self._memory.extend(sequence, num_tokens)
        return True

    def _victim(self, sequence: Sequence) -> Sequence:
        """Return the sequence that loses its blocks to a growing one: never an older one.

        A declared length was promised its memory, so it loses only to the oldest of all.
        """
        running = self._queues.running
        younger = [s for s in running if s.order >= sequence.order and not s.is_declared]
        victim = younger[-1]
        return running[-1] if victim is running[0] else victim

    def _preempt(self, sequence: Sequence) -> None:
        num_tokens = sequence.num_computed_tokens
        chunk = self._config.prefill_chunk
        cost_s = prefill_price_s(self._predictor, 0, num_tokens, chunk)
        self._events.append(Preempted(sequence.id, self._clock(), num_tokens, cost_s))
        self._memory.preempt(sequence)
        self._queues.preempt(sequence)

    # Prefill

    def _plan_prefill(self, streams: list[Slice]) -> list[Slice]:
        """Return prefill slices in the order of service; a prompt that is cut is the last.

        A preempted stream that was found whole in the cache is added to `streams`.
        """
        budget = StepBudget(
            self._predictor,
            tuple(streams),
            target_s=self._config.target_tpot_s,
            prefill_chunk=self._config.prefill_chunk,
        )
        for sequence in tuple(self._queues.running):
            if sequence.is_decoding:
                continue
            if not self._admit_before(sequence.order, budget, streams):
                return budget.slices
            if not self._add_prefill(sequence, budget):
                return budget.slices
        self._admit_before(LAST, budget, streams)
        return budget.slices

    def _admit_before(
        self, order: tuple[float, int], budget: StepBudget, streams: list[Slice]
    ) -> bool:
        """Admit waiting requests that are served before an order; return whether room is left."""
        waiting = self._queues.waiting
        while len(self._queues.running) < self._config.max_num_seqs:
            if not waiting or waiting[0].order > order:
                return True
            if not budget.has_room():
                return False
            admitted = self._admit_next(order)
            if admitted is None:
                return True
            if admitted.is_decoding:
                self._memory.extend(admitted, admitted.num_tokens)
                streams.append(_decode_slice(admitted))
            elif not self._add_prefill(admitted, budget):
                return False
        return True

    def _add_prefill(self, sequence: Sequence, budget: StepBudget) -> bool:
        """Plan the next chunk of a prompt; return whether all of it fits and others may follow."""
        start, left = sequence.num_computed_tokens, sequence.num_prefill_left
        n = budget.chunk(start, left)
        if n <= 0:
            return False
        self._memory.extend(sequence, start + n)
        is_last = n == left and sequence.max_num_tokens > sequence.num_tokens
        budget.add(
            Slice(
                sequence.id,
                Phase.PREFILL,
                sequence.token_ids(start, start + n),
                start,
                sequence.block_table,
                sequence.sample_spec() if is_last else None,
            )
        )
        return n == left

    def _admit_next(self, order: tuple[float, int]) -> Sequence | None:
        """Admit the first waiting request whose prefix nobody is computing; None: not now."""
        for sequence in self._queues.waiting[: MAX_PASSED_OVER + 1]:
            if sequence.order > order:
                return None
            shares = self._memory.cache.is_enabled
            if not (shares and waits_for_prefix(sequence, self._queues.running)):
                return sequence if self._admit(sequence) else None
        return None

    def _admit(self, sequence: Sequence) -> bool:
        start_s = self._clock()
        outcome = self._memory.admit(sequence, is_pool_in_use=bool(self._queues.running))
        if outcome is None:
            return False
        self._queues.start(sequence)
        now_s = self._clock()
        found = sequence.num_computed_tokens
        self._events.append(Admitted(sequence.id, now_s, start_s, found, outcome))
        return True


def _decode_slice(sequence: Sequence) -> Slice:
    return Slice(
        sequence.id,
        Phase.DECODE,
        (sequence.output_token_ids[-1],),
        sequence.num_computed_tokens,
        sequence.block_table,
        sequence.sample_spec(),
    )
