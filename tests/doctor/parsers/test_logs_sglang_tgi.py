"""SGLang's batch and request lines, TGI's spans and headers."""
# ruff: noqa: E501 (log lines stand as engines print them)

from __future__ import annotations

import json

import pytest

from twostroke_doctor import parse

STAMP = "[2025-01-15 10:00:00 TP0] "
PREFILL_OLD = (
    STAMP
    + "Prefill batch. #new-seq: {seqs}, #new-token: {new}, #cached-token: {cached}, cache hit rate: 12.50%, token usage: 0.05, #running-req: {running}, #queue-req: {queue}, \n"
)
DECODE_OLD = (
    STAMP
    + "Decode batch. #running-req: {running}, #token: {token}, token usage: 0.01, gen throughput (token/s): {gen}, #queue-req: 0, \n"
)
PREFILL_NEW = "Prefill batch, #new-seq: 1, #new-token: 128, #cached-token: 384, full token usage: 0.20, swa token usage: 0.10, #running-req: 2, #queue-req: 3, #pending-token: 77, cuda graph: False, input throughput (token/s): 7.34\n"
DECODE_NEW = "Decode batch, #running-req: 20, #full token: 12345, full token usage: 0.14, mamba num: 20, mamba usage: 1.00, cuda graph: True, gen throughput (token/s): 1174.06, #queue-req: 6\n"


@pytest.mark.parametrize(
    ("seqs", "new", "cached", "running", "queue"),
    [(1, 128, 1, 0, 0), (3, 5000, 0, 8, 40), (3, 5000, 0, 8, 56)],
)
def test_old_prefill_rows(seqs, new, cached, running, queue):
    (window,) = parse(
        PREFILL_OLD.format(seqs=seqs, new=new, cached=cached, running=running, queue=queue)
    ).windows
    assert window.facts["num_new_seq"] == seqs and window.facts["num_new_token"] == new
    assert window.facts["num_cached_token"] == cached and window.facts["batch"] == "prefill"
    assert (window.running, window.waiting, window.kv_usage) == (running, queue, 0.05)
    assert window.prefix_hit_rate == pytest.approx(0.125)
    assert window.t_s == 1736935200.0


def test_single_stream_row():
    (window,) = parse(DECODE_OLD.format(running=1, token=206, gen=656.23)).windows
    assert (window.output_tok_s, window.running, window.waiting) == (656.23, 1, 0)
    assert window.facts["num_token"] == 206 and window.prompt_tok_s is None


def test_hybrid_model_row_shows_the_state_pool():
    (window,) = parse(DECODE_NEW).windows
    assert (window.running, window.kv_usage, window.output_tok_s, window.waiting) == (
        20,
        0.14,
        1174.06,
        6,
    )
    assert window.facts["mamba_usage"] == 1.0 and window.facts["cuda_graph"] == "true"


def test_new_prefill_line_has_the_idle_gap_rate_and_a_computed_hit_rate():
    (window,) = parse(PREFILL_NEW).windows
    assert (window.prompt_tok_s, window.running, window.waiting) == (7.34, 2, 3)
    assert window.facts["swa_token_usage"] == 0.10 and window.facts["num_pending_token"] == 77
    assert window.prefix_hit_rate == pytest.approx(384 / 512)


def test_request_statistics():
    text = "ReqTimeStats(rid=abc123, input_len=1024, cached_input_len=512, output_len=101, type=unified): queue_duration=12.50ms, initial_prefill_elapsed=150.00ms, post_prefill_elapsed=2000.00ms, forward_duration=2150.00ms, entry_time=1736900000.123\n"
    (record,) = parse(text).records
    assert record.id == "abc123"
    assert (record.prompt.total, record.prompt.cached, record.prompt.new) == (1024, 512, 512)
    assert (
        record.phases.queue_s,
        record.phases.prefill_s,
        record.phases.decode_s,
    ) == pytest.approx((0.0125, 0.15, 2.0))
    assert record.e2e_s == pytest.approx(2.1625) and record.decode_tok_s == pytest.approx(50)


SPANS = [  # total, validation, queue, inference, per token, tokens, seconds of the first four
    (
        "986.532642ms",
        "681.374µs",
        "188.125µs",
        "985.66325ms",
        "49.283162ms",
        20,
        (0.986532642, 0.000681374, 0.000188125),
    ),
    (
        "4.065504959s",
        "440.038965ms",
        "94.981µs",
        "3.625371193s",
        "38.982485ms",
        93,
        (4.065504959, 0.440038965, 0.000094981),
    ),
    (
        "735.200735ms",
        "955.594µs",
        "73.176µs",
        "734.17ms",
        "36.708605ms",
        20,
        (0.735200735, 0.000955594, 0.000073176),
    ),
    (
        "611.286748ms",
        "500µs",
        "188ns",
        "610.405026ms",
        "43.600359ms",
        14,
        (0.611286748, 0.0005, 188e-9),
    ),
    ("162.5s", "1ms", "161.454300714s", "1.0s", "50ms", 20, (162.5, 0.001, 161.454300714)),
]


@pytest.mark.parametrize("row", SPANS, ids=["short", "validation", "plain", "fourteen", "TGI#3173"])
@pytest.mark.parametrize("as_json", [False, True])
def test_span_rows(row, as_json):
    total, validation, queue, inference, per_token, tokens, (total_s, validation_s, queue_s) = row
    names = ("total_time", "validation_time", "queue_time", "inference_time", "time_per_token")
    fields = dict(zip(names, (total, validation, queue, inference, per_token), strict=True))
    if as_json:
        text = json.dumps(
            {
                "timestamp": "2024-01-01T00:00:00Z",
                "level": "INFO",
                "message": "Success",
                "span": {**fields, "name": "generate"},
            }
        )
    else:
        inside = " ".join(f'{name}="{value}"' for name, value in fields.items())
        text = f'2024-01-01T00:00:00.000000Z  INFO generate{{parameters=GenerateParameters {{ best_of: None }} {inside} seed="None"}}: text_generation_router::server: router/src/server.rs:325: Success'
    (record,) = parse(text + "\n").records
    assert record.engine == "tgi"
    assert record.e2e_s == pytest.approx(total_s)
    assert record.phases.init_s == pytest.approx(validation_s)
    assert record.phases.queue_s == pytest.approx(queue_s)
    assert record.output.total == tokens
    if tokens == 93:
        assert record.phases.init_s / record.e2e_s == pytest.approx(0.108, abs=0.0005)
    assert record.phases.prefill_s is None and record.phases.decode_s is None
    assert set(record.meter.flags) == {"count_derived", "prefill_mixed_in"}


def test_headers_carry_counts():
    text = "HTTP/1.1 200 OK\nx-compute-type: gpu\nx-compute-time: 1\nx-compute-characters: 40\nx-total-time: 986\nx-validation-time: 1\nx-queue-time: 3\nx-inference-time: 982\nx-time-per-token: 49\nx-prompt-tokens: 12\nx-generated-tokens: 20\n"
    first, second = parse(text + text.replace("986", "1986")).records
    assert (first.e2e_s, first.phases.init_s, first.phases.queue_s) == (0.986, 0.001, 0.003)
    assert (first.prompt.total, first.output.total) == (12, 20)
    assert second.e2e_s == 1.986 and "count_derived" not in second.meter.flags
