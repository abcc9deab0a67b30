"""The formulas against numbers worked out elsewhere: vectors of public models and machines."""

from __future__ import annotations

import pytest

from twostroke.predict.cost import experts_touched
from twostroke.predict.devices import DEVICES, find_device
from twostroke.predict.predictor import (
    attention_crossover,
    attention_share,
    compute_bound_batch,
    decode_ceiling_tok_s,
    prefill_flop,
    split_by_rates,
)

LLAMA_8B = (8.03e9, 32 * 32 * 128)
LLAMA_70B = (70.6e9, 80 * 64 * 128)
QWEN_7B = (7.6e9, 28 * 28 * 128)


def test_worked_example_1() -> None:
    wait = split_by_rates(1000, 300, prefill_tok_s=2000, decode_tok_s=40)
    assert (wait.prefill_s, wait.decode_s) == (0.5, 7.5)
    assert f"{1 - wait.prefill_share:.0%}" == "94%"


def test_worked_example_2() -> None:
    wait = split_by_rates(12_000, 500, prefill_tok_s=1500, decode_tok_s=40)
    assert (wait.prefill_s, wait.decode_s) == (8.0, 12.5)
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


def test_eight_gigabytes_at_400_gigabytes_a_second_are_50_tokens_a_second() -> None:
    assert decode_ceiling_tok_s(8e9, 400e9) == 50.0


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
    ceiling = decode_ceiling_tok_s(gigabytes * 1e9, find_device(device).bandwidth)
    assert f"{ceiling:.1f}" == expected


def test_decode_ceilings_of_given_bandwidths() -> None:
    assert f"{decode_ceiling_tok_s(40.61e9, 273e9):.2f}" == "6.72"
    assert decode_ceiling_tok_s(32e9, 40e9) == 1.25


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
def test_attention_share_of_prefill(model: tuple[float, float], prompt: int, expected: str) -> None:
    assert f"{100 * attention_share(*model, prompt):.1f}" == expected


@pytest.mark.parametrize(
    ("model", "expected"), [(LLAMA_8B, "61.3"), (LLAMA_70B, "107.7"), (QWEN_7B, "75.7")]
)
def test_prompt_length_where_attention_equals_the_matrices(
    model: tuple[float, float], expected: str
) -> None:
    assert f"{attention_crossover(*model) / 1000:.1f}" == expected


@pytest.mark.parametrize(
    ("model", "prompt", "expected"),
    [
        (LLAMA_8B, 8192, 0.302),
        (LLAMA_8B, 32_768, 1.63),
        (LLAMA_8B, 131_072, 13.4),
        (LLAMA_70B, 16_384, 5.39),
    ],
)
def test_prefill_on_an_h100_at_half_its_peak(
    model: tuple[float, float], prompt: int, expected: float
) -> None:
    seconds = prefill_flop(*model, prompt) / (0.5 * DEVICES["h100"].flops)
    assert seconds == pytest.approx(expected, rel=0.004)


def test_an_a6000_needs_17_seconds_for_70b_and_16k_at_its_whole_peak() -> None:
    flop = prefill_flop(70e9, LLAMA_70B[1], 16_384)
    assert flop / 1e15 == pytest.approx(2.64, abs=0.01)
    assert flop / DEVICES["a6000"].flops >= 17


def test_cached_tokens_still_cost_attention() -> None:
    cold = prefill_flop(*LLAMA_8B, 4096)
    warm = prefill_flop(*LLAMA_8B, 1024, cached=3072)
    rest = prefill_flop(*LLAMA_8B, 3072)
    assert warm + rest == pytest.approx(cold)


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
    found = [experts_touched(experts, used, 2**i) for i in range(8)]
    assert found == pytest.approx(expected, abs=0.0501)


@pytest.mark.parametrize(("device", "expected"), [("a100-80", 153), ("h100", 295)])
def test_batch_where_decode_turns_to_arithmetic(device: str, expected: int) -> None:
    row = DEVICES[device]
    assert round(compute_bound_batch(row.flops, row.bandwidth, 2)) == expected
