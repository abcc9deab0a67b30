"""A request is made in one place: one range check, one rule for seeds, one rule for end tokens."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twostroke.errors import RequestError
from twostroke.generation.make_request import (
    EncodedPrompt,
    another_choice,
    check_token_ids,
    make_request,
)
from twostroke.model.loaded import LoadedModel
from twostroke.request import Request, SamplingParams

PROMPT = EncodedPrompt(token_ids=(3, 5, 8), init_s=0.25)


def made(model: LoadedModel, *, prompt: EncodedPrompt = PROMPT, **params: Any) -> Request:
    return make_request("r", prompt, SamplingParams(**params), model)


@pytest.mark.parametrize(
    ("param", "bad"),
    [
        ("prompt", -1),  # sampling parameters refuse negative ids themselves
        *((p, i) for p in ("prompt", "logit_bias", "stop_token_ids") for i in (320, 2**31 - 1)),
    ],
)
def test_an_id_outside_the_vocabulary_is_refused_by_the_name_of_its_parameter(
    model: LoadedModel, param: str, bad: int
) -> None:
    assert model.config.vocab_size == 320
    given: dict[str, Any] = {
        "prompt": {"prompt": EncodedPrompt(token_ids=(1, bad, 2))},
        "logit_bias": {"logit_bias": ((1, 1.0), (bad, 1.0))},
        "stop_token_ids": {"stop_token_ids": (1, bad)},
    }[param]
    with pytest.raises(RequestError) as refusal:
        made(model, **given)
    assert refusal.value.param == param
    assert str(bad) in str(refusal.value) and "[0, 320)" in str(refusal.value)


@given(st.lists(st.integers(-3, 12)), st.integers(1, 9))
def test_the_check_refuses_exactly_the_ids_outside_and_names_the_first(
    ids: list[int], vocab_size: int
) -> None:
    outside = [i for i in ids if not 0 <= i < vocab_size]
    if not outside:
        check_token_ids(ids, vocab_size, "prompt")
        return
    with pytest.raises(RequestError) as refusal:
        check_token_ids(ids, vocab_size, "prompt")
    assert refusal.value.value == outside[0]


def test_a_given_seed_is_kept_and_a_drawn_one_is_exact_in_json(model: LoadedModel) -> None:
    assert made(model, seed=2**64 - 1).seed == 2**64 - 1
    drawn = [made(model).seed for _ in range(200)]
    assert len(set(drawn)) == 200
    assert all(0 <= seed < 2**53 and float(seed) == seed for seed in drawn)
    assert max(drawn) > 2**52, "all 53 bits are drawn"
    assert json.loads(json.dumps(drawn)) == drawn


def test_an_earlier_requests_seed_holds_only_where_the_parameters_have_none(
    model: LoadedModel,
) -> None:
    assert make_request("r", PROMPT, SamplingParams(), model, seed=7).seed == 7
    assert make_request("r", PROMPT, SamplingParams(seed=9), model, seed=7).seed == 9


def test_end_tokens_are_the_models_unless_they_are_ignored(model: LoadedModel) -> None:
    assert made(model).end_token_ids == model.end_token_ids != frozenset()
    assert made(model, ignore_eos=True).end_token_ids == frozenset()


def test_a_further_choice_differs_in_id_choice_and_mask_alone(model: LoadedModel) -> None:
    class Mask:
        def bits(self, output_token_ids: object) -> bytes:
            return b"\xff" * 40

    first = make_request("r-0", PROMPT, SamplingParams(), model, salt="s", mask=Mask())
    mask = Mask()
    before_s = time.monotonic()
    second = another_choice(first, "r-1", 1, mask=mask)
    assert (second.id, second.choice, second.mask) == ("r-1", 1, mask)
    assert before_s <= second.arrival_s <= time.monotonic()
    for name in ("prompt_token_ids", "params", "seed", "end_token_ids", "salt", "init_s", "spans"):
        assert getattr(second, name) == getattr(first, name)
    assert first.choice == 0 and first.init_s == 0.25
