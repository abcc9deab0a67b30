"""OpenVINO GenAI as a worker: LLMPipeline for one sequence, ContinuousBatchingPipeline for more.

`model` is a folder that setup_peers.sh exported (int8 or int4 weights). Prefix caching is off, the
step budget is large enough for all prompts of a batch, all other settings are OpenVINO's defaults.
"""

from __future__ import annotations

import time

import numpy as np
import openvino
import openvino_genai as genai
from worker_protocol import Timed, serve

CACHE_GB = 4


class TokenTimes(genai.StreamerBase):
    """Keeps each token and the moment when it came."""

    def __init__(self) -> None:
        super().__init__()
        self.ids: list[int] = []
        self.moments_s: list[float] = []

    def write(self, token: int | list[int]) -> genai.StreamingStatus:
        """Receive one token or several."""
        arrived = [token] if isinstance(token, int) else list(token)
        self.ids += arrived
        self.moments_s += [time.perf_counter()] * len(arrived)
        return genai.StreamingStatus.RUNNING

    def end(self) -> None:
        """Do nothing: no token is held back."""


class OpenVino:
    """One exported model in two pipelines; the second is opened for the first batch."""

    def __init__(self, path: str, threads: int) -> None:
        self.path, self.threads = path, threads
        # By default it keeps the prefix of the last prompt: a repeated prompt would take no time.
        self.single = genai.LLMPipeline(
            path, "CPU", scheduler_config=self.scheduler(), INFERENCE_NUM_THREADS=threads
        )
        self.batched: genai.ContinuousBatchingPipeline | None = None
        self.next_request = 0
        self.given = {
            "engine": f"openvino-genai {genai.__version__}",
            "threads": threads,
            "model": path.rsplit("/", 1)[-1],
            "pipelines": "LLMPipeline; ContinuousBatchingPipeline for batches",
        }

    @staticmethod
    def scheduler() -> genai.SchedulerConfig:
        """Return settings that compute whole prompts in one step and reuse nothing between them."""
        scheduler = genai.SchedulerConfig()
        scheduler.cache_size = CACHE_GB
        scheduler.max_num_batched_tokens = 1 << 16
        scheduler.enable_prefix_caching = False
        return scheduler

    @staticmethod
    def greedy(count: int) -> genai.GenerationConfig:
        """Ask for exactly `count` greedy tokens."""
        config = genai.GenerationConfig()
        config.max_new_tokens, config.ignore_eos, config.do_sample = count, True, False
        return config

    def stream(self, prompt: list[int], count: int) -> tuple[float, TokenTimes]:
        """Generate one sequence; return the start and the tokens with their moments."""
        ids = np.array([prompt], dtype=np.int64)
        inputs = genai.TokenizedInputs(openvino.Tensor(ids), openvino.Tensor(np.ones_like(ids)))
        times = TokenTimes()
        start = time.perf_counter()
        self.single.generate(inputs, self.greedy(count), times)
        return start, times

    def prefill(self, tokens: list[int]) -> Timed:
        """Time a prompt."""
        start, times = self.stream(tokens, 1)
        return Timed(times.moments_s[0] - start, len(tokens), [times.ids[:1]])

    def decode(self, prompts: list[list[int]], count: int) -> Timed:
        """Time greedy steps of all prompts together."""
        if len(prompts) > 1:
            return self.decode_batch(prompts, count)
        _, times = self.stream(prompts[0], count + 1)
        seconds = times.moments_s[count] - times.moments_s[0]
        return Timed(seconds, count, [times.ids[: count + 1]])

    def open_batched(self) -> genai.ContinuousBatchingPipeline:
        """Return the batching pipeline."""
        if self.batched is None:
            properties = {"INFERENCE_NUM_THREADS": self.threads}
            self.batched = genai.ContinuousBatchingPipeline(
                self.path, self.scheduler(), "CPU", properties
            )
        return self.batched

    def decode_batch(self, prompts: list[list[int]], count: int) -> Timed:
        """Time the steps after the one that prefills every prompt."""
        pipeline = self.open_batched()
        handles = []
        for prompt in prompts:
            ids = openvino.Tensor(np.array([prompt], dtype=np.int64))
            handles.append(pipeline.add_request(self.next_request, ids, self.greedy(count + 1)))
            self.next_request += 1
        pipeline.step()
        if not all(handle.can_read() for handle in handles):
            raise RuntimeError("the first step did not prefill every prompt")
        steps, start = 0, time.perf_counter()
        while pipeline.has_non_finished_requests():
            pipeline.step()
            steps += 1
        seconds = time.perf_counter() - start
        if steps != count:
            raise RuntimeError(f"took {steps} steps for {count} tokens of each sequence")
        ids_of = [list(handle.read_all()[0].generated_ids) for handle in handles]
        return Timed(seconds, count * len(prompts), ids_of)


if __name__ == "__main__":
    serve(OpenVino)
