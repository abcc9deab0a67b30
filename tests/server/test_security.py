"""Hostile callers: keys, limits, slow clients, other people's prompts, the text of the log."""

from __future__ import annotations

import contextlib
import json
import socket
import statistics
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.server.serving import Served, events, until

KEYS = ("first-secret-key", "second-secret-key")
SECRET = "correct horse battery staple"


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


@pytest.fixture(scope="module")
def guarded(tiny_path: Path) -> Iterator[Served]:
    limits = {"max_body_bytes": 1 << 20, "body_timeout_s": 0.5}
    with Served(tiny_path, keys=KEYS, limits=limits, log_format="json") as server:
        yield server
        server.check_idle()


def connect(server: Served) -> socket.socket:
    host, port = server.url.removeprefix("http://").split(":")
    return socket.create_connection((host, int(port)), timeout=20)


def test_every_route_but_liveness_needs_a_key(guarded: Served) -> None:
    schema = guarded.get("/openapi.json", headers=bearer(KEYS[0])).json()
    paths = [(m, p) for p, methods in schema["paths"].items() for m in methods]
    assert len(paths) >= 18
    paths += [("get", "/openapi.json"), ("get", "/nothing"), ("post", "/"), ("get", "/docs")]
    for method, path in paths:
        url = path.replace("{name}", "tiny")
        for headers in ({}, bearer("wrong-key-wrong"), {"authorization": f"Basic {KEYS[0]}"}):
            reply = guarded.request(method, url, headers=headers)
            expected = 200 if path == "/health/live" else 401
            assert reply.status_code == expected, (method, path)
    for headers in (bearer(KEYS[0]), bearer(KEYS[1]), {"x-api-key": KEYS[1]}):
        assert guarded.get("/v1/models", headers=headers).status_code == 200


def test_unknown_paths_and_methods_answer_in_the_apis_shape(guarded: Served) -> None:
    assert guarded.get("/nothing", headers=bearer(KEYS[0])).json()["error"]["code"] == "not_found"
    reply = guarded.get("/v1/chat/completions", headers=bearer(KEYS[0]))
    assert reply.status_code == 405 and reply.json()["error"]["code"] == "method_not_allowed"
    reply = guarded.post("/v1/messages", "{", headers=bearer(KEYS[0]))
    assert reply.json()["type"] == "error"
    assert isinstance(guarded.post("/api/chat", "{", headers=bearer(KEYS[0])).json()["error"], str)


def test_one_key_sees_nothing_of_anothers_cache(guarded: Served) -> None:
    def ask(key: str) -> dict:
        body = {"messages": [{"role": "user", "content": SECRET * 10}], "max_tokens": 1}
        reply = guarded.post("/v1/chat/completions", body, headers=bearer(key))
        return reply.json()

    mine, again, other = ask(KEYS[0]), ask(KEYS[0]), ask(KEYS[1])
    cached = [r["usage"]["prompt_tokens_details"]["cached_tokens"] for r in (mine, again, other)]
    assert cached[0] == 0 and cached[1] > 100 and cached[2] == 0
    outcome = other["twostroke"]["records"][0]["cache"]
    assert outcome["reason"] in (None, "first_request")
    assert outcome["diverged_token"] is None and outcome["diverged_message"] is None


def test_cache_salt_parts_one_callers_own_cache(guarded: Served) -> None:
    def cached(salt: str) -> int:
        body = {"messages": [{"role": "user", "content": "salted " * 40}], "max_tokens": 1}
        reply = guarded.post(
            "/v1/chat/completions", {**body, "cache_salt": salt}, headers=bearer(KEYS[0])
        )
        return reply.json()["usage"]["prompt_tokens_details"]["cached_tokens"]

    assert [cached("a") > 0, cached("a") > 0, cached("b") > 0] == [False, True, False]


def test_another_salt_of_the_same_key_is_the_reason_of_a_miss_and_of_no_other_keys(
    guarded: Served,
) -> None:
    def reason(key: str, salt: str) -> str | None:
        body = {"messages": [{"role": "user", "content": "pepper " * 40}], "max_tokens": 1}
        salted = {**body, "cache_salt": salt}
        reply = guarded.post("/v1/chat/completions", salted, headers=bearer(key)).json()
        return reply["twostroke"]["records"][0]["cache"]["reason"]

    assert reason(KEYS[0], "x") == "first_request"
    assert reason(KEYS[0], "y") == "caller_changed_salt"
    assert reason(KEYS[0], "z") == "caller_changed_salt"
    assert reason(KEYS[0], "x") is None, "its own salt still hits"
    assert reason(KEYS[1], "x") == "first_request"
    assert reason(KEYS[1], "x") is None
    metrics = guarded.get("/metrics", headers=bearer(KEYS[0])).text
    assert 'reason="caller_changed_salt"' in metrics


def test_neither_log_nor_metrics_hold_a_prompt_or_a_key(guarded: Served) -> None:
    body = {"messages": [{"role": "user", "content": SECRET}], "max_tokens": 2, "user": "u\nser"}
    guarded.post("/v1/chat/completions", body, headers=bearer(KEYS[0]))
    guarded.post("/v1/chat/completions", {**body, SECRET: 1}, headers=bearer(KEYS[0]))
    guarded.get(f"/{SECRET}", headers=bearer(KEYS[0]))
    until(lambda: guarded.app.num_in_flight == 0)
    metrics = guarded.get("/metrics", headers=bearer(KEYS[0])).text
    for text in (guarded.log.text, metrics):
        assert SECRET not in text and SECRET.replace(" ", "%20") not in text
        assert all(key not in text for key in KEYS)
    lines = [json.loads(line) for line in guarded.log.text.splitlines()]
    assert any(line["user"] == "u\nser" and line["records"] for line in lines)
    assert "twostroke_http_replies_total" in metrics


def test_a_body_beyond_the_limit_is_413_before_it_is_read(guarded: Served) -> None:
    with connect(guarded) as sock:
        head = "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 100000000\r\n"
        sock.sendall(f"{head}Authorization: Bearer {KEYS[0]}\r\n\r\n".encode())
        assert sock.recv(4096).split()[1] == b"413"
    with connect(guarded) as sock:
        head = "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n"
        sock.sendall(f"{head}Authorization: Bearer {KEYS[0]}\r\n\r\n".encode())
        answer = b""
        chunk = b"10000\r\n" + b"x" * 0x10000 + b"\r\n"
        try:
            for _ in range(400):
                sock.sendall(chunk)
            answer = sock.recv(4096)
        except OSError:
            answer = answer or b"HTTP/1.1 413"
        assert answer.split()[1] == b"413"


def test_a_slow_body_is_408_and_a_huge_header_is_400(guarded: Served) -> None:
    with connect(guarded) as sock:
        head = "POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n"
        sock.sendall(f"{head}Authorization: Bearer {KEYS[0]}\r\n\r\n".encode() + b"{")
        assert sock.recv(4096).split()[1] == b"408"
    with connect(guarded) as sock:
        try:
            sock.sendall(b"GET / HTTP/1.1\r\nHost: x\r\nX: " + b"a" * (1 << 20) + b"\r\n\r\n")
            answer = sock.recv(4096)
        except ConnectionError:
            answer = b""
        assert answer == b"" or answer.split()[1] in (b"400", b"431")


def test_a_100_mb_prompt_is_refused_while_streams_go_on(tiny_path: Path) -> None:
    with Served(tiny_path) as served:
        served.throttle.step_s = 0.01
        body = {
            "messages": [{"role": "user", "content": "hi"}],
            "max_tokens": 150,
            "ignore_eos": True,
            "stream": True,
        }
        with served.stream("/v1/chat/completions", body) as stream:
            told = events(stream)
            next(told)
            start = time.monotonic()
            reply = served.post("/v1/completions", {"prompt": "x" * 100_000_000})
            took = time.monotonic() - start
            rest = list(told)
        assert reply.status_code == 413
        assert took < 10
        assert rest[-1] == "[DONE]"


def test_a_reader_that_takes_nothing_is_cut_off_and_memory_stays(tiny_path: Path) -> None:
    with Served(tiny_path, limits={"slow_client_s": 0.5, "keep_alive_s": 0.1}) as served:
        body = {
            "messages": [{"role": "user", "content": "hi"}],
            "max_tokens": 900,
            "n": 8,
            "ignore_eos": True,
            "stream": True,
            "logprobs": True,
            "top_logprobs": 20,
        }
        data = json.dumps(body).encode()
        head = (
            f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(data)}\r\n\r\n"
        )
        with connect(served) as sock:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            sock.sendall(head.encode() + data)
            until(lambda: served.num_in_engine > 0)
            until(lambda: served.app.num_in_flight == 0, 30)
        served.check_idle()


def test_cors_is_off_unless_an_origin_is_named(served: Served, tiny_path: Path) -> None:
    origin = {"origin": "https://app.example"}
    assert "access-control-allow-origin" not in served.get("/v1/models", headers=origin).headers
    with Served(tiny_path, keys=KEYS, cors_origins=("https://app.example",)) as open_server:
        reply = open_server.get("/v1/models", headers={**origin, **bearer(KEYS[0])})
        assert reply.headers["access-control-allow-origin"] == "https://app.example"
        other = {"origin": "https://evil.example"}
        preflight = {**origin, "access-control-request-method": "POST"}
        path = "/v1/chat/completions"
        assert open_server.request("options", path, headers=preflight).status_code == 200
        assert open_server.request("options", path, headers=origin).status_code == 401
        reply = open_server.get("/v1/models", headers={**other, **bearer(KEYS[0])})
        assert reply.headers.get("access-control-allow-origin") != "https://evil.example"


def test_a_wrong_key_takes_no_longer_near_a_right_one() -> None:
    from twostroke.server.errors import Unauthorized
    from twostroke.server.http.middleware import KeyRing

    ring = KeyRing([f"key-number-{i:04}" for i in range(50)])

    def seconds(key: str) -> float:
        samples = []
        for _ in range(200):
            start = time.perf_counter()
            with contextlib.suppress(Unauthorized):
                ring.caller([(b"x-api-key", key.encode())])
            samples.append(time.perf_counter() - start)
        return statistics.median(samples)

    near, far = seconds("key-number-0000x"), seconds("zzzzzzzzzzzzzzzz")
    assert near == pytest.approx(far, rel=0.5)
