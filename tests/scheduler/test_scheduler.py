"""Order, admission, phases and promises of the scheduler."""

from __future__ import annotations

import pytest

from tests.simulation import Simulation, tokens
from twostroke.errors import RequestError
from twostroke.events import Admitted, Preempted, StepDone
from twostroke.planner.simulated import LinearCost
from twostroke.scheduler.sequence import SequenceState
from twostroke.step import Phase, StepPlan


def order_of_admission(sim: Simulation) -> list[str]:
    return [e.request_id for e in sim.log.of(Admitted)]


def test_first_come_first_served_within_a_priority_and_urgent_ones_before() -> None:
    sim = Simulation(max_num_seqs=1)
    sim.add(tokens(5), id="first", max_tokens=2)
    sim.step()
    sim.add(tokens(5, seed=2), id="a", max_tokens=2)
    sim.add(tokens(5, seed=3), id="b", max_tokens=2)
    sim.add(tokens(5, seed=4), id="urgent", max_tokens=2, priority=-1)
    sim.run()
    assert order_of_admission(sim) == ["first", "urgent", "a", "b"]


def test_an_urgent_prompt_goes_before_the_rest_of_one_that_is_being_read() -> None:
    sim = Simulation(prefill_chunk=32)
    sim.add(tokens(320), id="long", max_tokens=1)
    sim.step()
    sim.add(tokens(40, seed=2), id="urgent", max_tokens=1, priority=-1)
    sim.add(tokens(40, seed=3), id="patient", max_tokens=1)
    sim.run()
    assert list(sim.final) == ["urgent", "long", "patient"]


def test_a_low_priority_request_is_not_starved_by_a_stream_of_urgent_ones() -> None:
    sim = Simulation(max_num_seqs=1, cost=LinearCost(step_s=1.0))
    sim.add(tokens(5), id="patient", max_tokens=2, priority=1)
    for i in range(200):  # one a second, each takes two
        sim.add(tokens(5, seed=i + 2), max_tokens=2)
        sim.step()
        if "patient" in order_of_admission(sim):
            break
    assert "patient" in order_of_admission(sim) and 60 < i < 150


def test_a_finished_request_leaves_and_a_new_one_joins_on_the_next_step() -> None:
    sim = Simulation(max_num_seqs=2)
    sim.add(tokens(5), id="a", max_tokens=2)
    sim.add(tokens(5, seed=2), id="b", max_tokens=6)
    sim.add(tokens(5, seed=3), id="c", max_tokens=2)
    ids = []
    while sim.engine.has_work:
        sim.step()
        ids.append({s.request_id for s in sim.log.of(StepDone)[-1].plan.slices})
    assert ids[:4] == [{"a", "b"}, {"a", "b"}, {"b", "c"}, {"b", "c"}]


def test_short_prompts_share_a_step_up_to_the_chunk() -> None:
    sim = Simulation(prefill_chunk=64)
    for s in range(4):
        sim.add(tokens(30, seed=s + 1), max_tokens=2)
    sim.step()
    plan = sim.log.of(StepDone)[0].plan
    assert [len(s.token_ids) for s in plan.prefill] == [30, 30]
    sim.run()


def test_phases_follow_from_counts_and_recompute_is_prefill() -> None:
    sim = Simulation(num_blocks=20, max_model_len=320, growth_tokens=16, is_cache_enabled=False)
    a, b = sim.add(tokens(40)), sim.add(tokens(40, seed=2))
    sim.run()
    assert a.num_preemptions == 0 and b.num_preemptions >= 1
    steps = sim.log.of(StepDone)
    for event in steps:
        assert all(s.phase is Phase.PREFILL for s in event.plan.prefill)
        assert all(s.phase is Phase.DECODE and len(s.token_ids) == 1 for s in event.plan.decode)
    again = [s for e in steps for s in e.plan.prefill if s.request_id == b.id][1:]
    assert again and again[0].start == 0 and again[-1].end > 40
    assert again[-1].sample is not None


def test_a_preempted_request_reuses_what_was_not_evicted() -> None:
    sim = Simulation(num_blocks=20, max_model_len=320, growth_tokens=16)
    a = sim.add(tokens(40))
    b = sim.add(tokens(40, seed=2))
    while not b.num_preemptions:
        sim.step()
    sim.abort(a.id)
    sim.run()
    resumed = [e for e in sim.log.of(Admitted) if e.request_id == b.id][1:]
    lost = [e for e in sim.log.of(Preempted) if e.request_id == b.id]
    assert len(resumed) == len(lost) >= 1
    assert resumed[0].num_cached_tokens > 40, "output is reused too"
    assert b.num_cached_tokens == 0, "what the prompt found at first, not at resume"


def test_the_youngest_without_a_declared_length_loses_first_then_the_youngest() -> None:
    sim = Simulation(num_blocks=24, max_model_len=384, growth_tokens=16)
    sim.engine.warm_up()
    sim.add(tokens(30), id="oldest")
    sim.add(tokens(30, seed=2), id="growing")
    sim.add(tokens(30, seed=3), id="young")
    sim.add(tokens(30, seed=4), id="declared", max_tokens=130)
    while len(sim.log.of(Preempted)) < 2:
        sim.step()
    assert [e.request_id for e in sim.log.of(Preempted)] == ["young", "growing"]
    assert all(e.cost_s > 0 for e in sim.log.of(Preempted))
    sim.run()
    assert len(sim.final) == 4


def test_the_oldest_always_progresses_even_against_a_promise() -> None:
    sim = Simulation(num_blocks=12, max_model_len=192, growth_tokens=16)
    oldest = sim.add(tokens(30))
    declared = sim.add(tokens(30, seed=2), max_tokens=100)
    sim.run()
    assert (oldest.num_preemptions, declared.num_preemptions) == (0, 1)
    assert len(sim.outputs[oldest.id]) == 162
    assert sim.outputs[declared.id] == Simulation().answer(tokens(30, seed=2), max_tokens=100)


def test_sampling_carries_history_only_where_penalties_look_at_it() -> None:
    sim = Simulation()
    sim.add(tokens(20), id="plain", max_tokens=4)
    sim.add(tokens(20, seed=2), id="penalised", max_tokens=4, repetition_penalty=1.5)
    sim.run()
    last = {s.request_id: s.sample for s in sim.log.of(StepDone)[-1].plan.decode}
    assert last["plain"].prompt_ids == last["plain"].output_ids == ()
    assert last["penalised"].prompt_ids == tuple(tokens(20, seed=2))
    assert last["penalised"].output_ids == tuple(sim.outputs["penalised"][:3])
    assert last["plain"].position == 23


def test_a_chunk_that_is_not_the_last_does_not_sample() -> None:
    sim = Simulation(prefill_chunk=32)
    sim.add(tokens(70), max_tokens=1)
    sim.run()
    slices = [e.plan.prefill[0] for e in sim.log.of(StepDone)]
    assert [(s.start, s.end, s.sample is None) for s in slices] == [
        (0, 32, True),
        (32, 64, True),
        (64, 70, False),
    ]


def test_bad_requests_are_refused_by_name() -> None:
    sim = Simulation()
    with pytest.raises(RequestError, match="no tokens"):
        sim.add([], max_tokens=1)
    with pytest.raises(RequestError, match="out of range"):
        sim.add([-1], max_tokens=1)
    sim.add([5], id="x", max_tokens=1)
    with pytest.raises(RequestError, match="of this id"):
        sim.add([5], id="x", max_tokens=1)
    sim.run()


def test_waiting_for_memory_does_not_look_up_the_prompt_at_every_step() -> None:
    sim = Simulation(num_blocks=20, max_model_len=320)
    sim.add(tokens(40), max_tokens=200)
    sim.step()
    sim.add(tokens(200, seed=2), max_tokens=20)
    lookups = 0
    match = sim.cache.match

    def counted(*args):
        nonlocal lookups
        lookups += 1
        return match(*args)

    sim.cache.match = counted
    for _ in range(50):
        sim.step()
    assert lookups == 1
    sim.run()
    assert len(sim.final) == 2


def test_the_plan_without_work_is_empty() -> None:
    sim = Simulation()
    assert sim.scheduler.plan() == StepPlan()
    assert sim.step() == []


def test_a_held_request_lets_one_with_another_head_pass() -> None:
    sim = Simulation(prefill_chunk=64, target_tpot_s=0.02, cost=LinearCost(step_s=0.002))
    sim.engine.warm_up()
    sim.add(tokens(500), id="computing", max_tokens=2)
    sim.step()
    held = sim.add(tokens(500), id="held", max_tokens=2)
    sim.run()
    assert held.num_cached_tokens == 499
    assert order_of_admission(sim) == ["computing", "held"]
    assert held.state is SequenceState.FINISHED
