"""Names and paths that resolve to local files, and those that do not."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.model.fake_hub import SMALL
from twostroke.errors import ModelError, ModelNotFound
from twostroke.model.hub import resolve


def test_a_path_resolves_to_itself_and_its_shards(tmp_path: Path) -> None:
    paths = [tmp_path / f"m-0000{i}-of-00002.gguf" for i in (1, 2)]
    for path in paths:
        path.write_bytes(SMALL)
    files = resolve(str(paths[1]))
    assert (files.source, files.path, list(files.paths)) == ("path", paths[0], paths)
    paths[0].unlink()
    with pytest.raises(ModelNotFound, match=r"m-00001-of-00002\.gguf"):
        resolve(str(paths[1]))


def test_a_bare_file_name_here_is_a_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "weights").write_bytes(SMALL)
    monkeypatch.chdir(tmp_path)
    assert resolve("weights").path == Path("weights")


def test_a_wrong_path_suggests_files_of_like_names(tmp_path: Path) -> None:
    (tmp_path / "model.gguf").write_bytes(SMALL)
    with pytest.raises(ModelNotFound, match=r"Did you mean .*model\.gguf"):
        resolve(str(tmp_path / "modle.gguf"))
    with pytest.raises(ModelError, match=r"is a directory.*model\.gguf"):
        resolve(f"{tmp_path}/")
    with pytest.raises(ModelNotFound, match="no such file"):
        resolve(str(tmp_path / "deep" / "none.gguf"))


def test_a_misspelt_short_name_suggests_the_right_one() -> None:
    with pytest.raises(ModelNotFound, match=r"Did you mean smollm2:135m\?"):
        resolve("SmolLM2-135m")


def test_a_missing_model_names_the_command_that_fetches_it() -> None:
    with pytest.raises(ModelNotFound, match=r"twostroke pull smollm2:135m"):
        resolve("smollm2:135m", download=False)
