"""One engine thread behind asyncio.

Callers send requests and commands to the thread; the thread puts each request's outputs into its
stream. A slow reader holds up nobody. The engine's state is read from its published status.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable
from collections.abc import Sequence as Ids
from typing import TypeVar

from twostroke.engine.engine import Engine
from twostroke.engine.status import EngineStatus
from twostroke.engine.stream import OutputStream, refuser, settler, waker
from twostroke.errors import EngineStopped
from twostroke.request import Request, RequestOutput, SamplingParams
from twostroke.scheduler.outlook import Outlook

IDLE_WAIT_S = 1.0
# After a lone request's first token: its reader gets the interpreter and a core before the next
# step takes both. Beside other streams the pause would hold them up.
FIRST_TOKEN_PAUSE_S = 0.0003
T = TypeVar("T")


class AsyncEngine:
    """Sole user of its Engine.

    `generate` and `outlook` may be called from any event loop, `abort`, `stop` and `status` from
    any thread.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._work = threading.Condition()
        self._arrivals: deque[OutputStream] = deque()
        self._commands: deque[Callable[[], RequestOutput | None]] = deque()
        self._streams: dict[str, OutputStream] = {}  # requests in the engine
        self._open: set[OutputStream] = set()  # requests handed over and not ended
        self._is_stopping = False
        self._fault: BaseException | None = None
        self._progress_s = time.monotonic()
        self._thread = threading.Thread(target=self._loop, name="twostroke-engine", daemon=True)

    def start(self) -> None:
        """Start the engine thread."""
        self._thread.start()

    def shutdown(self, timeout_s: float = 10.0) -> None:
        """Stop after the current step; requests in flight get EngineStopped."""
        with self._work:
            self._is_stopping = True
            self._work.notify()
        if self._thread.is_alive():
            self._thread.join(timeout_s)

    @property
    def is_alive(self) -> bool:
        """Whether the thread runs and takes work."""
        return self._thread.is_alive() and not self._is_stopping

    @property
    def num_requests(self) -> int:
        """Requests that have been handed over and have not ended."""
        return len(self._open)

    def seconds_without_progress(self) -> float:
        """Return how long work has waited since the last finished step; 0 when none waits.

        Units: seconds.
        """
        return time.monotonic() - self._progress_s if self.num_requests else 0.0

    @property
    def status(self) -> EngineStatus:
        """The engine's state after its last step or command."""
        return self._engine.status

    async def generate(
        self, request: Request, *, on_added: Callable[[], None] | None = None
    ) -> AsyncGenerator[RequestOutput, None]:
        """Yield outputs until one has a finish_reason. Closing the generator cancels the request.

        on_added is called in the caller's loop when the engine has taken the request.

        Raises:
            RequestError, CapacityError: refused at the door, before the first output.
            EngineStopped: the engine has ended.
        """
        stream = OutputStream(request)
        with self._work:
            if not self.is_alive:
                raise self._stopped()
            self._arrivals.append(stream)
            self._open.add(stream)
            self._work.notify()
        output: RequestOutput | None = None
        try:
            await stream.added
            if on_added is not None:
                on_added()
            while output is None or output.finish_reason is None:
                await stream.event.wait()
                with self._work:
                    if not stream.is_orphan:
                        stream.event.clear()
                    output = stream.take()
                if output is not None:
                    yield output
                elif stream.is_orphan:
                    raise self._stopped()
        finally:
            self._close(stream)

    def _close(self, stream: OutputStream) -> None:
        """Let go of a stream; a request that has not ended is cancelled."""
        with self._work:
            stream.is_closed = True
            if stream in self._arrivals:
                self._arrivals.remove(stream)
                self._open.discard(stream)
            if self._streams.get(stream.request.id) is stream:
                request_id = stream.request.id
                self._commands.append(lambda: self._engine.abort(request_id))
                self._work.notify()

    def abort(self, request_id: str) -> None:
        """Cancel a request before the next step; its reader gets the final output."""
        self._send(lambda: self._engine.abort(request_id))

    def stop(self, request_id: str, stop_reason: str | int | None, num_tokens_kept: int) -> None:
        """End a request whose text met a stop string; its reader gets the final output.

        Tokens generated since then may precede it in the stream, beyond num_tokens_kept.
        """
        self._send(lambda: self._engine.stop(request_id, stop_reason, num_tokens_kept))

    async def outlook(
        self, prompt_token_ids: Ids[int], params: SamplingParams, salt: str = ""
    ) -> Outlook:
        """Return what a request would meet if it were added now.

        Raises:
            RequestError: as `Engine.outlook`. EngineStopped: the engine has ended.
        """
        return await self._asked(lambda: self._engine.outlook(prompt_token_ids, params, salt))

    async def _asked(self, question: Callable[[], T]) -> T:
        """Return the answer that the engine's thread gives between two steps."""
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[T] = loop.create_future()

        def command() -> None:
            settle = settler(answer, question)
            with contextlib.suppress(RuntimeError):  # the asker's loop is closed
                loop.call_soon_threadsafe(settle)

        with self._work:
            if not self.is_alive:
                raise self._stopped()
            self._commands.append(command)
            self._work.notify()
        while not (await asyncio.wait([answer], timeout=1.0))[0]:
            if not self.is_alive:
                raise self._stopped()
        return answer.result()

    def _send(self, command: Callable[[], RequestOutput | None]) -> None:
        with self._work:
            if self.is_alive:
                self._commands.append(command)
                self._work.notify()

    def _stopped(self) -> EngineStopped:
        cause = f" by {type(self._fault).__name__}: {self._fault}" if self._fault else ""
        return EngineStopped(f"the engine was ended{cause}", remedy="Start it again.")

    # The thread's side

    def _loop(self) -> None:
        try:
            while self._take_commands():
                if self._engine.has_work and self._deliver(self._engine.step()):
                    time.sleep(FIRST_TOKEN_PAUSE_S)
                self._progress_s = time.monotonic()
        except BaseException as fault:
            self._fault = fault
        finally:
            self._close_all()

    def _take_commands(self) -> bool:
        """Wait for work, then do what callers asked since the last step; False: stop."""
        with self._work:
            while not (
                self._arrivals or self._commands or self._is_stopping or self._engine.has_work
            ):
                self._progress_s = time.monotonic()
                self._work.wait(IDLE_WAIT_S)
            if self._is_stopping:
                return False
            arrivals, commands = list(self._arrivals), list(self._commands)
            self._arrivals.clear()
            self._commands.clear()
        for stream in arrivals:
            self._add(stream)
        for command in commands:
            output = command()
            if output is not None:
                self._deliver([output])
        return True

    def _add(self, stream: OutputStream) -> None:
        error: Exception | None = None
        with self._work:
            if stream.is_closed:
                self._open.discard(stream)
                return
            # Registered before the engine takes it: whoever closes it from now on cancels it.
            previous = self._streams.setdefault(stream.request.id, stream)
        try:
            self._engine.add(stream.request)
        except Exception as refusal:
            error = refusal
            with self._work:
                self._open.discard(stream)
                if previous is stream:
                    del self._streams[stream.request.id]
        self._call(stream.loop, lambda: stream.settle(error), [stream])

    def _deliver(self, outputs: list[RequestOutput]) -> bool:
        """Leave outputs in their streams; wake the readers that had nothing, once per loop.

        Returns whether a lone reader gets its first output.
        """
        woken: dict[asyncio.AbstractEventLoop, list[OutputStream]] = {}
        has_first = False
        with self._work:
            for output in outputs:
                stream = self._streams.get(output.request_id)
                if stream is None:
                    continue
                if output.finish_reason is not None:
                    del self._streams[output.request_id]
                    self._open.discard(stream)
                has_first |= not stream.has_begun
                stream.has_begun = True
                if stream.put(output):
                    woken.setdefault(stream.loop, []).append(stream)
        for loop, streams in woken.items():
            self._call(loop, waker(streams), streams)
        return has_first and len(outputs) == 1

    def _call(
        self,
        loop: asyncio.AbstractEventLoop,
        callback: Callable[[], None],
        streams: list[OutputStream],
    ) -> None:
        """Run a callback in a reader's loop; readers whose loop is gone are closed."""
        try:
            loop.call_soon_threadsafe(callback)
        except RuntimeError:
            for stream in streams:
                self._close(stream)

    def _close_all(self) -> None:
        """Wake everybody with nothing to read, which tells them that the engine has ended."""
        with self._work:
            self._is_stopping = True
            arrivals, streams = list(self._arrivals), list(self._streams.values())
            self._arrivals.clear()
            self._streams.clear()
            self._open.clear()
            for stream in streams:
                stream.is_orphan = True
        for stream in arrivals:
            self._call(stream.loop, refuser(stream, self._stopped()), [])
        for stream in streams:
            self._call(stream.loop, stream.event.set, [])
