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
from contextlib import contextmanager, suppress
from dataclasses import field
from typing import Any
from urllib.parse import urlsplit

from twostroke.dataclass import dataclass
from twostroke.errors import ConfigError
from twostroke_doctor.parsers.numbers import json_count
from twostroke_doctor.parsers.openai_usage import chunk_kind

MAX_REPLY_BYTES = 4 << 20
MAX_LINE_BYTES = 1 << 20
MAX_METRICS_BYTES = 2 << 20
MAX_ERROR_BYTES = 400
_USER_AGENT = "twostroke-doctor"


class ProbeFailed(Exception):
    """One request did not give a timed reply; the message says why, in numbers where there are."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where to ask. prefix: what stands before /v1 or /api."""

    scheme: str
    host: str
    port: int
    prefix: str
    key: str | None = field(default=None, repr=False)

    @property
    def is_local(self) -> bool:
        """Whether the server runs on this machine."""
        return self.host in ("localhost", "127.0.0.1", "::1")

    @property
    def text(self) -> str:
        """Return the address without the key."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}{self.prefix}"


def parse_endpoint(url: str, key: str | None = None) -> Endpoint:
    """Read http(s)://host[:port][/prefix][/v1].

    Raises:
        ConfigError: not such an address.
    """
    remedy = "Write it as http://127.0.0.1:8080 or https://host/v1."
    try:
        parts = urlsplit(url if "://" in url else f"http://{url}")
        port = parts.port
    except ValueError as error:
        raise ConfigError(f"--url is no address: {error}", remedy=remedy) from error
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.username:
        raise ConfigError("--url is no address that can be asked", value=url, remedy=remedy)
    if any(ord(c) <= 32 or ord(c) >= 127 for c in url):
        raise ConfigError("--url holds characters that no address has", remedy=remedy)
    prefix = parts.path.rstrip("/")
    for end in ("/chat/completions", "/completions", "/api/generate", "/api/chat", "/v1", "/api"):
        prefix = prefix.removesuffix(end)
    return Endpoint(
        parts.scheme,
        parts.hostname,
        port or (443 if parts.scheme == "https" else 80),
        prefix,
        key,
    )


@dataclass(slots=True, kw_only=True)
class Reply:
    """Moments of one reply, in seconds after sending began, and what the server said of itself."""

    started_s: float
    first_byte_s: float | None = None
    first_empty_s: float | None = None
    first_text_s: float | None = None
    first_visible_s: float | None = None
    last_text_s: float | None = None
    end_s: float = 0.0
    finish_s: float | None = None  # the first token may end the reply: then there is no text
    num_text_chunks: int = 0
    gaps: list[float] = field(default_factory=list)
    final: dict[str, Any] = field(default_factory=dict)


class Client:
    """Sends requests one by one, each within what is left of the deadline."""

    def __init__(self, endpoint: Endpoint, deadline_s: float) -> None:
        self._endpoint = endpoint
        self._deadline_s = deadline_s

    def get(self, path: str, limit: int) -> bytes | None:
        """Return a small body, None where the server does not offer it.

        Raises:
            ProbeFailed: the server cannot be reached.
        """
        connection = self._connect()
        try:
            with self._cut_off(connection):
                connection.request("GET", self._endpoint.prefix + path, headers=self._headers())
                response = connection.getresponse()
                body = response.read(limit + 1)
            return body if response.status == 200 and len(body) <= limit else None
        except (OSError, http.client.HTTPException) as error:
            raise ProbeFailed(f"no answer: {error}") from error
        finally:
            connection.close()

    def stream(self, path: str, body: dict[str, Any], clock: Callable[[], float]) -> Reply:
        """Send one request and time its stream.

        Raises:
            ProbeFailed: refused, broken, too long or too late.
        """
        connection = self._connect()
        try:
            with self._cut_off(connection):
                return self._stream(connection, path, body, clock)
        except (OSError, http.client.HTTPException, ValueError) as error:
            self._left_s()  # says so when the deadline is what broke it
            raise ProbeFailed(f"the connection broke: {error}") from error
        finally:
            connection.close()

    def _stream(
        self,
        connection: http.client.HTTPConnection,
        path: str,
        body: dict[str, Any],
        clock: Callable[[], float],
    ) -> Reply:
        started = clock()
        payload = json.dumps(body).encode()
        headers = {**self._headers(), "Content-Type": "application/json"}
        connection.request("POST", self._endpoint.prefix + path, payload, headers)
        response = connection.getresponse()
        if response.status != 200:
            said = response.read(MAX_ERROR_BYTES).decode("utf-8", "replace")
            raise ProbeFailed(f"status {response.status}: {' '.join(said.split())}")
        reply = Reply(started_s=started, first_byte_s=clock() - started)
        for line in self._lines(response):
            now = clock() - started
            data = line[5:].strip() if line.startswith(b"data:") else line.strip()
            if data == b"[DONE]":
                break
            if data.startswith(b"{"):
                _take(reply, json.loads(data), now)
        reply.end_s = clock() - started
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
    def _cut_off(self, connection: http.client.HTTPConnection) -> Iterator[None]:
        """Shut the socket at the deadline: a server that drips bytes resets every read timeout."""
        sock = connection.sock
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

    def _connect(self) -> http.client.HTTPConnection:
        end = self._endpoint
        cls = http.client.HTTPSConnection if end.scheme == "https" else http.client.HTTPConnection
        connection = cls(end.host, end.port, timeout=self._left_s())
        try:
            connection.connect()
        except OSError as error:
            raise ProbeFailed(f"{end.text} cannot be reached: {error}") from error
        return connection

    def _headers(self) -> dict[str, str]:
        headers = {"User-Agent": _USER_AGENT, "Accept": "*/*"}
        if self._endpoint.key:
            headers["Authorization"] = f"Bearer {self._endpoint.key}"
        return headers


def _shut(sock: socket.socket) -> None:
    with suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)


def _take(reply: Reply, chunk: Any, now: float) -> None:
    """Note the moment of a chunk and what it says of the request; its text is not kept."""
    if not isinstance(chunk, dict):
        return
    for part in ("usage", "timings", "error", "model"):
        if chunk.get(part):
            reply.final[part] = chunk[part]
    if "done" in chunk:  # Ollama
        kind = "content" if chunk.get("response") else "empty"
        kind = "reasoning" if chunk.get("thinking") else kind
        if chunk["done"]:
            reply.final["ollama"] = chunk
    else:
        kind = chunk_kind(chunk)
    if reply.finish_s is None and _is_finish(chunk):
        reply.finish_s = now
    if kind == "empty" and reply.first_text_s is None and reply.first_empty_s is None:
        reply.first_empty_s = now
    if kind not in ("content", "reasoning", "tool"):
        return
    reply.num_text_chunks += 1
    if reply.first_text_s is None:
        reply.first_text_s = now
    elif reply.last_text_s is not None:
        reply.gaps.append(now - reply.last_text_s)
    if kind != "reasoning" and reply.first_visible_s is None:
        reply.first_visible_s = now
    reply.last_text_s = now


def _is_finish(chunk: dict[str, Any]) -> bool:
    """Whether a chunk says why the reply ended."""
    choices = chunk.get("choices")
    first = choices[0] if isinstance(choices, list) and choices else None
    return bool(chunk.get("done")) or (isinstance(first, dict) and bool(first.get("finish_reason")))


def first_model(body: bytes | None) -> str | None:
    """Return the first model that /v1/models or /api/tags lists."""
    try:
        listed = json.loads(body or b"")
    except ValueError:
        return None
    entries = listed.get("data") or listed.get("models") if isinstance(listed, dict) else None
    if not isinstance(entries, list) or not entries or not isinstance(entries[0], dict):
        return None
    name = entries[0].get("id") or entries[0].get("name")
    return name[:300] if isinstance(name, str) else None


def usage_count(reply: Reply, name: str) -> int | None:
    """Return a count of the reply's usage."""
    usage = reply.final.get("usage")
    return json_count(usage.get(name)) if isinstance(usage, dict) else None
