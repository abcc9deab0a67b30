"""`twostroke rm`: delete a fetched model."""

from __future__ import annotations

import typer

from twostroke.cli.options import JSON
from twostroke.cli.table import Option
from twostroke.cli.text_output import print_json, printable, size_text
from twostroke.model.hub import remove

OPTIONS = (
    Option("name", help="A name as `twostroke list` shows it.", is_required=True, metavar="NAME"),
    JSON,
)


def command(name: str, *, as_json: bool) -> None:
    """Delete a fetched model. Files that twostroke did not fetch are never touched.

    \b
    Examples:
      twostroke rm smollm2:135m
    """
    removed = remove(name)
    paths = [printable(str(path)) for path in removed.paths]
    if as_json:
        print_json({"name": printable(name), "paths": paths, "freed_bytes": removed.freed_bytes})
    else:
        typer.echo(f"removed {printable(name)}: {size_text(removed.freed_bytes)} freed")
