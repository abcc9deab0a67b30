"""The formulas that tie counts, rates, bytes and operations to seconds.

Knows neither records nor engines. Every function is exact on what it is given; a result that
the arguments do not determine is None.
"""

from __future__ import annotations

from collections.abc import Sequence

from twostroke.dataclass import dataclass


@dataclass(frozen=True, slots=True)
class Split:
    """A wait in its two phases. Units: seconds."""

    prefill_s: float
    decode_s: float

    @property
    def total_s(self) -> float:
        """Seconds of both phases."""
        return self.prefill_s + self.decode_s

    @property
    def prefill_share(self) -> float:
        """Share of the wait before the first token, 0 to 1."""
        return self.prefill_s / self.total_s if self.total_s else 0.0


def phase_split(
    prompt_tokens: float, prefill_tok_s: float, output_tokens: float, decode_tok_s: float
) -> Split:
    """Return `prompt / prefill rate` and `output / decode rate`."""
    return Split(prompt_tokens / prefill_tok_s, output_tokens / decode_tok_s)


def decode_floor_s(weight_bytes: float, kv_bytes: float, bandwidth: float) -> float:
    """Return the least seconds of one decode step: its bytes over the memory bandwidth.

    Units: bytes; bytes per second.
    """
    return (weight_bytes + kv_bytes) / bandwidth


def kv_bytes_per_token(layers: int, kv_heads: int, head_dim: int, value_bytes: float = 2.0) -> int:
    """Return the bytes of K and V of one token, all layers alike."""
    return round(2 * layers * kv_heads * head_dim * value_bytes)


def prefill_flop(
    params: float, new: float, cached: float = 0.0, *, layers: int = 0, width: int = 0
) -> float:
    """Return the operations of a prefill: 2 N a token, and the causal attention term.

    `width` is query heads times head size; without layers and width only the linear term counts,
    which makes the result a lower bound.
    Source: Kaplan et al. 2020, arXiv:2001.08361; attention 4 * width * (new * cached + new^2 / 2).
    """
    return 2 * params * new + 4 * width * layers * (new * cached + new * new / 2)


def break_even_length(num_draft_tokens: float, cost_ratio: float) -> float:
    """Return the accepted length at which drafting pays: 1 + k * draft cost / target cost."""
    return 1 + num_draft_tokens * cost_ratio


def expected_length(acceptance: float, num_draft_tokens: int) -> float:
    """Return the mean tokens a verified step gives when each draft is accepted independently.

    Source: Leviathan et al. 2023, arXiv:2211.17192, equation 1.
    """
    if acceptance >= 1:
        return num_draft_tokens + 1.0
    return (1 - acceptance ** (num_draft_tokens + 1)) / (1 - acceptance)


def offload_saving(seconds: float, on_gpu: float, total: float, slowdown: float) -> float:
    """Return the seconds saved if the layers left on the CPU moved to the GPU.

    slowdown: time of a layer on the CPU over its time on the GPU.
    """
    now = on_gpu + slowdown * (total - on_gpu)
    return seconds * (1 - total / now) if now else 0.0


def fit_line(xs: Sequence[float], ys: Sequence[float]) -> tuple[float, float] | None:
    """Return (intercept, slope) by least squares, None where the xs do not differ."""
    n = len(xs)
    if n < 2:
        return None
    mean_x, mean_y = sum(xs) / n, sum(ys) / n
    spread = sum((x - mean_x) ** 2 for x in xs)
    if spread <= 0:
        return None
    slope = sum((x - mean_x) * (y - mean_y) for x, y in zip(xs, ys, strict=True)) / spread
    return mean_y - slope * mean_x, slope


def fit_prefill(tokens: Sequence[float], seconds: Sequence[float]) -> tuple[float, float] | None:
    """Return (a, b) of `t = a * n + b * n^2`, each at least 0, by least squares.

    Units: seconds per token; seconds per token squared. None with fewer than two lengths.
    """
    if len(set(tokens)) < 2:
        return None
    per_token = [t / n for n, t in zip(tokens, seconds, strict=True)]
    fit = fit_line(tokens, per_token)
    if fit is None:
        return None
    a, b = fit
    if b < 0:
        return sum(per_token) / len(per_token), 0.0
    if a < 0:
        top = sum(t * n**2 for n, t in zip(tokens, seconds, strict=True))
        return 0.0, top / sum(n**4 for n in tokens)
    return a, b


def queue_share(running: float, waiting: float) -> float | None:
    """Return the share of their stay that requests spend waiting, by Little's law.

    In a steady state the mean time in a place is proportional to the mean number in it.
    """
    total = running + waiting
    return waiting / total if total else None
