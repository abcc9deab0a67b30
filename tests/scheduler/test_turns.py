"""What the predictor learns from is the turn: a step and the engine's own time before it."""

from __future__ import annotations

import pytest

from tests.engine.test_predict_request import ids
from twostroke.cache.manager import KVCacheManager
from twostroke.config import EngineConfig
from twostroke.engine.engine import Engine
from twostroke.planner.simulated import FakeClock, SimulatedRunner
from twostroke.request import Request, SamplingParams
from twostroke.scheduler.scheduler import MAX_GAP_SHARE, Scheduler
from twostroke.step import StepPlan

STEP_S = 0.010


class Listener:
    def __init__(self) -> None:
        self.seconds: list[float] = []

    def step_s(self, plan: StepPlan) -> float | None:
        return STEP_S

    def observe(self, plan: StepPlan, seconds: float) -> None:
        self.seconds.append(seconds)


@pytest.mark.parametrize(
    ("gap_s", "counted_s"), [(0.0, 0.0), (0.001, 0.001), (5.0, MAX_GAP_SHARE * STEP_S)]
)
def test_a_turn_counts_the_gap_before_its_step_but_not_a_callers_pause(
    gap_s: float, counted_s: float
) -> None:
    clock, listener = FakeClock(), Listener()
    config = EngineConfig(max_model_len=256, max_num_seqs=2)
    scheduler = Scheduler(config, KVCacheManager(64), listener, clock=clock)
    runner = SimulatedRunner(64, lambda plan: STEP_S, clock)
    engine = Engine(scheduler, runner, clock=clock)

    def run_one(name: str, start: int) -> None:
        params = SamplingParams(temperature=0.0, max_tokens=5, ignore_eos=True)
        engine.add(
            Request(
                id=name, prompt_token_ids=ids(20, start), params=params, seed=0,
                end_token_ids=frozenset(), arrival_s=clock.now_s,
            )
        )  # fmt: skip
        while engine.has_work:
            engine.step()
            clock.advance(gap_s)

    run_one("cold", 0)
    clock.advance(100.0)  # idle time belongs to nobody
    listener.seconds.clear()
    run_one("warm", 1000)
    first, *later = listener.seconds
    assert first == pytest.approx(STEP_S)
    assert later == pytest.approx([STEP_S + counted_s] * 4)
