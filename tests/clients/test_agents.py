"""The scripted server that the agents' tests stand on."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.clients.agents import AgentServer


@pytest.fixture(scope="module")
def server(small_path: Path) -> Iterator[AgentServer]:
    with AgentServer(small_path) as served:
        yield served
        served.check_idle()


def test_each_request_gets_the_answer_that_its_own_prompt_asks_for(server: AgentServer) -> None:
    server.says = lambda prompt: "Rome it is." if "Italy" in prompt else "I do not know."
    replies = [server.chat(f"The capital of {c}?", max_tokens=50) for c in ("Italy", "Mars")]
    texts = [r.json()["choices"][0]["message"]["content"] for r in replies]
    assert texts == ["Rome it is.", "I do not know."]
    assert "Italy" in server.prompts[0] and "Mars" in server.prompts[1]
