"""The native sampler against the reference sampler, whose definition and order it shares."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from twostroke import _native
from twostroke import _native_testing as kernels
from twostroke.request import SamplingParams
from twostroke.sampling import RowSampling, row_sampling, sample, uniform
from twostroke.step import SampleSpec

SETS = _native.kernel_sets()
# Native probabilities are float32 (2e-7 each, their arguments rounded once more), sums float64:
# cumulative shares agree within this, so a draw may differ only where a boundary lies so close.
MASS_ERROR = 1e-6


def logits_of(seed: int, vocab: int, spread: float) -> NDArray[np.float32]:
    return (np.random.default_rng(seed).standard_normal(vocab) * spread).astype(np.float32)


def native(
    kernel_set: str, logits: NDArray[np.float32], spec: SampleSpec, **more: Any
) -> dict[str, Any]:
    p = spec.params
    options: dict[str, Any] = {
        "temperature": p.temperature,
        "top_k": p.top_k,
        "top_p": p.top_p,
        "min_p": p.min_p,
        "repetition_penalty": p.repetition_penalty,
        "presence_penalty": p.presence_penalty,
        "frequency_penalty": p.frequency_penalty,
        "seed": spec.seed,
        "choice": spec.choice,
        "position": spec.position,
        "prompt_ids": np.array(spec.prompt_ids, np.int32),
        "output_ids": np.array(spec.output_ids, np.int32),
        "bias_ids": np.array([i for i, _ in p.logit_bias], np.int32),
        "biases": np.array([b for _, b in p.logit_bias], np.float32),
    }
    if p.logprobs is not None:
        options["num_logprobs"] = p.logprobs
    return kernels.sample(kernel_set, logits, options | more)


def spec_of(seed: int = 1, position: int = 0, **params: Any) -> SampleSpec:
    history = {k: params.pop(k) for k in ("prompt_ids", "output_ids") if k in params}
    return SampleSpec(SamplingParams(**params), seed, 0, position, **history)


def is_near_boundary(logits: NDArray[np.float32], row: RowSampling, token_id: int) -> bool:
    """Whether a change of MASS_ERROR in u, top_p or min_p makes the reference choose this token."""
    for du in (-MASS_ERROR, 0.0, MASS_ERROR):
        for dp in (-MASS_ERROR, 0.0, MASS_ERROR):
            for dm in (-MASS_ERROR, 0.0, MASS_ERROR):
                near = replace(
                    row,
                    uniform=min(max(row.uniform + du, 0.0), 1.0 - 2**-53),
                    top_p=min(row.top_p + dp, 1.0) if row.top_p < 1 else 1.0,
                    min_p=max(row.min_p * (1 + dm), 0.0),
                )
                if sample(logits, near).token_id == token_id:
                    return True
    return False


@pytest.mark.parametrize("kernel_set", SETS)
@pytest.mark.parametrize("vocab", [1, 2, 15, 16, 17, 1000, 1024, 49152, 262145])
def test_greedy_takes_the_highest_logit(kernel_set: str, vocab: int) -> None:
    for seed in range(5):
        logits = logits_of(seed, vocab, 3.0)
        assert native(kernel_set, logits, spec_of(temperature=0.0))["token_id"] == logits.argmax()


@pytest.mark.parametrize("kernel_set", SETS)
@pytest.mark.parametrize("where", [(0, 1), (5, 2000), (1023, 1024), (63, 64), (2047, 2999)])
def test_greedy_ties_go_to_the_lowest_id(kernel_set: str, where: tuple[int, int]) -> None:
    logits = np.full(3000, -5.0, np.float32)
    logits[list(where)] = 2.0
    assert native(kernel_set, logits, spec_of(temperature=0.0))["token_id"] == where[0]
    assert native(kernel_set, logits, spec_of(top_k=1))["token_id"] == where[0]


PARAMS = st.fixed_dictionaries(
    {
        "temperature": st.sampled_from([0.0, 0.01, 0.3, 0.7, 1.0, 1.5, 10.0, 100.0]),
        "top_k": st.sampled_from([0, 0, 1, 2, 40, 300, 5000]),
        "top_p": st.sampled_from([1.0, 1.0, 0.95, 0.5, 0.01, 0.999]),
        "min_p": st.sampled_from([0.0, 0.0, 0.05, 0.5, 1.0]),
        "repetition_penalty": st.sampled_from([1.0, 1.0, 1.3, 0.8]),
        "presence_penalty": st.sampled_from([0.0, 0.0, 0.7, -1.0]),
        "frequency_penalty": st.sampled_from([0.0, 0.0, 0.4, -0.5]),
        "logit_bias": st.lists(
            st.tuples(st.integers(0, 900), st.floats(-20, 20, width=32)),
            max_size=3,
            unique_by=lambda x: x[0],
        ).map(tuple),
    }
)


@settings(
    max_examples=150, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck)
)
@given(
    params=PARAMS,
    vocab=st.sampled_from([901, 1024, 4000, 20000]),
    seed=st.integers(0, 2**64 - 1),
    spread=st.sampled_from([0.0, 0.5, 2.0, 6.0]),
    data=st.data(),
)
def test_every_kernel_set_chooses_what_the_reference_chooses(
    params: dict[str, Any], vocab: int, seed: int, spread: float, data: st.DataObject
) -> None:
    ids = st.lists(st.integers(0, 900), max_size=30).map(tuple)
    spec = spec_of(seed, seed % 977, **params, prompt_ids=data.draw(ids), output_ids=data.draw(ids))
    logits = logits_of(seed % 2**32, vocab, spread)
    row = row_sampling(spec)
    expected = sample(logits, row).token_id
    for kernel_set in SETS:
        got = native(kernel_set, logits, spec)["token_id"]
        assert got == expected or is_near_boundary(logits, row, got)


@pytest.mark.parametrize("kernel_set", SETS)
@pytest.mark.parametrize("params", [{"top_p": 0.9}, {"top_k": 1000, "min_p": 0.01}, {}], ids=str)
def test_a_large_vocabulary_agrees_with_the_reference(
    kernel_set: str, params: dict[str, Any]
) -> None:
    logits = logits_of(3, 262144, 3.0)
    for position in range(8):
        spec = spec_of(11, position, **params)
        row = row_sampling(spec)
        got = native(kernel_set, logits, spec)["token_id"]
        assert got == sample(logits, row).token_id or is_near_boundary(logits, row, got)


@pytest.mark.parametrize("kernel_set", SETS)
def test_the_generator_is_the_documented_one(kernel_set: str) -> None:
    """Of n equal logits the chosen id is floor(u * n)."""
    flat = np.zeros(1 << 16, np.float32)
    for seed, choice, position in [(0, 0, 0), (2**64 - 1, 3, 17), (12345, 2**32 - 1, 2**40)]:
        spec = SampleSpec(SamplingParams(), seed, choice, position)
        expected = int(uniform(seed, choice, position) * len(flat))
        assert native(kernel_set, flat, spec)["token_id"] == expected


@pytest.mark.parametrize("kernel_set", SETS)
def test_draws_follow_the_distribution(kernel_set: str) -> None:
    logits = np.log(np.array([0.5, 0.25, 0.125, 0.125], np.float32))
    counts = np.zeros(4)
    for position in range(4000):
        counts[native(kernel_set, logits, spec_of(5, position))["token_id"]] += 1
    shares = counts / 4000
    assert np.abs(shares - [0.5, 0.25, 0.125, 0.125]).max() < 5 * 0.5 / np.sqrt(4000)


@pytest.mark.parametrize("kernel_set", SETS)
@pytest.mark.parametrize(
    "params", [{}, {"top_k": 50}, {"top_p": 0.9}, {"temperature": 0.0}], ids=str
)
def test_masked_ids_are_never_chosen(kernel_set: str, params: dict[str, Any]) -> None:
    logits = logits_of(8, 2000, 2.0)
    allowed = np.zeros(2016, bool)
    allowed[np.random.default_rng(8).permutation(2000)[:30]] = True
    mask = np.packbits(allowed, bitorder="little").view(np.uint32)
    hidden = np.where(allowed[:2000], logits, -np.inf).astype(np.float32)
    for position in range(50):
        spec = spec_of(2, position, **params)
        got = native(kernel_set, logits, spec, mask=mask)["token_id"]
        assert got == sample(hidden, row_sampling(spec)).token_id


@pytest.mark.parametrize("kernel_set", SETS)
def test_nothing_allowed_gives_no_token(kernel_set: str) -> None:
    got = native(kernel_set, logits_of(1, 100, 1.0), spec_of(), mask=np.zeros(4, np.uint32))
    assert got["token_id"] == -1


@pytest.mark.parametrize("kernel_set", SETS)
@pytest.mark.parametrize("vocab", [5, 3000, 49152])
@pytest.mark.parametrize("count", [0, 1, 20])
def test_logprobs_are_the_log_softmax_of_the_raw_logits(
    kernel_set: str, vocab: int, count: int
) -> None:
    logits = logits_of(vocab, vocab, 4.0)
    spec = spec_of(
        3, temperature=0.6, top_k=9, repetition_penalty=1.5, prompt_ids=(1, 2), logprobs=count
    )
    got = native(kernel_set, logits, spec, target_id=vocab - 2)
    x = logits.astype(float)
    log_softmax = x - x.max() - np.log(np.exp(x - x.max()).sum())
    best = np.argsort(-x, kind="stable")[:count]
    assert got["top_ids"] == best.tolist()
    # one float32 rounding of a value below 32 in size, and 2e-7 in the sum
    np.testing.assert_allclose(got["top_logprobs"], log_softmax[best], atol=3e-6)
    assert abs(got["logprob"] - log_softmax[got["token_id"]]) < 3e-6
    assert abs(got["target_logprob"] - log_softmax[vocab - 2]) < 3e-6


@pytest.mark.parametrize("kernel_set", SETS)
def test_logprobs_not_asked_for_are_unknown(kernel_set: str) -> None:
    got = native(kernel_set, logits_of(1, 100, 1.0), spec_of())
    assert np.isnan(got["logprob"]) and np.isnan(got["target_logprob"]) and not got["top_ids"]


@pytest.mark.parametrize("kernel_set", SETS)
@pytest.mark.parametrize(
    "params", [{"temperature": 0.0}, {}, {"top_k": 7}, {"top_p": 0.8}, {"min_p": 0.2}], ids=str
)
def test_not_a_number_is_passed_over(kernel_set: str, params: dict[str, Any]) -> None:
    logits = logits_of(4, 3000, 2.0)
    logits[::3] = np.nan
    logits[1::3] = -np.inf
    for position in range(20):
        spec = spec_of(9, position, logprobs=5, **params)
        got = native(kernel_set, logits, spec)
        assert got["token_id"] == sample(logits, row_sampling(spec)).token_id
        assert got["token_id"] % 3 == 2 and np.isfinite(got["logprob"])


@pytest.mark.parametrize("kernel_set", SETS)
@pytest.mark.parametrize("value", [np.nan, -np.inf, np.inf])
@pytest.mark.parametrize(
    "params", [{"temperature": 0.0}, {}, {"top_k": 7, "logprobs": 3}, {"top_p": 0.8}], ids=str
)
def test_a_row_without_a_finite_best_gives_no_token(
    kernel_set: str, value: float, params: dict[str, Any]
) -> None:
    logits = np.full(2000, value, np.float32)
    assert native(kernel_set, logits, spec_of(**params))["token_id"] == -1


@pytest.mark.parametrize("kernel_set", SETS)
def test_ids_outside_the_vocabulary_are_passed_over(kernel_set: str) -> None:
    outside = np.array([-1, 100, 2**31 - 1], np.int32)
    options = {
        "repetition_penalty": 2.0,
        "presence_penalty": 1.0,
        "prompt_ids": outside,
        "output_ids": outside,
    }
    logits = logits_of(6, 100, 1.0)
    biased = {"bias_ids": outside, "biases": np.ones(3, np.float32)}
    assert kernels.sample(kernel_set, logits, options | biased)["token_id"] == logits.argmax()


@pytest.mark.parametrize("kernel_set", SETS)
def test_extreme_penalties_leave_finite_logits(kernel_set: str) -> None:
    logits = np.array([3.0, -2.0, 1.0], np.float32)
    for penalty, expected in [(1e-38, 0), (10.0, 2)]:
        spec = spec_of(temperature=0.0, repetition_penalty=penalty, output_ids=(0, 1))
        assert native(kernel_set, logits, spec)["token_id"] == expected
