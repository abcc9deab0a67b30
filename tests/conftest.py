"""Fixtures shared by all tests."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

CACHE = Path(os.environ.get("TWOSTROKE_CACHE", Path.home() / ".cache" / "twostroke"))


def _model(relative: str) -> Path:
    path = CACHE / "models" / relative
    if not path.exists():
        pytest.fail(f"{path} is missing: run `make test` or `make test-models`, which fetch it")
    return path


@pytest.fixture(scope="session")
def smollm2_path() -> Path:
    """The sample model, SmolLM2-135M-Instruct Q4_1."""
    return _model("smollm2-135m-instruct-q4_1.gguf")


@pytest.fixture(scope="session")
def gemma3_path() -> Path:
    """Gemma 3 270M Q4_K_M (make test-models)."""
    return _model("gemma-3-270m-q4_k_m.gguf")


@pytest.fixture(scope="session")
def qwen2_path() -> Path:
    """Qwen2.5-Coder-0.5B-Instruct Q4_K_M (make test-models)."""
    return _model("qwen2.5-coder-0.5b-instruct-q4_k_m.gguf")
