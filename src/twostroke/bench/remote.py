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
from collections.abc import AsyncIterator, Callable
from typing import Any

from twostroke.bench.client_record import ReplySoFar, Result, record_of
from twostroke.bench.http_stream import EndpointFailed, LoadTarget
from twostroke.dataclass import dataclass

KINDS = ("unseen", "same", "short", "long")
LAG_PERIOD_S = 0.05
_SHORT_WORDS = 4
_LONG_FACTOR = 4
_WORDS = ("time", "river", "stone", "light", "paper", "cloud", "green", "seven", "north", "table")


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """The requests to send. rate None: closed loop with `concurrency` clients.

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
    endpoint = LoadTarget(url)
    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    results: list[Result] = []
    worst = [0.0]
    watch = asyncio.ensure_future(_watch_loop(worst))

    async def one(number: int, due_s: float) -> None:
        kind = load.kinds[number % len(load.kinds)]
        result = await _ask(endpoint, load, headers, kind, number, due_s)
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
    endpoint: LoadTarget,
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
    seen = ReplySoFar(time.monotonic())
    try:
        lines = endpoint.lines("/chat/completions", data, headers, load.timeout_s)
        async for event, now_s in _events(lines):
            seen.take(event, now_s)
    except EndpointFailed as error:
        seen.error = str(error)
    except (ValueError, AttributeError, TypeError) as error:
        seen.error = f"the reply is not what OpenAI's API gives: {error!r}"
    record = record_of(seen, f"{kind}-{number}", time.monotonic())
    return Result(kind=kind, lag_s=seen.sent_s - due_s, record=record, error=seen.error)


async def _events(lines: AsyncIterator[tuple[bytes, float]]) -> AsyncIterator[tuple[bytes, float]]:
    async for line, now_s in lines:
        if line.startswith(b"data:"):
            data = line[5:].strip()
            if data == b"[DONE]":
                return
            yield data, now_s
