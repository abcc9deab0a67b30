"""The real `ollama` client against the running server."""

from __future__ import annotations

from collections.abc import Iterator

import ollama
import pytest

from tests.server.serving import Served

USER = [{"role": "user", "content": "Tell me a story."}]
GREEDY = {"temperature": 0.0, "num_predict": 8}


@pytest.fixture
def client(served: Served) -> Iterator[ollama.Client]:
    client = ollama.Client(host=served.url)
    yield client
    client._client.close()


def test_a_chat_reply_has_counts_and_durations(client: ollama.Client) -> None:
    first = client.chat("tiny", USER, options=GREEDY)
    assert first.message.content and first.done_reason == "length"
    assert first.eval_count == 8
    again = client.chat("tiny:latest", USER, options=GREEDY)
    assert again.message.content == first.message.content
    assert again.prompt_eval_count == first.prompt_eval_count > 0, "R1: cached tokens count too"
    assert again.total_duration >= again.prompt_eval_duration + again.eval_duration > 0


def test_a_stream_gives_the_same_text(client: ollama.Client) -> None:
    whole = client.chat("tiny", USER, options=GREEDY)
    parts = list(client.chat("tiny", USER, options=GREEDY, stream=True))
    assert "".join(p.message.content for p in parts) == whole.message.content
    assert [p.done for p in parts] == [False] * (len(parts) - 1) + [True]
    assert parts[-1].eval_count == 8


def test_generate_goes_through_the_template_unless_raw(client: ollama.Client) -> None:
    chat = client.chat("tiny", USER, options=GREEDY)
    same = client.generate("tiny", USER[0]["content"], options=GREEDY)
    assert same.response == chat.message.content
    raw = client.generate("tiny", USER[0]["content"], raw=True, options=GREEDY)
    assert raw.prompt_eval_count < same.prompt_eval_count


def test_the_model_is_listed_and_shown(client: ollama.Client) -> None:
    assert [m.model for m in client.list().models] == ["tiny", "alias"]
    assert client.show("tiny").modelinfo["llama.context_length"] == 1024
    assert client.generate("tiny", "").done_reason == "load"


def test_errors_become_the_clients_own(client: ollama.Client) -> None:
    with pytest.raises(ollama.ResponseError) as unknown:
        client.chat("llama3", USER)
    assert unknown.value.status_code == 404
    with pytest.raises(ollama.ResponseError, match="num_ctx"):
        client.chat("tiny", USER, options={"num_ctx": 10**6})
    with pytest.raises(ollama.ResponseError) as asked:
        client.chat("tiny", USER, think=True)
    assert asked.value.status_code == 400
