"""One request as its client saw it: a streamed reply becomes a record."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import field
from itertools import pairwise
from typing import Any

from twostroke.dataclass import dataclass
from twostroke.record import InterTokenLatency, Meter, OutputTokens, PromptTokens, RequestRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One request as the client saw it. lag_s: how late it left."""

    kind: str
    lag_s: float
    record: RequestRecord
    error: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return plain data, ready for JSON."""
        return {
            "kind": self.kind,
            "lag_s": self.lag_s,
            "error": self.error,
            **self.record.to_dict(),
        }


@dataclass(slots=True)
class ReplySoFar:
    """A streamed reply's tokens and counts so far. Units: seconds of time.monotonic()."""

    sent_s: float
    token_times_s: list[float] = field(default_factory=list)
    visible_s: float | None = None
    usage: dict[str, Any] | None = None
    finish: str | None = None
    error: str | None = None

    def take(self, data: bytes, now_s: float) -> None:
        """Take in one event of the stream.

        Raises:
            ValueError, AttributeError, TypeError: an event that OpenAI's API does not give.
        """
        event = json.loads(data)
        if event.get("error"):
            self.error = str(event["error"])[:300]
        self.usage = event.get("usage") or self.usage
        for choice in event.get("choices") or ():
            self.finish = choice.get("finish_reason") or self.finish
            delta = choice.get("delta") or {}
            text = delta.get("content") or choice.get("text") or ""
            thought = delta.get("reasoning_content") or delta.get("reasoning") or ""
            if not (text or thought or delta.get("tool_calls")):
                continue  # a role, an empty or a closing chunk is no token
            self.token_times_s.append(now_s)
            if text and self.visible_s is None:
                self.visible_s = now_s


def record_of(seen: ReplySoFar, request_id: str, end_s: float) -> RequestRecord:
    """Return a reply's record. Only the endpoint's usage counts tokens; chunks never do."""
    usage = seen.usage or {}
    details = usage.get("prompt_tokens_details") or {}
    total, cached = usage.get("prompt_tokens"), details.get("cached_tokens")
    num_output = usage.get("completion_tokens")
    thought = (usage.get("completion_tokens_details") or {}).get("reasoning_tokens")
    times = seen.token_times_s
    tpot_s = None
    if num_output is not None and num_output > 1 and len(times) > 1:
        tpot_s = (times[-1] - times[0]) / (num_output - 1)
    return RequestRecord(
        id=request_id,
        t_arrival_s=seen.sent_s,
        engine="endpoint",
        e2e_s=end_s - seen.sent_s,
        prompt=PromptTokens(
            total=total,
            cached=cached,
            new=total - cached if total is not None and cached is not None else None,
        ),
        output=OutputTokens(total=num_output, reasoning=thought),
        ttft_any_s=times[0] - seen.sent_s if times else None,
        ttft_visible_s=seen.visible_s - seen.sent_s if seen.visible_s is not None else None,
        tpot_s=tpot_s,
        itl=_gaps(times),
        decode_tok_s=1 / tpot_s if tpot_s else None,
        finish=seen.finish,
        meter=Meter(source="client", flags=_flags(seen, num_output)),
    )


def _gaps(times_s: Sequence[float]) -> InterTokenLatency:
    gaps = sorted(b - a for a, b in pairwise(times_s))
    return InterTokenLatency(
        p50_s=percentile(gaps, 50), p95_s=percentile(gaps, 95), max_s=gaps[-1] if gaps else None
    )


def _flags(seen: ReplySoFar, num_output: int | None) -> tuple[str, ...]:
    flags = ["failed"] if seen.error is not None else []
    if num_output is None:
        flags.append("no_usage")
    elif num_output != len(seen.token_times_s):
        flags.append("chunks_are_not_tokens")
    return tuple(flags)


def percentile(ordered: Sequence[float], percent: int) -> float | None:
    """Return a percentile of ascending values by nearest rank, None of none."""
    if not ordered:
        return None
    return ordered[max(-(-percent * len(ordered) // 100) - 1, 0)]
