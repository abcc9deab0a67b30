"""The command `twostroke`: runs a verb and turns our errors into one sentence and an exit code.

Exit codes: 0 done, 1 failure or finding, 2 usage, 3 unknown, 130 interrupted.
"""

from __future__ import annotations

import os
import sys

from twostroke.cli.start import without_garbage_collection
from twostroke.errors import TwoStrokeError

INTERRUPTED = 130


def invoke(arguments: list[str]) -> int:
    """Run one command line and return its exit code; never raises for a user's mistake."""
    try:
        _run_verb(arguments)
    except TwoStrokeError as error:
        print(f"twostroke: {error}", file=sys.stderr)
        return error.exit_code
    except SystemExit as end:  # Typer's way to end: help, usage errors (2), Ctrl-C (130)
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except KeyboardInterrupt:
        return INTERRUPTED
    except EOFError:
        print("\nAborted!", file=sys.stderr)
        return 1
    except BrokenPipeError:  # whoever read our output has gone
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    return 0


def _run_verb(arguments: list[str]) -> None:
    with without_garbage_collection():
        from twostroke.cli.app import VERBS, make_app

        named = [verb for verb in arguments[:1] if verb in VERBS]
        app = make_app(named or VERBS)
    app(arguments)


def main() -> None:
    """Entry point of the console script."""
    sys.exit(invoke(sys.argv[1:]))
