"""The result of a step for each sequence, and how far each prompt is."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from twostroke.scheduler.sequence import Sequence
from twostroke.step import Sampled


class Progress(NamedTuple):
    """The result of a step for one sequence; its finish_reason says whether it ended.

    sampled None: prefill only. stop_reason: the stop token id that ended the sequence.
    """

    sequence: Sequence
    sampled: Sampled | None
    stop_reason: int | None = None


class PrefillProgress(NamedTuple):
    """How far a prompt is. Units: tokens; num_done counts the cached ones too."""

    num_done: int
    num_cached: int
    num_total: int


class ProgressBoard:
    """The progress of every prompt whose request has not ended. A snapshot never changes."""

    def __init__(self) -> None:
        self._current: dict[str, PrefillProgress] = {}
        self._snapshot: Mapping[str, PrefillProgress] | None = None

    def put(self, sequence: Sequence) -> None:
        """Note how far a sequence's prompt is."""
        total = sequence.request.num_prompt_tokens
        done = min(sequence.num_computed_tokens, total)
        self._current[sequence.id] = PrefillProgress(done, sequence.num_cached_tokens, total)
        self._snapshot = None

    def drop(self, request_id: str) -> None:
        """Forget a sequence that has ended."""
        if self._current.pop(request_id, None) is not None:
            self._snapshot = None

    def snapshot(self) -> Mapping[str, PrefillProgress]:
        """Return all progress as it is now; the same object until something changes."""
        if self._snapshot is None:
            self._snapshot = MappingProxyType(dict(self._current))
        return self._snapshot
