"""Every wait is accounted for: intervals from scripted moments, and sums that add up."""

from __future__ import annotations

import pytest

from tests.simulation import Simulation, tokens
from twostroke.events import Admitted, Arrived, Finished, Preempted, StepDone
from twostroke.meters.floors import Floors
from twostroke.meters.phase_meter import MAX_FINISHED, PhaseMeter
from twostroke.planner.simulated import LinearCost
from twostroke.request import FinishReason, SamplingParams
from twostroke.step import Phase, SampleSpec, Slice, StepPlan, StepResult

SPEC = SampleSpec(SamplingParams(), 0, 0, 0)


def pre(name: str, start: int, n: int, *, is_last: bool = False) -> Slice:
    return Slice(name, Phase.PREFILL, (1,) * n, start, (), SPEC if is_last else None)


def dec(name: str, start: int) -> Slice:
    return Slice(name, Phase.DECODE, (1,), start, (), SPEC)


def step(
    start_s: float, end_s: float, prefill=(), decode=(), predicted_s=None, **kwargs
) -> StepDone:
    plan = StepPlan(tuple(prefill), tuple(decode), predicted_s=predicted_s)
    return StepDone(plan, StepResult({}, {}, start_s, end_s), **kwargs)


def feed(meter: PhaseMeter, *events) -> None:
    for event in events:
        meter.on_event(event)


def admitted(name: str, t_s: float, *, lookup_s: float = 0.0, cached: int = 0) -> Admitted:
    return Admitted(name, t_s, t_s - lookup_s, cached)


def finished(name: str, t_s: float, n: int, reason=FinishReason.LENGTH) -> Finished:
    return Finished(name, t_s, reason, 100, 4096, n)


def test_each_interval_goes_to_its_phase() -> None:
    meter = PhaseMeter(model="m", build="b")
    feed(
        meter,
        Arrived("a", 10.0, 80, load_s=0.5, init_s=0.25),
        admitted("a", 11.5, lookup_s=0.1, cached=10),
        step(11.6, 12.5, [pre("a", 10, 40)]),
        step(12.6, 13.0, [pre("b", 0, 9)]),  # a was runnable and not in the plan
        step(13.1, 14.0, [pre("a", 50, 30, is_last=True)], [dec("b", 9)]),
        step(14.0, 14.2, (), [dec("a", 80), dec("b", 10)]),
        step(14.2, 14.3, (), [dec("a", 81)]),
        finished("a", 14.35, 3, FinishReason.STOP),
    )
    record = meter.take("a")
    p = record.phases
    assert p.queue_s == pytest.approx(1.4)
    assert (p.load_s, p.init_s) == (0.5, 0.25)
    assert p.cache_s == pytest.approx(0.1)
    assert p.prefill_s == pytest.approx(1.0 + 1.0)
    assert p.stall_s == pytest.approx(0.5)
    assert p.decode_s == pytest.approx(0.3)
    assert p.tail_s == pytest.approx(0.05)
    assert record.mixed_s == pytest.approx(1.0)
    assert record.t_arrival_s == pytest.approx(9.25)
    assert record.e2e_s == pytest.approx(5.1) == pytest.approx(p.known_s())
    assert record.ttft_any_s == pytest.approx(4.75)
    assert record.tpot_s == pytest.approx(0.15)
    assert record.itl.p50_s == pytest.approx(0.1) and record.itl.max_s == pytest.approx(0.2)
    assert record.prefill_tok_s == pytest.approx(70 / 2.0)
    assert record.decode_tok_s == pytest.approx(2 / 0.3)
    assert (record.chunks, record.steps, record.batch_mean) == (2, 2, 1.5)
    assert (record.prompt.total, record.prompt.cached, record.prompt.new) == (80, 10, 70)
    assert (record.finish, record.model, record.build) == ("stop", "m", "b")
    assert meter.take("a") is None


def test_waiting_after_a_preemption_is_stall_and_recompute_is_prefill() -> None:
    meter = PhaseMeter()
    feed(
        meter,
        Arrived("a", 0.0, 40),
        admitted("a", 0.0, cached=8),
        step(0.0, 1.0, [pre("a", 8, 32, is_last=True)]),
        step(1.0, 1.5, (), [dec("a", 40)]),
        Preempted("a", 1.6, 41),
        step(1.6, 3.0, (), [dec("b", 5)]),
        admitted("a", 3.0),
        step(3.0, 4.0, [pre("a", 0, 42, is_last=True)]),
        finished("a", 4.0, 3),
    )
    record = meter.take("a")
    assert record.phases.stall_s == pytest.approx(1.5)
    assert record.phases.prefill_s == pytest.approx(2.0)
    assert record.prefill_tok_s == pytest.approx((32 + 42) / 2.0)
    assert (record.preemptions, record.prompt.cached) == (1, 8)
    assert record.phases.known_s() == pytest.approx(record.e2e_s)


def test_unknown_is_none_never_zero() -> None:
    meter = PhaseMeter()
    feed(
        meter,
        Arrived("a", 0.0, 20),
        admitted("a", 0.0),
        step(0.0, 1.0, [pre("a", 0, 20, is_last=True)]),
        finished("a", 1.0, 1),
        Arrived("b", 0.0, 20),
        finished("b", 2.0, 0, FinishReason.CANCELLED),
    )
    one, none = meter.take("a"), meter.take("b")
    assert one.prefill_tok_s is None, "20 tokens measure fixed costs"
    assert one.tpot_s is one.decode_tok_s is one.batch_mean is one.itl.max_s is None
    assert one.prefill_mfu is one.decode_mbu is one.prefill_ceiling_tok_s is None
    assert one.predicted_prefill_s is one.ttft_visible_s is one.output.reasoning is None
    assert one.ttft_any_s == pytest.approx(1.0)
    assert none.ttft_any_s is none.prompt.cached is none.prompt.new is None
    assert none.phases.queue_s == none.e2e_s == 2.0


class Machine:
    """Knows that a prefill token takes 10 ms of arithmetic and a step 2 ms of traffic."""

    def floors(self, plan: StepPlan) -> Floors:
        return Floors(0.01 * sum(len(s.token_ids) for s in plan.prefill), 0.002)


def test_shares_of_the_machine_come_from_floors_over_time() -> None:
    meter = PhaseMeter(floors=Machine())
    feed(
        meter,
        Arrived("a", 0.0, 40),
        admitted("a", 0.0),
        step(0.0, 0.8, [pre("a", 0, 40, is_last=True)], predicted_s=0.7),
        step(0.8, 0.81, (), [dec("a", 40)], predicted_s=0.009),
        finished("a", 0.81, 2),
    )
    record = meter.take("a")
    assert record.prefill_mfu == pytest.approx(0.5)
    assert record.prefill_ceiling_tok_s == pytest.approx(100.0)
    assert record.decode_mbu == pytest.approx(0.2)
    assert record.decode_ceiling_tok_s == pytest.approx(500.0)
    assert (record.predicted_prefill_s, record.predicted_decode_s) == (0.7, 0.009)


def test_a_cold_step_marks_its_requests() -> None:
    meter = PhaseMeter()
    feed(
        meter,
        Arrived("a", 0.0, 40),
        admitted("a", 0.0),
        step(0.0, 1.0, [pre("a", 0, 40, is_last=True)], cold=True),
        finished("a", 1.0, 1),
    )
    assert meter.take("a").meter.flags == ("cold",)


def test_records_that_nobody_takes_do_not_pile_up() -> None:
    meter = PhaseMeter()
    for i in range(MAX_FINISHED + 50):
        feed(meter, Arrived(str(i), 0.0, 1), finished(str(i), 1.0, 0))
    assert len(meter._finished) == MAX_FINISHED
    assert meter.take("0") is None and meter.take("60") is not None


def test_the_phases_of_every_request_add_up_under_load() -> None:
    sim = Simulation(
        num_blocks=60,
        max_model_len=600,
        growth_tokens=16,
        max_num_seqs=4,
        prefill_chunk=64,
        cost=LinearCost(step_s=0.003, prefill_token_s=0.0007, decode_s=0.0004),
        target_tpot_s=0.02,
    )
    sim.engine.warm_up()
    for s in range(12):
        sim.add(tokens(20 + 37 * (s % 5), seed=s), max_tokens=None if s % 2 else 40)
        for _ in range(7):
            sim.step()
    sim.abort("r11")
    sim.run()
    records = [f.record for f in sim.final.values()]
    assert len(records) == 12 and sum(r.preemptions for r in records) > 0
    for record in records:
        assert record.phases.known_s() == pytest.approx(record.e2e_s, abs=1e-3)
        assert record.mixed_s <= record.phases.prefill_s + record.phases.decode_s + 1e-9
    assert max(r.phases.stall_s for r in records) > 0
