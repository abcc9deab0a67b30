"""Fetch GGUF files from the Hugging Face hub: listed, resumed, verified, put in the shared cache.

The hub's library lists the repository and moves the bytes (token, proxy and retries are its). It
neither keeps a partial file between runs nor checks the bytes against the published SHA-256, so
both are done here.
"""

from __future__ import annotations

import fcntl
import hashlib
import io
import os
import re
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from twostroke.dataclass import dataclass
from twostroke.errors import DownloadError, ModelNotFound
from twostroke.model.hf_cache import RepoFolder, hf_cache_folder, is_commit, is_offline, repo_folder
from twostroke.model.model_files import Progress, choose
from twostroke.model.names import HubName, is_safe_file

_SHA256 = re.compile(r"[0-9a-f]{64}")
_DEFAULT_ENDPOINT = "https://huggingface.co"
_LIST_TIMEOUT_S = 20.0


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """One file as the hub publishes it."""

    file: str
    size_bytes: int
    sha256: str


def fetch(name: HubName, environ: Mapping[str, str], progress: Progress) -> list[Path]:
    """Fetch the files of a hub name, all shards, and return their paths, first shard first.

    Raises:
        ModelNotFound: no such repository, revision or file, or several fit; lists the names.
        DownloadError: no network, no permission, no room, or bytes that are not those published.
    """
    if is_offline(environ):
        raise DownloadError(
            f"{name.repo_id} is not on this machine and HF_HUB_OFFLINE forbids the network",
            remedy="Unset HF_HUB_OFFLINE, or copy the file here and give its path.",
        )
    folder = repo_folder(hf_cache_folder(environ), name)
    with _one_sentence(name):
        commit, remote = _list_repository(name, environ)
        files = choose(remote, name)
        paths = [_fetch_file(name, folder, commit, remote[f], environ, progress) for f in files]
        folder.set_ref(name.revision, commit)
    return paths


def _list_repository(
    name: HubName, environ: Mapping[str, str]
) -> tuple[str, dict[str, RemoteFile]]:
    from huggingface_hub import HfApi

    hub = HfApi(endpoint=_endpoint(environ))
    try:
        info = hub.model_info(
            name.repo_id, revision=name.revision, files_metadata=True, timeout=_LIST_TIMEOUT_S
        )
    except TypeError:  # the library's answer to JSON of another shape than a model's
        raise DownloadError(f"the hub's answer about {name.repo_id} is not a model's") from None
    commit = info.sha or ""
    if not is_commit(commit):
        raise DownloadError(f"the hub gives no commit for {name.repo_id}", value=ascii(commit)[:60])
    remote = {}
    for sibling in info.siblings or []:
        digest = sibling.lfs.sha256 if sibling.lfs is not None else ""
        if is_safe_file(sibling.rfilename):
            size = sibling.size if isinstance(sibling.size, int) else -1
            remote[sibling.rfilename] = RemoteFile(sibling.rfilename, size, str(digest))
    return commit, remote


def _fetch_file(
    name: HubName,
    folder: RepoFolder,
    commit: str,
    remote: RemoteFile,
    environ: Mapping[str, str],
    progress: Progress,
) -> Path:
    if not _SHA256.fullmatch(remote.sha256) or remote.size_bytes <= 0:
        raise DownloadError(
            f"the hub publishes no SHA-256 for {remote.file}, so that it cannot be verified",
            remedy="Download it by hand and give its path if you trust it.",
        )
    blob = folder.blob(remote.sha256)
    if not blob.is_file():
        from huggingface_hub import hf_hub_url

        url = hf_hub_url(name.repo_id, remote.file, revision=commit, endpoint=_endpoint(environ))
        blob.parent.mkdir(parents=True, exist_ok=True)
        _fetch_blob(url, blob, remote, progress)
    return folder.link(commit, remote.file, remote.sha256)


def _fetch_blob(url: str, blob: Path, remote: RemoteFile, progress: Progress) -> None:
    """Bring a blob into place; a partial file is continued, and verified as a whole."""
    partial = blob.with_name(f"{blob.name}.twostroke-partial")
    with partial.open("a+b") as locked:
        fcntl.flock(locked, fcntl.LOCK_EX)  # a second pull of the same file waits here
        if blob.is_file():
            partial.unlink(missing_ok=True)
            return
        done = _usable_bytes(partial, remote.size_bytes)
        _check_room(blob.parent, remote.size_bytes - done)
        with partial.open("r+b") as file:
            file.seek(done)
            _transfer(url, _Watched(file, remote, progress, done), remote, done)
        if _sha256(partial) != remote.sha256:
            partial.unlink()
            raise DownloadError(
                f"{remote.file} arrived damaged: its SHA-256 is not the published one",
                limit=remote.sha256,
                remedy="Run the command again; if it stays so, do not trust that source.",
            )
        os.replace(partial, blob)


def _usable_bytes(partial: Path, size_bytes: int) -> int:
    """Return how much of a partial file can be continued; one that is too long is emptied."""
    size = partial.stat().st_size
    if size <= size_bytes:
        return size
    os.truncate(partial, 0)
    return 0


def _transfer(url: str, file: _Watched, remote: RemoteFile, done: int) -> None:
    from huggingface_hub import get_token
    from huggingface_hub.file_download import http_get
    from huggingface_hub.utils import disable_progress_bars  # type: ignore[attr-defined]

    token = get_token()
    disable_progress_bars("huggingface_hub.http_get")  # ours is fed by the file's writes
    http_get(
        url,
        file,  # type: ignore[arg-type]
        resume_size=done,
        headers={"authorization": f"Bearer {token}"} if token else {},
        expected_size=remote.size_bytes,
        displayed_filename=remote.file,
    )


class _Watched:
    """A file that reports its progress, and refuses more bytes than were announced."""

    def __init__(
        self, file: io.BufferedRandom, remote: RemoteFile, progress: Progress, done: int
    ) -> None:
        self._file, self._remote, self._progress = file, remote, progress
        progress(remote.file, done, remote.size_bytes)

    def write(self, data: bytes) -> int:
        written = self._file.write(data)
        done = self._file.tell()
        if done > self._remote.size_bytes:
            self._file.truncate(0)
            raise DownloadError(
                f"the hub sends more of {self._remote.file} than it announced",
                limit=f"{self._remote.size_bytes} bytes",
            )
        self._progress(self._remote.file, done, self._remote.size_bytes)
        return written

    def tell(self) -> int:
        return self._file.tell()

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        return self._file.seek(offset, whence)

    def truncate(self, size: int | None = None) -> int:
        return self._file.truncate(size)


def _check_room(folder: Path, wanted: int) -> None:
    free = shutil.disk_usage(folder).free
    if free < wanted:
        raise DownloadError(
            f"not enough room in {folder}",
            value=f"{wanted} bytes to fetch",
            limit=f"{free} bytes free",
            remedy="Free some space, or set HF_HOME to another disk.",
        )


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(1 << 20):
            digest.update(piece)
    return digest.hexdigest()


def _endpoint(environ: Mapping[str, str]) -> str:
    return (environ.get("HF_ENDPOINT") or _DEFAULT_ENDPOINT).rstrip("/")


@contextmanager
def _one_sentence(name: HubName) -> Iterator[None]:
    """Turn each error of the hub's library into one of ours, in one sentence."""
    from huggingface_hub import errors

    # The library changed its HTTP client between versions; this base is that client's root error.
    transport_error: Any = errors.HfHubHTTPError.__mro__[1]
    try:
        yield
    except errors.GatedRepoError:
        raise DownloadError(
            f"{name.repo_id} is gated",
            remedy="Accept its licence on huggingface.co and set HF_TOKEN to your token.",
        ) from None
    except errors.RepositoryNotFoundError:
        raise ModelNotFound(
            f"the hub has no public repository {name.repo_id}",
            remedy="Check the spelling; for a private one set HF_TOKEN.",
        ) from None
    except errors.RevisionNotFoundError:
        raise ModelNotFound(f"{name.repo_id} has no revision {name.revision}") from None
    except errors.HfHubHTTPError as error:
        status = getattr(error.response, "status_code", None)
        raise DownloadError(
            f"the hub refused {name.repo_id}", value=f"HTTP {status}", remedy=_TRY_AGAIN
        ) from None
    except errors.HFValidationError:
        raise ModelNotFound("the hub allows no such name", value=name.repo_id) from None
    except (transport_error, OSError, ValueError, KeyError) as error:
        reason = error.strerror if isinstance(error, OSError) else None
        first_line = (str(error).splitlines() or [type(error).__name__])[0]
        raise DownloadError(
            f"could not fetch {name.repo_id}",
            value=reason or first_line[:160],
            remedy=_TRY_AGAIN,
        ) from None


_TRY_AGAIN = "Check the network and run the command again: it goes on where it stopped."
