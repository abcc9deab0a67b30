"""Predictions on shapes and speeds small enough to check by hand."""

from __future__ import annotations

import pytest

from twostroke.errors import ConfigError
from twostroke.predict.cost import CostModel
from twostroke.predict.devices import DEVICES, EFFICIENCY, find_device
from twostroke.predict.figure import Source
from twostroke.predict.fitted_speed import assumed_speed
from twostroke.predict.hardware import MachineProfile
from twostroke.predict.kv import kv_format
from twostroke.predict.predictor import Predictor
from twostroke.predict.shape import LayerShape, ModelShape, WeightGroup, WeightSizes
from twostroke.predict.speed import (
    Speed,
    given_speed,
    speed_of_device,
)

LAYER = LayerShape(heads=4, kv_heads=2, key_dim=64, value_dim=64)


def shape(*, values: float = 4e9, num_bytes: float = 8e9, layers: int = 10) -> ModelShape:
    group = WeightGroup(num_bytes, {"bf16": values} if values else {})
    sizes = WeightSizes(total_bytes=num_bytes, body=group)
    return ModelShape(name="m", layers=(LAYER,) * layers, weights=sizes)


def predictor(speed: Speed, model: ModelShape | None = None) -> Predictor:
    return Predictor(CostModel(model or shape(), kv_format("f16")), speed)


def test_decode_reads_eight_gigabytes_at_400_in_20_milliseconds() -> None:
    step = predictor(given_speed(400e9, 100e12)).decode(1)
    assert step is not None
    kv = 10 * 2 * 2 * 64 * 2
    assert step.value == pytest.approx((8e9 + kv) / 400e9, rel=1e-12)
    assert 1 / step.value == pytest.approx(50.0, rel=1e-6)


def test_decode_has_two_terms_and_a_constant() -> None:
    fast = predictor(speed_of_device(find_device("h100"))).decode(1)
    assert fast is not None
    e = EFFICIENCY["gpu"]
    bytes_s = 8e9 / (3350e9 * e.memory.value)
    assert fast.value == pytest.approx(e.step_s.value + bytes_s, rel=1e-4)
    assert fast.low < fast.value < fast.high


def test_a_large_batch_is_bound_by_arithmetic() -> None:
    p = predictor(given_speed(400e9, 10e12))
    one, many = p.decode(100), p.decode(100, batch=1000)
    assert one is not None and many is not None
    operations = 1000 * (2 * 4e9 + 10 * 4 * 4 * 64 * 100)
    assert many.value == pytest.approx(operations / 10e12)
    assert many.value < 1000 * one.value


def test_prefill_grows_with_the_square_of_the_prompt() -> None:
    p = predictor(given_speed(1e15, 10e12))
    times = [p.prefill(0, n, chunk=1 << 20) for n in (1000, 2000, 4000)]
    values = [t.value for t in times if t is not None]
    per_pair = 10 * 4 * 4 * 64 / 10e12
    for n, seconds in zip((1000, 2000, 4000), values, strict=True):
        assert seconds == pytest.approx(2 * 4e9 * n / 10e12 + per_pair * n * (n + 1) / 2)


def test_every_chunk_reads_the_weights_again() -> None:
    p = predictor(given_speed(400e9, 1e18))  # arithmetic is free: only reading counts
    whole, parts = p.prefill(0, 2048, chunk=2048), p.prefill(0, 2048, chunk=256)
    assert whole is not None and parts is not None
    assert parts.value == pytest.approx(8 * whole.value, rel=0.01)


def test_a_cached_head_saves_its_tokens_but_not_attention_to_them() -> None:
    p = predictor(given_speed(1e15, 10e12))
    request = p.request(4000, 10, cached=3000, chunk=1 << 20)
    fresh = p.request(1000, 10, chunk=1 << 20)
    assert request.ttft is not None and fresh.ttft is not None
    attention = 10 * 4 * 4 * 64 * 1000 * 3000 / 10e12
    assert request.ttft.value == pytest.approx(fresh.ttft.value + attention)


def test_the_first_token_belongs_to_prefill() -> None:
    one = predictor(given_speed(400e9, 10e12)).request(100, 1)
    assert one.decode is not None and one.decode.value == 0
    assert one.total == one.ttft and one.prefill_share == 1.0


def test_shares_add_up() -> None:
    found = predictor(given_speed(400e9, 10e12)).request(1000, 100).to_dict()
    assert found["prefill_share"] + found["decode_share"] == pytest.approx(1.0)
    assert found["ttft_s"] + found["decode_s"] == pytest.approx(found["total_s"])


def test_without_a_bandwidth_nothing_is_predicted() -> None:
    found = predictor(given_speed(None, 10e12)).request(1000, 100)
    assert (found.ttft, found.tpot, found.total) == (None, None, None)
    assert "bandwidth of the device" in found.missing


def test_without_arithmetic_only_decode_is_predicted() -> None:
    for p in (
        predictor(given_speed(400e9, None)),
        predictor(given_speed(400e9, 10e12), shape(values=0)),
    ):
        found = p.request(1000, 100)
        assert found.ttft is None and found.total is None and found.tpot is not None
        assert found.missing


def test_an_unknown_shape_has_no_cost() -> None:
    with pytest.raises(ConfigError, match="shape is not known"):
        CostModel(ModelShape(name="m", layers=None), kv_format("f16"))


@pytest.mark.parametrize(("prompt", "output", "cached"), [(0, 1, 0), (10, -1, 0), (10, 1, 10)])
def test_impossible_counts_are_refused(prompt: int, output: int, cached: int) -> None:
    with pytest.raises(ConfigError, match="out of range"):
        predictor(given_speed(1e9, 1e9)).request(prompt, output, cached=cached)


def test_a_profile_gives_each_unit_its_own_rate() -> None:
    profile = MachineProfile(
        cpu="c",
        kernel_set="avx2",
        threads=2,
        int8_ops_per_s=800e9,
        bf16_flops_per_s=400e9,
        fp32_flops_per_s=200e9,
        bandwidth=((1 << 20, 100e9), (1 << 30, 30e9)),
    )
    speed = assumed_speed(profile)
    step = predictor(speed).decode(1)
    assert step is not None and speed.source is Source.ASSUMED
    e = EFFICIENCY["twostroke"]
    at_peak = 8e9 / 400e9 + 8e9 / 30e9
    assert step.value == pytest.approx(e.step_s.value + at_peak / e.memory.value, rel=1e-3)


def test_every_rate_of_a_speed_says_its_source() -> None:
    for device in DEVICES.values():
        found = speed_of_device(device).to_dict()
        assert found["source"] == "datasheet"
        for figure in found["efficiency"].values():
            assert figure["source"] == "assumed" and figure["note"]
            assert figure["low"] <= figure["value"] <= figure["high"]
