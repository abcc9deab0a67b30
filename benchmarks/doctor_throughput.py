"""Megabytes a second of processor time of the log parsers, and the peak of memory.

Two kinds of text: lines that no parser knows (web, kernel and application logs) and lines of which
every one is a parser's. Protocol: seeded text of --mb megabytes, best and median of --runs passes,
one process, no warm-up. Run: python benchmarks/doctor_throughput.py [--mb 64] [--runs 3]
The last line of stdout is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import platform
import random
import resource
import statistics
import time
from collections.abc import Iterator

from twostroke_doctor import LogScanner

BLOCK_LINES = 10_000
FOREIGN = (
    "2026-03-01T10:00:{s:02d}.{n:03d}Z INFO  app.web - GET /api/items/{n} status=200 bytes={b}\n",
    '127.0.0.1 - - [01/Mar/2026:10:00:{s:02d} +0000] "POST /v1/orders HTTP/1.1" 201 {b} "-"\n',
    "Mar  1 10:00:{s:02d} host kernel: [{n}.{s:06d}] eth0: link becomes ready, speed {b} Mbps\n",
    "DEBUG worker-{s}: retrieved {n} rows from table accounts in {b} ms, cache warm\n",
    '{{"level":"info","ts":{n}.{s},"caller":"store/reader.go:{s}","msg":"read","size":{b}}}\n',
)
ENGINES = {
    "llama-server": (
        "{s}.12.345.678 I slot print_timing: id  {k} | task {n} | prompt eval time = {b}.58 ms / "
        "9683 tokens (    1.29 ms per token,   777.46 tokens per second)\n"
        "{s}.12.345.678 I slot print_timing: id  {k} | task {n} |        eval time = 7658.14 ms / "
        "  106 tokens (   72.25 ms per token,    13.84 tokens per second)\n"
        "{s}.12.345.678 I slot print_timing: id  {k} | task {n} |       total time = 20112.72 ms / "
        " 9789 tokens\n"
        "{s}.12.345.678 I slot      release: id  {k} | task {n} | stop processing: n_tokens = {b}, "
        "truncated = 0\n"
    ),
    "vllm": (
        "(APIServer pid=3646) INFO 08-12 10:00:{s:02d} [loggers.py:215] Engine 000: Avg prompt "
        "throughput: {b}.3 tokens/s, Avg generation throughput: {n}.0 tokens/s, Running: {k} reqs, "
        "Waiting: 0 reqs, GPU KV cache usage: 12.5%, Prefix cache hit rate: 29.1%\n"
    ),
    "sglang": (
        "[2026-03-01 10:00:{s:02d} TP0] Decode batch. #running-req: {k}, #token: {b}, token usage: "
        "0.14, gen throughput (token/s): {n}.06, #queue-req: 6, \n"
    ),
    "ollama": (
        "total duration:       2m27.989997625s\nload duration:        559.665542ms\n"
        "prompt eval count:    {b} token(s)\nprompt eval duration: 19.747s\n"
        "prompt eval rate:     0.66 tokens/s\neval count:           {n} token(s)\n"
        "eval duration:        2m7.682s\neval rate:            8.87 tokens/s\n"
    ),
    "own records": (
        '{{"version":1,"id":"r{n}","engine":"twostroke","phases":{{"queue_s":0.1,"prefill_s":1.{s},'
        '"decode_s":2.0}},"prompt":{{"total":{b},"cached":40,"new":60}},"output":{{"total":{n}}},'
        '"meter":{{"source":"engine","flags":[],"lines":[]}}}}\n'
    ),
    "koboldcpp": (
        "[16:08:{s:02d}] CtxLimit:{b}/49664, Amt:{k}/1024, Init:0.02s, Process:{s}.02s (55.56T/s), "
        "Generate:0.81s (28.43T/s), Total:0.83s\n"
    ),
}


def text_block(templates: tuple[str, ...]) -> bytes:
    """Return seeded text of some thousand entries."""
    rng = random.Random(7)
    entries = (
        rng.choice(templates).format(
            s=rng.randrange(60), n=rng.randrange(1, 1000), b=rng.randrange(1, 99_999), k=n % 8
        )
        for n in range(BLOCK_LINES)
    )
    return "".join(entries).encode()


def megabytes_per_s(block: bytes, megabytes: float, runs: int) -> dict[str, float]:
    """Scan `megabytes` of repeated text; return best and median rate and the number of items."""
    repeats = max(1, round(megabytes * 1e6 / len(block)))
    rates, found = [], 0

    def blocks() -> Iterator[bytes]:
        for _ in range(repeats):
            yield block

    for _ in range(runs):
        scanner, start = LogScanner(), time.process_time()
        found = count(scanner.scan(blocks()))
        rates.append(len(block) * repeats / 1e6 / (time.process_time() - start))
    return {"best": max(rates), "median": statistics.median(rates), "items": found}


def count(items: Iterator[object]) -> int:
    return sum(1 for _ in items)


def main() -> None:
    """Measure each kind of text and print a table and one JSON object."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--mb", type=float, default=64.0)
    options.add_argument("--runs", type=int, default=3)
    chosen = options.parse_args()
    mixed = FOREIGN * 4 + tuple(ENGINES.values())
    texts = {"matching nothing": (FOREIGN, chosen.mb)}
    texts |= {name: ((template,), chosen.mb / 8) for name, template in ENGINES.items()}
    texts["one entry in four"] = (mixed, chosen.mb / 4)
    results = {
        name: megabytes_per_s(text_block(templates), megabytes, chosen.runs)
        for name, (templates, megabytes) in texts.items()
    }
    for name, result in results.items():
        print(f"{name:18} best {result['best']:7.1f} MB/s  median {result['median']:7.1f} MB/s")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"peak memory {peak:.0f} MB")
    machine = {"python": platform.python_version(), "machine": platform.machine()}
    print(json.dumps({"mb": chosen.mb, "peak_mb": peak, "results": results, **machine}))


if __name__ == "__main__":
    main()
