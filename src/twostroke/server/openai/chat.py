"""POST /v1/chat/completions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Literal

from fastapi import APIRouter, Request
from pydantic import Field
from starlette.responses import Response

from twostroke.errors import RequestError
from twostroke.generation.answer import Delta
from twostroke.request import FinishReason
from twostroke.server.errors import Unsupported
from twostroke.server.generate import GenerationRequest, ReplyState, accept, generate
from twostroke.server.http.connection import Body, Label, parse
from twostroke.server.http.route_docs import takes
from twostroke.server.images import NoImages
from twostroke.server.openai.base import ChatMessage, CompletionBody, CompletionCodec, finish_name
from twostroke.server.openai.logprobs import chat_logprobs
from twostroke.server.openai.tools import Tool, ToolChoice, calls_json, parsed_arguments, tools_of
from twostroke.server.prompts import ChatPrompt
from twostroke.server.service import Service
from twostroke.server.tools import JSON_OBJECT, MAX_TOOLS, Tools

router = APIRouter(tags=["openai"])


class JsonSchema(Body):
    """A named schema; the answer always keeps to it, so `strict` changes nothing."""

    name: Label
    description: str | None = None
    body: dict[str, Any] = Field(alias="schema")
    strict: bool | None = None


class ResponseFormat(Body):
    """The form of the answer."""

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None


class ChatRequest(CompletionBody):
    """POST /v1/chat/completions."""

    messages: Annotated[list[ChatMessage], NoImages] = Field(min_length=1)
    max_completion_tokens: int | None = Field(default=None, ge=0, le=2**31 - 1)
    logprobs: bool | None = None
    top_logprobs: int | None = Field(default=None, ge=0, le=20)
    response_format: ResponseFormat | None = None
    tools: Annotated[list[Tool], Field(max_length=MAX_TOOLS)] | None = None
    tool_choice: Literal["none", "auto", "required"] | ToolChoice | None = None
    parallel_tool_calls: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    reasoning_effort: Label | None = None
    metadata: Annotated[dict[str, str], Field(max_length=0)] | None = None
    modalities: list[Literal["text"]] | None = None
    service_tier: Literal["auto", "default"] | None = None
    store: Literal[False] | None = None
    history: Literal["refuse", "drop_oldest", "summarize"] | None = None


@router.post("/v1/chat/completions", **takes(ChatRequest, stream="text/event-stream"))
async def chat_completions(request: Request) -> Response:
    """Answer a conversation."""
    service: Service = request.app.state.service
    body = await parse(request, ChatRequest, service.limits)
    reply = accept(request, model=body.model, user=body.user, is_stream=bool(body.stream))
    return await generate(request, _asked(service, body), ChatCodec(reply, body))


def _asked(service: Service, body: ChatRequest) -> GenerationRequest:
    """Return the generation that a body asks for.

    Raises:
        RequestError: parameters that contradict each other, or that cannot be honoured.
    """
    body.check_stream()
    if body.top_logprobs is not None and not body.logprobs:
        raise RequestError("top_logprobs needs logprobs", param="top_logprobs")
    tools = Tools()
    if body.tools or body.tool_choice is not None:
        tools = _checked_tools(body)
    schema = None
    if body.response_format is not None:
        schema = _answer_schema(body, body.response_format)
    num_logprobs = (body.top_logprobs or 0) if body.logprobs else None
    return GenerationRequest(
        prompts=[
            ChatPrompt(messages=messages_of(body.messages), variables=_variables(service, body))
        ],
        params=body.params(max_tokens=_max_tokens(body), logprobs=num_logprobs),
        history=body.history or "refuse",
        tools=tools,
        answer_schema=schema,
        count=body.n or 1,
        cache_salt=body.cache_salt or "",
        tells_progress=bool(body.return_progress),
    )


def _checked_tools(body: ChatRequest) -> Tools:
    tools = tools_of(
        body.tools, body.tool_choice, is_parallel=body.parallel_tool_calls is not False
    )
    if tools.demanded is not None and body.ignore_eos:
        raise RequestError("a demanded tool call excludes ignore_eos", param="tool_choice")
    return tools


def _answer_schema(body: ChatRequest, form: ResponseFormat) -> dict[str, Any] | None:
    """Return the schema that the answer keeps to, None for text."""
    if form.type == "text":
        return None
    if body.ignore_eos:
        raise RequestError(
            "ignore_eos and a response_format exclude each other", param="ignore_eos"
        )
    if (form.json_schema is not None) != (form.type == "json_schema"):
        raise RequestError(
            "json_schema goes with the type of that name", param="response_format.json_schema"
        )
    return form.json_schema.body if form.json_schema is not None else JSON_OBJECT


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


def _variables(service: Service, body: ChatRequest) -> dict[str, Any]:
    """Return the values of template variables, each of which the model's template must read."""
    given = dict(body.chat_template_kwargs or {})
    if body.reasoning_effort is not None:
        given["reasoning_effort"] = body.reasoning_effort
    for name in given:
        if not service.prompts.template_reads(name):
            raise Unsupported(
                "this model's chat template does not read that variable",
                value=repr(name[:64]),
                param="chat_template_kwargs",
            )
    return given


def messages_of(messages: Sequence[ChatMessage]) -> list[dict[str, Any]]:
    """Return messages as chat templates read them: content one string, arguments objects.

    Raises:
        RequestError: a tool call without a function, or whose arguments are no JSON object.
    """
    shown = []
    for message in messages:
        plain = message.model_dump(exclude_none=True)
        content = plain.get("content", "")
        if isinstance(content, list):
            content = "\n".join(part["text"] for part in content)
        plain["content"] = content
        shown.append(parsed_arguments(plain) if plain.get("tool_calls") else plain)
    return shown


class ChatCodec(CompletionCodec):
    """Writes chat completions."""

    id_prefix = "chatcmpl"
    whole_object, chunk_object = "chat.completion", "chat.completion.chunk"
    empty_choice: ClassVar = {"index": 0, "delta": {}, "finish_reason": None}

    def __init__(self, reply: ReplyState, body: ChatRequest) -> None:
        super().__init__(reply, body)
        self._has_logprobs = bool(body.logprobs)
        self._begun: set[int] = set()  # choices whose role was sent

    def choice(self, delta: Delta) -> dict[str, Any]:
        """Return the new part of one choice.

        The role comes with the first token, so that no meter takes the role for a token.
        """
        part: dict[str, Any] = {}
        if delta.index not in self._begun:
            self._begun.add(delta.index)
            part["role"] = "assistant"
        if delta.reasoning:
            part["reasoning_content"] = delta.reasoning
        if delta.calls:
            part["tool_calls"] = calls_json(delta.calls, delta.num_calls - len(delta.calls))
        if delta.text or not (delta.reasoning or delta.calls):
            part["content"] = delta.text
        return {
            "index": delta.index,
            "delta": part,
            "finish_reason": _finish(delta) if delta.finish_reason is not None else None,
            "logprobs": self._logprobs(delta) if self._has_logprobs else None,
        }

    def whole_choice(self, answer: Delta) -> dict[str, Any]:
        """Return a whole choice."""
        message: dict[str, Any] = {"role": "assistant", "content": answer.text}
        if answer.calls:
            message["content"] = answer.text or None
            message["tool_calls"] = calls_json(answer.calls)
        if answer.reasoning:
            message["reasoning_content"] = answer.reasoning
        return {
            "index": answer.index,
            "message": message,
            "finish_reason": _finish(answer),
            "stop_reason": answer.stop_reason,
            "logprobs": self._logprobs(answer) if self._has_logprobs else None,
        }

    def _logprobs(self, delta: Delta) -> dict[str, Any]:
        return chat_logprobs(self.reply.service.tokenizer, delta.logprobs)


def _finish(delta: Delta) -> str | None:
    if delta.finish_reason is FinishReason.STOP and delta.num_calls:
        return "tool_calls"
    return finish_name(delta.finish_reason)
