"""The tokenizer of the tiny llama model."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.tiny_models import write_tiny
from twostroke.formats.gguf import open_gguf
from twostroke.text.tokenizer import Tokenizer


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tokenizer]:
    path: Path = tmp_path_factory.mktemp("text") / "tiny.gguf"
    write_tiny(path, "llama")
    file = open_gguf(path)
    yield Tokenizer.from_gguf(file.metadata)
    file.close()
