"""Random arrivals, cancels, preemptions, evictions and shared prefixes on the real scheduler."""

from __future__ import annotations

import random

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tests.simulation import Simulation, tokens
from twostroke.errors import CapacityError, RequestError
from twostroke.request import FinishReason
from twostroke.scheduler.sequence import SequenceState

NUM_BLOCKS = 24
PREFIXES = [tokens(70, seed=s) for s in (1, 2)]


class EngineMachine(RuleBasedStateMachine):
    """The pool and the chunks are small, so that every kind of shortage happens."""

    def __init__(self) -> None:
        super().__init__()
        self.sim = Simulation(
            num_blocks=NUM_BLOCKS,
            prefill_chunk=48,
            max_num_seqs=4,
            max_model_len=300,
            target_tpot_s=0.012,
            max_waiting=12,
            growth_tokens=24,
        )
        self.asked: dict[str, tuple[list[int], dict]] = {}
        self.cancelled: set[str] = set()

    @rule(
        prefix=st.integers(0, 1),
        shared=st.integers(0, 70),
        own=st.integers(1, 60),
        own_seed=st.integers(3, 5),
        max_tokens=st.one_of(st.none(), st.integers(0, 120)),
        priority=st.integers(-1, 1),
        salt=st.sampled_from(["", "a"]),
        seed=st.integers(0, 3),
    )
    def arrive(self, prefix, shared, own, own_seed, max_tokens, priority, salt, seed) -> None:
        prompt = PREFIXES[prefix][:shared] + tokens(own, seed=own_seed)
        asked = {"max_tokens": max_tokens, "seed": seed}
        waiting = self.sim.scheduler.num_waiting
        try:
            request = self.sim.add(prompt, priority=priority, salt=salt, **asked)
        except CapacityError:
            assert waiting >= 12 or len(prompt) + (max_tokens or 0) > NUM_BLOCKS * 16
        except RequestError:
            assert len(prompt) + (max_tokens if max_tokens is not None else 1) > 300
        else:
            self.asked[request.id] = (prompt, asked)

    @precondition(lambda self: self.sim.engine.has_work)
    @rule(n=st.integers(1, 30))
    def run_steps(self, n: int) -> None:
        for _ in range(n):
            if self.sim.engine.has_work:
                self.sim.step()

    @precondition(lambda self: self.sim.engine.has_work)
    @rule(which=st.integers(0, 100))
    def cancel(self, which: int) -> None:
        requests = self.sim.scheduler.sequences()
        request = requests[which % len(requests)]
        self.sim.abort(request.id)
        self.cancelled.add(request.id)
        assert request.state is SequenceState.FINISHED and not request.block_table

    @precondition(lambda self: self.sim.engine.has_work)
    @rule()
    def every_step_makes_progress(self) -> None:
        before = [(r.num_computed_tokens, r.num_tokens) for r in self.sim.scheduler.sequences()]
        self.sim.step()
        after = [(r.num_computed_tokens, r.num_tokens) for r in self.sim.scheduler.sequences()]
        assert after != before

    @invariant()
    def blocks_are_conserved(self) -> None:
        self.sim.check()

    def teardown(self) -> None:
        self.sim.run()
        assert set(self.sim.final) == set(self.asked), "somebody was never answered"
        assert self.sim.cache.num_used_blocks == self.sim.cache.num_cached_blocks
        for request_id, (prompt, asked) in self.asked.items():
            final = self.sim.final[request_id]
            if request_id in self.cancelled and final.finish_reason is FinishReason.CANCELLED:
                continue
            alone = Simulation(num_blocks=NUM_BLOCKS, max_model_len=300, is_cache_enabled=False)
            assert alone.answer(prompt, **asked) == self.sim.outputs.get(request_id, [])
            record = final.record
            assert abs(record.phases.known_s() - record.e2e_s) < 1e-6


EngineMachine.TestCase.settings = settings(
    max_examples=40,
    stateful_step_count=25,
    deadline=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
)
TestEngineMachine = EngineMachine.TestCase


def soak(num_requests: int) -> None:
    """Run short requests of random lengths, cancel a third; each must end, and nothing may leak."""
    rng = random.Random(7)
    sim = Simulation(
        num_blocks=128, max_num_seqs=16, max_model_len=512, is_stateful=False, is_logged=False
    )
    prefixes = [tokens(64, seed=s) for s in range(1, 6)]
    added = 0
    while added < num_requests or sim.engine.has_work:
        while added < num_requests and sim.scheduler.num_waiting < 32:
            added += 1
            sim.add(
                rng.choice(prefixes)[: rng.randint(0, 64)]
                + tokens(rng.randint(1, 40), seed=rng.randint(6, 10**6)),
                max_tokens=rng.choice([None, 0, 1, rng.randint(1, 30)]),
                end_token_ids=frozenset(range(100, 3000)),
            )
            if rng.random() < 1 / 3:
                live = sim.scheduler.sequences()
                sim.abort(rng.choice(live).id)
        sim.step()
        if added % 1000 == 0:
            sim.check()
    sim.check()
    assert len(sim.final) == num_requests
    kinds = {f.finish_reason for f in sim.final.values()}
    assert kinds == {FinishReason.STOP, FinishReason.LENGTH, FinishReason.CANCELLED}
    assert not sim.meter._accounts and not sim.meter._finished and not sim.meter._running
    assert len(sim.cache._tree._leaves) <= 2 * sim.cache.num_cached_blocks + 65


def test_a_thousand_random_requests_are_all_answered() -> None:
    soak(1_000)


@pytest.mark.soak
def test_twenty_thousand_random_requests_are_all_answered() -> None:
    soak(20_000)
