"""The file of API keys that a server is started with."""

from __future__ import annotations

from pathlib import Path

from twostroke.errors import ConfigError

MAX_KEY_FILE_BYTES = 1 << 20
MIN_KEY_CHARS = 8


def read_keys(path: Path) -> tuple[str, ...]:
    """Return the keys of a file: one a line, blank lines and lines that begin with # left out.

    Raises:
        ConfigError: it cannot be read, or holds no key or a short one.
    """
    try:
        with path.open("rb") as file:
            text = file.read(MAX_KEY_FILE_BYTES + 1).decode("ascii")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError("the API key file cannot be read", value=f"{path}: {error}") from error
    if len(text) > MAX_KEY_FILE_BYTES:
        raise ConfigError("the API key file is too long", limit=f"{MAX_KEY_FILE_BYTES} bytes")
    lines = (line.strip() for line in text.splitlines())
    keys = tuple(line for line in lines if line and not line.startswith("#"))
    if not keys:
        raise ConfigError("the API key file holds no key", value=path)
    if any(len(key) < MIN_KEY_CHARS for key in keys):
        raise ConfigError("an API key is too short", limit=f">= {MIN_KEY_CHARS} characters")
    return keys
