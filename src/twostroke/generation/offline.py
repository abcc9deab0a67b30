"""Drives an engine in the caller's own thread until given answers have ended."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Sequence
from typing import NamedTuple

from twostroke.engine.engine import Engine
from twostroke.errors import RequestError
from twostroke.generation.answer import Answer, Delta
from twostroke.request import RequestOutput


class _Open(NamedTuple):
    """An answer whose request is in the engine, and the queue that its reader takes from."""

    answer: Answer
    unread: deque[Delta | RequestError]


class OfflineDriver:
    """Runs answers on one engine. Several readers may be open at once; one thread calls them all.

    A step computes every request in the engine, so it also gives deltas to other open readers:
    each reader has a queue, and steps the engine only when the queue is empty.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._open: dict[str, _Open] = {}

    def deltas(self, answers: Sequence[Answer]) -> Generator[Delta, None, None]:
        """Yield the deltas of these answers as they come; closing the iterator cancels the rest.

        Raises:
            RequestError, CapacityError: a request is refused or fails; the others are cancelled.
        """
        unread: deque[Delta | RequestError] = deque()
        running: set[str] = set()
        try:
            for answer in answers:
                self._engine.add(answer.request)
                self._open[answer.request.id] = _Open(answer, unread)
                running.add(answer.request.id)
            while running:
                if not unread:
                    self._step()
                while unread:
                    delta = unread.popleft()
                    if isinstance(delta, RequestError):
                        raise delta
                    if delta.finish_reason is not None:
                        running.remove(answers[delta.index].request.id)
                    yield delta
        finally:
            for request_id in running:
                if self._open.pop(request_id, None) is not None:
                    self._engine.abort(request_id)

    def _step(self) -> None:
        for output in self._engine.step():
            answer, unread = self._open[output.request_id]
            if output.error is not None:
                del self._open[output.request_id]
                unread.append(RequestError(f"request {answer.index} failed: {output.error}"))
                continue
            delta = self._pushed(answer, output)
            if delta.finish_reason is not None:
                del self._open[output.request_id]
            unread.append(delta)

    def _pushed(self, answer: Answer, output: RequestOutput) -> Delta:
        """Return the delta of an output, after telling the engine of a stop string in its text."""
        delta = answer.push(output)
        if delta is None:
            stop_request = answer.take_stop_request()
            assert stop_request is not None
            final = self._engine.stop(output.request_id, *stop_request)
            assert final is not None, "only a running request asks to be stopped"
            delta = answer.push(final)
        assert delta is not None
        return delta
