"""Hugging Face transformers as a worker: bf16 weights, SDPA attention, a plain greedy loop.

`model` is a folder written by make_hf_model.py: the weights of the GGUF file, dequantised.
"""

from __future__ import annotations

import time

import torch
import transformers
from worker_protocol import Timed, serve


class Transformers:
    """One model in bf16."""

    def __init__(self, path: str, threads: int) -> None:
        torch.set_num_threads(threads)
        self.model = transformers.AutoModelForCausalLM.from_pretrained(
            path, dtype=torch.bfloat16, attn_implementation="sdpa", local_files_only=True
        ).eval()
        self.given = {
            "engine": f"transformers {transformers.__version__}, torch {torch.__version__}",
            "threads": threads,
            "weights": "bf16",
            "attention": "sdpa",
            "kv": "bf16",
        }

    def prefill(self, tokens: list[int]) -> Timed:
        """Time a prompt."""
        with torch.inference_mode():
            rows = torch.tensor([tokens])
            start = time.perf_counter()
            out = self.model(rows, use_cache=True, logits_to_keep=1)
            first_id = int(out.logits[0, -1].argmax())
            return Timed(time.perf_counter() - start, len(tokens), [[first_id]])

    def decode(self, prompts: list[list[int]], count: int) -> Timed:
        """Time greedy steps; prompts of a batch have the same length, so that none is padded."""
        if len({len(prompt) for prompt in prompts}) != 1:
            raise ValueError("prompts of one batch must have one length")
        with torch.inference_mode():
            out = self.model(torch.tensor(prompts), use_cache=True, logits_to_keep=1)
            best = out.logits[:, -1].argmax(-1)
            steps = [best]
            start = time.perf_counter()
            for _ in range(count):
                out = self.model(best[:, None], past_key_values=out.past_key_values, use_cache=True)
                best = out.logits[:, -1].argmax(-1)
                steps.append(best)
            seconds = time.perf_counter() - start
        ids = torch.stack(steps, dim=1).tolist()
        return Timed(seconds, count * len(prompts), ids)


if __name__ == "__main__":
    serve(Transformers)
