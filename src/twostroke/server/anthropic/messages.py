"""POST /v1/messages and /v1/messages/count_tokens, as Anthropic's clients speak them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, Response

from twostroke.errors import TwoStrokeError
from twostroke.generation.answer import Delta
from twostroke.request import FinishReason
from twostroke.server.anthropic.errors import error_body
from twostroke.server.anthropic.schemas import CountRequest, MessagesRequest
from twostroke.server.generate import Codec, GenerationRequest, ReplyState, accept, generate
from twostroke.server.http.connection import parse, sse
from twostroke.server.http.route_docs import takes
from twostroke.server.prompts import ChatPrompt
from twostroke.server.service import Service
from twostroke.text.tool_format import ToolCall

router = APIRouter(tags=["anthropic"])


@router.post("/v1/messages/count_tokens", **takes(CountRequest))
async def count_tokens(request: Request) -> Response:
    """Count the tokens of a conversation as the model would read it."""
    service: Service = request.app.state.service
    body = await parse(request, CountRequest, service.limits)
    reply = accept(request, model=body.model, user=None, is_stream=False)
    chat, tools = ChatPrompt(messages=body.conversation()), body.checked_tools()
    prompt = await service.prompts.encode(chat, tools.offered, reply.start_s)
    return JSONResponse({"input_tokens": prompt.num_tokens})


@router.post("/v1/messages", **takes(MessagesRequest, stream="text/event-stream"))
async def messages(request: Request) -> Response:
    """Answer a conversation."""
    service: Service = request.app.state.service
    body = await parse(request, MessagesRequest, service.limits)
    user = body.metadata.user_id if body.metadata is not None else None
    reply = accept(request, model=body.model, user=user, is_stream=bool(body.stream))
    asked = GenerationRequest(
        prompts=[ChatPrompt(messages=body.conversation())],
        tools=body.checked_tools(),
        params=body.params(),
    )
    return await generate(request, asked, MessagesCodec(reply))


class MessagesCodec(Codec):
    """Writes messages. A stream has content blocks, one open at a time: thinking, text, calls."""

    def __init__(self, reply: ReplyState) -> None:
        super().__init__(reply)
        self.keep_alive = _event({"type": "ping"})
        self._index = -1  # of the last content block
        self._kind: str | None = None  # of the open content block

    def start(self) -> bytes:
        """Return the event that opens the message."""
        return _event({"type": "message_start", "message": {**self._head([]), **self._usage()}})

    def delta(self, delta: Delta) -> bytes:
        """Return the events of one delta; the last one closes the message's content."""
        events = []
        if delta.reasoning:
            events += self._text_events("thinking", delta.reasoning)
        if delta.text:
            events += self._text_events("text", delta.text)
        for call in delta.calls:
            events += self._call_events(call)
        if delta.finish_reason is not None:
            events += self._close_block()
            end = {"type": "message_delta", "delta": _stop(delta), **self._usage()}
            events.append(_event({**end, **self.reply.report()}))
        return b"".join(events)

    def end(self) -> bytes:
        """Return the event that ends the stream."""
        return _event({"type": "message_stop"})

    def error(self, error: TwoStrokeError) -> bytes:
        """Return the event of an error."""
        return _event(error_body(error))

    def whole(self, answers: Sequence[Delta]) -> dict[str, Any]:
        """Return a whole message."""
        (answer,) = answers
        head = self._head(_content(answer))
        return {**head, **_stop(answer), **self._usage(), **self.reply.report()}

    def _head(self, content: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "id": f"msg_{self.reply.facts.id}",
            "type": "message",
            "role": "assistant",
            "model": self.reply.facts.model,
            "content": content,
            "stop_reason": None,
            "stop_sequence": None,
        }

    def _usage(self) -> dict[str, Any]:
        """Return Anthropic's usage, where input_tokens are those that were not cached."""
        record = self.reply.record
        cached = (record.prompt.cached if record is not None else None) or 0
        usage = {
            "input_tokens": self.reply.num_prompt - cached,
            "cache_read_input_tokens": cached,
            "cache_creation_input_tokens": 0,
            "output_tokens": self.reply.num_output,
        }
        return {"usage": usage}

    def _text_events(self, kind: str, text: str) -> list[bytes]:
        """Return the events that add text to a block of this kind."""
        events = []
        if self._kind != kind:
            signature = {"signature": ""} if kind == "thinking" else {}
            events += self._open_block(kind, {"type": kind, kind: "", **signature})
        return [*events, self._block_delta({"type": f"{kind}_delta", kind: text})]

    def _call_events(self, call: ToolCall) -> list[bytes]:
        """Return the events of a tool call, which is a block of its own."""
        told = {"type": "input_json_delta", "partial_json": json.dumps(call.arguments)}
        opened = self._open_block("tool_use", _tool_use(call, {}))
        return [*opened, self._block_delta(told), *self._close_block()]

    def _open_block(self, kind: str, block: dict[str, Any]) -> list[bytes]:
        closed = self._close_block()
        self._index, self._kind = self._index + 1, kind
        start = {"type": "content_block_start", "index": self._index, "content_block": block}
        return [*closed, _event(start)]

    def _block_delta(self, delta: dict[str, Any]) -> bytes:
        return _event({"type": "content_block_delta", "index": self._index, "delta": delta})

    def _close_block(self) -> list[bytes]:
        if self._kind is None:
            return []
        self._kind = None
        return [_event({"type": "content_block_stop", "index": self._index})]


def _event(data: dict[str, Any]) -> bytes:
    return sse(json.dumps(data), data["type"])


def _stop(delta: Delta) -> dict[str, Any]:
    """Return Anthropic's stop_reason and stop_sequence."""
    reason, sequence = None, None
    if delta.finish_reason is FinishReason.LENGTH:
        reason = "max_tokens"
    elif delta.finish_reason is FinishReason.STOP:
        if delta.num_calls:
            reason = "tool_use"
        elif isinstance(delta.stop_reason, str):
            reason, sequence = "stop_sequence", delta.stop_reason
        else:
            reason = "end_turn"
    return {"stop_reason": reason, "stop_sequence": sequence}


def _content(answer: Delta) -> list[dict[str, Any]]:
    content: list[dict[str, Any]] = []
    if answer.reasoning:
        content.append({"type": "thinking", "thinking": answer.reasoning, "signature": ""})
    if answer.text or not answer.calls:
        content.append({"type": "text", "text": answer.text})
    return [*content, *(_tool_use(call, call.arguments) for call in answer.calls)]


def _tool_use(call: ToolCall, arguments: dict[str, Any]) -> dict[str, Any]:
    return {"type": "tool_use", "id": f"toolu_{call.id}", "name": call.name, "input": arguments}
