"""POST /v1/predict: how long a request would take if it came now, and what would shorten it.

Nothing runs and nothing changes: the prefix cache is looked at, not used.
"""

from __future__ import annotations

import asyncio
from typing import Any

from fastapi import APIRouter, Request
from pydantic import Field
from starlette.responses import JSONResponse, Response

from twostroke.engine.predict_request import RequestPrediction, predict_request
from twostroke.errors import RequestError
from twostroke.request import SamplingParams
from twostroke.server.asked import Asked, asked_by, plain_messages
from twostroke.server.body import Body, parse
from twostroke.server.openai_schemas import ChatMessage, Label
from twostroke.server.route_docs import takes
from twostroke.server.service import Service
from twostroke.server.tool_calls import for_template

router = APIRouter(tags=["operations"])


class PredictRequest(Body):
    """POST /v1/predict: the messages or the prompt that would be sent."""

    model: str | None = None
    messages: list[ChatMessage] | None = Field(default=None, min_length=1)
    prompt: str | list[int] | None = None
    max_tokens: int | None = Field(default=None, ge=0, le=2**31 - 1)
    cache_salt: Label | None = None


@router.post("/v1/predict", **takes(PredictRequest))
async def predict(request: Request) -> Response:
    """Say tokens, the cached part as it stands now, queue, both phases, KV bytes, and advice."""
    service: Service = request.app.state.service
    body = await parse(request, PredictRequest, service.limits)
    asked = asked_by(request, model=body.model, user=None, stream=False)
    ids = await _ids(asked, body)
    bounded = service.intake.bounded(SamplingParams(max_tokens=body.max_tokens))
    salt = asked.caller.salt + (body.cache_salt or "")
    outlook = await service.engine.outlook(ids, bounded.params, salt)
    config = service.loaded.config
    predictor = service.status.predictor
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
    reply: dict[str, Any] = {
        "object": "prediction",
        "model": asked.facts.model,
        "max_tokens_from": bounded.bound,
        **found.to_dict(),
    }
    speed = predictor.speed
    reply["speed"] = {"name": speed.name, "source": speed.source.value}
    return JSONResponse(reply)


async def _ids(asked: Asked, body: PredictRequest) -> tuple[int, ...]:
    service = asked.service
    if (body.messages is None) == (body.prompt is None):
        raise RequestError("give either messages or prompt", param="prompt")
    if body.messages is not None:
        messages = [for_template(m) for m in plain_messages(body.messages)]
        prompt = await service.prompts.encode_chat(messages, start_s=asked.start_s)
        return prompt.encoded.token_ids
    if isinstance(body.prompt, str):
        prompt = await service.prompts.encode_text(body.prompt, start_s=asked.start_s)
        return prompt.encoded.token_ids
    assert body.prompt is not None, "one of both was given"
    service.intake.check_prompt_ids(body.prompt)
    return tuple(body.prompt)
