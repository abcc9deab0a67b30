"""The calls that Open WebUI makes of a server, as its backend sends them.

The package itself is in no registry that the tests can reach, so its requests are spelt out here:
the connection check, the list of models, a chat, and the small tasks around a chat.
"""

from __future__ import annotations

import json
from typing import Any

from tests.server.serving import Served, events

KEY = {"Authorization": "Bearer x", "Content-Type": "application/json"}
USER = [{"role": "user", "content": "Tell me a story."}]


def test_the_connection_check_lists_the_models(served: Served) -> None:
    reply = served.get("/v1/models", headers=KEY)
    assert reply.status_code == 200
    assert [m["id"] for m in reply.json()["data"]] == ["tiny", "alias"]


def test_a_chat_streams_deltas_a_finish_reason_and_usage(served: Served) -> None:
    body: dict[str, Any] = {
        "stream": True,
        "model": "tiny",
        "messages": [{"role": "system", "content": "Be brief."}, *USER],
        "stream_options": {"include_usage": True},
        "temperature": 0.8,
        "top_p": 0.9,
        "max_tokens": 6,
        "frequency_penalty": 0,
        "seed": 7,
        "stop": ["###"],
    }
    with served.stream("/v1/chat/completions", body, headers=KEY) as reply:
        assert reply.headers["content-type"].startswith("text/event-stream")
        told = list(events(reply))
    assert told[-1] == "[DONE]" and told[-2]["usage"]["completion_tokens"] <= 6
    assert told[-3]["choices"][0]["finish_reason"] in ("length", "stop")
    assert all("content" in e["choices"][0]["delta"] for e in told[:-2])


def test_a_title_is_written_without_a_stream(served: Served) -> None:
    body = {"model": "tiny", "messages": USER, "stream": False, "max_completion_tokens": 5}
    reply = served.post("/v1/chat/completions", body, headers=KEY).json()
    assert isinstance(reply["choices"][0]["message"]["content"], str)


def test_a_picture_is_refused_with_a_reason_it_can_show(served: Served) -> None:
    part = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    messages = [{"role": "user", "content": [{"type": "text", "text": "What is it?"}, part]}]
    reply = served.post("/v1/chat/completions", {"model": "tiny", "messages": messages})
    assert reply.status_code == 400 and reply.json()["error"]["message"]


def test_as_an_ollama_connection_it_lists_and_chats_too(served: Served) -> None:
    assert served.get("/api/version").json()["version"]
    assert served.get("/api/tags").json()["models"][0]["model"] == "tiny"
    assert "models" in served.get("/api/ps").json()
    options = {"temperature": 0.8, "num_predict": 4}
    body = {"model": "tiny", "messages": USER, "stream": True, "options": options}
    with served.stream("/api/chat", body) as reply:
        lines = [json.loads(line) for line in reply.iter_lines()]
    assert lines[-1]["done"] and 1 <= lines[-1]["eval_count"] <= 4
