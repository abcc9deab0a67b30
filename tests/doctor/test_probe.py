"""The probe against a real HTTP server whose phases take as long as it is told."""

from __future__ import annotations

import time

import pytest

from tests.doctor.fake_endpoint import FakeEndpoint
from twostroke.errors import TwoStrokeError
from twostroke_doctor import Parsed
from twostroke_doctor.diagnose import diagnose
from twostroke_doctor.probe import ProbeLimits, make_plan, run_plan
from twostroke_doctor.probe.client import MAX_REPLY_BYTES
from twostroke_doctor.probe.metrics import read_metrics, window_between

FAST = ProbeLimits(requests=12, seconds=20, tokens=20_000)


@pytest.fixture(autouse=True)
def quiet_machine(monkeypatch):
    """Other tests may keep this machine busy: that is not what these are about."""
    monkeypatch.setattr("twostroke_doctor.probe.run.cpu_busy_share", lambda: 0.02)


def ask(limits=FAST, *, words=400, said=None, **behaviour):
    with FakeEndpoint(**behaviour) as server:
        plan = make_plan(server.url, limits, prompt_tokens=words, seed=7)
        items = run_plan(plan, say=(said if said is not None else []).append)
    parsed = Parsed()
    parsed.add_all(items)
    return parsed, server.how


def took(measured, slept):
    """A sleep is never shorter; a busy machine makes it longer."""
    return 0.95 * slept <= measured <= 3 * slept + 0.5


def record(parsed, name):
    return next(r for r in parsed.records if r.id == f"probe/{name}")


def test_a_working_cache_leaves_decode():
    parsed, how = ask(prefill_s_per_word=0.0004, decode_s_per_token=0.01, words=1000)
    first = diagnose(parsed).findings[0]
    assert first.code == "DECODE"
    again, control = record(parsed, "again"), record(parsed, "control")
    assert again.ttft_any_s < 0.5 * control.ttft_any_s
    assert took(control.ttft_any_s, 0.02 + 1000 * 0.0004)
    assert took(record(parsed, "long").tpot_s, 0.01)
    assert "PREFIX_MISS" not in {f.code for f in diagnose(parsed).findings}
    assert len(how.bodies) + how.num_gets <= FAST.requests


def test_a_cache_that_gives_nothing_is_a_prefix_miss_with_its_price():
    parsed, _ = ask(caches=False, prefill_s_per_word=0.0006, words=700)
    first = diagnose(parsed).findings[0]
    assert first.code == "PREFIX_MISS" and first.confidence == "high"
    head = next(cure for cure in first.cures if cure.key == "stable_head")
    assert head.is_exact and took(head.saves_low_s, 0.9 * 700 * 0.0006)


def test_warm_up_is_not_taken_for_a_hit():
    """The control experiment of omlx#1803: the first long prompt is slow, the repeat is fast."""
    parsed, _ = ask(caches=False, load_s=0.6, prefill_s_per_word=0.0004, words=1000)
    codes = {f.code for f in diagnose(parsed).findings}
    assert codes >= {"LOAD", "PREFIX_MISS"}
    assert took(record(parsed, "first").phases.load_s, 0.6)


def test_a_slow_first_contact_is_load():
    parsed, _ = ask(load_s=0.7, words=200)
    first = diagnose(parsed).findings[0]
    assert first.code == "LOAD"
    assert took(first.seconds, 0.7)


def test_ollama_states_its_load_itself():
    parsed, how = ask(ollama=True, load_s=0.7, words=200)
    assert record(parsed, "first").phases.load_s == pytest.approx(0.7)
    assert diagnose(parsed).findings[0].code == "LOAD"
    assert "options" in how.bodies[0] and record(parsed, "long").output.total == 64


def test_slow_first_decode_is_warm_up():
    parsed, _ = ask(slow_first_decode=40.0, words=200)
    assert "WARMUP" in {f.code for f in diagnose(parsed).findings}


def test_two_at_once_on_a_serial_server_queue():
    parsed, _ = ask(serial=True, decode_s_per_token=0.01, words=200)
    queued = [r for r in parsed.records if r.phases.queue_s]
    assert len(queued) == 1 and queued[0].id.startswith("probe/pair-")
    assert took(queued[0].phases.queue_s, 31 * 0.01)
    assert "QUEUE" in {f.code for f in diagnose(parsed).findings}


def test_two_at_once_on_a_batching_server_do_not_queue():
    parsed, _ = ask(decode_s_per_token=0.005, words=200)
    assert not any(r.phases.queue_s for r in parsed.records)


def test_seconds_after_the_last_token_are_tail():
    parsed, _ = ask(tail_s=0.4, words=200)
    first = diagnose(parsed).findings[0]
    assert first.code == "TAIL"
    assert took(record(parsed, "long").phases.tail_s, 0.4)


def test_the_first_token_is_the_first_text_not_the_role_chunk():
    """D51, vllm#15106: a meter that takes the empty first chunk is wrong, and is told so."""
    parsed, _ = ask(prefill_s_per_word=0.0004, words=1000)
    assert record(parsed, "control").ttft_any_s > 0.3
    assert "empty_first_chunk" in record(parsed, "control").meter.flags
    meter = next(f for f in diagnose(parsed).findings if f.code == "METER")
    assert meter.share is None, "it spoils other meters, not this one"


def test_bursts_are_named_and_rates_come_from_usage():
    """D53: sixteen tokens a chunk."""
    parsed, _ = ask(tokens_a_chunk=16, decode_s_per_token=0.005)
    long = record(parsed, "long")
    assert "buffered_stream" in long.meter.flags and long.output.total == 64


def test_without_usage_counts_stay_unknown():
    parsed, _ = ask(usage=False)
    assert record(parsed, "long").output.total is None
    assert record(parsed, "long").decode_tok_s is None


def test_cached_tokens_of_usage_are_kept():
    parsed, _ = ask(cached_in_usage=True)
    assert record(parsed, "again").prompt.cached == record(parsed, "again").prompt.total


def test_a_server_that_refuses_stream_options_is_asked_again_without():
    parsed, how = ask(refuses_stream_options=True)
    assert parsed.records and "stream_options" not in how.bodies[-1]
    assert len(how.bodies) + how.num_gets <= FAST.requests


def test_a_busy_machine_is_threads(monkeypatch):
    monkeypatch.setattr("twostroke_doctor.probe.run.cpu_busy_share", lambda: 0.9)
    parsed, _ = ask()
    first = diagnose(parsed).findings[0]
    assert first.code == "THREADS" and "90%" in first.says


def test_metrics_give_the_servers_state_and_hit_rate():
    page = (
        'vllm:num_requests_running{engine="0"} 3\n'
        "vllm:num_requests_waiting 5\nvllm:kv_cache_usage_perc 0.95\n"
    )
    parsed, _ = ask(metrics=page)
    (window,) = parsed.windows
    assert (window.running, window.waiting, window.kv_usage) == (3, 5, 0.95)
    assert "KV_FULL" in {f.code for f in diagnose(parsed).findings}
    before = read_metrics(b"vllm:prefix_cache_hits_total 10\nvllm:prefix_cache_queries_total 100\n")
    after = read_metrics(b"vllm:prefix_cache_hits_total 40\nvllm:prefix_cache_queries_total 200\n")
    assert window_between(before, after).prefix_hit_rate == pytest.approx(0.3)
    assert window_between({}, {}) is None


@pytest.mark.parametrize("requests", [6, 7, 9])
def test_never_more_requests_than_allowed(requests):
    said = []
    _, how = ask(ProbeLimits(requests=requests, seconds=20, tokens=20_000), said=said)
    assert len(how.bodies) + how.num_gets <= requests


def test_never_more_tokens_than_allowed():
    limits = ProbeLimits(requests=12, seconds=20, tokens=2_000)
    plan = make_plan("http://127.0.0.1:1", limits, prompt_tokens=900)
    assert plan.most_tokens <= 2_000
    _, how = ask(limits, words=900)
    sent = sum(len(b["messages"][0]["content"].split()) + b["max_tokens"] for b in how.bodies)
    assert sent <= 2_000


def test_an_endless_reply_ends_with_the_time_allowed():
    started = time.monotonic()
    with pytest.raises(TwoStrokeError, match="no request gave a timed reply"):
        ask(
            ProbeLimits(requests=12, seconds=0.8, tokens=20_000),
            endless=True,
            decode_s_per_token=0.01,
        )
    assert time.monotonic() - started < 6


def test_a_reply_without_end_is_cut_by_bytes(monkeypatch):
    monkeypatch.setattr("twostroke_doctor.probe.client.MAX_REPLY_BYTES", 20_000)
    said = []
    with pytest.raises(TwoStrokeError):
        ask(
            ProbeLimits(requests=6, seconds=20, tokens=20_000),
            said=said,
            endless=True,
            decode_s_per_token=0.0,
        )
    assert any("cut off" in line for line in said)
    assert MAX_REPLY_BYTES == 4 << 20


def test_a_refusal_is_said_and_no_record_is_made():
    said = []
    with pytest.raises(TwoStrokeError, match="status 404"):
        ask(said=said, status=404)
    assert all("no such model" in line for line in said if "status" in line)


def test_an_endpoint_that_nobody_serves_is_an_error():
    with pytest.raises(TwoStrokeError, match="cannot be reached"):
        run_plan(make_plan("http://127.0.0.1:9", FAST))


def test_the_key_is_sent_and_never_shown():
    with FakeEndpoint() as server:
        plan = make_plan(server.url, FAST, key="s3cret", prompt_tokens=100)
        said = [*plan.lines()]
        run_plan(plan, say=said.append)
        assert server.how.headers[0]["Authorization"] == "Bearer s3cret"
    assert "s3cret" not in repr(plan) and not any("s3cret" in line for line in said)
