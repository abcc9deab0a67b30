"""The filters and functions that a chat template may call, each within the bounds.

A function that can make much text out of little checks the size first. Left out on purpose:
`round`, `sum`, `center`, `format` and their like, which cannot be bounded so simply.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Any, NoReturn

from jinja2 import filters, pass_context
from jinja2.exceptions import SecurityError
from jinja2.runtime import Context

from twostroke.text.sandbox_bounds import (
    MAX_RANGE,
    BoundExceeded,
    check_values,
    count_chars,
    printed,
    run_of,
    start_time,
)

JINJA_FILTERS = [
    "abs", "capitalize", "count", "d", "default", "dictsort", "e", "escape", "first", "float",
    "int", "items", "last", "length", "list", "lower", "map", "max", "min", "reject",
    "rejectattr", "reverse", "safe", "select", "selectattr", "sort", "title", "trim", "unique",
    "upper",
]  # fmt: skip
STRING_METHODS = frozenset([
    "capitalize", "count", "endswith", "find", "index", "isalnum", "isalpha", "isascii",
    "isdecimal", "isdigit", "islower", "isnumeric", "isspace", "istitle", "isupper", "join",
    "lower", "lstrip", "partition", "removeprefix", "removesuffix", "replace", "rfind", "rindex",
    "rpartition", "rsplit", "rstrip", "split", "splitlines", "startswith", "strip", "swapcase",
    "title", "upper",
])  # fmt: skip


class RaisedByTemplate(Exception):
    """The template itself refused, by `raise_exception`."""


@pass_context
def replace(context: Context, text: object, old: str, new: str, count: int | None = None) -> str:
    """Replace a text by another, at most `count` times."""
    text, old, new = str(printed(text)), str(old), str(new)
    limit = -1 if count is None else count
    places = text.count(old) if limit < 0 else min(text.count(old), limit)
    count_chars(run_of(context), len(text) + places * max(len(new) - len(old), 0))
    return text.replace(old, new, limit)


@pass_context
def join(
    context: Context, values: Iterable[object], separator: object = "", attribute: object = None
) -> str:
    """Join texts with a separator between them."""
    if attribute is not None:
        raise SecurityError("join(attribute=...) is not available in a chat template")
    parts = [str(printed(value)) for value in values]
    separator = str(printed(separator))
    count_chars(run_of(context), sum(map(len, parts)) + len(separator) * len(parts))
    return separator.join(parts)


@pass_context
def _indent(
    context: Context, text: object, width: int | str = 4, first: bool = False, blank: bool = False
) -> str:
    text = str(printed(text))
    size = len(width) if isinstance(width, str) else int(width)
    count_chars(run_of(context), len(text) + max(size, 0) * (text.count("\n") + 1))
    return filters.do_indent(text, width, first, blank)


def _tojson(
    value: object,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Write JSON as Hugging Face does: no HTML escapes, Unicode as it is."""
    check_values(value)
    if indent is not None and not 0 <= indent <= 16:
        raise BoundExceeded("an indent of more than 16")
    return json.dumps(
        value,
        ensure_ascii=ensure_ascii,
        indent=indent,
        separators=separators,
        sort_keys=sort_keys,
    )


def _string(value: object) -> str:
    return str(printed(value))


def _range(*args: int) -> range:
    found = range(*args)
    if len(found) > MAX_RANGE:
        raise BoundExceeded(f"a range of more than {MAX_RANGE}")
    return found


def _raise(message: object = "") -> NoReturn:
    raise RaisedByTemplate(str(message)[:1000])


@pass_context
def _strftime_now(context: Context, pattern: str) -> str:
    if len(pattern) > 256 or any(c.isdigit() for c in pattern):
        raise BoundExceeded("a date pattern with a width, or of more than 256 characters")
    return start_time(run_of(context)).strftime(pattern)


BOUNDED_FILTERS: dict[str, Callable[..., Any]] = {
    "replace": replace,
    "join": join,
    "indent": _indent,
    "tojson": _tojson,
    "string": _string,
}
FUNCTIONS: dict[str, Callable[..., Any]] = {
    "range": _range,
    "dict": dict,
    "raise_exception": _raise,
    "strftime_now": _strftime_now,
}
