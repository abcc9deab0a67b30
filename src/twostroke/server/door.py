"""Every request comes through here: its key, its number, its end and its line in the log.

Deny by default: each route but liveness needs a key where keys are set.
"""

from __future__ import annotations

import secrets
import sys
import time
import traceback

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from twostroke.errors import TwoStrokeError
from twostroke.server.auth import Caller, KeyRing
from twostroke.server.error_reply import error_response, internal_error
from twostroke.server.metrics import EngineMeters
from twostroke.server.refusals import TooManyRequests
from twostroke.server.request_log import Facts, RequestLog
from twostroke.server.settings import Limits

OPEN_ROUTE = "/health/live"
_UNCOUNTED = ("/health", "/metrics")


class Door:
    """The outermost ASGI application. `num_inside`: requests that have not ended."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        keys: KeyRing,
        limits: Limits,
        log: RequestLog,
        meters: EngineMeters,
        has_cors: bool = False,
    ) -> None:
        self.num_inside = 0
        self._app = app
        self._keys = keys
        self._limits = limits
        self._log = log
        self._meters = meters
        self._has_cors = has_cors

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let a request in, or refuse it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        start_s = time.monotonic()
        facts = Facts(id=f"req-{secrets.token_hex(8)}", route="unknown")
        path: str = scope["path"]
        is_counted = not path.startswith(_UNCOUNTED)
        self.num_inside += is_counted

        async def noting(message: Message) -> None:
            if message["type"] == "http.response.start":
                facts.status = message["status"]
                message.setdefault("headers", []).append((b"x-request-id", facts.id.encode()))
            await send(message)

        try:
            scope.setdefault("state", {}).update(facts=facts, caller=self._admit(scope))
            await self._app(scope, receive, noting)
        except TwoStrokeError as error:
            facts.error = error.code
            await error_response(error, path)(scope, receive, noting)
        except Exception:
            facts.error = "internal_error"
            traceback.print_exc(file=sys.stderr)
            if facts.status == 0:
                await error_response(internal_error(), path)(scope, receive, noting)
        finally:
            self.num_inside -= is_counted
            facts.seconds = time.monotonic() - start_s
            self._note(scope, facts, is_counted=is_counted)

    def _admit(self, scope: Scope) -> Caller:
        """Return who asks.

        Raises:
            Unauthorized: no valid key. TooManyRequests: as many as allowed are inside.
        """
        path: str = scope["path"]
        if path == OPEN_ROUTE or (self._has_cors and _is_preflight(scope)):
            return Caller()
        caller = self._keys.caller(scope["headers"])
        if self.num_inside > self._limits.max_concurrency and not path.startswith(_UNCOUNTED):
            raise TooManyRequests(
                "too many requests are in flight",
                value=self.num_inside,
                limit=f"max_concurrency {self._limits.max_concurrency}",
                remedy="Come back later.",
            )
        return caller

    def _note(self, scope: Scope, facts: Facts, *, is_counted: bool) -> None:
        route = scope.get("route")
        # A caller's own path would be a label without bound, and text of theirs in our log.
        facts.route = getattr(route, "path", "unknown")
        self._meters.replies[facts.route, str(facts.status or "gone")] += 1
        if is_counted:
            self._log.write(facts)


def _is_preflight(scope: Scope) -> bool:
    """Whether a browser asks if it may ask: it never sends a key with that."""
    names = {name for name, _ in scope["headers"]}
    wanted = {b"origin", b"access-control-request-method"}
    return scope["method"] == "OPTIONS" and wanted <= names
