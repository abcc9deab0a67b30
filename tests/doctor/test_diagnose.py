"""Findings beyond the public cases: our own records, hidden work, their order, and refusals."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from tests.doctor.own_records import findings_of, own
from twostroke.errors import ConfigError
from twostroke.record import (
    CacheOutcome,
    InterTokenLatency,
    Meter,
    OutputTokens,
    PromptTokens,
)
from twostroke_doctor import Fact, Parsed
from twostroke_doctor.diagnose import diagnose
from twostroke_doctor.given import make_given
from twostroke_doctor.runs import split_runs
from twostroke_doctor.wait import wait_of


def test_our_cache_reason_and_price_are_used():
    miss = CacheOutcome(
        reason="prefix_diverged", diverged_token=12, diverged_message=0, price_s=3.0
    )
    first = findings_of(own(prefill_s=3.5, decode_s=1.0, cache=miss))[0]
    assert first.code == "PREFIX_MISS" and first.seconds == 3.0
    assert "first at token 12 in message 0" in first.says and first.confidence == "high"


def test_a_first_request_is_no_miss():
    cold = CacheOutcome(reason="first_request", price_s=3.0)
    assert findings_of(own(prefill_s=3.5, decode_s=1.0, cache=cold))[0].code == "PREFILL"


def test_a_healthy_chat_is_no_miss():
    """One cold document, then turns that hit: nothing was lost."""
    turns = [
        own(prefill_s=12.0, decode_s=2.0, prompt=PromptTokens(total=12_000, cached=0, new=12_000))
    ]
    turns += [
        own(prefill_s=0.1, decode_s=2.0, prompt=PromptTokens(total=n, cached=n - 100, new=100))
        for n in (12_200, 12_400, 12_600)
    ]
    assert "PREFIX_MISS" not in {f.code for f in findings_of(*turns)}


def test_equal_lengths_of_a_benchmark_are_no_miss():
    same = [own(prefill_s=2.0, decode_s=1.0) for _ in range(6)]
    assert "PREFIX_MISS" not in {f.code for f in findings_of(*same)}


def test_stalled_seconds_are_interference():
    first = findings_of(own(prefill_s=0.5, stall_s=3.0, decode_s=2.0))[0]
    assert (first.code, first.phase, first.seconds) == ("INTERFERENCE", "stall", 3.0)


def test_mixed_steps_count_only_beyond_this_requests_prefill():
    gaps = InterTokenLatency(p50_s=0.02, max_s=0.4)
    record = own(prefill_s=0.5, decode_s=4.0, mixed_s=3.0, itl=gaps)
    found = next(f for f in findings_of(record) if f.code == "INTERFERENCE")
    assert found.seconds == pytest.approx(2.5)
    smooth = replace(record, itl=InterTokenLatency(p50_s=0.02, max_s=0.03))
    assert "INTERFERENCE" not in {f.code for f in findings_of(smooth)}


def test_tail_init_and_reasoning_are_found_by_their_seconds():
    assert findings_of(own(prefill_s=0.5, decode_s=2.0, tail_s=60.0))[0].code == "TAIL"
    assert findings_of(own(init_s=3.19, prefill_s=0.02, decode_s=0.81))[0].code == "INIT"
    thinking = OutputTokens(total=101, reasoning=90, visible=11)
    record = replace(own(prefill_s=0.5, decode_s=10.0), output=thinking)
    first = findings_of(record)[0]
    assert first.code == "REASONING" and first.seconds == pytest.approx(10 * 90 / 101)


def test_our_own_ceilings_make_decode_bw_and_expected():
    record = own(prefill_s=0.1, decode_s=2.0, decode_ceiling_tok_s=60.0)
    first = findings_of(record)[0]
    assert first.code == "DECODE_BW" and "83% of the bandwidth" in first.says
    prefill = own(prefill_s=9.0, decode_s=1.0, prefill_mfu=0.7)
    assert findings_of(prefill)[0].code == "EXPECTED"
    assert findings_of(replace(prefill, prefill_mfu=0.3))[0].code == "PREFILL"


def test_preemption_of_our_own_requests():
    first = findings_of(own(queue_s=0.1, prefill_s=1.0, stall_s=4.0, decode_s=1.0, preemptions=2))[
        0
    ]
    assert first.code in ("PREEMPT", "INTERFERENCE") and first.seconds == 4.0


def test_of_two_codes_the_larger_comes_first():
    found = findings_of(own(queue_s=5.0, load_s=4.0, prefill_s=0.5, decode_s=0.5))
    assert [f.code for f in found] == ["QUEUE", "LOAD"]
    found = findings_of(own(queue_s=4.0, load_s=5.0, prefill_s=0.5, decode_s=0.5))
    assert [f.code for f in found] == ["LOAD", "QUEUE"]


def test_prefill_in_small_pieces_is_small_ubatch():
    record = own(prefill_s=10.0, decode_s=1.0, chunks=10)
    record = replace(record, prompt=PromptTokens(total=1500, cached=0, new=1500))
    first = findings_of(record)[0]
    assert first.code == "SMALL_UBATCH" and "150 tokens at a time" in first.says
    assert findings_of(replace(record, chunks=3))[0].code == "PREFILL"


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
    found = findings_of(two, one, facts=[*buffers("two", 2), *buffers("one", 1)])
    comm = next(f for f in found if f.code == "COMM")
    assert comm.cures[0].saves_low_s == pytest.approx(2.0)


def test_nothing_is_unknown_with_what_is_missing():
    (first,) = findings_of()
    assert first.code == "UNKNOWN" and "--url" in first.missing[0]
    (first,) = findings_of(facts=[Fact(name="n_ctx", value=1, engine="x")])
    assert first.code == "UNKNOWN" and first.missing == ("requests with their times",)


def test_an_unaccounted_wait_is_unknown():
    record = replace(own(prefill_s=0.2, decode_s=0.2), e2e_s=10.0)
    first = findings_of(record)[0]
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
