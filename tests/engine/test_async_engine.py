"""The thread behind asyncio: streams, refusals, cancels, slow readers, sudden ends."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable
from contextlib import aclosing

import pytest

from tests.simulation import Simulation, tokens
from twostroke.engine.async_engine import AsyncEngine
from twostroke.engine.stream import OutputStream
from twostroke.errors import ContextTooLong, EngineStopped, QueueFull
from twostroke.events import Finished
from twostroke.request import FinishReason, Request, RequestOutput
from twostroke.step import StepPlan


class Served:
    """A simulation whose steps take real time, behind its own thread."""

    def __init__(self, step_s: float = 0.001, **kwargs: object) -> None:
        self.sim = Simulation(**kwargs)
        run = self.sim.runner.run

        def slow(plan: StepPlan):
            time.sleep(step_s)
            return run(plan)

        self.sim.runner.run = slow
        self.engine = AsyncEngine(self.sim.engine)

    def ends(self, request: Request) -> list[FinishReason]:
        return [e.reason for e in self.sim.log.of(Finished) if e.request_id == request.id]

    async def collect(self, prompt: list[int], **kwargs: object) -> list[RequestOutput]:
        return [o async for o in self.engine.generate(self.sim.request(prompt, **kwargs))]


def serve(main: Callable[[Served], Awaitable[None]], **kwargs: object) -> Served:
    served = Served(**kwargs)
    served.engine.start()
    try:
        asyncio.run(asyncio.wait_for(main(served), 20))
    finally:
        served.engine.shutdown()
    assert not served.engine._thread.is_alive()
    served.sim.check()
    return served


def ids(outputs: list[RequestOutput]) -> list[int]:
    return [t for o in outputs for t in o.token_ids]


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.002)


def test_many_streams_give_what_each_gives_alone() -> None:
    async def main(served: Served) -> None:
        asked = [served.collect(tokens(20 + s, seed=s + 1), max_tokens=20) for s in range(8)]
        for s, outputs in enumerate(await asyncio.gather(*asked)):
            assert ids(outputs) == Simulation().answer(tokens(20 + s, seed=s + 1), max_tokens=20)
            assert outputs[-1].finish_reason is FinishReason.LENGTH
            assert outputs[-1].record.output.total == 20
            assert all(o.finish_reason is None for o in outputs[:-1])
        assert served.engine.num_requests == 0
        assert served.engine.seconds_without_progress() == 0.0

    serve(main)


def test_refusals_reach_the_caller_before_the_first_output() -> None:
    async def main(served: Served) -> None:
        with pytest.raises(ContextTooLong):
            await served.collect(tokens(5000), max_tokens=1)
        streams = [served.collect(tokens(20, seed=s), max_tokens=30) for s in range(12)]
        results = await asyncio.gather(*streams, return_exceptions=True)
        refused = [r for r in results if isinstance(r, QueueFull)]
        assert refused and len(refused) < 12
        assert all(len(ids(r)) == 30 for r in results if not isinstance(r, Exception))

    serve(main, max_num_seqs=1, max_waiting=4)


def test_on_added_is_called_before_the_first_output_and_never_for_a_refusal() -> None:
    async def main(served: Served) -> None:
        seen: list[object] = []
        request = served.sim.request(tokens(20), max_tokens=2)
        async for output in served.engine.generate(request, on_added=lambda: seen.append("added")):
            seen.append(output.finish_reason)
        assert seen[0] == "added" and seen.count("added") == 1
        refused = served.sim.request(tokens(5000), max_tokens=2)
        with pytest.raises(ContextTooLong):
            await anext(served.engine.generate(refused, on_added=lambda: seen.append("again")))
        assert "again" not in seen

    serve(main)


def test_x1_closing_a_stream_frees_its_place_within_a_step() -> None:
    async def main(served: Served) -> None:
        request = served.sim.request(tokens(30), max_tokens=900)
        async with aclosing(served.engine.generate(request)) as outputs:
            async for _ in outputs:
                break
        await until(lambda: served.ends(request) != [])
        assert served.ends(request) == [FinishReason.CANCELLED]
        assert served.engine.num_requests == 0

    serve(main)


@pytest.mark.parametrize("delay_s", [0.0, 0.0005, 0.01, 0.05])
def test_x2_x3_cancelling_the_task_cancels_wherever_the_request_stands(delay_s: float) -> None:
    async def main(served: Served) -> None:
        neighbour = asyncio.create_task(served.collect(tokens(40), max_tokens=30))
        tasks = [
            asyncio.create_task(served.collect(tokens(900, seed=s + 2), max_tokens=50))
            for s in range(3)
        ]
        await asyncio.sleep(delay_s)
        for task in tasks:
            task.cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(isinstance(r, asyncio.CancelledError) for r in results)
        assert ids(await neighbour) == Simulation().answer(tokens(40), max_tokens=30)
        await until(lambda: not served.sim.engine.has_work)
        assert served.engine.num_requests == 0

    serve(main, prefill_chunk=32, max_num_seqs=3)


def test_x3_a_reader_that_left_before_its_turn_is_never_started() -> None:
    async def main() -> None:
        served = Served()
        stream = OutputStream(served.sim.request(tokens(30), max_tokens=5))
        served.engine._leave(stream)  # it left while the thread was taking in what had arrived
        served.engine._add(stream)
        assert not served.sim.engine.has_work
        assert served.engine.num_requests == 0

    asyncio.run(main())


def test_a_slow_reader_gets_merged_output_and_stalls_nobody() -> None:
    async def main(served: Served) -> None:
        slow = served.engine.generate(served.sim.request(tokens(30), max_tokens=200))
        first = await anext(slow)
        quick = await served.collect(tokens(30, seed=2), max_tokens=200)
        await until(lambda: served.engine.num_requests == 0)
        rest = [o async for o in slow]
        assert len(quick) > 50 > len(rest) >= 1
        assert ids([first, *rest]) == Simulation().answer(tokens(30), max_tokens=200)
        assert rest[-1].record.output.total == 200

    serve(main, step_s=0.0005)


def test_a_stop_from_outside_ends_the_stream() -> None:
    async def main(served: Served) -> None:
        request = served.sim.request(tokens(30), max_tokens=900)
        seen: list[RequestOutput] = []
        async for output in served.engine.generate(request):
            seen.append(output)
            if len(ids(seen)) >= 5 and output.finish_reason is None:
                served.engine.stop(request.id, "END", 4)
        assert seen[-1].finish_reason is FinishReason.STOP
        assert seen[-1].stop_reason == "END"
        assert seen[-1].record.output.total == 4
        assert len(ids(seen)) < 100

    serve(main)


def test_when_the_thread_dies_everybody_is_told() -> None:
    async def main(served: Served) -> None:
        def broken() -> list[RequestOutput]:
            raise MemoryError("no more")

        running = asyncio.create_task(served.collect(tokens(30), max_tokens=900))
        await until(lambda: served.engine.num_requests == 1)
        served.sim.engine.step = broken
        with pytest.raises(EngineStopped, match="MemoryError: no more"):
            await running
        assert not served.engine.is_alive
        with pytest.raises(EngineStopped):
            await served.collect(tokens(30), max_tokens=1)

    serve(main)


def test_shutdown_ends_streams_and_refuses_new_ones() -> None:
    async def main(served: Served) -> None:
        running = asyncio.create_task(served.collect(tokens(30), max_tokens=900))
        await until(lambda: served.engine.num_requests == 1)
        await asyncio.to_thread(served.engine.shutdown)
        with pytest.raises(EngineStopped):
            await running
        with pytest.raises(EngineStopped):
            await served.collect(tokens(30), max_tokens=1)

    serve(main)


def test_x8_a_hung_step_shows_as_no_progress() -> None:
    async def main(served: Served) -> None:
        release = threading.Event()
        run = served.sim.runner.run

        def hung(plan: StepPlan):
            release.wait(10)
            return run(plan)

        served.sim.runner.run = hung
        task = asyncio.create_task(served.collect(tokens(5), max_tokens=1))
        await until(lambda: served.engine.seconds_without_progress() > 0.1)
        assert served.engine.is_alive
        release.set()
        await task
        assert served.engine.seconds_without_progress() == 0.0

    serve(main)


def test_a_loop_that_vanished_costs_the_others_nothing() -> None:
    served = Served()
    served.engine.start()
    request = served.sim.request(tokens(30), max_tokens=900)

    async def abandon() -> None:
        stream = served.engine.generate(request)
        await anext(stream)
        # The loop closes with the stream open, as when a thread of the caller dies.
        asyncio.get_running_loop().shutdown_asyncgens = _nothing

    loop = asyncio.new_event_loop()
    loop.run_until_complete(abandon())
    loop.close()
    deadline_s = time.monotonic() + 10
    while not served.ends(request) and time.monotonic() < deadline_s:
        time.sleep(0.005)
    assert served.ends(request) == [FinishReason.CANCELLED]
    outputs = asyncio.run(served.collect(tokens(30, seed=2), max_tokens=5))
    assert len(ids(outputs)) == 5
    served.engine.shutdown()
    served.sim.check()


async def _nothing() -> None:
    return None


def test_progress_of_a_prompt_can_be_read_while_it_is_read() -> None:
    async def main(served: Served) -> None:
        request = served.sim.request(tokens(600), max_tokens=1)
        task = asyncio.create_task(asyncio.wait_for(_last(served.engine.generate(request)), 10))
        seen = set()
        while not task.done():
            progress = served.engine.status.progress.get(request.id)
            if progress is not None:
                seen.add(progress.num_done)
            await asyncio.sleep(0.001)
        await task
        assert len(seen) > 3 and max(seen) <= 600

    serve(main, prefill_chunk=32, step_s=0.005)


async def _last(stream) -> RequestOutput:
    return [output async for output in stream][-1]
