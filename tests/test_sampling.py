"""The reference sampler against plain versions of its rules, and against golden rows."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from twostroke.errors import InvalidSampling, KernelError
from twostroke.request import SamplingParams
from twostroke.sampling import mix, needs_history, row_sampling, sample, uniform
from twostroke.step import SampleSpec

GOLDEN = json.loads((Path(__file__).parent / "golden" / "sampling.json").read_text())


def choose(logits, *, position=0, seed=0, prompt=(), output=(), **params):
    spec = SampleSpec(SamplingParams(**params), seed, 0, position, tuple(prompt), tuple(output))
    return sample(np.array(logits, np.float32), row_sampling(spec))


def drawn(logits, n=3000, **params):
    ids = [choose(logits, position=i, **params).token_id for i in range(n)]
    return np.bincount(ids, minlength=len(logits)) / n


def test_greedy_takes_the_highest_and_of_equals_the_lowest_id() -> None:
    assert choose([1, 5, 5, 2], temperature=0.0).token_id == 1


def test_splitmix64_matches_its_published_first_outputs() -> None:
    # The reference implementation seeded with 0: its first two outputs.
    assert mix(0) == 0xE220A8397B1DCDAF
    assert mix(0x9E3779B97F4A7C15) == 0x6E789E6AA1B965F4


def test_uniform_is_even_and_its_keys_do_not_collide() -> None:
    values = [uniform(s, c, p) for s in range(10) for c in range(3) for p in range(200)]
    assert len(set(values)) == len(values)
    assert all(0 <= v < 1 for v in values)
    # 6,000 draws: the mean of a uniform has standard error 0.0037; five of them.
    assert abs(np.mean(values) - 0.5) < 0.019


def test_frequencies_follow_the_softmax_at_the_temperature() -> None:
    logits = [0.0, 1.0, 2.0]
    for temperature in (0.5, 1.0, 2.0):
        p = np.exp(np.array(logits) / temperature)
        assert np.abs(drawn(logits, temperature=temperature) - p / p.sum()).max() < 0.04


def test_top_k_keeps_exactly_k_and_of_equals_the_lowest_ids() -> None:
    seen = drawn([1, 1, 1, 1], top_k=2, n=200)
    assert seen[2] == seen[3] == 0 and seen[0] > 0 and seen[1] > 0


def test_top_p_keeps_the_fewest_that_reach_the_mass_counted_after_top_k() -> None:
    logits = np.log([0.4, 0.3, 0.2, 0.1])
    assert (drawn(logits, top_p=0.69, n=200) > 0).tolist() == [True, True, False, False]
    assert (drawn(logits, top_p=0.71, n=200) > 0).tolist() == [True, True, True, False]
    # Of the best three, 0.75 of 0.9 is 0.675: two suffice.
    assert (drawn(logits, top_k=3, top_p=0.75, n=200) > 0).tolist() == [True, True, False, False]


def test_min_p_is_relative_to_the_best() -> None:
    logits = np.log([0.5, 0.26, 0.24])
    assert (drawn(logits, min_p=0.5, n=300) > 0).tolist() == [True, True, False]


def test_repetition_penalty_divides_positive_and_multiplies_negative_logits() -> None:
    params = {"temperature": 0.0, "repetition_penalty": 2.0}
    assert choose([3.0, 2.0], prompt=[0], **params).token_id == 1
    assert choose([-1.0, -1.5], output=[0], **params).token_id == 1
    assert choose([3.0, 1.4], prompt=[0], **params).token_id == 0


def test_presence_counts_once_frequency_every_time_and_only_the_output() -> None:
    assert choose([2.0, 1.1], output=[0, 0, 0], temperature=0.0, presence_penalty=0.8).token_id == 0
    assert choose([2.0, 1.1], output=[0, 0], temperature=0.0, frequency_penalty=0.5).token_id == 1
    assert choose([2.0, 1.1], prompt=[0, 0], temperature=0.0, frequency_penalty=0.5).token_id == 0


def test_logit_bias_comes_before_penalties() -> None:
    # 1 + 4 = 5, halved to 2.5 by the penalty: below 3. Penalty first would give 0.5 + 4 = 4.5.
    chosen = choose(
        [1.0, 3.0], prompt=[0], logit_bias=((0, 4.0),), repetition_penalty=2.0, temperature=0.0
    )
    assert chosen.token_id == 1


def test_logprobs_are_of_the_raw_logits() -> None:
    chosen = choose([1.0, 2.0, 0.0], logit_bias=((2, 50.0),), temperature=0.0, logprobs=2)
    total = math.log(sum(map(math.exp, (1.0, 2.0, 0.0))))
    assert chosen.token_id == 2
    assert chosen.logprob.logprob == pytest.approx(0.0 - total)
    assert chosen.logprob.top[0] == (1, pytest.approx(2.0 - total))
    assert [i for i, _ in chosen.logprob.top] == [1, 0]


def test_a_masked_token_is_never_chosen_and_a_row_without_finite_logits_is_an_error() -> None:
    inf = float("inf")
    assert drawn([-inf, 0.0, float("nan")], n=100, temperature=100.0).tolist() == [0, 1, 0]
    with pytest.raises(KernelError, match="finite"):
        choose([-inf, float("nan")])


def test_a_bias_outside_the_vocabulary_is_refused() -> None:
    with pytest.raises(InvalidSampling, match="outside the vocabulary"):
        choose([0.0, 1.0], logit_bias=((2, 1.0),))


def test_history_is_needed_only_by_penalties() -> None:
    assert not needs_history(SamplingParams(top_k=5, logit_bias=((1, 1.0),)))
    assert needs_history(SamplingParams(repetition_penalty=1.1))
    assert needs_history(SamplingParams(presence_penalty=0.1))
    assert needs_history(SamplingParams(frequency_penalty=-0.1))


@settings(max_examples=150, deadline=None, derandomize=True)
@given(
    st.lists(st.floats(-20, 20, width=32), min_size=1, max_size=30),
    st.floats(0.1, 3.0),
    st.integers(0, 32),
    st.floats(0.01, 1.0),
    st.floats(0.0, 1.0),
    st.integers(0, 10_000),
)
def test_the_draw_equals_a_plain_restatement(logits, temperature, top_k, top_p, min_p, position):
    p = [math.exp((x - max(logits)) / temperature) for x in logits]
    kept = sorted(range(len(p)), key=lambda i: (-logits[i], i))
    kept = kept[:top_k] if top_k else kept
    if top_p < 1.0:
        whole, mass, count = sum(p[i] for i in kept), 0.0, 0
        for i in kept:
            mass += p[i]
            count += 1
            if mass >= top_p * whole:
                break
        kept = kept[:count]
    kept = sorted(i for i in kept if p[i] >= min_p * max(p))
    at, mass = uniform(0, 0, position) * sum(p[i] for i in kept), 0.0
    expected = kept[-1]
    for i in kept:
        mass += p[i]
        if mass > at:
            expected = i
            break
    got = choose(
        logits, position=position, temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p
    )
    assert got.token_id == expected


def test_golden_uniforms() -> None:
    for case in GOLDEN["uniform"]:
        assert uniform(*case["key"]) == case["u"]


@pytest.mark.parametrize("index", range(len(GOLDEN["rows"])))
def test_golden_rows(index: int) -> None:
    case = GOLDEN["rows"][index]
    params = dict(case["params"])
    params["logit_bias"] = tuple(map(tuple, params.get("logit_bias", ())))
    spec = SampleSpec(
        SamplingParams(**params),
        case["seed"],
        case["choice"],
        case["position"],
        tuple(case["prompt_ids"]),
        tuple(case["output_ids"]),
    )
    logits = np.array([-np.inf if x is None else x for x in case["logits"]], np.float32)
    chosen = sample(logits, row_sampling(spec))
    assert chosen.token_id == case["token_id"]
    if case["logprob"] is not None and math.isfinite(case["logprob"]):
        assert chosen.logprob.logprob == pytest.approx(case["logprob"], abs=1e-9)
    assert [i for i, _ in chosen.logprob.top] == [i for i, _ in case["top"]]
