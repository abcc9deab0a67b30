"""One turn after another: plan, run, update, emit. Text never enters here.

Driven directly by an offline caller, or by the thread of `async_engine`. A request whose runner
step fails ends with an error; the others of that step are run again without it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from twostroke.dataclass import dataclass
from twostroke.events import Arrived, Event, Observer, StepDone
from twostroke.record import RequestRecord
from twostroke.request import FinishReason, Request, RequestOutput, SamplingParams
from twostroke.scheduler.scheduler import Progress, Scheduler
from twostroke.step import Phase, Predictor, Runner, Slice, StepPlan, StepResult

WARM_UP_PROMPT = 64
WARM_UP_OUTPUT = 4
WARM_UP_IDS = ("warm-up-cold", "warm-up-measured")


@dataclass(frozen=True, slots=True)
class PrefillProgress:
    """How far a prompt is, cached tokens counted; eta_s as if it ran alone."""

    num_done: int
    num_cached: int
    num_total: int
    eta_s: float | None


class Engine:
    """Sole caller of its scheduler and runner. Not thread-safe.

    take_record gives the record of a request that has ended (the meter's `take`); it is asked after
    the observers have seen the Finished event.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        runner: Runner,
        *,
        observers: Sequence[Observer] = (),
        clock: Callable[[], float] = time.monotonic,
        predictor: Predictor | None = None,
        take_record: Callable[[str], RequestRecord | None] | None = None,
    ) -> None:
        self._scheduler = scheduler
        self._runner = runner
        self._observers = tuple(observers)
        self._clock = clock
        self._predictor = predictor
        self._take_record = take_record
        self._warm: set[Phase] = set()

    @property
    def has_work(self) -> bool:
        """Whether any request has not ended."""
        return self._scheduler.has_work

    @property
    def scheduler(self) -> Scheduler:
        """The scheduler, to be read."""
        return self._scheduler

    @property
    def predictor(self) -> Predictor | None:
        """What predicts its steps, to be asked."""
        return self._predictor

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

    def progress(self, request_id: str) -> PrefillProgress | None:
        """Return how far the prompt of a request is; None if it has ended."""
        request = self._scheduler.get(request_id)
        if request is None:
            return None
        total = request.num_prompt_tokens
        done = min(request.num_computed_tokens, total)
        eta_s = self._scheduler.predicted_prefill_s(done, total - done)
        return PrefillProgress(done, request.num_cached_tokens, total, eta_s)

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
        request = self._scheduler.finish(request_id, reason, num_tokens_kept=num_tokens_kept)
        if request is None:
            return None
        self._runner.forget(request_id)
        self._emit_scheduled()
        return RequestOutput(
            request_id=request_id,
            token_ids=(),
            finish_reason=reason,
            stop_reason=stop_reason,
            record=self._record(request_id),
            error=error,
        )

    def step(self) -> list[RequestOutput]:
        """Run one step and return what each of its requests got; empty when there is no work."""
        plan = self._scheduler.plan()
        self._emit_scheduled()
        if not plan.prefill and not plan.decode:
            return []
        predicted_s = self._predictor.step_s(plan) if self._predictor is not None else None
        failed: list[RequestOutput] = []
        try:
            result = self._runner.run(plan)
        except Exception as error:
            plan, result = self._run_apart(plan, error, failed)
            predicted_s = None
        is_cold = self._is_cold(plan) or bool(failed)
        progress = self._scheduler.update(plan, result, is_cold=is_cold)
        self._emit(StepDone(plan, result, is_cold, predicted_s))
        self._emit_scheduled()
        outputs = [self._output(p) for p in progress]
        return outputs + failed if failed else outputs

    def _output(self, progress: Progress) -> RequestOutput:
        request, sampled, stop_reason = progress
        record = None
        if request.finish_reason is not None:
            self._runner.forget(request.id)
            record = self._record(request.id)
        return RequestOutput(
            request_id=request.id,
            token_ids=(sampled.token_id,) if sampled is not None else (),
            logprobs=(sampled.logprob,) if sampled is not None and sampled.logprob else (),
            finish_reason=request.finish_reason,
            stop_reason=stop_reason,
            record=record,
        )

    def _run_apart(
        self, plan: StepPlan, error: Exception, failed: list[RequestOutput]
    ) -> tuple[StepPlan, StepResult]:
        """Run the slices of a failed step one by one; those that fail alone end with their error.

        Computing a slice again writes the same bits, so nothing is lost by the first attempt.
        """
        is_single = len(plan.slices) == 1
        prefill: list[Slice] = []
        decode: list[Slice] = []
        results: list[StepResult] = []
        start_s = self._clock()
        for s in plan.slices:
            kept = prefill if s.phase is Phase.PREFILL else decode
            part = StepPlan(
                (s,) if kept is prefill else (),
                (s,) if kept is decode else (),
                () if results else plan.new_blocks,
                () if results else plan.copies,
            )
            try:
                if is_single:
                    raise error
                results.append(self._runner.run(part))
                kept.append(s)
            except Exception as own:
                message = f"{type(own).__name__}: {own}"
                output = self._end(s.request_id, FinishReason.ERROR, error=message)
                assert output is not None
                failed.append(output)
        sampled = {k: v for r in results for k, v in r.sampled.items()}
        scores = {k: v for r in results for k, v in r.scores.items()}
        result = StepResult(sampled, scores, start_s, self._clock())
        return StepPlan(tuple(prefill), tuple(decode), plan.new_blocks, plan.copies), result

    def warm_up(self) -> None:
        """Run both phases twice, unseen by the observers: once cold, once for the predictor."""
        observers, self._observers = self._observers, ()
        take_record, self._take_record = self._take_record, None
        params = SamplingParams(temperature=0.0, max_tokens=WARM_UP_OUTPUT, ignore_eos=True)
        num_prompt = min(WARM_UP_PROMPT, self._scheduler.max_prompt_tokens(params))
        try:
            for request_id in WARM_UP_IDS[: 2 * bool(num_prompt)]:
                self.add(
                    Request(
                        id=request_id,
                        prompt_token_ids=(0,) * num_prompt,
                        params=params,
                        seed=0,
                        end_token_ids=frozenset(),
                        arrival_s=self._clock(),
                        salt=request_id,  # so that the second is not a cache hit
                    )
                )
                while self._scheduler.get(request_id) is not None:
                    self.step()
        finally:
            self._observers = observers
            self._take_record = take_record

    def _is_cold(self, plan: StepPlan) -> bool:
        if len(self._warm) == len(Phase):
            return False
        phases = {s.phase for s in plan.slices}
        is_cold = not phases <= self._warm
        self._warm |= phases
        return is_cold

    def _record(self, request_id: str) -> RequestRecord | None:
        return self._take_record(request_id) if self._take_record is not None else None

    def _emit(self, event: Event) -> None:
        for observer in self._observers:
            observer.on_event(event)

    def _emit_scheduled(self) -> None:
        for event in self._scheduler.take_events():
            self._emit(event)
