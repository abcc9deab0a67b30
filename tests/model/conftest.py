"""An empty home for model files, and a hub to fetch them from."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.model.fake_hub import FILES, FakeHub


@pytest.fixture(autouse=True)
def empty_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_HUB_OFFLINE", "HF_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    monkeypatch.setenv("TWOSTROKE_CACHE", str(tmp_path / "cache"))
    return tmp_path


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch):  # type: ignore[no-untyped-def]
    with FakeHub("org/model", dict(FILES)) as server:
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        # The library writes whole pieces of 10 MB: smaller ones let a small file be cut inside.
        monkeypatch.setattr("huggingface_hub.constants.DOWNLOAD_CHUNK_SIZE", 1000)
        yield server
