"""The folder of packed files: atomic writes, a bound on its size, oldest files removed first."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

_SUFFIX = ".packed"
_STALE_TEMPORARY_S = 3600.0  # a writer that takes longer has been killed


class PackedFolder:
    """Files by key under one folder. A failing disk gives a warning, never an error."""

    def __init__(self, path: Path, max_bytes: int) -> None:
        self.path, self.max_bytes = path, max_bytes
        self._has_warned = False

    def path_of(self, key: str) -> Path:
        """Return where the file of a key is, or would be."""
        return self.path / f"{key}{_SUFFIX}"

    def touch(self, key: str) -> None:
        """Mark a file as just used, so that it is removed last."""
        with contextlib.suppress(OSError):
            os.utime(self.path_of(key))

    def write(self, key: str, parts: Iterable[Any]) -> Path | None:
        """Write a file whole or not at all, then remove the oldest others beyond the bound.

        Returns:
            the path, or None where it could not be kept; the first time with a warning.
        """
        parts = [memoryview(part).cast("B") for part in parts]
        size = sum(part.nbytes for part in parts)
        if size > self.max_bytes:
            self._warn(f"{size} bytes exceed TWOSTROKE_PACKED_CACHE_GB ({self.max_bytes} bytes)")
            return None
        target = self.path_of(key)
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self._prune(self.max_bytes - size, keep=target)
            self._write_then_rename(target, parts)
        except OSError as error:
            self._warn(str(error))
            return None
        return target

    def _write_then_rename(self, target: Path, parts: list[memoryview]) -> None:
        import tempfile

        handle, name = tempfile.mkstemp(prefix=".", suffix=".tmp", dir=self.path)
        try:
            with os.fdopen(handle, "wb") as file:
                for part in parts:
                    file.write(part)
                file.flush()
                os.fsync(file.fileno())
            os.replace(name, target)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(name)
            raise

    def _prune(self, allowed_bytes: int, *, keep: Path) -> None:
        """Remove files of killed writers, then the least recently used files beyond the bound."""
        for left in self.path.glob(".*.tmp"):
            with contextlib.suppress(OSError):
                if time.time() - left.stat().st_mtime > _STALE_TEMPORARY_S:
                    left.unlink()
        files = []
        for path in self.path.glob(f"*{_SUFFIX}"):
            with contextlib.suppress(OSError):
                status = path.stat()
                files.append((status.st_mtime_ns, status.st_size, path))
        used = sum(size for _, size, path in files if path != keep)
        for _, size, path in sorted(files):
            if used <= allowed_bytes:
                return
            if path != keep:
                path.unlink(missing_ok=True)
                used -= size

    def _warn(self, why: str) -> None:
        if not self._has_warned:
            self._has_warned = True
            import logging

            logger = logging.getLogger(__name__)
            logger.warning("repacked weights are not kept on disk: %s", why)
