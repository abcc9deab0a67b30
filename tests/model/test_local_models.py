"""Models on this machine: listed by a name that runs them, and removed."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from tests.model.fake_hub import OTHER, SMALL, FakeHub, repo_path
from twostroke.errors import ModelError, ModelNotFound
from twostroke.model.hf_cache import RepoFolder
from twostroke.model.hub import remove, resolve
from twostroke.model.local_models import list_local, models_folder


def test_listed_names_resolve_to_their_files(hub: FakeHub) -> None:
    resolve("hf:org/model")
    resolve("hf:org/model:BF16")
    listed = list_local()
    assert [m.name for m in listed] == [
        "hf:org/model/big/m-BF16-00001-of-00002.gguf",
        "hf:org/model/m-Q4_K_M.gguf",
    ]
    for model in listed:
        assert resolve(model.name, download=False).paths == model.paths
        assert model.size_bytes == sum(p.stat().st_size for p in model.paths)


def test_an_incomplete_split_model_is_not_listed(hub: FakeHub) -> None:
    files = resolve("hf:org/model:BF16")
    files.paths[1].unlink()
    assert list_local() == []
    assert resolve("hf:org/model:BF16").paths == files.paths


def test_removing_frees_the_bytes_and_leaves_other_models(hub: FakeHub) -> None:
    resolve("hf:org/model")
    kept = resolve("hf:org/model:Q8_0")
    removed = remove("hf:org/model")
    assert removed.freed_bytes == len(SMALL)
    assert [m.name for m in list_local()] == ["hf:org/model/m-Q8_0.gguf"]
    assert kept.path.read_bytes() == OTHER
    remove("hf:org/model:Q8_0")
    assert not repo_path().exists()
    with pytest.raises(ModelNotFound, match="not on this machine"):
        remove("hf:org/model:Q8_0")


def test_a_blob_that_another_revision_needs_stays(hub: FakeHub) -> None:
    resolve("hf:org/model")
    folder = RepoFolder(repo_path())
    other = "d" * 40
    folder.link(other, "m-Q4_K_M.gguf", hashlib.sha256(SMALL).hexdigest())
    assert remove("hf:org/model").freed_bytes == 0
    assert resolve(f"hf:org/model@{other}", download=False).path.read_bytes() == SMALL


def test_the_users_own_files_are_not_removed(tmp_path: Path) -> None:
    mine = tmp_path / "mine.gguf"
    mine.write_bytes(SMALL)
    with pytest.raises(ModelError, match="was not fetched by twostroke"):
        remove(str(mine))
    assert mine.exists()


def test_a_file_in_our_folder_is_listed_and_removed_by_its_path() -> None:
    folder = models_folder()
    folder.mkdir(parents=True)
    (folder / "extra.gguf").write_bytes(SMALL)
    (model,) = list_local()
    assert model.name == str(folder / "extra.gguf")
    assert remove(model.name).freed_bytes == len(SMALL)
    assert list_local() == []
