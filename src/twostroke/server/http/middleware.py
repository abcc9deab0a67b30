"""The middleware around every request: its key, its number, its end and its line in the log.

Deny by default: where keys are set, each route but liveness needs one.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import field
from typing import Any, TextIO

from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from twostroke.dataclass import dataclass
from twostroke.errors import TwoStrokeError
from twostroke.record import PHASES, RequestRecord
from twostroke.server.errors import TooManyRequests, Unauthorized, internal_error

OPEN_ROUTE = "/health/live"
_UNCOUNTED = ("/health", "/metrics")


@dataclass(frozen=True, slots=True)
class Caller:
    """The owner of a key: a name for logs that gives no key away, and the salt of their cache."""

    name: str = "anyone"
    salt: str = ""


class KeyRing:
    """The API keys that open this server, kept as digests; without any, every caller is `anyone`.

    Each key is a caller with a part of the prefix cache of its own, so that timings and cache
    reports tell nobody about another's prompts. cache_scope "shared" gives that up.
    """

    def __init__(self, keys: Iterable[str] = (), *, cache_scope: str = "key") -> None:
        self._callers: list[tuple[bytes, Caller]] = []
        for key in keys:
            digest = hashlib.sha256(key.encode()).digest()
            salt = "" if cache_scope == "shared" else f"key:{digest.hex()}"
            self._callers.append((digest, Caller(f"key-{digest.hex()[:8]}", salt)))

    def caller(self, headers: Iterable[tuple[bytes, bytes]]) -> Caller:
        """Return the caller, by `Authorization: Bearer KEY` or `x-api-key: KEY`.

        Raises:
            Unauthorized: a key is needed and none of ours was given.
        """
        if not self._callers:
            return Caller()
        given = _given_key(headers)
        digest = hashlib.sha256(given or b"").digest()
        found = None
        for own, caller in self._callers:  # all of them, so that the time tells nothing
            if hmac.compare_digest(own, digest):
                found = caller
        if found is None or given is None:
            raise Unauthorized(
                "the API key is missing or unknown" if given is None else "the API key is unknown",
                remedy="Send it as `Authorization: Bearer KEY`.",
            )
        return found


def _given_key(headers: Iterable[tuple[bytes, bytes]]) -> bytes | None:
    for name, value in headers:
        if name == b"x-api-key":
            return value
        if name == b"authorization":
            scheme, _, key = value.partition(b" ")
            if scheme.lower() == b"bearer":
                return key.strip()
    return None


@dataclass(slots=True)
class Facts:
    """The facts of one HTTP request for its log line; routes fill them in."""

    id: str
    route: str = ""
    caller: str = ""
    model: str | None = None
    user: str | None = None
    stream: bool = False
    status: int = 0
    error: str | None = None
    seconds: float = 0.0
    records: list[RequestRecord] = field(default_factory=list)


class RequestLog:
    """Writes one line a request; format `text` for people, `json` for programs, `off` for none.

    A line tells status, phases and tokens, never the text of a prompt or an answer.
    """

    def __init__(self, form: str, target: TextIO | None = None) -> None:
        self._form = form
        self._target = target

    def write(self, facts: Facts) -> None:
        """Write one line, on stderr unless a target was given."""
        if self._form == "off":
            return
        line = _json_line(facts) if self._form == "json" else _text_line(facts)
        print(line, file=self._target or sys.stderr, flush=True)


class Middleware:
    """The outermost ASGI application.

    num_in_flight: requests that have not ended. replies: how many, by (route, status).
    error_response: makes the reply of an error in the shape of the API that the path belongs to.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        keys: KeyRing,
        max_concurrency: int,
        log: RequestLog,
        replies: Counter[tuple[str, str]],
        error_response: Callable[[TwoStrokeError, str], Response],
        has_cors: bool = False,
    ) -> None:
        self.num_in_flight = 0
        self._app = app
        self._keys = keys
        self._max_concurrency = max_concurrency
        self._log = log
        self._replies = replies
        self._error_response = error_response
        self._has_cors = has_cors

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Admit a request or refuse it, and log its end."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        start_s = time.monotonic()
        facts = Facts(id=f"req-{secrets.token_hex(8)}", route="unknown")
        path: str = scope["path"]
        is_counted = not path.startswith(_UNCOUNTED)
        if is_counted:
            self.num_in_flight += 1

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                facts.status = message["status"]
                message.setdefault("headers", []).append((b"x-request-id", facts.id.encode()))
            await send(message)

        try:
            scope.setdefault("state", {}).update(facts=facts, caller=self._admit(scope))
            await self._app(scope, receive, send_with_id)
        except TwoStrokeError as error:
            facts.error = error.code
            await self._error_response(error, path)(scope, receive, send_with_id)
        except Exception:
            facts.error = "internal_error"
            traceback.print_exc(file=sys.stderr)
            if facts.status == 0:
                await self._error_response(internal_error(), path)(scope, receive, send_with_id)
        finally:
            if is_counted:
                self.num_in_flight -= 1
            facts.seconds = time.monotonic() - start_s
            self._note(scope, facts, is_counted=is_counted)

    def _admit(self, scope: Scope) -> Caller:
        """Return the caller.

        Raises:
            Unauthorized: no valid key. TooManyRequests: as many as allowed are in flight.
        """
        path: str = scope["path"]
        if path == OPEN_ROUTE or (self._has_cors and _is_preflight(scope)):
            return Caller()
        caller = self._keys.caller(scope["headers"])
        if self.num_in_flight > self._max_concurrency and not path.startswith(_UNCOUNTED):
            raise TooManyRequests(
                "too many requests are in flight",
                value=self.num_in_flight,
                limit=f"max_concurrency {self._max_concurrency}",
                remedy="Come back later.",
            )
        return caller

    def _note(self, scope: Scope, facts: Facts, *, is_counted: bool) -> None:
        """Count the reply and write the log line."""
        route = scope.get("route")
        # A caller's own path would be a label without bound, and text of theirs in our log.
        facts.route = getattr(route, "path", "unknown")
        self._replies[facts.route, str(facts.status or "gone")] += 1
        if is_counted:
            self._log.write(facts)


def _is_preflight(scope: Scope) -> bool:
    """Whether a browser asks if it may ask: it never sends a key with that."""
    names = {name for name, _ in scope["headers"]}
    wanted = {b"origin", b"access-control-request-method"}
    return scope["method"] == "OPTIONS" and wanted <= names


def _json_line(facts: Facts) -> str:
    document: dict[str, Any] = {
        name: getattr(facts, name) for name in Facts.__slots__ if name != "records"
    }
    document["records"] = [r.to_dict() for r in facts.records]
    return json.dumps(document, separators=(",", ":"))


def _text_line(facts: Facts) -> str:
    parts = [facts.id, facts.route, str(facts.status), f"{facts.seconds * 1e3:.0f} ms"]
    if facts.caller:
        parts.append(facts.caller)
    if facts.user is not None:
        parts.append(f"user={json.dumps(facts.user)}")
    if facts.error is not None:
        parts.append(f"error={facts.error}")
    parts.extend(_phases(record) for record in facts.records)
    return " ".join(parts)


def _phases(record: RequestRecord) -> str:
    known = ((name, getattr(record.phases, f"{name}_s")) for name in PHASES)
    times = " ".join(f"{name}={s * 1e3:.1f}" for name, s in known if s is not None and s >= 5e-5)
    prompt, output = record.prompt, record.output
    reason = f" miss={record.cache.reason}" if record.cache.reason else ""
    return (
        f"[prompt={prompt.cached}+{prompt.new} output={output.total} ms: {times}"
        f" finish={record.finish}{reason}]"
    )
