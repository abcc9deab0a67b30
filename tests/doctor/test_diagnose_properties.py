"""Laws of a diagnosis: sound for any records, finite for any rate, about linear in the log."""

from __future__ import annotations

import math
import time
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.doctor.own_records import findings_of, own
from twostroke.record import (
    CacheOutcome,
    InterTokenLatency,
    Meter,
    OutputTokens,
    PhaseTimes,
    PromptTokens,
    RequestRecord,
    Speculation,
    WindowRecord,
)
from twostroke_doctor import Fact, Parsed
from twostroke_doctor.diagnose import diagnose
from twostroke_doctor.finding import CODES, CONFIDENCE
from twostroke_doctor.given import make_given
from twostroke_doctor.parsed import MAX_FACTS, MAX_RECORDS

times = st.none() | st.floats(0, 1e6, allow_nan=False)
counts = st.none() | st.integers(0, 10**7)


@st.composite
def any_record(draw):
    phases = PhaseTimes(**{name: draw(times) for name in PhaseTimes.__dataclass_fields__})
    return RequestRecord(
        phases=phases,
        e2e_s=draw(times),
        mixed_s=draw(times),
        prompt=PromptTokens(total=draw(counts), cached=draw(counts), new=draw(counts)),
        output=OutputTokens(total=draw(counts), reasoning=draw(counts)),
        chunks=draw(counts),
        preemptions=draw(counts),
        ttft_any_s=draw(times),
        t_arrival_s=draw(times),
        ctx_end=draw(counts),
        prefill_tok_s=draw(times),
        decode_tok_s=draw(times),
        decode_ceiling_tok_s=draw(times),
        prefill_mfu=draw(times),
        model=draw(st.none() | st.sampled_from(["gemma3:4b", "gemma3:27b"])),
        id=draw(st.sampled_from(["", "probe/again", "probe/control", "probe/short"])),
        cache=CacheOutcome(reason=draw(st.none() | st.just("evicted")), price_s=draw(times)),
        speculation=Speculation(drafted=draw(counts), accepted=draw(counts)),
        itl=InterTokenLatency(p50_s=draw(times), max_s=draw(times)),
        meter=Meter(flags=tuple(draw(st.lists(st.sampled_from(["truncated", "meter_off"]))))),
    )


@st.composite
def any_window(draw):
    return WindowRecord(
        engine="vllm",
        prompt_tok_s=draw(times),
        output_tok_s=draw(times),
        running=draw(counts),
        waiting=draw(counts),
        kv_usage=draw(st.none() | st.floats(0, 1)),
        prefix_hit_rate=draw(st.none() | st.floats(0, 1)),
        preemptions=draw(counts),
    )


@settings(max_examples=150, deadline=None)
@given(st.lists(any_record(), max_size=6), st.lists(any_window(), max_size=4))
def test_whatever_the_records_hold_the_answer_is_sound(records, windows):
    flags = {"model": "llama-3.1-8b", "weights_gb": 8.0, "device": "h100", "shared_head": True}
    found = findings_of(*records, windows=windows, **flags)
    assert found
    for finding in found:
        assert finding.code in CODES and finding.confidence in CONFIDENCE
        assert finding.share is None or 0 <= finding.share <= 1
        assert finding.seconds is None or 0 <= finding.seconds < math.inf
        for cure in finding.cures:
            assert cure.saves_low_s is None or 0 <= cure.saves_low_s <= cure.saves_high_s
    shares = [f.share for f in found if f.share is not None and f.code != "UNKNOWN"]
    assert shares == sorted(shares, reverse=True)


def test_a_log_that_says_the_cache_was_empty_at_the_end_is_diagnosed():
    empty = own(prefill_s=1.0, decode_s=1.0, ctx_end=0)
    assert findings_of(empty, empty, own(prefill_s=1.0, decode_s=1.0, ctx_end=100))


@pytest.mark.parametrize("rate", [0.0, 5e-324, 6e-309, 2e-308, 1e-300, 1e-7])
def test_a_rate_that_cannot_be_gives_no_endless_wait(rate):
    near = own(prefill_s=0.0, decode_s=16.0, output=17, ctx_end=16)
    far = replace(near, ctx_end=2000, decode_tok_s=rate)
    for finding in findings_of(near, far):
        assert finding.seconds is None or finding.seconds < math.inf
        assert "inf" not in finding.says


def test_the_largest_log_that_is_kept_is_diagnosed_in_seconds():
    """Every rule is about linear: a fifth of the records kept, all of the facts."""
    parsed = Parsed()
    for n in range(MAX_RECORDS // 5):
        meter = Meter(source="log", file="a", lines=(10 * n + 5,))
        model = f"gemma3:{1 + n % 7}b"
        parsed.records.append(
            own(prefill_s=1.0 + n % 3, decode_s=2.0, meter=meter, model=model, t_arrival_s=float(n))
        )
        parsed.windows.append(
            WindowRecord(engine="vllm", running=n % 90, output_tok_s=n % 5e3, kv_usage=n % 89 / 100)
        )
    for n in range(MAX_FACTS):
        name = ("full_reprocess", "threads", "kv_type_k", "n_ctx")[n % 4]
        value = f"q8_0 {n}" if n % 2 == 0 else n
        parsed.add(Fact(name=name, value=value, engine="llama.cpp", file="a", line=100 * n))
    started = time.process_time()
    assert diagnose(parsed, make_given(shared_head=True)).findings
    assert time.process_time() - started < 5
