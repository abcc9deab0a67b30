"""Compare two checkouts of this project in turn, in one run: did a change make anything slower?

    python benchmarks/two_checkouts.py BEFORE AFTER MODEL.gguf [--rounds 9] [--threads 2]
        [--parts steps,start,server] [--out FILE]

BEFORE and AFTER are folders of checkouts, each installed into its own `.venv` (`make run`). Each
checkout runs its own code, its own benchmark programs included. Rounds alternate which one begins.
steps: prefill of 512 tokens, decode of 128, decode beside 8 and 32 streams: `worker_twostroke.py`.
start: process start to the first token. server: `server_overhead.py` at 1 and 32 streams, the
engine alone included.
A ratio is AFTER / BEFORE of one round, so that a slow minute of the machine hits both; the medians
and the quartiles of the ratios are printed. Above 1 is slower, in every row. `same_ids`: whether
both gave the same tokens. The last line of stdout is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent / "peers"))

from cases import parse_case, text_ids_of
from cold_start import PROMPT, first_byte_s
from engines import Worker
from machine import machine_card

STEPS = ("pp512", "tg128", "tg64xb8", "tg64xb32")
STREAMS = (1, 32)
SERVER_ROUNDS = 5  # of one start of server_overhead.py


class Checkout:
    """One folder, and the programs that run its code."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder.resolve()
        self.python = str(self.folder / ".venv" / "bin" / "python")

    def worker(self, model: Path, threads: int) -> Worker:
        """Start the checkout's own benchmark worker."""
        script = self.folder / "benchmarks" / "peers" / "worker_twostroke.py"
        return Worker("twostroke", model, threads, self.python, script=script)

    def cold_start_s(self, model: Path, threads: int) -> float:
        """Return the seconds from process start to the first token."""
        command = [self.python, "-m", "twostroke", "run", str(model), "--raw", "--prompt", PROMPT]
        options = ["--max-tokens", "1", "--temperature", "0", "--threads", str(threads)]
        return first_byte_s(command + options)

    def server_overhead(self, model: Path, threads: int) -> list[dict[str, Any]]:
        """Return the results of the checkout's server_overhead.py, one for each of STREAMS."""
        command = [self.python, "benchmarks/server_overhead.py", str(model)]
        command += ["--streams", ",".join(map(str, STREAMS)), "--threads", str(threads)]
        command += ["--rounds", str(SERVER_ROUNDS)]
        done = subprocess.run(command, cwd=self.folder, capture_output=True, text=True, check=True)
        results: list[dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])["results"]
        return results


class Rows:
    """Values of both checkouts by row and round. Every value is a time: lower is better."""

    def __init__(self) -> None:
        self.values: dict[str, list[tuple[float, float]]] = {}
        self.same_ids: dict[str, bool] = {}

    def add(self, name: str, before: float, after: float) -> None:
        """Add one round."""
        self.values.setdefault(name, []).append((before, after))

    def summary(self, name: str) -> dict[str, Any]:
        """Return medians, and the quartiles of the ratios of the rounds."""
        pairs = self.values[name]
        ratios = sorted(after / before for before, after in pairs)
        low, middle, high = statistics.quantiles(ratios, n=4) if len(ratios) > 1 else ratios * 3
        return {
            "row": name,
            "before": statistics.median(before for before, _ in pairs),
            "after": statistics.median(after for _, after in pairs),
            "ratio": middle,
            "ratio_quartiles": [low, high],
            "rounds": len(pairs),
            **({"same_ids": self.same_ids[name]} if name in self.same_ids else {}),
        }


def in_turn(number: int, before: Callable[[], Any], after: Callable[[], Any]) -> tuple[Any, Any]:
    """Run both; odd rounds begin with the second."""
    if number % 2:
        second = after()
        return before(), second
    first = before()
    return first, after()


def measure_steps(rows: Rows, before: Checkout, after: Checkout, args: Any) -> None:
    """Time steps of both loaded models in turn."""
    workers = [checkout.worker(args.model, args.threads) for checkout in (before, after)]
    try:
        for name in STEPS:
            command = parse_case(name).command(text_ids_of(args.model))
            for worker in workers:
                worker.ask(command)  # untimed
            asks = [partial(worker.ask, command) for worker in workers]
            for number in range(args.rounds):
                replies = in_turn(number, *asks)
                rows.add(f"{name}, s", *(reply["seconds"] for reply in replies))
                same = replies[0]["ids"] == replies[1]["ids"]
                rows.same_ids[f"{name}, s"] = rows.same_ids.get(f"{name}, s", True) and same
            print(json.dumps(rows.summary(f"{name}, s")), flush=True)
    finally:
        for worker in workers:
            worker.close()


def measure_start(rows: Rows, before: Checkout, after: Checkout, args: Any) -> None:
    """Time whole processes in turn."""
    starts = [partial(c.cold_start_s, args.model, args.threads) for c in (before, after)]
    for start in starts:
        start()  # untimed: packs the model where a checkout has not yet
    for number in range(2 * args.rounds):
        rows.add("cold start, s", *in_turn(number, *starts))
    print(json.dumps(rows.summary("cold start, s")), flush=True)


def measure_server(rows: Rows, before: Checkout, after: Checkout, args: Any) -> None:
    """Run server_overhead.py of both in turn."""
    runs = [partial(c.server_overhead, args.model, args.threads) for c in (before, after)]
    for number in range(max(args.rounds // 3, 2)):
        results = in_turn(number, *runs)
        for one, two in zip(*results, strict=True):
            streams = one["streams"]
            for figure in ("ttft_over_engine_ms", "gap_ms", "engine_alone_gap_ms"):
                values = [
                    r[figure]["p50"] if isinstance(r[figure], dict) else r[figure]
                    for r in (one, two)
                ]
                rows.add(f"server, {streams} streams, {figure}", *values)
    for name in rows.values:
        if name.startswith("server"):
            print(json.dumps(rows.summary(name)), flush=True)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="Two checkouts of this project in turn.")
    parser.add_argument("before", type=Path)
    parser.add_argument("after", type=Path)
    parser.add_argument("model", type=Path)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--parts", default="steps,start,server")
    parser.add_argument("--out", type=Path, help="append the JSON object to this file")
    args = parser.parse_args()
    parts = {"steps": measure_steps, "start": measure_start, "server": measure_server}
    rows = Rows()
    start_s = time.monotonic()
    for part in args.parts.split(","):
        parts[part](rows, Checkout(args.before), Checkout(args.after), args)
    result = {
        "benchmark": "two_checkouts",
        "machine": machine_card(),
        "seconds": round(time.monotonic() - start_s),
        "rows": [rows.summary(name) for name in rows.values],
    }
    if args.out is not None:
        with args.out.open("a", encoding="utf-8") as file:
            file.write(json.dumps(result) + "\n")
    print(json.dumps(result))


if __name__ == "__main__":
    main()
