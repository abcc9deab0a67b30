"""Four threads read and command an engine that runs, with a thread switch every microsecond."""

from __future__ import annotations

import asyncio
import random
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tests.simulation import Simulation, tokens
from twostroke.engine.async_engine import AsyncEngine
from twostroke.errors import QueueFull
from twostroke.request import FinishReason, SamplingParams

RUN_S = 3.0
MAX_WAITING = 6


@contextmanager
def switch_interval(seconds: float) -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(seconds)
    try:
        yield
    finally:
        sys.setswitchinterval(before)


class Hammer:
    """Runs a load and readers beside it; every exception of any thread is kept."""

    def __init__(self) -> None:
        self.sim = Simulation(
            num_blocks=64, max_num_seqs=4, max_model_len=512, max_waiting=MAX_WAITING,
            prefill_chunk=32, growth_tokens=16, is_logged=False,
        )  # fmt: skip
        self.engine = AsyncEngine(self.sim.engine)
        self.faults: list[BaseException] = []
        self.ids: list[str] = []
        self.ends: list[FinishReason] = []
        self.num_refused = self.num_reads = self.num_outlooks = 0
        self._end_s = 0.0

    def run(self) -> None:
        self.engine.start()
        self._end_s = time.monotonic() + RUN_S
        works = (self.read, self.ask, self.cancel, self.load)
        threads = [threading.Thread(target=self._guarded, args=(work,)) for work in works]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        self.engine.shutdown()

    def _guarded(self, work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as fault:
            self.faults.append(fault)

    @property
    def is_over(self) -> bool:
        return time.monotonic() > self._end_s

    def read(self) -> None:
        """Every status belongs to one moment: its counts agree with each other."""
        while not self.is_over:
            status = self.engine.status
            assert status.num_waiting + status.num_running == len(status.progress)
            assert 0 <= status.num_running <= 4 and status.num_waiting >= 0
            assert 0 <= status.num_used_blocks <= status.num_blocks == 64
            assert status.predicted_wait_s is None or status.predicted_wait_s >= 0
            for request_id, progress in status.progress.items():
                assert 0 <= progress.num_done <= progress.num_total
                eta_s = status.eta_s(request_id)
                assert eta_s is None or eta_s >= 0
            assert self.engine.num_requests >= 0
            assert self.engine.seconds_without_progress() < 5.0
            self.num_reads += 1

    def ask(self) -> None:
        async def main() -> None:
            params = SamplingParams(max_tokens=5)
            while not self.is_over:
                look = await self.engine.outlook(tokens(40), params)
                assert look.num_cached <= look.num_prompt == 40 and look.num_waiting >= 0
                self.num_outlooks += 1

        asyncio.run(main())

    def cancel(self) -> None:
        draw = random.Random(3)
        while not self.is_over:
            if self.ids:
                self.engine.abort(draw.choice(self.ids[-12:]))
            time.sleep(0.002)

    def load(self) -> None:
        async def one(number: int) -> None:
            request = self.sim.request(tokens(30 + number % 50, seed=number % 7), max_tokens=40)
            self.ids.append(request.id)
            try:
                async for output in self.engine.generate(request):
                    last = output
            except QueueFull as refusal:
                assert refusal.retry_after_s >= 1.0
                self.num_refused += 1
            else:
                self.ends.append(last.finish_reason)

        async def main() -> None:
            number = 0
            while not self.is_over:
                await asyncio.gather(*(one(number + i) for i in range(16)))
                number += 16

        asyncio.run(main())


def test_status_outlooks_refusals_and_cancels_from_four_threads_never_tear() -> None:
    with switch_interval(1e-6):
        hammer = Hammer()
        hammer.run()
    assert hammer.faults == []
    assert hammer.num_reads > 50 and hammer.num_outlooks > 5
    assert hammer.num_refused > 0
    assert set(hammer.ends) == {FinishReason.LENGTH, FinishReason.CANCELLED}
    assert len(hammer.ends) + hammer.num_refused == len(hammer.ids)
    assert hammer.engine.num_requests == 0
    status = hammer.engine.status
    assert (status.num_waiting, status.num_running, len(status.progress)) == (0, 0, 0)
    hammer.sim.check()
