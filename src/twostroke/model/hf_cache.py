"""The Hugging Face cache folder as it lies on disk: no network, no library of the hub.

models--OWNER--REPO/ holds refs/REVISION (a commit), snapshots/COMMIT/FILE (a link) and blobs/SHA256
(the bytes): the layout that other tools share, so that each finds the other's files.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from twostroke.dataclass import dataclass
from twostroke.model.names import HubName, is_repo_part, is_safe_file

_FOLDER_PREFIX = "models--"


def hf_cache_folder(environ: Mapping[str, str]) -> Path:
    """Return HF_HUB_CACHE, else HF_HOME/hub, else ~/.cache/huggingface/hub."""
    direct = environ.get("HF_HUB_CACHE") or environ.get("HUGGINGFACE_HUB_CACHE")
    if direct:
        return Path(direct).expanduser()
    home = environ.get("HF_HOME")
    if home:
        return Path(home).expanduser() / "hub"
    caches = environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(caches).expanduser() / "huggingface" / "hub"


def is_commit(text: str) -> bool:
    """Whether a text is a full commit hash."""
    return bool(re.fullmatch(r"[0-9a-f]{40}", text))


def is_offline(environ: Mapping[str, str]) -> bool:
    """Whether the user forbids the network: HF_HUB_OFFLINE is 1, true, yes or on."""
    return environ.get("HF_HUB_OFFLINE", "").lower() in ("1", "true", "yes", "on")


@dataclass(frozen=True, slots=True)
class CachedFile:
    """One GGUF file of a snapshot."""

    repo_id: str
    commit: str
    file: str
    path: Path


@dataclass(frozen=True, slots=True)
class RepoFolder:
    """The cache folder of one repository; it need not exist."""

    path: Path

    def commit_of(self, revision: str) -> str | None:
        """Return the commit that a revision meant when it was last fetched."""
        if is_commit(revision):
            return revision
        try:
            commit = (self.path / "refs" / revision).read_text().strip()
        except (OSError, UnicodeDecodeError):
            return None
        return commit if is_commit(commit) else None

    def snapshot(self, commit: str) -> Path:
        """Return the folder of one commit's files."""
        return self.path / "snapshots" / commit

    def blob(self, sha256: str) -> Path:
        """Return the path of a file's bytes."""
        return self.path / "blobs" / sha256

    def files(self, commit: str) -> list[str]:
        """Return the complete GGUF files of a commit, relative to its snapshot."""
        root = self.snapshot(commit)
        found = (path.relative_to(root).as_posix() for path in root.rglob("*.[gG][gG][uU][fF]"))
        return sorted(file for file in found if is_safe_file(file) and (root / file).is_file())

    def sha256_of(self, path: Path) -> str | None:
        """Return the hash that names a snapshot file's blob, None where the name is no SHA-256."""
        name = path.resolve().name
        return name if re.fullmatch(r"[0-9a-f]{64}", name) else None

    def link(self, commit: str, file: str, sha256: str) -> Path:
        """Make a blob appear as a file of a commit."""
        pointer = self.snapshot(commit) / file
        pointer.parent.mkdir(parents=True, exist_ok=True)
        target = os.path.relpath(self.blob(sha256), pointer.parent)
        temporary = pointer.with_name(f"{pointer.name}.{os.getpid()}.link")
        temporary.unlink(missing_ok=True)
        temporary.symlink_to(target)
        os.replace(temporary, pointer)
        return pointer

    def set_ref(self, revision: str, commit: str) -> None:
        """Remember which commit a branch or tag means."""
        if revision == commit:
            return
        ref = self.path / "refs" / revision
        ref.parent.mkdir(parents=True, exist_ok=True)
        temporary = ref.with_name(f"{ref.name}.{os.getpid()}.tmp")
        temporary.write_text(commit)
        os.replace(temporary, ref)

    def remove(self, files: set[str], commit: str) -> int:
        """Delete files of one commit, and blobs that no other needs; return the bytes freed."""
        freed = 0
        for file in files:
            pointer = self.snapshot(commit) / file
            blob = pointer.resolve()
            pointer.unlink(missing_ok=True)
            is_ours = blob.parent == (self.path / "blobs").resolve()
            if is_ours and blob.exists() and not self._is_needed(blob):
                freed += blob.stat().st_size
                blob.unlink()
        self._prune(self.snapshot(commit))
        return freed

    def _is_needed(self, blob: Path) -> bool:
        links = (self.path / "snapshots").rglob("*")
        return any(link.is_symlink() and link.resolve() == blob for link in links)

    def _prune(self, snapshot: Path) -> None:
        """Delete folders that the removal left empty, the whole repository if nothing remains."""
        for folder, _, _ in os.walk(snapshot, topdown=False):
            if not os.listdir(folder):
                os.rmdir(folder)
        remaining = [p for p in self.path.rglob("*") if not p.is_dir() and p.parent.name != "refs"]
        if not remaining and self.path.is_dir():
            for folder, _, files in os.walk(self.path, topdown=False):
                for ref in files:
                    os.unlink(os.path.join(folder, ref))
                os.rmdir(folder)


def repo_folder(cache: Path, name: HubName) -> RepoFolder:
    """Return the folder of a repository."""
    return RepoFolder(cache / f"{_FOLDER_PREFIX}{name.owner}--{name.repo}")


def cached_files(cache: Path) -> Iterator[CachedFile]:
    """Find every GGUF file of every repository in the cache."""
    for folder in sorted(cache.glob(f"{_FOLDER_PREFIX}*--*")):
        owner, _, repo = folder.name[len(_FOLDER_PREFIX) :].partition("--")
        if not is_repo_part(owner) or not is_repo_part(repo):
            continue
        repo_files = RepoFolder(folder)
        for snapshot in sorted((folder / "snapshots").glob("*")):
            if is_commit(snapshot.name):
                for file in repo_files.files(snapshot.name):
                    yield CachedFile(f"{owner}/{repo}", snapshot.name, file, snapshot / file)
