"""Answers in JSON: by the real clients, streamed, in a batch, and refused when impossible."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import ollama
import openai
import pytest

from tests.server.serving import Served
from tests.tiny_models import write_tiny

USER = [{"role": "user", "content": "Describe a person."}]
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 8},
        "age": {"type": "integer", "minimum": 1, "maximum": 120},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}
FORMAT = {"type": "json_schema", "json_schema": {"name": "person", "schema": SCHEMA}}


def check(text: str) -> None:
    found = json.loads(text)
    assert set(found) == {"name", "age"} and 1 <= found["age"] <= 120


@pytest.fixture
def client(served: Served) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=served.url + "/v1", api_key="x", max_retries=0) as client:
        yield client


def test_every_choice_keeps_to_the_schema(client: openai.OpenAI) -> None:
    reply = client.chat.completions.create(
        model="tiny", messages=USER, max_tokens=80, n=6, temperature=1.5, response_format=FORMAT
    )
    for choice in reply.choices:
        assert choice.finish_reason == "stop"
        check(choice.message.content)
    assert len({c.message.content for c in reply.choices}) > 1


def test_a_stream_and_a_penalty_keep_to_it_too(client: openai.OpenAI) -> None:
    args = {"model": "tiny", "messages": USER, "max_tokens": 80, "temperature": 0}
    args |= {"response_format": FORMAT, "presence_penalty": 1.0}
    whole = client.chat.completions.create(**args)
    stream = client.chat.completions.create(**args, stream=True)
    text = "".join(c.choices[0].delta.content or "" for c in stream)
    assert text == whole.choices[0].message.content
    check(text)


def test_neighbours_with_and_without_a_grammar_do_not_mix(served: Served) -> None:
    plain = {"max_tokens": 30, "ignore_eos": True}
    alone = served.chat("one", **plain).json()["choices"]
    with ThreadPoolExecutor(12) as pool:
        jsons = [
            pool.submit(served.chat, f"q{i}", max_tokens=80, temperature=1, response_format=FORMAT)
            for i in range(6)
        ]
        plains = [pool.submit(served.chat, "one", **plain) for _ in range(6)]
        for asked in jsons:
            check(asked.result().json()["choices"][0]["message"]["content"])
        for asked in plains:
            assert asked.result().json()["choices"] == alone


def test_ollamas_format_is_a_schema_or_any_object(served: Served) -> None:
    client = ollama.Client(host=served.url)
    options = {"num_predict": 80, "temperature": 1.0}
    try:
        check(client.chat("tiny", USER, format=SCHEMA, options=options).message.content)
        raw = client.generate("tiny", "x", format="json", options={**options, "num_predict": 5})
    finally:
        client._client.close()
    assert raw.response.startswith("{")


@pytest.mark.parametrize(
    "form",
    [
        {"type": "json_schema"},
        {"type": "json_object", "json_schema": {"name": "x", "schema": {}}},
        {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "foo"}}},
        {"type": "json_schema", "json_schema": {"name": "x"}},
        {"type": "grammar"},
    ],
)
def test_a_format_that_cannot_be_is_400(served: Served, form: dict) -> None:
    assert served.chat(response_format=form).status_code == 400
    assert served.chat().status_code == 200


def test_a_format_excludes_ignore_eos(served: Served) -> None:
    assert served.chat(response_format=FORMAT, ignore_eos=True).status_code == 400


def test_a_format_is_refused_where_the_template_opens_the_reasoning_part(tiny_path: Path) -> None:
    """A model that must reason first cannot write JSON from the first token on."""
    template = "{% for m in messages %}{{ m.content }}{% endfor %}<think>\n{# </think> #}"
    with Served(tiny_path, template=template) as served:
        reply = served.chat(response_format=FORMAT)
        assert reply.status_code == 400
        assert reply.json()["error"]["code"] == "unsupported_parameter"
        assert served.chat().status_code == 200
        served.check_idle()


def test_the_reference_backend_masks_the_same(tmp_path: Path) -> None:
    path = tmp_path / "tiny.gguf"
    write_tiny(path, "llama", context_length=256)
    with Served(path, backend="reference") as served:
        reply = served.chat(max_tokens=60, temperature=1.2, seed=2, response_format=FORMAT)
        check(reply.json()["choices"][0]["message"]["content"])


@pytest.mark.weights
def test_the_sample_model_answers_in_json(smollm2_path: Path) -> None:
    with Served(smollm2_path, kv_memory_bytes=128 << 20) as served:
        reply = served.chat(
            "Anna is 34 years old. Give her name and age as JSON.",
            max_tokens=40,
            response_format=FORMAT,
        ).json()
    found = json.loads(reply["choices"][0]["message"]["content"])
    assert found["age"] == 34 and found["name"].startswith("Anna"), found
