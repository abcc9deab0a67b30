"""The command `twostroke`: runs a verb and turns our errors into one sentence and an exit code.

Exit codes: 0 done, 1 failure or finding, 2 usage, 3 unknown, 130 interrupted.
"""

from __future__ import annotations

import sys
from typing import Any

from twostroke.cli import quick_run
from twostroke.cli.start import without_garbage_collection
from twostroke.errors import TwoStrokeError


def invoke(arguments: list[str]) -> int:
    """Run one command line and return its exit code; never raises for a user's mistake."""
    given = quick_run.parse(arguments[1:]) if arguments[:1] == ["run"] else None
    try:
        if given is not None:
            _run(given)
        else:
            _run_verb(arguments)
    except TwoStrokeError as error:
        print(f"twostroke: {error}", file=sys.stderr)
        return error.exit_code
    except SystemExit as end:  # Typer's way to end: help, usage errors (2), Ctrl-C (130)
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    return 0


def _run(given: dict[str, Any]) -> None:
    """Answer a prompt without Typer, unless it is interrupted: Typer knows how that ends."""
    from twostroke.cli.answer import answer

    try:
        answer(**given)
    except (KeyboardInterrupt, EOFError, OSError) as error:
        from twostroke.cli.app import make_failing_app

        make_failing_app("run", error)(["run"])


def _run_verb(arguments: list[str]) -> None:
    with without_garbage_collection():
        from twostroke.cli.app import VERBS, make_app

        named = [verb for verb in arguments[:1] if verb in VERBS]
        app = make_app(named or VERBS)
    app(arguments)


def main() -> None:
    """Entry point of the console script."""
    sys.exit(invoke(sys.argv[1:]))
