"""A failed step, run again slice by slice, so that only the requests that fail alone end."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from twostroke.step import Phase, Runner, Slice, StepPlan, StepResult


class RunApart(NamedTuple):
    """The slices that ran, their result, and (request id, message) of those that failed."""

    plan: StepPlan
    result: StepResult
    errors: tuple[tuple[str, str], ...]


def run_apart(
    runner: Runner, plan: StepPlan, error: Exception, clock: Callable[[], float]
) -> RunApart:
    """Run the slices of a step that failed with `error` one by one.

    Computing a slice again writes the same bits, so nothing is lost by the first attempt. The
    step's predicted time does not hold for this way of running and is dropped.
    """
    ran: list[Slice] = []
    results: list[StepResult] = []
    errors: list[tuple[str, str]] = []
    start_s = clock()
    for s in plan.slices:
        try:
            if len(plan.slices) == 1:
                raise error
            results.append(runner.run(_alone(s, plan, is_first=not results)))
            ran.append(s)
        except Exception as own:
            errors.append((s.request_id, f"{type(own).__name__}: {own}"))
    sampled = {k: v for r in results for k, v in r.sampled.items()}
    scores = {k: v for r in results for k, v in r.scores.items()}
    kept = StepPlan(
        tuple(s for s in ran if s.phase is Phase.PREFILL),
        tuple(s for s in ran if s.phase is Phase.DECODE),
        plan.new_blocks,
        plan.copies,
    )
    return RunApart(kept, StepResult(sampled, scores, start_s, clock()), tuple(errors))


def _alone(s: Slice, plan: StepPlan, *, is_first: bool) -> StepPlan:
    """Return a plan of one slice; the first one also prepares the blocks of the whole step."""
    is_prefill = s.phase is Phase.PREFILL
    return StepPlan(
        (s,) if is_prefill else (),
        () if is_prefill else (s,),
        plan.new_blocks if is_first else (),
        plan.copies if is_first else (),
    )
