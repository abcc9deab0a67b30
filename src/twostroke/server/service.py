"""The model behind the routes: load and warm up, prompts to ids, requests to answers.

Knows no HTTP. Template and tokeniser run in threads of their own, never in the event loop.
"""

from __future__ import annotations

import enum
import itertools
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from twostroke.build import LoadedModel
from twostroke.config import EngineConfig
from twostroke.dataclass import dataclass
from twostroke.engine.async_engine import AsyncEngine
from twostroke.engine.engine import Engine, PrefillProgress
from twostroke.errors import RequestError, TwoStrokeError
from twostroke.events import Observer
from twostroke.request import Request, SamplingParams
from twostroke.server.answer_text import AnswerText, PlainText, ReasoningText
from twostroke.server.answers import Answers, Choice
from twostroke.server.auth import Caller
from twostroke.server.metrics import EngineMeters
from twostroke.server.prompts import Prompt, Prompts
from twostroke.server.refusals import (
    NotReady,
    TooManyRequests,
    UnknownModel,
    Unsupported,
)
from twostroke.server.settings import ServerSettings
from twostroke.server.tools import FREE_TEXT, Form
from twostroke.text.tokenizer import Tokenizer

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
        self._loaded: Loaded | None = None
        self._engine: AsyncEngine | None = None
        self._prompts: Prompts | None = None
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
            self._prompts = Prompts(loaded.model, self.limits, self.max_model_len)
            self._prompts.start()
            loaded.engine.warm_up()
            self._engine = AsyncEngine(loaded.engine)
            self.meters.watch(loaded.engine.scheduler, self._engine)
            self._engine.start()
        except BaseException as fault:
            self.fault, self.state = fault, State.ENDED
            raise
        if self.state is State.LOADING:
            self.state = State.READY

    def begin_drain(self) -> None:
        """Take no new requests from now on; those in flight go on."""
        if self.state is not State.ENDED:
            self.state = State.DRAINING

    def close(self) -> None:
        """End engine and workers; answers in flight get EngineStopped."""
        self.state = State.ENDED
        if self._engine is not None:
            self._engine.shutdown()
        if self._prompts is not None:
            self._prompts.close()

    @property
    def engine(self) -> AsyncEngine:
        """The engine; only when the model is loaded."""
        assert self._engine is not None
        return self._engine

    @property
    def prompts(self) -> Prompts:
        """The text side, after `check_ready` has let a request in."""
        assert self._prompts is not None
        return self._prompts

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
        form: Form = FREE_TEXT,
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
        if form.is_bound and any(p.is_thinking for p in prompts):
            raise Unsupported(
                "a form of the answer needs a prompt that opens no reasoning part",
                remedy="Switch thinking off, if the template can.",
                param="response_format",
            )
        self._reserve(num)
        try:
            choices = self._choices(
                request_id, prompts, params, count, caller.salt + cache_salt, priority, form
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
        form: Form,
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
                    mask=form.grammar.fresh() if form.grammar is not None else None,
                )
                text = form.over(self._text(prompt, params, form))
                choice = Choice(len(choices), request, text, follows=leader)
                leader = leader or choice
                choices.append(choice)
        return choices

    def _text(self, prompt: Prompt, params: SamplingParams, form: Form) -> AnswerText:
        tokenizer = self.tokenizer
        if self.prompts.has_reasoning and prompt.encoded.spans and not form.is_bound:
            return ReasoningText(tokenizer, params.stop, is_open=prompt.is_thinking)
        return PlainText(tokenizer, params.stop)
