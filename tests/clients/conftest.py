"""The model that agents talk to."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.clients.small_model import write_small


@pytest.fixture(scope="session")
def small_path(smollm2_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("clients") / "small.gguf"
    write_small(path, smollm2_path)
    return path
