"""The requests that the probe sends, in order, and the phases that each one tells apart.

The prompts are random words, so that no cache has seen them; one is sent twice. A plan keeps
within the user's limits before anything is sent.
"""

from __future__ import annotations

import random
import string
from collections.abc import Iterator

from twostroke.dataclass import dataclass
from twostroke.errors import ConfigError
from twostroke_doctor.probe.endpoint import Endpoint, parse_endpoint

TOKENS_A_WORD = 1.5  # upper bound used for limits; common words take one token
SHORT_WORDS = 24
SHORT_OUTPUT = 8
LONG_OUTPUT = 64
NUM_LOOKS = 4  # GETs: what server, which models, its metrics before and after
PAIR = ("pair-1", "pair-2")  # sent at once
_COMMON = (
    "time year people way day man thing woman life child world school state family student group "
    "country problem hand part place case week company system program question work government "
    "number night point home water room mother area money story fact month lot right study book "
    "eye job word business issue side kind head house service friend father power hour game line "
    "end member law car city community name president team minute idea kid body information back"
)
_WORDS = _COMMON.split()


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeLimits:
    """The most that may be sent. tokens: prompts and outputs together, by an upper bound."""

    requests: int = 12
    seconds: float = 120.0
    tokens: int = 20_000


@dataclass(frozen=True, slots=True)
class Step:
    """One request: its name, its prompt in words, the most output tokens, and its purpose."""

    name: str
    words: int
    output: int
    why: str
    same_as: str | None = None

    @property
    def most_tokens(self) -> int:
        """Upper bound of the tokens of this request."""
        return round(self.words * TOKENS_A_WORD) + 32 + self.output  # 32 for the template


@dataclass(frozen=True, slots=True)
class ProbePlan:
    """Everything that will be sent, and to whom."""

    endpoint: Endpoint
    limits: ProbeLimits
    steps: tuple[Step, ...]
    model: str | None
    seed: int

    @property
    def most_tokens(self) -> int:
        """Upper bound of the tokens of all requests."""
        return sum(step.most_tokens for step in self.steps)

    def lines(self) -> Iterator[str]:
        """Yield the plan in words, a line for each request."""
        yield (
            f"Will ask {self.endpoint.text}: {NUM_LOOKS} looks (server, models, metrics) and "
            f"{len(self.steps)} generations, at most {self.most_tokens:,} tokens and "
            f"{self.limits.seconds:g} s."
        )
        for step in self.steps:
            prompt = f"the prompt of {step.same_as}" if step.same_as else f"{step.words} new words"
            yield f"  {step.name:<8} {prompt}, at most {step.output} tokens out: {step.why}"

    def prompt_of(self, step: Step) -> str:
        """Return the words of a step: unlike any other's from the first one, unless `same_as`."""
        rng = random.Random(f"{self.seed}/{step.same_as or step.name}")
        first = "".join(rng.choice(string.ascii_lowercase) for _ in range(8))
        words = " ".join(rng.choice(_WORDS) for _ in range(step.words - SHORT_WORDS // 2))
        return f"{first} {words}\nNow count slowly from one to two hundred in words."


def make_plan(
    url: str,
    limits: ProbeLimits,
    prompt_tokens: int = 1000,
    model: str | None = None,
    key: str | None = None,
    *,
    seed: int | None = None,
) -> ProbePlan:
    """Return the steps that fit the limits, the most telling ones kept.

    Raises:
        ConfigError: no address, or limits too small for any measurement.
    """
    endpoint = parse_endpoint(url, key)
    steps = (
        Step("first", SHORT_WORDS, SHORT_OUTPUT, "first contact: load and warm-up"),
        Step("short", SHORT_WORDS, SHORT_OUTPUT, "the floor of the first token"),
        Step("unseen", prompt_tokens, SHORT_OUTPUT, "a prompt that no cache holds"),
        Step("again", prompt_tokens, SHORT_OUTPUT, "the prefix cache", same_as="unseen"),
        Step("control", prompt_tokens, SHORT_OUTPUT, "unseen, of the same length: no warm-up"),
        Step("long", SHORT_WORDS, LONG_OUTPUT, "decode and tail"),
        *(Step(name, SHORT_WORDS, LONG_OUTPUT // 2, "two at once: the queue") for name in PAIR),
    )
    kept = _within(steps, limits)
    if not kept:
        raise ConfigError(
            "these limits leave nothing to measure",
            value=f"{limits.requests} requests, {limits.tokens} tokens",
            limit=f"at least {NUM_LOOKS + 2} requests and 200 tokens",
        )
    drawn = random.SystemRandom().getrandbits(32) if seed is None else seed
    return ProbePlan(endpoint, limits, kept, model, drawn)


def _within(steps: tuple[Step, ...], limits: ProbeLimits) -> tuple[Step, ...]:
    """Drop steps until the limits hold: the pair first, then the controls."""
    order = ("pair", "control", "again", "unseen", "first", "short")
    kept = list(steps)
    for drop in ("nothing", *order):
        kept = [step for step in kept if not step.name.startswith(drop)]
        fits = sum(step.most_tokens for step in kept) <= limits.tokens
        if fits and len(kept) + NUM_LOOKS <= limits.requests:
            return tuple(kept)
    return ()
