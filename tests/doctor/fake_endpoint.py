"""A real HTTP server whose phases take as long as it is told: load, queue, prefill, decode, tail.

It keeps a prefix cache of words, so what it saves is what a prompt shares with an earlier one.
"""
# ruff: noqa: E501 (rows of a reply stand together)

from __future__ import annotations

import json
import threading
import time
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass
class Behaviour:
    """Seconds; a prompt word and an output token each count as one token."""

    load_s: float = 0.0
    slow_first_decode: float = 1.0
    floor_s: float = 0.02
    prefill_s_per_word: float = 0.0002
    decode_s_per_token: float = 0.002
    tail_s: float = 0.0
    caches: bool = True
    serial: bool = False
    ollama: bool = False
    early_role: bool = True
    tokens_a_chunk: int = 1
    usage: bool = True
    cached_in_usage: bool = False
    refuses_stream_options: bool = False
    endless: bool = False
    status: int = 200
    metrics: str | None = None
    seen: list[list[str]] = field(default_factory=list)
    bodies: list[dict] = field(default_factory=list)
    num_gets: int = 0
    headers: list[dict] = field(default_factory=list)


def shared(a, b):
    n = 0
    for x, y in zip(a, b, strict=False):
        if x != y:
            break
        n += 1
    return n


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *args):
        pass

    @property
    def how(self) -> Behaviour:
        return self.server.how

    def do_GET(self):
        self.how.num_gets += 1
        body = {
            "/v1/models": None if self.how.ollama else {"data": [{"id": "fake"}]},
            "/api/tags": {"models": [{"name": "fake:1b"}]} if self.how.ollama else None,
        }.get(self.path)
        text = json.dumps(body) if body else self.how.metrics if self.path == "/metrics" else None
        payload = (text or "").encode()
        self.send_response(200 if text else 404)
        self.send_header("Content-Length", str(len(payload)))
        self.end_headers()
        self.wfile.write(payload)

    def do_POST(self):
        how = self.how
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with self.server.lock:
            how.bodies.append(body)
            how.headers.append(dict(self.headers))
            first, self.server.loaded = not self.server.loaded, True
        if how.refuses_stream_options and "stream_options" in body:
            return self.refuse(400, '{"error": "stream_options is not known"}')
        if how.status != 200:
            return self.refuse(how.status, '{"error": "no such model"}')
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        self.close_connection = True
        if how.early_role and not how.ollama:
            self.event({"choices": [{"delta": {"role": "assistant", "content": ""}}]})
        if how.serial:
            with self.server.busy:
                return self.generate(body, first)
        return self.generate(body, first)

    def refuse(self, status, text):
        payload = text.encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(payload)))
        self.end_headers()
        self.wfile.write(payload)

    def generate(self, body, first):
        how = self.how
        prompt = body["prompt"] if how.ollama else body["messages"][0]["content"]
        words = prompt.split()
        cached = max((shared(words, old) for old in how.seen), default=0) if how.caches else 0
        how.seen.append(words)
        if first:
            time.sleep(how.load_s)
        prefill_s = (len(words) - cached) * how.prefill_s_per_word
        time.sleep(how.floor_s + prefill_s)
        count = body["options"]["num_predict"] if how.ollama else body["max_tokens"]
        started = time.monotonic()
        self.tokens(count, how.slow_first_decode if first else 1.0)
        decode_s = time.monotonic() - started
        time.sleep(how.tail_s)
        if how.ollama:
            return self.line(
                {
                    "done": True, "response": "", "load_duration": int(how.load_s * 1e9) if first else 0,
                    "prompt_eval_count": len(words), "prompt_eval_duration": int(prefill_s * 1e9),
                    "eval_count": count, "eval_duration": int(decode_s * 1e9), "total_duration": 1,
                }
            )  # fmt: skip
        if how.usage:
            usage = {"prompt_tokens": len(words), "completion_tokens": count}
            if how.cached_in_usage:
                usage["prompt_tokens_details"] = {"cached_tokens": cached}
            self.event({"choices": [], "usage": usage})
        self.wfile.write(b"data: [DONE]\n\n")
        return None

    def tokens(self, count, slower):
        how, sent = self.how, 0
        while sent < count or how.endless:
            if sent:
                time.sleep(how.decode_s_per_token * how.tokens_a_chunk * slower)
            sent += how.tokens_a_chunk
            if how.ollama:
                self.line({"done": False, "response": "one "})
            else:
                self.event({"choices": [{"delta": {"content": "one " * how.tokens_a_chunk}}]})

    def event(self, obj):
        self.wfile.write(b"data: " + json.dumps(obj).encode() + b"\n\n")
        self.wfile.flush()

    def line(self, obj):
        self.wfile.write(json.dumps(obj).encode() + b"\n")
        self.wfile.flush()


class Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request, client_address):
        """A client that hangs up early is part of the tests."""


class FakeEndpoint:
    """A context that serves on a free port of this machine."""

    def __init__(self, **behaviour):
        self.how = Behaviour(**behaviour)

    def __enter__(self):
        self._server = Server(("127.0.0.1", 0), Handler)
        self._server.how = self.how
        self._server.lock, self._server.busy = threading.Lock(), threading.Lock()
        self._server.loaded = False
        serve = self._server.serve_forever
        self._thread = threading.Thread(target=serve, args=(0.05,), daemon=True)
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        return self

    def __exit__(self, *exc):
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
