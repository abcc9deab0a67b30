"""Capacity comes from the real scheduler: checked where queueing theory knows the answer."""

from __future__ import annotations

import pytest

from twostroke.errors import ConfigError
from twostroke.planner.capacity import find_capacity
from twostroke.planner.closed_loop import ClientLoad, quantile, simulate
from twostroke.predict.cost import CostModel
from twostroke.predict.kv import kv_format
from twostroke.predict.predictor import Predictor
from twostroke.predict.shape import LayerShape, ModelShape, WeightGroup, WeightSizes
from twostroke.predict.speed import given_speed

BLOCKS = 4096


def predictor(flops: float | None = 1e12) -> Predictor:
    """1 GB read at 100 GB/s: a step takes 10 ms up to 10 streams, then 1 ms a stream more."""
    layer = LayerShape(heads=1, kv_heads=1, key_dim=16, value_dim=16)
    group = WeightGroup(1e9, {"bf16": 0.5e9})
    weights = WeightSizes(total_bytes=1e9, body=group)
    shape = ModelShape(name="m", layers=(layer,), weights=weights)
    return Predictor(CostModel(shape, kv_format("f16")), given_speed(100e9, flops))


def test_one_client_sees_what_is_predicted_for_one_request() -> None:
    p = predictor()
    served = simulate(p, ClientLoad(prompt_tokens=100, output_tokens=20), 1, num_blocks=BLOCKS)
    one = p.request(100, 20)
    assert one.ttft is not None and one.tpot is not None
    assert served.ttft_s == pytest.approx(one.ttft.value)
    assert served.tpot_s == pytest.approx(one.tpot.value, rel=1e-6)


def test_streams_share_a_weight_read_until_arithmetic_is_full() -> None:
    load = ClientLoad(prompt_tokens=1, output_tokens=40)
    served = {n: simulate(predictor(), load, n, num_blocks=BLOCKS) for n in (1, 10, 40)}
    assert served[10].tpot_s == pytest.approx(served[1].tpot_s, rel=0.05)
    assert served[40].tpot_s == pytest.approx(0.040, rel=0.05)


def test_a_time_per_token_target_is_met_up_to_the_batch_that_takes_so_long() -> None:
    load = ClientLoad(prompt_tokens=1, output_tokens=40, target_tpot_s=0.0205)
    found = find_capacity(predictor(), load, most=100, num_blocks=BLOCKS)
    assert found.concurrency == 20 and found.limit == "target-tpot"
    assert found.served is not None and found.served.concurrency == 20


def test_a_first_token_target_limits_how_many_prompts_may_arrive() -> None:
    load = ClientLoad(prompt_tokens=1000, output_tokens=4, target_ttft_s=3.5)
    found = find_capacity(predictor(), load, most=100, num_blocks=BLOCKS)
    assert found.limit == "target-ttft" and found.concurrency == 3  # a prompt takes 1 s


def test_a_shared_head_raises_capacity() -> None:
    cold = ClientLoad(prompt_tokens=1000, output_tokens=4, target_ttft_s=2.5)
    warm = ClientLoad(prompt_tokens=1000, output_tokens=4, target_ttft_s=2.5, cached_tokens=896)
    found = [find_capacity(predictor(), load, most=64, num_blocks=BLOCKS) for load in (cold, warm)]
    assert found[0].concurrency and found[1].concurrency
    assert found[1].concurrency > 2 * found[0].concurrency


def test_answers_of_unequal_length_make_prompts_meet() -> None:
    """Equal answers keep clients apart for good; real ones end when they end, and prompts queue."""
    load = ClientLoad(prompt_tokens=400, output_tokens=40)
    spread = ClientLoad(prompt_tokens=400, output_tokens=40, outputs=tuple(range(20, 61)))
    equal = simulate(predictor(), load, 8, num_blocks=BLOCKS)
    uneven = simulate(predictor(), spread, 8, num_blocks=BLOCKS)
    assert uneven.ttft_s > 1.2 * equal.ttft_s
    assert uneven == simulate(predictor(), spread, 8, num_blocks=BLOCKS), "the same in every run"


def test_memory_limits_where_the_targets_do_not() -> None:
    load = ClientLoad(prompt_tokens=16, output_tokens=16, target_tpot_s=10.0)
    assert find_capacity(predictor(), load, most=3, num_blocks=6).limit == "memory"
    assert find_capacity(predictor(), load, most=3, num_blocks=6).concurrency == 3
    assert find_capacity(predictor(), load, most=0, num_blocks=0).concurrency == 0


def test_a_target_that_one_stream_misses_gives_none_at_all() -> None:
    load = ClientLoad(prompt_tokens=16, output_tokens=16, target_tpot_s=0.005)
    found = find_capacity(predictor(), load, most=8, num_blocks=BLOCKS)
    assert found.concurrency == 0 and found.limit == "target-tpot" and found.tried


def test_unknown_speed_is_unknown_capacity() -> None:
    load = ClientLoad(prompt_tokens=16, output_tokens=16, target_tpot_s=0.1)
    found = find_capacity(predictor(flops=None), load, most=8, num_blocks=BLOCKS)
    assert found.concurrency is None and "flops" in found.limit


def test_a_long_simulation_is_bounded_and_says_so() -> None:
    load = ClientLoad(prompt_tokens=16, output_tokens=10_000, target_tpot_s=10.0)
    found = find_capacity(predictor(), load, most=50, num_blocks=1 << 16)
    assert found.concurrency == 1 and found.limit.startswith("at least")


def test_a_capacity_without_a_target_is_refused() -> None:
    load = ClientLoad(prompt_tokens=16, output_tokens=16)
    with pytest.raises(ConfigError, match="needs a target"):
        find_capacity(predictor(), load, most=8, num_blocks=BLOCKS)


def test_quantile_is_a_value_that_occurred() -> None:
    assert quantile(range(1, 101), 0.95) == 95
    assert quantile([3.0], 0.95) == 3.0
