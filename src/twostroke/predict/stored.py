"""Fits on disk, one file a model, KV type, machine and build. An unreadable file counts as none."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from twostroke import __version__
from twostroke.predict.fitted_speed import FittedSpeed
from twostroke.predict.hardware import MachineProfile

STAND_IN = 1.5  # another model's fit is this much less certain
_MOST_BYTES = 1 << 16
_MOST_FILES = 200


def fit_path(folder: Path, model: Path, kv: str, profile: MachineProfile) -> Path:
    """Return where the fit of a model, KV type, machine and build is kept."""
    fields = [str(model.stat().st_size), model.name, kv, profile.cpu, profile.kernel_set]
    fields += [str(profile.threads), __version__]
    name = hashlib.sha256("\x1f".join(fields).encode()).hexdigest()[:16]
    return folder / f"{name}.json"


def stored_fit(folder: Path, model: Path, kv: str, profile: MachineProfile) -> FittedSpeed | None:
    """Return the fit of this model; else the newest of another one here, its interval widened.

    None where there is neither.
    """
    try:
        own = _read(fit_path(folder, model, kv, profile), profile)
    except OSError:
        return None
    if own is not None:
        return own[0]
    for path in _newest(folder):
        other = _read(path, profile)
        if other is not None and other[1].get("kv_type") == kv:
            name = f"{profile.cpu}, fitted to {other[1].get('model')}"
            return other[0].widened(STAND_IN, name)
    return None


def store_fit(
    folder: Path, model: Path, kv: str, profile: MachineProfile, speed: FittedSpeed
) -> None:
    """Keep a fit; a folder that cannot be written keeps none."""
    import tempfile

    document = {**speed.to_dict(), "model": model.name, "kv_type": kv, "build": __version__}
    with contextlib.suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
        path = fit_path(folder, model, kv, profile)
        handle, name = tempfile.mkstemp(prefix=".", suffix=".tmp", dir=folder)
        with os.fdopen(handle, "w") as file:
            json.dump(document, file)
        os.replace(name, path)


def _newest(folder: Path) -> Iterable[Path]:
    try:
        found = [(path.stat().st_mtime, path) for path in folder.glob("*.json")]
    except OSError:
        return ()
    return [path for _, path in sorted(found, reverse=True)[:_MOST_FILES]]


def _read(path: Path, profile: MachineProfile) -> tuple[FittedSpeed, dict[str, Any]] | None:
    """Return a fit of this machine and build, and the whole document of its file."""
    try:
        if path.stat().st_size > _MOST_BYTES:
            return None
        data = json.loads(path.read_text())
        speed = FittedSpeed.from_dict(data)
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return None
    found = speed.profile
    assert found is not None
    same = (found.cpu, found.kernel_set, found.threads)
    if same != (profile.cpu, profile.kernel_set, profile.threads):
        return None
    return (speed, data) if data.get("build") == __version__ else None
