"""twostroke perplexity: how well a model predicts a text, window by window."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Annotated

import typer

from twostroke.cli import options
from twostroke.cli.engine_options import engine_config
from twostroke.errors import RequestError

MAX_TEXT_BYTES = 64 << 20


def read_text(path: Path) -> str:
    """Return a UTF-8 file's text.

    Raises:
        RequestError: it cannot be read, is too large, or no UTF-8.
    """
    try:
        size = path.stat().st_size
        if size > MAX_TEXT_BYTES:
            raise RequestError("the text is too large", value=size, limit=f"{MAX_TEXT_BYTES} bytes")
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise RequestError(f"{path} cannot be read", value=error.strerror) from error
    except UnicodeDecodeError as error:
        raise RequestError(f"{path} is no UTF-8 text", value=str(error)) from error


def windows(token_ids: tuple[int, ...], size: int) -> list[tuple[int, ...]]:
    """Return whole windows, none overlapping; the last partial one is dropped.

    Raises:
        RequestError: the text is shorter than one window.
    """
    if len(token_ids) < size:
        raise RequestError(
            "the text is shorter than one window",
            value=f"{len(token_ids)} tokens",
            limit=f"{size} tokens",
            remedy="Give a longer text or a smaller --window.",
        )
    return [token_ids[i : i + size] for i in range(0, len(token_ids) - size + 1, size)]


def command(
    model: options.Model,
    file: Annotated[Path, typer.Argument(help="A UTF-8 text file.")],
    window: Annotated[int, typer.Option("--window", min=2, help="Tokens of a window.")] = 1024,
    threads: options.Threads = None,
    prefill_chunk: options.PrefillChunk = 512,
    kv_type: options.KvTypeName = "bf16",
    backend: options.Backend = "auto",
    kernels: options.Kernels = None,
    as_json: options.Json = False,
) -> None:
    """Measure a model's perplexity on a text: mean over all but each window's first token.

    Example: twostroke perplexity smollm2:135m book.txt --window 1024
    """
    text = read_text(file)
    config = engine_config(
        threads=threads,
        kv_type=kv_type,
        backend=backend,
        kernels=kernels,
        prefill_chunk=prefill_chunk,
        max_num_seqs=1,
    )
    from twostroke.llm import LLM

    llm = LLM(model, config)
    parts = windows(tuple(llm.model.tokenizer.encode(text)), window)
    total = 0.0
    for i, part in enumerate(parts):
        total -= sum(llm.score(part))
        so_far = math.exp(total / ((i + 1) * (window - 1)))
        print(f"window {i + 1}/{len(parts)}: perplexity {so_far:.4f} so far", file=sys.stderr)
    nll = total / (len(parts) * (window - 1))
    if as_json:
        tokens = len(parts) * window
        document = {"tokens": tokens, "windows": len(parts), "nll": nll}
        print(json.dumps({**document, "perplexity": math.exp(nll)}))
    else:
        print(f"perplexity {math.exp(nll):.4f} ({len(parts)} windows of {window} tokens)")
