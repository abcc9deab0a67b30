"""Reads a plain `twostroke run` command line without Typer, whose import takes 35 ms of the wait
for a first token.

Gives up, so that Typer decides, on whatever is not plain: help, mistakes, values that begin with a
dash, an option given twice. A test holds the table below to Typer's own reading of `cli.run`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

FLAGS = {"--raw": "raw", "--explain": "explain", "--json": "as_json"}
SHORT = {"-p": "--prompt", "-n": "--max-tokens", "-t": "--threads"}
_MAY_REPEAT = "--stop"
VALUES: dict[str, Callable[[str], Any]] = {
    "--prompt": str,
    "--system": str,
    "--max-tokens": int,
    "--temperature": float,
    "--top-k": int,
    "--top-p": float,
    "--min-p": float,
    "--repetition-penalty": float,
    "--presence-penalty": float,
    "--frequency-penalty": float,
    "--seed": int,
    _MAY_REPEAT: str,
    "--logprobs": int,
    "--threads": int,
    "--prefill-chunk": int,
    "--max-model-len": int,
    "--kv-memory": str,
    "--kv-type": str,
    "--backend": str,
    "--kernels": str,
}


def parse(arguments: Sequence[str]) -> dict[str, Any] | None:
    """Return the arguments of `cli.answer.answer` from what follows `run`; None: ask Typer."""
    if any(name.startswith("_") and name.endswith("_COMPLETE") for name in os.environ):
        return None  # a shell asks for completions
    given: dict[str, Any] = {}
    rest = list(reversed(arguments))
    while rest:
        word = rest.pop()
        option, has_value, text = SHORT.get(word, word).partition("=")
        if option in VALUES:
            if not has_value:
                text = rest.pop() if rest else "--"
            name, value = option[2:].replace("-", "_"), _converted(option, text)
        elif word in FLAGS:
            name, value = FLAGS[word], True
        else:
            name, value = "model", None if word.startswith("-") else word
        if value is None or (name in given and option != _MAY_REPEAT):
            return None
        if option == _MAY_REPEAT:
            given.setdefault(name, []).append(value)
        else:
            given[name] = value
    return given if given.keys() >= {"model", "prompt"} else None


def _converted(option: str, text: str) -> Any:
    """Return an option's value as Typer converts it; None where that is Typer's to say."""
    if text.startswith("-") and text != "-":
        return None
    try:
        return VALUES[option](text)
    except ValueError:
        return None
