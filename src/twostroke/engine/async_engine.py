"""One engine thread behind asyncio.

Callers send requests and commands to the thread; the thread puts each request's outputs into its
stream. A slow reader holds up nobody. The engine's state is read from its published status.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import AsyncGenerator, Callable, Sequence
from typing import TypeVar

from twostroke.engine.engine import Engine
from twostroke.engine.mailbox import Mailbox
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
        self._mailbox = Mailbox()
        self._fault: BaseException | None = None
        self._progress_s = time.monotonic()
        self._thread = threading.Thread(target=self._loop, name="twostroke-engine", daemon=True)

    def start(self) -> None:
        """Start the engine thread."""
        self._thread.start()

    def shutdown(self, timeout_s: float = 10.0) -> None:
        """Stop after the current step; requests in flight get EngineStopped."""
        self._mailbox.close()
        if self._thread.is_alive():
            self._thread.join(timeout_s)

    @property
    def is_alive(self) -> bool:
        """Whether the thread runs and takes work."""
        return self._thread.is_alive() and not self._mailbox.is_closing

    @property
    def num_requests(self) -> int:
        """Requests that have been handed over and have not ended."""
        return self._mailbox.num_open

    @property
    def status(self) -> EngineStatus:
        """The engine's state after its last step or command."""
        return self._engine.status

    def seconds_without_progress(self) -> float:
        """Return how long work has waited since the last finished step; 0 when none waits.

        Units: seconds.
        """
        return time.monotonic() - self._progress_s if self.num_requests else 0.0

    async def generate(
        self, request: Request, *, on_added: Callable[[], None] | None = None
    ) -> AsyncGenerator[RequestOutput, None]:
        """Yield outputs until one has a finish_reason. Closing the generator cancels the request.

        on_added is called in the caller's loop when the engine has taken the request.

        Raises:
            RequestError, CapacityError: refused before the first output.
            EngineStopped: the engine has ended.
        """
        stream = OutputStream(request)
        if not self.is_alive or not self._mailbox.hand_over(stream):
            raise self._stopped()
        output: RequestOutput | None = None
        try:
            await stream.added
            if on_added is not None:
                on_added()
            while output is None or output.finish_reason is None:
                await stream.event.wait()
                output = self._mailbox.read(stream)
                if output is not None:
                    yield output
                elif stream.is_orphan:
                    raise self._stopped()
        finally:
            self._leave(stream)

    def _leave(self, stream: OutputStream) -> None:
        """Let go of a stream; a request that has not ended is cancelled."""
        self._mailbox.leave(stream, lambda: self._engine.abort(stream.request.id))

    def abort(self, request_id: str) -> None:
        """Cancel a request before the next step; its reader gets the final output."""
        self._mailbox.send(lambda: self._engine.abort(request_id))

    def stop(self, request_id: str, stop_reason: str | int | None, num_tokens_kept: int) -> None:
        """End a request whose text met a stop string; its reader gets the final output.

        Tokens generated since then may precede it in the stream, beyond num_tokens_kept.
        """
        self._mailbox.send(lambda: self._engine.stop(request_id, stop_reason, num_tokens_kept))

    async def outlook(
        self, prompt_token_ids: Sequence[int], params: SamplingParams, salt: str = ""
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

        if not self.is_alive or not self._mailbox.send(command):
            raise self._stopped()
        while not (await asyncio.wait([answer], timeout=1.0))[0]:
            if not self.is_alive:
                raise self._stopped()
        return answer.result()

    def _stopped(self) -> EngineStopped:
        cause = f" by {type(self._fault).__name__}: {self._fault}" if self._fault else ""
        return EngineStopped(f"the engine was ended{cause}", remedy="Start it again.")

    # The thread's side

    def _loop(self) -> None:
        try:
            while self._obey():
                if self._engine.has_work and self._deliver(self._engine.step()):
                    time.sleep(FIRST_TOKEN_PAUSE_S)
                self._note_progress()
        except BaseException as fault:
            self._fault = fault
        finally:
            self._end()

    def _note_progress(self) -> None:
        self._progress_s = time.monotonic()

    def _obey(self) -> bool:
        """Wait for work, then take the requests and run the commands of callers; False: end."""
        taken = self._mailbox.wait(
            lambda: self._engine.has_work, IDLE_WAIT_S, on_idle=self._note_progress
        )
        if taken is None:
            return False
        for stream in taken.arrivals:
            self._add(stream)
        for command in taken.commands:
            output = command()
            if output is not None:
                self._deliver([output])
        return True

    def _add(self, stream: OutputStream) -> None:
        if not self._mailbox.register(stream):
            return
        error: Exception | None = None
        try:
            self._engine.add(stream.request)
        except Exception as refusal:
            error = refusal
            self._mailbox.refuse(stream)
        self._call(stream.loop, lambda: stream.settle(error), [stream])

    def _deliver(self, outputs: list[RequestOutput]) -> bool:
        """Put outputs into their streams; wake readers that had nothing, once per loop.

        Returns whether a lone reader gets its first output.
        """
        woken, has_first = self._mailbox.deliver(outputs)
        for loop, streams in woken.items():
            self._call(loop, waker(streams), streams)
        return has_first and len(outputs) == 1

    def _call(
        self,
        loop: asyncio.AbstractEventLoop,
        callback: Callable[[], None],
        streams: list[OutputStream],
    ) -> None:
        """Run a callback in a reader's loop; the requests of a closed loop are cancelled."""
        try:
            loop.call_soon_threadsafe(callback)
        except RuntimeError:
            for stream in streams:
                self._leave(stream)

    def _end(self) -> None:
        """Refuse requests that were never taken; wake all readers, who find the engine ended."""
        arrivals, orphans = self._mailbox.orphan_all()
        for stream in arrivals:
            self._call(stream.loop, refuser(stream, self._stopped()), [])
        for stream in orphans:
            self._call(stream.loop, stream.event.set, [])
