"""Values of flags."""

from __future__ import annotations

import pytest

from twostroke.cli.engine_options import parse_bytes, parse_ints
from twostroke.cli.options import ENGINE
from twostroke.cli.table import arguments_of
from twostroke.config import EngineConfig, KvType
from twostroke.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("4GB", 4_000_000_000),
        ("4GiB", 4 << 30),
        ("512MiB", 512 << 20),
        ("512m", 512_000_000),
        ("1.5 gb", 1_500_000_000),
        ("1024", 1024),
        ("2T", 2_000_000_000_000),
    ],
)
def test_sizes_are_decimal_unless_they_say_i(text: str, expected: int) -> None:
    assert parse_bytes(text, param="--kv-memory") == expected


@pytest.mark.parametrize("text", ["", "GB", "-1GB", "4 GB GB", "1e9", "nan", "4XB"])
def test_what_is_no_size_is_refused_with_the_flag_named(text: str) -> None:
    with pytest.raises(ConfigError, match="--kv-memory"):
        parse_bytes(text, param="--kv-memory")


def test_lists_of_integers_are_checked_one_by_one() -> None:
    assert parse_ints("512, 2048", param="--prompt") == (512, 2048)
    for bad in ("", "512,", "0", "-1", "1.5", "99999999999"):
        with pytest.raises(ConfigError, match="--prompt"):
            parse_ints(bad, param="--prompt")


def config_of(**flags: object) -> EngineConfig:
    """The engine's settings that these flags make."""
    config: EngineConfig = arguments_of(ENGINE, flags)["config"]
    return config


def test_a_flag_wins_over_its_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TWOSTROKE_THREADS", "3")
    monkeypatch.setenv("TWOSTROKE_KERNELS", "scalar")
    assert config_of().threads == 3
    assert config_of(threads=1).threads == 1
    assert config_of().kernel_set == "scalar"
    assert config_of(kernels="avx2").kernel_set == "avx2"


def test_a_bad_variable_is_an_error_that_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TWOSTROKE_THREADS", "many")
    with pytest.raises(ConfigError, match="TWOSTROKE_THREADS"):
        config_of()


def test_kv_types_go_by_their_names() -> None:
    assert config_of(kv_type="q8").kv_type is KvType.Q8
    with pytest.raises(ConfigError, match="q4"):
        config_of(kv_type="q4")


def test_without_flags_the_engine_gets_its_own_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TWOSTROKE_THREADS", raising=False)
    monkeypatch.delenv("TWOSTROKE_KERNELS", raising=False)
    assert config_of() == EngineConfig()
