"""Limits from the command line, and settings that cannot be."""

from __future__ import annotations

from pathlib import Path

import pytest

from twostroke.cli.serve import parse_limits
from twostroke.errors import ConfigError
from twostroke.server.http.keys import read_keys
from twostroke.server.settings import ServerLimits, ServerSettings


def test_it_listens_to_this_machine_only_and_to_no_foreign_page_by_default() -> None:
    settings = ServerSettings(names=("m",))
    assert settings.host == "127.0.0.1" and settings.cors_origins == ()
    assert settings.cache_scope == "key"


def test_limits_are_read_by_name() -> None:
    limits = parse_limits(["max_choices=3", "drain_s=0.5", "max_output_tokens=9"])
    assert (limits.max_choices, limits.drain_s, limits.max_output_tokens) == (3, 0.5, 9)
    assert parse_limits(["max_output_tokens=none"]).max_output_tokens is None
    assert parse_limits([]) == ServerLimits()


@pytest.mark.parametrize(
    "entry",
    ["x=1", "max_choices", "max_choices=a", "max_choices=1.5", "max_choices=0", "drain_s=nan",
     "max_choices=none", "drain_s=-1"],
)  # fmt: skip
def test_a_bad_limit_is_refused(entry: str) -> None:
    with pytest.raises(ConfigError):
        parse_limits([entry])


@pytest.mark.parametrize(
    "fields",
    [{"names": ()}, {"names": ("",)}, {"port": 70000}, {"cache_scope": "x"}, {"log_format": "x"}],
)
def test_settings_that_cannot_be_are_refused(fields: dict) -> None:
    with pytest.raises(ConfigError):
        ServerSettings(**{"names": ("m",), **fields})


def test_keys_are_read_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text("# two callers\nfirst-long-key\n\n  second-long-key \n")
    assert read_keys(path) == ("first-long-key", "second-long-key")
    for text in ("", "# none\n", "short\n", "clé-secrète-longue\n", "x" * (2 << 20)):
        path.write_text(text)
        with pytest.raises(ConfigError):
            read_keys(path)
    with pytest.raises(ConfigError):
        read_keys(tmp_path / "missing")
