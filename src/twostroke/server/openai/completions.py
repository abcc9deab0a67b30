"""POST /v1/completions: raw prompts, continued."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from fastapi import APIRouter, Request
from pydantic import Field
from starlette.responses import Response

from twostroke.errors import RequestError
from twostroke.generation.answer import Delta
from twostroke.server.errors import Unsupported
from twostroke.server.generate import GenerationRequest, ReplyState, accept, generate
from twostroke.server.http.connection import parse
from twostroke.server.http.route_docs import takes
from twostroke.server.openai.base import CompletionBody, CompletionCodec, finish_name
from twostroke.server.openai.logprobs import completion_logprobs
from twostroke.server.prompts import Prompt
from twostroke.server.service import Service

router = APIRouter(tags=["openai"])


class CompletionRequest(CompletionBody):
    """POST /v1/completions."""

    prompt: str | list[str] | list[int] | list[list[int]]
    best_of: int | None = Field(default=None, ge=1, le=1024)
    echo: Literal[False] | None = None
    suffix: None = None
    logprobs: int | None = Field(default=None, ge=0, le=20)


@router.post("/v1/completions", **takes(CompletionRequest, stream="text/event-stream"))
async def completions(request: Request) -> Response:
    """Continue one prompt or several."""
    service: Service = request.app.state.service
    body = await parse(request, CompletionRequest, service.limits)
    reply = accept(request, model=body.model, user=body.user, is_stream=bool(body.stream))
    asked = _asked(body, service.limits.max_prompts)
    return await generate(request, asked, TextCodec(reply, body))


def _asked(body: CompletionRequest, max_prompts: int) -> GenerationRequest:
    """Return the generation that a body asks for.

    Raises:
        RequestError: parameters that contradict each other, or that cannot be honoured.
    """
    count = body.n or 1
    if body.best_of is not None and body.best_of != count:
        raise Unsupported("best_of must equal n", value=body.best_of, limit=count, param="best_of")
    body.check_stream()
    params = body.params(max_tokens=body.max_tokens, logprobs=body.logprobs)
    prompts = _prompts(body)
    if not 1 <= len(prompts) <= max_prompts:
        raise RequestError(
            "too many prompts, or none",
            value=len(prompts),
            limit=f"max_prompts {max_prompts}",
            param="prompt",
        )
    return GenerationRequest(
        prompts=prompts,
        params=params,
        count=count,
        cache_salt=body.cache_salt or "",
        tells_progress=bool(body.return_progress),
    )


def _prompts(body: CompletionRequest) -> list[Prompt]:
    """Return the prompts as texts or tuples of ids; a flat list of ids is one prompt."""
    given: Any = body.prompt
    if isinstance(given, str) or (given and isinstance(given[0], int)):
        given = [given]
    return [prompt if isinstance(prompt, str) else tuple(prompt) for prompt in given]


class TextCodec(CompletionCodec):
    """Writes text completions."""

    id_prefix = "cmpl"
    whole_object = chunk_object = "text_completion"
    empty_choice: ClassVar = {
        "index": 0,
        "text": "",
        "finish_reason": None,
        "logprobs": None,
    }

    def __init__(self, reply: ReplyState, body: CompletionRequest) -> None:
        super().__init__(reply, body)
        self._has_logprobs = body.logprobs is not None
        self._num_chars: dict[int, int] = {}  # of each choice so far

    def choice(self, delta: Delta) -> dict[str, Any]:
        """Return the new part of one choice; offsets of log-probabilities count from its start."""
        offset = self._num_chars.get(delta.index, 0)
        self._num_chars[delta.index] = offset + len(delta.text)
        entries = None
        if self._has_logprobs:
            tokenizer = self.reply.service.tokenizer
            entries = completion_logprobs(tokenizer, delta.logprobs, offset)
        return {
            "index": delta.index,
            "text": delta.text,
            "finish_reason": finish_name(delta.finish_reason),
            "logprobs": entries,
        }

    def whole_choice(self, answer: Delta) -> dict[str, Any]:
        """Return a whole choice."""
        return {**self.choice(answer), "stop_reason": answer.stop_reason}
