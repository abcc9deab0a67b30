"""POST /v1/predict: how long a request would take if it came now, and what would shorten it.

Nothing runs and nothing changes: the prefix cache is looked at, not used.
"""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

from fastapi import APIRouter, Request
from pydantic import Field
from starlette.responses import JSONResponse, Response

from twostroke.engine.predict_request import RequestPrediction, predict_request
from twostroke.errors import RequestError
from twostroke.generation.make_request import check_token_ids
from twostroke.request import SamplingParams
from twostroke.server.generate import ReplyState, accept
from twostroke.server.http.connection import Body, Label, parse
from twostroke.server.http.route_docs import takes
from twostroke.server.images import NoImages
from twostroke.server.openai.base import ChatMessage
from twostroke.server.openai.chat import messages_of
from twostroke.server.prompts import ChatPrompt, Prompt
from twostroke.server.service import Service

router = APIRouter(tags=["operations"])


class PredictRequest(Body):
    """POST /v1/predict: the messages or the prompt that would be sent."""

    model: str | None = None
    messages: Annotated[list[ChatMessage] | None, NoImages] = Field(default=None, min_length=1)
    prompt: str | list[int] | None = None
    max_tokens: int | None = Field(default=None, ge=0, le=2**31 - 1)
    cache_salt: Label | None = None


@router.post("/v1/predict", **takes(PredictRequest))
async def predict(request: Request) -> Response:
    """Predict tokens, the cached part as it stands now, queue, both phases, KV bytes; advise."""
    service: Service = request.app.state.service
    body = await parse(request, PredictRequest, service.limits)
    reply = accept(request, model=body.model, user=None, is_stream=False)
    token_ids = await _token_ids(reply, body)
    bounded = service.admission.bounded(SamplingParams(max_tokens=body.max_tokens))
    outlook = await service.engine.outlook(token_ids, bounded.params, reply.salt(body.cache_salt))
    config, predictor = service.loaded.config, service.engine.status.predictor
    assert predictor is not None, "a built engine has a predictor"

    def work() -> RequestPrediction:
        return predict_request(
            predictor,
            outlook,
            max_tokens=bounded.params.max_tokens,
            prefill_chunk=config.prefill_chunk,
            target_tpot_s=config.target_tpot_s,
            has_history=body.messages is not None and len(body.messages) > 2,
        )

    found = await asyncio.get_running_loop().run_in_executor(None, work)
    told: dict[str, Any] = {
        "object": "prediction",
        "model": reply.facts.model,
        "max_tokens_from": bounded.bound,
        **found.to_dict(),
    }
    speed = predictor.speed
    told["speed"] = {"name": speed.name, "source": speed.source.value}
    return JSONResponse(told)


async def _token_ids(reply: ReplyState, body: PredictRequest) -> tuple[int, ...]:
    if (body.messages is None) == (body.prompt is None):
        raise RequestError("give either messages or prompt", param="prompt")
    prompt: Prompt
    if body.messages is not None:
        prompt = ChatPrompt(messages=messages_of(body.messages))
    elif isinstance(body.prompt, str):
        prompt = body.prompt
    else:
        prompt = tuple(body.prompt or ())
        check_token_ids(prompt, reply.service.loaded.model.config.vocab_size, "prompt")
    return (await reply.service.prompts.encode(prompt, (), reply.start_s)).token_ids
