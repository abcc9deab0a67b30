"""The command `twostroke`: registers the verbs and turns our errors into one sentence and an exit
code.

Exit codes: 0 done, 1 failure or finding, 2 usage, 3 unknown, 130 interrupted.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from importlib import import_module

import typer

from twostroke import __version__
from twostroke.errors import TwoStrokeError

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
        app.command(verb)(import_module(VERBS[verb]).command)
    return app


def invoke(arguments: list[str]) -> int:
    """Run one command line and return its exit code; never raises for a user's mistake."""
    named = [verb for verb in arguments[:1] if verb in VERBS]
    try:
        make_app(named or VERBS)(arguments)
    except TwoStrokeError as error:
        print(f"twostroke: {error}", file=sys.stderr)
        return error.exit_code
    except SystemExit as end:  # Typer's way to end: help, usage errors (2), Ctrl-C (130)
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    return 0


def main() -> None:
    """Entry point of the console script."""
    sys.exit(invoke(sys.argv[1:]))
