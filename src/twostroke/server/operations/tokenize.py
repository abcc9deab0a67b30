"""POST /tokenize and /detokenize, as llama.cpp's server has them."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, Response

from twostroke.errors import RequestError
from twostroke.generation.make_request import check_token_ids
from twostroke.server.generate import ReplyState, accept
from twostroke.server.http.connection import Body, parse
from twostroke.server.http.route_docs import takes
from twostroke.server.images import NoImages
from twostroke.server.openai.base import ChatMessage
from twostroke.server.openai.chat import messages_of
from twostroke.server.prompts import ChatPrompt
from twostroke.server.service import Service

router = APIRouter(tags=["operations"])


class TokenizeRequest(Body):
    """POST /tokenize: a text, or a conversation through the chat template."""

    model: str | None = None
    content: str | None = None
    messages: Annotated[list[ChatMessage] | None, NoImages] = None
    add_special: bool = False
    parse_special: bool = False
    with_pieces: bool = False


class DetokenizeRequest(Body):
    """POST /detokenize."""

    model: str | None = None
    tokens: list[int]


@router.post("/tokenize", **takes(TokenizeRequest))
async def tokenize(request: Request) -> Response:
    """Return the ids of a text, or of a conversation as the model would read it."""
    service: Service = request.app.state.service
    body = await parse(request, TokenizeRequest, service.limits)
    reply = accept(request, model=body.model, user=None, is_stream=False)
    ids = await _token_ids(reply, body)
    told: dict[str, Any] = {
        "tokens": ids,
        "count": len(ids),
        "max_model_len": service.max_model_len,
    }
    if body.with_pieces:
        pieces = (service.tokenizer.token_bytes(i, with_control=True) for i in ids)
        told["pieces"] = [
            {"id": i, "piece": raw.decode("utf-8", "replace"), "bytes": list(raw)}
            for i, raw in zip(ids, pieces, strict=True)
        ]
    return JSONResponse(told)


async def _token_ids(reply: ReplyState, body: TokenizeRequest) -> list[int]:
    prompts = reply.service.prompts
    if (body.content is None) == (body.messages is None):
        raise RequestError("give either content or messages", param="content")
    if body.messages is None:
        return await prompts.tokenize(
            body.content or "", add_special=body.add_special, parse_special=body.parse_special
        )
    if body.add_special or body.parse_special:
        raise RequestError(
            "add_special and parse_special go with content; a template decides by itself",
            param="messages",
        )
    chat = ChatPrompt(messages=messages_of(body.messages))
    return list((await prompts.encode(chat, (), reply.start_s)).token_ids)


@router.post("/detokenize", **takes(DetokenizeRequest))
async def detokenize(request: Request) -> Response:
    """Return the text of ids; control tokens have no text."""
    service: Service = request.app.state.service
    body = await parse(request, DetokenizeRequest, service.limits)
    accept(request, model=body.model, user=None, is_stream=False)
    check_token_ids(body.tokens, service.loaded.model.config.vocab_size, "tokens")
    return JSONResponse({"content": service.tokenizer.decode(body.tokens)})
