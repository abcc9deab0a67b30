"""How long a request will take: prefill in chunks with its square term, decode in two terms.

    total = prefill(new tokens after cached ones) + (output - 1) * one decode step at its depth
The first token belongs to prefill. Source: Kaplan et al. 2020, arXiv:2001.08361 (2 N per token).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from twostroke.dataclass import dataclass
from twostroke.errors import ConfigError
from twostroke.predict.cost import CostModel, Span, StepWork
from twostroke.predict.speed import NO_TIME, Seconds, Speed
from twostroke.step import StepPlan

_MAX_SAMPLES = 33  # decode steps evaluated over an answer; between them the time is linear


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """A predicted request. None: unknown. Units: seconds; tokens.

    Shares are of the total, 0 to 1.
    """

    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    batch: int
    ttft: Seconds | None
    tpot: Seconds | None
    decode: Seconds | None
    missing: tuple[str, ...] = ()

    @property
    def total(self) -> Seconds | None:
        """Prefill and decode together."""
        return self.ttft + self.decode if self.ttft and self.decode else None

    @property
    def prefill_share(self) -> float | None:
        """Share of the wait that is prefill."""
        total = self.total
        return self.ttft.value / total.value if self.ttft and total and total.value else None

    def to_dict(self) -> dict[str, Any]:
        """Return plain data, ready for JSON: values, and the intervals beside them."""
        total, share = self.total, self.prefill_share
        return {
            "ttft_s": self.ttft.value if self.ttft else None,
            "tpot_s": self.tpot.value if self.tpot else None,
            "total_s": total.value if total else None,
            "prefill_s": self.ttft.value if self.ttft else None,
            "decode_s": self.decode.value if self.decode else None,
            "prefill_share": share,
            "decode_share": None if share is None else 1.0 - share,
            "prompt_tokens": self.prompt_tokens,
            "cached_tokens": self.cached_tokens,
            "output_tokens": self.output_tokens,
            "batch": self.batch,
            "intervals": {
                name: seconds.to_dict() if seconds else None
                for name, seconds in (
                    ("ttft_s", self.ttft),
                    ("tpot_s", self.tpot),
                    ("total_s", total),
                )
            },
        }


@dataclass(frozen=True, slots=True)
class Predictor:
    """Knows the time of a step before any step was run. Frozen and pure: safe on any thread."""

    cost: CostModel
    speed: Speed

    @property
    def missing(self) -> tuple[str, ...]:
        """Facts without which no time, or no time of one phase, can be told."""
        known = self.cost.is_arithmetic_known
        return self.speed.missing + (() if known else ("number of parameters",))

    def step(self, work: StepWork, *, has_prefill: bool) -> Seconds | None:
        """Return the time of a step's work, None where it is unknown."""
        if has_prefill and not self.cost.is_arithmetic_known:
            return None
        return self.speed.step(work, has_prefill=has_prefill)

    def step_s(self, plan: StepPlan) -> float | None:
        """Return the predicted seconds of a plan, None where they are unknown."""
        if not self.speed.is_known(plan):
            return None
        seconds = self.step(self.cost.step_work(plan), has_prefill=bool(plan.prefill))
        return None if seconds is None else seconds.value

    def observe(self, plan: StepPlan, seconds: float) -> None:
        """Learn nothing, so that a scheduler can plan at a speed that stays as given."""

    def prefill(self, start: int, end: int, *, chunk: int) -> Seconds | None:
        """Return the time of prefilling [start, end) of one request, the first token sampled."""
        total: Seconds = NO_TIME
        for at in range(start, end, chunk):
            stop = min(at + chunk, end)
            work = self.cost.spans_work((Span(at, stop, int(stop == end)),))
            seconds = self.step(work, has_prefill=True)
            if seconds is None:
                return None
            total = total + seconds
        return total

    def decode(self, context: int, *, batch: int = 1) -> Seconds | None:
        """Return the time of one step of `batch` requests whose new token is number `context`."""
        work = self.cost.spans_work((Span(context - 1, context, 1, batch),))
        return self.step(work, has_prefill=False)

    def request(
        self, prompt: int, output: int, *, cached: int = 0, batch: int = 1, chunk: int = 512
    ) -> Prediction:
        """Predict one request that decodes beside batch - 1 like it and waits in no queue.

        Raises:
            ConfigError: counts that cannot be.
        """
        _check(prompt, output, cached, batch, chunk)
        ttft = self.prefill(cached, prompt, chunk=chunk)
        contexts = _spread(prompt + 1, prompt + max(output - 1, 1))
        steps = [self.decode(context, batch=batch) for context in contexts]
        known = [s for s in steps if s is not None]
        tpot = _mean(known) if len(known) == len(steps) else None
        return Prediction(
            prompt_tokens=prompt,
            cached_tokens=cached,
            output_tokens=output,
            batch=batch,
            ttft=ttft,
            tpot=tpot,
            decode=tpot.scaled(max(output - 1, 0)) if tpot else None,
            missing=self.missing,
        )


def _check(prompt: int, output: int, cached: int, batch: int, chunk: int) -> None:
    for name, value, low, high in (
        ("prompt tokens", prompt, 1, 1 << 24),
        ("output tokens", output, 0, 1 << 24),
        ("cached tokens", cached, 0, prompt - 1),
        ("batch", batch, 1, 1 << 16),
        ("prefill chunk", chunk, 1, 1 << 24),
    ):
        if not low <= value <= high:
            raise ConfigError(f"{name} out of range", value=value, limit=f"[{low}, {high}]")


def _spread(first: int, last: int) -> list[int]:
    """Return evenly spread integers from first to last, both included."""
    n = min(last - first + 1, _MAX_SAMPLES)
    return [first + round(i * (last - first) / max(n - 1, 1)) for i in range(n)]


def _mean(times: Sequence[Seconds]) -> Seconds:
    total = NO_TIME
    for seconds in times:
        total = total + seconds
    return total.scaled(1.0 / len(times))
