"""Nothing lost, nothing crossed, nothing left, on the sample model: half a minute in `make test`,
ten minutes in `make soak`, where the server is a process of its own.
"""

from __future__ import annotations

import asyncio
import json
import signal
from pathlib import Path

import httpx
import pytest

from tests.server.serving import Process, Served, until
from tests.server.soaking import Tally, rss_bytes, soak

pytestmark = pytest.mark.weights
SHORT_S = 30.0
LONG_S = 600.0
NUM_CLIENTS = 64
GROWTH_BYTES = 96 << 20  # allocators keep some; 64 answers' KV and text at once are about this much
CONTEXT = 4096


def test_sixty_four_clients_for_half_a_minute(smollm2_path: Path) -> None:
    config = {"kv_memory_bytes": 256 << 20, "threads": 2, "max_model_len": CONTEXT}
    with Served(smollm2_path, max_num_seqs=NUM_CLIENTS, log_format="off", **config) as served:

        async def watch() -> tuple[int, float]:
            return rss_bytes(), served.service.meters.loop_lag_s

        tally = asyncio.run(soak(served.url, SHORT_S, NUM_CLIENTS, watch))
        steps = served.throttle.num_steps
        until(lambda: served.num_in_engine == 0)
        assert served.throttle.num_steps - steps <= 1, "slots are free within one step"
        served.check_idle()
    print(json.dumps(tally.figures()))
    assert tally.wrong == []
    assert tally.num_whole > 200 and tally.num_left > 100 and tally.num_refused > 10


@pytest.mark.soak
def test_sixty_four_clients_for_ten_minutes(smollm2_path: Path) -> None:
    arguments = ["--threads", "2", "--kv-memory", "256MiB", "--log-format", "off"]
    arguments += ["--max-num-seqs", str(NUM_CLIENTS), "--max-model-len", str(CONTEXT)]
    with Process(smollm2_path, *arguments) as process:
        tally = watched_soak(process, LONG_S)
        assert process.end(signal.SIGTERM) == 0
    figures = tally.figures()
    print(json.dumps(figures))
    assert tally.wrong == []
    assert tally.num_whole > 5000
    early = tally.rss_bytes[len(tally.rss_bytes) // 4]
    assert tally.rss_bytes[-1] - early < GROWTH_BYTES, "memory is flat after the first quarter"


def watched_soak(process: Process, seconds: float) -> Tally:
    """Soak a server in another process, and see it idle at once behind the last answer."""

    async def run() -> Tally:
        async with httpx.AsyncClient(base_url=process.url, timeout=60) as client:

            async def watch() -> tuple[int, float]:
                text = (await client.get("/metrics")).text
                return rss_bytes(process.process.pid), gauge(text, "twostroke_loop_lag_seconds")

            return await soak(process.url, seconds, NUM_CLIENTS, watch)

    tally = asyncio.run(run())

    def is_idle() -> bool:
        text = process.client.get("/metrics").text
        return all(gauge(text, f"vllm:num_requests_{n}") == 0 for n in ("running", "waiting"))

    until(is_idle, 5)
    return tally


def gauge(text: str, name: str) -> float:
    """Return the value of a gauge out of a scrape."""
    (line,) = [found for found in text.splitlines() if found.startswith(name + "{")]
    return float(line.rpartition(" ")[2])
