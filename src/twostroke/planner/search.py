"""The largest number that keeps a condition."""

from __future__ import annotations

from collections.abc import Callable


def largest_that(keeps: Callable[[int], bool], most: int) -> int:
    """Return the largest n in [0, most] that keeps, by doubling and halving; 0: none does.

    `keeps` must hold up to some number and fail above it. Small numbers are asked first, as large
    ones may cost more to ask.
    """
    good, n = 0, 1
    while n <= most and keeps(n):
        good, n = n, (most if n < most < 2 * n else 2 * n)
    bad = min(n, most + 1)
    while bad - good > 1:
        middle = (good + bad) // 2
        if keeps(middle):
            good = middle
        else:
            bad = middle
    return good
