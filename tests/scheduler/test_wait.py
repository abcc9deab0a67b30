"""How long the queue takes, and when it is full."""

from __future__ import annotations

import pytest

from tests.simulation import Simulation, tokens
from twostroke.errors import QueueFull
from twostroke.planner.simulated import LinearCost

COST = LinearCost(step_s=0.001, prefill_token_s=0.001)


def test_an_unknown_speed_gives_no_prediction_and_refuses_nobody_for_it() -> None:
    sim = Simulation(cost=COST, max_wait_s=0.5)
    for s in range(10):
        sim.add(tokens(300, seed=s + 1), max_tokens=1)
    assert sim.scheduler.predicted_wait_s() is None


def test_the_prediction_is_close_to_the_wait() -> None:
    sim = Simulation(cost=COST, num_blocks=1000)
    sim.engine.warm_up()
    for s in range(5):
        sim.add(tokens(400, seed=s + 1), max_tokens=5)
    predicted_s = sim.scheduler.predicted_wait_s()
    last = sim.add(tokens(50, seed=9), max_tokens=5)
    sim.run()
    assert predicted_s == pytest.approx(sim.final[last.id].record.phases.queue_s, rel=0.25)


def test_where_no_slot_is_free_the_answers_ahead_count_too() -> None:
    sim = Simulation(cost=COST, max_num_seqs=2, num_blocks=1000)
    sim.engine.warm_up()
    for s in range(4):
        sim.add(tokens(20, seed=s + 1), max_tokens=300)
    for _ in range(5):
        sim.step()
    predicted_s = sim.scheduler.predicted_wait_s()
    last = sim.add(tokens(20, seed=9), max_tokens=1)
    start_s = sim.clock()
    sim.run()
    waited_s = sim.final[last.id].record.t_arrival_s + sim.final[last.id].record.phases.queue_s
    assert predicted_s == pytest.approx(waited_s - start_s, rel=0.3)


def test_a_full_queue_says_when_a_place_is_free() -> None:
    sim = Simulation(cost=LinearCost(step_s=0.1, prefill_token_s=0.01), max_waiting=3)
    sim.engine.warm_up()
    for s in range(3):
        sim.add(tokens(500, seed=s + 1), max_tokens=1)
    with pytest.raises(QueueFull, match="limit 3") as refused:
        sim.add(tokens(5), max_tokens=1)
    assert refused.value.retry_after_s == pytest.approx(5.1, rel=0.3)
    sim.step()
    sim.add(tokens(5), max_tokens=1)
    sim.run()
