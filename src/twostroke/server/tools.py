"""The tools of one request, whatever its API, and the form that an answer must keep to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

from twostroke.dataclass import dataclass
from twostroke.errors import RequestError
from twostroke.generation.call_text import CallText
from twostroke.generation.make_request import EncodedPrompt
from twostroke.request import TokenMask
from twostroke.server.errors import Unsupported
from twostroke.server.prompts import Prompts
from twostroke.text.stream import AnswerText
from twostroke.text.tool_format import ToolFormat
from twostroke.text.tool_text import ToolText

if TYPE_CHECKING:
    from twostroke.text.grammar import Grammar

MAX_TOOLS = 128
ToolName = Annotated[str, Field(pattern=r"^[a-zA-Z0-9_.-]{1,64}$")]
JSON_OBJECT: dict[str, Any] = {"type": "object"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Tools:
    """The tools that a request offers to the model.

    offered: in OpenAI's shape, which templates read; empty where tools are switched off.
    demanded: the answer must call one of these names; None: the model may choose.
    is_strict: a schema that the grammar engine cannot match is refused. Otherwise such a schema is
    not enforced: the model may write arguments that break it.
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

        is_off: the request switches its tools off. is_demanded: the answer must call a tool, the
        one named `demanded` if there is such a name.

        Raises:
            RequestError: a demand without its tool, two tools of one name, or parameters that
            describe no object.
        """
        names = _checked_names(offered)
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


def _checked_names(offered: Sequence[dict[str, Any]]) -> list[str]:
    """Return the names of tools that can be told apart and take an object each."""
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
    return names


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """The form of an answer that is not free text.

    grammar: masks tokens that the form forbids. is_bound: the grammar holds from the first token
    on, so that there is no reasoning part. tool_format: how the model writes calls; None: it may
    call nothing.
    """

    grammar: Grammar | None = None
    is_bound: bool = False
    tool_format: ToolFormat | None = None
    tool_names: frozenset[str] = frozenset()

    def check_prompts(self, prompts: Sequence[EncodedPrompt]) -> None:
        """Refuse prompts after which the model must reason first.

        Raises:
            Unsupported: the grammar holds from the first token on, but a prompt opens reasoning.
        """
        if self.is_bound and any(prompt.is_reasoning_open for prompt in prompts):
            raise Unsupported(
                "a form of the answer needs a prompt that opens no reasoning part",
                remedy="Switch thinking off, if the template can.",
                param="response_format",
            )

    def new_mask(self) -> TokenMask | None:
        """Return the mask of one more answer, None where any token may come next."""
        return self.grammar.fresh() if self.grammar is not None else None

    def without_calls(self, text: AnswerText) -> AnswerText:
        """Return the text of one answer with its tool calls taken out."""
        if self.tool_format is None:
            return text
        return CallText(text, ToolText(self.tool_format, self.tool_names))


async def form_of(
    prompts: Prompts, tools: Tools, answer_schema: Mapping[str, Any] | None
) -> Form | None:
    """Return the form of an answer that may call tools and otherwise keeps to a schema.

    None: free text.

    Raises:
        RequestError: a demanded call and a schema exclude each other.
        InvalidGrammar: a schema cannot be matched, or not be compiled in time.
    """
    if tools.demanded is not None and answer_schema is not None:
        raise RequestError("a demanded tool call excludes response_format", param="tool_choice")
    if tools.offered:
        return await _form_with_calls(prompts, tools, answer_schema)
    if answer_schema is None:
        return None
    schema = answer_schema
    return Form(grammar=await prompts.grammar(lambda c: c.json_schema(schema)), is_bound=True)


async def _form_with_calls(
    prompts: Prompts, tools: Tools, answer_schema: Mapping[str, Any] | None
) -> Form:
    from twostroke.text.grammar import InvalidGrammar

    tool_format = prompts.tool_format
    is_bound = tools.demanded is not None or answer_schema is not None
    grammar = None
    if is_bound or tool_format.is_tagged:
        try:
            grammar = await prompts.grammar(
                lambda c: c.tool_calls(
                    tool_format,
                    tools.schemas(),
                    is_demanded=tools.demanded is not None,
                    is_parallel=tools.is_parallel,
                    answer_schema=answer_schema,
                )
            )
        except InvalidGrammar:
            if is_bound or tools.is_strict:
                raise
    return Form(grammar=grammar, is_bound=is_bound, tool_format=tool_format, tool_names=tools.names)
