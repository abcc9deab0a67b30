"""The tools of one request, whatever its API, and the form that they give an answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

from twostroke.dataclass import dataclass
from twostroke.errors import RequestError
from twostroke.server.answer_text import AnswerText, CallText
from twostroke.server.prompts import Prompts
from twostroke.text.tool_format import ToolFormat
from twostroke.text.tool_text import ToolText

if TYPE_CHECKING:
    from twostroke.text.grammar import Grammar

MAX_TOOLS = 128
ToolName = Annotated[str, Field(pattern=r"^[a-zA-Z0-9_.-]{1,64}$")]
JSON_OBJECT: dict[str, Any] = {"type": "object"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Tools:
    """offered: in OpenAI's shape, as templates read them; none where tools are switched off.

    demanded: the names of which one must be called, None where the model may choose. is_strict: no
    call may break its schema; else a schema beyond llguidance leaves the model to itself.
    """

    offered: tuple[dict[str, Any], ...] = ()
    demanded: frozenset[str] | None = None
    is_parallel: bool = True
    is_strict: bool = False

    @classmethod
    def checked(
        cls,
        offered: Sequence[dict[str, Any]],
        *,
        is_off: bool = False,
        is_demanded: bool = False,
        demanded: str | None = None,
        is_parallel: bool = True,
        is_strict: bool = False,
    ) -> Tools:
        """Return the tools of a request.

        Raises:
            RequestError: a demand without its tool, two tools of one name, or parameters that
            describe no object.
        """
        names = [tool["function"]["name"] for tool in offered]
        if len(set(names)) < len(names):
            raise RequestError("two tools have the same name", param="tools")
        for tool in offered:
            if (tool["function"].get("parameters") or {}).get("type", "object") != "object":
                raise RequestError(
                    "the parameters of a tool must describe an object",
                    value=tool["function"]["name"],
                    param="tools",
                )
        if is_demanded and not offered:
            raise RequestError("tool_choice needs tools", param="tool_choice")
        if demanded is not None and demanded not in names:
            raise RequestError(
                "tool_choice names no tool of this request",
                value=repr(demanded[:64]),
                param="tool_choice",
            )
        if is_off:
            return cls()
        wanted = frozenset(names if demanded is None else (demanded,))
        return cls(
            offered=tuple(offered),
            demanded=wanted if is_demanded else None,
            is_parallel=is_parallel,
            is_strict=is_strict,
        )

    @property
    def names(self) -> frozenset[str]:
        """The names that may be called."""
        return frozenset(tool["function"]["name"] for tool in self.offered)

    def schemas(self) -> dict[str, dict[str, Any]]:
        """Return the schema of each callable tool's arguments."""
        return {
            function["name"]: {**JSON_OBJECT, **(function.get("parameters") or {})}
            for function in (tool["function"] for tool in self.offered)
            if self.demanded is None or function["name"] in self.demanded
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """The form of an answer. is_bound: the grammar holds from the first token on, so that there is
    no reasoning part. tool_format: the one that its calls are read by, None where there are none.
    """

    grammar: Grammar | None = None
    is_bound: bool = False
    tool_format: ToolFormat | None = None
    tool_names: frozenset[str] = frozenset()

    def over(self, text: AnswerText) -> AnswerText:
        """Return the text of one answer with its calls taken out."""
        if self.tool_format is None:
            return text
        return CallText(text, ToolText(self.tool_format, self.tool_names))


FREE_TEXT = Form()


async def form_of(
    prompts: Prompts, tools: Tools, answer_schema: Mapping[str, Any] | None = None
) -> Form:
    """Return the form of an answer that may call tools and keeps to a schema where it does not.

    Raises:
        RequestError: a demanded call and a schema exclude each other.
        InvalidGrammar: a schema cannot be matched, or not be compiled in time.
    """
    if tools.demanded is not None and answer_schema is not None:
        raise RequestError("a demanded tool call excludes response_format", param="tool_choice")
    if not tools.offered:
        if answer_schema is None:
            return FREE_TEXT
        schema = answer_schema
        return Form(grammar=await prompts.grammar(lambda c: c.json_schema(schema)), is_bound=True)
    return await _with_calls(prompts, tools, answer_schema)


async def _with_calls(
    prompts: Prompts, tools: Tools, answer_schema: Mapping[str, Any] | None
) -> Form:
    from twostroke.text.grammar import InvalidGrammar

    form = prompts.tool_format
    is_bound = tools.demanded is not None or answer_schema is not None
    grammar = None
    if is_bound or form.is_tagged:
        try:
            grammar = await prompts.grammar(
                lambda c: c.tool_calls(
                    form,
                    tools.schemas(),
                    is_demanded=tools.demanded is not None,
                    is_parallel=tools.is_parallel,
                    answer_schema=answer_schema,
                )
            )
        except InvalidGrammar:
            if is_bound or tools.is_strict:
                raise
    return Form(grammar=grammar, is_bound=is_bound, tool_format=form, tool_names=tools.names)
