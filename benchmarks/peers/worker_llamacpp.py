"""llama.cpp as a worker, through the low-level calls of llama-cpp-python.

Settings: n_batch and n_ubatch 512, flash attention on, f16 KV cache (the default), one cache per
sequence as in llama-batched-bench; all others are llama.cpp's defaults. A greedy token is one
argmax over the logits.
"""

from __future__ import annotations

import ctypes
import time

import llama_cpp as llama
import numpy as np
from worker_protocol import Timed, serve

BATCH = 512
CONTEXT_UNIT = 256  # llama.cpp pads the cache of a sequence to this


class Batch:
    """A llama_batch that can be filled again and again."""

    def __init__(self, capacity: int) -> None:
        self.raw = llama.llama_batch_init(capacity, 0, 1)

    def fill(self, rows: list[tuple[int, int, int, bool]]) -> Batch:
        """Set the rows: token id, position, sequence, whether its logits are wanted."""
        self.raw.n_tokens = len(rows)
        for i, (token_id, position, sequence, is_wanted) in enumerate(rows):
            self.raw.token[i] = token_id
            self.raw.pos[i] = position
            self.raw.n_seq_id[i] = 1
            self.raw.seq_id[i][0] = sequence
            self.raw.logits[i] = is_wanted
        return self

    def __del__(self) -> None:
        llama.llama_batch_free(self.raw)


class LlamaCpp:
    """One model, and one context for the current test's numbers of tokens and sequences."""

    def __init__(self, path: str, threads: int) -> None:
        llama.llama_backend_init()
        self.model = llama.llama_model_load_from_file(
            path.encode(), llama.llama_model_default_params()
        )
        if not self.model:
            raise ValueError(f"llama.cpp cannot load {path}")
        self.threads = threads
        self.num_vocab = llama.llama_vocab_n_tokens(llama.llama_model_get_vocab(self.model))
        self.shape: tuple[int, int] = (0, 0)
        self.context = None
        self.given = {
            "engine": f"llama-cpp-python {llama.__version__}",
            "system": llama.llama_print_system_info().decode(),
            "threads": threads,
            "flash_attention": True,
            "n_batch": BATCH,
            "n_ubatch": BATCH,
            "kv": "f16",
        }

    def open_context(self, num_tokens: int, num_sequences: int) -> None:
        """Open or clear the context, for so many sequences of at most so many tokens each."""
        length = -(-num_tokens // CONTEXT_UNIT) * CONTEXT_UNIT
        if self.shape != (length, num_sequences):
            if self.context is not None:
                llama.llama_free(self.context)
            params = llama.llama_context_default_params()
            params.n_ctx = length * num_sequences
            params.n_batch = params.n_ubatch = BATCH
            params.n_seq_max = num_sequences
            params.n_threads = params.n_threads_batch = self.threads
            params.flash_attn_type = llama.LLAMA_FLASH_ATTN_TYPE_ENABLED
            self.context = llama.llama_init_from_model(self.model, params)
            if not self.context:
                raise MemoryError(f"llama.cpp gives no context for {params.n_ctx} tokens")
            self.shape = (length, num_sequences)
        llama.llama_memory_clear(llama.llama_get_memory(self.context), True)

    def run(self, batch: Batch) -> None:
        """Decode one batch."""
        status = llama.llama_decode(self.context, batch.raw)
        if status != 0:
            raise RuntimeError(f"llama_decode returned {status}")

    def best_id(self, row: int) -> int:
        """Return the id of the highest logit of a row of the last batch."""
        logits = llama.llama_get_logits_ith(self.context, row)
        address = ctypes.cast(logits, ctypes.POINTER(ctypes.c_float))
        return int(np.ctypeslib.as_array(address, shape=(self.num_vocab,)).argmax())

    def prompt_batches(self, tokens: list[int], sequence: int) -> list[Batch]:
        """Return a prompt as batches; only its last token's logits are wanted."""
        last = len(tokens) - 1
        rows = [(token, i, sequence, i == last) for i, token in enumerate(tokens)]
        chunks = [rows[start : start + BATCH] for start in range(0, len(rows), BATCH)]
        return [Batch(len(chunk)).fill(chunk) for chunk in chunks]

    def prefill(self, tokens: list[int]) -> Timed:
        """Time a prompt."""
        self.open_context(len(tokens), 1)
        batches = self.prompt_batches(tokens, 0)
        start = time.perf_counter()
        for batch in batches:
            self.run(batch)
        first_id = self.best_id(-1)
        return Timed(time.perf_counter() - start, len(tokens), [[first_id]])

    def decode(self, prompts: list[list[int]], count: int) -> Timed:
        """Time greedy steps of all prompts together."""
        longest = max(len(prompt) for prompt in prompts)
        self.open_context(longest + count + 1, len(prompts))
        ids: list[list[int]] = []
        for sequence, prompt in enumerate(prompts):
            for batch in self.prompt_batches(prompt, sequence):
                self.run(batch)
            ids.append([self.best_id(-1)])
        step = Batch(len(prompts))
        start = time.perf_counter()
        for done in range(count):
            step.fill([(ids[s][-1], len(p) + done, s, True) for s, p in enumerate(prompts)])
            self.run(step)
            for sequence in range(len(prompts)):
                ids[sequence].append(self.best_id(sequence))
        return Timed(time.perf_counter() - start, count * len(prompts), ids)


if __name__ == "__main__":
    serve(LlamaCpp)
