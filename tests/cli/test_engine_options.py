"""Values of flags."""

from __future__ import annotations

import pytest

from twostroke.cli.engine_options import engine_config, parse_bytes, parse_ints
from twostroke.config import KvType
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


def test_a_flag_wins_over_its_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TWOSTROKE_THREADS", "3")
    monkeypatch.setenv("TWOSTROKE_KERNELS", "scalar")
    assert engine_config().threads == 3
    assert engine_config(threads=1).threads == 1
    assert engine_config().kernel_set == "scalar"
    assert engine_config(kernels="avx2").kernel_set == "avx2"


def test_a_bad_variable_is_an_error_that_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TWOSTROKE_THREADS", "many")
    with pytest.raises(ConfigError, match="TWOSTROKE_THREADS"):
        engine_config()


def test_kv_types_go_by_their_names() -> None:
    assert engine_config(kv_type="q8").kv_type is KvType.Q8
    with pytest.raises(ConfigError, match="q4"):
        engine_config(kv_type="q4")
