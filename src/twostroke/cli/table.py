"""One row for each option of a verb: its name, type, default, help, and the setting it makes.

The rows are data: `typer_command` makes Typer's commands of them and `docs/options.md` lists them.
This module knows no verb and no Typer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from twostroke.dataclass import dataclass


@dataclass(frozen=True, slots=True)
class Settings:
    """An object that several options make together: the verb gets it as one argument."""

    argument: str
    make: Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Option:
    """One option, or one argument when it has a `metavar`.

    type: str, int, float, bool or Path. default None: the value is None when it is not given.
    flag: `--name` with dashes unless given. repeats: the value is a list.
    low, high: bounds that Typer checks. parse: makes the verb's value of the given one.
    settings, field: the object that the value goes into, and its field there (default: name).
    """

    name: str
    type: type = str
    help: str | None = None
    default: Any = None
    short: str | None = None
    flag: str | None = None
    metavar: str | None = None
    is_required: bool = False
    repeats: bool = False
    low: float | None = None
    high: float | None = None
    parse: Callable[[Any], Any] | None = None
    settings: Settings | None = None
    field: str | None = None

    @property
    def is_argument(self) -> bool:
        """Whether the value stands on the command line without a name."""
        return self.metavar is not None

    @property
    def flags(self) -> tuple[str, ...]:
        """The names on the command line, the long one first; none for an argument."""
        if self.is_argument:
            return ()
        long = self.flag or "--" + self.name.replace("_", "-")
        return (long,) if self.short is None else (long, self.short)


def arguments_of(options: Iterable[Option], values: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a verb is called with: each value by its name, settings as one object each.

    A name without a value gets the option's default; a field whose value is None is left out.

    Raises:
        ConfigError, InvalidSampling: a value that its parser or its settings refuse.
    """
    arguments: dict[str, Any] = {}
    fields: dict[Settings, dict[str, Any]] = {}
    for option in options:
        value = values.get(option.name, option.default)
        if value is not None and option.parse is not None:
            value = option.parse(value)
        if option.settings is None:
            arguments[option.name] = value
        else:
            fields.setdefault(option.settings, {})[option.field or option.name] = value
    for settings, given in fields.items():
        named = {field: value for field, value in given.items() if value is not None}
        arguments[settings.argument] = settings.make(**named)
    return arguments
