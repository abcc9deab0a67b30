"""The load tool against a scripted endpoint (the list of known meter mistakes) and our own."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.server.serving import Served
from tests.tiny_models import write_tiny
from twostroke.bench.client_record import Result, percentile
from twostroke.bench.http_stream import EndpointFailed, LoadTarget
from twostroke.bench.load_summary import Goals, summary
from twostroke.bench.remote import Load, prompt_of, run_load
from twostroke.cli.bench_url import parse_goals
from twostroke.errors import ConfigError

GAP_S = 0.05


def chunk(delta: dict, finish: str | None = None, **fields: object) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    return b"data: " + json.dumps({"choices": [choice], **fields}).encode() + b"\n\n"


def usage(count: int, **fields: object) -> bytes:
    told = {"prompt_tokens": 10, "completion_tokens": count, **fields}
    return b"data: " + json.dumps({"choices": [], "usage": told}).encode() + b"\n\n"


def scripted(frames: list[bytes], load: Load | None = None, status: str = "200 OK") -> list[Result]:
    """Answer every request with these frames, GAP_S apart, and return what the tool saw."""

    async def main() -> list[Result]:
        async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            head = f"HTTP/1.1 {status}\r\nTransfer-Encoding: chunked\r\n\r\n"
            writer.write(head.encode())
            for frame in frames:
                await asyncio.sleep(GAP_S)
                writer.write(f"{len(frame):x}\r\n".encode() + frame + b"\r\n")
                await writer.drain()
            writer.write(b"0\r\n\r\n")
            await writer.drain()
            writer.close()

        server = await asyncio.start_server(handle, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        try:
            given = load or Load(model="m", num_requests=1, kinds=("unseen",))
            results, _, _ = await run_load(f"http://127.0.0.1:{port}", given)
        finally:
            server.close()
            await server.wait_closed()
        return results

    return asyncio.run(main())


def test_roles_empty_chunks_and_usage_are_no_tokens() -> None:
    frames = [
        chunk({"role": "assistant", "content": ""}),
        chunk({}),
        chunk({"content": "a"}),
        chunk({"content": "b"}),
        chunk({"content": "c"}),
        chunk({}, "length"),
        usage(3),
        b"data: [DONE]\n\n",
    ]
    (result,) = scripted(frames)
    record = result.record
    assert record.ttft_any_s == pytest.approx(3 * GAP_S, abs=0.04)
    assert record.tpot_s == pytest.approx(GAP_S, abs=0.02)
    assert record.itl.max_s < 2 * GAP_S, "the time to the first token is no gap"
    assert record.output.total == 3 and record.finish == "length"
    assert record.meter.flags == () and record.meter.source == "client"


def test_chunks_of_several_tokens_are_counted_by_usage() -> None:
    (result,) = scripted([chunk({"content": "abc"}), chunk({"content": "def"}), usage(6)])
    assert result.record.output.total == 6
    assert result.record.tpot_s == pytest.approx(GAP_S / 5, abs=0.01)
    assert result.record.meter.flags == ("chunks_are_not_tokens",)


def test_reasoning_counts_as_a_token_but_not_as_visible() -> None:
    frames = [
        chunk({"reasoning_content": "hm"}),
        chunk({"content": "yes"}),
        usage(2, prompt_tokens_details={"cached_tokens": 4}),
    ]
    (result,) = scripted(frames)
    record = result.record
    assert record.ttft_visible_s - record.ttft_any_s == pytest.approx(GAP_S, abs=0.03)
    assert (record.prompt.cached, record.prompt.new) == (4, 6)


def test_unknown_stays_none() -> None:
    (one,) = scripted([chunk({"content": "a"}, "stop"), usage(1)])
    assert one.record.tpot_s is None and one.record.itl.p50_s is None
    (no_usage,) = scripted([chunk({"content": "a"}), chunk({"content": "b"})])
    assert no_usage.record.output.total is None and no_usage.record.tpot_s is None
    assert no_usage.record.meter.flags == ("no_usage",)


@pytest.mark.parametrize(
    ("frames", "status"),
    [
        ([b'{"error": "busy"}'], "503 Service Unavailable"),
        ([b"data: {broken\n\n"], "200 OK"),
        ([b'data: {"error": {"message": "died"}}\n\n'], "200 OK"),
        ([b"data: 3\n\n"], "200 OK"),
    ],
)
def test_an_error_is_a_failed_request(frames: list[bytes], status: str) -> None:
    with pytest.raises(EndpointFailed, match="no request was answered"):
        scripted(frames, status=status)


def test_an_open_loop_does_not_wait_for_the_endpoint() -> None:
    load = Load(model="m", num_requests=20, rate=200.0, kinds=("short",))
    start = time.monotonic()
    results = scripted([chunk({"content": "a"})] * 10 + [usage(10)], load)
    assert time.monotonic() - start < 20 * 10 * GAP_S / 3
    assert len(results) == 20
    assert max(r.lag_s for r in results) < 0.5


def test_kinds_are_controls_for_each_other() -> None:
    load = Load(model="m", prompt_words=50)
    assert prompt_of("same", 1, load) == prompt_of("same", 9, load)
    assert prompt_of("unseen", 1, load) != prompt_of("unseen", 9, load)
    lengths = {k: len(prompt_of(k, 1, load).split()) for k in ("short", "unseen", "long")}
    assert lengths["short"] < lengths["unseen"] < lengths["long"]


def test_a_goal_is_met_only_by_a_known_value() -> None:
    frames = [chunk({"content": "a"}), chunk({"content": "b"}), usage(2)]
    results = scripted(frames)
    for goals, good in (
        ({"ttft_s": 1.0}, 1),
        ({"ttft_s": 0.001}, 0),
        ({"tpot_s": 1.0, "e2e_s": 5.0}, 1),
        ({"tpot_s": 0.001}, 0),
    ):
        told = summary(results, 2.0, 0.0, Goals(**goals))
        assert told["goodput_requests_s"] == good / 2.0
    unknown = scripted([chunk({"content": "a"}), usage(1)])
    assert summary(unknown, 1.0, 0.0, Goals(tpot_s=9.0))["goodput_requests_s"] == 0


def test_percentiles_are_by_nearest_rank() -> None:
    values = [float(v) for v in range(1, 101)]
    assert [percentile(values, p) for p in (50, 95, 99)] == [50.0, 95.0, 99.0]
    assert percentile([7.0], 99) == 7.0 and percentile([], 50) is None


def test_goals_and_addresses_are_checked() -> None:
    assert parse_goals("ttft:0.5, tpot:0.05") == {"ttft_s": 0.5, "tpot_s": 0.05}
    for text in ("ttft", "ttft:x", "foo:1"):
        with pytest.raises(ConfigError):
            parse_goals(text)
    with pytest.raises(ConfigError):
        LoadTarget("ftp://host")
    assert LoadTarget("localhost:8000").base == "/v1"
    assert LoadTarget("https://host/api/v1/").base == "/api/v1"


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    path = tmp_path_factory.mktemp("bench") / "tiny.gguf"
    write_tiny(path, "llama", context_length=1024)
    with Served(path) as server:
        yield server


def test_our_own_server_is_measured_as_it_measures_itself(served: Served, tmp_path: Path) -> None:
    served.throttle.step_s = 0.01
    load = Load(model="tiny", num_requests=8, concurrency=2, prompt_words=8, max_tokens=10)
    results, wall_s, lag_s = asyncio.run(run_load(served.url, load))
    served.throttle.step_s = 0.0
    assert [r.error for r in results] == [None] * 8
    told = summary(results, wall_s, lag_s, Goals(ttft_s=5.0))
    assert told["failed"] == 0 and told["goodput_requests_s"] > 0
    assert set(told["kinds"]) == {"unseen", "same", "short", "long"}
    same = sorted((r for r in results if r.kind == "same"), key=lambda r: r.record.t_arrival_s)
    assert same[1].record.prompt.new == 1, "the control: a prompt that was seen"
    unseen = [r for r in results if r.kind == "unseen"]
    assert all(r.record.prompt.new > 50 for r in unseen)
    gaps = [r.record.itl.max_s for r in results if r.record.itl.max_s is not None]
    assert gaps and min(gaps) >= 0.008, "a step takes 10 ms"
    served.check_idle()
