"""The model behind the routes: load and warm up, prompts to ids, requests to answers.

Knows no HTTP. Template and tokeniser run in threads of their own, never in the event loop.
"""

from __future__ import annotations

import asyncio
import enum
import itertools
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from twostroke.build import LoadedModel
from twostroke.config import EngineConfig
from twostroke.engine.async_engine import AsyncEngine
from twostroke.engine.engine import Engine, PrefillProgress
from twostroke.errors import ContextTooLong, RequestError, TemplateError, TwoStrokeError
from twostroke.events import Observer
from twostroke.llm import Encoded
from twostroke.request import Request, SamplingParams
from twostroke.server.answer_text import CLOSE_TAG, OPEN_TAG, PlainText, ReasoningText
from twostroke.server.answers import Answers, Choice
from twostroke.server.auth import Caller
from twostroke.server.metrics import EngineMeters
from twostroke.server.refusals import (
    GrammarTimeout,
    NotReady,
    TooLarge,
    TooManyRequests,
    UnknownModel,
)
from twostroke.server.settings import ServerSettings
from twostroke.text.tokenizer import Tokenizer
from twostroke.text.worker import TemplateWorkers

if TYPE_CHECKING:
    from twostroke.text.grammar import Grammar, GrammarCompiler

NUM_TEXT_THREADS = 2
_MAX_SEED = 2**53  # what every JSON reader keeps exactly


@dataclass(frozen=True, slots=True)
class Loaded:
    """What a loader gives: a model, its engine, the resolved settings, and a line about them."""

    model: LoadedModel
    engine: Engine
    config: EngineConfig
    summary: str = ""


Loader = Callable[[Observer], Loaded]


class State(enum.Enum):
    """Where the server's life stands."""

    LOADING = "loading"
    READY = "ready"
    DRAINING = "draining"
    ENDED = "ended"


@dataclass(frozen=True, slots=True)
class Prompt:
    """An encoded prompt; is_thinking: the template has opened the reasoning part already."""

    encoded: Encoded
    is_thinking: bool = False

    @property
    def num_tokens(self) -> int:
        """Tokens of the prompt."""
        return len(self.encoded.token_ids)


@dataclass(frozen=True, slots=True)
class Bounded:
    """Parameters after the server's own limits. bound: where max_tokens came from."""

    params: SamplingParams
    bound: str | None


class Service:
    """One served model. Created in any thread; used from one event loop."""

    def __init__(self, settings: ServerSettings, loader: Loader) -> None:
        self.settings = settings
        self.limits = settings.limits
        self.state = State.LOADING
        self.fault: BaseException | None = None
        self.meters = EngineMeters(settings.names[0])
        self._loader = loader
        self._numbers = itertools.count()
        self._threads = ThreadPoolExecutor(NUM_TEXT_THREADS, thread_name_prefix="twostroke-text")
        self._grammar_threads = ThreadPoolExecutor(1, thread_name_prefix="twostroke-grammar")
        self._compiler: GrammarCompiler | None = None  # its thread's alone
        self._loaded: Loaded | None = None
        self._engine: AsyncEngine | None = None
        self._templates: TemplateWorkers | None = None
        self._has_reasoning = False
        self._longest_token = 1
        self._num_open = 0  # answers handed over and not ended

    # Life

    def load(self) -> None:
        """Load the model, warm up both phases and the text side, start the engine. Blocks.

        Raises:
            TwoStrokeError: it cannot be loaded.
        """
        try:
            loaded = self._loader(self.meters)
            self._loaded = loaded
            tokenizer: Tokenizer = loaded.model.tokenizer
            tokenizer.build_library()
            self._longest_token = max(
                max(len(tokenizer.token_bytes(i, with_control=True)), 1)
                for i in range(tokenizer.vocab_size)
            )
            if loaded.model.has_template:
                self._start_templates(loaded)
            loaded.engine.warm_up()
            self._engine = AsyncEngine(loaded.engine)
            self.meters.watch(loaded.engine.scheduler, self._engine)
            self._engine.start()
        except BaseException as fault:
            self.fault, self.state = fault, State.ENDED
            raise
        if self.state is State.LOADING:
            self.state = State.READY

    def _start_templates(self, loaded: Loaded) -> None:
        template = loaded.model.template
        self._has_reasoning = CLOSE_TAG in template.source
        self._templates = TemplateWorkers(
            template, loaded.model.tokenizer, deadline_s=self.limits.render_timeout_s
        )
        self._templates.start()

    def begin_drain(self) -> None:
        """Take no new requests from now on; those in flight go on."""
        if self.state is not State.ENDED:
            self.state = State.DRAINING

    def close(self) -> None:
        """End engine and workers; answers in flight get EngineStopped."""
        self.state = State.ENDED
        if self._engine is not None:
            self._engine.shutdown()
        if self._templates is not None:
            self._templates.close()
        for threads in (self._threads, self._grammar_threads):
            threads.shutdown(wait=False, cancel_futures=True)

    @property
    def engine(self) -> AsyncEngine:
        """The engine; only when the model is loaded."""
        assert self._engine is not None
        return self._engine

    def check_ready(self) -> None:
        """Refuse new work unless the model is loaded and the server means to stay.

        Raises:
            NotReady: it is not loaded yet, or about to end.
        """
        if self.state is State.LOADING:
            raise NotReady("the model is loading", remedy="Come back in a few seconds.")
        if self.state is not State.READY:
            raise NotReady("the server is about to end", remedy="Ask another one.")

    @property
    def loaded(self) -> Loaded:
        """The model and what was chosen for it, after `check_ready` has let a request in."""
        assert self._loaded is not None
        return self._loaded

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's tokenizer."""
        tokenizer: Tokenizer = self.loaded.model.tokenizer
        return tokenizer

    @property
    def is_alive(self) -> bool:
        """Whether this process can still serve: false once the engine's thread has died."""
        if self.state is State.ENDED:
            return False
        return self._engine is None or self._engine.is_alive

    def why_not_ready(self) -> str | None:
        """Return why no request should be sent here now, None if one may."""
        if self.state is not State.READY:
            return str(self.state.value)
        if not self.engine.is_alive:
            return "the engine has ended"
        stuck_s = self.engine.seconds_without_progress()
        if stuck_s > self.limits.stuck_s:
            return f"work waits and nothing has moved for {stuck_s:.0f} s"
        return None

    # Facts

    @property
    def name(self) -> str:
        """The model's name in replies."""
        return self.settings.names[0]

    @property
    def max_model_len(self) -> int:
        """The longest prompt plus output of one request, in tokens."""
        value = self.loaded.config.max_model_len
        assert value is not None
        return value

    def check_model(self, name: str | None) -> str:
        """Return the served name that was asked for; None asks for the only one.

        Raises:
            UnknownModel: another name.
        """
        if name is None:
            return self.name
        if name not in self.settings.names and name.removesuffix(":latest") not in (
            self.settings.names
        ):
            raise UnknownModel(
                "this server does not serve that model",
                value=repr(name[:256]),
                limit=", ".join(self.settings.names),
                param="model",
            )
        return name

    def template_reads(self, variable: str) -> bool:
        """Whether the chat template mentions a variable, so that giving it can matter."""
        return self.loaded.model.has_template and variable in self.loaded.model.template.source

    def progress(self, request_id: str) -> PrefillProgress | None:
        """Return how far a prompt is."""
        return self.engine.progress(request_id)

    def predicted_prefill_s(self, num_tokens: int) -> float | None:
        """Return the predicted time of prefilling so many tokens alone, None while unknown."""
        return self.loaded.engine.scheduler.predicted_prefill_s(0, num_tokens)

    # Prompts

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
        if len(messages) > self.limits.max_messages:
            raise RequestError(
                "too many messages",
                value=len(messages),
                limit=f"max_messages {self.limits.max_messages}",
                param="messages",
            )
        loaded = self.loaded
        if self._templates is None:
            raise TemplateError(
                "this model brings no chat template, so it cannot take chat messages",
                remedy="Use /v1/completions with plain text.",
            )
        templates = self._templates

        def work() -> Prompt:
            rendered = templates.render(messages, tools=tools, **(variables or {}))
            text = rendered.text
            self._check_length(text)
            ids, spans = loaded.model.encode_rendered(rendered)
            encoded = Encoded(token_ids=ids, spans=spans, init_s=time.monotonic() - start_s)
            return Prompt(encoded, self._has_reasoning and text.rstrip().endswith(OPEN_TAG))

        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    async def encode_text(self, text: str, *, start_s: float | None = None) -> Prompt:
        """Tokenise a raw prompt, BOS as the tokenizer says.

        Raises:
            RequestError, TooLarge, ContextTooLong: it cannot be tokenised or cannot fit.
        """
        start_s = time.monotonic() if start_s is None else start_s
        tokenizer = self.tokenizer
        self._check_length(text)

        def work() -> Prompt:
            ids = tuple(tokenizer.encode(text, add_special=True))
            return Prompt(Encoded(token_ids=ids, init_s=time.monotonic() - start_s))

        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    async def tokenize(self, text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        """Return the ids of a text. Raises as `encode_text`."""
        tokenizer = self.tokenizer
        self._check_bytes(text)

        def work() -> list[int]:
            return tokenizer.encode(text, add_special=add_special, parse_special=parse_special)

        return await asyncio.get_running_loop().run_in_executor(self._threads, work)

    async def grammar(self, schema: Mapping[str, Any] | None) -> Grammar:
        """Return the grammar of a JSON schema, or of any JSON object, compiled off the event loop.

        Raises:
            InvalidGrammar: it cannot be matched, or not be compiled in time.
        """
        model = self.loaded.model

        def work() -> Grammar:
            from twostroke.text.grammar import GrammarCompiler

            if self._compiler is None:
                self._compiler = GrammarCompiler(
                    model.tokenizer, model.config.vocab_size, model.end_token_ids
                )
            compiler = self._compiler
            return compiler.json_object() if schema is None else compiler.json_schema(schema)

        compiling = asyncio.get_running_loop().run_in_executor(self._grammar_threads, work)
        try:
            return await asyncio.wait_for(compiling, self.limits.grammar_timeout_s)
        except asyncio.TimeoutError:
            raise GrammarTimeout(
                "the grammar took too long to compile",
                limit=f"grammar_timeout_s {self.limits.grammar_timeout_s:g}",
                param="response_format",
            ) from None

    def _check_length(self, text: str) -> None:
        """Refuse by bytes alone what no tokenizer could make fit."""
        num_bytes = self._check_bytes(text)
        least = -(-num_bytes // self._longest_token)
        if least > self.max_model_len:
            raise ContextTooLong(
                "the prompt cannot fit the context",
                value=f"{num_bytes} bytes, at least {least} tokens",
                limit=f"{self.max_model_len} tokens",
                remedy="Shorten the prompt.",
                param="prompt",
            )

    def _check_bytes(self, text: str) -> int:
        limit = self.limits.max_prompt_bytes
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

    # Answers

    def bounded(self, params: SamplingParams) -> Bounded:
        """Return the parameters under the server's own caps, and which bound holds.

        Raises:
            RequestError: more stops or logprobs than the limits give.
        """
        limits = self.limits
        num_stops = len(params.stop) + len(params.stop_token_ids)
        for param, name, value in (
            ("stop", "max_stops", num_stops),
            ("logprobs", "max_logprobs", params.logprobs or 0),
        ):
            limit: int = getattr(limits, name)
            if value > limit:
                raise RequestError(
                    f"too many {param}", value=value, limit=f"{name} {limit}", param=param
                )
        self._check_ids(tuple(i for i, _ in params.logit_bias), "logit_bias")
        self._check_ids(params.stop_token_ids, "stop_token_ids")
        asked, bound = params.max_tokens, "max_tokens"
        if asked is None:
            asked, bound = limits.default_max_tokens, "server_default"
        cap = limits.max_output_tokens
        if cap is not None and (asked is None or asked > cap):
            asked, bound = cap, "server_cap"
        if asked is None:
            return Bounded(params, None)
        return Bounded(replace(params, max_tokens=asked), bound)

    def check_prompt_ids(self, ids: Sequence[int]) -> None:
        """Refuse ids outside the vocabulary."""
        self._check_ids(tuple(ids), "prompt")

    def _check_ids(self, ids: tuple[int, ...], what: str) -> None:
        vocab: int = self.loaded.model.config.vocab_size
        bad = next((i for i in ids if not 0 <= i < vocab), None)
        if bad is not None:
            raise RequestError(
                f"a token id of {what} is outside the vocabulary",
                value=bad,
                limit=f"[0, {vocab})",
                param=what,
            )

    async def answer(
        self,
        request_id: str,
        prompts: Sequence[Prompt],
        params: SamplingParams,
        *,
        count: int = 1,
        caller: Caller,
        cache_salt: str = "",
        priority: int = 0,
        grammar: Grammar | None = None,
    ) -> Answers:
        """Start `count` answers for each prompt; return when the engine has taken them.

        Raises:
            RequestError, CapacityError, EngineStopped: refused at the door.
        """
        num = len(prompts) * count
        if num > self.limits.max_choices:
            raise RequestError(
                "too many answers in one request",
                value=num,
                limit=f"max_choices {self.limits.max_choices}",
                param="n",
            )
        self._reserve(num)
        try:
            choices = self._choices(
                request_id, prompts, params, count, caller.salt + cache_salt, priority, grammar
            )
            answers = Answers(self.engine, choices, lambda: self._release(num))
        except BaseException:
            self._release(num)
            raise
        await answers.start()
        return answers

    def _reserve(self, num: int) -> None:
        room = self.loaded.config.max_num_seqs + self.limits.max_waiting
        if self._num_open and self._num_open + num > room:
            raise TooManyRequests(
                "too many answers run or wait",
                value=self._num_open,
                limit=f"max_num_seqs {self.loaded.config.max_num_seqs} + max_waiting "
                f"{self.limits.max_waiting}",
                remedy="Come back later.",
                retry_after_s=self._predicted_wait_s(),
            )
        self._num_open += num

    def _release(self, num: int) -> None:
        self._num_open -= num

    def _predicted_wait_s(self) -> float:
        try:
            wait_s = self.loaded.engine.scheduler.predicted_wait_s()
        except (RuntimeError, TwoStrokeError):  # the engine's thread changed it meanwhile
            wait_s = None
        return 1.0 if wait_s is None else min(max(wait_s, 1.0), 600.0)

    def _choices(
        self,
        request_id: str,
        prompts: Sequence[Prompt],
        params: SamplingParams,
        count: int,
        salt: str,
        priority: int,
        grammar: Grammar | None,
    ) -> list[Choice]:
        model = self.loaded.model
        seed = secrets.randbelow(_MAX_SEED) if params.seed is None else params.seed
        choices: list[Choice] = []
        for prompt in prompts:
            leader: Choice | None = None
            for number in range(count):
                request = Request(
                    id=f"{request_id}-{next(self._numbers)}",
                    prompt_token_ids=prompt.encoded.token_ids,
                    params=params,
                    seed=seed,
                    end_token_ids=frozenset() if params.ignore_eos else model.end_token_ids,
                    arrival_s=time.monotonic(),
                    priority=priority,
                    salt=salt,
                    choice=number,
                    spans=prompt.encoded.spans,
                    init_s=prompt.encoded.init_s,
                    mask=grammar.fresh() if grammar is not None else None,
                )
                # A grammar leaves no room for thoughts: all of the answer is the answer.
                is_plain = grammar is not None
                text = (
                    PlainText(self.tokenizer, params.stop)
                    if is_plain
                    else self._text(prompt, params)
                )
                choice = Choice(len(choices), request, text, follows=leader)
                leader = leader or choice
                choices.append(choice)
        return choices

    def _text(self, prompt: Prompt, params: SamplingParams) -> PlainText | ReasoningText:
        tokenizer = self.tokenizer
        if self._has_reasoning and prompt.encoded.spans:
            return ReasoningText(tokenizer, params.stop, is_open=prompt.is_thinking)
        return PlainText(tokenizer, params.stop)
