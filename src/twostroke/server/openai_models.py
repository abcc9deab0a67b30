"""GET /v1/models, POST /tokenize and /detokenize, and the clear refusal of /v1/embeddings."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, Response

from twostroke.errors import RequestError
from twostroke.server.asked import asked_by, plain_messages
from twostroke.server.body import parse
from twostroke.server.error_reply import error_response
from twostroke.server.openai_schemas import DetokenizeRequest, TokenizeRequest
from twostroke.server.refusals import Unsupported
from twostroke.server.route_docs import takes
from twostroke.server.service import Service
from twostroke.server.tool_calls import for_template

router = APIRouter(tags=["openai"])


def _card(service: Service, name: str) -> dict[str, Any]:
    return {
        "id": name,
        "object": "model",
        "created": 0,
        "owned_by": "twostroke",
        "max_model_len": service.max_model_len,
        "root": service.name,
    }


@router.get("/v1/models")
async def models(request: Request) -> dict[str, Any]:
    """The served model under each of its names; max_model_len is the limit of one request."""
    service: Service = request.app.state.service
    service.check_ready()
    return {"object": "list", "data": [_card(service, n) for n in service.settings.names]}


@router.get("/v1/models/{name:path}", responses={404: {"description": "Not served."}})
async def model(request: Request, name: str) -> dict[str, Any]:
    """One model."""
    service: Service = request.app.state.service
    service.check_ready()
    return _card(service, service.check_model(name))


@router.post(
    "/v1/embeddings",
    responses={400: {"description": "Not supported.", "content": {"application/json": {}}}},
)
async def embeddings(request: Request) -> Response:
    """Refused: this server generates text only."""
    error = Unsupported(
        "embeddings are not supported by this version", remedy="Use /v1/completions."
    )
    return error_response(error, request.url.path)


@router.post("/tokenize", **takes(TokenizeRequest))
async def tokenize(request: Request) -> Response:
    """Return the ids of a text, or of a conversation as the model would read it."""
    service: Service = request.app.state.service
    body = await parse(request, TokenizeRequest, service.limits)
    asked = asked_by(request, model=body.model, user=None, stream=False)
    if (body.content is None) == (body.messages is None):
        raise RequestError("give either content or messages", param="content")
    if body.messages is not None:
        if body.add_special or body.parse_special:
            raise RequestError(
                "add_special and parse_special go with content; a template decides by itself",
                param="messages",
            )
        prompt = await service.prompts.encode_chat(
            [for_template(m) for m in plain_messages(body.messages)], start_s=asked.start_s
        )
        ids = list(prompt.encoded.token_ids)
    else:
        ids = await service.prompts.tokenize(
            body.content or "", add_special=body.add_special, parse_special=body.parse_special
        )
    reply: dict[str, Any] = {
        "tokens": ids,
        "count": len(ids),
        "max_model_len": service.max_model_len,
    }
    if body.with_pieces:
        pieces = (service.tokenizer.token_bytes(i, with_control=True) for i in ids)
        reply["pieces"] = [
            {"id": i, "piece": raw.decode("utf-8", "replace"), "bytes": list(raw)}
            for i, raw in zip(ids, pieces, strict=True)
        ]
    return JSONResponse(reply)


@router.post("/detokenize", **takes(DetokenizeRequest))
async def detokenize(request: Request) -> Response:
    """Return the text of ids; control tokens are no text."""
    service: Service = request.app.state.service
    body = await parse(request, DetokenizeRequest, service.limits)
    asked_by(request, model=body.model, user=None, stream=False)
    service.intake.check_prompt_ids(body.tokens)
    return JSONResponse({"content": service.tokenizer.decode(body.tokens)})
