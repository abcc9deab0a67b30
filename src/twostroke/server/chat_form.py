"""The form of a chat answer: text, JSON by a schema, or tool calls; what excludes what."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from twostroke.errors import RequestError
from twostroke.server.answers import Piece
from twostroke.server.asked import finish_name
from twostroke.server.openai_schemas import ChatRequest
from twostroke.server.refusals import Unsupported
from twostroke.server.service import Service
from twostroke.server.tool_calls import OPEN_TAG, ToolText, forced_schema

if TYPE_CHECKING:
    from twostroke.text.grammar import Grammar


def check_tools(service: Service, body: ChatRequest) -> None:
    """Refuse tools that the model's template cannot show, and demands for none."""
    has_calls = any(m.tool_calls or m.role == "tool" for m in body.messages)
    if (body.tools or has_calls) and not (
        service.template_reads("tools") and service.template_reads(OPEN_TAG)
    ):
        raise Unsupported(
            "this model's chat template has no tool calls of the form that this server reads",
            limit=f"{OPEN_TAG}{{...}}",
            param="tools",
        )
    is_demand = body.tool_choice not in (None, "none", "auto")
    if is_demand and not body.tools:
        raise RequestError("tool_choice needs tools", param="tool_choice")
    if is_demand and (body.ignore_eos or _has_format(body)):
        raise RequestError(
            "a demanded tool call excludes response_format and ignore_eos", param="tool_choice"
        )


def _has_format(body: ChatRequest) -> bool:
    return body.response_format is not None and body.response_format.type != "text"


def tool_texts_of(body: ChatRequest, count: int) -> list[ToolText] | None:
    """Return what takes the calls out of each answer, None where there are no tools."""
    if not body.tools or body.tool_choice == "none":
        return None
    names = frozenset(t.function.name for t in body.tools)
    is_forced = body.tool_choice not in (None, "auto")
    return [ToolText(names, is_forced=is_forced) for _ in range(count)]


def check_format(body: ChatRequest) -> None:
    form = body.response_format
    if form is None or form.type == "text":
        return
    if body.ignore_eos:
        raise RequestError(
            "ignore_eos and a response_format exclude each other", param="ignore_eos"
        )
    has_schema = form.json_schema is not None
    if has_schema != (form.type == "json_schema"):
        raise RequestError(
            "json_schema goes with the type of that name", param="response_format.json_schema"
        )


async def grammar_of(service: Service, body: ChatRequest) -> Grammar | None:
    """Return the grammar of the answer's form, None for text."""
    demanded = forced_schema(body.tools or [], body.tool_choice)
    if demanded is not None:
        return await service.prompts.grammar(demanded)
    form = body.response_format
    if form is None or form.type == "text":
        return None
    return await service.prompts.grammar(
        form.json_schema.body if form.json_schema is not None else None
    )


def take_calls_out(message: dict[str, Any], tool_text: ToolText) -> None:
    text, calls = tool_text.push(message["content"])
    rest, last = tool_text.finish()
    message["content"] = text + rest
    if found := [*calls, *last]:
        message["content"] = message["content"].strip() or None
        message["tool_calls"] = [{k: v for k, v in c.items() if k != "index"} for c in found]


def finish_of(end: Piece | None, *, has_calls: bool) -> str | None:
    name = finish_name(end.finish_reason if end is not None else None)
    return "tool_calls" if name == "stop" and has_calls else name


def split_calls(tool_text: ToolText, piece: Piece) -> tuple[str, list[dict[str, Any]]]:
    text, calls = tool_text.push(piece.text)
    if piece.finish_reason is None:
        return text, calls
    rest, last = tool_text.finish()
    return text + rest, [*calls, *last]


def has_calls_in(tool_texts: list[ToolText] | None, piece: Piece) -> bool:
    return tool_texts is not None and tool_texts[piece.index].num_calls > 0
