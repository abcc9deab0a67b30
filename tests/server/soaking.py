"""Many clients on one server, a third of them leaving, some of them sending nonsense."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from twostroke.bench.client_record import percentile

NUM_REQUESTS = 64
LEAVING = 1 / 3
MALFORMED = 0.05
_WORDS = ("river", "stone", "light", "paper", "cloud", "green", "seven", "north")
_NONSENSE = (
    b"{:",
    b'{"messages": 3}',
    b'{"messages": [], "n": 0}',
    b'{"messages": [{"role": "user", "content": "x"}], "temperature": -1}',
    b'{"messages": [{"role": "user", "content": "' + b"long " * 9000 + b'"}]}',
)


@dataclass(slots=True)
class Tally:
    """What came of a soak. Times in seconds."""

    num_whole: int = 0
    num_left: int = 0
    num_refused: int = 0
    num_tokens: int = 0
    seconds: float = 0.0
    ttft_s: list[float] = field(default_factory=list)
    gaps_s: list[float] = field(default_factory=list)
    lag_s: list[float] = field(default_factory=list)
    rss_bytes: list[int] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)

    def figures(self) -> dict[str, Any]:
        """Return percentiles and rates, ready for JSON."""

        def spread(values: list[float]) -> dict[str, float | None]:
            ordered = sorted(values)
            return {f"p{p}_ms": _ms(percentile(ordered, p)) for p in (50, 95, 99)}

        return {
            "whole": self.num_whole,
            "left": self.num_left,
            "refused": self.num_refused,
            "tok_s": round(self.num_tokens / self.seconds, 1),
            "ttft": spread(self.ttft_s),
            "itl": spread(self.gaps_s),
            "loop_lag": spread(self.lag_s),
            "rss_mib": [round(b / 2**20) for b in (self.rss_bytes[0], self.rss_bytes[-1])],
        }


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1e3, 1)


def prerecorded(seed: int = 1) -> list[dict[str, Any]]:
    """Return the requests: shared heads, all sampling methods, stops, several lengths."""
    draw = random.Random(seed)
    requests = []
    for i in range(NUM_REQUESTS):
        head = " ".join(_WORDS[j % 8] for j in range(draw.choice((0, 20, 60))))
        body: dict[str, Any] = {
            "messages": [{"role": "user", "content": f"{head} question {i}"}],
            "max_tokens": draw.randrange(1, 40),
            "seed": draw.randrange(2**32),
            "temperature": draw.choice((0, 0, 0.7, 1.3)),
            "top_p": draw.choice((1, 0.9)),
            "top_k": draw.choice((0, 40)),
            "repetition_penalty": draw.choice((1.0, 1.1)),
            "stop": draw.choice(([], [], ["\n\n"], [" the", " of"])),
            "ignore_eos": draw.random() < 0.5,
        }
        requests.append(body)
    return requests


async def ask(
    client: httpx.AsyncClient, body: dict[str, Any], *, leave_after: int | None, tally: Tally | None
) -> str | None:
    """Return the streamed text, None when the client left."""
    texts: list[str] = []
    start = last = time.monotonic()
    num_events = 0
    request = {**body, "stream": True, "stream_options": {"include_usage": True}}
    async with client.stream("POST", "/v1/chat/completions", json=request) as reply:
        if reply.status_code != 200:
            raise AssertionError(f"{reply.status_code} {await reply.aread()!r}")
        async for line in reply.aiter_lines():
            if not line.startswith("data: {"):
                continue
            now = time.monotonic()
            event = json.loads(line[6:])
            if "error" in event:
                raise AssertionError(line)
            if not event["choices"]:
                if tally is not None:
                    tally.num_tokens += event["usage"]["completion_tokens"]
                continue
            texts.append(event["choices"][0]["delta"].get("content", ""))
            if tally is not None:
                (tally.gaps_s if num_events else tally.ttft_s).append(
                    now - (last if num_events else start)
                )
            last = now
            num_events += 1
            if leave_after is not None and num_events >= leave_after:
                return None
    return "".join(texts)


async def soak(
    url: str,
    seconds: float,
    num_clients: int,
    watch: Callable[[], Awaitable[tuple[int, float]]],
    seed: int = 1,
) -> Tally:
    """Run clients for so long and compare every whole answer with the one given alone.

    watch: returns the server's resident bytes and its event loop's lag in seconds, now.
    """
    requests = prerecorded(seed)
    limits = httpx.Limits(max_connections=num_clients + 4, max_keepalive_connections=num_clients)
    tally = Tally()
    async with httpx.AsyncClient(base_url=url, limits=limits, timeout=120) as client:
        alone = [await ask(client, body, leave_after=None, tally=None) for body in requests]
        start = time.monotonic()
        end = start + seconds

        async def visitor(number: int) -> None:
            draw = random.Random(f"{seed}-{number}")
            while time.monotonic() < end:
                if draw.random() < MALFORMED:
                    nonsense = draw.choice(_NONSENSE)
                    reply = await client.post("/v1/chat/completions", content=nonsense)
                    if reply.status_code != 400:
                        tally.wrong.append(f"nonsense got {reply.status_code}")
                    tally.num_refused += 1
                    continue
                i = draw.randrange(len(requests))
                leave_after = draw.randrange(1, 8) if draw.random() < LEAVING else None
                text = await ask(client, requests[i], leave_after=leave_after, tally=tally)
                if text is None:
                    tally.num_left += 1
                elif text == alone[i]:
                    tally.num_whole += 1
                else:
                    tally.wrong.append(f"request {i}: {text!r} is not {alone[i]!r}")

        async def look() -> None:
            rss_bytes, lag_s = await watch()
            tally.rss_bytes.append(rss_bytes)
            tally.lag_s.append(lag_s)

        async def keep_looking() -> None:
            while True:
                await asyncio.sleep(min(1.0, seconds / 10))
                await look()

        watcher = asyncio.ensure_future(keep_looking())
        await asyncio.gather(*(visitor(n) for n in range(num_clients)))
        tally.seconds = time.monotonic() - start
        watcher.cancel()
        await asyncio.gather(watcher, return_exceptions=True)
        gc.collect()
        await look()
    return tally


def rss_bytes(pid: int | str = "self") -> int:
    """Return what a process holds in memory."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
