"""POST /v1/messages and /v1/messages/count_tokens, as Anthropic's clients speak them."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Coroutine, Sequence
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, Response

from twostroke.request import FinishReason
from twostroke.server.answers import Answers, Piece
from twostroke.server.anthropic_schemas import CountRequest, MessagesRequest
from twostroke.server.asked import Asked, asked_by
from twostroke.server.body import parse
from twostroke.server.error_reply import anthropic_error
from twostroke.server.event_stream import sse, unless_gone
from twostroke.server.prompts import Prompt
from twostroke.server.route_docs import takes
from twostroke.server.service import Service
from twostroke.server.streaming import event_stream
from twostroke.server.timings import server_timing
from twostroke.server.tools import form_of
from twostroke.text.tool_format import ToolCall

router = APIRouter(tags=["anthropic"])


@router.post("/v1/messages/count_tokens", **takes(CountRequest))
async def count_tokens(request: Request) -> Response:
    """Count the tokens of a conversation as the model would read it."""
    service: Service = request.app.state.service
    body = await parse(request, CountRequest, service.limits)
    asked = asked_by(request, model=body.model, user=None, stream=False)
    prompt = await service.prompts.encode_chat(
        body.conversation(), tools=body.checked_tools().offered or None, start_s=asked.start_s
    )
    return JSONResponse({"input_tokens": prompt.num_tokens})


@router.post("/v1/messages", **takes(MessagesRequest, stream="text/event-stream"))
async def messages(request: Request) -> Response:
    """Answer a conversation."""
    service: Service = request.app.state.service
    body = await parse(request, MessagesRequest, service.limits)
    user = body.metadata.user_id if body.metadata is not None else None
    asked = asked_by(request, model=body.model, user=user, stream=bool(body.stream))
    conversation, tools = body.conversation(), body.checked_tools()
    bounded = service.intake.bounded(body.params())
    asked.bound = bounded.bound

    async def answers() -> tuple[Prompt, Answers]:
        form = await form_of(service.prompts, tools)
        prompt = await service.prompts.encode_chat(
            conversation, tools=tools.offered or None, start_s=asked.start_s
        )
        started = await service.intake.answer(
            asked.facts.id, [prompt], bounded.params, caller=asked.caller, form=form
        )
        asked.seed = started.choices[0].request.seed
        return prompt, started

    if not body.stream:
        return await unless_gone(request, _whole(asked, answers()))
    prompt, started = await unless_gone(request, answers())
    return event_stream(
        asked,
        started,
        _frames(asked, prompt, started),
        on_error=lambda error: _event({**anthropic_error(error)}),
        keep_alive=_event({"type": "ping"}),
    )


def _event(data: dict[str, Any]) -> bytes:
    return sse(json.dumps(data), data["type"])


def _stop(piece: Piece) -> dict[str, Any]:
    """Return Anthropic's stop_reason and stop_sequence."""
    if piece.finish_reason is FinishReason.LENGTH:
        return {"stop_reason": "max_tokens", "stop_sequence": None}
    if piece.finish_reason is FinishReason.STOP:
        if piece.num_calls:
            return {"stop_reason": "tool_use", "stop_sequence": None}
        if isinstance(piece.stop_reason, str):
            return {"stop_reason": "stop_sequence", "stop_sequence": piece.stop_reason}
        return {"stop_reason": "end_turn", "stop_sequence": None}
    return {"stop_reason": None, "stop_sequence": None}


def _usage(asked: Asked, prompt: Prompt, num_output: int) -> dict[str, Any]:
    """Return Anthropic's usage, where input_tokens are those that were not cached."""
    cached = asked.records[0].prompt.cached if asked.records else None
    return {
        "input_tokens": prompt.num_tokens - (cached or 0),
        "cache_read_input_tokens": cached or 0,
        "cache_creation_input_tokens": 0,
        "output_tokens": num_output,
    }


def _head(asked: Asked, content: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "id": f"msg_{asked.facts.id}",
        "type": "message",
        "role": "assistant",
        "model": asked.facts.model,
        "content": content,
        "stop_reason": None,
        "stop_sequence": None,
    }


def _content(text: str, thought: str, calls: Sequence[ToolCall]) -> list[dict[str, Any]]:
    content: list[dict[str, Any]] = []
    if thought:
        content.append({"type": "thinking", "thinking": thought, "signature": ""})
    if text or not calls:
        content.append({"type": "text", "text": text})
    return [*content, *({**_tool_use(call), "input": call.arguments} for call in calls)]


def _tool_use(call: ToolCall) -> dict[str, Any]:
    return {"type": "tool_use", "id": f"toolu_{call.id}", "name": call.name, "input": {}}


async def _whole(asked: Asked, starting: Coroutine[Any, Any, tuple[Prompt, Answers]]) -> Response:
    prompt, answers = await starting
    texts: list[str] = []
    thoughts: list[str] = []
    calls: list[ToolCall] = []
    end: dict[str, Any] = {}
    try:
        async for piece in answers:
            asked.take(piece)
            texts.append(piece.text)
            thoughts.append(piece.reasoning)
            calls.extend(piece.calls)
            if piece.finish_reason is not None:
                end = _stop(piece)
    finally:
        await answers.close()
    reply = {
        **_head(asked, _content("".join(texts), "".join(thoughts), calls)),
        **end,
        "usage": _usage(asked, prompt, asked.num_output),
        "timings": asked.timings(),
        "twostroke": asked.report(),
    }
    return JSONResponse(reply, headers=server_timing(asked.records[0] if asked.records else None))


class _Blocks:
    """The content blocks of a stream: one open at a time, thinking before text and calls."""

    def __init__(self) -> None:
        self._index = -1
        self._kind: str | None = None

    def add(self, kind: str, text: str) -> list[bytes]:
        """Return the events that add text to a block of this kind."""
        events = []
        if self._kind != kind:
            signature = {"signature": ""} if kind == "thinking" else {}
            events += self._start(kind, {"type": kind, kind: "", **signature})
        return [*events, self._delta({"type": f"{kind}_delta", kind: text})]

    def call(self, call: ToolCall) -> list[bytes]:
        """Return the events of a call, which is a block of its own."""
        told = {"type": "input_json_delta", "partial_json": json.dumps(call.arguments)}
        return [*self._start("tool_use", _tool_use(call)), self._delta(told), *self.end()]

    def end(self) -> list[bytes]:
        """Return the event that closes the open block."""
        if self._kind is None:
            return []
        self._kind = None
        return [_event({"type": "content_block_stop", "index": self._index})]

    def _start(self, kind: str, block: dict[str, Any]) -> list[bytes]:
        ended = self.end()
        self._index, self._kind = self._index + 1, kind
        start = {"type": "content_block_start", "index": self._index, "content_block": block}
        return [*ended, _event(start)]

    def _delta(self, delta: dict[str, Any]) -> bytes:
        return _event({"type": "content_block_delta", "index": self._index, "delta": delta})


async def _frames(asked: Asked, prompt: Prompt, answers: Answers) -> AsyncGenerator[bytes, None]:
    usage = _usage(asked, prompt, 0)
    yield _event({"type": "message_start", "message": {**_head(asked, []), "usage": usage}})
    blocks = _Blocks()
    async for piece in answers:
        asked.take(piece)
        if piece.reasoning:
            for event in blocks.add("thinking", piece.reasoning):
                yield event
        if piece.text:
            for event in blocks.add("text", piece.text):
                yield event
        for call in piece.calls:
            for event in blocks.call(call):
                yield event
        if piece.finish_reason is not None:
            for event in blocks.end():
                yield event
            yield _event(
                {
                    "type": "message_delta",
                    "delta": _stop(piece),
                    "usage": _usage(asked, prompt, asked.num_output),
                    "timings": asked.timings(),
                    "twostroke": asked.report(),
                }
            )
    yield _event({"type": "message_stop"})
