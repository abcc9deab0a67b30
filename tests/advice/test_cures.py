"""Cures: exact where the record allows, a range where it bounds, None where it tells nothing."""

from __future__ import annotations

import pytest

from twostroke.advice import Cure, cures, for_record
from twostroke.advice import cure as cure_module
from twostroke.record import (
    CacheOutcome,
    OutputTokens,
    PhaseTimes,
    PromptTokens,
    RequestRecord,
)


def test_half_a_prompt_saves_between_half_and_three_quarters():
    cure = cures.shorter_prompt(12_000, 8.0)
    assert (cure.saves_low_s, cure.saves_high_s) == (4.0, 6.0)
    assert "each 1,000 fewer save 0.67 s" in cure.basis


def test_half_an_output_saves_exactly_its_tokens():
    cure = cures.shorter_output(501, 12.5)
    assert cure.is_exact and cure.saves_low_s == pytest.approx(250 * 0.025)


def test_fewer_bits_save_at_most_half():
    cure = cures.fewer_bits(10.0, 8e9, 0.8)
    assert (cure.saves_low_s, cure.saves_high_s) == (4.0, 5.0)


@pytest.mark.parametrize(
    "cure",
    [
        cures.shorter_prompt(None, 8.0),
        cures.shorter_output(None, 8.0),
        cures.shorter_output(1, 8.0),
        cures.fewer_bits(8.0, None, None),
        cures.stable_head(None, None),
        cures.speculate(),
        cures.batch(),
        cures.less_queue(None),
    ],
)
def test_what_nothing_tells_is_not_predicted(cure):
    assert not cure.is_predicted and not cure.is_exact
    assert cure.saves_low_s is None and cure.what.endswith(".")


def test_order_is_by_what_is_surely_saved_and_the_unpredictable_last():
    ordered = cure_module.in_order(
        [
            cures.speculate(),
            cure_module.exact("a", "A.", 1.0, ""),
            cures.batch(),
            cure_module.between("b", "B.", 2.0, 9.0, ""),
        ]
    )
    assert [cure.key for cure in ordered] == ["b", "a", "speculate", "batch"]


def test_a_saving_is_never_negative():
    assert cure_module.exact("a", "A.", -1.0, "").saves_low_s == 0.0
    assert cure_module.between("a", "A.", 3.0, -1.0, "").saves_low_s == 0.0


RECORD = RequestRecord(
    phases=PhaseTimes(queue_s=0.5, load_s=1.0, prefill_s=8.0, decode_s=4.0),
    prompt=PromptTokens(total=12_000, cached=0, new=12_000),
    output=OutputTokens(total=161),
    prefill_tok_s=1500.0,
    decode_tok_s=40.0,
    decode_ceiling_tok_s=50.0,
    cache=CacheOutcome(
        reason="prefix_diverged", diverged_token=40, diverged_message=0, price_s=7.9
    ),
)


def test_a_record_of_ours_gets_its_cures_by_seconds():
    found = for_record(RECORD)
    assert [cure.key for cure in found][:4] == [
        "stable_head",
        "shorter_prompt",
        "shorter_output",
        "fewer_bits",
    ]
    head = found[0]
    assert head.saves_low_s == 7.9 and "token 40, in message 0" in head.basis
    assert found[3].saves_low_s == pytest.approx(4.0 / 2 * 0.8)


def test_an_empty_record_has_no_cure():
    assert for_record(RequestRecord()) == ()


def test_a_cure_is_plain_data():
    assert isinstance(found := for_record(RECORD)[0], Cure)
    assert set(found.to_dict()) == {
        "key", "what", "saves_low_s", "saves_high_s", "basis", "side_effect",
    }  # fmt: skip
