"""twostroke as a worker: the runner gets the step plans that the scheduler would make.

The scheduler is left out, as llama.cpp's server is left out of its worker. Each test gets a runner
with a KV cache of the size that it needs, made outside the timed part.
"""

from __future__ import annotations

import time

from worker_protocol import Timed, serve

from twostroke import __version__
from twostroke.backend.runner import ModelRunner
from twostroke.build import build_engine
from twostroke.config import EngineConfig
from twostroke.model.loaded import load_model
from twostroke.request import SamplingParams
from twostroke.step import BLOCK_SIZE, BlockTable, Phase, SampleSpec, Slice, StepPlan

GREEDY = SamplingParams(temperature=0.0, ignore_eos=True)
CHUNK = 512  # as llama.cpp's n_ubatch
ENGINE_KV_BYTES = 64 << 20  # KV cache of the engine's own runner, which is not used here


class TwoStroke:
    """One model, and one runner for the current test's number of blocks."""

    def __init__(self, path: str, threads: int, backend: str = "auto") -> None:
        config = EngineConfig(
            threads=threads, prefill_chunk=CHUNK, kv_memory_bytes=ENGINE_KV_BYTES, backend=backend
        )
        self.built = build_engine(load_model(path), config)
        self.num_blocks = 0
        self.runner: ModelRunner | None = None
        self.given = {
            "engine": f"twostroke {__version__}",
            "backend": self.built.backend.summary,
            "threads": threads,
            "prefill_chunk": CHUNK,
            "kv": config.kv_type.value,
        }

    def open_runner(self, lengths: list[int]) -> tuple[ModelRunner, list[tuple[int, ...]]]:
        """Return a runner for sequences of these lengths, and each one's block table."""
        tables, free = [], 0
        for length in lengths:
            needed = -(-length // BLOCK_SIZE)
            tables.append(BlockTable(range(free, free + needed)))
            free += needed
        if self.runner is None or self.num_blocks != free:
            self.runner, self.num_blocks = self.built.new_runner(free * BLOCK_SIZE), free
        return self.runner, tables

    def spec(self, prompt: list[int], output: list[int]) -> SampleSpec:
        """Return how to choose the token after prompt and output: greedily."""
        position = len(prompt) + len(output)
        return SampleSpec(params=GREEDY, seed=0, choice=0, position=position)

    def prompt_plans(self, name: str, prompt: list[int], blocks: BlockTable) -> list[StepPlan]:
        """Cut a prompt into prefill steps; the first has the blocks zeroed."""
        plans = []
        for start in range(0, len(prompt), CHUNK):
            part = tuple(prompt[start : start + CHUNK])
            is_last = start + CHUNK >= len(prompt)
            sample = self.spec(prompt, []) if is_last else None
            piece = Slice(name, Phase.PREFILL, part, start, blocks, sample)
            plans.append(StepPlan(prefill=(piece,), new_blocks=blocks if start == 0 else ()))
        return plans

    def prefill(self, tokens: list[int]) -> Timed:
        """Time a prompt."""
        runner, (table,) = self.open_runner([len(tokens)])
        plans = self.prompt_plans("pp", tokens, table)
        start = time.perf_counter()
        for plan in plans:
            result = runner.run(plan)
        seconds = time.perf_counter() - start
        return Timed(seconds, len(tokens), [[result.sampled["pp"].token_id]])

    def decode(self, prompts: list[list[int]], count: int) -> Timed:
        """Time greedy steps of all prompts together."""
        runner, tables = self.open_runner([len(prompt) + count + 1 for prompt in prompts])
        names = [f"tg{i}" for i in range(len(prompts))]
        ids: list[list[int]] = []
        for name, prompt, table in zip(names, prompts, tables, strict=True):
            for plan in self.prompt_plans(name, prompt, table):
                result = runner.run(plan)
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
            sampled = runner.run(StepPlan(decode=slices)).sampled
            for name, output in zip(names, ids, strict=True):
                output.append(sampled[name].token_id)
        seconds = time.perf_counter() - start
        return Timed(seconds, count * len(prompts), ids)


if __name__ == "__main__":
    serve(TwoStroke)
