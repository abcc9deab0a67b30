"""Typer's command of a verb, made from the verb's table of options."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from inspect import Parameter, Signature
from typing import Annotated, Any

import typer

from twostroke.cli.table import Option, arguments_of


def typer_command(verb: Callable[..., None], options: Sequence[Option]) -> Callable[..., None]:
    """Return the function that `Typer.command` takes: it calls the verb with the parsed values."""

    def command(**values: Any) -> None:
        verb(**arguments_of(options, values))

    command.__doc__ = verb.__doc__
    # Typer reads names, types and defaults from the signature.
    command.__signature__ = Signature([_parameter(option) for option in options])  # type: ignore[attr-defined]
    return command


def _parameter(option: Option) -> Parameter:
    default = Parameter.empty if option.is_required else option.default
    kind: Any = option.type
    if option.repeats:
        kind = list[kind]
    if default is None:
        kind = kind | None
    info = (
        typer.Argument(metavar=option.metavar, help=option.help)
        if option.is_argument
        else typer.Option(*option.flags, help=option.help, min=option.low, max=option.high)
    )
    annotation = Annotated[kind, info]
    return Parameter(option.name, Parameter.KEYWORD_ONLY, default=default, annotation=annotation)
