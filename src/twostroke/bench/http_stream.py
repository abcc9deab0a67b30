"""The part of HTTP that a load tool needs: POST, then the reply's lines, each with its moment.

Plain asyncio, so that the client stays far cheaper than the server that it measures. Knows no JSON.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Coroutine, Mapping
from typing import Any
from urllib.parse import urlsplit

from twostroke.errors import ConfigError, TwoStrokeError

MAX_LINE_BYTES = 1 << 20
MAX_ERROR_BYTES = 4096


class EndpointFailed(TwoStrokeError):
    """The endpoint could not be reached, or answered with an error."""

    code = "endpoint_failed"


class LoadTarget:
    """An address to send requests to, taken apart once.

    Raises:
        ConfigError: not an http or https URL.
    """

    def __init__(self, url: str) -> None:
        parts = urlsplit(url if "//" in url else f"http://{url}")
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigError("--url is no http or https address", value=url)
        self.host = parts.hostname
        self.is_tls = parts.scheme == "https"
        self.port = parts.port or (443 if self.is_tls else 80)
        path = parts.path.rstrip("/")
        self.base = path if path.endswith("/v1") else f"{path}/v1"

    async def lines(
        self, path: str, body: bytes, headers: Mapping[str, str], timeout_s: float
    ) -> AsyncIterator[tuple[bytes, float]]:
        """Yield the lines of the reply, each with the moment it was complete.

        Units: seconds of time.monotonic().

        Raises:
            EndpointFailed: no connection, no reply in time, or a status that is not 200.
        """
        deadline_s = time.monotonic() + timeout_s
        try:
            reader, writer = await asyncio.wait_for(
                asyncio.open_connection(
                    self.host, self.port, ssl=self.is_tls or None, limit=MAX_LINE_BYTES
                ),
                timeout_s,
            )
        except (OSError, asyncio.TimeoutError) as error:
            raise EndpointFailed(
                "no connection", value=f"{self.host}:{self.port} {error}"
            ) from None
        try:
            writer.write(self._request(path, body, headers))
            reply = _Reply(reader, deadline_s)
            await reply.start()
            async for line in reply.lines():
                yield line, time.monotonic()
        except (OSError, asyncio.TimeoutError, asyncio.IncompleteReadError, ValueError) as error:
            raise EndpointFailed("the reply broke off", value=repr(error)[:200]) from None
        finally:
            writer.close()

    def _request(self, path: str, body: bytes, headers: Mapping[str, str]) -> bytes:
        lines = [
            f"POST {self.base}{path} HTTP/1.1",
            f"Host: {self.host}:{self.port}",
            "Content-Type: application/json",
            f"Content-Length: {len(body)}",
            "Connection: close",
            *(f"{name}: {value}" for name, value in headers.items()),
        ]
        return "\r\n".join([*lines, "", ""]).encode() + body


class _Reply:
    def __init__(self, reader: asyncio.StreamReader, deadline_s: float) -> None:
        self._reader = reader
        self._deadline_s = deadline_s
        self._is_chunked = False

    async def start(self) -> None:
        """Read status and headers."""
        status = (await self._line()).split(b" ", 2)
        while header := (await self._line()).strip():
            name, _, value = header.partition(b":")
            if name.lower() == b"transfer-encoding":
                self._is_chunked = b"chunked" in value.lower()
        if len(status) < 2 or status[1] != b"200":
            rest = await self._timed(self._reader.read(MAX_ERROR_BYTES))
            code = status[1].decode("latin-1") if len(status) > 1 else "none"
            told = rest.decode("utf-8", "replace")
            raise EndpointFailed("the endpoint answered with an error", value=f"{code} {told}")

    async def lines(self) -> AsyncIterator[bytes]:
        """Yield the body's lines."""
        held = b""
        while data := await self._part():
            *whole, held = (held + data).split(b"\n")
            if len(held) > MAX_LINE_BYTES:
                raise ValueError("a line of the reply is too long")
            for line in whole:
                yield line.rstrip(b"\r")
        if held:
            yield held

    async def _part(self) -> bytes:
        if not self._is_chunked:
            return await self._timed(self._reader.read(1 << 16))
        size = int((await self._line()).split(b";")[0] or b"0", 16)
        if not 0 <= size <= MAX_LINE_BYTES * 16:
            raise ValueError("a chunk of the reply is too long")
        data = await self._timed(self._reader.readexactly(size))
        await self._line()
        return data

    async def _line(self) -> bytes:
        return (await self._timed(self._reader.readline())).rstrip(b"\r\n")

    async def _timed(self, reading: Coroutine[Any, Any, bytes]) -> bytes:
        return await asyncio.wait_for(reading, max(self._deadline_s - time.monotonic(), 0.001))
