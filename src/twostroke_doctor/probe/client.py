"""One streamed request to an endpoint, timed from outside, bounded in time and bytes.

Speaks OpenAI's chat completions (SSE) and Ollama's generate (NDJSON) over http.client: no redirect
is followed, no proxy used, and a reply that is too long or too slow is cut off.
"""

from __future__ import annotations

import http.client
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from typing import Any

from twostroke_doctor.probe.endpoint import Endpoint
from twostroke_doctor.probe.reply import TimedReply

MAX_REPLY_BYTES = 4 << 20
MAX_LINE_BYTES = 1 << 20
MAX_BODY_BYTES = 2 << 20  # of a look
MAX_ERROR_BYTES = 400
_USER_AGENT = "twostroke-doctor"
_CONNECTIONS = {"http": http.client.HTTPConnection, "https": http.client.HTTPSConnection}


class ProbeFailed(Exception):
    """One request did not give a timed reply; the message says why, in numbers where there are."""


class Client:
    """Sends requests, each on its own connection and within the time left to the deadline."""

    def __init__(self, endpoint: Endpoint, deadline_s: float) -> None:
        self._endpoint = endpoint
        self._deadline_s = deadline_s

    def get(self, path: str) -> bytes | None:
        """Return a small body, None where the server does not offer it.

        Raises:
            ProbeFailed: the server cannot be reached.
        """
        with self._connected() as connection:
            connection.request("GET", self._endpoint.prefix + path, headers=self._headers())
            response = connection.getresponse()
            body = response.read(MAX_BODY_BYTES + 1)
            return body if response.status == 200 and len(body) <= MAX_BODY_BYTES else None

    def stream(self, path: str, body: dict[str, Any], clock: Callable[[], float]) -> TimedReply:
        """Send one request and time its stream.

        Raises:
            ProbeFailed: refused, broken, too long or too late.
        """
        headers = {**self._headers(), "Content-Type": "application/json"}
        with self._connected() as connection:
            reply = TimedReply(started_s=clock())
            payload = json.dumps(body).encode()
            connection.request("POST", self._endpoint.prefix + path, payload, headers)
            response = connection.getresponse()
            if response.status != 200:
                said = response.read(MAX_ERROR_BYTES).decode("utf-8", "replace")
                raise ProbeFailed(f"status {response.status}: {' '.join(said.split())}")
            for line in self._lines(response):
                now = clock() - reply.started_s
                data = line.removeprefix(b"data:").strip()
                if data == b"[DONE]":
                    break
                if data.startswith(b"{"):
                    reply.take(json.loads(data), now)
            reply.end_s = clock() - reply.started_s
        if "error" in reply.final:
            raise ProbeFailed("the stream ended with an error")
        return reply

    def _lines(self, response: http.client.HTTPResponse) -> Iterator[bytes]:
        size = 0
        while line := response.readline(MAX_LINE_BYTES):
            size += len(line)
            if size > MAX_REPLY_BYTES:
                raise ProbeFailed(f"a reply of more than {MAX_REPLY_BYTES} bytes was cut off")
            self._left_s()
            yield line
        self._left_s()

    @contextmanager
    def _connected(self) -> Iterator[http.client.HTTPConnection]:
        """Give a connection that is closed in the end; its errors become ProbeFailed."""
        end = self._endpoint
        connection = _CONNECTIONS[end.scheme](end.host, end.port, timeout=self._left_s())
        try:
            connection.connect()
        except OSError as error:
            raise ProbeFailed(f"{end.text} cannot be reached: {error}") from error
        with closing(connection), self._cut_off(connection.sock):
            try:
                yield connection
            except (OSError, http.client.HTTPException, ValueError) as error:
                self._left_s()  # raises "no more time" where the deadline broke the connection
                raise ProbeFailed(f"the connection broke: {error}") from error

    @contextmanager
    def _cut_off(self, sock: socket.socket) -> Iterator[None]:
        """Shut the socket at the deadline: a server that drips bytes resets every read timeout."""
        timer = threading.Timer(self._left_s(), _shut, (sock,))
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()

    def _left_s(self) -> float:
        left = self._deadline_s - time.monotonic()
        if left <= 0:
            raise ProbeFailed("no more time")
        return left

    def _headers(self) -> dict[str, str]:
        headers = {"User-Agent": _USER_AGENT, "Accept": "*/*"}
        if self._endpoint.key:
            headers["Authorization"] = f"Bearer {self._endpoint.key}"
        return headers


def _shut(sock: socket.socket) -> None:
    with suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)
