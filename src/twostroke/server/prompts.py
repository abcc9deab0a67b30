"""The text side of the served model: prompts to ids, grammars, and the text of answers.

Template, tokeniser and grammar compiler run in threads and processes of their own, never in the
event loop. A prompt that its bytes alone make too long is refused before it is tokenised.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import field
from typing import TYPE_CHECKING, Any

from twostroke.dataclass import dataclass
from twostroke.errors import ContextTooLong, RequestError, TemplateError
from twostroke.generation.make_request import EncodedPrompt
from twostroke.generation.reasoning_text import CLOSE_TAG, OPEN_TAG, ReasoningText
from twostroke.model.loaded import LoadedModel
from twostroke.server.errors import GrammarTimeout, TooLarge
from twostroke.server.settings import ServerLimits
from twostroke.text.stream import AnswerText, PlainText
from twostroke.text.tool_format import stated_messages, tool_format
from twostroke.text.worker import TemplateWorkers

if TYPE_CHECKING:
    from twostroke.server.tools import Form
    from twostroke.text.grammar import Grammar, GrammarCompiler

NUM_TEXT_THREADS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatPrompt:
    """Messages for the chat template, and the values of variables that the template reads."""

    messages: Sequence[Mapping[str, Any]]
    variables: Mapping[str, Any] = field(default_factory=dict)


Prompt = ChatPrompt | str | tuple[int, ...]


class Prompts:
    """Encodes prompts and makes answer texts. `start` before use; `close` ends its processes."""

    def __init__(self, model: LoadedModel, limits: ServerLimits, max_model_len: int) -> None:
        self._model = model
        self._limits = limits
        self._max_model_len = max_model_len
        self._threads = ThreadPoolExecutor(NUM_TEXT_THREADS, thread_name_prefix="twostroke-text")
        self._grammar_threads = ThreadPoolExecutor(1, thread_name_prefix="twostroke-grammar")
        self._compiler: GrammarCompiler | None = None  # used by the grammar thread alone
        self._templates: TemplateWorkers | None = None
        self._longest_token = 1
        self._template_source = model.template.source if model.has_template else ""
        self._has_reasoning = CLOSE_TAG in self._template_source
        self.tool_format = tool_format(self._template_source, model.tokenizer.control_texts)

    def start(self) -> None:
        """Build the tokeniser's tables and start the template's processes. Blocks."""
        tokenizer = self._model.tokenizer
        tokenizer.build_library()
        lengths = (
            len(tokenizer.token_bytes(i, with_control=True)) for i in range(tokenizer.vocab_size)
        )
        self._longest_token = max(1, *lengths)
        if self._model.has_template:
            self._templates = TemplateWorkers(
                self._model.template, tokenizer, deadline_s=self._limits.render_timeout_s
            )
            self._templates.start()

    def close(self) -> None:
        """End threads and processes."""
        if self._templates is not None:
            self._templates.close()
        for threads in (self._threads, self._grammar_threads):
            threads.shutdown(wait=False, cancel_futures=True)

    def template_reads(self, variable: str) -> bool:
        """Whether the chat template mentions a variable, so that a value for it can matter."""
        return variable in self._template_source

    async def encode(
        self, prompt: Prompt, tools: Sequence[Mapping[str, Any]], start_s: float
    ) -> EncodedPrompt:
        """Return the ids of a prompt: a conversation, a raw text, or the ids themselves.

        tools: offered to the chat template. start_s: since when the time counts as init.

        Raises:
            TemplateError: no template, refused, or too slow. RequestError: malformed messages.
            TooLarge, ContextTooLong: the prompt cannot fit, by its bytes alone.
        """
        if isinstance(prompt, str):
            return await self._encode_text(prompt, start_s)
        if isinstance(prompt, ChatPrompt):
            return await self._encode_chat(prompt, tools, start_s)
        return EncodedPrompt(token_ids=prompt)

    async def _encode_chat(
        self, prompt: ChatPrompt, offered: Sequence[Mapping[str, Any]], start_s: float
    ) -> EncodedPrompt:
        messages = prompt.messages
        tools: Sequence[Mapping[str, Any]] | None = offered or None
        if len(messages) > self._limits.max_messages:
            raise RequestError(
                "too many messages",
                value=len(messages),
                limit=f"max_messages {self._limits.max_messages}",
                param="messages",
            )
        model = self._model
        if self._templates is None:
            raise TemplateError(
                "this model brings no chat template, so it cannot take chat messages",
                remedy="Use /v1/completions with plain text.",
            )
        templates = self._templates
        if not self.template_reads("developer"):
            messages = [_without_developer(m) for m in messages]
        if not self.tool_format.is_native:
            messages, tools = stated_messages(messages, offered), None

        def work() -> EncodedPrompt:
            rendered = templates.render(messages, tools=tools, **prompt.variables)
            self._check_length(rendered.text)
            ids, spans = model.encode_rendered(rendered)
            is_open = self._has_reasoning and rendered.text.rstrip().endswith(OPEN_TAG)
            return EncodedPrompt(
                token_ids=ids,
                spans=spans,
                init_s=time.monotonic() - start_s,
                is_reasoning_open=is_open,
            )

        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    async def _encode_text(self, text: str, start_s: float) -> EncodedPrompt:
        tokenizer = self._model.tokenizer
        self._check_length(text)

        def work() -> EncodedPrompt:
            ids = tuple(tokenizer.encode(text, add_special=True))
            return EncodedPrompt(token_ids=ids, init_s=time.monotonic() - start_s)

        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    async def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        """Return the ids of a text. Raises as `encode`."""
        tokenizer = self._model.tokenizer
        self._check_bytes(text)

        def work() -> list[int]:
            return tokenizer.encode(text, add_special=add_special, parse_special=parse_special)

        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    async def grammar(self, make: Callable[[GrammarCompiler], Grammar]) -> Grammar:
        """Return the grammar that `make` compiles, off the event loop.

        Raises:
            InvalidGrammar: the grammar cannot be matched. GrammarTimeout: compiling took too long.
        """
        model = self._model

        def work() -> Grammar:
            from twostroke.text.grammar import GrammarCompiler

            if self._compiler is None:
                self._compiler = GrammarCompiler(
                    model.tokenizer, model.config.vocab_size, model.end_token_ids
                )
            return make(self._compiler)

        compiling = asyncio.get_running_loop().run_in_executor(self._grammar_threads, work)
        try:
            return await asyncio.wait_for(compiling, self._limits.grammar_timeout_s)
        except asyncio.TimeoutError:
            raise GrammarTimeout(
                "the grammar took too long to compile",
                limit=f"grammar_timeout_s {self._limits.grammar_timeout_s:g}",
                param="response_format",
            ) from None

    def answer_text(
        self, prompt: EncodedPrompt, stops: tuple[str, ...], form: Form | None
    ) -> AnswerText:
        """Return the text of a new answer: plain, or with reasoning and tool calls set apart."""
        tokenizer = self._model.tokenizer
        is_bound = form is not None and form.is_bound
        text: AnswerText
        if self._has_reasoning and prompt.spans and not is_bound:
            text = ReasoningText(tokenizer, stops, is_open=prompt.is_reasoning_open)
        else:
            text = PlainText(tokenizer, stops)
        return text if form is None else form.without_calls(text)

    def _check_length(self, text: str) -> None:
        """Refuse a text that no tokenizer could make fit, by its bytes alone."""
        num_bytes = self._check_bytes(text)
        least = -(-num_bytes // self._longest_token)
        if least > self._max_model_len:
            raise ContextTooLong(
                "the prompt cannot fit the context",
                value=f"{num_bytes} bytes, at least {least} tokens",
                limit=f"{self._max_model_len} tokens",
                remedy="Shorten the prompt.",
                param="prompt",
            )

    def _check_bytes(self, text: str) -> int:
        limit = self._limits.max_prompt_bytes
        num_bytes = len(text)
        if num_bytes <= limit:
            num_bytes = len(text.encode("utf-8", "surrogatepass"))
        if num_bytes > limit:
            raise TooLarge(
                "the prompt is too large",
                value=f"{num_bytes} bytes",
                limit=f"max_prompt_bytes {limit}",
                param="prompt",
            )
        return num_bytes


def _without_developer(message: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the message with OpenAI's role developer as system, the name in older templates."""
    return {**message, "role": "system"} if message.get("role") == "developer" else message
