"""The line protocol between compare.py and its workers: one JSON object a line in, one out.

    {"cmd": "load", "model": path, "threads": 2}           -> {"seconds", "given"}
    {"cmd": "pp", "tokens": [...]}                         -> {"seconds", "tokens", "ids"}
    {"cmd": "tg", "prompt": [...], "n": 128}               -> {"seconds", "tokens", "ids"}
    {"cmd": "tgb", "prompts": [[...], ...], "n": 64}       -> {"seconds", "tokens", "ids"}
    {"cmd": "quit"}

`seconds` covers the timed part alone: all prompt tokens and the choice of the next one (pp), or `n`
greedy steps after an untimed prefill (tg, tgb). `tokens` is the number of tokens of the timed part.
`ids` are greedy: the token after the prompt (pp), or that token and the n after it (tg; for tgb a
list per prompt). End tokens are ignored.
Only the standard library is used, because each worker runs in its engine's own environment.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, Protocol


@dataclass(frozen=True)
class Timed:
    """The result of one timed run. ids: one list per prompt."""

    seconds: float
    tokens: int
    ids: list[list[int]]


class Engine(Protocol):
    """An engine with one model loaded."""

    given: dict[str, Any]  # settings of the engine, to be kept with its results

    def prefill(self, tokens: list[int]) -> Timed:
        """Run a prompt from an empty cache and choose the next token."""
        ...

    def decode(self, prompts: list[list[int]], count: int) -> Timed:
        """Prefill the prompts untimed, then time `count` greedy steps of all of them together."""
        ...


def serve(open_engine: Callable[[str, int], Engine]) -> None:
    """Answer commands until `quit` or the end of input; output of libraries goes to stderr."""
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    engine: Engine | None = None
    for line in sys.stdin:
        message = json.loads(line)
        if message["cmd"] == "quit":
            return
        try:
            if message["cmd"] == "load":
                start = time.perf_counter()
                engine = open_engine(message["model"], message["threads"])
                reply = {"seconds": time.perf_counter() - start, "given": engine.given}
            elif engine is None:
                reply = {"error": "no model is loaded"}
            else:
                reply = _run(engine, message)
        except Exception as error:
            reply = {"error": f"{type(error).__name__}: {error}"}
        replies.write(json.dumps(reply) + "\n")
        replies.flush()


def _run(engine: Engine, message: dict[str, Any]) -> dict[str, Any]:
    if message["cmd"] == "pp":
        reply = asdict(engine.prefill(message["tokens"]))
    elif message["cmd"] == "tg":
        reply = asdict(engine.decode([message["prompt"]], message["n"]))
    elif message["cmd"] == "tgb":
        return asdict(engine.decode(message["prompts"], message["n"]))
    else:
        return {"error": f"unknown command {message['cmd']!r}"}
    reply["ids"] = reply["ids"][0]
    return reply
