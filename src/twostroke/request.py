"""A generation as a caller asks for it, and the outputs that the engine returns.

Everything here is frozen. This module knows no text and no model.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Callable, Sequence
from typing import Protocol

from twostroke.dataclass import dataclass
from twostroke.errors import InvalidSampling
from twostroke.record import RequestRecord

MAX_STOPS = 64
MAX_STOP_CHARS = 1024
MAX_LOGPROBS = 20
MAX_LOGIT_BIAS = 1024
MAX_SEED = 2**64 - 1


class FinishReason(enum.Enum):
    """Why a request ended."""

    STOP = "stop"  # an end token, a stop string or a stop token id
    LENGTH = "length"  # max_tokens, or the context is full
    CANCELLED = "cancelled"
    ERROR = "error"


def _number(name: str, value: object, low: float, high: float, *, open_low: bool = False) -> None:
    bad = isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value)
    if not bad and low <= value <= high and not (open_low and value == low):  # type: ignore[operator]
        return
    bracket = "(" if open_low else "["
    raise InvalidSampling(
        f"{name} is out of range", value=repr(value), limit=f"{bracket}{low}, {high}]", param=name
    )


def _integer(name: str, value: object, low: int, high: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise InvalidSampling(
            f"{name} is out of range", value=repr(value), limit=f"[{low}, {high}]", param=name
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How to choose tokens and when to end. Names and meanings are vLLM's.

    temperature 0 is greedy. top_k 0 keeps all. max_tokens None: the room left in the context; 0:
    prefill only.
    seed None: one is drawn when the request is admitted and reported. logprobs n: the chosen
    token's and the n best alternatives' log-probabilities, before temperature and penalties.

    Raises:
        InvalidSampling: a value of the wrong type or out of its range.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    seed: int | None = None
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    logprobs: int | None = None

    def __post_init__(self) -> None:
        _number("temperature", self.temperature, 0.0, 100.0)
        _integer("top_k", self.top_k, 0, 2**31 - 1)
        _number("top_p", self.top_p, 0.0, 1.0, open_low=True)
        _number("min_p", self.min_p, 0.0, 1.0)
        _number("repetition_penalty", self.repetition_penalty, 0.0, 10.0, open_low=True)
        _number("presence_penalty", self.presence_penalty, -2.0, 2.0)
        _number("frequency_penalty", self.frequency_penalty, -2.0, 2.0)
        if self.seed is not None:
            _integer("seed", self.seed, 0, MAX_SEED)
        if self.max_tokens is not None:
            _integer("max_tokens", self.max_tokens, 0, 2**31 - 1)
        if self.logprobs is not None:
            _integer("logprobs", self.logprobs, 0, MAX_LOGPROBS)
        self._check_logit_bias()
        self._check_stops()

    def _check_logit_bias(self) -> None:
        if len(self.logit_bias) > MAX_LOGIT_BIAS:
            raise InvalidSampling(
                "logit_bias has too many entries",
                value=len(self.logit_bias),
                limit=MAX_LOGIT_BIAS,
                param="logit_bias",
            )
        for token_id, bias in self.logit_bias:
            _integer("logit_bias token id", token_id, 0, 2**31 - 1)
            _number("logit_bias", bias, -100.0, 100.0)

    def _check_stops(self) -> None:
        count = len(self.stop) + len(self.stop_token_ids)
        if count > MAX_STOPS:
            raise InvalidSampling("too many stops", value=count, limit=MAX_STOPS, param="stop")
        for text in self.stop:
            if not isinstance(text, str) or not text:
                raise InvalidSampling(
                    "a stop must be a string of at least one character",
                    value=repr(text),
                    remedy="Leave it out to have no stop string.",
                    param="stop",
                )
            if len(text) > MAX_STOP_CHARS:
                raise InvalidSampling(
                    "a stop string is too long",
                    value=len(text),
                    limit=f"{MAX_STOP_CHARS} characters",
                    param="stop",
                )
        for token_id in self.stop_token_ids:
            _integer("stop_token_ids", token_id, 0, 2**31 - 1)

    @property
    def is_greedy(self) -> bool:
        """Whether the highest logit is simply taken."""
        return self.temperature == 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageSpan:
    """The prompt tokens [start, end) of one chat message, and the hash of the message's text."""

    index: int
    role: str
    start: int
    end: int
    text_hash: str


class TokenMask(Protocol):
    """The tokens that a grammar allows next in one answer."""

    def bits(self, output_token_ids: Sequence[int]) -> bytes:
        """Return one bit a token, little-endian 32-bit words; at least one is set.

        Called with all tokens of the answer so far, once or more for each. Must not raise.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Request:
    """One generation as it was asked for; its progress is the scheduler's `Sequence`.

    end_token_ids is empty where the request ignores end tokens. char_at maps a prompt token to
    its character offset in its message, None where the token belongs to none.

    Units: arrival_s on the engine's clock; load_s and init_s are seconds spent before it.
    """

    id: str
    prompt_token_ids: tuple[int, ...]
    params: SamplingParams
    seed: int
    end_token_ids: frozenset[int]
    arrival_s: float
    priority: int = 0
    salt: str = ""
    choice: int = 0
    spans: tuple[MessageSpan, ...] = ()
    init_s: float | None = None
    load_s: float | None = None
    mask: TokenMask | None = None
    char_at: Callable[[int], int | None] | None = None

    @property
    def num_prompt_tokens(self) -> int:
        """Tokens of the prompt."""
        return len(self.prompt_token_ids)


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """Log-probability of one chosen token and of the best alternatives, natural log."""

    token_id: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestOutput:
    """The new tokens of one step for one request; the last output has the reason and the record."""

    request_id: str
    token_ids: tuple[int, ...]
    logprobs: tuple[TokenLogprob, ...] = ()
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None  # the stop string or token id that ended it
    record: RequestRecord | None = None
    error: str | None = None
