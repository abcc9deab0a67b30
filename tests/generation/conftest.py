"""One tiny model for the tests of the answer layer."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.tiny_models import write_tiny
from twostroke.model.loaded import LoadedModel, load_model


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LoadedModel]:
    path: Path = tmp_path_factory.mktemp("generation") / "tiny.gguf"
    write_tiny(path, "llama")
    loaded = load_model(str(path))
    yield loaded
    loaded.file.close()
