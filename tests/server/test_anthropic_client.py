"""The real `anthropic` client against the running server."""

from __future__ import annotations

from collections.abc import Iterator

import anthropic
import pytest

from tests.server.serving import Served

USER = [{"role": "user", "content": "Tell me a story."}]
GREEDY = {"temperature": 0}


@pytest.fixture
def client(served: Served) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=served.url, api_key="none", max_retries=0) as client:
        yield client


def test_a_message_has_text_usage_and_a_stop_reason(client: anthropic.Anthropic) -> None:
    reply = client.messages.create(
        model="tiny", max_tokens=7, system="Be brief.", messages=USER, extra_body=GREEDY
    )
    assert reply.role == "assistant" and reply.content[0].text
    assert reply.stop_reason == "max_tokens"
    assert reply.usage.output_tokens == 7
    count = client.messages.count_tokens(model="tiny", system="Be brief.", messages=USER)
    total = reply.usage.input_tokens + reply.usage.cache_read_input_tokens
    assert count.input_tokens == total


def test_a_stream_gives_the_same_message(client: anthropic.Anthropic) -> None:
    args = {"model": "tiny", "max_tokens": 10, "messages": USER, "extra_body": GREEDY}
    whole = client.messages.create(**args)
    with client.messages.stream(**args) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert text == whole.content[0].text == final.content[0].text
    assert final.stop_reason == whole.stop_reason
    assert final.usage.output_tokens == whole.usage.output_tokens


def test_a_stop_sequence_ends_the_message_and_is_named(client: anthropic.Anthropic) -> None:
    args = {"model": "tiny", "max_tokens": 20, "messages": USER, "extra_body": GREEDY}
    whole = client.messages.create(**args).content[0].text
    stop = whole[4:7]
    cut = client.messages.create(**args, stop_sequences=[stop])
    assert cut.stop_reason == "stop_sequence" and cut.stop_sequence == stop
    assert cut.content[0].text == whole[: whole.index(stop)]


def test_errors_become_the_clients_own(client: anthropic.Anthropic) -> None:
    with pytest.raises(anthropic.NotFoundError, match="does not serve"):
        client.messages.create(model="claude", max_tokens=1, messages=USER)
    with pytest.raises(anthropic.BadRequestError, match="thinking"):
        client.messages.create(
            model="tiny",
            max_tokens=2000,
            messages=USER,
            thinking={"type": "enabled", "budget_tokens": 1024},
        )
    with pytest.raises(anthropic.BadRequestError, match="context"):
        client.messages.create(
            model="tiny", max_tokens=1, messages=[{"role": "user", "content": "word " * 3000}]
        )
