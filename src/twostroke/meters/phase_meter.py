"""From the engine's events to one record per request.

Time is accounted by turns: a turn runs from the end of one step to the end of the next and belongs
to the phase that the request was in, or to `stall` if it was not in the plan. So the phases add up
to the wall clock, the scheduler's own time included. A mixed step is never split.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from twostroke.events import Admitted, Arrived, Event, Finished, Preempted, StepDone
from twostroke.meters.account import Account
from twostroke.meters.finished import record_of
from twostroke.meters.floors import FloorModel
from twostroke.record import RequestRecord

MAX_FINISHED = 4096  # records that nobody took are dropped, oldest first


class PhaseMeter:
    """The engine's meter. Sole writer of its accounts; `take` hands out each record once."""

    def __init__(
        self,
        *,
        model: str | None = None,
        build: str | None = None,
        floors: FloorModel | None = None,
        advise: Callable[[RequestRecord], tuple[str, ...]] | None = None,
    ) -> None:
        self._model = model
        self._build = build
        self._floors = floors
        self._advise = advise
        self._accounts: dict[str, Account] = {}
        self._running: dict[str, Account] = {}
        self._finished: dict[str, RequestRecord] = {}

    def take(self, request_id: str) -> RequestRecord | None:
        """Return the record of a request that has ended, once."""
        return self._finished.pop(request_id, None)

    def on_event(self, event: Event) -> None:
        """Account for one event."""
        if isinstance(event, StepDone):
            self._on_step(event)
        elif isinstance(event, Arrived):
            self._accounts[event.request_id] = Account(event, event.t_s)
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
        floors = self._floors.floors(plan) if self._floors is not None else None
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
    def _after_slice(account: Account, event: StepDone, turn_s: float, is_mixed: bool) -> None:
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
        record = record_of(account, event, tail_s=tail_s, model=self._model, build=self._build)
        if self._advise is not None and (advice := self._advise(record)):
            record = replace(record, advice=advice)
        self._finished[event.request_id] = record
        if len(self._finished) > MAX_FINISHED:
            del self._finished[next(iter(self._finished))]

    @staticmethod
    def _account_for_rest(account: Account, end_s: float, was_running: bool) -> float:
        """Add the time since the last turn to its phase; return the seconds of tail in it.

        A running request that computed a step has only its tail left.
        """
        rest_s = end_s - account.mark_s
        if account.admitted is None:
            account.queue_s += rest_s
        elif was_running and account.last_step_s is not None:
            return rest_s
        else:
            account.stall_s += rest_s
        return 0.0
