"""The formulas that tie counts, rates, bytes and operations to seconds.

Knows neither records nor engines. Every function is exact on its arguments; a result that they do
not determine is None.
"""

from __future__ import annotations

from collections.abc import Sequence


def decode_floor_s(weight_bytes: float, kv_bytes: float, bandwidth: float) -> float:
    """Return the least seconds of one decode step: its bytes over the memory bandwidth.

    Units: bytes; bytes per second.
    """
    return (weight_bytes + kv_bytes) / bandwidth


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
