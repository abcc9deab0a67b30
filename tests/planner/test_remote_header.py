"""Headers from a hub on 127.0.0.1: only the bytes needed are asked for, never the weights."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.tiny_models import write_tiny
from twostroke.errors import CorruptCheckpoint, DownloadError, ModelNotFound
from twostroke.formats.gguf import open_gguf
from twostroke.model.names import HubName
from twostroke.planner.remote_header import remote_shape
from twostroke.predict.gguf_shape import shape_of_gguf

REPO = "someone/model"


class Hub:
    """Lists and serves files; counts the bytes that leave it."""

    def __init__(self, files: dict[str, bytes]) -> None:
        self.files = files
        self.status = 200
        self.ranges_ignored = False
        self.sent = 0
        self.tokens: list[str | None] = []
        self.listing: bytes | None = None

    @contextmanager
    def serve(self) -> Iterator[dict[str, str]]:
        hub = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                hub.answer(self)

            def log_message(self, format: str, *args: object) -> None:
                """Keep the test's output clean."""

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
        thread.start()
        try:
            yield {"HF_ENDPOINT": f"http://127.0.0.1:{server.server_port}"}
        finally:
            server.shutdown()
            server.server_close()
            thread.join()

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        self.tokens.append(request.headers.get("Authorization"))
        headers, status, path = {}, self.status, request.path.partition("?")[0]
        if path == f"/api/models/{REPO}/revision/main":
            entries = [{"rfilename": n, "size": len(d)} for n, d in self.files.items()]
            body = self.listing or json.dumps({"siblings": entries}).encode()
        elif path.startswith(f"/{REPO}/resolve/main/"):
            body = self.files[path.rpartition("/main/")[2]]
            wanted = request.headers.get("Range")
            if wanted and not self.ranges_ignored:
                end = int(wanted.rpartition("-")[2]) + 1
                headers["Content-Range"] = f"bytes 0-{min(end, len(body)) - 1}/{len(body)}"
                body, status = body[:end], 206
        else:
            body, status = b"", 404
        request.send_response(status)
        request.send_header("Content-Length", str(len(body)))
        for key, value in headers.items():
            request.send_header(key, value)
        request.end_headers()
        try:
            request.wfile.write(body)
            self.sent += len(body)
        except OSError:  # the client has read enough
            pass


@pytest.fixture(autouse=True)
def no_token(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))


def gguf(tmp_path: Path, padding: int = 0) -> tuple[Path, bytes]:
    path = tmp_path / "tiny-Q4_K_M.gguf"
    write_tiny(path, "llama")
    return path, path.read_bytes() + bytes(padding)


def test_a_remote_header_gives_the_shape_of_the_local_file(tmp_path: Path) -> None:
    path, data = gguf(tmp_path, padding=8 << 20)
    hub = Hub({"tiny-Q4_K_M.gguf": data, "readme.md": b"text"})
    with hub.serve() as environ:
        found = remote_shape(HubName("someone", "model"), environ)
    with open_gguf(path) as file:
        local = shape_of_gguf(file.metadata, file.tensors.values(), name=REPO)
    assert found == local
    assert hub.sent < 3 << 20  # of more than 8 MiB
    assert hub.tokens == ["Bearer hf_secret"] * 2


def test_a_server_without_ranges_is_not_read_to_its_end(tmp_path: Path) -> None:
    _, data = gguf(tmp_path, padding=64 << 20)
    hub = Hub({"tiny-Q4_K_M.gguf": data})
    hub.ranges_ignored = True
    with hub.serve() as environ:
        assert remote_shape(HubName("someone", "model"), environ).layers is not None
    assert hub.sent < 32 << 20


def test_a_repository_of_safetensors_gives_its_config_and_file_sizes() -> None:
    config = {
        "model_type": "llama", "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "hidden_size": 64, "intermediate_size": 128,
        "vocab_size": 320, "torch_dtype": "bfloat16", "tie_word_embeddings": True,
    }  # fmt: skip
    files = {"config.json": json.dumps(config).encode(), "model.safetensors": bytes(200_000)}
    hub = Hub(files)
    with hub.serve() as environ:
        shape = remote_shape(HubName("someone", "model"), environ)
    assert shape.weights is not None and shape.weights.total_bytes == 200_000
    assert shape.layers is not None and len(shape.layers) == 2
    assert hub.sent < 10_000  # the weights stay there


@pytest.mark.parametrize(
    ("status", "error"), [(404, ModelNotFound), (401, DownloadError), (503, DownloadError)]
)
def test_a_refusal_is_one_sentence(status: int, error: type[Exception], tmp_path: Path) -> None:
    hub = Hub({})
    hub.status = status
    with hub.serve() as environ, pytest.raises(error, match=REPO):
        remote_shape(HubName("someone", "model"), environ)


def test_an_empty_repository_and_broken_answers_are_named(tmp_path: Path) -> None:
    hub = Hub({"readme.md": b"text"})
    with hub.serve() as environ:
        with pytest.raises(ModelNotFound, match=r"neither a GGUF file nor a config\.json"):
            remote_shape(HubName("someone", "model"), environ)
        hub.listing = b"[1, 2]"
        with pytest.raises(CorruptCheckpoint, match="no JSON object"):
            remote_shape(HubName("someone", "model"), environ)
        hub.listing, hub.files = None, {"a-Q4_K_M.gguf": b"GGUF\x03" + bytes(9)}
        with pytest.raises(CorruptCheckpoint):
            remote_shape(HubName("someone", "model"), environ)


def test_offline_is_honoured_and_no_server_is_said() -> None:
    name = HubName("someone", "model")
    with pytest.raises(DownloadError, match="HF_HUB_OFFLINE"):
        remote_shape(name, {"HF_HUB_OFFLINE": "1"})
    with pytest.raises(DownloadError, match="could not ask the hub"):
        remote_shape(name, {"HF_ENDPOINT": "http://127.0.0.1:9"})
