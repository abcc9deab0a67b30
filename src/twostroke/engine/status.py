"""The engine's state between two steps, published as one frozen object.

The engine's thread replaces it after every step and every command; any thread may read it, and
what it reads belongs to one moment.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

from twostroke.request import SamplingParams
from twostroke.scheduler.policy import longest_prompt
from twostroke.scheduler.progress import PrefillProgress

if TYPE_CHECKING:
    from twostroke.predict.predictor import Predictor


class EngineStatus(NamedTuple):
    """None: unknown. Units: seconds; KV blocks; tokens.

    predicted_wait_s: how long a request added now would wait for admission. progress: by request
    id, of every request that has not ended.
    """

    num_waiting: int
    num_running: int
    num_blocks: int
    num_used_blocks: int
    max_model_len: int
    prefill_chunk: int
    predicted_wait_s: float | None
    progress: Mapping[str, PrefillProgress]
    predictor: Predictor | None

    def max_prompt_tokens(self, params: SamplingParams) -> int:
        """Return the longest prompt that fits the context and the pool with these parameters."""
        return longest_prompt(params, self.max_model_len, self.num_blocks)

    def predicted_prefill_s(self, start: int, end: int) -> float | None:
        """Return the predicted time of prefilling tokens [start, end) of a request alone."""
        if self.predictor is None:
            return None
        seconds = self.predictor.prefill(start, end, chunk=self.prefill_chunk)
        return None if seconds is None else seconds.value

    def eta_s(self, request_id: str) -> float | None:
        """Return the predicted time until a prompt is done, as if it ran alone."""
        progress = self.progress.get(request_id)
        if progress is None:
            return None
        return self.predicted_prefill_s(progress.num_done, progress.num_total)
