"""twostroke perplexity: how well a model predicts a text, window by window."""

from __future__ import annotations

import json
import math
import sys
from dataclasses import replace
from pathlib import Path

from twostroke.cli.options import JSON, MEASURED_ENGINE, MODEL
from twostroke.cli.table import Option
from twostroke.config import EngineConfig
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


OPTIONS = (
    MODEL,
    Option("file", Path, "A UTF-8 text file.", is_required=True, metavar="FILE"),
    Option("window", int, "Tokens of a window.", 1024, low=2),
    *MEASURED_ENGINE,
    JSON,
)


def command(
    model: str,
    *,
    file: Path,
    window: int,
    config: EngineConfig,
    as_json: bool,
) -> None:
    """Measure a model's perplexity on a text: mean over all but each window's first token.

    Example: twostroke perplexity smollm2:135m book.txt --window 1024
    """
    text = read_text(file)
    from twostroke.llm import LLM

    llm = LLM(model, replace(config, max_num_seqs=1))
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
