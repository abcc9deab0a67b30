"""POST /v1/completions: raw prompts, continued."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Coroutine
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, Response

from twostroke.engine.status import EngineStatus
from twostroke.errors import RequestError
from twostroke.llm import Encoded
from twostroke.server.answers import Answers, Piece
from twostroke.server.asked import Asked, asked_by, finish_name
from twostroke.server.body import parse
from twostroke.server.error_reply import openai_error
from twostroke.server.event_stream import sse, unless_gone
from twostroke.server.logprobs import completion_logprobs
from twostroke.server.openai_schemas import CompletionRequest
from twostroke.server.prompts import Prompt
from twostroke.server.refusals import Unsupported
from twostroke.server.route_docs import takes
from twostroke.server.service import Service
from twostroke.server.streaming import event_stream
from twostroke.server.timings import server_timing, usage

router = APIRouter(tags=["openai"])


@router.post("/v1/completions", **takes(CompletionRequest, stream="text/event-stream"))
async def completions(request: Request) -> Response:
    """Continue one prompt or several."""
    service: Service = request.app.state.service
    body = await parse(request, CompletionRequest, service.limits)
    is_stream = bool(body.stream)
    asked = asked_by(request, model=body.model, user=body.user, stream=is_stream)
    count = body.n or 1
    _refuse_what_cannot_be(body, count)
    bounded = service.intake.bounded(
        body.params(max_tokens=body.max_tokens, logprobs=body.logprobs)
    )
    asked.bound = bounded.bound

    async def answers() -> tuple[int, Answers]:
        prompts = await _prompts(service, body, asked.start_s)
        started = await service.intake.answer(
            asked.facts.id,
            prompts,
            bounded.params,
            count=count,
            caller=asked.caller,
            cache_salt=body.cache_salt or "",
        )
        asked.seed = started.choices[0].request.seed
        return sum(p.num_tokens for p in prompts), started

    if not is_stream:
        return await unless_gone(request, _whole(asked, body, answers()))
    num_prompt, started = await unless_gone(request, answers())
    return event_stream(
        asked,
        started,
        _frames(asked, body, num_prompt, started),
        on_error=lambda error: (
            _usage_frame(asked, body, num_prompt) + sse(json.dumps(openai_error(error)))
        ),
        progress=_progress_frame(asked) if body.return_progress else None,
    )


def _refuse_what_cannot_be(body: CompletionRequest, count: int) -> None:
    if body.best_of is not None and body.best_of != count:
        raise Unsupported("best_of must equal n", value=body.best_of, limit=count, param="best_of")
    if body.stream_options is not None and not body.stream:
        raise RequestError("stream_options needs stream", param="stream_options")
    if body.return_progress and not body.stream:
        raise RequestError("return_progress needs stream", param="return_progress")


async def _prompts(service: Service, body: CompletionRequest, start_s: float) -> list[Prompt]:
    given = body.prompt
    is_one = isinstance(given, str) or (bool(given) and isinstance(given[0], int))
    many: Any = [given] if is_one else given
    if not 1 <= len(many) <= service.limits.max_prompts:
        raise RequestError(
            "too many prompts, or none",
            value=len(many),
            limit=f"max_prompts {service.limits.max_prompts}",
            param="prompt",
        )
    prompts = []
    for prompt in many:
        if isinstance(prompt, str):
            prompts.append(await service.prompts.encode_text(prompt, start_s=start_s))
        else:
            service.intake.check_prompt_ids(prompt)
            prompts.append(Prompt(Encoded(token_ids=tuple(prompt), init_s=0.0)))
    return prompts


def _head(asked: Asked) -> dict[str, Any]:
    return {
        "id": f"cmpl-{asked.facts.id}",
        "object": "text_completion",
        "created": asked.created,
        "model": asked.facts.model,
    }


def _progress_frame(asked: Asked) -> Any:
    def frame(status: EngineStatus, request_id: str) -> bytes | None:
        progress = status.progress.get(request_id)
        if progress is None:
            return None
        eta_s = status.eta_s(request_id)
        told = {
            "total": progress.num_total,
            "cache": progress.num_cached,
            "processed": progress.num_done,
            "eta_ms": None if eta_s is None else round(eta_s * 1e3, 1),
        }
        choice = {"index": 0, "text": "", "finish_reason": None, "logprobs": None}
        return sse(json.dumps({**_head(asked), "choices": [choice], "prompt_progress": told}))

    return frame


def _choice(asked: Asked, body: CompletionRequest, piece: Piece, offset: int) -> dict[str, Any]:
    entries = None
    if body.logprobs is not None:
        entries = completion_logprobs(asked.service.tokenizer, piece.logprobs, offset)
    return {
        "index": piece.index,
        "text": piece.text,
        "finish_reason": finish_name(piece.finish_reason),
        "logprobs": entries,
    }


async def _whole(
    asked: Asked, body: CompletionRequest, starting: Coroutine[Any, Any, tuple[int, Answers]]
) -> Response:
    num_prompt, answers = await starting
    pieces: list[list[Piece]] = [[] for _ in answers.choices]
    try:
        async for piece in answers:
            asked.take(piece)
            pieces[piece.index].append(piece)
    finally:
        await answers.close()
    choices = []
    for some in pieces:
        whole = Piece(
            index=some[-1].index,
            text="".join(p.text for p in some),
            logprobs=tuple(entry for p in some for entry in p.logprobs),
            finish_reason=some[-1].finish_reason,
        )
        choices.append({**_choice(asked, body, whole, 0), "stop_reason": some[-1].stop_reason})
    reply = {
        **_head(asked),
        "choices": choices,
        "usage": usage(num_prompt, asked.records, asked.num_output),
        "timings": asked.timings(),
        "twostroke": asked.report(),
    }
    return JSONResponse(reply, headers=server_timing(asked.records[0] if asked.records else None))


async def _frames(
    asked: Asked, body: CompletionRequest, num_prompt: int, answers: Answers
) -> AsyncGenerator[bytes, None]:
    head = _head(asked)
    has_usage = body.stream_options is not None and body.stream_options.include_usage
    offsets = [0] * len(answers.choices)
    async for piece in answers:
        asked.take(piece)
        choice = _choice(asked, body, piece, offsets[piece.index])
        offsets[piece.index] += len(piece.text)
        chunk: dict[str, Any] = {**head, "choices": [choice]}
        if piece.finish_reason is not None:
            choice["stop_reason"] = piece.stop_reason
            chunk["timings"] = asked.timings()
            chunk["twostroke"] = asked.report()
        elif not (piece.text or piece.logprobs):
            continue
        if has_usage:
            chunk["usage"] = None
        yield sse(json.dumps(chunk))
    yield _usage_frame(asked, body, num_prompt) + sse("[DONE]")


def _usage_frame(asked: Asked, body: CompletionRequest, num_prompt: int) -> bytes:
    """Return the chunk with the usage, nothing where it was not asked for."""
    if body.stream_options is None or not body.stream_options.include_usage:
        return b""
    told = usage(num_prompt, asked.records, asked.num_output)
    return sse(json.dumps({**_head(asked), "choices": [], "usage": told}))
