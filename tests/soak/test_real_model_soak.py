"""Many clients on the sample model: random lengths, a third of them cancels, all are answered.

Requests go through the engine's thread. The pool is too small for all, so requests wait, share
prefixes, are preempted and resume. Each must have one end and the right tokens, memory must not
grow, and all blocks must be free or cached at the end.
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from tests.engine.native_engine import RealEngine, RealModel
from twostroke.backend.native_library import choose_kernel_set
from twostroke.engine.async_engine import AsyncEngine
from twostroke.events import Event, Preempted
from twostroke.host import usable_cores
from twostroke.model.loaded import load_model
from twostroke.request import FinishReason, Request, SamplingParams

pytestmark = pytest.mark.weights

CLIENTS = 24
NUM_BLOCKS = 56
GROWTH = 64 << 20  # bytes that allocators may keep; the KV and text of one answer are far less
SHARED = 48


@dataclass(frozen=True)
class Ask:
    prompt: tuple[int, ...]
    params: SamplingParams
    leaves_after_s: float | None  # after so long the client cancels
    is_abrupt: bool  # it cancels by closing its stream, not by an abort
    stops_after: int | None  # no max_tokens: it stops the engine at so many tokens


@dataclass
class Tally:
    """How the requests ended."""

    ends: Counter[str] = field(default_factory=Counter)
    greedy: dict[int, tuple[int, ...]] = field(default_factory=dict)
    resident: list[int] = field(default_factory=list)
    preempted: int = 0

    def on_event(self, event: Event) -> None:
        self.preempted += isinstance(event, Preempted)


def resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def asks(count: int, text: tuple[int, ...], rng: random.Random) -> list[Ask]:
    """Return random requests; every third client cancels within a second."""
    made = []
    for i in range(count):
        start = rng.randrange(len(text) - 300)
        own = text[start : start + int(rng.triangular(1, 240, 10))]
        shared = text[: rng.randrange(SHARED)] if rng.random() < 0.5 else ()
        wanted = rng.choice((0, 1, 2, 5, 12, 40))
        is_open = rng.random() < 0.4
        params = SamplingParams(
            temperature=rng.choice((0.0, 0.0, 0.8)),
            max_tokens=None if is_open else wanted,
            logprobs=rng.choice((None, 2)),
            ignore_eos=True,
        )
        leaves = rng.random() ** 2 if i % 3 == 2 else None
        made.append(
            Ask(
                (*shared, *own),
                params,
                leaves,
                rng.random() < 0.5,
                rng.choice((20, 40, 70)) if is_open else None,
            )
        )
    return made


async def client(engine: AsyncEngine, i: int, ask: Ask, tally: Tally) -> None:
    request = Request(
        id=f"s{i}",
        prompt_token_ids=ask.prompt,
        params=ask.params,
        seed=i,
        end_token_ids=frozenset(),
        arrival_s=time.monotonic(),
    )
    token_ids: list[int] = []

    async def read() -> str:
        async for output in engine.generate(request):
            token_ids.extend(output.token_ids)
            if ask.stops_after is not None and len(token_ids) >= ask.stops_after:
                engine.stop(request.id, None, ask.stops_after)
            if output.finish_reason is not None:
                assert output.error is None, output.error
                assert output.record is not None and output.record.e2e_s is not None
                return output.finish_reason.value
        raise AssertionError("a stream ended without a reason")

    reader = asyncio.create_task(read())
    if ask.leaves_after_s is not None:
        await asyncio.wait([reader], timeout=ask.leaves_after_s)
        if not reader.done() and ask.is_abrupt:
            reader.cancel()
            await asyncio.wait([reader])
            tally.ends["left"] += 1
            return
        engine.abort(request.id)
    end = await reader
    tally.ends[end] += 1
    if end != FinishReason.CANCELLED.value:
        wanted = ask.stops_after or ask.params.max_tokens
        assert len(token_ids) == wanted or (end == "stop" and len(token_ids) > wanted)
        if ask.params.is_greedy:
            tally.greedy[i] = tuple(token_ids[:wanted])


async def drive(engine: AsyncEngine, all_asks: list[Ask], tally: Tally) -> None:
    left = iter(enumerate(all_asks))

    async def worker() -> None:
        for i, ask in left:
            await asyncio.wait_for(client(engine, i, ask, tally), timeout=300)
            if i % 25 == 24:
                tally.resident.append(resident_bytes())

    await asyncio.gather(*(worker() for _ in range(CLIENTS)))


def soak(model: RealModel, count: int) -> Tally:
    rng = random.Random(count)
    text = tuple(
        model.model.tokenizer.encode(
            (Path(__file__).parents[1] / "golden" / "text.txt").read_text(encoding="utf-8")[:12_000]
        )
    )
    all_asks, tally = asks(count, text, rng), Tally()
    real = RealEngine(
        model,
        choose_kernel_set(),
        threads=min(usable_cores(), 2),
        chunk=128,
        num_blocks=NUM_BLOCKS,
        growth_tokens=1,
        is_logged=False,
        target_tpot_s=0.1,
    )
    real.engine._observers += (tally,)
    engine = AsyncEngine(real.engine)
    engine.start()
    try:
        asyncio.run(drive(engine, all_asks, tally))
        deadline_s = time.monotonic() + 30
        while engine.num_requests or real.engine.has_work:  # the last aborts are being handled
            assert time.monotonic() < deadline_s, "work is left with nobody waiting"
            time.sleep(0.01)
    finally:
        engine.shutdown()
    real.cache.check_integrity()
    assert real.cache.num_used_blocks == real.cache.num_cached_blocks
    assert sum(tally.ends.values()) == count
    assert set(tally.ends) <= {"length", "stop", "cancelled", "left"}
    check_answers(model, all_asks, tally, rng)
    return tally


def check_answers(model: RealModel, all_asks: list[Ask], tally: Tally, rng: random.Random) -> None:
    """Compare some answers with the same requests, each run alone."""
    alone = RealEngine(model, choose_kernel_set(), is_cache_enabled=False)
    for i in rng.sample(sorted(tally.greedy), min(len(tally.greedy), 12)):
        params = replace(all_asks[i].params, max_tokens=len(tally.greedy[i]))
        assert alone.answer(all_asks[i].prompt, params).token_ids == tally.greedy[i], i


@pytest.fixture(scope="module")
def model(smollm2_path: Path) -> RealModel:
    return RealModel(load_model(str(smollm2_path)))


def test_a_hundred_requests_a_third_of_them_cancelled_are_all_answered(model: RealModel) -> None:
    tally = soak(model, 100)
    assert tally.ends["length"] + tally.ends["stop"] >= 60
    assert tally.resident[-1] - tally.resident[0] <= GROWTH


@pytest.mark.soak
def test_two_thousand_requests_a_third_of_them_cancelled_leave_memory_flat(
    model: RealModel,
) -> None:
    tally = soak(model, 2_000)
    assert tally.ends["length"] + tally.ends["stop"] >= 1_300
    assert tally.preempted >= 5
    assert tally.ends["left"] >= 100 and tally.ends["cancelled"] >= 100
    quarter = len(tally.resident) // 4
    assert max(tally.resident[-quarter:]) - tally.resident[quarter] <= GROWTH
