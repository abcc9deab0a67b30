"""Agents as their registries ship them, against a server whose model answers by a script.

The HTTP path, the template, the grammar and the parsing of calls are the real ones; only the choice
of each token is the script's, since a model of two layers cannot follow a protocol.
"""

from __future__ import annotations

import os
import subprocess
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from tests.server.serving import Served

ROOT = Path(__file__).parents[2]
LIMIT_S = 300

# From a whole prompt, rendered, to the answer: the model's turn of a scripted conversation.
Script = Callable[[str], str]


class AgentServer(Served):
    """A server that answers by `self.says`; the prompts of all requests are kept."""

    def __init__(self, model: Path, **settings: Any) -> None:
        super().__init__(model, **{"kv_memory_bytes": 256 << 20, "threads": 2, **settings})
        self.says: Script = lambda _: "ok"
        self.prompts: list[str] = []

    def __enter__(self) -> AgentServer:
        super().__enter__()
        engine = self.service.loaded.engine
        add, tokenizer = engine.add, self.service.tokenizer
        end_id = min(self.service.loaded.model.end_token_ids)

        def scripted(request: Any) -> None:
            ids = request.prompt_token_ids
            text = b"".join(tokenizer.token_bytes(i, with_control=True) for i in ids)
            self.prompts.append(text.decode("utf-8", "replace"))
            answer = tokenizer.encode(self.says(self.prompts[-1]), parse_special=True)
            self.throttle.answers[request.id] = deque([*answer, end_id])
            add(request)

        engine.add = scripted  # type: ignore[method-assign]
        return self


def python_of(environment: str) -> Path:
    """Return the Python of a client's environment, installed from requirements/NAME.txt."""
    return _found(ROOT / ".venvs" / environment / "bin" / "python")


def node_command(client: str, command: str) -> Path:
    """Return a command of tests/clients/node/CLIENT, installed from its package-lock.json."""
    return _found(ROOT / "tests/clients/node" / client / "node_modules/.bin" / command)


def _found(path: Path) -> Path:
    if not path.exists():
        pytest.fail(f"{path} is missing: run `make test-clients`, which makes it")
    return path


def run(
    command: list[str | Path], folder: Path, environ: Mapping[str, str], *, text: str = ""
) -> subprocess.CompletedProcess[str]:
    """Run an agent in `folder`, which is its home as well; no variable of ours reaches it."""
    kept = {name: os.environ[name] for name in ("PATH", "LANG", "LC_ALL") if name in os.environ}
    env = {**kept, "HOME": str(folder), "TERM": "dumb", "NO_COLOR": "1", **environ}
    return subprocess.run(
        command, cwd=folder, env=env, input=text, capture_output=True, text=True, timeout=LIMIT_S
    )
