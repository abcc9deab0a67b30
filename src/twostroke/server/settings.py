"""The settings of a server: names, address and every limit, each with a name. No I/O."""

from __future__ import annotations

import math
from dataclasses import field, fields

from twostroke.dataclass import dataclass
from twostroke.errors import ConfigError

CACHE_SCOPES = ("key", "shared")
LOG_FORMATS = ("text", "json", "off")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerLimits:
    """The most that one request, one client or all clients together may ask for.

    Units: names ending in _bytes are bytes, in _s seconds; the rest are counts.
    """

    max_body_bytes: int = 16 << 20
    max_header_bytes: int = 64 << 10
    max_prompt_bytes: int = 4 << 20
    max_messages: int = 2048
    max_prompts: int = 32  # in one completion request
    max_choices: int = 16  # prompts times n
    max_stops: int = 16
    max_logprobs: int = 20
    max_concurrency: int = 256  # requests in flight
    max_waiting: int = 256  # answers that wait in the engine
    default_max_tokens: int | None = None  # None: the room left in the context
    max_output_tokens: int | None = None  # the server's cap, whatever a request asks
    body_timeout_s: float = 30.0
    slow_client_s: float = 60.0  # a client that takes nothing for so long is cut off
    render_timeout_s: float = 2.0  # the chat template's deadline
    grammar_timeout_s: float = 5.0  # compiling a JSON schema
    keep_alive_s: float = 1.0  # silence after which a stream sends a comment
    stuck_s: float = 30.0  # not ready when work waits and nothing moves for so long
    drain_s: float = 30.0  # how long SIGTERM waits for answers in flight

    def __post_init__(self) -> None:
        for f in fields(self):
            value = getattr(self, f.name)
            if value is None:
                continue
            if isinstance(value, bool) or not math.isfinite(value) or value <= 0:
                raise ConfigError(f"{f.name} must be positive", value=value, param=f.name)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    """The server as its clients see it. names: the model's names, the first one in replies."""

    names: tuple[str, ...]
    host: str = "127.0.0.1"
    port: int = 8000
    cache_scope: str = "key"  # key: callers with different keys share no prefix; shared: all do
    log_format: str = "text"
    cors_origins: tuple[str, ...] = ()
    limits: ServerLimits = field(default_factory=ServerLimits)

    def __post_init__(self) -> None:
        if not self.names or any(not n or len(n) > 256 for n in self.names):
            raise ConfigError("a model name must have 1 to 256 characters", value=self.names)
        if not 0 <= self.port <= 65535:
            raise ConfigError("port is out of range", value=self.port, limit="[0, 65535]")
        if self.cache_scope not in CACHE_SCOPES:
            raise ConfigError("unknown cache scope", value=self.cache_scope, limit=CACHE_SCOPES)
        if self.log_format not in LOG_FORMATS:
            raise ConfigError("unknown log format", value=self.log_format, limit=LOG_FORMATS)
