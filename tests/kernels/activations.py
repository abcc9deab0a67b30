"""Activations as the integer kernels see them: 8 bits per 32 values, one outlier in 16."""

from __future__ import annotations

import numpy as np

# An outlier has two integers, 128 steps apart: at most so many steps of its group.
MOST_STEPS = 127 * 128 + 63


def outlier_places(groups: np.ndarray) -> np.ndarray:
    """True at the one value above four times all others of its 32."""
    magnitudes = np.abs(groups)
    high = magnitudes > magnitudes.max(axis=2, keepdims=True) * np.float32(0.25)
    return high & (high.sum(axis=2, keepdims=True) == 1)


def steps_of(groups: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The scale of each group and what values are multiplied with before they are rounded."""
    apart = outlier_places(groups)
    outlier = np.where(apart, np.abs(groups), np.float32(0)).max(axis=2, keepdims=True)
    rest = np.where(apart, np.float32(0), np.abs(groups)).max(axis=2, keepdims=True)
    far = outlier * np.float32(127 / MOST_STEPS) > rest
    largest = np.where(far, outlier, rest)
    steps = np.where(far, np.float32(MOST_STEPS), np.float32(127))
    with np.errstate(divide="ignore", invalid="ignore"):
        factor = np.where(largest > np.float32(1e-30), steps / largest, np.float32(0))
    return largest * (np.float32(1) / steps), factor.astype(np.float32)


def quantised(x: np.ndarray) -> np.ndarray:
    """The activations of the kernels, scale applied, in float64."""
    groups = x.reshape(len(x), -1, 32)
    scale, factor = steps_of(groups)
    values = np.rint(groups * factor).astype(np.float64)
    return (values * scale.astype(np.float64)).reshape(x.shape)
