"""The command `twostroke` as a Typer app: its verbs, each with its options and its help."""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module

import typer

from twostroke import __version__
from twostroke.cli.typer_command import typer_command

# Verb -> module. Only the verb that is called is imported: the first token waits for every import.
VERBS = {
    "run": "twostroke.cli.run",
    "chat": "twostroke.cli.chat",
    "serve": "twostroke.cli.serve",
    "bench": "twostroke.cli.bench",
    "perplexity": "twostroke.cli.perplexity",
    "pull": "twostroke.cli.pull",
    "list": "twostroke.cli.list",
    "show": "twostroke.cli.show",
    "rm": "twostroke.cli.rm",
    "doctor": "twostroke.cli.doctor",
    "plan": "twostroke.cli.plan",
    "predict": "twostroke.cli.predict",
}


def _version(value: bool) -> None:
    if value:
        typer.echo(f"twostroke {__version__}")
        raise typer.Exit()


def _root(
    version: bool = typer.Option(
        False, "--version", callback=_version, is_eager=True, help="Print the version and stop."
    ),
) -> None:
    """Run open-weight models and see where the time goes: prefill, then decode."""


def make_app(verbs: Iterable[str] = VERBS) -> typer.Typer:
    """Return the command with some of its verbs; importing them is what takes time."""
    app = typer.Typer(
        name="twostroke",
        help="Run open-weight models and see where the time goes: prefill, then decode.",
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_root)
    for verb in verbs:
        module = import_module(VERBS[verb])
        app.command(verb)(typer_command(module.command, module.OPTIONS))
    return app
