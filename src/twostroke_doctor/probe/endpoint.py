"""Where the probe asks: an address that is read once, without a password in it."""

from __future__ import annotations

from dataclasses import field
from urllib.parse import urlsplit

from twostroke.dataclass import dataclass
from twostroke.errors import ConfigError

_REMEDY = "Write it as http://127.0.0.1:8080 or https://host/v1."
_ROUTES = ("/chat/completions", "/completions", "/api/generate", "/api/chat", "/v1", "/api")
_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where to ask. prefix: the part of the path before /v1 or /api."""

    scheme: str
    host: str
    port: int
    prefix: str
    key: str | None = field(default=None, repr=False)

    @property
    def is_local(self) -> bool:
        """Whether the server runs on this machine."""
        return self.host in ("localhost", "127.0.0.1", "::1")

    @property
    def text(self) -> str:
        """Return the address without the key."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}{self.prefix}"


def parse_endpoint(url: str, key: str | None = None) -> Endpoint:
    """Read http(s)://host[:port][/prefix][/v1].

    Raises:
        ConfigError: not such an address.
    """
    try:
        parts = urlsplit(url if "://" in url else f"http://{url}")
        port = parts.port
    except ValueError as error:
        raise ConfigError(f"--url is no address: {error}", remedy=_REMEDY) from error
    if parts.scheme not in _PORTS or not parts.hostname or parts.username:
        raise ConfigError("--url is no address that can be asked", value=url, remedy=_REMEDY)
    if any(ord(c) <= 32 or ord(c) >= 127 for c in url):
        raise ConfigError("--url holds characters that no address has", remedy=_REMEDY)
    prefix = parts.path.rstrip("/")
    for route in _ROUTES:
        prefix = prefix.removesuffix(route)
    return Endpoint(parts.scheme, parts.hostname, port or _PORTS[parts.scheme], prefix, key)
