"""Images are refused by name on every API, whose message names the place."""

from __future__ import annotations

from typing import Any

import pytest

from tests.server.serving import Served

URL = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
BLOCK = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}}
TEXT = {"type": "text", "text": "What is this?"}
CALL = {"type": "tool_use", "id": "t1", "name": "look", "input": {}}
SEEN = {"type": "tool_result", "tool_use_id": "t1", "content": [TEXT, BLOCK]}


def user(*parts: Any) -> dict[str, Any]:
    return {"role": "user", "content": list(parts)}


@pytest.mark.parametrize(
    ("path", "messages", "param"),
    [
        ("/v1/chat/completions", [user(TEXT), user(TEXT, URL)], "messages.1.content.1"),
        ("/v1/chat/completions", [{"role": "tool", "content": [URL]}], "messages.0.content.0"),
        ("/v1/predict", [user(URL)], "messages.0.content.0"),
        ("/tokenize", [user(URL)], "messages.0.content.0"),
        ("/v1/messages", [user(TEXT, BLOCK)], "messages.0.content.1"),
        ("/v1/messages/count_tokens", [user(BLOCK)], "messages.0.content.0"),
        (
            "/v1/messages",
            [user(TEXT), {"role": "assistant", "content": [CALL]}, user(SEEN)],
            "messages.2.content.0.content.1",
        ),
        ("/api/chat", [{"role": "user", "content": "?", "images": ["AAAA"]}], "messages.0.images"),
    ],
)
def test_l14_an_image_is_refused_by_name(
    served: Served, path: str, messages: list[Any], param: str
) -> None:
    body: dict[str, Any] = {"model": "tiny", "messages": messages}
    if path == "/v1/messages":
        body["max_tokens"] = 4
    reply = served.post(path, body)
    assert reply.status_code == 400, reply.text
    where = param.split(".")[1]
    said = f"images are not supported by this model: message {where} has one"
    assert said in reply.text, "in the caller's words"
    error = reply.json()["error"]
    if isinstance(error, dict) and "param" in error:
        assert error["param"] == param


def test_an_empty_list_of_images_is_no_image(served: Served) -> None:
    message = {"role": "user", "content": "hello", "images": []}
    reply = served.post(
        "/api/chat", {"model": "tiny", "messages": [message], "stream": False,
                      "options": {"num_predict": 2}}
    )  # fmt: skip
    assert reply.status_code == 200, reply.text
