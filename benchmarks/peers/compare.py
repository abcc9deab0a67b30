"""Measure engines in turn, in one run, on the same token ids, and print the ratios.

    python benchmarks/peers/compare.py MODEL.gguf [--tests pp512,tg128] [--repeat 5] [--threads 2]
        [--engines twostroke,llamacpp] [--python llamacpp=/path/to/python] [--out FILE]

Every engine is a process that stays loaded. Each engine runs a test once untimed; then the engines
run it in turn, for `--repeat` rounds that each begin with another engine. Before each round a plain
read of as many bytes as the model file has is timed. Every run and every median is a JSON line.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, TextIO

from cases import Case, parse_case, text_ids_of
from engines import ENGINES, PEERS, Worker, WorkerError
from machine import machine_card

DEFAULT_TESTS = "pp512,pp2048,tg128,tg128@d4096,tg64xb8,tg64xb32"
RESULTS = Path(__file__).parents[1] / "results"
PROBE_PASSES = 9


def parse_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description="Measure engines in turn on the same tokens.")
    parser.add_argument("model", type=Path)
    parser.add_argument("--tests", default=DEFAULT_TESTS)
    parser.add_argument("--engines", default="twostroke,llamacpp", help=", ".join(ENGINES))
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--python", action="append", default=[], metavar="ENGINE=PROGRAM")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    arguments.cases = [parse_case(name) for name in arguments.tests.split(",")]
    arguments.engines = arguments.engines.split(",")
    unknown = [name for name in arguments.engines if name not in ENGINES]
    if unknown or arguments.repeat < 1:
        parser.error(f"unknown engines {unknown}; known: {', '.join(ENGINES)}")
    return arguments


class Journal:
    """Writes result lines to the file and keeps the runs for the summary."""

    def __init__(self, file: TextIO) -> None:
        self.file = file
        self.rates: dict[tuple[str, str], list[float]] = {}
        self.ids: dict[tuple[str, str], list[list[int]]] = {}

    def write(self, kind: str, **fields: Any) -> None:
        """Add one line."""
        self.file.write(json.dumps({"kind": kind, **fields}) + "\n")
        self.file.flush()

    def run(self, case: Case, engine: str, round_number: int, reply: dict[str, Any]) -> None:
        """Add one timed run."""
        rate = reply["tokens"] / reply["seconds"]
        self.rates.setdefault((case.name, engine), []).append(rate)
        ids = reply["ids"] if case.batch > 1 else [reply["ids"]]
        self.ids[case.name, engine] = ids
        self.write(
            "run",
            test=case.name,
            engine=engine,
            round=round_number,
            seconds=reply["seconds"],
            tokens=reply["tokens"],
            tok_per_s=rate,
            ids_sha256=hashlib.sha256(json.dumps(ids).encode()).hexdigest()[:16],
        )


def read_probe(num_bytes: int, threads: int) -> dict[str, Any] | None:
    """Time a plain read of memory, None where setup_peers.sh has not built the probe."""
    program = PEERS / "read_probe"
    if not program.exists():
        return None
    command = [str(program), str(num_bytes), str(threads), str(PROBE_PASSES)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    probe: dict[str, Any] = json.loads(done.stdout)
    return probe


def measure(case: Case, workers: list[Worker], journal: Journal, arguments: Any) -> None:
    """Run one test on every engine in turn."""
    command = case.command(text_ids_of(arguments.model))
    able = []
    for worker in workers:
        try:
            worker.ask(command)
            able.append(worker)
        except WorkerError as error:
            print(f"{case.name}: {error}", file=sys.stderr)
            journal.write("failed", test=case.name, engine=worker.name, error=str(error))
    for round_number in range(arguments.repeat):
        probe = read_probe(arguments.model.stat().st_size, arguments.threads)
        if probe is not None:
            journal.write("probe", test=case.name, round=round_number, **probe)
        turn = round_number % max(len(able), 1)
        for worker in able[turn:] + able[:turn]:
            journal.run(case, worker.name, round_number, worker.ask(command))


def equal_tokens(ours: list[list[int]], theirs: list[list[int]]) -> tuple[int, int]:
    """Return how many greedy ids agree up to the first difference, and how many there are.

    Both are summed over the sequences.
    """
    agreed = 0
    for a, b in zip(ours, theirs, strict=True):
        pairs = zip(a, b, strict=True)
        agreed += next((i for i, (x, y) in enumerate(pairs) if x != y), len(a))
    return agreed, sum(len(a) for a in ours)


def summarise(case: Case, engines: list[str], journal: Journal) -> list[dict[str, Any]]:
    """Return and write the median of each engine, and the ratio of the first engine to it."""
    rows = []
    first = statistics.median(journal.rates.get((case.name, engines[0]), [0.0]))
    for engine in engines:
        rates = journal.rates.get((case.name, engine))
        if rates is None:
            continue
        median = statistics.median(rates)
        row: dict[str, Any] = {
            "test": case.name,
            "engine": engine,
            "tok_per_s": median,
            "min": min(rates),
            "max": max(rates),
            "runs": len(rates),
        }
        if engine != engines[0] and first:
            row["ratio"] = first / median
            row["equal_ids"] = equal_tokens(
                journal.ids[case.name, engines[0]], journal.ids[case.name, engine]
            )
        rows.append(row)
        journal.write("summary", **row)
    return rows


def print_rows(rows: list[dict[str, Any]], first: str) -> None:
    """Print one test's table."""
    for row in rows:
        spread = f"{row['min']:.1f}-{row['max']:.1f}"
        line = f"{row['test']:14} {row['engine']:14} {row['tok_per_s']:9.1f} tok/s  {spread:17}"
        if "ratio" in row:
            agreed, total = row["equal_ids"]
            line += f"  {first} is {row['ratio']:.2f}x, first {agreed} of {total} ids equal"
        print(line, flush=True)


def main() -> int:
    """Measure and report; the exit code is 1 where an engine could not be started."""
    arguments = parse_arguments()
    programs = dict(pair.split("=", 1) for pair in arguments.python)
    stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
    out = arguments.out or RESULTS / f"peers-{arguments.model.stem}-{stamp}.jsonl"
    out.parent.mkdir(parents=True, exist_ok=True)
    workers: list[Worker] = []
    with out.open("w", encoding="utf-8") as file:
        journal = Journal(file)
        journal.write("machine", **machine_card(), command=sys.argv[1:])
        try:
            for name in arguments.engines:
                worker = Worker(name, arguments.model, arguments.threads, programs.get(name))
                workers.append(worker)
                journal.write("engine", engine=name, load_s=worker.load_s, given=worker.given)
            for case in arguments.cases:
                measure(case, workers, journal, arguments)
                print_rows(summarise(case, arguments.engines, journal), arguments.engines[0])
        except WorkerError as error:
            print(error, file=sys.stderr)
            return 1
        finally:
            for worker in workers:
                worker.close()
    print(json.dumps({"results": os.fspath(out)}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
