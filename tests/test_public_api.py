"""The names that `from twostroke import ...` offers, and no others."""

from __future__ import annotations

import pytest

import twostroke


def test_every_public_name_resolves() -> None:
    assert len(set(twostroke.__all__)) == len(twostroke.__all__) == 5
    for name in twostroke.__all__:
        assert getattr(twostroke, name).__name__ == name


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = twostroke.no_such_name
