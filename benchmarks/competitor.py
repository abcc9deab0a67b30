"""Throughput while other processes take cores, and the CPU time of an idle engine.

    python benchmarks/competitor.py MODEL [--threads 2] [--seconds 4] [--rounds 3]

Decode and prefill are measured alone, then beside one and two busy processes, in turn. The share of
the throughput that is left is printed beside the share of the cores that the operating system's
scheduler gives the engine. At the end the CPU time is measured that an idle engine uses in two
seconds. The last line of stdout is one JSON document.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time

from twostroke.bench.local import LocalBench
from twostroke.build import build_engine, machine_card
from twostroke.config import EngineConfig
from twostroke.model.loaded import load_model

_SPIN = "while True: pass"
_COMPETITORS = (0, 1, 2)


def busy(count: int) -> list[subprocess.Popen[bytes]]:
    """Start processes that use a core each."""
    return [subprocess.Popen([sys.executable, "-c", _SPIN]) for _ in range(count)]


def stop(processes: list[subprocess.Popen[bytes]]) -> None:
    """End the processes."""
    for process in processes:
        process.kill()
        process.wait()


def fair_share(threads: int, competitors: int) -> float:
    """Return the share of its cores that the engine gets if every thread has the same priority."""
    cores = os.cpu_count() or 1
    return min(threads, cores * threads / max(threads + competitors, cores)) / threads


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="Throughput beside busy processes.")
    parser.add_argument("model")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    model = load_model(arguments.model)
    built = build_engine(model, EngineConfig(threads=arguments.threads, max_num_seqs=1))
    bench = LocalBench(
        built.new_runner(1024),
        vocab_size=model.config.vocab_size,
        cost=built.cost,
        profile=built.backend.profile,
        prefill_chunk=built.config.prefill_chunk,
    )
    speeds: dict[tuple[str, int], list[float]] = {}
    for _ in range(arguments.rounds):
        for count in _COMPETITORS:
            processes = busy(count)
            time.sleep(0.2)
            try:
                rows = (
                    bench.decode(64, depth=16, batch=1, repeat=3),
                    bench.prefill(512, depth=0, repeat=3),
                )
            finally:
                stop(processes)
            for row in rows:
                speeds.setdefault((row.test, count), []).append(row.tok_per_s)
    results = []
    for (test, count), values in speeds.items():
        alone = statistics.median(speeds[test, 0])
        speed = statistics.median(values)
        fair = fair_share(arguments.threads, count)
        share = f"{speed / alone:5.2f} of alone, fair {fair:.2f}"
        print(f"{test:<12} beside {count}: {speed:9.1f} tok/s, {share}")
        results.append(
            {
                "test": test,
                "competitors": count,
                "tok_per_s": speed,
                "of_alone": speed / alone,
                "fair": fair,
            }
        )
    start = time.process_time()
    time.sleep(2.0)
    idle = (time.process_time() - start) / 2.0
    print(f"idle: {100 * idle:.2f} % of one core")
    card = machine_card(built.backend.profile)
    print(json.dumps({"machine": card, "results": results, "idle_core_share": idle}))


if __name__ == "__main__":
    main()
