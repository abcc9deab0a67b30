"""The record of an answer ends as its reply does."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

from tests.server.serving import Served, until


def test_a_stop_on_the_last_allowed_token_is_stop_in_the_reply_and_in_the_record(
    tiny_path: Path,
) -> None:
    with Served(tiny_path, log_format="json") as server:

        def text_of(n: int, **fields: object) -> str:
            reply = server.chat(max_tokens=n, ignore_eos=True, **fields).json()
            return reply["choices"][0]["message"]["content"]

        texts = [text_of(n) for n in range(1, 9)]
        news = [(n, b[len(a) :]) for n, (a, b) in enumerate(pairwise(texts), 2)]
        n, stop = next((n, s) for n, s in news if s and s not in texts[n - 2])
        reply = server.chat(max_tokens=n, ignore_eos=True, stop=stop).json()
        assert reply["choices"][0]["finish_reason"] == "stop"
        assert reply["usage"]["completion_tokens"] == n
        until(lambda: server.log.text.count("\n") == len(texts) + 1)
        lines = [json.loads(line) for line in server.log.text.splitlines()]
        ends = [line["records"][0]["finish"] for line in lines]
        assert ends == ["length"] * len(texts) + ["stop"]
