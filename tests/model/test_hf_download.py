"""Fetching from the hub: listed, resumed, verified, and refused in one sentence."""

from __future__ import annotations

import hashlib
import json
import socket
from pathlib import Path

import pytest

from tests.model.fake_hub import COMMIT, SMALL, FakeHub, repo_path, use_no_network
from twostroke.errors import DownloadError, ModelNotFound
from twostroke.model import hf_download
from twostroke.model.hub import resolve


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


def test_the_hubs_own_library_finds_our_files(hub: FakeHub, tmp_path: Path) -> None:
    from huggingface_hub import try_to_load_from_cache

    files = resolve("hf:org/model")
    found = try_to_load_from_cache("org/model", "m-Q4_K_M.gguf", cache_dir=tmp_path / "hf" / "hub")
    assert found == str(files.path)


def test_a_model_on_this_machine_needs_no_network(
    hub: FakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
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


def test_a_missing_quantisation_lists_the_files_that_exist(hub: FakeHub) -> None:
    with pytest.raises(ModelNotFound, match=r"hf:org/model/m-Q8_0\.gguf"):
        resolve("hf:org/model:Q3_K_S")


def test_a_cut_download_is_continued(hub: FakeHub) -> None:
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
    (partial,) = (repo_path() / "blobs").iterdir()
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


def test_a_full_disk_is_refused_before_the_download(
    hub: FakeHub, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = hf_download.shutil.disk_usage(".")
    monkeypatch.setattr(hf_download.shutil, "disk_usage", lambda path: usage._replace(free=100))
    with pytest.raises(DownloadError, match="100 bytes free"):
        resolve("hf:org/model")
    assert hub.ranges == []
