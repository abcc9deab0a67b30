"""From prompts to answers: what a request may ask for, how many may be in flight, their order."""

from __future__ import annotations

import itertools
import secrets
import time
from collections.abc import Sequence
from dataclasses import replace

from twostroke.config import EngineConfig
from twostroke.dataclass import dataclass
from twostroke.engine.async_engine import AsyncEngine
from twostroke.engine.engine import Engine
from twostroke.errors import RequestError
from twostroke.model.loaded import LoadedModel
from twostroke.request import Request, SamplingParams
from twostroke.server.answer_text import AnswerText, PlainText, ReasoningText
from twostroke.server.answers import Answers, Choice
from twostroke.server.auth import Caller
from twostroke.server.prompts import Prompt, Prompts
from twostroke.server.refusals import TooManyRequests, Unsupported
from twostroke.server.settings import Limits
from twostroke.server.tools import FREE_TEXT, Form

_MAX_SEED = 2**53  # what every JSON reader keeps exactly


@dataclass(frozen=True, slots=True)
class Loaded:
    """What a loader gives: a model, its engine, the resolved settings, and a line about them."""

    model: LoadedModel
    engine: Engine
    config: EngineConfig
    summary: str = ""


@dataclass(frozen=True, slots=True)
class Bounded:
    """Parameters after the server's own limits. bound: where max_tokens came from."""

    params: SamplingParams
    bound: str | None


class Intake:
    """Hands requests to one engine. Used from one event loop.

    num_open: answers handed over and not ended.
    """

    def __init__(
        self, loaded: Loaded, engine: AsyncEngine, prompts: Prompts, limits: Limits
    ) -> None:
        self.num_open = 0
        self._loaded = loaded
        self._engine = engine
        self._prompts = prompts
        self._limits = limits
        self._numbers = itertools.count()

    def bounded(self, params: SamplingParams) -> Bounded:
        """Return the parameters under the server's own caps, and which bound holds.

        Raises:
            RequestError: more stops or logprobs than the limits give.
        """
        limits = self._limits
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
        vocab: int = self._loaded.model.config.vocab_size
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
        if num > self._limits.max_choices:
            raise RequestError(
                "too many answers in one request",
                value=num,
                limit=f"max_choices {self._limits.max_choices}",
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
            answers = Answers(self._engine, choices, lambda: self._release(num))
        except BaseException:
            self._release(num)
            raise
        await answers.start()
        return answers

    def _reserve(self, num: int) -> None:
        room = self._loaded.config.max_num_seqs + self._limits.max_waiting
        if self.num_open and self.num_open + num > room:
            raise TooManyRequests(
                "too many answers run or wait",
                value=self.num_open,
                limit=f"max_num_seqs {self._loaded.config.max_num_seqs} + max_waiting "
                f"{self._limits.max_waiting}",
                remedy="Come back later.",
                retry_after_s=self._predicted_wait_s(),
            )
        self.num_open += num

    def _release(self, num: int) -> None:
        self.num_open -= num

    def _predicted_wait_s(self) -> float:
        wait_s = self._engine.status.predicted_wait_s
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
        model = self._loaded.model
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
        tokenizer = self._loaded.model.tokenizer
        if self._prompts.has_reasoning and prompt.encoded.spans and not form.is_bound:
            return ReasoningText(tokenizer, params.stop, is_open=prompt.is_thinking)
        return PlainText(tokenizer, params.stop)
