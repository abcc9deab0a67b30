"""POST /v1/chat/completions."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, Response

from twostroke.engine.status import EngineStatus
from twostroke.errors import RequestError
from twostroke.request import SamplingParams
from twostroke.server.answers import Answers, Piece
from twostroke.server.asked import Asked, asked_by, plain_messages
from twostroke.server.body import parse
from twostroke.server.chat_form import answer_schema, checked_tools, finish_of, message_of
from twostroke.server.error_reply import openai_error
from twostroke.server.event_stream import sse, unless_gone
from twostroke.server.history import ANSWER_RESERVE, MAX_SUMMARY_TOKENS, fit, transcript
from twostroke.server.logprobs import chat_logprobs
from twostroke.server.openai_schemas import ChatRequest
from twostroke.server.prompts import Prompt
from twostroke.server.refusals import Unsupported
from twostroke.server.route_docs import takes
from twostroke.server.service import Service
from twostroke.server.streaming import event_stream
from twostroke.server.timings import server_timing, usage
from twostroke.server.tool_calls import for_template, openai_calls
from twostroke.server.tools import Tools, form_of
from twostroke.text.tool_format import ToolCall

router = APIRouter(tags=["openai"])
_DONE = sse("[DONE]")


@router.post("/v1/chat/completions", **takes(ChatRequest, stream="text/event-stream"))
async def chat_completions(request: Request) -> Response:
    """Answer a conversation."""
    service: Service = request.app.state.service
    body = await parse(request, ChatRequest, service.limits)
    is_stream = bool(body.stream)
    asked = asked_by(request, model=body.model, user=body.user, stream=is_stream)
    _refuse_what_cannot_be(body)
    tools, schema = checked_tools(body), answer_schema(body)
    params = body.params(max_tokens=_max_tokens(body), logprobs=_num_logprobs(body))
    bounded = service.intake.bounded(params)
    asked.bound = bounded.bound

    async def answers() -> tuple[Prompt, Answers]:
        form = await form_of(service.prompts, tools, schema)
        prompt = await _prompt(asked, body, tools, bounded.params)
        started = await service.intake.answer(
            asked.facts.id,
            [prompt],
            bounded.params,
            count=body.n or 1,
            caller=asked.caller,
            cache_salt=body.cache_salt or "",
            form=form,
        )
        asked.seed = started.choices[0].request.seed
        return prompt, started

    if not is_stream:
        return await unless_gone(request, _whole(asked, body, answers()))
    prompt, started = await unless_gone(request, answers())
    return event_stream(
        asked,
        started,
        _frames(asked, body, prompt, started),
        on_error=lambda error: (
            _usage_frame(asked, body, prompt) + sse(json.dumps(openai_error(error)))
        ),
        progress=_progress_frame(asked) if body.return_progress else None,
    )


def _refuse_what_cannot_be(body: ChatRequest) -> None:
    if body.stream_options is not None and not body.stream:
        raise RequestError("stream_options needs stream", param="stream_options")
    if body.return_progress and not body.stream:
        raise RequestError("return_progress needs stream", param="return_progress")
    if body.top_logprobs is not None and not body.logprobs:
        raise RequestError("top_logprobs needs logprobs", param="top_logprobs")


def _max_tokens(body: ChatRequest) -> int | None:
    old, new = body.max_tokens, body.max_completion_tokens
    if old is not None and new is not None and old != new:
        raise RequestError(
            "max_tokens and max_completion_tokens differ",
            value=f"{old} and {new}",
            remedy="Give one of them.",
            param="max_completion_tokens",
        )
    return new if new is not None else old


def _num_logprobs(body: ChatRequest) -> int | None:
    return (body.top_logprobs or 0) if body.logprobs else None


def template_variables(service: Service, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return variables for the chat template.

    Raises:
        Unsupported: one that the model's template does not read.
    """
    for name in given:
        if not service.template_reads(name):
            raise Unsupported(
                "this model's chat template does not read that variable",
                value=repr(name[:64]),
                param="chat_template_kwargs",
            )
    return dict(given)


async def _prompt(asked: Asked, body: ChatRequest, tools: Tools, params: SamplingParams) -> Prompt:
    service = asked.service
    given = dict(body.chat_template_kwargs or {})
    if body.reasoning_effort is not None:
        given["reasoning_effort"] = body.reasoning_effort
    variables = template_variables(service, given)
    messages = [for_template(m) for m in plain_messages(body.messages)]

    async def encode(some: Sequence[dict[str, Any]]) -> Prompt:
        return await service.prompts.encode_chat(
            some, tools=tools.offered or None, variables=variables, start_s=asked.start_s
        )

    if body.history in (None, "refuse"):
        return await encode(messages)

    async def summarise(some: Sequence[dict[str, Any]]) -> str:
        return await _summary(asked, transcript(some))

    reserve = params.max_tokens if params.max_tokens is not None else ANSWER_RESERVE
    prompt, asked.trimmed = await fit(
        messages,
        policy=body.history,
        encode=encode,
        summarise=summarise,
        room=service.status.max_prompt_tokens(SamplingParams(max_tokens=reserve)),
        predicted_s=service.predicted_prefill_s,
    )
    return prompt


async def _summary(asked: Asked, messages: Sequence[dict[str, Any]]) -> str:
    """Have the model summarise messages, the oldest left out where they are too many."""
    service = asked.service
    params = SamplingParams(temperature=0.0, max_tokens=MAX_SUMMARY_TOKENS)

    async def no_summary(_: Sequence[dict[str, Any]]) -> str:
        return ""

    prompt, _ = await fit(
        messages,
        policy="drop_oldest",
        encode=service.prompts.encode_chat,
        summarise=no_summary,
        room=service.status.max_prompt_tokens(params),
        predicted_s=service.predicted_prefill_s,
    )
    answers = await service.intake.answer(
        f"{asked.facts.id}-summary", [prompt], params, caller=asked.caller
    )
    texts = []
    try:
        async for piece in answers:
            texts.append(piece.text)
            if piece.record is not None:
                asked.facts.records.append(piece.record)
    finally:
        await answers.close()
    return "".join(texts).strip() or "(nothing)"


async def _whole(asked: Asked, body: ChatRequest, starting: Any) -> Response:
    prompt, answers = await starting
    count = len(answers.choices)
    texts: list[list[str]] = [[] for _ in range(count)]
    thoughts: list[list[str]] = [[] for _ in range(count)]
    entries: list[list[Any]] = [[] for _ in range(count)]
    calls: list[list[ToolCall]] = [[] for _ in range(count)]
    ends: list[Piece | None] = [None] * count
    try:
        async for piece in answers:
            asked.take(piece)
            texts[piece.index].append(piece.text)
            thoughts[piece.index].append(piece.reasoning)
            entries[piece.index].extend(piece.logprobs)
            calls[piece.index].extend(piece.calls)
            if piece.finish_reason is not None:
                ends[piece.index] = piece
    finally:
        await answers.close()
    tokenizer = asked.service.tokenizer
    choices = []
    for index in range(count):
        message = message_of("".join(texts[index]), "".join(thoughts[index]), calls[index])
        end = ends[index]
        choices.append(
            {
                "index": index,
                "message": message,
                "finish_reason": finish_of(end),
                "stop_reason": end.stop_reason if end else None,
                "logprobs": chat_logprobs(tokenizer, entries[index]) if body.logprobs else None,
            }
        )
    reply = {
        "id": f"chatcmpl-{asked.facts.id}",
        "object": "chat.completion",
        "created": asked.created,
        "model": asked.facts.model,
        "choices": choices,
        "usage": usage(prompt.num_tokens, asked.records, asked.num_output),
        "timings": asked.timings(),
        "twostroke": asked.report(),
    }
    return JSONResponse(reply, headers=server_timing(asked.records[0] if asked.records else None))


def _head(asked: Asked) -> dict[str, Any]:
    return {
        "id": f"chatcmpl-{asked.facts.id}",
        "object": "chat.completion.chunk",
        "created": asked.created,
        "model": asked.facts.model,
    }


def _progress_frame(asked: Asked) -> Any:
    def frame(status: EngineStatus, request_id: str) -> bytes | None:
        progress = status.progress.get(request_id)
        if progress is None:
            return None
        eta_s = status.eta_s(request_id)
        choice = {"index": 0, "delta": {}, "finish_reason": None}
        told = {
            "total": progress.num_total,
            "cache": progress.num_cached,
            "processed": progress.num_done,
            "eta_ms": None if eta_s is None else round(eta_s * 1e3, 1),
        }
        return sse(json.dumps({**_head(asked), "choices": [choice], "prompt_progress": told}))

    return frame


async def _frames(
    asked: Asked, body: ChatRequest, prompt: Prompt, answers: Answers
) -> AsyncGenerator[bytes, None]:
    head = _head(asked)
    tokenizer = asked.service.tokenizer
    has_usage = body.stream_options is not None and body.stream_options.include_usage
    named: set[int] = set()
    async for piece in answers:
        asked.take(piece)
        delta: dict[str, Any] = {}
        if piece.index not in named:
            delta["role"] = "assistant"  # with the first token, so that no meter takes it for one
        if piece.reasoning:
            delta["reasoning_content"] = piece.reasoning
        if piece.calls:
            delta["tool_calls"] = openai_calls(piece.calls, piece.num_calls - len(piece.calls))
        if piece.text or not (piece.reasoning or piece.calls):
            delta["content"] = piece.text
        choice = {
            "index": piece.index,
            "delta": delta,
            "finish_reason": finish_of(piece),
            "logprobs": chat_logprobs(tokenizer, piece.logprobs) if body.logprobs else None,
        }
        chunk: dict[str, Any] = {**head, "choices": [choice]}
        if piece.finish_reason is not None:
            choice["stop_reason"] = piece.stop_reason
            chunk["timings"] = asked.timings()
            chunk["twostroke"] = asked.report()
        elif not (piece.text or piece.reasoning or piece.logprobs or piece.calls):
            continue  # held back: half a character, or what may become a stop
        named.add(piece.index)
        if has_usage:
            chunk["usage"] = None
        yield sse(json.dumps(chunk))
    yield _usage_frame(asked, body, prompt) + _DONE


def _usage_frame(asked: Asked, body: ChatRequest, prompt: Prompt) -> bytes:
    """Return the chunk with the usage, nothing where it was not asked for."""
    if body.stream_options is None or not body.stream_options.include_usage:
        return b""
    told = usage(prompt.num_tokens, asked.records, asked.num_output)
    return sse(json.dumps({**_head(asked), "choices": [], "usage": told}))
