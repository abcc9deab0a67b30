"""API keys: several, from a file, compared in constant time.

Keys are kept as SHA-256 digests. Each key is a caller of its own, with its own part of the prefix
cache, so that timings and cache reports tell nobody about another's prompts.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable
from pathlib import Path

from twostroke.dataclass import dataclass
from twostroke.errors import ConfigError
from twostroke.server.refusals import Unauthorized

MAX_KEY_FILE_BYTES = 1 << 20
MIN_KEY_CHARS = 8


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks: a short name for logs that gives no key away, and the salt of their cache."""

    name: str = "anyone"
    salt: str = ""


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


class KeyRing:
    """The keys that open this server; without any, everybody is `anyone`."""

    def __init__(self, keys: Iterable[str] = (), *, cache_scope: str = "key") -> None:
        self._callers: list[tuple[bytes, Caller]] = []
        for key in keys:
            digest = hashlib.sha256(key.encode()).digest()
            name = f"key-{digest.hex()[:8]}"
            salt = "" if cache_scope == "shared" else f"key:{digest.hex()}"
            self._callers.append((digest, Caller(name, salt)))

    def caller(self, headers: Iterable[tuple[bytes, bytes]]) -> Caller:
        """Return who asks, by `Authorization: Bearer KEY` or `x-api-key: KEY`.

        Raises:
            Unauthorized: a key is needed and none of ours was given.
        """
        if not self._callers:
            return Caller()
        given = _given_key(headers)
        digest = hashlib.sha256(given or b"").digest()
        found = None
        for own, caller in self._callers:  # all of them, so that the time tells nothing
            if hmac.compare_digest(own, digest):
                found = caller
        if found is None or given is None:
            raise Unauthorized(
                "the API key is missing or unknown" if given is None else "the API key is unknown",
                remedy="Send it as `Authorization: Bearer KEY`.",
            )
        return found


def _given_key(headers: Iterable[tuple[bytes, bytes]]) -> bytes | None:
    for name, value in headers:
        if name == b"x-api-key":
            return value
        if name == b"authorization":
            scheme, _, key = value.partition(b" ")
            if scheme.lower() == b"bearer":
                return key.strip()
    return None
