"""All state that callers share with the engine's thread, behind one lock.

Callers leave new requests and commands; the thread takes them between two steps and leaves outputs
in the streams of their readers.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from twostroke.engine.stream import OutputStream
from twostroke.request import RequestOutput

Command = Callable[[], RequestOutput | None]  # run by the engine's thread; an output is delivered


class Taken(NamedTuple):
    """The requests and commands that came since the last step."""

    arrivals: list[OutputStream]
    commands: list[Command]


class Delivery(NamedTuple):
    """The streams that had nothing to read before, by loop, and whether one just began."""

    woken: dict[asyncio.AbstractEventLoop, list[OutputStream]]
    has_first: bool


class Mailbox:
    """Sole writer of its queues and of the streams' flags. Every method holds the lock."""

    def __init__(self) -> None:
        self._work = threading.Condition()
        self._arrivals: deque[OutputStream] = deque()
        self._commands: deque[Command] = deque()
        self._streams: dict[str, OutputStream] = {}  # requests in the engine
        self._open: set[OutputStream] = set()  # requests handed over and not ended
        self._is_closing = False

    @property
    def is_closing(self) -> bool:
        """Whether the thread is to end."""
        return self._is_closing

    @property
    def num_open(self) -> int:
        """Requests that have been handed over and have not ended."""
        return len(self._open)

    # The callers' side

    def hand_over(self, stream: OutputStream) -> bool:
        """Leave a new request; False: the thread is ending and takes none."""
        with self._work:
            if self._is_closing:
                return False
            self._arrivals.append(stream)
            self._open.add(stream)
            self._work.notify()
            return True

    def send(self, command: Command) -> bool:
        """Leave a command; False: the thread is ending and runs none."""
        with self._work:
            if self._is_closing:
                return False
            self._commands.append(command)
            self._work.notify()
            return True

    def read(self, stream: OutputStream) -> RequestOutput | None:
        """Return the outputs that a stream holds; its event is set again by the next one."""
        with self._work:
            if not stream.is_orphan:
                stream.event.clear()
            return stream.take()

    def leave(self, stream: OutputStream, cancel: Command) -> None:
        """Note that a stream has no reader any more; `cancel` ends its request if it runs."""
        with self._work:
            stream.is_closed = True
            if stream in self._arrivals:
                self._arrivals.remove(stream)
                self._open.discard(stream)
            if self._streams.get(stream.request.id) is stream:
                self._commands.append(cancel)
                self._work.notify()

    def close(self) -> None:
        """Tell the thread to end after its step."""
        with self._work:
            self._is_closing = True
            self._work.notify()

    # The thread's side

    def wait(
        self, has_work: Callable[[], bool], timeout_s: float, on_idle: Callable[[], None]
    ) -> Taken | None:
        """Wait until there is something to do and take it; None: end.

        on_idle is called whenever nothing is to do, at least every timeout_s.
        """
        with self._work:
            while not (self._arrivals or self._commands or self._is_closing or has_work()):
                on_idle()
                self._work.wait(timeout_s)
            if self._is_closing:
                return None
            taken = Taken(list(self._arrivals), list(self._commands))
            self._arrivals.clear()
            self._commands.clear()
            return taken

    def register(self, stream: OutputStream) -> bool:
        """Expect outputs for a request that the engine is about to take; False: its reader left.

        From now on a reader that leaves cancels its request.
        """
        with self._work:
            if stream.is_closed:
                self._open.discard(stream)
                return False
            self._streams.setdefault(stream.request.id, stream)
            return True

    def refuse(self, stream: OutputStream) -> None:
        """Expect nothing for a request that the engine did not take."""
        with self._work:
            self._open.discard(stream)
            if self._streams.get(stream.request.id) is stream:
                del self._streams[stream.request.id]

    def deliver(self, outputs: list[RequestOutput]) -> Delivery:
        """Put outputs into their streams."""
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
        return Delivery(woken, has_first)

    def orphan_all(self) -> tuple[list[OutputStream], list[OutputStream]]:
        """Drop everything: return the requests never taken, and the streams without a writer."""
        with self._work:
            self._is_closing = True
            arrivals, streams = list(self._arrivals), list(self._streams.values())
            self._arrivals.clear()
            self._streams.clear()
            self._open.clear()
            for stream in streams:
                stream.is_orphan = True
            return arrivals, streams
