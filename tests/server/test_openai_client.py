"""The real `openai` client against the running server."""

from __future__ import annotations

from collections.abc import Iterator

import openai
import pytest

from tests.server.serving import Served, until

USER = [{"role": "user", "content": "Tell me a story."}]


@pytest.fixture
def client(served: Served) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=served.url + "/v1", api_key="none", max_retries=0) as client:
        yield client


def test_a_chat_reply_has_text_usage_and_both_phases(client: openai.OpenAI) -> None:
    reply = client.chat.completions.create(
        model="tiny", messages=USER, max_tokens=9, temperature=0, extra_body={"ignore_eos": True}
    )
    assert reply.choices[0].finish_reason == "length"
    assert reply.choices[0].message.content
    usage = reply.usage
    assert usage.completion_tokens == 9
    assert usage.total_tokens == usage.prompt_tokens + 9
    assert usage.prompt_tokens_details.cached_tokens is not None
    timings = reply.timings
    assert timings["cache_n"] + timings["prompt_n"] == usage.prompt_tokens
    assert timings["predicted_n"] == 9
    rate = 8 / timings["predicted_ms"] * 1e3
    assert timings["predicted_per_second"] == pytest.approx(rate, rel=1e-3)
    record = reply.twostroke["records"][0]
    phases = sum(v for k, v in record["phases"].items() if v is not None)
    assert phases == pytest.approx(record["e2e_s"], abs=1e-3)


def test_a_stream_gives_the_same_text_and_usage_only_when_asked(client: openai.OpenAI) -> None:
    args = {"model": "tiny", "messages": USER, "max_tokens": 12, "temperature": 0}
    whole = client.chat.completions.create(**args)
    with client.chat.completions.create(**args, stream=True) as stream:
        chunks = list(stream)
    assert "".join(c.choices[0].delta.content or "" for c in chunks) == (
        whole.choices[0].message.content
    )
    assert chunks[0].choices[0].delta.role == "assistant"
    assert all(c.usage is None for c in chunks)
    assert chunks[-1].choices[0].finish_reason == whole.choices[0].finish_reason
    assert chunks[-1].timings["predicted_n"] == whole.usage.completion_tokens
    asked = client.chat.completions.create(
        **args, stream=True, stream_options={"include_usage": True}
    )
    chunks = list(asked)
    assert chunks[-1].choices == []
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens
    assert all(c.usage is None for c in chunks[:-1])


def test_logprobs_name_every_byte(client: openai.OpenAI) -> None:
    reply = client.chat.completions.create(
        model="tiny", messages=USER, max_tokens=10, seed=3, logprobs=True, top_logprobs=4
    )
    content = reply.choices[0].logprobs.content
    assert len(content) == reply.usage.completion_tokens
    for entry in content:
        assert entry.logprob <= 0 and len(entry.top_logprobs) == 4
        assert bytes(entry.bytes).decode("utf-8", "replace") == entry.token
        best = [top.logprob for top in entry.top_logprobs]
        assert best == sorted(best, reverse=True)


def test_choices_differ_and_a_seed_repeats_them(client: openai.OpenAI) -> None:
    def texts() -> list[str]:
        reply = client.chat.completions.create(
            model="tiny", messages=USER, max_tokens=8, n=3, seed=11, temperature=1.5
        )
        assert [c.index for c in reply.choices] == [0, 1, 2]
        assert reply.usage.completion_tokens <= 24
        return [c.message.content for c in reply.choices]

    first = texts()
    assert len(set(first)) > 1
    assert texts() == first


def test_a_text_completion_continues_several_prompts(client: openai.OpenAI) -> None:
    alone = [
        client.completions.create(model="tiny", prompt=p, max_tokens=6, temperature=0)
        for p in ("one two", "three")
    ]
    both = client.completions.create(
        model="tiny", prompt=["one two", "three"], max_tokens=6, temperature=0, logprobs=2
    )
    assert [c.text for c in both.choices] == [r.choices[0].text for r in alone]
    assert len(both.choices[0].logprobs.tokens) == 6
    stream = client.completions.create(
        model="tiny", prompt="three", max_tokens=6, temperature=0, stream=True
    )
    assert "".join(c.choices[0].text for c in stream) == alone[1].choices[0].text


def test_models_lists_every_name_with_the_limit_of_one_request(client: openai.OpenAI) -> None:
    cards = client.models.list().data
    assert [c.id for c in cards] == ["tiny", "alias"]
    assert cards[0].max_model_len == 1024
    assert client.models.retrieve("alias").id == "alias"
    reply = client.chat.completions.create(model="alias", messages=USER, max_tokens=1)
    assert reply.model == "alias"


def test_errors_become_the_clients_own(client: openai.OpenAI) -> None:
    with pytest.raises(openai.NotFoundError, match="does not serve"):
        client.chat.completions.create(model="gpt-4", messages=USER)
    with pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(model="tiny", messages=USER, temperature=-1)
    assert refused.value.param == "temperature"
    with pytest.raises(openai.BadRequestError, match="unknown parameter"):
        client.chat.completions.create(model="tiny", messages=USER, extra_body={"foo": 1})
    with pytest.raises(openai.BadRequestError, match="same name"):
        client.chat.completions.create(
            model="tiny",
            messages=USER,
            tools=[{"type": "function", "function": {"name": "f", "parameters": {}}}] * 2,
        )
    with pytest.raises(openai.BadRequestError, match="embeddings"):
        client.embeddings.create(model="tiny", input="x")
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("nothing")
    with pytest.raises(openai.BadRequestError) as long:
        client.chat.completions.create(
            model="tiny", messages=[{"role": "user", "content": "word " * 3000}], stream=True
        )
    assert long.value.code == "context_length_exceeded"


def test_closing_a_stream_frees_its_slot(served: Served, client: openai.OpenAI) -> None:
    served.throttle.step_s = 0.02
    stream = client.chat.completions.create(
        model="tiny", messages=USER, max_tokens=500, stream=True, extra_body={"ignore_eos": True}
    )
    next(iter(stream))
    assert served.num_in_engine == 1
    stream.close()
    until(lambda: served.num_in_engine == 0, 5)


def test_a_timeout_cancels_a_reply_that_does_not_stream(served: Served) -> None:
    served.throttle.step_s = 0.02
    with (
        openai.OpenAI(
            base_url=served.url + "/v1",
            api_key="none",
            max_retries=0,
            timeout=openai.Timeout(10.0, read=0.5),
        ) as client,
        pytest.raises(openai.APITimeoutError),
    ):
        client.chat.completions.create(
            model="tiny", messages=USER, max_tokens=900, extra_body={"ignore_eos": True}
        )
    until(lambda: served.num_in_engine == 0, 5)
    assert "client_gone" in served.log.text
