"""`twostroke pull`: fetch a model, or say that it is here."""

from __future__ import annotations

import typer

from twostroke.cli.download_bar import DownloadBar
from twostroke.cli.options import JSON
from twostroke.cli.table import Option
from twostroke.cli.text_output import print_json, printable, size_text
from twostroke.model.hub import resolve

OPTIONS = (
    Option(
        "name",
        # No square brackets: typer reads them as markup.
        help="smollm2:135m, hf:owner/repo, hf:owner/repo:QUANT or hf:owner/repo/file.gguf; "
        "a hub name may end in @revision.",
        is_required=True,
        metavar="NAME",
    ),
    JSON,
)


def command(name: str, *, as_json: bool) -> None:
    """Fetch a model by name; an interrupted download goes on where it stopped.

    \b
    Examples:
      twostroke pull smollm2:135m
      twostroke pull hf:bartowski/Llama-3.2-1B-Instruct-GGUF:Q4_K_M
    """
    with DownloadBar() as progress:
        files = resolve(name, progress=progress)
    size = sum(path.stat().st_size for path in files.paths)
    if as_json:
        print_json(
            {
                "name": files.name,
                "source": files.source,
                "path": printable(str(files.path)),
                "paths": [printable(str(path)) for path in files.paths],
                "bytes": size,
                "sha256": files.sha256,
                "fetched": progress.has_fetched,
            }
        )
        return
    state = "fetched" if progress.has_fetched else "already here"
    typer.echo(f"{printable(files.name)}: {state}, {size_text(size)}")
    typer.echo(printable(str(files.path)))
