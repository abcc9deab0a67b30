"""Many requests at once: throughput beside llama.cpp, time outside the native call, KV memory.

    python benchmarks/serving.py MODEL.gguf [--batches 1,8,32] [--prompt 128] [--output 128]
        [--repeat 5] [--threads 2] [--llamacpp] [--python PROGRAM]

Throughput: all requests arrive at once through the offline API, text included; output tokens over
the whole time, prefill included. llama.cpp (with --llamacpp, in turn with ours) gets the same ids:
its time is that of each prompt alone plus its batched decode, with no scheduler around it.
Outside share: in steps that only decode a full batch, the time from the end of one native call to
the start of the next, over the whole turn: scheduling, arrays, detokenising, meters. KV: bytes
planned and allocated, and slots of each sequence's blocks that hold no token when it ends.
Ids are seeded and fresh each round: nothing is cached. The last line of stdout is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

from peers.engines import Worker
from peers.machine import machine_card

from twostroke.bench.local import seeded_prompt
from twostroke.config import EngineConfig
from twostroke.events import Event, Finished
from twostroke.llm import LLM
from twostroke.request import SamplingParams
from twostroke.step import BLOCK_SIZE

Ids = tuple[int, ...]


class TimedProgram:
    """A recorded program that notes when each native call begins and ends."""

    def __init__(self, program: Any) -> None:
        self._program = program
        self.calls: list[tuple[float, float, int]] = []  # start, end, tokens

    def __getattr__(self, name: str) -> Any:
        return getattr(self._program, name)

    def step(self, **arguments: Any) -> None:
        """Run the native call."""
        start = time.perf_counter()
        self._program.step(**arguments)
        self.calls.append((start, time.perf_counter(), len(arguments["token_ids"])))


class FinishedLog:
    """Keeps what each request held when it ended."""

    def __init__(self) -> None:
        self.seen: list[Finished] = []

    def on_event(self, event: Event) -> None:
        """Keep the last events of requests."""
        if isinstance(event, Finished):
            self.seen.append(event)


class Bench:
    """Our engine behind the offline API, with a clock around its native calls."""

    def __init__(self, model: str, threads: int, largest_batch: int) -> None:
        self.finished = FinishedLog()
        config = EngineConfig(threads=threads, max_num_seqs=max(largest_batch, 1))
        self.llm = LLM(model, config, observers=(self.finished,))
        self.llm.built.engine.warm_up()
        self.backend = self.llm.built.engine._runner.model
        self.program = self.backend._program = TimedProgram(self.backend._program)
        self._stream = 0

    def prompts(self, count: int, num_tokens: int) -> list[Ids]:
        """Return ids that were never used before."""
        self._stream += count
        vocab = self.llm.model.config.vocab_size
        return [
            seeded_prompt(num_tokens, vocab, stream=1000 * (self._stream + i)) for i in range(count)
        ]

    def run(self, prompts: list[Ids], num_output: int) -> dict[str, Any]:
        """Answer prompts together; return seconds and the share outside native calls."""
        params = SamplingParams(temperature=0.0, max_tokens=num_output, ignore_eos=True)
        self.program.calls.clear()
        start = time.perf_counter()
        answers = self.llm.generate(prompts, params)
        seconds = time.perf_counter() - start
        assert all(len(answer.token_ids) == num_output for answer in answers)
        return {
            "seconds": seconds,
            "output_tok_s": len(prompts) * num_output / seconds,
            "outside": outside(self.program.calls, len(prompts)),
        }

    def kv(self) -> dict[str, Any]:
        """Return planned and allocated bytes of the pool, and the waste of each sequence."""
        built = self.llm.built
        assert built.config.kv_memory_bytes is not None
        block_bytes = built.backend.block_bytes
        held = [e for e in self.finished.seen if e.kv_bytes]
        waste = [  # the last token of an answer is never written
            e.kv_bytes // block_bytes * BLOCK_SIZE - (e.context_len - 1) for e in held if e.kv_bytes
        ]
        planned, allocated = built.num_blocks * block_bytes, self.model.kv_bytes
        return {
            "planned_bytes": planned,
            "allocated_bytes": allocated,
            "allocated_over_planned": allocated / planned,
            "sequences": len(waste),
            "waste_tokens_max": max(waste),
            "waste_tokens_mean": statistics.mean(waste),
        }


def outside(calls: list[tuple[float, float, int]], batch: int) -> dict[str, Any]:
    """Return the share of decode turns spent between native calls. Units: seconds, medians."""
    gaps, inside = [], []
    for (_, end, before), (start, stop, tokens) in pairwise(calls):
        if before == tokens == batch:
            gaps.append(start - end)
            inside.append(stop - start)
    if not gaps:
        return {"steps": 0, "share": None}
    return {
        "steps": len(gaps),
        "share": sum(gaps) / (sum(gaps) + sum(inside)),
        "median_share": statistics.median(g / (g + i) for g, i in zip(gaps, inside, strict=True)),
        "median_gap_s": statistics.median(gaps),
        "median_native_s": statistics.median(inside),
    }


def run_llamacpp(worker: Worker, prompts: list[Ids], num_output: int) -> dict[str, Any]:
    """Return llama.cpp's time for the same work: each prompt, then batched decode."""
    prefill_s = sum(worker.ask({"cmd": "pp", "tokens": list(p)})["seconds"] for p in prompts)
    decode = worker.ask({"cmd": "tgb", "prompts": [list(p) for p in prompts], "n": num_output - 1})
    seconds = prefill_s + decode["seconds"]
    return {
        "seconds": seconds,
        "prefill_s": prefill_s,
        "output_tok_s": len(prompts) * num_output / seconds,
    }


def measure(bench: Bench, worker: Worker | None, batch: int, args: Any) -> dict[str, Any]:
    """Return all rounds of one batch size and their medians; the first round is untimed."""
    rounds: list[dict[str, Any]] = []
    for number in range(args.repeat + 1):
        prompts = bench.prompts(batch, args.prompt)
        turn: dict[str, Any] = {}
        order = ["twostroke", "llamacpp"] if number % 2 else ["llamacpp", "twostroke"]
        for engine in order:
            if engine == "twostroke":
                turn[engine] = bench.run(prompts, args.output)
            elif worker is not None:
                turn[engine] = run_llamacpp(worker, prompts, args.output)
        if number:
            rounds.append(turn)
    medians = {
        name: statistics.median(r[name]["output_tok_s"] for r in rounds) for name in rounds[0]
    }
    row: dict[str, Any] = {"batch": batch, "output_tok_s": medians, "rounds": rounds}
    shares = [r["twostroke"]["outside"]["share"] for r in rounds]
    row["outside_share"] = None if None in shares else statistics.median(shares)
    if worker is not None:
        row["ours_over_llamacpp"] = medians["twostroke"] / medians["llamacpp"]
    return row


def main() -> None:
    """Measure and print one JSON object."""
    parser = argparse.ArgumentParser(description="Many requests at once.")
    parser.add_argument("model")
    parser.add_argument("--batches", default="1,8,32")
    parser.add_argument("--prompt", type=int, default=128)
    parser.add_argument("--output", type=int, default=128)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--llamacpp", action="store_true", help="measure llama.cpp in turn")
    parser.add_argument("--python", help="llama.cpp's Python; default: that of setup_peers.sh")
    parser.add_argument("--out", type=Path, help="append the JSON object to this file")
    args = parser.parse_args()
    batches = [int(text) for text in args.batches.split(",")]
    bench = Bench(args.model, args.threads, max(batches))
    worker = None
    if args.llamacpp:
        worker = Worker("llamacpp", Path(args.model), args.threads, args.python)
    try:
        results = [measure(bench, worker, batch, args) for batch in batches]
    finally:
        if worker is not None:
            worker.close()
    result = {
        "benchmark": "serving",
        "machine": machine_card(),
        "engine": bench.llm.built.summary,
        "model": args.model,
        "prompt": args.prompt,
        "output": args.output,
        "peer": worker.given if worker is not None else None,
        "results": results,
        "kv": bench.kv(),
    }
    if args.out is not None:
        with args.out.open("a", encoding="utf-8") as file:
            file.write(json.dumps(result) + "\n")
    print(json.dumps(result))


if __name__ == "__main__":
    main()
