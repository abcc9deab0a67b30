"""Load on any OpenAI-compatible endpoint, measured from the client's side.

Open loop: requests leave when they are due, whatever the endpoint does, and how late each left is
reported (a closed loop hides queueing). Tokens are counted by the endpoint's usage, never by
chunks. Four kinds of prompt are controls for each other: unseen, same, short, long.
Source: Tene, "How NOT to Measure Latency" (coordinated omission).
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import field
from itertools import pairwise
from typing import Any

from twostroke.bench.http_stream import EndpointFailed, Target
from twostroke.dataclass import dataclass
from twostroke.record import InterTokenLatency, Meter, OutputTokens, PromptTokens, RequestRecord

KINDS = ("unseen", "same", "short", "long")
LAG_PERIOD_S = 0.05
_SHORT_WORDS = 4
_LONG_FACTOR = 4
_WORDS = ("time", "river", "stone", "light", "paper", "cloud", "green", "seven", "north", "table")


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What to send. rate None: closed loop with `concurrency` clients.

    Units: rate in requests per second; timeout_s in seconds.
    """

    model: str
    num_requests: int = 32
    rate: float | None = None
    concurrency: int = 1
    prompt_words: int = 100
    max_tokens: int = 64
    kinds: tuple[str, ...] = KINDS
    timeout_s: float = 300.0
    seed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Goals:
    """What makes a request good; None: not asked. Units: seconds."""

    ttft_s: float | None = None
    tpot_s: float | None = None
    e2e_s: float | None = None

    def are_met(self, record: RequestRecord) -> bool:
        """Whether a request met all of them; an unknown value meets no goal."""
        if record.meter.flags and "failed" in record.meter.flags:
            return False
        pairs = (
            (self.ttft_s, record.ttft_any_s),
            (self.tpot_s, record.tpot_s),
            (self.e2e_s, record.e2e_s),
        )
        return all(goal is None or (v is not None and v <= goal) for goal, v in pairs)


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One request as the client saw it. lag_s: how late it left."""

    kind: str
    lag_s: float
    record: RequestRecord
    error: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return plain data, ready for JSON."""
        return {
            "kind": self.kind,
            "lag_s": self.lag_s,
            "error": self.error,
            **self.record.to_dict(),
        }


@dataclass(slots=True)
class _Seen:
    """What has come of one reply so far. Moments in seconds of time.monotonic()."""

    sent_s: float
    token_times_s: list[float] = field(default_factory=list)
    visible_s: float | None = None
    usage: dict[str, Any] | None = None
    finish: str | None = None
    error: str | None = None

    def take(self, data: bytes, now_s: float) -> None:
        event = json.loads(data)
        if event.get("error"):
            self.error = str(event["error"])[:300]
        self.usage = event.get("usage") or self.usage
        for choice in event.get("choices") or ():
            self.finish = choice.get("finish_reason") or self.finish
            delta = choice.get("delta") or {}
            text = delta.get("content") or choice.get("text") or ""
            thought = delta.get("reasoning_content") or delta.get("reasoning") or ""
            if not (text or thought or delta.get("tool_calls")):
                continue  # a role, an empty or a closing chunk is no token
            self.token_times_s.append(now_s)
            if text and self.visible_s is None:
                self.visible_s = now_s


def prompt_of(kind: str, number: int, load: Load) -> str:
    """Return the prompt of a kind; an unseen or long one is the same for no other request."""
    count = {"short": _SHORT_WORDS, "long": load.prompt_words * _LONG_FACTOR}.get(
        kind, load.prompt_words
    )
    draw = random.Random(f"{load.seed}-{kind}" + ("" if kind == "same" else f"-{number}"))
    words = (draw.choice(_WORDS) + str(draw.randrange(1000)) for _ in range(count))
    return " ".join(words) + ". Go on."


async def run_load(
    url: str,
    load: Load,
    *,
    api_key: str | None = None,
    on_result: Callable[[Result], None] = lambda result: None,
) -> tuple[list[Result], float, float]:
    """Send the load; return all results, the wall time, and the client's own worst loop lag.

    Units: seconds.

    Raises:
        ConfigError: a bad URL. EndpointFailed: not one request was answered.
    """
    target = Target(url)
    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    results: list[Result] = []
    worst = [0.0]
    watch = asyncio.ensure_future(_watch_loop(worst))

    async def one(number: int, due_s: float) -> None:
        kind = load.kinds[number % len(load.kinds)]
        result = await _ask(target, load, headers, kind, number, due_s)
        results.append(result)
        on_result(result)

    start_s = time.monotonic()
    try:
        if load.rate is not None:
            await _open_loop(load, one)
        else:
            await _closed_loop(load, one)
    finally:
        watch.cancel()
    if all(r.error is not None for r in results):
        raise EndpointFailed("no request was answered", value=results[0].error)
    return results, time.monotonic() - start_s, worst[0]


async def _open_loop(load: Load, one: Callable[[int, float], Any]) -> None:
    draw = random.Random(load.seed)
    due_s, tasks = time.monotonic(), []
    assert load.rate is not None
    for number in range(load.num_requests):
        await asyncio.sleep(max(due_s - time.monotonic(), 0.0))
        tasks.append(asyncio.ensure_future(one(number, due_s)))
        due_s += draw.expovariate(load.rate)
    await asyncio.gather(*tasks)


async def _closed_loop(load: Load, one: Callable[[int, float], Any]) -> None:
    numbers = iter(range(load.num_requests))

    async def client() -> None:
        for number in numbers:
            await one(number, time.monotonic())

    await asyncio.gather(*(client() for _ in range(load.concurrency)))


async def _watch_loop(worst: list[float]) -> None:
    while True:
        before_s = time.monotonic()
        await asyncio.sleep(LAG_PERIOD_S)
        worst[0] = max(worst[0], time.monotonic() - before_s - LAG_PERIOD_S)


async def _ask(
    target: Target,
    load: Load,
    headers: dict[str, str],
    kind: str,
    number: int,
    due_s: float,
) -> Result:
    body = {
        "model": load.model,
        "messages": [{"role": "user", "content": prompt_of(kind, number, load)}],
        "max_tokens": load.max_tokens,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    data = json.dumps(body).encode()
    seen = _Seen(time.monotonic())
    try:
        lines = target.lines("/chat/completions", data, headers, load.timeout_s)
        async for event, now_s in _events(lines):
            seen.take(event, now_s)
    except EndpointFailed as error:
        seen.error = str(error)
    except (ValueError, AttributeError, TypeError) as error:
        seen.error = f"the reply is not what OpenAI's API gives: {error!r}"
    record = _record(seen, f"{kind}-{number}", time.monotonic())
    return Result(kind=kind, lag_s=seen.sent_s - due_s, record=record, error=seen.error)


async def _events(lines: AsyncIterator[tuple[bytes, float]]) -> AsyncIterator[tuple[bytes, float]]:
    async for line, now_s in lines:
        if line.startswith(b"data:"):
            data = line[5:].strip()
            if data == b"[DONE]":
                return
            yield data, now_s


def _record(seen: _Seen, request_id: str, end_s: float) -> RequestRecord:
    usage = seen.usage or {}
    details = usage.get("prompt_tokens_details") or {}
    total, cached = usage.get("prompt_tokens"), details.get("cached_tokens")
    num_output = usage.get("completion_tokens")
    thought = (usage.get("completion_tokens_details") or {}).get("reasoning_tokens")
    times = seen.token_times_s
    gaps = sorted(b - a for a, b in pairwise(times))
    tpot_s = None
    if num_output is not None and num_output > 1 and len(times) > 1:
        tpot_s = (times[-1] - times[0]) / (num_output - 1)
    flags = []
    if seen.error is not None:
        flags.append("failed")
    if num_output is not None and num_output != len(times):
        flags.append("chunks_are_not_tokens")
    if num_output is None:
        flags.append("no_usage")
    return RequestRecord(
        id=request_id,
        t_arrival_s=seen.sent_s,
        engine="endpoint",
        e2e_s=end_s - seen.sent_s,
        prompt=PromptTokens(
            total=total,
            cached=cached,
            new=total - cached if total is not None and cached is not None else None,
        ),
        output=OutputTokens(total=num_output, reasoning=thought),
        ttft_any_s=times[0] - seen.sent_s if times else None,
        ttft_visible_s=seen.visible_s - seen.sent_s if seen.visible_s is not None else None,
        tpot_s=tpot_s,
        itl=InterTokenLatency(
            p50_s=percentile(gaps, 50), p95_s=percentile(gaps, 95), max_s=gaps[-1] if gaps else None
        ),
        decode_tok_s=1 / tpot_s if tpot_s else None,
        finish=seen.finish,
        meter=Meter(source="client", flags=tuple(flags)),
    )


def percentile(ordered: Sequence[float], percent: int) -> float | None:
    """Return a percentile of ascending values by nearest rank, None of none."""
    if not ordered:
        return None
    return ordered[max(-(-percent * len(ordered) // 100) - 1, 0)]


def summary(
    results: Sequence[Result], wall_s: float, loop_lag_s: float, goals: Goals
) -> dict[str, Any]:
    """Return one row for each kind and one for all. Units: seconds, tokens and requests per second.

    itl percentiles are of the requests' own medians, so that long answers do not outvote others.
    """
    rows = {kind: _row([r for r in results if r.kind == kind]) for kind in KINDS}
    tokens = sum(r.record.output.total or 0 for r in results)
    good = sum(goals.are_met(r.record) for r in results)
    return {
        "wall_s": wall_s,
        "requests": len(results),
        "failed": sum(r.error is not None for r in results),
        "output_tok_s": tokens / wall_s,
        "goodput_requests_s": good / wall_s,
        "client_loop_lag_max_s": loop_lag_s,
        "schedule_lag_max_s": max(r.lag_s for r in results),
        "all": _row(results),
        "kinds": {kind: row for kind, row in rows.items() if row is not None},
    }


def _row(results: Sequence[Result]) -> dict[str, Any] | None:
    fine = [r.record for r in results if r.error is None]
    if not fine:
        return None
    values: dict[str, list[float | None]] = {
        "ttft_any_s": [r.ttft_any_s for r in fine],
        "ttft_visible_s": [r.ttft_visible_s for r in fine],
        "tpot_s": [r.tpot_s for r in fine],
        "itl_p50_s": [r.itl.p50_s for r in fine],
        "e2e_s": [r.e2e_s for r in fine],
    }
    row: dict[str, Any] = {"requests": len(fine)}
    for name, some in values.items():
        known = sorted(v for v in some if v is not None)
        row[name] = {f"p{p}": percentile(known, p) for p in (50, 95, 99)}
    return row
