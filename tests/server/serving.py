"""A real server on a tiny model, in a thread of the test's process or in a process of its own."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import uvicorn

from twostroke.build import build_engine
from twostroke.config import EngineConfig
from twostroke.events import Observer
from twostroke.model.loaded import load_model
from twostroke.server.app import create_app
from twostroke.server.http.middleware import RequestLog
from twostroke.server.run import KEEP_ALIVE_S
from twostroke.server.service import Loaded, Service, State
from twostroke.server.settings import ServerLimits, ServerSettings
from twostroke.step import Sampled
from twostroke.text.chat import ChatTemplate

DEADLINE_S = 60.0


class Throttle:
    """Between the engine and its runner: makes steps slow, or fail, while a test runs.

    script: tokens that the next samples become, whatever the model would say; each must be one
    that the mask of its answer allows. answers: the same by request id, for requests side by side.
    Units: step_s in seconds.
    """

    def __init__(self) -> None:
        self.step_s = 0.0
        self.fault: BaseException | None = None
        self.num_steps = 0
        self.script: deque[int] = deque()
        self.answers: dict[str, deque[int]] = {}

    def over(self, run: Callable[..., Any]) -> Callable[..., Any]:
        def throttled(plan: Any) -> Any:
            self.num_steps += 1
            if self.fault is not None:
                raise self.fault
            if self.step_s:
                time.sleep(self.step_s)
            return self._scripted(plan, run(plan))

        return throttled

    def _scripted(self, plan: Any, result: Any) -> Any:
        sampling = [s for s in plan.slices if s.sample is not None]
        sampled = dict(result.sampled)
        for one in sampling:
            script = self.answers.get(one.request_id) or self.script
            if script:
                token_id, mask = script.popleft(), one.sample.mask
                assert mask is None or mask[token_id // 8] >> token_id % 8 & 1, token_id
                sampled[one.request_id] = Sampled(token_id)
        return replace(result, sampled=sampled)


class Lines:
    """Keeps what a log writes."""

    def __init__(self) -> None:
        self.text = ""

    def write(self, text: str) -> int:
        self.text += text
        return len(text)

    def flush(self) -> None: ...


class Served:
    """A server in a thread. Use `with`."""

    def __init__(
        self,
        model: Path,
        *,
        keys: tuple[str, ...] = (),
        limits: dict[str, Any] | None = None,
        log_format: str = "text",
        cors_origins: tuple[str, ...] = (),
        is_loaded: bool = True,
        template: str | None = None,
        **config: Any,
    ) -> None:
        self.throttle = Throttle()
        self.log = Lines()
        self._model, self._config, self._template = model, config, template
        self._is_loaded = is_loaded
        settings = ServerSettings(
            names=("tiny", "alias"),
            limits=ServerLimits(**(limits or {})),
            log_format=log_format,
            cors_origins=cors_origins,
        )
        self.service = Service(settings, self._load)
        log = RequestLog(log_format, self.log)  # type: ignore[arg-type]
        self.app = create_app(self.service, keys=keys, log=log)
        self._socket = socket.socket(proto=socket.IPPROTO_TCP)  # as serve does
        self._socket.bind(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        self._client = quick_client(self.url)
        self._server = uvicorn.Server(
            uvicorn.Config(
                self.app,
                log_level="warning",
                access_log=False,
                http="h11",
                ws="none",
                timeout_graceful_shutdown=2,
                timeout_keep_alive=KEEP_ALIVE_S,
            )
        )
        self._thread = threading.Thread(target=self._server.run, args=([self._socket],))

    def _load(self, observer: Observer) -> Loaded:
        model = load_model(str(self._model))
        if self._template is not None:
            vars(model)["template"] = ChatTemplate(
                self._template, control_texts=model.tokenizer.control_texts
            )
        config = EngineConfig(**{"kv_memory_bytes": 8 << 20, "threads": 1, **self._config})
        built = build_engine(model, config, observers=(observer,))
        runner = built.engine._runner
        runner.run = self.throttle.over(runner.run)  # type: ignore[method-assign]
        return Loaded(model, built.engine, built.config, built.summary)

    def __enter__(self) -> Served:
        self._thread.start()
        if self._is_loaded:
            self.service.load()
        until(lambda: self._server.started)
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()
        self._server.should_exit = True
        self._thread.join(30)
        self._socket.close()
        if self.service._loaded is not None:
            self.service._loaded.model.file.close()
        assert not self._thread.is_alive(), "the server does not end"

    def post(self, path: str, body: object, **kwargs: Any) -> httpx.Response:
        data = body if isinstance(body, (bytes, str)) else json.dumps(body)
        return self._client.post(path, content=data, **kwargs)

    def request(self, method: str, path: str, **kwargs: Any) -> httpx.Response:
        return self._client.request(method, path, **kwargs)

    def get(self, path: str, **kwargs: Any) -> httpx.Response:
        return self._client.get(path, **kwargs)

    def chat(self, text: str = "hello", **fields: Any) -> httpx.Response:
        fields = {"max_tokens": 4, "temperature": 0, **fields}
        body = {"messages": [{"role": "user", "content": text}], **fields}
        return self.post("/v1/chat/completions", body)

    def will_say(self, text: str) -> None:
        """Have the next answer be this text and end."""
        end = min(self.service.loaded.model.end_token_ids)
        self.throttle.script.extend([*self.service.tokenizer.encode(text), end])

    @contextmanager
    def stream(self, path: str, body: object, **kwargs: Any) -> Iterator[httpx.Response]:
        with self._client.stream("POST", path, content=json.dumps(body), **kwargs) as reply:
            yield reply

    @property
    def num_in_engine(self) -> int:
        status = self.service.engine.status
        return status.num_running + status.num_waiting

    def check_idle(self) -> None:
        """Nothing runs, nothing is promised, every used block is a cached one."""
        until(lambda: self.num_in_engine == 0 and self.service.engine.num_requests == 0)
        until(lambda: self.app.num_in_flight == 0 and self.service.admission.num_open == 0)
        cache = self.service.loaded.engine._scheduler._cache
        cache.check_integrity()
        assert cache.num_available == cache.num_blocks


def quick_client(url: str) -> httpx.Client:
    """Return a client to keep: making one costs 40 ms, nearly all of it certificates."""
    limits = httpx.Limits(max_connections=None)
    return httpx.Client(base_url=url, timeout=DEADLINE_S, limits=limits, verify=False)


def until(condition: Callable[[], bool], timeout_s: float = DEADLINE_S) -> None:
    deadline_s = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline_s, "waited too long"
        time.sleep(0.005)


def events(reply: httpx.Response) -> Iterator[Any]:
    """Yield the data of server-sent events, decoded; the closing [DONE] as a string."""
    for line in reply.iter_lines():
        if line.startswith("data: "):
            data = line.removeprefix("data: ")
            yield data if data == "[DONE]" else json.loads(data)


class Process:
    """`twostroke serve` in a process of its own. Use `with`."""

    def __init__(self, model: Path, *arguments: str, **environ: str) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.url = f"http://127.0.0.1:{self.port}"
        code = "from twostroke.cli.main import main; main()"
        command = [sys.executable, "-c", code, "serve", str(model), "--served-name", "tiny"]
        command += ["--port", str(self.port), "--threads", "1", "--kv-memory", "8MiB", *arguments]
        self.process = subprocess.Popen(
            command, stderr=subprocess.PIPE, text=True, env={**os.environ, **environ}
        )
        self.client = quick_client(self.url)
        self.stderr: list[str] = []
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        self.stderr.extend(self.process.stderr)

    def wait_ready(self) -> None:
        def is_ready() -> bool:
            assert self.process.poll() is None, "".join(self.stderr)
            try:
                return self.client.get("/health/ready", timeout=10).status_code == 200
            except httpx.TransportError:
                return False

        until(is_ready)

    def __enter__(self) -> Process:
        self.wait_ready()
        return self

    def end(self, sign: int = signal.SIGKILL) -> int:
        """Send a signal and return the exit code."""
        if self.process.poll() is None:
            self.process.send_signal(sign)
        return self.process.wait(60)

    def __exit__(self, *_: object) -> None:
        self.end()
        self.client.close()
        self._reader.join(10)
        assert self.process.stderr is not None
        self.process.stderr.close()


__all__ = ["Process", "Served", "State", "events", "until"]
