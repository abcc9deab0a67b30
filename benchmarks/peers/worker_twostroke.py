"""twostroke as a worker: steps given straight to the runner, as the scheduler would give them.

Needs `twostroke.build.load_runner(path, config) -> Runner` (step.py). The numbers are the runner's,
without the scheduler, as llama.cpp's here are without its server.
"""

from __future__ import annotations

import time
from pathlib import Path

from twostroke.build import load_runner
from worker_protocol import Timed, serve

from twostroke import __version__
from twostroke.config import EngineConfig
from twostroke.request import SamplingParams
from twostroke.step import BLOCK_SIZE, Phase, SampleSpec, Slice, StepPlan

GREEDY = SamplingParams(temperature=0.0, ignore_eos=True)
CHUNK = 512  # as llama.cpp's n_ubatch


class TwoStroke:
    """One model behind a Runner."""

    def __init__(self, path: str, threads: int) -> None:
        config = EngineConfig(threads=threads, prefill_chunk=CHUNK)
        self.runner = load_runner(Path(path), config)
        self.given = {
            "engine": f"twostroke {__version__}",
            "threads": threads,
            "prefill_chunk": CHUNK,
            "kv": config.kv_type.value,
        }

    def spec(self, prompt: list[int], output: list[int]) -> SampleSpec:
        """Ask for a greedy token after prompt and output."""
        position = len(prompt) + len(output)
        return SampleSpec(params=GREEDY, seed=0, choice=0, position=position)

    def prompt_plans(self, name: str, prompt: list[int], blocks: tuple[int, ...]) -> list[StepPlan]:
        """Cut a prompt into prefill steps; the first has the blocks zeroed."""
        plans = []
        for start in range(0, len(prompt), CHUNK):
            part = tuple(prompt[start : start + CHUNK])
            is_last = start + CHUNK >= len(prompt)
            sample = self.spec(prompt, []) if is_last else None
            piece = Slice(name, Phase.PREFILL, part, start, blocks, sample)
            plans.append(StepPlan(prefill=(piece,), new_blocks=blocks if start == 0 else ()))
        return plans

    def tables(self, lengths: list[int]) -> list[tuple[int, ...]]:
        """Give each sequence its own run of blocks."""
        tables, free = [], 0
        for length in lengths:
            needed = -(-length // BLOCK_SIZE)
            tables.append(tuple(range(free, free + needed)))
            free += needed
        if free > self.runner.num_blocks:
            raise MemoryError(f"needs {free} blocks, the pool has {self.runner.num_blocks}")
        return tables

    def prefill(self, tokens: list[int]) -> Timed:
        """Time a prompt."""
        plans = self.prompt_plans("pp", tokens, self.tables([len(tokens)])[0])
        start = time.perf_counter()
        for plan in plans:
            result = self.runner.run(plan)
        seconds = time.perf_counter() - start
        self.runner.forget("pp")
        return Timed(seconds, len(tokens), [[result.sampled["pp"].token_id]])

    def decode(self, prompts: list[list[int]], count: int) -> Timed:
        """Time greedy steps of all prompts together."""
        tables = self.tables([len(prompt) + count + 1 for prompt in prompts])
        names = [f"tg{i}" for i in range(len(prompts))]
        ids: list[list[int]] = []
        for name, prompt, table in zip(names, prompts, tables, strict=True):
            for plan in self.prompt_plans(name, prompt, table):
                result = self.runner.run(plan)
            ids.append([result.sampled[name].token_id])
        start = time.perf_counter()
        for _ in range(count):
            slices = tuple(
                Slice(
                    name,
                    Phase.DECODE,
                    (output[-1],),
                    len(prompt) + len(output) - 1,
                    table,
                    self.spec(prompt, output),
                )
                for name, prompt, table, output in zip(names, prompts, tables, ids, strict=True)
            )
            sampled = self.runner.run(StepPlan(decode=slices)).sampled
            for name, output in zip(names, ids, strict=True):
                output.append(sampled[name].token_id)
        seconds = time.perf_counter() - start
        for name in names:
            self.runner.forget(name)
        return Timed(seconds, count * len(prompts), ids)


if __name__ == "__main__":
    serve(TwoStroke)
