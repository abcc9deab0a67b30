"""POST /api/chat and /api/generate, as Ollama's clients speak them: lines of JSON, durations in
nanoseconds.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, Response

from twostroke.request import FinishReason, SamplingParams
from twostroke.server.answers import Answers
from twostroke.server.asked import Asked, asked_by
from twostroke.server.body import parse
from twostroke.server.error_reply import ollama_error
from twostroke.server.event_stream import unless_gone
from twostroke.server.ollama_schemas import OllamaChatRequest, OllamaGenerateRequest
from twostroke.server.prompts import Prompt
from twostroke.server.route_docs import takes
from twostroke.server.service import Service
from twostroke.server.streaming import event_stream
from twostroke.server.timings import ollama_durations, server_timing
from twostroke.server.tools import JSON_OBJECT, Tools, form_of
from twostroke.text.tool_format import ToolCall

router = APIRouter(tags=["ollama"])
_LINES = "application/x-ndjson"
Content = Callable[[str, str, Sequence[ToolCall]], dict[str, Any]]


@router.post("/api/chat", **takes(OllamaChatRequest, stream=_LINES))
async def chat(request: Request) -> Response:
    """Answer a conversation; without messages, say that the model is loaded."""
    service: Service = request.app.state.service
    body = await parse(request, OllamaChatRequest, service.limits)
    asked = asked_by(request, model=body.model, user=None, stream=body.stream is not False)
    params = body.check(service.max_model_len)
    if not body.messages:
        return JSONResponse(
            {**_head(asked), **_message("", "", ()), "done": True, "done_reason": "load"}
        )
    tools = body.checked_tools()
    messages = [m.told() for m in body.messages]

    async def encode() -> Prompt:
        return await service.prompts.encode_chat(
            messages, tools=tools.offered or None, start_s=asked.start_s
        )

    return await _reply(request, asked, params, encode, _message, body.format, tools)


@router.post("/api/generate", **takes(OllamaGenerateRequest, stream=_LINES))
async def generate(request: Request) -> Response:
    """Answer one prompt through the chat template, or continue it raw; without one, say loaded."""
    service: Service = request.app.state.service
    body = await parse(request, OllamaGenerateRequest, service.limits)
    asked = asked_by(request, model=body.model, user=None, stream=body.stream is not False)
    params = body.check(service.max_model_len)
    if not body.prompt:
        return JSONResponse({**_head(asked), "response": "", "done": True, "done_reason": "load"})

    async def encode() -> Prompt:
        if body.raw or not service.loaded.model.has_template:
            return await service.prompts.encode_text(body.prompt, start_s=asked.start_s)
        system = [{"role": "system", "content": body.system}] if body.system else []
        messages = [*system, {"role": "user", "content": body.prompt}]
        return await service.prompts.encode_chat(messages, start_s=asked.start_s)

    return await _reply(request, asked, params, encode, _response, body.format, Tools())


def _message(text: str, thinking: str, calls: Sequence[ToolCall]) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": text}
    if thinking:
        message["thinking"] = thinking
    if calls:
        message["tool_calls"] = [
            {"id": f"call_{call.id}", "function": {"name": call.name, "arguments": call.arguments}}
            for call in calls
        ]
    return {"message": message}


def _response(text: str, thinking: str, calls: Sequence[ToolCall]) -> dict[str, Any]:
    return {"response": text, "thinking": thinking} if thinking else {"response": text}


def _head(asked: Asked) -> dict[str, Any]:
    now = datetime.datetime.now(datetime.timezone.utc)
    return {"model": asked.facts.model, "created_at": now.isoformat().replace("+00:00", "Z")}


async def _reply(
    request: Request,
    asked: Asked,
    params: SamplingParams,
    encode: Callable[[], Coroutine[Any, Any, Prompt]],
    content: Content,
    answer_format: str | dict[str, Any] | None,
    tools: Tools,
) -> Response:
    service = asked.service
    bounded = service.intake.bounded(params)
    asked.bound = bounded.bound

    async def answers() -> Answers:
        schema = None
        if answer_format:
            schema = answer_format if isinstance(answer_format, dict) else JSON_OBJECT
        form = await form_of(service.prompts, tools, schema)
        prompt = await encode()
        started = await service.intake.answer(
            asked.facts.id, [prompt], bounded.params, caller=asked.caller, form=form
        )
        asked.seed = started.choices[0].request.seed
        return started

    if not asked.facts.stream:
        return await unless_gone(request, _whole(asked, answers(), content))
    started = await unless_gone(request, answers())
    return event_stream(
        asked,
        started,
        _lines(asked, started, content),
        on_error=lambda error: _line(ollama_error(error)),
        media_type=_LINES,
        keep_alive=_line({**_head(asked), **content("", "", ()), "done": False}),
    )


def _line(data: dict[str, Any]) -> bytes:
    return json.dumps(data).encode() + b"\n"


def _end(asked: Asked, reason: FinishReason | None) -> dict[str, Any]:
    record = asked.records[0] if asked.records else None
    return {
        "done": True,
        "done_reason": reason.value if reason is not None else None,
        **ollama_durations(record),
        "timings": asked.timings(),
        "twostroke": asked.report(),
    }


async def _whole(
    asked: Asked, starting: Coroutine[Any, Any, Answers], content: Content
) -> Response:
    answers = await starting
    texts: list[str] = []
    thoughts: list[str] = []
    calls: list[ToolCall] = []
    reason = None
    try:
        async for piece in answers:
            asked.take(piece)
            texts.append(piece.text)
            thoughts.append(piece.reasoning)
            calls.extend(piece.calls)
            reason = piece.finish_reason
    finally:
        await answers.close()
    shown = content("".join(texts), "".join(thoughts), calls)
    body = {**_head(asked), **shown, **_end(asked, reason)}
    return JSONResponse(body, headers=server_timing(asked.records[0] if asked.records else None))


async def _lines(asked: Asked, answers: Answers, content: Content) -> AsyncGenerator[bytes, None]:
    async for piece in answers:
        asked.take(piece)
        if piece.text or piece.reasoning or piece.calls:
            shown = content(piece.text, piece.reasoning, piece.calls)
            yield _line({**_head(asked), **shown, "done": False})
        if piece.finish_reason is not None:
            end = _end(asked, piece.finish_reason)
            yield _line({**_head(asked), **content("", "", ()), **end})
