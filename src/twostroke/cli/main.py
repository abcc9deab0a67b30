"""The command `twostroke`: registers the verbs and turns our errors into one sentence and an exit
code.

Exit codes: 0 done, 1 failure or finding, 2 usage, 3 unknown, 130 interrupted.
"""

from __future__ import annotations

import sys

import typer

from twostroke import __version__
from twostroke.cli import bench, chat, doctor, perplexity, plan, predict, pull, rm, run, serve, show
from twostroke.cli import list as list_models
from twostroke.errors import TwoStrokeError

app = typer.Typer(
    name="twostroke",
    help="Run open-weight models and see where the time goes: prefill, then decode.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command("run")(run.command)
app.command("chat")(chat.command)
app.command("serve")(serve.command)
app.command("bench")(bench.command)
app.command("perplexity")(perplexity.command)
app.command("pull")(pull.command)
app.command("list")(list_models.command)
app.command("show")(show.command)
app.command("rm")(rm.command)
app.command("doctor")(doctor.command)
app.command("plan")(plan.command)
app.command("predict")(predict.command)


def _version(value: bool) -> None:
    if value:
        typer.echo(f"twostroke {__version__}")
        raise typer.Exit()


@app.callback()
def root(
    version: bool = typer.Option(
        False, "--version", callback=_version, is_eager=True, help="Print the version and stop."
    ),
) -> None:
    """Run open-weight models and see where the time goes: prefill, then decode."""


def invoke(arguments: list[str]) -> int:
    """Run one command line and return its exit code; never raises for a user's mistake."""
    try:
        app(arguments)
    except TwoStrokeError as error:
        print(f"twostroke: {error}", file=sys.stderr)
        return error.exit_code
    except SystemExit as end:  # Typer's way to end: help, usage errors (2), Ctrl-C (130)
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    return 0


def main() -> None:
    """Entry point of the console script."""
    sys.exit(invoke(sys.argv[1:]))
