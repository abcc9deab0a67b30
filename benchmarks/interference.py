"""What long prompts do to a running stream, and the stream to them.

    python benchmarks/interference.py MODEL.gguf [--prompt 4000] [--prompts 4] [--stagger-s 0.5]
        [--target-ms 100] [--threads 2] [--repeat 3]
    python benchmarks/interference.py --url http://127.0.0.1:8080 ...   any server that speaks
        /v1/completions with ids as the prompt: llama-server -np 5 -c 40960, or twostroke serve

One stream decodes; once it flows, the prompts arrive one after another, each asking for one token.
Gaps are between tokens as a client sees them, from the first prompt's arrival to the last one's
token. The same prompts, with other ids, run alone in a row for comparison. Ids are seeded and never
repeated, so no cache helps. The last line of stdout is one JSON object.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import statistics
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit
from urllib.request import urlopen

from peers.machine import machine_card

from twostroke.bench.local import seeded_prompt
from twostroke.build import build_engine
from twostroke.config import EngineConfig
from twostroke.engine.async_engine import AsyncEngine
from twostroke.model.loaded import load_model
from twostroke.request import Request, SamplingParams

STREAM_PROMPT = 50
FLOWING = 10  # tokens of the stream before the first prompt arrives
PLAIN_IDS = 40_000  # ids below this are in every vocabulary that is measured
GAP_RATIO, TOTAL_RATIO = 2.0, 1.25


class Server(Protocol):
    """Something that streams tokens."""

    name: str

    def tokens(self, ids: tuple[int, ...], max_tokens: int) -> AsyncIterator[None]:
        """Yield once for each token or piece of text; closing it cancels the request."""
        ...


class OwnEngine:
    """Our engine in this process, as the server drives it."""

    def __init__(self, model: str, threads: int, target_s: float, num_seqs: int) -> None:
        config = EngineConfig(threads=threads, target_tpot_s=target_s, max_num_seqs=num_seqs)
        self.built = build_engine(load_model(model), config)
        self.built.engine.warm_up()
        self.name = self.built.summary
        self._engine = AsyncEngine(self.built.engine)
        self._engine.start()
        self._numbers = itertools.count()

    async def tokens(self, ids: tuple[int, ...], max_tokens: int) -> AsyncIterator[None]:
        """Yield at each token."""
        request = Request(
            id=f"b{next(self._numbers)}",
            prompt_token_ids=ids,
            params=SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True),
            seed=0,
            end_token_ids=frozenset(),
            arrival_s=time.monotonic(),
        )
        outputs = self._engine.generate(request)
        try:
            async for output in outputs:
                for _ in output.token_ids:
                    yield
        finally:
            await outputs.aclose()

    def close(self) -> None:
        """Stop the engine thread."""
        self._engine.shutdown()


class UrlServer:
    """A server behind /v1/completions; each event of its stream counts as one token."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self.name = url
        self._host, self._port = parts.hostname or "127.0.0.1", parts.port or 80
        with urlopen(f"{url}/v1/models", timeout=10) as reply:
            self._model = json.load(reply)["data"][0]["id"]

    async def tokens(self, ids: tuple[int, ...], max_tokens: int) -> AsyncIterator[None]:
        """Yield at each event that holds a choice."""
        body = {"prompt": ids, "max_tokens": max_tokens, "temperature": 0, "stream": True}
        payload = json.dumps({**body, "ignore_eos": True, "model": self._model}).encode()
        reader, writer = await asyncio.open_connection(self._host, self._port, limit=1 << 20)
        try:
            head = f"POST /v1/completions HTTP/1.1\r\nHost: {self._host}\r\nConnection: close\r\n"
            head += f"Content-Type: application/json\r\nContent-Length: {len(payload)}\r\n\r\n"
            writer.write(head.encode() + payload)
            await writer.drain()
            status = await reader.readline()
            if b" 200 " not in status:
                raise RuntimeError(f"{self.name}: {status!r} {(await reader.read(2000))!r}")
            while line := await reader.readline():
                if line.startswith(b"data: {") and json.loads(line[6:]).get("choices"):
                    yield
                elif line.startswith(b"data: [DONE]"):
                    return
        finally:
            writer.close()

    def close(self) -> None:
        """Nothing is held."""


class Prompts:
    """Ids that were never used before."""

    def __init__(self) -> None:
        self._numbers = itertools.count(1)

    def fresh(self, num_tokens: int) -> tuple[int, ...]:
        """Return seeded ids of a stream of their own."""
        return seeded_prompt(num_tokens, PLAIN_IDS, stream=1000 * next(self._numbers))


async def to_the_first_token(server: Server, ids: tuple[int, ...]) -> float:
    """Run a prompt for one token; return when it came."""
    async for _ in server.tokens(ids, 1):
        pass
    return time.monotonic()


async def alone(server: Server, prompts: Prompts, count: int, size: int) -> float:
    """Return the seconds of that many prompts one after the other, nothing else running."""
    start = time.monotonic()
    for _ in range(count):
        await to_the_first_token(server, prompts.fresh(size))
    return time.monotonic() - start


async def beside_a_stream(
    server: Server, prompts: Prompts, args: argparse.Namespace
) -> dict[str, Any]:
    """Return the stream's gaps while prompts arrive, and what the prompts took."""
    times: list[float] = []
    is_flowing = asyncio.Event()

    async def stream() -> None:
        async for _ in server.tokens(prompts.fresh(STREAM_PROMPT), args.stream_tokens):
            times.append(time.monotonic())
            if len(times) == FLOWING:
                is_flowing.set()

    async def prompt(number: int) -> float:
        await asyncio.sleep(number * args.stagger_s)
        return await to_the_first_token(server, prompts.fresh(args.prompt))

    streaming = asyncio.create_task(stream())
    await is_flowing.wait()
    begin = time.monotonic()
    done = await asyncio.gather(*(prompt(i) for i in range(args.prompts)))
    is_streaming = not streaming.done()
    streaming.cancel()
    await asyncio.wait([streaming])
    end = max(done)
    moments = [begin, *(t for t in times if begin < t < end), end]
    gaps = [b - a for a, b in itertools.pairwise(moments)]
    before = [b - a for a, b in itertools.pairwise(t for t in times if t <= begin)]
    return {
        "together_s": end - begin,
        "ttft_s": [t - begin - i * args.stagger_s for i, t in enumerate(done)],
        "stream_tokens": len(moments) - 2,
        "stream_lasted": is_streaming,
        "gap_before_s": statistics.median(before),
        "gap_median_s": statistics.median(gaps),
        "gap_longest_s": max(gaps),
    }


async def measure(server: Server, args: argparse.Namespace) -> list[dict[str, Any]]:
    """Return all rounds, after one short untimed prompt."""
    prompts = Prompts()
    await to_the_first_token(server, prompts.fresh(min(args.prompt, 512)))
    rounds = []
    for _ in range(args.repeat):
        alone_s = await alone(server, prompts, args.prompts, args.prompt)
        together = await beside_a_stream(server, prompts, args)
        rounds.append({"alone_s": alone_s, **together})
    return rounds


def main() -> None:
    """Measure and print one JSON object."""
    parser = argparse.ArgumentParser(description="Long prompts beside a running stream.")
    parser.add_argument("model", nargs="?", help="a model for our engine in this process")
    parser.add_argument("--url", help="a running server instead")
    parser.add_argument("--prompt", type=int, default=4000)
    parser.add_argument("--prompts", type=int, default=4)
    parser.add_argument("--stagger-s", type=float, default=0.5)
    parser.add_argument("--stream-tokens", type=int, default=4000)
    parser.add_argument("--target-ms", type=float, default=100.0)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--out", type=Path, help="append the JSON object to this file")
    args = parser.parse_args()
    if bool(args.model) == bool(args.url):
        parser.error("give a model or --url, not both")
    target_s = args.target_ms / 1000
    server: OwnEngine | UrlServer = (
        UrlServer(args.url)
        if args.url
        else OwnEngine(args.model, args.threads, target_s, args.prompts + 1)
    )
    try:
        rounds = asyncio.run(measure(server, args))
    finally:
        server.close()
    longest_s = max(r["gap_longest_s"] for r in rounds)
    ratio = statistics.median(r["together_s"] / r["alone_s"] for r in rounds)
    result = {
        "benchmark": "interference",
        "machine": machine_card(),
        "engine": server.name,
        "model": args.model,
        "prompt": args.prompt,
        "prompts": args.prompts,
        "stagger_s": args.stagger_s,
        "target_s": target_s,
        "gap_longest_s": longest_s,
        "gap_holds": longest_s <= GAP_RATIO * target_s,
        "median_together_over_alone": ratio,
        "total_holds": ratio <= TOTAL_RATIO,
        "rounds": rounds,
    }
    if args.out is not None:
        with args.out.open("a", encoding="utf-8") as file:
            file.write(json.dumps(result) + "\n")
    print(json.dumps(result))


if __name__ == "__main__":
    main()
