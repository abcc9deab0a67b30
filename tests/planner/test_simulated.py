"""The simulated runner notices what a real cache would: wrong blocks, lost copies, stale slots."""

from __future__ import annotations

from tests.simulation import Simulation, tokens
from twostroke.planner.simulated import FakeClock, LinearCost, SimulatedRunner
from twostroke.request import SamplingParams
from twostroke.step import BlockCopy, Phase, SampleSpec, Slice, StepPlan

SPEC = SampleSpec(SamplingParams(), 0, 0, 40)


def runner(*, is_stateful: bool = True) -> SimulatedRunner:
    return SimulatedRunner(8, LinearCost(), FakeClock(), is_stateful=is_stateful)


def pre(ids: list[int], start: int, table: tuple[int, ...]) -> Slice:
    return Slice("a", Phase.PREFILL, tuple(ids), start, table, SPEC)


def run(r: SimulatedRunner, s: Slice, **kwargs) -> int:
    return r.run(StepPlan(prefill=(s,), **kwargs)).sampled["a"].token_id


def test_tokens_do_not_depend_on_chunks_or_on_which_blocks() -> None:
    ids = tokens(40)
    whole = run(runner(), pre(ids, 0, (0, 1, 2)))
    chunked = runner()
    run(chunked, pre(ids[:7], 0, (5, 3, 1)))
    assert run(chunked, pre(ids[7:], 7, (5, 3, 1))) == whole


def test_a_wrong_block_a_missing_copy_and_another_token_change_the_answer() -> None:
    ids = tokens(40)
    whole = run(runner(), pre(ids, 0, (0, 1, 2)))
    wrong = runner()
    run(wrong, pre(ids[:20], 0, (0, 1)))
    assert run(wrong, pre(ids[20:], 20, (0, 4, 2))) != whole
    copied = runner()
    run(copied, pre(ids[:20], 0, (0, 1)))
    copy = BlockCopy(1, 4, 4)
    assert run(copied, pre(ids[20:], 20, (0, 4, 2)), new_blocks=(4,), copies=(copy,)) == whole
    assert run(runner(), pre([9, *ids[1:]], 0, (0, 1, 2))) != whole


def test_time_passes_as_predicted_and_on_the_clock() -> None:
    clock = FakeClock(5.0)
    cost = LinearCost(
        step_s=1.0, prefill_token_s=0.5, pair_s=0.01, decode_s=0.25, context_token_s=0.001
    )
    r = SimulatedRunner(8, cost, clock)
    decode = Slice("b", Phase.DECODE, (1,), 100, (), SPEC)
    result = r.run(StepPlan((pre(tokens(4), 10, ()),), (decode,)))
    expected_s = 1.0 + 2.0 + 0.01 * 4 * 12 + 0.25 + 0.1
    assert result.start_s == 5.0
    assert abs(result.end_s - 5.0 - expected_s) < 1e-9
    assert clock() == result.end_s


def test_without_state_tokens_are_deterministic_too() -> None:
    answers = [
        Simulation(is_stateful=False).answer(tokens(20), max_tokens=10, seed=s) for s in (1, 1, 2)
    ]
    assert answers[0] == answers[1] != answers[2]
