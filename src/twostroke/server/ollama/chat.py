"""POST /api/chat and /api/generate, as Ollama's clients speak them: one line of JSON a delta."""

from __future__ import annotations

import datetime
import json
from collections.abc import Sequence
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, Response

from twostroke.errors import TwoStrokeError
from twostroke.generation.answer import Delta
from twostroke.meters.timings import ollama_durations
from twostroke.server.generate import Codec, GenerationRequest, ReplyState, accept, generate
from twostroke.server.http.connection import parse
from twostroke.server.http.route_docs import takes
from twostroke.server.ollama.errors import error_body
from twostroke.server.ollama.schemas import OllamaChatRequest, OllamaGenerateRequest
from twostroke.server.prompts import ChatPrompt, Prompt
from twostroke.server.service import Service

router = APIRouter(tags=["ollama"])
_LINES = "application/x-ndjson"
_NOTHING = Delta(index=0, text="")


@router.post("/api/chat", **takes(OllamaChatRequest, stream=_LINES))
async def chat(request: Request) -> Response:
    """Answer a conversation; without messages, say that the model is loaded."""
    service: Service = request.app.state.service
    body = await parse(request, OllamaChatRequest, service.limits)
    codec = ChatLines(accept(request, model=body.model, user=None, is_stream=body.is_stream))
    params = body.check(service.max_model_len)
    if not body.messages:
        return JSONResponse(codec.loaded())
    asked = GenerationRequest(
        prompts=[ChatPrompt(messages=[message.as_chat_message() for message in body.messages])],
        tools=body.checked_tools(),
        answer_schema=body.answer_schema,
        params=params,
    )
    return await generate(request, asked, codec)


@router.post("/api/generate", **takes(OllamaGenerateRequest, stream=_LINES))
async def generate_text(request: Request) -> Response:
    """Answer one prompt through the chat template, or continue it raw; without one, say loaded."""
    service: Service = request.app.state.service
    body = await parse(request, OllamaGenerateRequest, service.limits)
    codec = GenerateLines(accept(request, model=body.model, user=None, is_stream=body.is_stream))
    params = body.check(service.max_model_len)
    if not body.prompt:
        return JSONResponse(codec.loaded())
    prompt: Prompt = body.prompt
    if not body.raw and service.loaded.model.has_template:
        system = [{"role": "system", "content": body.system}] if body.system else []
        prompt = ChatPrompt(messages=[*system, {"role": "user", "content": body.prompt}])
    asked = GenerationRequest(
        prompts=[prompt],
        answer_schema=body.answer_schema,
        params=params,
    )
    return await generate(request, asked, codec)


class LineCodec(Codec):
    """Writes lines of JSON. Subclasses write the text of a line."""

    media_type = _LINES

    def __init__(self, reply: ReplyState) -> None:
        super().__init__(reply)
        self.keep_alive = _line(self._part(_NOTHING))

    def content(self, delta: Delta) -> dict[str, Any]:
        """Return the fields of a delta's text, reasoning and tool calls."""
        raise NotImplementedError

    def loaded(self) -> dict[str, Any]:
        """Return the reply to a request without a prompt, which only asks to load the model."""
        end = {"done": True, "done_reason": "load"}
        return {**self._head(), **self.content(_NOTHING), **end}

    def delta(self, delta: Delta) -> bytes:
        """Return the line of a delta, and the line of the end behind the last one."""
        lines = b""
        if delta.text or delta.reasoning or delta.calls:
            lines = _line(self._part(delta))
        if delta.finish_reason is not None:
            lines += _line({**self._head(), **self.content(_NOTHING), **self._end(delta)})
        return lines

    def error(self, error: TwoStrokeError) -> bytes:
        """Return the line of an error."""
        return _line(error_body(error))

    def whole(self, answers: Sequence[Delta]) -> dict[str, Any]:
        """Return a whole answer."""
        (answer,) = answers
        return {**self._head(), **self.content(answer), **self._end(answer)}

    def _head(self) -> dict[str, Any]:
        now = datetime.datetime.now(datetime.timezone.utc)
        created = now.isoformat().replace("+00:00", "Z")
        return {"model": self.reply.facts.model, "created_at": created}

    def _part(self, delta: Delta) -> dict[str, Any]:
        return {**self._head(), **self.content(delta), "done": False}

    def _end(self, delta: Delta) -> dict[str, Any]:
        reason = delta.finish_reason
        return {
            "done": True,
            "done_reason": reason.value if reason is not None else None,
            **ollama_durations(self.reply.record),
            **self.reply.report(),
        }


class ChatLines(LineCodec):
    """Writes the lines of /api/chat: messages."""

    def content(self, delta: Delta) -> dict[str, Any]:
        """Return the message of a delta."""
        message: dict[str, Any] = {"role": "assistant", "content": delta.text}
        if delta.reasoning:
            message["thinking"] = delta.reasoning
        if delta.calls:
            message["tool_calls"] = [
                {
                    "id": f"call_{call.id}",
                    "function": {"name": call.name, "arguments": call.arguments},
                }
                for call in delta.calls
            ]
        return {"message": message}


class GenerateLines(LineCodec):
    """Writes the lines of /api/generate: text."""

    def content(self, delta: Delta) -> dict[str, Any]:
        """Return the text of a delta."""
        thinking = {"thinking": delta.reasoning} if delta.reasoning else {}
        return {"response": delta.text, **thinking}


def _line(data: dict[str, Any]) -> bytes:
    return json.dumps(data).encode() + b"\n"
