"""Capacity at a target as planned by simulation, beside the load tool's measurement of a server.

    python benchmarks/planned_capacity.py MODEL.gguf [--target-tpot 0.02] [--target-ttft 1.0]
        [--words 60] [--output 48] [--clients 2,4,6,8,10,12,16]

Needs a stored fit (`twostroke predict MODEL --calibrate`). The server runs as a user's would, in a
process of its own; clients send one request after another (`twostroke bench --url` does the same).
Prompt, cached prefix and answer lengths of the simulation are those that the endpoint's usage told.
Capacity: the most clients whose 95th percentiles keep the targets, between two tried numbers by
where the line through them crosses the target. The last line of stdout is one JSON object.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import socket
import statistics
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from twostroke.bench.client_record import percentile
from twostroke.bench.remote import Load, run_load
from twostroke.build import build_engine
from twostroke.config import EngineConfig
from twostroke.model.loaded import load_model
from twostroke.model.local_models import fits_folder
from twostroke.planner.closed_loop import ClientLoad, simulate
from twostroke.predict.predictor import Predictor
from twostroke.predict.stored import stored_fit

ROUNDS = 3


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def wait_ready(url: str, process: subprocess.Popen[bytes]) -> None:
    for _ in range(300):
        assert process.poll() is None, "the server has ended"
        try:
            with urllib.request.urlopen(url + "/health/ready", timeout=5):
                return
        except OSError:
            time.sleep(0.2)
    sys.exit("the server was never ready")


def measure(url: str, clients: int, words: int, output: int, seed: int) -> dict[str, Any]:
    load = Load(
        model="m", num_requests=clients * ROUNDS, concurrency=clients, prompt_words=words,
        max_tokens=output, kinds=("unseen",), seed=seed,
    )  # fmt: skip
    results, _, _ = asyncio.run(run_load(url + "/v1", load))
    records = [r.record for r in results[clients:]]  # the first round fills the machine

    def p95(values: Sequence[float | None]) -> float:
        return percentile(sorted(v for v in values if v is not None), 95) or float("nan")

    return {
        "clients": clients,
        "ttft_s": p95([r.ttft_any_s for r in records]),
        "tpot_s": p95([r.tpot_s for r in records]),
        "prompt": round(statistics.mean(r.prompt.total or 0 for r in records)),
        "cached": round(statistics.mean(r.prompt.cached or 0 for r in records)),
        "output": round(statistics.mean(r.output.total or 0 for r in records)),
        "outputs": [r.output.total or 1 for r in records],
    }


def crossing(rows: Sequence[tuple[int, float]], target: float) -> float | None:
    """Return where the line through the tried numbers of clients crosses the target."""
    for (a, low), (b, high) in pairwise(rows):
        if low <= target < high:
            return a + (b - a) * (target - low) / (high - low)
    return None


def predictor_of(path: Path, threads: int) -> Predictor:
    built = build_engine(load_model(str(path)), EngineConfig(threads=threads, max_num_seqs=4,
                                                             kv_memory_bytes=64 << 20))  # fmt: skip
    assert built.backend.profile is not None
    speed = stored_fit(fits_folder(), path, "bf16", built.backend.profile)
    if speed is None:
        sys.exit("no fit is stored: twostroke predict MODEL --calibrate")
    return Predictor(built.cost, speed)


def capacity(
    clients: Sequence[int], value: Callable[[int], tuple[float, float]], ttft: float, tpot: float
) -> float | None:
    found = [value(n) for n in clients]
    parts = (
        crossing([(n, v[0]) for n, v in zip(clients, found, strict=True)], ttft),
        crossing([(n, v[1]) for n, v in zip(clients, found, strict=True)], tpot),
    )
    known = [p for p in parts if p is not None]
    return min(known) if known else None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("--target-tpot", type=float, default=0.02)
    parser.add_argument("--target-ttft", type=float, default=1.0)
    parser.add_argument("--words", type=int, default=60)
    parser.add_argument("--output", type=int, default=48)
    parser.add_argument("--clients", default="2,4,6,8,10,12,16")
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    clients = [int(n) for n in arguments.clients.split(",")]
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    command = [
        sys.executable,
        "-m",
        "twostroke",
        "serve",
        str(arguments.model),
        "--port",
        str(port),
    ]
    command += ["--served-name", "m", "--threads", str(arguments.threads), "--kv-memory", "1GiB"]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    try:
        wait_ready(url, process)
        measure(url, 2, arguments.words, arguments.output, 99)
        seen = {n: measure(url, n, arguments.words, arguments.output, n) for n in clients}
    finally:
        process.terminate()
        process.wait(30)
    predictor = predictor_of(arguments.model, arguments.threads)
    usual = seen[clients[len(clients) // 2]]
    load = ClientLoad(
        prompt_tokens=usual["prompt"],
        output_tokens=usual["output"],
        cached_tokens=usual["cached"],
        outputs=tuple(n for one in seen.values() for n in one["outputs"]),
    )
    told = {n: simulate(predictor, load, n, num_blocks=1 << 14) for n in clients}
    for n in clients:
        print(
            f"{n:>3} clients: ttft {told[n].ttft_s * 1e3:7.1f} ms planned "
            f"{seen[n]['ttft_s'] * 1e3:7.1f} measured; tpot {(told[n].tpot_s or 0) * 1e3:6.2f} "
            f"planned {seen[n]['tpot_s'] * 1e3:6.2f} measured ({seen[n]['output']} tokens)",
            flush=True,
        )
    targets = (arguments.target_ttft, arguments.target_tpot)
    planned = capacity(clients, lambda n: (told[n].ttft_s, told[n].tpot_s or 0.0), *targets)
    measured = capacity(clients, lambda n: (seen[n]["ttft_s"], seen[n]["tpot_s"]), *targets)
    error = planned / measured - 1 if planned and measured else None
    print(json.dumps({
        "targets_s": targets, "planned": planned, "measured": measured, "error": error,
        "prompt": usual["prompt"], "cached": usual["cached"], "output": usual["output"],
        "outputs": [min(load.outputs), max(load.outputs)],
    }))  # fmt: skip


if __name__ == "__main__":
    main()
