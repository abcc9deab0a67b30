"""The moments of a request on one monotonic clock, as frozen records. Meters compute intervals."""

from __future__ import annotations

from typing import Protocol

from twostroke.dataclass import dataclass
from twostroke.record import CacheOutcome, RequestRecord
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
    """A request left the queue. The cache look-up took [lookup_start_s, t_s].

    cache says why no more of the prompt was reused; a resumed request has nothing to explain.
    """

    request_id: str
    t_s: float
    lookup_start_s: float
    num_cached_tokens: int
    cache: CacheOutcome = CacheOutcome()


@dataclass(frozen=True, slots=True)
class StepDone:
    """A step ran from result.start_s to result.end_s.

    cold: the first step of its phase, kept out of what the predictor learns.
    """

    plan: StepPlan
    result: StepResult
    cold: bool = False


@dataclass(frozen=True, slots=True)
class Preempted:
    """A running request lost its blocks, so that num_tokens tokens must be computed again."""

    request_id: str
    t_s: float
    num_tokens: int
    cost_s: float | None = None  # predicted, where none of them stays cached


@dataclass(frozen=True, slots=True)
class Finished:
    """A request ended; last of its events."""

    request_id: str
    t_s: float
    reason: FinishReason
    context_len: int
    kv_bytes: int | None = None
    num_output_tokens: int | None = None  # those kept: a stop string cuts generated tokens


Event = Arrived | Admitted | StepDone | Preempted | Finished


class Observer(Protocol):
    """Receives events and gives nothing back."""

    def on_event(self, event: Event) -> None:
        """Take note of one event; must not block."""
        ...


class RequestMeter(Protocol):
    """Makes one record of each request's events."""

    def on_event(self, event: Event) -> None:
        """Account for one event."""
        ...

    def take(self, request_id: str) -> RequestRecord | None:
        """Return the record of a request that has ended, once."""
        ...
