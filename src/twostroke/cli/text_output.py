"""Printing for commands: untrusted text made harmless, readable sizes, rows, one JSON document."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import typer


def printable(text: str) -> str:
    """Return text without control characters and half code points: it may come from a file."""
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text)


def size_text(nbytes: int) -> str:
    """Return bytes in decimal units, as disks are sold: 98.4 MB."""
    size = float(nbytes)
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000:
            return f"{nbytes} B" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} TB"


def print_json(document: dict[str, Any]) -> None:
    """Print one JSON document on stdout, ASCII only."""
    typer.echo(json.dumps(document, indent=2))


def print_rows(rows: Iterable[tuple[str, ...]]) -> None:
    """Print columns, each as wide as its widest cell, on stdout."""
    table = [tuple(printable(cell) for cell in row) for row in rows]
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    for row in table:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        typer.echo("  ".join(cells).rstrip())
