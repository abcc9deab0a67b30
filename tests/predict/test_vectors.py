"""Predictions against numbers worked out elsewhere: vectors of public models and machines."""

from __future__ import annotations

from typing import NamedTuple

import pytest

from twostroke.errors import ConfigError
from twostroke.predict.cost import CostModel, Span
from twostroke.predict.devices import DEVICES, find_device
from twostroke.predict.formulas import prefill_flop, split_by_rates
from twostroke.predict.kv import KvFormat
from twostroke.predict.predictor import Predictor
from twostroke.predict.shape import LayerShape, ModelShape, WeightGroup, WeightSizes
from twostroke.predict.speed import given_speed


class Sizes(NamedTuple):
    """A public model: values of its matrices, layers, query heads of 128."""

    values: float
    layers: int
    heads: int

    @property
    def width(self) -> int:
        return self.layers * self.heads * 128


LLAMA_8B = Sizes(8.03e9, 32, 32)
LLAMA_70B = Sizes(70.6e9, 80, 64)
QWEN_7B = Sizes(7.6e9, 28, 28)


def cost_of(sizes: Sizes, *, num_bytes: float = 0.0) -> CostModel:
    layer = LayerShape(heads=sizes.heads, kv_heads=8, key_dim=128, value_dim=128)
    body = WeightGroup(num_bytes or 2 * sizes.values, {"bf16": sizes.values})
    weights = WeightSizes(total_bytes=body.num_bytes, body=body)
    shape = ModelShape(name="m", layers=(layer,) * sizes.layers, weights=weights)
    return CostModel(shape, KvFormat("bf16"))


def ceiling_tok_s(num_bytes: float, bandwidth: float) -> float:
    """Return the predicted tokens per second of one stream that reads no KV."""
    cost = cost_of(Sizes(1.0, 0, 1), num_bytes=num_bytes)
    step = Predictor(cost, given_speed(bandwidth, None)).decode(1)
    assert step is not None
    return 1 / step.value


def attention_share(sizes: Sizes, prompt: int) -> float:
    """Return which share of a cold prefill's operations is attention."""
    work = cost_of(sizes).spans_work((Span(0, prompt),)).total
    return 1.0 - 2.0 * sizes.values * prompt / work.num_ops


def test_worked_example_1() -> None:
    wait = split_by_rates(1000, 300, prefill_tok_s=2000, decode_tok_s=40)
    assert (wait.prefill_s, wait.decode_s) == (0.5, 7.5)
    assert wait.prefill_share == pytest.approx(0.0625, abs=0.001)
    assert f"{1 - wait.prefill_share:.0%}" == "94%"


def test_worked_example_2() -> None:
    wait = split_by_rates(12_000, 500, prefill_tok_s=1500, decode_tok_s=40)
    assert (wait.prefill_s, wait.decode_s) == (8.0, 12.5)
    assert wait.prefill_share == pytest.approx(0.39, abs=0.001)
    assert f"{wait.prefill_share:.0%}" == "39%"


def test_the_two_profiles() -> None:
    question = split_by_rates(100, 400, prefill_tok_s=1500, decode_tok_s=40)
    assert 1 - question.prefill_share > 0.9
    document = split_by_rates(12_000, 160, prefill_tok_s=1500, decode_tok_s=40)
    assert (document.prefill_s, document.decode_s) == (8.0, 4.0)
    assert document.prefill_share == pytest.approx(2 / 3)


def test_the_rag_example() -> None:
    wait = split_by_rates(4000, 250, prefill_tok_s=1000, decode_tok_s=40)
    assert (wait.prefill_s, wait.decode_s) == (4.0, 6.25)
    assert f"{wait.prefill_share:.0%}" == "39%"


def test_a_rate_of_nothing_is_refused() -> None:
    with pytest.raises(ConfigError, match="decode rate must be positive"):
        split_by_rates(1, 1, prefill_tok_s=1, decode_tok_s=0)


def test_eight_gigabytes_at_400_gigabytes_a_second_are_50_tokens_a_second() -> None:
    assert ceiling_tok_s(8e9, 400e9) == 50.0


@pytest.mark.parametrize(
    ("gigabytes", "device", "expected"),
    [
        (16.07, "H200", "298.7"),
        (16.07, "h100", "208.5"),
        (16.07, "a100-80", "126.9"),
        (4.92, "RTX 4090", "204.9"),
        (4.92, "rtx3090", "190.2"),
        (4.92, "3060", "73.2"),
        (4.92, "Apple M2 Max", "81.3"),
        (4.92, "ddr5-5600x2", "18.2"),
        (4.92, "ddr4-3200x2", "10.4"),
    ],
)
def test_decode_ceilings_of_the_table(gigabytes: float, device: str, expected: str) -> None:
    ceiling = ceiling_tok_s(gigabytes * 1e9, find_device(device).bandwidth)
    assert f"{ceiling:.1f}" == expected


def test_decode_ceilings_of_given_bandwidths() -> None:
    assert f"{ceiling_tok_s(40.61e9, 273e9):.2f}" == "6.72"
    assert ceiling_tok_s(32e9, 40e9) == 1.25


def test_every_row_of_the_table_names_its_source() -> None:
    assert len(DEVICES) >= 20
    assert all(row.source and row.kind in ("gpu", "apple", "cpu") for row in DEVICES.values())


@pytest.mark.parametrize(
    ("model", "prompt", "expected"),
    [
        (LLAMA_8B, 512, "0.8"),
        (LLAMA_8B, 2048, "3.2"),
        (LLAMA_8B, 8192, "11.8"),
        (LLAMA_8B, 16_384, "21.1"),
        (LLAMA_8B, 32_768, "34.8"),
        (LLAMA_8B, 131_072, "68.1"),
        (LLAMA_70B, 8192, "7.1"),
        (LLAMA_70B, 16_384, "13.2"),
        (LLAMA_70B, 131_072, "54.9"),
        (QWEN_7B, 8192, "9.8"),
        (QWEN_7B, 16_384, "17.8"),
        (QWEN_7B, 131_072, "63.4"),
    ],
)
def test_attention_share_of_prefill(model: Sizes, prompt: int, expected: str) -> None:
    assert f"{100 * attention_share(model, prompt):.1f}" == expected


@pytest.mark.parametrize(
    ("model", "expected"), [(LLAMA_8B, "61.3"), (LLAMA_70B, "107.7"), (QWEN_7B, "75.7")]
)
def test_prompt_length_where_attention_equals_the_matrices(model: Sizes, expected: str) -> None:
    low, high = 1, 1 << 20
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if attention_share(model, middle) >= 0.5 else (middle, high)
    assert f"{high / 1000:.1f}" == expected


@pytest.mark.parametrize(
    ("model", "prompt", "expected"),
    [
        (LLAMA_8B, 8192, 0.302),
        (LLAMA_8B, 32_768, 1.63),
        (LLAMA_8B, 131_072, 13.4),
        (LLAMA_70B, 16_384, 5.39),
    ],
)
def test_prefill_on_an_h100_at_half_its_peak(model: Sizes, prompt: int, expected: float) -> None:
    peak = DEVICES["h100"].flops
    assert peak is not None
    predictor = Predictor(cost_of(model), given_speed(1e18, 0.5 * peak))
    found = predictor.prefill(0, prompt, chunk=prompt)
    assert found is not None and found.value == pytest.approx(expected, rel=0.004)


def test_an_a6000_needs_17_seconds_for_70b_and_16k_at_its_whole_peak() -> None:
    flop = prefill_flop(70e9, LLAMA_70B.width, 16_384)
    assert flop / 1e15 == pytest.approx(2.64, abs=0.01)
    assert flop / DEVICES["a6000"].flops >= 17
    counted = cost_of(LLAMA_70B._replace(values=70e9)).spans_work((Span(0, 16_384),)).total
    assert counted.num_ops == pytest.approx(flop, rel=1e-4)


def test_cached_tokens_still_cost_attention() -> None:
    cost, (values, width) = cost_of(LLAMA_8B), (LLAMA_8B.values, LLAMA_8B.width)
    cold = cost.spans_work((Span(0, 4096),)).total.num_ops
    warm = cost.spans_work((Span(3072, 4096),)).total.num_ops
    rest = cost.spans_work((Span(0, 3072),)).total.num_ops
    assert warm + rest == pytest.approx(cold)
    assert warm == pytest.approx(prefill_flop(values, width, 1024, cached=3072), rel=1e-4)
    behind = prefill_flop(8e9, 4096 * 32, 100, 10_000) - prefill_flop(8e9, 4096 * 32, 100)
    assert behind == 4 * 4096 * 32 * 100 * 10_000


@pytest.mark.parametrize(
    ("experts", "used", "expected"),
    [
        (128, 8, [8, 15.5, 29.1, 51.6, 82.4, 111.8, 125.9, 128.0]),
        (8, 2, [2, 3.5, 5.5, 7.2, 7.9, 8, 8, 8]),
        (256, 8, [8, 15.8, 30.5, 57.4, 102, 163.3, 222.4, 251.6]),
        (128, 4, [4, 7.9, 15.3, 28.7, 51, 81.7, 111.2, 125.8]),
    ],
)
def test_experts_touched_by_a_batch(experts: int, used: int, expected: list[float]) -> None:
    one_byte_each = WeightSizes(
        total_bytes=experts, body=WeightGroup(), experts=WeightGroup(experts)
    )
    found = [one_byte_each.touched_bytes(2**i, used / experts) for i in range(8)]
    assert found == pytest.approx(expected, abs=0.0501)


@pytest.mark.parametrize(("device", "expected"), [("a100-80", 153), ("h100", 295)])
def test_batch_where_decode_turns_to_arithmetic(device: str, expected: int) -> None:
    row = DEVICES[device]
    cost = cost_of(Sizes(8e9, 0, 1))
    predictor = Predictor(cost, given_speed(row.bandwidth, row.flops))
    one, many = predictor.decode(1), predictor.decode(1, batch=expected)
    more = predictor.decode(1, batch=expected + 1)
    assert one is not None and many is not None and more is not None
    assert many.value == pytest.approx(one.value, rel=0.5 / expected)
    assert more.value > one.value, "one stream more costs arithmetic"
