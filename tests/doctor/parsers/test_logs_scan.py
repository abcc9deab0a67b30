"""Auto-detection, wrappers, own records, streams, counts of what told nothing, hostile files."""
# ruff: noqa: E501 (log lines stand as engines print them)

from __future__ import annotations

import json
import subprocess
import sys
import time
import tracemalloc

import pytest

from tests.doctor.parsers.test_logs_ollama import VERBOSE
from twostroke.errors import ConfigError
from twostroke.record import (
    CacheOutcome,
    Meter,
    PhaseTimes,
    PromptTokens,
    RequestRecord,
    WindowRecord,
)
from twostroke_doctor import FACTS, FLAGS, LogScanner, iter_items, parse
from twostroke_doctor.parsers.openai_usage import chunk_kind

WEBUI = "Output generated in 12.97 seconds (15.34 tokens/s, 199 tokens, context 4, seed 7)"
KOBOLD = "CtxLimit: 1754/8192, Process:25.05s (66.89T/s), Generate:59.05s (6.55T/s), Total:84.10s (4.60T/s)"
WRAPPERS = [
    "name-1  | {}",
    "Mar  1 10:00:00 host llama-server[4242]: {}",
    "2025-05-20T10:00:00.123456789Z {}",
    "2025-05-20T10:00:00.123456789Z stderr F {}",
    "(APIServer pid=3646) {}",
    "[45723] {}",
    "name-1  | 2025-05-20 10:00:00,123 {}",
    "2026-06-10 20:02:40.771 [Info] (Process) {}",
    "\x1b[32m2025-05-20 10:00:00\x1b[0m \x1b[1m{}\x1b[0m",
    "2025-05-20 10:00:00.123 | INFO     | module:function:12 - {}",
]


WRAPPED = [(one, text) for one in WRAPPERS for text in (WEBUI, KOBOLD)]
WRAPPED += [(one, VERBOSE.strip()) for one in WRAPPERS if "module:" not in one]


@pytest.mark.parametrize(("wrapper", "text"), WRAPPED)
def test_wrappers_change_nothing_but_the_clock(wrapper, text):
    (plain,) = parse(text).records
    (wrapped,) = parse("\n".join(wrapper.format(line) for line in text.splitlines())).records
    assert (wrapped.phases, wrapped.prompt, wrapped.output, wrapped.reported) == (
        plain.phases,
        plain.prompt,
        plain.output,
        plain.reported,
    )


def test_docker_and_journal_json_are_opened():
    docker = json.dumps({"log": WEBUI + "\n", "stream": "stderr", "time": "2025-05-20T10:00:00.1Z"})
    journal = json.dumps({"PRIORITY": "6", "MESSAGE": WEBUI})
    records = parse(docker + "\n" + journal + "\n").records
    assert [record.output.total for record in records] == [199, 199]
    assert records[0].t_arrival_s == pytest.approx(1747735200.1 - 12.97)


def test_a_mixed_log_is_read_engine_by_engine():
    text = f"{WEBUI}\nhello\n{VERBOSE}{KOBOLD}\nPrompt: 10 tokens, 5.0 tokens-per-sec\n"
    parsed = parse(text)
    assert {r.engine for r in parsed.records} == {
        "text-generation-webui",
        "ollama",
        "koboldcpp",
        "mlx-lm",
    }
    assert parsed.num_lines == 12 and parsed.unknown == {"other": 1}
    assert parsed.engines["ollama"] == 1


def test_lines_that_tell_nothing_are_counted_by_kind():
    text = "hello\n\nslot update_slots: id 0 | prompt done, n_tokens\nllama_model_loader: - kv 12\nollama is up, iB\nAvg prompt throughput: broken\n"
    parsed = parse(text)
    assert parsed.unknown == {"other": 2, "llama-server": 1, "llama.cpp": 1, "ollama": 1, "vllm": 1}
    assert parsed.num_lines == 6


def own_record(**over):
    fields = {
        "id": "r1",
        "phases": PhaseTimes(queue_s=0.1, prefill_s=1.0, decode_s=2.0),
        "prompt": PromptTokens(total=100, cached=40, new=60),
        "reported": {"x": 1.5},
        "cache": CacheOutcome(reason="prefix_diverged", diverged_token=40),
        "meter": Meter(source="engine", flags=("a",), lines=(1, 2)),
        "e2e_s": 3.1,
    }
    return RequestRecord(**{**fields, **over})


def test_own_records_come_back_equal():
    records = [own_record(), own_record(id="r2", e2e_s=None)]
    window = WindowRecord(engine="vllm", running=3, facts={"a": 1.0, "b": "text"})
    lines = [json.dumps(item.to_dict()) for item in (*records, window)]
    parsed = parse("\n".join(lines))
    assert parsed.records == records and parsed.windows == [window]
    document = json.dumps({"findings": [], "records": [r.to_dict() for r in records]}, indent=1)
    assert parse(document).records == records


@pytest.mark.parametrize("value", ["1e999", "-1", '"x"', "true", "[1]", "NaN", "9" * 5000, "{}"])
def test_a_forged_field_of_our_record_is_unknown(value):
    text = json.dumps(own_record().to_dict()).replace('"e2e_s": 3.1', f'"e2e_s": {value}')
    (record,) = parse(text).records
    assert record.e2e_s is None and record.prompt.total == 100


def test_usage_of_any_openai_server_gives_counts_only():
    usage = {
        "prompt_tokens": 500,
        "completion_tokens": 20,
        "prompt_tokens_details": {"cached_tokens": 448},
        "completion_tokens_details": {"reasoning_tokens": 12},
    }
    (record,) = parse(
        json.dumps({"id": "x", "object": "chat.completion", "model": "m", "usage": usage})
    ).records
    assert (record.prompt.total, record.prompt.cached, record.prompt.new) == (500, 448, 52)
    assert (record.output.total, record.output.reasoning, record.model) == (20, 12, "m")
    assert record.decode_tok_s is None and record.engine == "openai"


@pytest.mark.parametrize("where", ["input_tokens_details", None])
def test_cached_tokens_are_found_where_servers_put_them(where):
    usage = {"input_tokens": 52, "output_tokens": 20}
    usage |= {where: {"cached_tokens": 40}} if where else {"cache_read_input_tokens": 448}
    (record,) = parse(json.dumps({"type": "response", "response": {"usage": usage}})).records
    expected = (52, 40, 12) if where else (500, 448, 52)
    assert (record.prompt.total, record.prompt.cached, record.prompt.new) == expected


def test_events_of_one_message_are_one_request():
    events = [
        {"type": "message_start", "message": {"id": "m", "usage": {"input_tokens": 52, "cache_read_input_tokens": 448, "output_tokens": 1}}},
        {"type": "content_block_delta", "delta": {"text": "prompt token"}},
        {"type": "message_delta", "delta": {}, "usage": {"output_tokens": 77}},
    ]  # fmt: skip
    text = "".join(f"event: {e['type']}\ndata: {json.dumps(e)}\n\n" for e in events)
    first, second = parse(text + text).records
    assert first.prompt == second.prompt == PromptTokens(total=500, cached=448, new=52)
    assert (first.output.total, second.output.total) == (77, 77)


def test_provider_times_in_usage():
    usage = {
        "queue_time": 0.05,
        "prompt_tokens": 100,
        "prompt_time": 0.02,
        "completion_tokens": 60,
        "completion_time": 0.2,
        "total_time": 0.22,
    }
    (record,) = parse(json.dumps({"id": "x", "usage": usage})).records
    assert (record.phases.queue_s, record.phases.prefill_s, record.phases.decode_s) == (
        0.05,
        0.02,
        0.2,
    )


CHUNKS = [
    ({"choices": [{"delta": {"role": "assistant", "content": ""}}]}, "empty"),
    ({"choices": [{"delta": {"reasoning_content": "hm"}}]}, "reasoning"),
    ({"choices": [{"delta": {"reasoning": "hm"}}]}, "reasoning"),
    ({"choices": [{"delta": {"content": "hi"}}]}, "content"),
    ({"choices": [{"delta": {"tool_calls": [{}]}}]}, "tool"),
    ({"choices": [], "usage": {"prompt_tokens": 1}}, "usage"),
    ({"choices": [{"text": "hi"}]}, "content"),
    ({"error": {"message": "no"}}, "error"),
]


@pytest.mark.parametrize(("chunk", "kind"), CHUNKS)
def test_chunks_are_told_apart(chunk, kind):
    assert chunk_kind(chunk) == kind


def test_every_kind_of_source_reads_the_same(tmp_path):
    text = f"{VERBOSE}{WEBUI}\n"
    path = tmp_path / "a.log"
    path.write_text(text)
    expected = parse(text).records
    assert [r.output for r in parse(path).records] == [r.output for r in expected]
    assert parse(path).records[0].meter.file == str(path)
    with path.open("rb") as stream:
        assert parse(stream).records == expected
    assert parse(text.encode()).records == expected
    assert parse(iter(text.splitlines())).records == expected
    assert parse(text.replace("\n", "\r\n")).records == expected
    assert parse(text.encode("utf-16")).records == expected, "PowerShell writes UTF-16"
    assert parse(b"\xef\xbb\xbf" + text.encode()).records == expected
    assert [type(i) for i in iter_items(text)] == [RequestRecord, RequestRecord]


def test_a_path_that_cannot_be_read_is_told(tmp_path):
    with pytest.raises(ConfigError, match="cannot be read"):
        parse(tmp_path / "none.log")


def test_line_numbers_hold_across_chunks():
    filler = b"nothing to see in this line, it is only long enough to fill a chunk\n" * 40_000
    data = filler + WEBUI.encode() + b"\n" + filler + VERBOSE.encode() + filler + KOBOLD.encode()
    parsed = parse(data)
    assert [record.meter.lines[0] for record in parsed.records] == [40_001, 80_002, 120_010]
    assert parsed.num_lines == 120_010 and parsed.unknown == {"other": 120_000}


def test_memory_stays_bounded_on_a_long_log():
    def lines():
        for _ in range(60):
            yield b"GET /index 200 nothing\n" * 40_000
            yield WEBUI.encode() + b"\n"

    scanner, count = LogScanner(), 0
    tracemalloc.start()
    for _ in scanner.scan(lines()):
        count += 1
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert count == 60 and scanner.num_lines == 60 * 40_001
    assert peak < 16 << 20


HOSTILE = [
    b"{\n" * 300_000,
    b"[\n" * 300_000,
    b"{" * 2_000_000,
    b'{"a":' * 100_000,
    b"[" * 900_000 + b'{"usage"',
    b"A" * 5_000_000 + b" prompt eval time = 1.00 ms / 2 tokens",
    (b"Output generated in " * 400 + b"\n") * 200,
    b"Metrics: " * 100_000,
    b"slot print_timing: id 0 | task " + b"9" * 100_000,
    b"prompt eval time = " + b" " * 100_000 + b"ms",
    b'memory.available="' + b"1 GiB " * 50_000 + b" layers.offload=",
    b"\x00\xff\xfe" * 100_000,
    b"Decode batch, " + b"a: 1, " * 100_000,
    b"Prefill batch. " * 1000,
    b"\n" * 3_000_000,
]


@pytest.mark.parametrize("data", HOSTILE, ids=range(len(HOSTILE)))
def test_hostile_text_costs_bounded_time_and_tells_nothing(data):
    start = time.perf_counter()
    parsed = parse(data)
    assert time.perf_counter() - start < 5
    assert parsed.records == []


def test_names_and_flags_come_from_the_tables():
    text = VERBOSE + WEBUI + "\n" + KOBOLD
    parsed = parse(text)
    assert all(fact.name in FACTS for fact in parsed.facts)
    assert all(flag in FLAGS for record in parsed.records for flag in record.meter.flags)


def test_doctor_needs_neither_numpy_nor_the_native_module():
    code = (
        "import sys, twostroke_doctor, twostroke_doctor.parsers\n"
        "twostroke_doctor.parse('eval rate: 1 tokens/s')\n"
        "bad = [m for m in sys.modules if m.split('.')[0] in ('numpy', 'torch', 'tokenizers')"
        " or m == 'twostroke._native']\n"
        "sys.exit(repr(bad) if bad else 0)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
