"""Run the server: answer liveness at once, load in a thread, drain on SIGTERM, then end.

The first SIGTERM or SIGINT drains: new work is refused, answers in flight run to their end. The
second signal, or the end of `drain_s`, ends those answers with an error.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
from collections.abc import Sequence
from types import FrameType

import uvicorn

from twostroke.errors import ConfigError, EngineStopped
from twostroke.server.app import create_app
from twostroke.server.http.middleware import Middleware
from twostroke.server.service import Service, State
from twostroke.server.settings import ServerSettings

# The engine's thread and the event loop share the interpreter. At its default of 5 ms either can
# hold the other up by that much at every token.
SWITCH_INTERVAL_S = 0.0005
# Longer than clients keep idle connections (5 s is usual): the server must not close first,
# or a request that crosses the close on its way is lost.
KEEP_ALIVE_S = 75
_POLL_S = 0.05
_FLUSH_S = 2.0  # for answers that were ended to reach their readers


class _Server(uvicorn.Server):
    """uvicorn's server with a drain before its end."""

    def __init__(self, config: uvicorn.Config, service: Service, app: Middleware) -> None:
        super().__init__(config)
        self._service = service
        self._app = app
        self._num_signals = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._drain: asyncio.Task[None] | None = None
        self.fault: BaseException | None = None

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Begin to drain; at the second signal end at once."""
        self._num_signals += 1
        if self._loop is None or self._num_signals > 1:
            self.force_exit = self._num_signals > 1
            self.should_exit = True
        else:
            self._loop.call_soon_threadsafe(self.begin_drain)

    def begin_drain(self) -> None:
        """Refuse new work, wait for the requests in flight, then end. Called in the loop."""
        if self._drain is None:
            print("twostroke: draining", file=sys.stderr, flush=True)
            self._service.begin_drain()
            self._drain = asyncio.ensure_future(self._drained())

    async def _drained(self) -> None:
        await self._until_empty(self._service.limits.drain_s)
        if self._app.num_in_flight:
            print(
                f"twostroke: {self._app.num_in_flight} requests did not end in time; ending them",
                file=sys.stderr,
            )
            await asyncio.get_running_loop().run_in_executor(None, self._service.close)
            await self._until_empty(_FLUSH_S)
        self.should_exit = True

    async def _until_empty(self, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + seconds
        while self._app.num_in_flight and loop.time() < deadline_s:
            await asyncio.sleep(_POLL_S)

    def on_start(self) -> None:
        """Load the model in a thread of its own. Called in the loop."""
        self._loop = asyncio.get_running_loop()
        threading.Thread(target=self._load, name="twostroke-load", daemon=True).start()

    def _load(self) -> None:
        try:
            self._service.load()
        except BaseException as fault:
            self.fault = fault
            self.should_exit = True
            return
        print(
            f"twostroke: serving {', '.join(self._service.settings.names)}: "
            f"{self._service.loaded.summary}",
            file=sys.stderr,
            flush=True,
        )


def serve(service: Service, keys: Sequence[str] = ()) -> None:
    """Serve until a signal ends it. Blocks.

    Raises:
        ConfigError: the address cannot be bound. TwoStrokeError: the model cannot be loaded.
        EngineStopped: the engine died.
    """
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    holder: list[_Server] = []
    app = create_app(service, keys=keys, on_start=lambda: holder[0].on_start())
    config = _config(app, service.settings)
    server = _Server(config, service, app)
    holder.append(server)
    sock = _bound(config)
    host, port = sock.getsockname()[:2]
    print(f"twostroke: listening on http://{host}:{port}", file=sys.stderr, flush=True)
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    try:
        server.run(sockets=[sock])
    finally:
        sock.close()
        service.close()
    if server.fault is not None:
        raise server.fault
    if service.state is State.ENDED and service.fault is not None:
        raise EngineStopped("the engine died", value=str(service.fault))


def _config(app: Middleware, settings: ServerSettings) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        host=settings.host,
        port=settings.port,
        http="h11",
        ws="none",
        log_level="warning",
        access_log=False,
        server_header=False,
        h11_max_incomplete_event_size=settings.limits.max_header_bytes,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=int(_FLUSH_S) + 1,
        lifespan="on",
    )


def _bound(config: uvicorn.Config):  # type: ignore[no-untyped-def]
    import socket

    family = socket.AF_INET6 if ":" in config.host else socket.AF_INET
    # asyncio sends small pieces at once (TCP_NODELAY) only where the protocol is named; else each
    # piece may wait 40 ms for the reader's acknowledgement of the one before.
    sock = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind((config.host, config.port))
    except OSError as error:
        sock.close()
        raise ConfigError(
            "the address cannot be bound",
            value=f"{config.host}:{config.port}: {os.strerror(error.errno or 0)}",
            remedy="Choose another --port, or end the program that listens there.",
        ) from error
    sock.set_inheritable(False)
    return sock
