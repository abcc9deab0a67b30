"""A hub on 127.0.0.1 that speaks the part of the Hugging Face API that `pull` uses."""

from __future__ import annotations

import hashlib
import json
import os
import socket
import subprocess
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from twostroke.model.hf_cache import hf_cache_folder, repo_folder
from twostroke.model.names import HubName

COMMIT = "c0ffee" + "0" * 34
SMALL = b"GGUF" + bytes(range(256)) * 40
OTHER = b"GGUF" + b"other" * 2000
FILES = {
    "README.md": b"# card",
    "m-Q4_K_M.gguf": SMALL,
    "m-Q8_0.gguf": OTHER,
    "big/m-BF16-00001-of-00002.gguf": SMALL + b"1",
    "big/m-BF16-00002-of-00002.gguf": SMALL + b"2",
}


def repo_path() -> Path:
    """Return where the hub's library and we keep the repository."""
    return repo_folder(hf_cache_folder(os.environ), HubName("org", "model")).path


def use_no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every connection and every program fail the test."""

    def refuse(*args: object) -> None:
        raise AssertionError("the network was touched")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(subprocess, "run", refuse)


@dataclass
class FakeHub:
    """Serves `files` of the repository `repo`; the switches make it misbehave."""

    repo: str
    files: dict[str, bytes]
    revision: str = "main"
    private: bool = False
    broken_status: int | None = None
    cut_first_download_at: int | None = None
    damage: bool = False
    ignore_range: bool = False
    send_extra: int = 0
    without_hash: bool = False
    listing: bytes | None = None
    requests: list[str] = field(default_factory=list)
    ranges: list[str | None] = field(default_factory=list)
    tokens: list[str | None] = field(default_factory=list)

    def __enter__(self) -> FakeHub:
        self._server = _Server(("127.0.0.1", 0), _Handler)
        self._server.hub = self
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.02,), daemon=True
        )
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def sibling(self, name: str, data: bytes) -> dict[str, object]:
        entry: dict[str, object] = {"rfilename": name, "size": len(data), "blobId": "0" * 40}
        if not self.without_hash:
            digest = hashlib.sha256(data).hexdigest()
            entry["lfs"] = {"sha256": digest, "size": len(data), "pointerSize": 100}
        return entry


class _Server(ThreadingHTTPServer):
    """Hands its hub to every handler."""

    hub: FakeHub


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    @property
    def hub(self) -> FakeHub:
        assert isinstance(self.server, _Server)
        return self.server.hub

    def do_GET(self) -> None:
        hub = self.hub
        hub.requests.append(self.path)
        hub.tokens.append(self.headers.get("authorization"))
        if hub.broken_status is not None:
            return self._answer(hub.broken_status, b"{}")
        known = (f"/api/models/{hub.repo}", f"/{hub.repo}/resolve/")
        if hub.private or not self.path.startswith(known):
            return self._answer(404, b"{}", {"X-Error-Code": "RepoNotFound"})
        if self.path.startswith("/api/models/"):
            return self._list()
        return self._send_file()

    def _list(self) -> None:
        hub, path = self.hub, self.path.partition("?")[0]
        main = f"/api/models/{hub.repo}"
        if path not in (main, f"{main}/revision/{hub.revision}"):
            return self._answer(404, b"{}", {"X-Error-Code": "RevisionNotFound"})
        siblings = [hub.sibling(name, data) for name, data in hub.files.items()]
        document = {"id": hub.repo, "sha": COMMIT, "siblings": siblings}
        self._answer(200, hub.listing or json.dumps(document).encode())

    def _send_file(self) -> None:
        hub = self.hub
        name = self.path.split(f"/resolve/{COMMIT}/", 1)[1].partition("?")[0]
        data = hub.files[name]
        if hub.damage:
            data = data[:-1] + bytes([data[-1] ^ 1])
        data += bytes(hub.send_extra)
        wanted = self.headers.get("range")
        hub.ranges.append(wanted)
        start = int(wanted[len("bytes=") : -1]) if wanted and not hub.ignore_range else 0
        headers = {"Content-Range": f"bytes {start}-{len(data) - 1}/{len(data)}"} if start else {}
        if hub.cut_first_download_at is not None:
            cut, hub.cut_first_download_at = hub.cut_first_download_at, None
            hub.broken_status = 503
            return self._answer(200, data[:cut], headers, announce=len(data))
        self._answer(206 if start else 200, data[start:], headers)

    def _answer(
        self,
        status: int,
        body: bytes,
        headers: dict[str, str] | None = None,
        announce: int | None = None,
    ) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body) if announce is None else announce))
        for key, value in (headers or {}).items():
            self.send_header(key, value)
        self.end_headers()
        self.wfile.write(body)
        self.close_connection = announce is not None

    def log_message(self, format: str, *args: object) -> None:
        """Keep the test's output clean."""
