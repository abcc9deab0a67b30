"""How late the event loop runs: every stream feels it when something blocks the loop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

PERIOD_S = 0.25
_MEMORY = 0.8  # of the running maximum, per period


@asynccontextmanager
async def watch_loop(report: Callable[[float], None]) -> AsyncIterator[None]:
    """Report the lag of the running loop every period. Units: seconds, a decaying maximum."""
    task = asyncio.ensure_future(_watch(report))
    try:
        yield
    finally:
        task.cancel()


async def _watch(report: Callable[[float], None]) -> None:
    lag_s = 0.0
    while True:
        before_s = time.monotonic()
        await asyncio.sleep(PERIOD_S)
        lag_s = max(time.monotonic() - before_s - PERIOD_S, _MEMORY * lag_s, 0.0)
        report(lag_s)
