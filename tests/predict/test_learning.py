"""An untaught predictor finds the machine that made its steps, and is not led astray."""

from __future__ import annotations

import random
import time

import pytest

from tests.predict.test_fit import PROFILE, truth
from tests.small_cost import small_cost
from twostroke.predict.fitted_speed import assumed_speed
from twostroke.predict.learning import LearningPredictor
from twostroke.request import SamplingParams
from twostroke.step import Phase, SampleSpec, Slice, StepPlan

SMALL = small_cost()


def cost_s(plan: StepPlan) -> float:
    """Return what a step takes on a machine that the predictor knows nothing about."""
    return truth(SMALL.step_work(plan))


def plan(*prefill: tuple[int, int], decode: tuple[int, ...] = ()) -> StepPlan:
    spec = SampleSpec(SamplingParams(), 0, 0, 0)
    return StepPlan(
        tuple(Slice(f"p{i}", Phase.PREFILL, (1,) * n, s, ()) for i, (s, n) in enumerate(prefill)),
        tuple(Slice(f"d{i}", Phase.DECODE, (1,), c, (), spec) for i, c in enumerate(decode)),
    )


def random_plan(rng: random.Random) -> StepPlan:
    decode = tuple(rng.randrange(4000) for _ in range(rng.choice([0, 1, 3, 8])))
    if decode and rng.random() < 0.5:
        return plan(decode=decode)
    return plan((rng.randrange(8000), rng.randrange(1, 512)), decode=decode)


def trained(n: int = 200, noise: float = 0.0, seed: int = 1) -> LearningPredictor:
    rng = random.Random(seed)
    predictor = LearningPredictor.untaught(SMALL)
    for _ in range(n):
        p = random_plan(rng)
        predictor.observe(p, cost_s(p) * (1 + noise * rng.uniform(-1, 1)))
    return predictor


def worst(predictor: LearningPredictor) -> float:
    rng = random.Random(99)
    plans = [random_plan(rng) for _ in range(50)]
    return max(abs(predictor.step_s(p) / cost_s(p) - 1) for p in plans)


def test_nothing_is_predicted_for_a_phase_never_measured() -> None:
    predictor = LearningPredictor.untaught(SMALL)
    assert predictor.step_s(plan((0, 10))) is None
    assert predictor.current.step_s(plan((0, 10))) is None
    assert predictor.current.missing == ("this backend's peaks",)
    predictor.observe(plan((0, 100)), 0.05)
    assert predictor.step_s(plan((0, 10))) is not None
    assert predictor.current.prefill(0, 10, chunk=512) is not None
    assert predictor.step_s(plan(decode=(5,))) is None
    assert predictor.current.decode(5) is None
    assert predictor.current.missing == ("a measured decode step",)
    assert predictor.step_s(plan((0, 10), decode=(5,))) is None
    assert predictor.current.step_s(plan((0, 10), decode=(5,))) is None
    predictor.observe(plan(decode=(5,)), 0.002)
    assert predictor.step_s(plan((0, 10), decode=(5,))) is not None
    assert predictor.current.step_s(plan((0, 10), decode=(5,))) is not None
    assert predictor.current.missing == ()


@pytest.mark.parametrize("seed", [1, 2, 3, 4])
def test_the_true_cost_is_found(seed: int) -> None:
    assert worst(trained(seed=seed)) < 0.03
    assert worst(trained(seed=seed, noise=0.05)) < 0.15


def test_one_seen_size_scales_in_proportion() -> None:
    predictor = LearningPredictor.untaught(SMALL)
    for _ in range(5):
        predictor.observe(plan((0, 512)), 0.2)
    assert predictor.step_s(plan((0, 256))) == pytest.approx(0.1, rel=0.15)
    assert predictor.step_s(plan((0, 512))) == pytest.approx(0.2, rel=0.01)


def test_a_few_stalls_of_the_machine_do_not_spoil_the_fit() -> None:
    predictor = trained()
    rng = random.Random(5)
    for i in range(100):
        p = random_plan(rng)
        predictor.step_s(p)
        predictor.observe(p, cost_s(p) * (50 if i % 20 == 7 else 1))
    assert worst(predictor) < 0.25


def test_a_machine_that_became_slower_is_noticed() -> None:
    predictor = trained()
    rng = random.Random(6)
    for _ in range(300):
        p = random_plan(rng)
        predictor.step_s(p)
        predictor.observe(p, cost_s(p) * 2)
    p = plan((1000, 256), decode=(100,))
    assert predictor.step_s(p) == pytest.approx(2 * cost_s(p), rel=0.1)


def test_a_long_answer_does_not_make_it_forget_prefill() -> None:
    predictor = trained()
    p = plan((2000, 300))
    for i in range(5000):
        d = plan(decode=(i,))
        predictor.observe(d, cost_s(d))
    assert predictor.step_s(p) == pytest.approx(cost_s(p), rel=0.05)


def test_predictions_are_never_negative() -> None:
    rng = random.Random(2)
    for seed in range(20):
        predictor = LearningPredictor.untaught(SMALL)
        for _ in range(6):
            p = random_plan(rng)
            predictor.observe(p, rng.uniform(0, 1) ** 4)
        probe = random.Random(seed)
        assert all((predictor.step_s(random_plan(probe)) or 0.0) >= 0 for _ in range(20))


def test_the_current_predictor_never_changes_and_is_replaced_by_a_refit() -> None:
    predictor = LearningPredictor.untaught(SMALL)
    predictor.observe(plan((0, 512)), 0.2)
    first, told = predictor.current, predictor.current.step_s(plan((0, 512)))
    for _ in range(200):
        predictor.observe(plan((0, 512)), 0.4)
    assert predictor.current is not first
    assert first.step_s(plan((0, 512))) == told
    assert predictor.current.step_s(plan((0, 512))) == predictor.step_s(plan((0, 512)))


def test_observing_and_predicting_a_decode_step_costs_microseconds() -> None:
    predictor = trained()
    p = plan(decode=(1000,) * 8)
    start_s = time.thread_time()
    for _ in range(500):
        predictor.step_s(p)
        predictor.observe(p, 0.005)
    # 16 us measured; ten times that would already be 4 % of a 4 ms step.
    assert (time.thread_time() - start_s) / 500 < 160e-6


def test_a_mixed_step_teaches_nothing() -> None:
    predictor = LearningPredictor(SMALL, assumed_speed(PROFILE))
    first = Slice("a", Phase.PREFILL, (1,) * 64, 0, ())
    second = Slice("b", Phase.DECODE, (1,), 9, ())
    plan = StepPlan(prefill=(first,), decode=(second,))
    before = predictor.step_s(plan)
    for _ in range(40):
        predictor.observe(plan, 9.0)
    assert predictor.step_s(plan) == before
    predictor.observe(StepPlan(prefill=(first,)), 9.0)
    assert (predictor.step_s(StepPlan(prefill=(first,))) or 0.0) == pytest.approx(9.0, rel=0.1)
