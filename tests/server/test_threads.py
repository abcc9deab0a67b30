"""Threads that read, scrape, are refused and cancel while the engine runs, switching every
microsecond: nothing raises, nothing is 500, and counts of one moment fit each other.
"""

from __future__ import annotations

import math
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.server.serving import Served, events
from tests.server.test_metrics import scrape

SECONDS = 6.0
MAX_SECONDS = 60.0
LEAST_ROUNDS = 5  # of every thread, however slow the machine
RUNNING, WAITING = 2, 2
BODY = {"messages": [{"role": "user", "content": "hello"}], "ignore_eos": True, "temperature": 0}


@pytest.fixture
def switching() -> Iterator[None]:
    before_s = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before_s)


def read_status(served: Served, counts: Counter[str]) -> None:
    status = served.service.engine.status
    assert 0 <= status.num_used_blocks <= status.num_blocks
    assert 0 <= status.num_running <= RUNNING
    assert status.num_running + status.num_waiting == len(status.progress), "one moment"
    for request_id, progress in status.progress.items():
        assert 0 <= progress.num_cached <= progress.num_total
        assert 0 <= progress.num_done <= progress.num_total
        eta_s = status.eta_s(request_id)
        assert eta_s is None or (math.isfinite(eta_s) and eta_s >= 0)
    wait_s = status.predicted_wait_s
    assert wait_s is None or (math.isfinite(wait_s) and wait_s >= 0)
    counts["status"] += 1


def read_metrics(served: Served, counts: Counter[str]) -> None:
    now = scrape(served)
    ended = sum(value for name, value in now.items() if name[0] == "twostroke_requests_total")
    tokens = now["vllm:generation_tokens_total",]
    first = now["vllm:time_to_first_token_seconds_count",]
    assert first + now["vllm:inter_token_latency_seconds_count",] == tokens, "one moment"
    assert now["vllm:e2e_request_latency_seconds_count",] == ended, "one moment"
    for name in ("time_to_first_token", "inter_token_latency", "e2e_request_latency"):
        assert now[f"vllm:{name}_seconds_bucket", "+Inf"] == now[f"vllm:{name}_seconds_count",]
    assert now["twostroke_engine_alive",] == 1
    counts["metrics"] += 1
    assert served.get("/health/ready").status_code == 200


def ask_for_too_many(served: Served, counts: Counter[str]) -> None:
    """A request that fits an empty server and no other."""
    body = {**BODY, "max_tokens": 2, "n": RUNNING + WAITING}
    reply = served.post("/v1/chat/completions", body)
    assert reply.status_code in (200, 429), reply.text
    if reply.status_code == 429:
        assert reply.json()["error"]["code"] in ("too_many_requests", "queue_full")
        assert 1 <= int(reply.headers["retry-after"]) <= 600
    counts[str(reply.status_code)] += 1


def cancel(served: Served, counts: Counter[str]) -> None:
    body = {**BODY, "max_tokens": 900, "stream": True}
    with served.stream("/v1/chat/completions", body) as reply:
        assert reply.status_code in (200, 429)
        if reply.status_code == 200:
            told = events(reply)
            assert "error" not in next(told) and "error" not in next(told)
            counts["cancelled"] += 1


@pytest.mark.usefixtures("switching")
def test_readers_and_callers_on_four_threads_meet_no_fault_and_no_torn_count(
    tiny_path: Path,
) -> None:
    with Served(tiny_path, max_num_seqs=RUNNING, limits={"max_waiting": WAITING}) as served:
        counts: Counter[str] = Counter()
        faults: list[BaseException] = []
        rounds = [read_status, read_metrics, ask_for_too_many, cancel]
        done = [0] * len(rounds)
        start_s = time.monotonic()

        def is_over() -> bool:
            seconds = time.monotonic() - start_s
            is_enough = seconds > SECONDS and min(done) >= LEAST_ROUNDS and counts["429"] > 0
            return bool(faults) or is_enough or seconds > MAX_SECONDS

        def repeat(place: int, work: Callable[[Served, Counter[str]], None]) -> None:
            try:
                while not is_over():
                    work(served, counts)
                    done[place] += 1
            except BaseException as fault:
                faults.append(fault)

        threads = [threading.Thread(target=repeat, args=task) for task in enumerate(rounds)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(2 * MAX_SECONDS)
        assert not faults, faults
        assert min(done) >= LEAST_ROUNDS and counts["429"] > 0 and counts["cancelled"] > 0, counts
        assert "Traceback" not in served.log.text and "internal_error" not in served.log.text
        served.check_idle()
        read_metrics(served, counts)
        replies = {k: v for k, v in scrape(served).items() if "http_replies" in k[0]}
        assert not [key for key in replies if key[-1].startswith("5")], replies
        assert served.chat().status_code == 200
