"""Reads a plain command line without Typer, whose import would delay the first token of `run`.

Gives up, so that Typer decides, on every line that is not plain: help, mistakes, values that begin
with a dash, an option given twice.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from twostroke.cli.table import Option


def parse(options: Sequence[Option], words: Sequence[str]) -> dict[str, Any] | None:
    """Return the values that the words give to a verb's options; None: Typer has to read them."""
    if any(name.startswith("_") and name.endswith("_COMPLETE") for name in os.environ):
        return None  # a shell asks for completions
    named = {flag: option for option in options for flag in option.flags}
    unnamed = iter([option for option in options if option.is_argument])
    values: dict[str, Any] = {}
    rest = list(reversed(words))
    while rest:
        word = rest.pop()
        flag, equals, text = word.partition("=")
        option = named.get(flag)
        if option is None:
            option, text = (None if word.startswith("-") else next(unnamed, None)), word
        elif equals and (option.type is bool or flag == option.short):
            return None
        elif not equals and option.type is not bool:
            text = rest.pop() if rest else "--"
        value = None if option is None else _converted(option, text)
        if option is None or value is None or (option.name in values and not option.repeats):
            return None
        if option.repeats:
            values.setdefault(option.name, []).append(value)
        else:
            values[option.name] = value
    is_whole = all(option.name in values for option in options if option.is_required)
    return values if is_whole else None


def _converted(option: Option, text: str) -> Any:
    """Return an option's value as Typer converts it; None where Typer has to decide."""
    if option.type is bool:
        return True
    if text.startswith("-") and text != "-":
        return None
    try:
        return option.type(text)
    except ValueError:
        return None
