"""Nothing lost, nothing crossed, nothing left: short in `make test`, ten minutes in `make soak`."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from tests.server.serving import Served
from tests.server.soaking import Tally, soak

SHORT_S = 15.0
LONG_S = 600.0
NUM_CLIENTS = 64
GROWTH_BYTES = 96 << 20


def run(tiny_path: Path, seconds: float, num_clients: int) -> Tally:
    with Served(tiny_path, max_num_seqs=32, log_format="off") as served:
        tally = asyncio.run(soak(served, seconds, num_clients))
        served.check_idle()
    print(json.dumps(tally.figures()))
    return tally


def test_soak_short(tiny_path: Path) -> None:
    tally = run(tiny_path, SHORT_S, 32)
    assert tally.wrong == []
    assert tally.num_whole > 50 and tally.num_left > 20 and tally.num_refused > 3


@pytest.mark.soak
def test_soak_of_ten_minutes(tiny_path: Path) -> None:
    tally = run(tiny_path, LONG_S, NUM_CLIENTS)
    assert tally.wrong == []
    assert tally.num_whole > 5000
    early = tally.rss_bytes[len(tally.rss_bytes) // 4]
    assert tally.rss_bytes[-1] - early < GROWTH_BYTES, "memory is flat after the first quarter"
