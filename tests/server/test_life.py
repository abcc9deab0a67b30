"""The server as a process: loading, drain, sudden ends, and nothing left behind."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
import uvicorn

from tests.server.serving import Process, Served, State, events, until
from twostroke.server.run import _bound

BODY = {
    "messages": [{"role": "user", "content": "hi"}],
    "max_tokens": 900,
    "ignore_eos": True,
    "temperature": 0,
    "stream": True,
}


def children_of(pid: int) -> list[int]:
    path = Path(f"/proc/{pid}/task/{pid}/children")
    found = []
    for task in path.parent.parent.iterdir():
        found += [int(child) for child in (task / "children").read_text().split()]
    return found


def has_ended(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def test_it_is_live_and_not_ready_while_it_loads(tiny_path: Path) -> None:
    with Served(tiny_path, is_loaded=False) as served:
        assert served.service.state is State.LOADING
        assert served.get("/health/live").status_code == 200
        assert served.get("/health/ready").status_code == 503
        reply = served.chat()
        assert reply.status_code == 503 and reply.headers["retry-after"] == "5"
        assert reply.json()["error"]["code"] == "not_ready"
        served.service.load()
        assert served.get("/health/ready").status_code == 200
        assert served.chat().status_code == 200


def test_both_phases_and_the_template_are_warm_before_it_is_ready(tiny_path: Path) -> None:
    with Served(tiny_path) as served:
        assert served.throttle.num_steps >= 4
        first = served.chat(max_tokens=3, ignore_eos=True).json()
        assert "cold" not in first["twostroke"]["records"][0]["meter"]["flags"]
        later = [served.chat(f"x{i}").json()["twostroke"]["records"][0] for i in range(3)]
        init_s = first["twostroke"]["records"][0]["phases"]["init_s"]
        assert init_s < 0.05 + 5 * max(r["phases"]["init_s"] for r in later)


def test_sigterm_lets_answers_end_and_refuses_new_ones(tiny_path: Path) -> None:
    with Process(tiny_path) as process:
        with process.client.stream(
            "POST", "/v1/chat/completions", content=json.dumps(BODY)
        ) as stream:
            told = events(stream)
            next(told)
            process.process.send_signal(signal.SIGTERM)
            until(lambda: process.client.get("/health/ready").status_code == 503, 10)
            refused = process.client.post("/v1/chat/completions", content=json.dumps(BODY))
            rest = list(told)
        assert rest[-1] == "[DONE]"
        assert rest[-2]["choices"][0]["finish_reason"] == "length"
        assert refused.status_code == 503 and "retry-after" in refused.headers
        assert process.process.wait(20) == 0


def test_the_end_of_the_drain_ends_what_is_left_with_an_error(tiny_path: Path) -> None:
    limits = ["--limit", "drain_s=0.3"]
    with Process(tiny_path, *limits, "--max-model-len", "1024") as process:
        bodies = [{**BODY, "n": 16, "max_tokens": 1000, "stream": True} for _ in range(3)]

        def last_event(body: dict) -> object:
            with process.client.stream(
                "POST", "/v1/chat/completions", content=json.dumps(body)
            ) as stream:
                return list(events(stream))[-1]

        with ThreadPoolExecutor() as pool:
            asked = [pool.submit(last_event, body) for body in bodies]
            until(lambda: "num_requests_running" in process.client.get("/metrics").text)
            time.sleep(0.5)
            process.process.send_signal(signal.SIGTERM)
            ends = [a.result() for a in asked]
        assert all(isinstance(e, dict) and e["error"]["code"] == "engine_stopped" for e in ends)
        assert process.process.wait(20) == 0


def test_kill_breaks_streams_off_leaves_no_process_and_a_new_one_starts_at_once(
    tiny_path: Path,
) -> None:
    with Process(tiny_path) as process:
        workers = children_of(process.process.pid)
        assert len(workers) == 2, "the template workers"
        with process.client.stream(
            "POST", "/v1/chat/completions", content=json.dumps(BODY)
        ) as stream:
            told = events(stream)
            next(told)
            process.end(signal.SIGKILL)
            with pytest.raises(httpx.TransportError):
                list(told)  # broken off, not ended: the client can tell
    until(lambda: all(has_ended(pid) for pid in workers), 10)
    with Process(tiny_path) as process:
        body = {**BODY, "stream": False, "max_tokens": 2}
        reply = process.client.post("/v1/chat/completions", content=json.dumps(body))
        assert reply.status_code == 200
        assert process.end(signal.SIGINT) == 0


def test_a_model_that_cannot_be_loaded_ends_it_with_one_sentence(tmp_path: Path) -> None:
    bad = tmp_path / "bad.gguf"
    bad.write_bytes(b"no model")
    process = Process(bad)
    try:
        assert process.process.wait(30) != 0
    finally:
        process.__exit__()
    text = "".join(process.stderr)
    assert "Traceback" not in text and "bad.gguf" in text


@pytest.fixture(scope="module")
def running(tiny_path: Path) -> Iterator[Process]:
    with Process(tiny_path) as process:
        yield process
        assert process.end(signal.SIGTERM) == 0, "whatever happened to it"


def test_a_killed_template_worker_costs_one_request_at_most(running: Process) -> None:
    for pid in children_of(running.process.pid):
        os.kill(pid, signal.SIGKILL)
    body = json.dumps({**BODY, "stream": False, "max_tokens": 1})
    path = "/v1/chat/completions"
    statuses = [running.client.post(path, content=body).status_code for _ in "ab"]
    assert statuses[-1] == 200


def test_a_taken_port_is_said_at_once(running: Process, tiny_path: Path) -> None:
    other = Process(tiny_path, "--port", str(running.port))
    code = other.process.wait(30)
    other.__exit__()
    assert code == 2 and "cannot be bound" in "".join(other.stderr)


def test_small_pieces_leave_at_once() -> None:
    async def has_no_delay() -> bool:
        seen: asyncio.Queue[int] = asyncio.Queue()

        def handle(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            sock = writer.get_extra_info("socket")
            seen.put_nowait(sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
            writer.close()

        bound = _bound(uvicorn.Config(lambda: None, port=0))
        server = await asyncio.start_server(handle, sock=bound)
        _, writer = await asyncio.open_connection(*bound.getsockname())
        value = await seen.get()
        writer.close()
        server.close()
        await server.wait_closed()
        return bool(value)

    assert asyncio.run(has_no_delay())


def test_a_full_disk_under_the_cache_folder_does_not_stop_it(
    tiny_path: Path, tmp_path: Path
) -> None:
    mount = tmp_path / "full"
    mount.mkdir()
    size = "size=64k"
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", size, "tmpfs", mount], capture_output=True, check=False
    )
    if made.returncode != 0:
        pytest.skip("no right to mount a small file system")
    try:
        (mount / "filler").write_bytes(b"x" * (60 << 10))
        with Process(tiny_path, TWOSTROKE_CACHE=str(mount)) as process:
            body = {**BODY, "stream": False, "max_tokens": 2}
            reply = process.client.post("/v1/chat/completions", content=json.dumps(body))
            assert reply.status_code == 200
            assert process.end(signal.SIGTERM) == 0
    finally:
        subprocess.run(["umount", "-l", mount], check=True)


def test_a_jump_of_the_wall_clock_moves_no_interval(
    tiny_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Served(tiny_path) as served:
        monkeypatch.setattr(time, "time", lambda: 4e9)
        record = served.chat().json()["twostroke"]["records"][0]
        monkeypatch.setattr(time, "time", lambda: 0.0)
        again = served.chat().json()
        assert 0 < record["e2e_s"] < 60
        assert 0 < again["twostroke"]["records"][0]["e2e_s"] < 60
        assert again["created"] == 0
        assert served.get("/health/ready").status_code == 200
        served.check_idle()
