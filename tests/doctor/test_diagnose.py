"""Findings beyond the public cases: our own records, hidden work, order, what is never said."""

from __future__ import annotations

import math
import time
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from twostroke.errors import ConfigError
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
from twostroke_doctor.runs import split_runs
from twostroke_doctor.wait import wait_of


def own(**more):
    """A request of our engine; parts of the wait by keyword, the sum as its total."""
    parts = {k: more.pop(k) for k in list(more) if k in PhaseTimes.__dataclass_fields__}
    phases = PhaseTimes(**parts)
    output = more.pop("output", 101)
    decode = phases.decode_s
    fields = {
        "phases": phases,
        "e2e_s": phases.known_s(),
        "prompt": PromptTokens(total=1000, cached=0, new=1000),
        "output": OutputTokens(total=output),
        "prefill_tok_s": 1000 / phases.prefill_s if phases.prefill_s else None,
        "decode_tok_s": (output - 1) / decode if decode else None,
    }
    return RequestRecord(**{**fields, **more})


def codes(*records, facts=(), windows=(), **flags):
    parsed = Parsed()
    parsed.add_all([*facts, *windows, *records])
    return diagnose(parsed, make_given(**flags)).findings


def test_our_cache_reason_and_price_are_used():
    miss = CacheOutcome(
        reason="prefix_diverged", diverged_token=12, diverged_message=0, price_s=3.0
    )
    first = codes(own(prefill_s=3.5, decode_s=1.0, cache=miss))[0]
    assert first.code == "PREFIX_MISS" and first.seconds == 3.0
    assert "first at token 12 in message 0" in first.says and first.confidence == "high"


def test_a_first_request_is_no_miss():
    cold = CacheOutcome(reason="first_request", price_s=3.0)
    assert codes(own(prefill_s=3.5, decode_s=1.0, cache=cold))[0].code == "PREFILL"


def test_a_healthy_chat_is_no_miss():
    """One cold document, then turns that hit: nothing was lost."""
    turns = [
        own(prefill_s=12.0, decode_s=2.0, prompt=PromptTokens(total=12_000, cached=0, new=12_000))
    ]
    turns += [
        own(prefill_s=0.1, decode_s=2.0, prompt=PromptTokens(total=n, cached=n - 100, new=100))
        for n in (12_200, 12_400, 12_600)
    ]
    assert "PREFIX_MISS" not in {f.code for f in codes(*turns)}


def test_equal_lengths_of_a_benchmark_are_no_miss():
    same = [own(prefill_s=2.0, decode_s=1.0) for _ in range(6)]
    assert "PREFIX_MISS" not in {f.code for f in codes(*same)}


def test_stall_is_interference():
    first = codes(own(prefill_s=0.5, stall_s=3.0, decode_s=2.0))[0]
    assert (first.code, first.phase, first.seconds) == ("INTERFERENCE", "stall", 3.0)


def test_mixed_steps_count_only_beyond_this_requests_prefill():
    gaps = InterTokenLatency(p50_s=0.02, max_s=0.4)
    record = own(prefill_s=0.5, decode_s=4.0, mixed_s=3.0, itl=gaps)
    found = next(f for f in codes(record) if f.code == "INTERFERENCE")
    assert found.seconds == pytest.approx(2.5)
    smooth = replace(record, itl=InterTokenLatency(p50_s=0.02, max_s=0.03))
    assert "INTERFERENCE" not in {f.code for f in codes(smooth)}


def test_tail_init_and_reasoning():
    assert codes(own(prefill_s=0.5, decode_s=2.0, tail_s=60.0))[0].code == "TAIL"
    assert codes(own(init_s=3.19, prefill_s=0.02, decode_s=0.81))[0].code == "INIT"
    thinking = OutputTokens(total=101, reasoning=90, visible=11)
    record = replace(own(prefill_s=0.5, decode_s=10.0), output=thinking)
    first = codes(record)[0]
    assert first.code == "REASONING" and first.seconds == pytest.approx(10 * 90 / 101)


def test_our_own_ceilings_make_decode_bw_and_expected():
    record = own(prefill_s=0.1, decode_s=2.0, decode_ceiling_tok_s=60.0)
    first = codes(record)[0]
    assert first.code == "DECODE_BW" and "83% of the bandwidth" in first.says
    prefill = own(prefill_s=9.0, decode_s=1.0, prefill_mfu=0.7)
    assert codes(prefill)[0].code == "EXPECTED"
    assert codes(replace(prefill, prefill_mfu=0.3))[0].code == "PREFILL"


def test_preemption_of_our_own_requests():
    first = codes(own(queue_s=0.1, prefill_s=1.0, stall_s=4.0, decode_s=1.0, preemptions=2))[0]
    assert first.code in ("PREEMPT", "INTERFERENCE") and first.seconds == 4.0


def test_of_two_codes_the_larger_comes_first():
    found = codes(own(queue_s=5.0, load_s=4.0, prefill_s=0.5, decode_s=0.5))
    assert [f.code for f in found] == ["QUEUE", "LOAD"]
    found = codes(own(queue_s=4.0, load_s=5.0, prefill_s=0.5, decode_s=0.5))
    assert [f.code for f in found] == ["LOAD", "QUEUE"]


def test_small_batches_of_prefill():
    record = own(prefill_s=10.0, decode_s=1.0, chunks=10)
    record = replace(record, prompt=PromptTokens(total=1500, cached=0, new=1500))
    first = codes(record)[0]
    assert first.code == "SMALL_UBATCH" and "150 tokens at a time" in first.says
    assert codes(replace(record, chunks=3))[0].code == "PREFILL"


def test_more_devices_and_slower_is_comm():
    def buffers(file, count):
        return [
            Fact(
                name="model_buffer_bytes",
                value=1 << 30,
                engine="llama.cpp",
                label=f"CUDA{n}",
                file=file,
                line=n + 1,
            )
            for n in range(count)
        ]

    two = own(prefill_s=0.1, decode_s=10.0, meter=Meter(file="two", lines=(9,)))
    one = own(prefill_s=0.1, decode_s=8.0, meter=Meter(file="one", lines=(9,)))
    found = codes(two, one, facts=[*buffers("two", 2), *buffers("one", 1)])
    comm = next(f for f in found if f.code == "COMM")
    assert comm.cures[0].saves_low_s == pytest.approx(2.0)


def test_nothing_is_unknown_with_what_is_missing():
    (first,) = codes()
    assert first.code == "UNKNOWN" and "--url" in first.missing[0]
    (first,) = codes(facts=[Fact(name="n_ctx", value=1, engine="x")])
    assert first.code == "UNKNOWN" and first.missing == ("requests with their times",)


def test_an_unaccounted_wait_is_unknown():
    record = replace(own(prefill_s=0.2, decode_s=0.2), e2e_s=10.0)
    first = codes(record)[0]
    assert first.code == "UNKNOWN" and first.phase == "unaccounted"


def test_the_wait_adds_up_and_controls_are_no_part_of_it():
    record = own(queue_s=1.0, prefill_s=2.0, decode_s=3.0, tail_s=4.0)
    assert sum(wait_of([record]).values()) == pytest.approx(10.0)
    control = replace(record, meter=Meter(flags=("control",)))
    parsed = Parsed()
    parsed.add_all([record, control])
    assert diagnose(parsed).total_s == pytest.approx(10.0)


def test_a_restart_with_other_settings_is_another_run():
    def threads(value, line):
        return Fact(name="threads", value=value, engine="llama.cpp", file="a", line=line)

    def ran(line, decode_s):
        return own(prefill_s=0.1, decode_s=decode_s, meter=Meter(file="a", lines=(line,)))

    parsed = Parsed()
    parsed.add_all([threads(16, 1), ran(5, 30.0), threads(8, 10), ran(15, 10.0)])
    assert [run.number("threads") for run in split_runs(parsed)] == [16, 8]
    first = diagnose(parsed).findings[0]
    assert first.code == "THREADS" and first.cures[0].saves_low_s == pytest.approx(20.0)
    parsed.add_all([threads(16, 20), ran(25, 31.0)])  # folded: its place is not known any more
    assert len(split_runs(parsed)) == 1
    assert "THREADS" not in {f.code for f in diagnose(parsed).findings}


@pytest.mark.parametrize(
    "flags",
    [
        {"device": "abacus"},
        {"model": "nobody-knows"},
        {"model": "/nowhere/at/all.gguf"},
        {"weights_gb": -1.0},
        {"bandwidth": math.nan},
        {"flops": math.inf},
    ],
)
def test_facts_that_cannot_be_are_refused(flags):
    with pytest.raises(ConfigError):
        make_given(**flags)


def test_a_number_given_outright_wins_over_the_table():
    facts = make_given(device="h100", bandwidth=1000.0, model="30B-A3B")
    assert facts.bandwidth == 1e12 and facts.flops == 989e12
    assert make_given(flops=155e12).flops == make_given(flops=155).flops == 155e12
    assert (facts.params, facts.active_params) == (30e9, 3e9)


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
    found = codes(*records, windows=windows, **flags)
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
    assert codes(empty, empty, own(prefill_s=1.0, decode_s=1.0, ctx_end=100))


@pytest.mark.parametrize("rate", [0.0, 5e-324, 6e-309, 2e-308, 1e-300, 1e-7])
def test_a_rate_that_cannot_be_gives_no_endless_wait(rate):
    near = own(prefill_s=0.0, decode_s=16.0, output=17, ctx_end=16)
    far = replace(near, ctx_end=2000, decode_tok_s=rate)
    for finding in codes(near, far):
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
