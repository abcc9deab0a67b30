"""How late the event loop is: what every stream feels when something blocks it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from twostroke.server.metrics import EngineMeters

PERIOD_S = 0.25
_MEMORY = 0.8  # of the running maximum, per period


@asynccontextmanager
async def watch_loop(meters: EngineMeters) -> AsyncIterator[None]:
    """Keep `loop_lag_s` of the meters up to date. Units: seconds, a decaying maximum."""
    task = asyncio.ensure_future(_watch(meters))
    try:
        yield
    finally:
        task.cancel()


async def _watch(meters: EngineMeters) -> None:
    while True:
        before_s = time.monotonic()
        await asyncio.sleep(PERIOD_S)
        lag_s = max(time.monotonic() - before_s - PERIOD_S, 0.0)
        meters.loop_lag_s = max(lag_s, _MEMORY * meters.loop_lag_s)
