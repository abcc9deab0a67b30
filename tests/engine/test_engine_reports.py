"""Rows F, C, K, M, T, X and D of the engine cases, each against the real scheduler and cache.

The forward pass is simulated: its tokens depend on the slots that they read, so a wrong block
changes the answer. Rows about HTTP, text and real weights are tested with those parts.
"""

from __future__ import annotations

import dataclasses
import itertools
import random

import pytest

from tests.simulation import Simulation, tokens
from twostroke.errors import ContextTooLong, OutOfBlocks, QueueFull
from twostroke.events import Admitted, Preempted, StepDone
from twostroke.planner.simulated import LinearCost
from twostroke.request import FinishReason, MessageSpan
from twostroke.scheduler.sequence import SequenceState

CPU = LinearCost(step_s=0.003, prefill_token_s=0.0004, pair_s=2e-8, decode_s=0.0002)
TARGET_S = 0.1


def loaded(**kwargs: object) -> Simulation:
    kwargs.setdefault("num_blocks", 4096)
    sim = Simulation(cost=CPU, target_tpot_s=TARGET_S, is_stateful=False, **kwargs)
    sim.engine.warm_up()
    return sim


def gaps(sim: Simulation, request_id: str) -> list[float]:
    return [b - a for a, b in itertools.pairwise(sim.token_times[request_id])]


# Slow first token


def test_f1_progress_of_a_long_prompt_is_known_and_its_speed_is_never_zero() -> None:
    sim = loaded()
    request = sim.add(tokens(4000), max_tokens=2)
    seen = []
    while not request.output_token_ids:
        sim.step()
        progress = sim.engine.status.progress[request.id]
        seen.append(progress.num_done)
        assert progress.num_total == 4000
        assert sim.engine.status.eta_s(request.id) is not None
    assert seen == sorted(set(seen)) and seen[0] == 512 and seen[-1] == 4000
    sim.run()
    record = sim.final[request.id].record
    assert record.prefill_tok_s == pytest.approx(4000 / record.phases.prefill_s)


def test_f2_a_request_that_meets_a_cold_engine_is_marked_and_kept_out_of_the_fit() -> None:
    cold, warm = Simulation(), Simulation()
    warm.engine.warm_up()
    for sim in (cold, warm):
        sim.answer(tokens(40), max_tokens=3)
    assert cold.final["r1"].record.meter.flags == ("cold",)
    assert warm.final["r1"].record.meter.flags == ()
    assert [e.cold for e in cold.log.of(StepDone)] == [True, True, False]
    assert not any(e.cold for e in warm.log.of(StepDone))


def test_f4_a_stream_keeps_its_pace_while_two_long_prompts_are_read() -> None:
    sim = loaded()
    stream = sim.add(tokens(50), max_tokens=2000)
    while stream.num_output_tokens < 5:
        sim.step()
    prompts = [sim.add(tokens(20_000, seed=s), max_tokens=1) for s in (2, 3)]
    while any(p.state is not SequenceState.FINISHED for p in prompts):
        sim.step()
    assert max(gaps(sim, stream.id)) <= 1.1 * TARGET_S
    chunks = [len(e.plan.prefill[0].token_ids) for e in sim.log.of(StepDone) if e.plan.is_mixed]
    assert chunks[2] > chunks[-3] >= 16, "the chunk shrinks as attention grows"


def test_f5_every_step_of_a_burst_of_prompts_holds_the_stream() -> None:
    sim = loaded()
    stream = sim.add(tokens(50), max_tokens=500)
    while stream.num_output_tokens < 5:
        sim.step()
    for s in range(4):
        sim.add(tokens(4000, seed=s + 2), max_tokens=1)
    start_s = sim.clock()
    first = len(sim.log.events)
    while sim.scheduler.num_running + sim.scheduler.num_waiting > 1:
        sim.step()
    steps = [e for e in sim.log.events[first:] if isinstance(e, StepDone)]
    assert all(e.plan.decode for e in steps)
    assert max(gaps(sim, stream.id)) <= 2 * TARGET_S
    together_s = sim.clock() - start_s
    alone = loaded()
    start_s = alone.clock()
    for s in range(4):
        alone.answer(tokens(4000, seed=s + 2), max_tokens=1)
    assert together_s <= 1.25 * (alone.clock() - start_s)


@pytest.mark.parametrize("num_streams", [1, 60])
def test_f7_a_newcomer_does_not_wait_for_the_incumbents_to_end(num_streams: int) -> None:
    slow = LinearCost(step_s=0.02, prefill_token_s=0.0004, decode_s=0.003)
    sim = Simulation(cost=slow, num_blocks=4096, is_stateful=False, max_num_seqs=64)
    sim.engine.warm_up()
    streams = [sim.add(tokens(20, seed=s + 10), max_tokens=900) for s in range(num_streams)]
    while any(s.num_output_tokens < 5 for s in streams):
        sim.step()
    newcomer = sim.add(tokens(300), max_tokens=5)
    start_s = sim.clock()
    while not newcomer.output_token_ids:
        sim.step()
    own_s = 300 * slow.prefill_token_s
    assert sim.clock() - start_s <= 8 * own_s + 0.5
    assert all(s.finish_reason is None for s in streams)


def test_f_two_saturating_prompts_run_one_after_the_other() -> None:
    sim = loaded()
    first, second = (sim.add(tokens(3000, seed=s), max_tokens=1) for s in (1, 2))
    while first.finish_reason is None:
        sim.step()
        assert second.num_computed_tokens <= 512
    sim.run()
    assert sim.final[first.id].record.ttft_any_s < 0.6 * sim.final[second.id].record.ttft_any_s


# Prompt-cache misses


def test_c1_the_second_call_computes_only_the_suffix() -> None:
    sim = Simulation()
    head = tokens(100)
    sim.answer(head + tokens(30, seed=2), max_tokens=4)
    sim.answer(head + tokens(20, seed=3), max_tokens=4)
    assert sim.final["r2"].record.prompt.cached == 100
    assert sim.final["r2"].record.prompt.new == 20


def test_c3_the_cached_length_never_shrinks_along_a_growing_prompt() -> None:
    sim = Simulation()
    prompt = tokens(10)
    before = 0
    for turn in range(12):
        answer = sim.answer(prompt, max_tokens=7)
        cached = sim.final[f"r{turn + 1}"].record.prompt.cached
        assert cached == (0 if turn == 0 else before)
        before = len(prompt) + len(answer) - 1  # the last token was never computed
        prompt = prompt + answer + tokens(turn + 3, seed=turn + 2)


def test_c4_an_identical_request_computes_one_token() -> None:
    sim = Simulation(num_blocks=2000, is_stateful=False)
    for _ in range(2):
        sim.answer(tokens(20_000), max_tokens=1)
    assert sim.final["r2"].record.prompt.new == 1
    assert sim.final["r2"].record.cache.reason is None


def test_c6_a_short_shared_head_hits_token_exactly() -> None:
    sim = Simulation()
    head = tokens(7)
    sim.answer(head + tokens(40, seed=2), max_tokens=1)
    sim.answer(head + tokens(40, seed=3), max_tokens=1)
    assert sim.final["r2"].record.prompt.cached == 7


def test_c9_c11_a_clock_in_the_first_message_is_named_with_its_place() -> None:
    sim = loaded()
    head, clock, rest = tokens(40), [7, 8, 9], tokens(600, seed=2)
    spans = tuple(
        MessageSpan(index=i, role=r, start=a, end=b, text_hash=h)
        for i, (r, a, b, h) in enumerate([("system", 4, 60, "s"), ("user", 60, 643, "u")])
    )
    sim.answer(head + clock + rest, max_tokens=1, spans=spans)
    later = sim.request(
        [*head, 7, 8, 10, *rest],
        max_tokens=1,
        spans=(MessageSpan(index=0, role="system", start=4, end=60, text_hash="t"), spans[1]),
    )
    later = dataclasses.replace(later, char_at=lambda token: (token - 4) * 5)
    sim.engine.add(later)
    sim.run()
    cache = sim.final[later.id].record.cache
    assert cache.reason == "prefix_diverged"
    assert (cache.diverged_token, cache.diverged_message, cache.diverged_char) == (42, 0, 190)
    assert cache.matches_again_at_token == 43
    assert cache.price_s == pytest.approx(600 * CPU.prefill_token_s, rel=0.15)


def test_c12_dropped_reasoning_is_a_rewritten_history() -> None:
    sim = Simulation()
    first = tokens(100)
    answer = sim.answer(first, max_tokens=90)  # 50 tokens of reasoning, then the reply
    prompt = first + answer[50:] + tokens(20, seed=5)
    spans = (
        MessageSpan(index=0, role="user", start=0, end=100, text_hash="q"),
        MessageSpan(index=1, role="assistant", start=100, end=140, text_hash="a"),
        MessageSpan(index=2, role="user", start=140, end=160, text_hash="q2"),
    )
    sim.answer(prompt, max_tokens=1, spans=spans)
    cache = sim.final["r2"].record.cache
    assert cache.reason == "template_rewrote_history"
    assert (cache.diverged_token, cache.diverged_message) == (100, 1)
    assert cache.matches_again_at_token == 100


@pytest.mark.parametrize("shared", [1, 15, 16, 17, 31, 32, 33, 48])
@pytest.mark.parametrize("own", [0, 1, 16])
def test_c14_every_block_boundary_reuses_exactly_and_answers_the_same(
    shared: int, own: int
) -> None:
    prompt = tokens(shared) + tokens(own, seed=2)
    expected = Simulation(is_cache_enabled=False).answer(prompt, max_tokens=20)
    sim = Simulation()
    sim.answer(tokens(shared) + tokens(40, seed=3), max_tokens=20)
    assert sim.answer(prompt, max_tokens=20) == expected
    assert sim.final["r2"].record.prompt.new == max(1, own)


def test_c_four_cold_requests_with_one_head_compute_it_once() -> None:
    sim = loaded()
    head = tokens(2000)
    for s in range(4):
        sim.add(head + tokens(25, seed=s + 2), max_tokens=3)
    sim.run()
    records = [sim.final[f"r{i}"].record for i in range(1, 5)]
    assert [r.prompt.new for r in records] == [2025, 25, 25, 25]
    assert records[3].ttft_any_s <= 1.3 * records[0].ttft_any_s


def test_c_identical_cold_requests_in_flight_share_everything() -> None:
    sim = Simulation()
    for _ in range(3):
        sim.add(tokens(100), max_tokens=5)
    sim.run()
    assert [sim.final[f"r{i}"].record.prompt.new for i in (1, 2, 3)] == [100, 1, 1]
    assert sim.outputs["r1"] == sim.outputs["r2"] == sim.outputs["r3"]


def test_c_the_sharer_goes_on_alone_when_the_one_computing_is_cancelled() -> None:
    sim = loaded(prefill_chunk=64)
    first = sim.add(tokens(640), max_tokens=5)
    second = sim.add(tokens(640), max_tokens=5)
    for _ in range(3):
        sim.step()
    assert second.state is SequenceState.WAITING
    sim.abort(first.id)
    sim.run()
    assert sim.final[second.id].record.prompt.cached == 192
    assert sim.final[second.id].finish_reason is FinishReason.LENGTH


# Context limit


def test_k1_k6_too_long_a_prompt_is_refused_with_the_numbers_before_it_queues() -> None:
    sim = Simulation(max_model_len=1000)
    with pytest.raises(ContextTooLong, match=r"1200 prompt tokens.* by 300 .*1000 tokens"):
        sim.add(tokens(1200), max_tokens=100)
    with pytest.raises(ContextTooLong):
        sim.add(tokens(1000))
    assert not sim.engine.has_work
    assert sim.log.events == []


def test_k4_shortage_costs_one_victim_and_nobody_an_error() -> None:
    sim = Simulation(num_blocks=64, max_model_len=1000)
    for s in range(4):
        sim.add(tokens(60, seed=s + 1), end_token_ids=frozenset())
    sim.run()
    assert {f.finish_reason for f in sim.final.values()} == {FinishReason.LENGTH}
    preempted = [e.request_id for e in sim.log.of(Preempted)]
    assert preempted and "r1" not in preempted
    for s in range(4):
        alone = Simulation(num_blocks=64, max_model_len=1000)
        assert alone.answer(tokens(60, seed=s + 1)) == sim.outputs[f"r{s + 1}"]


def test_k4_declared_lengths_are_never_promised_twice() -> None:
    sim = Simulation(num_blocks=40, max_model_len=640)
    for s in range(4):
        sim.add(tokens(50, seed=s + 1), max_tokens=250)
    sim.step()
    assert sim.scheduler.num_running == 2
    sim.run()
    assert sim.log.of(Preempted) == []


def test_k5_without_a_limit_the_answer_ends_at_the_context() -> None:
    sim = Simulation(max_model_len=200)
    assert len(sim.answer(tokens(150))) == 50
    assert sim.final["r1"].finish_reason is FinishReason.LENGTH


# Memory


def test_m1_what_can_never_fit_is_refused_naming_needed_and_available() -> None:
    sim = Simulation(num_blocks=49, max_model_len=4000)
    with pytest.raises(OutOfBlocks, match=r"needs 63 KV blocks.*has 49"):
        sim.add(tokens(1002))
    behind = sim.add(tokens(20), max_tokens=3)
    sim.run()
    assert sim.final[behind.id].finish_reason is FinishReason.LENGTH


def test_m3_two_growing_requests_at_the_wall_do_not_take_turns_losing() -> None:
    sim = Simulation(num_blocks=50, max_model_len=800, growth_tokens=32)
    a, b = sim.add(tokens(100)), sim.add(tokens(100, seed=2))
    sim.run()
    assert (a.num_preemptions, b.num_preemptions <= 3) == (0, True)
    assert len(sim.outputs[a.id]) == len(sim.outputs[b.id]) == 700


def test_m4_many_requests_under_memory_pressure_drain_oldest_first() -> None:
    sim = Simulation(num_blocks=30, max_model_len=480, growth_tokens=16, max_num_seqs=8)
    requests = [sim.add(tokens(40, seed=s + 1)) for s in range(12)]
    sim.run(max_steps=20_000)
    assert len(sim.final) == 12
    assert requests[0].num_preemptions == 0


def test_m6_m10_random_lengths_and_cancels_leave_only_cached_blocks() -> None:
    rng = random.Random(3)
    sim = Simulation(num_blocks=64, max_num_seqs=8)
    for i in range(150):
        sim.add(tokens(rng.randint(1, 120), seed=i), max_tokens=rng.randint(0, 60))
        for _ in range(rng.randint(0, 6)):
            sim.step()
        live = sim.scheduler.sequences()
        if live and i % 3 == 0:
            sim.abort(rng.choice(live).id)
    sim.run()
    assert len(sim.final) == 150
    assert sim.cache.num_used_blocks == sim.cache.num_cached_blocks > 0


def test_m_a_sequence_wastes_less_than_a_block() -> None:
    sim = Simulation()
    request = sim.add(tokens(100), max_tokens=50)
    while sim.engine.has_work:
        sim.step()
        if request.block_table:
            assert len(request.block_table) * 16 - request.num_computed_tokens <= 15


# Limits and finish reasons


@pytest.mark.parametrize("n", [0, 1, 2, 3])
def test_t1_max_tokens_is_exact(n: int) -> None:
    sim = Simulation()
    assert len(sim.answer(tokens(20), max_tokens=n)) == n
    final = sim.final["r1"]
    assert final.finish_reason is FinishReason.LENGTH
    assert final.record.output.total == n and final.record.prompt.new == 20


def test_t2_the_default_is_the_room_left() -> None:
    sim = Simulation(max_model_len=700)
    assert len(sim.answer(tokens(20))) == 680


def test_t5_stop_at_the_last_allowed_token_is_stop_and_otherwise_length() -> None:
    free = Simulation().answer(tokens(20), max_tokens=6)
    assert len(set(free)) == 6
    cases = [
        ({"end_token_ids": frozenset({free[5]})}, 6, FinishReason.STOP, None),
        ({"end_token_ids": frozenset({free[2]})}, 3, FinishReason.STOP, None),
        ({"stop_token_ids": (free[3],)}, 4, FinishReason.STOP, free[3]),
        (
            {"end_token_ids": frozenset({free[2]}), "ignore_eos": True},
            6,
            FinishReason.LENGTH,
            None,
        ),
        ({}, 6, FinishReason.LENGTH, None),
    ]
    for asked, n, reason, stop_reason in cases:
        sim = Simulation()
        assert sim.answer(tokens(20), max_tokens=6, **asked) == free[:n]
        assert sim.final["r1"].finish_reason is reason
        assert sim.final["r1"].stop_reason == stop_reason


# Cancel


def test_x1_a_cancelled_stream_is_gone_before_the_next_step() -> None:
    sim = Simulation()
    a, b = sim.add(tokens(50), max_tokens=100), sim.add(tokens(50, seed=2), max_tokens=40)
    for _ in range(10):
        sim.step()
    sim.abort(a.id)
    sim.step()
    plan = sim.log.of(StepDone)[-1].plan
    assert [s.request_id for s in plan.slices] == [b.id]
    sim.run()
    assert sim.outputs[b.id] == Simulation().answer(tokens(50, seed=2), max_tokens=40)
    record = sim.final[a.id].record
    assert record.finish == "cancelled" and record.output.total == len(sim.outputs[a.id])


def test_x2_a_cancel_between_chunks_ends_the_prefill() -> None:
    sim = Simulation(prefill_chunk=32)
    request = sim.add(tokens(1000), max_tokens=5)
    sim.step()
    sim.step()
    sim.abort(request.id)
    assert not sim.engine.has_work
    assert request.num_computed_tokens == 64
    assert sim.final[request.id].record.chunks == 2
    sim.check()


def test_x3_x4_a_cancelled_waiter_is_dropped_and_its_neighbour_unhurt() -> None:
    sim = Simulation(max_num_seqs=1)
    running = sim.add(tokens(50), max_tokens=30)
    waiting = sim.add(tokens(60, seed=2), max_tokens=30)
    for _ in range(5):
        sim.step()
    sim.abort(waiting.id)
    sim.run()
    assert [e.request_id for e in sim.log.of(Admitted)] == [running.id]
    assert sim.outputs[running.id] == Simulation().answer(tokens(50), max_tokens=30)
    assert sim.final[waiting.id].record.phases.queue_s == sim.final[waiting.id].record.e2e_s > 0


def test_x7_a_burst_over_the_limit_is_answered_at_once() -> None:
    sim = loaded(max_num_seqs=2, max_waiting=8)
    accepted, refused = 0, []
    for s in range(20):
        try:
            sim.add(tokens(300, seed=s + 1), max_tokens=20)
            accepted += 1
        except QueueFull as error:
            refused.append(error)
    assert (accepted, len(refused)) == (8, 12)
    assert all(e.retry_after_s >= 1.0 and e.http_status == 429 for e in refused)
    sim.run()
    assert len(sim.final) == accepted


def test_x7_a_predicted_wait_over_the_limit_is_answered_at_once() -> None:
    sim = loaded(max_wait_s=2.0)
    with pytest.raises(QueueFull, match="predicted wait") as refused:
        for s in range(20):
            sim.add(tokens(2000, seed=s + 1), max_tokens=2)
    assert 2 <= sim.scheduler.num_waiting <= 5
    assert 1.0 <= refused.value.retry_after_s <= 2.0


# Same bits


def test_d1_d8_sixteen_prompts_answer_alone_as_together_in_any_chunking() -> None:
    prompts = [tokens(5 + 11 * s, seed=s + 1) for s in range(16)]
    alone = [Simulation().answer(p, max_tokens=25, seed=s) for s, p in enumerate(prompts)]
    for chunk in (1, 7, 16, 64, 512):
        sim = Simulation(prefill_chunk=chunk)
        for s, p in enumerate(prompts):
            sim.add(p, max_tokens=25, seed=s)
        sim.run()
        assert [sim.outputs[f"r{s + 1}"] for s in range(16)] == alone


def test_d3_d4_equal_seeds_agree_and_other_seeds_differ() -> None:
    sim = Simulation()
    for seed in (5, 5, 6):
        sim.add(tokens(30), temperature=1.0, seed=seed, max_tokens=12)
    sim.run()
    assert sim.outputs["r1"] == sim.outputs["r2"] != sim.outputs["r3"]


def test_d_equal_prompts_computed_side_by_side_become_one_and_keep_their_bits() -> None:
    prompt = tokens(316)
    expected = Simulation().answer(prompt, max_tokens=40)
    sim = Simulation(prefill_chunk=32)
    sim.add(prompt, max_tokens=40)
    sim.step()
    sim.add(prompt, max_tokens=40, priority=-1)  # goes first, so it does not wait for the other
    while sim.engine.has_work:
        sim.step()
        sim.check()
    assert sim.final["r1"].record.prompt.new == 316
    assert sim.final["r2"].record.prompt.new == 316 - 32
    assert sim.outputs["r1"] == sim.outputs["r2"] == expected


def test_d_preemption_and_a_cancelled_neighbour_leave_the_bits_alone() -> None:
    expected = [Simulation().answer(tokens(60, seed=s), max_tokens=None) for s in (1, 2)]
    assert all(len(e) > 900 for e in expected)
    sim = Simulation(num_blocks=256 // 2 + 16, max_model_len=4096, growth_tokens=64)
    sim.add(tokens(60, seed=1))
    sim.add(tokens(60, seed=2))
    neighbour = sim.add(tokens(400, seed=3))
    for _ in range(200):
        sim.step()
    sim.abort(neighbour.id)
    sim.run()
    assert sim.log.of(Preempted)
    for i in (1, 2):
        n = len(sim.outputs[f"r{i}"])
        assert n > 900 and sim.outputs[f"r{i}"] == expected[i - 1][:n]
