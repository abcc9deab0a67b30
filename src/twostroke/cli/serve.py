"""twostroke serve: one model behind OpenAI's, Anthropic's and Ollama's APIs."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING

from twostroke.cli.options import ENGINE, MAX_NUM_SEQS, MODEL
from twostroke.cli.table import Option
from twostroke.config import EngineConfig
from twostroke.errors import ConfigError

if TYPE_CHECKING:
    from twostroke.config import EngineConfig
    from twostroke.events import Observer
    from twostroke.server.service import Loaded, Loader
    from twostroke.server.settings import ServerLimits


def parse_limits(entries: list[str]) -> ServerLimits:
    """Return the limits with these entries of the form name=value; `none` lifts one.

    Raises:
        ConfigError: no such limit, or no such value.
    """
    from twostroke.server.settings import ServerLimits

    known = {f.name: f for f in fields(ServerLimits)}
    values: dict[str, float | None] = {}
    for entry in entries:
        name, _, text = entry.partition("=")
        if name not in known:
            raise ConfigError("unknown limit", value=name, limit=", ".join(sorted(known)))
        default = known[name].default
        try:
            if text == "none" and default is None:
                values[name] = None
            else:
                values[name] = float(text) if isinstance(default, float) else int(text)
        except ValueError:
            raise ConfigError(f"limit {name} is no number", value=text[:64]) from None
    return ServerLimits(**values)  # type: ignore[arg-type]


def loader(model: str, config: EngineConfig) -> Loader:
    """Return what loads this model when the server is up."""

    def load(observer: Observer) -> Loaded:
        from twostroke.build import build_engine
        from twostroke.model.loaded import load_model
        from twostroke.server.service import Loaded

        loaded = load_model(model)
        built = build_engine(loaded, config, observers=(observer,))
        return Loaded(loaded, built.engine, built.config, built.summary)

    return load


OPTIONS = (
    MODEL,
    Option("host", help="Address to listen on.", default="127.0.0.1"),
    Option("port", int, "Port; 0 takes a free one.", 8000),
    Option("api_key_file", Path, "File of API keys, one a line."),
    Option("served_name", help="Name of the model in the API; may be repeated.", repeats=True),
    Option("cache_scope", help="key: each API key its own prefix cache, or shared.", default="key"),
    Option("log_format", help="One line a request: text, json or off.", default="text"),
    Option("cors_origin", help="Web origin that may call; may be repeated.", repeats=True),
    Option("limit", help="Set a limit, such as max_output_tokens=1024; see docs.", repeats=True),
    MAX_NUM_SEQS,
    *ENGINE,
)


def command(
    model: str,
    *,
    host: str,
    port: int,
    api_key_file: Path | None,
    served_name: list[str] | None,
    cache_scope: str,
    log_format: str,
    cors_origin: list[str] | None,
    limit: list[str] | None,
    config: EngineConfig,
) -> None:
    """Serve a model to OpenAI, Anthropic and Ollama clients until Ctrl-C or SIGTERM.

    Example: twostroke serve smollm2:135m --port 8000
    """
    from twostroke.server.http.keys import read_keys
    from twostroke.server.run import serve
    from twostroke.server.service import Service
    from twostroke.server.settings import ServerSettings

    settings = ServerSettings(
        names=tuple(served_name or (model,)),
        host=host,
        port=port,
        cache_scope=cache_scope,
        log_format=log_format,
        cors_origins=tuple(cors_origin or ()),
        limits=parse_limits(limit or []),
    )
    keys = read_keys(api_key_file) if api_key_file is not None else ()
    serve(Service(settings, loader(model, config)), keys)
