"""What the server adds to the engine: to the first token, and to each token after it.

    python benchmarks/server_overhead.py MODEL.gguf [--streams 1,32] [--prompt 100] [--output 64]
        [--rounds 15] [--threads 2]

The engine alone (the offline API, same prompts as ids, same batch) and `twostroke serve` in a
process of its own take turns; a round is as many streams as asked for, started together, prompts
unseen. The client is plain asyncio in this process, so its share is in the figures.
first token: what the client waits beyond the engine's own wait for that request, which its record
states (queue, cache, prefill); template and tokeniser (init) count as the server's.
per token: the gap between tokens at the client, less the same gap of the engine alone; for many
streams a step gives one token to each, so it is divided by the number of streams.
Times in milliseconds. The last line of stdout is one JSON object.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import socket
import statistics
import subprocess
import sys
import time
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from peers.machine import machine_card

from twostroke.bench.client_record import percentile
from twostroke.bench.http_stream import LoadTarget
from twostroke.config import EngineConfig
from twostroke.llm import LLM
from twostroke.request import SamplingParams

_SERVE = "from twostroke.cli.main import main; main()"


@dataclass(frozen=True, slots=True)
class Seen:
    """One stream: seconds to the first token and between tokens at the client, and its record."""

    ttft_s: float
    gap_s: float
    record: dict[str, Any]

    @property
    def engine_ttft_s(self) -> float:
        """The wait that is the engine's own."""
        phases = self.record["phases"]
        return float(self.record["ttft_any_s"] - (phases["init_s"] or 0.0))


class Server:
    """`twostroke serve` in a process of its own."""

    def __init__(self, model: str, threads: int, streams: int) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        command = [sys.executable, "-c", _SERVE, "serve", model, "--port", str(port)]
        command += ["--threads", str(threads), "--max-num-seqs", str(max(streams, 4))]
        command += ["--log-format", "off"]
        self.process = subprocess.Popen(command, stderr=subprocess.DEVNULL, env=dict(os.environ))
        deadline_s = time.monotonic() + 120
        while not self._is_ready():
            assert self.process.poll() is None and time.monotonic() < deadline_s
            time.sleep(0.1)

    def _is_ready(self) -> bool:
        try:
            with urllib.request.urlopen(self.url + "/health/ready", timeout=5) as reply:
                return bool(reply.status == 200)
        except OSError:
            return False

    def close(self) -> None:
        """End it."""
        self.process.terminate()
        self.process.wait(30)


class Prompts:
    """Conversations of so many tokens that were never used before."""

    def __init__(self, llm: LLM, num_tokens: int) -> None:
        self._llm = llm
        self._num_tokens = num_tokens
        self._draw = random.Random(1)

    def next(self) -> tuple[str, tuple[int, ...]]:
        """Return the user's text and the whole prompt's ids."""
        text = f"{self._draw.randrange(10**6)}"
        while True:
            messages = [{"role": "user", "content": text}]
            ids, _ = self._llm.model.encode_rendered(self._llm.model.render_chat(messages))
            if len(ids) >= self._num_tokens:
                return text, tuple(ids)
            text += f" {self._draw.randrange(10)}"


async def ask(url: str, text: str, num_output: int) -> Seen:
    """Stream one answer."""
    body = {"messages": [{"role": "user", "content": text}], "max_tokens": num_output}
    body |= {"stream": True, "temperature": 0, "ignore_eos": True, "logprobs": True}
    body |= {"top_logprobs": 0}
    times: list[float] = []
    record: dict[str, Any] = {}
    start_s = time.monotonic()
    async for line, now_s in LoadTarget(url).lines(
        "/chat/completions", json.dumps(body).encode(), {}, 120
    ):
        if not line.startswith(b"data: {"):
            continue
        times.append(now_s)
        if b'"twostroke"' in line:
            record = json.loads(line[6:])["twostroke"]["records"][0]
    return Seen(times[0] - start_s, (times[-1] - times[0]) / (num_output - 1), record)


async def together(url: str, texts: list[str], num_output: int) -> list[Seen]:
    """Stream answers to all texts at once."""
    return list(await asyncio.gather(*(ask(url, text, num_output) for text in texts)))


def alone_gap_s(llm: LLM, prompts: list[tuple[int, ...]], num_output: int) -> float:
    """Return the median gap between tokens of the engine alone."""
    params = SamplingParams(temperature=0.0, max_tokens=num_output, ignore_eos=True, logprobs=0)
    answers = llm.generate(prompts, params)
    return statistics.median(float(answer.record.tpot_s or 0.0) for answer in answers)


def measure(llm: LLM, server: Server, streams: int, args: argparse.Namespace) -> dict[str, Any]:
    """Take turns for one number of streams."""
    prompts = Prompts(llm, args.prompt)
    over, init, own, gaps, alone = [], [], [], [], []
    for number in range(args.rounds + 1):
        alone_gap = alone_gap_s(llm, [prompts.next()[1] for _ in range(streams)], args.output)
        texts = [prompts.next()[0] for _ in range(streams)]
        seen = asyncio.run(together(server.url, texts, args.output))
        if number == 0:
            continue  # warm-up
        alone.append(alone_gap)
        gaps.append(statistics.median(s.gap_s for s in seen))
        over += [s.ttft_s - s.engine_ttft_s for s in seen]
        init += [float(s.record["phases"]["init_s"] or 0.0) for s in seen]
        own += [s.engine_ttft_s for s in seen]
    gap, alone_median = statistics.median(gaps), statistics.median(alone)
    return {
        "streams": streams,
        "ttft_over_engine_ms": _spread(over),
        "of_it_init_ms": _spread(init),
        "engine_ttft_ms": _spread(own),
        "gap_ms": round(gap * 1e3, 3),
        "engine_alone_gap_ms": round(alone_median * 1e3, 3),
        "outside_engine_per_token_ms": round((gap - alone_median) / streams * 1e3, 4),
    }


def _spread(seconds: list[float]) -> dict[str, float]:
    ordered = sorted(seconds)
    return {f"p{p}": round((percentile(ordered, p) or 0.0) * 1e3, 2) for p in (50, 95)}


def main() -> None:
    """Run it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--streams", default="1,32")
    parser.add_argument("--prompt", type=int, default=100)
    parser.add_argument("--output", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path, help="append the JSON object to this file")
    args = parser.parse_args()
    counts = [int(text) for text in args.streams.split(",")]
    llm = LLM(args.model, EngineConfig(threads=args.threads, max_num_seqs=max(counts)))
    llm.built.engine.warm_up()
    server = Server(args.model, args.threads, max(counts))
    try:
        results = [measure(llm, server, streams, args) for streams in counts]
    finally:
        server.close()
    result = {
        "benchmark": "server_overhead",
        "machine": machine_card(),
        "prompt": args.prompt,
        "output": args.output,
        "rounds": args.rounds,
        "results": results,
    }
    if args.out is not None:
        with args.out.open("a", encoding="utf-8") as file:
            file.write(json.dumps(result) + "\n")
    print(json.dumps(result))


if __name__ == "__main__":
    main()
