"""`twostroke list`: the models that run without the network."""

from __future__ import annotations

import typer

from twostroke.cli.options import JSON
from twostroke.cli.text_output import print_json, print_rows, printable, size_text
from twostroke.model.local_models import list_local

OPTIONS = (JSON,)


def command(*, as_json: bool) -> None:
    """List the models on this machine, fetched by twostroke or by other Hugging Face tools.

    \b
    Examples:
      twostroke list
      twostroke list --json
    """
    models = list_local()
    if as_json:
        entries = [
            {
                "name": printable(model.name),
                "source": model.source,
                "bytes": model.size_bytes,
                "paths": [printable(str(path)) for path in model.paths],
            }
            for model in models
        ]
        print_json({"models": entries})
    elif models:
        rows = [(model.name, size_text(model.size_bytes), model.source) for model in models]
        print_rows([("NAME", "SIZE", "SOURCE"), *rows])
    else:
        typer.echo("No model is here yet. Fetch one: twostroke pull smollm2:135m", err=True)
