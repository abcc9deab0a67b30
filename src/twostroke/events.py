"""Moments of a request's life on one monotonic clock, as frozen records. Intervals are computed
by the meters.
"""

from __future__ import annotations

from typing import Protocol

from twostroke.dataclass import dataclass
from twostroke.request import FinishReason
from twostroke.step import StepPlan, StepResult


@dataclass(frozen=True, slots=True)
class Arrived:
    """A request was handed to the engine. load_s and init_s were spent on it before t_s."""

    request_id: str
    t_s: float
    num_prompt_tokens: int
    load_s: float | None = None
    init_s: float | None = None


@dataclass(frozen=True, slots=True)
class Admitted:
    """A request left the queue: the cache look-up took [lookup_start_s, t_s]."""

    request_id: str
    t_s: float
    lookup_start_s: float
    num_cached_tokens: int
    reason: str | None = None
    diverged_token: int | None = None
    diverged_message: int | None = None
    diverged_char: int | None = None
    matches_again_at_token: int | None = None
    price_s: float | None = None  # predicted cost of what could have been reused


@dataclass(frozen=True, slots=True)
class StepDone:
    """A step ran from result.start_s to result.end_s."""

    plan: StepPlan
    result: StepResult
    cold: bool = False  # the first step of its shape: kept out of fits
    predicted_s: float | None = None


@dataclass(frozen=True, slots=True)
class Preempted:
    """A running request lost its blocks and will recompute num_tokens tokens."""

    request_id: str
    t_s: float
    num_tokens: int
    cost_s: float | None = None  # predicted time of computing them again, if nothing stays cached


@dataclass(frozen=True, slots=True)
class Finished:
    """A request ended; last of its events."""

    request_id: str
    t_s: float
    reason: FinishReason
    context_len: int
    kv_bytes: int | None = None
    num_output_tokens: int | None = None  # as kept: a stop string can cut what was generated


Event = Arrived | Admitted | StepDone | Preempted | Finished


class Observer(Protocol):
    """Receives events and gives nothing back."""

    def on_event(self, event: Event) -> None:
        """Take note of one event; must not block."""
        ...
