"""Time from process start to the first token of a short prompt, ours and llama.cpp's in turn.

    python benchmarks/peers/cold_start.py MODEL.gguf [--repeat 9] [--threads 2]

llama.cpp's process is cold_llamacpp.cpp: native code that loads, tokenises and prefills, nothing
else. Ours is the command `twostroke run`, the start of the interpreter included, after an untimed
run that repacks the model. The files of both are in the page cache. The clock stops at the first
byte on stdout.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

from engines import PEERS
from machine import machine_card

PROMPT = (  # 20 tokens of SmolLM2
    "The lighthouse keeper wrote down the weather every morning for forty years, "
    "and then one day he decided to"
)
PROCESS_LIMIT_S = 300


def first_byte_s(command: list[str]) -> float:
    """Return the seconds from starting the process to its first byte on stdout.

    Raises:
        RuntimeError: the process fails or prints nothing.
    """
    start = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        first = process.stdout.read(1)
        seconds = time.perf_counter() - start
        _, errors = process.communicate(timeout=PROCESS_LIMIT_S)
    if not first or process.returncode != 0:
        raise RuntimeError(f"{command[0]} failed: {errors.decode(errors='replace')[-500:]}")
    return seconds


def commands(model: Path, threads: int) -> dict[str, list[str]]:
    """Return the two command lines."""
    ours = [sys.executable, "-m", "twostroke", "run", str(model), "--raw", "--prompt", PROMPT]
    ours += ["--max-tokens", "1", "--temperature", "0", "--threads", str(threads)]
    theirs = [str(PEERS / "cold_llamacpp"), str(model), str(threads), PROMPT]
    return {"twostroke": ours, "llamacpp": theirs}


def main() -> None:
    """Measure and print one JSON object."""
    parser = argparse.ArgumentParser(description="Process start to first token.")
    parser.add_argument("model", type=Path)
    parser.add_argument("--repeat", type=int, default=9)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--engines", default="twostroke,llamacpp")
    arguments = parser.parse_args()
    lines = commands(arguments.model, arguments.threads)
    chosen = {name: lines[name] for name in arguments.engines.split(",")}
    for command in chosen.values():
        first_byte_s(command)
    seconds: dict[str, list[float]] = {name: [] for name in chosen}
    for _ in range(arguments.repeat):
        for name, command in chosen.items():
            seconds[name].append(first_byte_s(command))
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    document = {"machine": machine_card(), "model": os.fspath(arguments.model), "seconds": seconds}
    document["median_s"] = medians
    if len(medians) == 2:
        document["ours_over_llamacpp"] = medians["twostroke"] / medians["llamacpp"]
    print(json.dumps(document))


if __name__ == "__main__":
    main()
