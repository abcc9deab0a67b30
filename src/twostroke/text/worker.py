"""Chat templates rendered in a process of their own, with a deadline.

A template is a stranger's program: the sandbox bounds its work, and here its process is ended when
it takes too long, so that it holds up no thread of the server. Frames of JSON over pipes,
four bytes of length before each. Knows nothing of engines or HTTP.
"""

from __future__ import annotations

import json
import os
import queue
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any, BinaryIO

from twostroke.errors import RequestError, TemplateError, TwoStrokeError
from twostroke.text.chat import ChatTemplate, MessagePart, Rendered
from twostroke.text.segments import Segment
from twostroke.text.tokenizer import Tokenizer

MAX_FRAME_BYTES = 256 << 20
MAX_WORKER_BYTES = 4 << 30  # address space of a worker
START_TIMEOUT_S = 60.0
_HEADER_BYTES = 4
_ERRORS = {"TemplateError": TemplateError, "RequestError": RequestError}


class TemplateWorkers:
    """A few processes that render one template. `render` blocks and may be called by any thread.

    Units: deadline_s in seconds of wall clock for one rendering.
    """

    def __init__(
        self,
        template: ChatTemplate,
        tokenizer: Tokenizer,
        *,
        deadline_s: float = 2.0,
        num_workers: int = 2,
    ) -> None:
        self._setup = {
            "source": template.source,
            "bos_token": tokenizer.token_text(tokenizer.bos_id),
            "eos_token": tokenizer.token_text(tokenizer.eos_id),
            "control_texts": sorted(tokenizer.control_texts),
            "deadline_s": deadline_s,
        }
        self._deadline_s = deadline_s
        self._num_workers = num_workers
        self._is_closed = False
        self._idle: queue.LifoQueue[_Worker | None] = queue.LifoQueue()
        for _ in range(num_workers):
            self._idle.put(None)

    def start(self) -> None:
        """Start all workers now instead of at their first rendering."""
        for worker in [self._idle.get() for _ in range(self._num_workers)]:
            self._idle.put(worker or _Worker(self._setup))

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        **variables: Any,
    ) -> Rendered:
        """Return the prompt of these messages, as `ChatTemplate.render` does.

        Raises:
            RequestError, TemplateError: as there, and when the deadline passes.
        """
        worker = self._idle.get()
        try:
            if self._is_closed:
                raise TemplateError("the template workers are closed")
            if worker is not None and not worker.is_alive:
                worker.end()
                worker = None
            worker = worker or _Worker(self._setup)
            question = {"messages": list(messages), "tools": tools, "variables": variables}
            reply = worker.ask(_frame(question), self._deadline_s)
        finally:
            self._idle.put(worker if worker is not None and worker.is_alive else None)
        return _rendered(reply)

    def close(self) -> None:
        """End all workers."""
        self._is_closed = True
        for worker in [self._idle.get() for _ in range(self._num_workers)]:
            if worker is not None:
                worker.end()
            self._idle.put(None)


class _Worker:
    """One process. Used by one thread at a time."""

    def __init__(self, setup: Mapping[str, Any]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", "from twostroke.text.worker import main; main()"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C in the terminal is the server's to handle
        )
        self.ask(_frame(setup), START_TIMEOUT_S)

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    def ask(self, frame: bytes, timeout_s: float) -> Any:
        """Send a frame and return the reply; the process is ended if it does not come in time."""
        assert self._process.stdin is not None and self._process.stdout is not None
        deadline_s = time.monotonic() + timeout_s
        try:
            self._process.stdin.write(frame)
            self._process.stdin.flush()
            return _read_reply(self._process.stdout.fileno(), deadline_s)
        except TimeoutError:
            self.end()
            raise TemplateError(
                "the chat template took too long and was stopped",
                limit=f"{timeout_s:g} s",
                param="messages",
            ) from None
        except (OSError, EOFError):
            self.end()
            raise TemplateError("the chat template's process ended", param="messages") from None

    def end(self) -> None:
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            try:
                pipe.close()
            except OSError:
                continue


def _frame(value: object) -> bytes:
    data = json.dumps(value).encode()
    if len(data) > MAX_FRAME_BYTES:
        raise RequestError("the messages are too long", limit=f"{MAX_FRAME_BYTES} bytes")
    return len(data).to_bytes(_HEADER_BYTES, "little") + data


def _read_reply(fd: int, deadline_s: float) -> Any:
    size = int.from_bytes(_read(fd, _HEADER_BYTES, deadline_s), "little")
    if size > MAX_FRAME_BYTES:
        raise EOFError
    return json.loads(_read(fd, size, deadline_s))


def _read(fd: int, size: int, deadline_s: float) -> bytes:
    parts = bytearray()
    while len(parts) < size:
        left_s = deadline_s - time.monotonic()
        if left_s <= 0 or not select.select([fd], [], [], left_s)[0]:
            raise TimeoutError
        data = os.read(fd, min(size - len(parts), 1 << 20))
        if not data:
            raise EOFError
        parts += data
    return bytes(parts)


def _rendered(reply: Any) -> Rendered:
    if "error" in reply:
        error = reply["error"]
        raise _ERRORS[error.pop("kind")](error.pop("what"), **error)
    segments = tuple(Segment(text, is_special) for text, is_special in reply["segments"])
    return Rendered(segments, tuple(MessagePart(*part) for part in reply["parts"]))


# From here on: the worker's side


def main() -> None:
    """Serve renderings on stdin and stdout until the other side closes."""
    source, target = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # prints go to stderr, not between the frames
    _bound_this_process()
    setup = _read_frame(source)
    if setup is None:
        return
    template = ChatTemplate(
        setup["source"],
        bos_token=setup["bos_token"],
        eos_token=setup["eos_token"],
        control_texts=frozenset(setup["control_texts"]),
    )
    # Compiled now, so that no caller waits for it. An error is not lost: each request meets it.
    _render(
        template, {"messages": [{"role": "user", "content": "a"}], "tools": None, "variables": {}}
    )
    _answer(target, {})
    while (question := _read_frame(source)) is not None:
        # If the server dies meanwhile nothing else ends this process: the timer does.
        signal.setitimer(signal.ITIMER_REAL, 2 * setup["deadline_s"] + 1)
        _answer(target, _render(template, question))
        signal.setitimer(signal.ITIMER_REAL, 0)


def _bound_this_process() -> None:
    import resource

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_AS, (MAX_WORKER_BYTES, MAX_WORKER_BYTES))


def _render(template: ChatTemplate, question: Mapping[str, Any]) -> dict[str, Any]:
    try:
        rendered = template.render(
            question["messages"], tools=question["tools"], **question["variables"]
        )
    except TwoStrokeError as error:
        kind = "RequestError" if isinstance(error, RequestError) else "TemplateError"
        facts = {name: _plain(getattr(error, name)) for name in ("value", "limit")}
        texts = {"what": error.what, "remedy": error.remedy, "param": error.param}
        return {"error": {"kind": kind, **texts, **facts}}
    except MemoryError:
        return {
            "error": {"kind": "TemplateError", "what": "the chat template took too much memory"}
        }
    segments = [[s.text, s.parse_special] for s in rendered.segments]
    parts = [[p.index, p.role, p.start, p.end, p.text_hash] for p in rendered.parts]
    return {"segments": segments, "parts": parts}


def _plain(value: object) -> object:
    return value if value is None or isinstance(value, (int, float)) else str(value)


def _read_frame(source: BinaryIO) -> Any:
    header = source.read(_HEADER_BYTES)
    if len(header) < _HEADER_BYTES:
        return None
    return json.loads(source.read(int.from_bytes(header, "little")))


def _answer(target: BinaryIO, value: object) -> None:
    target.write(_frame(value))
    target.flush()
