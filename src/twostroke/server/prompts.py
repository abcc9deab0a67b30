"""Prompts to ids: template, tokeniser and grammar in threads and processes of their own, never in
the event loop. Bounded by bytes before anything is tokenised.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from twostroke.dataclass import dataclass
from twostroke.errors import ContextTooLong, RequestError, TemplateError
from twostroke.llm import Encoded
from twostroke.model.loaded import LoadedModel
from twostroke.server.answer_text import CLOSE_TAG, OPEN_TAG
from twostroke.server.refusals import GrammarTimeout, TooLarge
from twostroke.server.settings import Limits
from twostroke.text.tool_format import stated_messages, tool_format
from twostroke.text.worker import TemplateWorkers

if TYPE_CHECKING:
    from twostroke.text.grammar import Grammar, GrammarCompiler

NUM_TEXT_THREADS = 2


@dataclass(frozen=True, slots=True)
class Prompt:
    """An encoded prompt; is_thinking: the template has opened the reasoning part already."""

    encoded: Encoded
    is_thinking: bool = False

    @property
    def num_tokens(self) -> int:
        """Tokens of the prompt."""
        return len(self.encoded.token_ids)


class Prompts:
    """The text side of one model. `start` before use; `close` ends its processes."""

    def __init__(self, model: LoadedModel, limits: Limits, max_model_len: int) -> None:
        self._model = model
        self._limits = limits
        self._max_model_len = max_model_len
        self._threads = ThreadPoolExecutor(NUM_TEXT_THREADS, thread_name_prefix="twostroke-text")
        self._grammar_threads = ThreadPoolExecutor(1, thread_name_prefix="twostroke-grammar")
        self._compiler: GrammarCompiler | None = None  # its thread's alone
        self._templates: TemplateWorkers | None = None
        self._longest_token = 1
        source = model.template.source if model.has_template else ""
        self.has_reasoning = CLOSE_TAG in source
        self._reads_developer = "developer" in source
        self.tool_format = tool_format(source, model.tokenizer.control_texts)

    def start(self) -> None:
        """Build what the first prompt would build, and start the template's processes. Blocks."""
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

    async def encode_chat(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        tools: Sequence[Mapping[str, Any]] | None = None,
        variables: Mapping[str, Any] | None = None,
        start_s: float | None = None,
    ) -> Prompt:
        """Render and tokenise a conversation.

        Raises:
            TemplateError: no template, refused, or too slow. RequestError: malformed messages.
            TooLarge, ContextTooLong: by bytes alone it cannot fit.
        """
        start_s = time.monotonic() if start_s is None else start_s
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
        if not self._reads_developer:
            messages = [_without_developer(m) for m in messages]
        if not self.tool_format.is_native:
            messages, tools = stated_messages(messages, tools or ()), None

        def work() -> Prompt:
            rendered = templates.render(messages, tools=tools, **(variables or {}))
            text = rendered.text
            self._check_length(text)
            ids, spans = model.encode_rendered(rendered)
            encoded = Encoded(token_ids=ids, spans=spans, init_s=time.monotonic() - start_s)
            return Prompt(encoded, self.has_reasoning and text.rstrip().endswith(OPEN_TAG))

        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    async def encode_text(self, text: str, *, start_s: float | None = None) -> Prompt:
        """Tokenise a raw prompt, BOS as the tokenizer says.

        Raises:
            RequestError, TooLarge, ContextTooLong: it cannot be tokenised or cannot fit.
        """
        start_s = time.monotonic() if start_s is None else start_s
        tokenizer = self._model.tokenizer
        self._check_length(text)

        def work() -> Prompt:
            ids = tuple(tokenizer.encode(text, add_special=True))
            return Prompt(Encoded(token_ids=ids, init_s=time.monotonic() - start_s))

        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    async def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        """Return the ids of a text. Raises as `encode_text`."""
        tokenizer = self._model.tokenizer
        self._check_bytes(text)

        def work() -> list[int]:
            return tokenizer.encode(text, add_special=add_special, parse_special=parse_special)

        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    async def grammar(self, make: Callable[[GrammarCompiler], Grammar]) -> Grammar:
        """Return what `make` compiles, off the event loop.

        Raises:
            InvalidGrammar: it cannot be matched, or not be compiled in time.
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

    def _check_length(self, text: str) -> None:
        """Refuse by bytes alone what no tokenizer could make fit."""
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
    """Call OpenAI's developer what older templates call it: system."""
    return {**message, "role": "system"} if message.get("role") == "developer" else message
