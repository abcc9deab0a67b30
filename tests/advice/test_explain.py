"""The explanation names the phase, orders the cures, and says when it rests on too little."""

from __future__ import annotations

import pytest

from tests.advice.test_predicted_cures import predictor
from twostroke.advice.brief import brief
from twostroke.advice.explain import explain_record, explain_request
from twostroke.record import (
    CacheOutcome,
    Meter,
    OutputTokens,
    PhaseTimes,
    PromptTokens,
    RequestRecord,
)


def record(
    prompt: int = 8000, cached: int = 0, output: int = 100, **fields: object
) -> RequestRecord:
    p = predictor()
    prefill = p.prefill(cached, prompt, chunk=512)
    step = p.decode(prompt + output // 2)
    assert prefill is not None and step is not None
    decode_s = step.value * (output - 1)
    values: dict[str, object] = {
        "phases": PhaseTimes(prefill_s=prefill.value, decode_s=decode_s),
        "e2e_s": prefill.value + decode_s,
        "prompt": PromptTokens(total=prompt, cached=cached, new=prompt - cached),
        "output": OutputTokens(total=output),
        "predicted_prefill_s": prefill.value,
        "predicted_decode_s": decode_s,
    }
    return RequestRecord(**{**values, **fields})  # type: ignore[arg-type]


def test_the_phase_that_holds_the_wait_is_named_with_its_share() -> None:
    found = explain_record(record(output=2), predictor())
    assert found is not None and found.phase == "prefill" and found.share > 0.9
    other = explain_record(record(prompt=50, output=500), predictor())
    assert other is not None and other.phase == "decode" and other.share > 0.9
    assert "prefill holds the wait" in found.lines()[0]


def test_little_evidence_is_said() -> None:
    few = explain_record(record(prompt=20, output=5), predictor())
    assert few is not None
    text = "\n".join(few.lines())
    assert "from one request only" in text
    assert "20 new prompt tokens are too few" in text and "5 output tokens are too few" in text
    enough = explain_record(record(), predictor(), num_requests=3)
    assert enough is not None and enough.notes == ()
    cold = explain_record(record(meter=Meter(flags=("cold",))), predictor(), num_requests=3)
    assert cold is not None and "first step of a process" in cold.notes[0]


def test_the_price_of_a_miss_becomes_its_saving() -> None:
    p = predictor()
    lost = p.prefill(64, 5064, chunk=512)
    assert lost is not None
    missed = record(prompt=8000, cached=64, output=2, cache=CacheOutcome(price_s=lost.value))
    found = explain_record(missed, p)
    assert found is not None
    saving = {c.key: c.saves_low_s for c in found.cures}["stable_head"]
    assert saving == pytest.approx(lost.value, rel=0.35)  # attention to the rest stays


def test_without_a_predictor_the_record_speaks_alone() -> None:
    found = explain_record(record(), None)
    assert found is not None and "shorter_prompt" in {c.key for c in found.cures}


def test_nothing_measured_is_nothing_explained() -> None:
    assert explain_record(RequestRecord(), predictor()) is None
    assert explain_request({"prefill": 0.0}, ()) is None


def test_brief_lines_say_that_they_rest_on_one_request() -> None:
    lines = brief(record(prompt=9000, output=40))
    assert lines and len(lines) <= 3
    assert all("from this request alone" in line for line in lines)
    assert brief(record(prompt=20, output=10)) == ()
    assert brief(RequestRecord()) == ()
