"""One tiny model for all server tests, and one idle server over it for those that need no other."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.server.serving import Served
from tests.server.tooling import TEMPLATE
from tests.tiny_models import write_tiny


@pytest.fixture(scope="session")
def tiny_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("server") / "tiny.gguf"
    write_tiny(path, "llama", context_length=1024)
    return path


@pytest.fixture(scope="module")
def shared(tiny_path: Path) -> Iterator[Served]:
    with Served(tiny_path) as server:
        yield server


@pytest.fixture
def served(shared: Served) -> Iterator[Served]:
    """The module's server; after each test nothing may be left in it."""
    yield shared
    shared.throttle.step_s = 0.0
    shared.check_idle()


@pytest.fixture(scope="module")
def tooled(tiny_path: Path) -> Iterator[Served]:
    """A server whose template knows tools."""
    with Served(tiny_path, template=TEMPLATE) as server:
        yield server
        server.check_idle()
