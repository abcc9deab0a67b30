"""From the engine's events to one record per request.

Time is accounted by turns: a turn runs from the end of one step to the end of the next and belongs
to the phase that the request was in, or to `stall` if it was not in the plan. So the phases add up
to the wall clock, the scheduler's own time included. A mixed step is never split.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from dataclasses import field, replace
from itertools import pairwise
from typing import NamedTuple, Protocol

from twostroke.dataclass import dataclass
from twostroke.events import Admitted, Arrived, Event, Finished, Preempted, StepDone
from twostroke.record import (
    MIN_TOKENS_FOR_PREFILL_RATE,
    CacheOutcome,
    InterTokenLatency,
    Meter,
    OutputTokens,
    PhaseTimes,
    PromptTokens,
    RequestRecord,
)
from twostroke.step import StepPlan

MAX_FINISHED = 4096  # records that nobody took are dropped, oldest first


class Floors(NamedTuple):
    """The least time a step can take on this machine, by what bounds it. Units: seconds.

    arithmetic_s: sum over ops of operations / peak of the type used.
    traffic_s: stored bytes read (weights and KV) / bandwidth measured at that working set.
    """

    arithmetic_s: float
    traffic_s: float


class CostModel(Protocol):
    """Knows the model's operations and bytes, and this machine's peaks."""

    def floors(self, plan: StepPlan) -> Floors | None:
        """Return the floors of a step, None while the machine's peaks are unknown."""
        ...


@dataclass(slots=True)
class _PhaseSum:
    """What one phase of one request has used so far. Floors are None once one is unknown."""

    seconds: float = 0.0
    num_tokens: int = 0
    num_steps: int = 0
    arithmetic_s: float | None = 0.0
    traffic_s: float | None = 0.0
    floor_s: float = 0.0
    predicted_s: float | None = 0.0

    def add(
        self, turn_s: float, num_tokens: int, floors: Floors | None, predicted_s: float | None
    ) -> None:
        self.seconds += turn_s
        self.num_tokens += num_tokens
        self.num_steps += 1
        if floors is None or self.arithmetic_s is None or self.traffic_s is None:
            self.arithmetic_s = self.traffic_s = None
        else:
            self.arithmetic_s += floors.arithmetic_s
            self.traffic_s += floors.traffic_s
            self.floor_s += max(floors)
        if predicted_s is None or self.predicted_s is None:
            self.predicted_s = None
        else:
            self.predicted_s += predicted_s

    def share(self, floor_s: float | None) -> float | None:
        return floor_s / self.seconds if floor_s is not None and self.seconds > 0 else None

    @property
    def error(self) -> float | None:
        """Predicted / measured - 1."""
        if not self.num_steps or self.predicted_s is None or self.seconds <= 0:
            return None
        return self.predicted_s / self.seconds - 1.0

    @property
    def ceiling_tok_s(self) -> float | None:
        known = self.arithmetic_s is not None and self.floor_s > 0
        return self.num_tokens / self.floor_s if known else None


@dataclass(slots=True)
class _Account:
    """One request while it lives."""

    arrived: Arrived
    mark_s: float  # accounted up to here
    queue_s: float = 0.0
    cache_s: float = 0.0
    stall_s: float = 0.0
    mixed_s: float = 0.0
    prefill: _PhaseSum = field(default_factory=_PhaseSum)
    decode: _PhaseSum = field(default_factory=_PhaseSum)
    admitted: Admitted | None = None
    num_preemptions: int = 0
    batch_sum: int = 0
    last_step_s: float | None = None
    token_times_s: array[float] = field(default_factory=lambda: array("d"))
    is_cold: bool = False


class PhaseMeter:
    """An events.Observer, sole writer of its accounts; `take` hands out records."""

    def __init__(
        self,
        *,
        model: str | None = None,
        build: str | None = None,
        cost: CostModel | None = None,
        on_record: Callable[[RequestRecord], None] | None = None,
        advise: Callable[[RequestRecord], tuple[str, ...]] | None = None,
    ) -> None:
        self._model = model
        self._build = build
        self._cost = cost
        self._on_record = on_record
        self._advise = advise
        self._accounts: dict[str, _Account] = {}
        self._running: dict[str, _Account] = {}
        self._finished: dict[str, RequestRecord] = {}

    def take(self, request_id: str) -> RequestRecord | None:
        """Return the record of a request that has ended, once."""
        return self._finished.pop(request_id, None)

    def on_event(self, event: Event) -> None:
        """Account for one event."""
        if isinstance(event, StepDone):
            self._on_step(event)
        elif isinstance(event, Arrived):
            self._accounts[event.request_id] = _Account(event, event.t_s)
        elif isinstance(event, Admitted):
            self._on_admitted(event)
        elif isinstance(event, Preempted):
            self._on_preempted(event)
        else:
            self._on_finished(event)

    def _on_admitted(self, event: Admitted) -> None:
        account = self._accounts.get(event.request_id)
        if account is None:
            return
        waited_s = event.lookup_start_s - account.mark_s
        if account.admitted is None:
            account.queue_s += waited_s
            account.admitted = event
        else:
            account.stall_s += waited_s  # it was preempted: runnable, not in the plan
        account.cache_s += event.t_s - event.lookup_start_s
        account.mark_s = event.t_s
        self._running[event.request_id] = account

    def _on_preempted(self, event: Preempted) -> None:
        account = self._running.pop(event.request_id, None)
        if account is not None:
            account.stall_s += event.t_s - account.mark_s
            account.mark_s = event.t_s
            account.num_preemptions += 1

    def _on_step(self, event: StepDone) -> None:
        plan, end_s = event.plan, event.result.end_s
        floors = self._cost.floors(plan) if self._cost is not None else None
        is_mixed = bool(plan.prefill) and bool(plan.decode)
        running = self._running
        num_stalled = len(running)
        for s in plan.prefill:
            account = running.get(s.request_id)
            if account is None:
                continue
            num_stalled -= 1
            turn_s = end_s - account.mark_s
            account.prefill.add(turn_s, len(s.token_ids), floors, plan.predicted_s)
            self._after_slice(account, event, turn_s, is_mixed)
            if s.sample is not None:
                account.token_times_s.append(end_s)
        batch = len(plan.decode)
        for s in plan.decode:
            account = running.get(s.request_id)
            if account is None:
                continue
            num_stalled -= 1
            turn_s = end_s - account.mark_s
            account.decode.add(turn_s, 1, floors, plan.predicted_s)
            account.batch_sum += batch
            self._after_slice(account, event, turn_s, is_mixed)
            account.token_times_s.append(end_s)
        if num_stalled:
            for account in running.values():
                if account.mark_s < end_s:
                    account.stall_s += end_s - account.mark_s
                    account.mark_s = end_s

    @staticmethod
    def _after_slice(account: _Account, event: StepDone, turn_s: float, is_mixed: bool) -> None:
        account.mark_s = account.last_step_s = event.result.end_s
        if is_mixed:
            account.mixed_s += turn_s
        if event.cold:
            account.is_cold = True

    def _on_finished(self, event: Finished) -> None:
        account = self._accounts.pop(event.request_id, None)
        if account is None:
            return
        was_running = self._running.pop(event.request_id, None) is not None
        tail_s = self._account_for_rest(account, event.t_s, was_running)
        record = self._record(account, event, tail_s)
        if self._advise is not None and (advice := self._advise(record)):
            record = replace(record, advice=advice)
        self._finished[event.request_id] = record
        if len(self._finished) > MAX_FINISHED:
            del self._finished[next(iter(self._finished))]
        if self._on_record is not None:
            self._on_record(record)

    @staticmethod
    def _account_for_rest(account: _Account, end_s: float, was_running: bool) -> float:
        """Give the time since the last moment to its phase; return what of it is tail."""
        rest_s = end_s - account.mark_s
        if account.admitted is None:
            account.queue_s += rest_s
        elif was_running and account.last_step_s is not None:
            return rest_s
        else:
            account.stall_s += rest_s
        return 0.0

    def _record(self, account: _Account, event: Finished, tail_s: float) -> RequestRecord:
        arrived, prefill, decode = account.arrived, account.prefill, account.decode
        before_s = (arrived.load_s or 0.0) + (arrived.init_s or 0.0)
        t_arrival_s = arrived.t_s - before_s
        times = account.token_times_s
        n = event.num_output_tokens if event.num_output_tokens is not None else len(times)
        generated = len(times)
        admitted = account.admitted
        cached = admitted.num_cached_tokens if admitted is not None else None
        total = arrived.num_prompt_tokens
        decode_rate = (generated - 1) / decode.seconds if generated > 1 and decode.seconds else None
        return RequestRecord(
            id=event.request_id,
            t_arrival_s=t_arrival_s,
            model=self._model,
            build=self._build,
            phases=PhaseTimes(
                queue_s=account.queue_s,
                load_s=arrived.load_s,
                init_s=arrived.init_s,
                cache_s=account.cache_s,
                prefill_s=prefill.seconds,
                stall_s=account.stall_s,
                decode_s=decode.seconds,
                tail_s=tail_s,
            ),
            e2e_s=event.t_s - t_arrival_s,
            mixed_s=account.mixed_s,
            prompt=PromptTokens(
                total=total, cached=cached, new=total - cached if cached is not None else None
            ),
            output=OutputTokens(total=n),
            chunks=prefill.num_steps,
            steps=decode.num_steps,
            preemptions=account.num_preemptions,
            ttft_any_s=times[0] - t_arrival_s if times else None,
            tpot_s=(times[-1] - times[0]) / (generated - 1) if generated > 1 else None,
            itl=_inter_token(times),
            prefill_tok_s=_prefill_rate(prefill),
            decode_tok_s=decode_rate,
            tokens_per_step=decode.num_tokens / decode.num_steps if decode.num_steps else None,
            batch_mean=account.batch_sum / decode.num_steps if decode.num_steps else None,
            ctx_end=event.context_len,
            kv_bytes=event.kv_bytes,
            prefill_mfu=prefill.share(prefill.arithmetic_s),
            decode_mfu=decode.share(decode.arithmetic_s),
            prefill_mbu=prefill.share(prefill.traffic_s),
            decode_mbu=decode.share(decode.traffic_s),
            prefill_ceiling_tok_s=prefill.ceiling_tok_s,
            decode_ceiling_tok_s=decode.ceiling_tok_s,
            predicted_prefill_s=prefill.predicted_s if prefill.num_steps else None,
            predicted_decode_s=decode.predicted_s if decode.num_steps else None,
            prefill_error=prefill.error,
            decode_error=decode.error,
            cache=admitted.cache if admitted is not None else CacheOutcome(),
            finish=event.reason.value,
            meter=Meter(flags=("cold",) if account.is_cold else ()),
        )


def _prefill_rate(prefill: _PhaseSum) -> float | None:
    if prefill.num_tokens < MIN_TOKENS_FOR_PREFILL_RATE or prefill.seconds <= 0:
        return None
    return prefill.num_tokens / prefill.seconds


def _inter_token(times_s: array[float]) -> InterTokenLatency:
    """Return percentiles by nearest rank."""
    gaps = sorted(b - a for a, b in pairwise(times_s))
    if not gaps:
        return InterTokenLatency()

    def rank(share: float) -> float:
        return gaps[max(-(-int(share * 100) * len(gaps) // 100) - 1, 0)]

    return InterTokenLatency(p50_s=rank(0.50), p95_s=rank(0.95), max_s=gaps[-1])
