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
from twostroke.predict.fit import Features, FittedSpeed, step_features
from twostroke.predict.learn import SpeedLearner
from twostroke.predict.speed import NO_TIME, Seconds, Speed
from twostroke.step import StepPlan

MIN_DECODE_STEPS = 64  # after that one decode step in DECODE_STRIDE teaches
DECODE_STRIDE = 4
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


class PhysicsPredictor:
    """Implements `step.Predictor` by physics: knows a step's time before any step was run.

    learner: what keeps the speed true to the steps that run; None: the speed stays as it is.
    """

    def __init__(
        self, cost: CostModel, speed: Speed, *, learner: SpeedLearner | None = None
    ) -> None:
        self.cost = cost
        self.learner = learner
        self._speed = speed
        self._num_decode = 0
        self._last: tuple[StepPlan, Features] | None = None

    @classmethod
    def learning(cls, cost: CostModel, speed: FittedSpeed) -> PhysicsPredictor:
        """Return a predictor that starts from a speed and learns from what it observes."""
        return cls(cost, speed, learner=SpeedLearner(speed))

    @property
    def speed(self) -> Speed:
        """The speed in use now."""
        return self._speed if self.learner is None else self.learner.speed

    @property
    def missing(self) -> tuple[str, ...]:
        """Facts without which no time, or none of prefill, can be told."""
        known = self.cost.is_arithmetic_known
        return self.speed.missing + (() if known else ("number of parameters",))

    def step(self, work: StepWork, *, has_prefill: bool) -> Seconds | None:
        """Return the time of a step's work."""
        if has_prefill and not self.cost.is_arithmetic_known:
            return None
        return self.speed.step(work, has_prefill=has_prefill)

    def step_s(self, plan: StepPlan) -> float | None:
        """Return the predicted seconds of a plan, None where the device's rates are unknown."""
        if self.learner is not None:
            return self.learner.speed.seconds(self._features(plan, self.learner.speed))
        seconds = self.step(self.cost.step_parts(plan), has_prefill=bool(plan.prefill))
        return None if seconds is None else seconds.value

    def observe(self, plan: StepPlan, seconds: float) -> None:
        """Learn from a warm step of one phase; a mixed one is not split by guess."""
        learner = self.learner
        if learner is None or plan.is_mixed:
            return
        if not plan.prefill:
            self._num_decode += 1
            if self._num_decode > MIN_DECODE_STEPS and self._num_decode % DECODE_STRIDE:
                return
        features = self._features(plan, learner.speed)
        work = self.cost.step_parts(plan)
        learner.observe(work, features, seconds, has_prefill=bool(plan.prefill))

    def _features(self, plan: StepPlan, speed: FittedSpeed) -> Features:
        """Return the terms of a plan, once for its prediction and its observation."""
        last = self._last
        if last is None or last[0] is not plan:
            assert speed.profile is not None, "a fit is of a measured machine"
            last = self._last = (plan, step_features(speed.profile, self.cost.step_parts(plan)))
        return last[1]

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


# The formulas by themselves, where rates or sizes are given as numbers


@dataclass(frozen=True, slots=True)
class Split:
    """A wait in its two phases. Units: seconds."""

    prefill_s: float
    decode_s: float

    @property
    def total_s(self) -> float:
        """Both phases."""
        return self.prefill_s + self.decode_s

    @property
    def prefill_share(self) -> float:
        """Share of the wait before the first token."""
        return self.prefill_s / self.total_s


def split_by_rates(
    prompt: float, output: float, *, prefill_tok_s: float, decode_tok_s: float
) -> Split:
    """Return prompt / prefill rate and output / decode rate.

    Raises:
        ConfigError: a rate that is not positive.
    """
    for name, rate in (("prefill rate", prefill_tok_s), ("decode rate", decode_tok_s)):
        if not rate > 0:
            raise ConfigError(f"{name} must be positive", value=rate, limit="> 0 tok/s")
    return Split(prompt / prefill_tok_s, output / decode_tok_s)


def decode_ceiling_tok_s(read_bytes: float, bandwidth: float) -> float:
    """Return the most tokens per second of one stream: bandwidth / bytes read for a token."""
    return bandwidth / read_bytes


def prefill_flop(
    values: float,
    width: float,
    new: float,
    cached: float = 0.0,
    *,
    local_width: float = 0.0,
    window: float = 0.0,
) -> float:
    """Return operations: 2 N P + 4 W (P C + P^2 / 2) + 4 W_local P min(window, C + P).

    `width` is heads * head_dim summed over full layers, `local_width` over sliding ones.
    """
    square = 4.0 * width * (new * cached + new * new / 2.0)
    return 2.0 * values * new + square + 4.0 * local_width * new * min(window, cached + new)


def attention_share(values: float, width: float, new: float) -> float:
    """Return which share of a cold prefill's operations is attention."""
    total = prefill_flop(values, width, new)
    return 1.0 - 2.0 * values * new / total


def attention_crossover(values: float, width: float) -> float:
    """Return the prompt length at which attention costs as much as the matrices: N / (L H d)."""
    return values / width


def compute_bound_batch(flops: float, bandwidth: float, bytes_per_value: float) -> float:
    """Return the batch at which decode turns from memory to arithmetic: F * bytes / (2 * BW)."""
    return flops * bytes_per_value / (2.0 * bandwidth)
