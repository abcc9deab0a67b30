"""One turn after another: plan, run, update, emit. Text never enters here.

Driven directly by an offline caller, or by the thread of `async_engine`. A request whose runner
step fails ends with an error; the other requests of that step are run again without it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from twostroke.engine.apart import run_apart
from twostroke.engine.status import EngineStatus
from twostroke.events import Arrived, Event, Observer, RequestMeter, StepDone
from twostroke.record import RequestRecord
from twostroke.request import FinishReason, Request, RequestOutput, SamplingParams
from twostroke.scheduler.outlook import Outlook
from twostroke.scheduler.policy import longest_prompt
from twostroke.scheduler.progress import Progress
from twostroke.scheduler.scheduler import Scheduler
from twostroke.step import Phase, Runner, StepPlan

if TYPE_CHECKING:
    from collections.abc import Iterator

    from twostroke.predict.learning import LearningPredictor

WARM_UP_PROMPT = 64
WARM_UP_OUTPUT = 4
WARM_UP_IDS = ("warm-up-cold", "warm-up-measured")


class Engine:
    """Sole user of its scheduler, runner and meter. Not thread-safe but for `status`.

    predictor: the one that the scheduler plans with; its current state is part of the status.
    observers receive the events after the meter and give nothing back.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        runner: Runner,
        *,
        meter: RequestMeter | None = None,
        observers: Sequence[Observer] = (),
        predictor: LearningPredictor | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._scheduler = scheduler
        self._runner = runner
        self._meter = meter
        self._observers = tuple(observers)
        self._predictor = predictor
        self._clock = clock
        self._warm: set[Phase] = set()
        self._status = self._current_status()

    @property
    def has_work(self) -> bool:
        """Whether any request has not ended."""
        return self._scheduler.has_work

    @property
    def status(self) -> EngineStatus:
        """The engine's state after its last step or command; may be read by any thread."""
        return self._status

    def outlook(
        self, prompt_token_ids: Sequence[int], params: SamplingParams, salt: str = ""
    ) -> Outlook:
        """Return what a request would meet now; nothing changes.

        Raises:
            RequestError: no prompt tokens, or an id that is no 32-bit number.
        """
        return self._scheduler.outlook(prompt_token_ids, params, salt)

    def add(self, request: Request) -> None:
        """Take a request; its arrival_s is the moment of this hand-over on the engine's clock.

        Raises:
            RequestError, CapacityError: as `Scheduler.add`.
        """
        self._scheduler.add(request)
        self._emit(
            Arrived(
                request.id,
                min(request.arrival_s, self._clock()),
                request.num_prompt_tokens,
                request.load_s,
                request.init_s,
            )
        )
        self._publish()

    def abort(self, request_id: str) -> RequestOutput | None:
        """Cancel a request wherever it stands; None if it has ended."""
        return self._end(request_id, FinishReason.CANCELLED)

    def stop(
        self, request_id: str, stop_reason: str | int | None, num_tokens_kept: int
    ) -> RequestOutput | None:
        """End a request whose text met a stop string, keeping its first output tokens.

        Returns:
            The final output, without new tokens; None if the request had already ended by itself.
        """
        return self._end(request_id, FinishReason.STOP, stop_reason, num_tokens_kept)

    def _end(
        self,
        request_id: str,
        reason: FinishReason,
        stop_reason: str | int | None = None,
        num_tokens_kept: int | None = None,
        error: str | None = None,
    ) -> RequestOutput | None:
        sequence = self._scheduler.finish(request_id, reason, num_tokens_kept=num_tokens_kept)
        if sequence is None:
            return None
        self._emit_scheduled()
        self._publish()
        return RequestOutput(
            request_id=request_id,
            token_ids=(),
            finish_reason=reason,
            stop_reason=stop_reason,
            record=self._record(request_id),
            error=error,
        )

    def step(self) -> list[RequestOutput]:
        """Run one step and return the output of each of its requests; empty without work."""
        plan = self._scheduler.plan()
        self._emit_scheduled()
        if not plan.prefill and not plan.decode:
            return []
        failed: list[RequestOutput] = []
        try:
            result = self._runner.run(plan)
        except Exception as error:
            apart = run_apart(self._runner, plan, error, self._clock)
            plan, result = apart.plan, apart.result
            failed = [self._failed(request_id, text) for request_id, text in apart.errors]
        is_cold = self._is_cold(plan) or bool(failed)
        progress = self._scheduler.update(plan, result, is_cold=is_cold)
        self._emit(StepDone(plan, result, is_cold))
        self._emit_scheduled()
        outputs = [self._output(p) for p in progress]
        self._publish()
        return outputs + failed

    def _failed(self, request_id: str, text: str) -> RequestOutput:
        output = self._end(request_id, FinishReason.ERROR, error=text)
        assert output is not None
        return output

    def _output(self, progress: Progress) -> RequestOutput:
        sequence, sampled, stop_reason = progress
        reason = sequence.finish_reason
        return RequestOutput(
            request_id=sequence.request.id,
            token_ids=(sampled.token_id,) if sampled is not None else (),
            logprobs=(sampled.logprob,) if sampled is not None and sampled.logprob else (),
            finish_reason=reason,
            stop_reason=stop_reason,
            record=self._record(sequence.request.id) if reason is not None else None,
        )

    def warm_up(self) -> None:
        """Run both phases twice, unseen by meter and observers: cold, then for the predictor."""
        params = SamplingParams(temperature=0.0, max_tokens=WARM_UP_OUTPUT, ignore_eos=True)
        scheduler = self._scheduler
        room = longest_prompt(params, scheduler.max_model_len, scheduler.num_blocks)
        if not room:
            return
        with self._unobserved():
            for request_id in WARM_UP_IDS:
                self.add(
                    Request(
                        id=request_id,
                        prompt_token_ids=(0,) * min(WARM_UP_PROMPT, room),
                        params=params,
                        seed=0,
                        end_token_ids=frozenset(),
                        arrival_s=self._clock(),
                        salt=request_id,  # so that the second is not a cache hit
                    )
                )
                while self._scheduler.get(request_id) is not None:
                    self.step()

    @contextmanager
    def _unobserved(self) -> Iterator[None]:
        meter, observers = self._meter, self._observers
        self._meter, self._observers = None, ()
        try:
            yield
        finally:
            self._meter, self._observers = meter, observers

    def _is_cold(self, plan: StepPlan) -> bool:
        if len(self._warm) == len(Phase):
            return False
        phases = {s.phase for s in plan.slices}
        is_cold = not phases <= self._warm
        self._warm |= phases
        return is_cold

    def _record(self, request_id: str) -> RequestRecord | None:
        return self._meter.take(request_id) if self._meter is not None else None

    def _emit(self, event: Event) -> None:
        if self._meter is not None:
            self._meter.on_event(event)
        for observer in self._observers:
            observer.on_event(event)

    def _emit_scheduled(self) -> None:
        for event in self._scheduler.take_events():
            self._emit(event)

    def _publish(self) -> None:
        self._status = self._current_status()

    def _current_status(self) -> EngineStatus:
        scheduler = self._scheduler
        return EngineStatus(
            num_waiting=scheduler.num_waiting,
            num_running=scheduler.num_running,
            num_blocks=scheduler.num_blocks,
            num_used_blocks=scheduler.num_used_blocks,
            max_model_len=scheduler.max_model_len,
            prefill_chunk=scheduler.prefill_chunk,
            predicted_wait_s=scheduler.predicted_wait_s(),
            progress=scheduler.prefill_progress,
            predictor=self._predictor.current if self._predictor is not None else None,
        )
