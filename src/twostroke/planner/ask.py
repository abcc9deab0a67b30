"""The question of a plan: one request, how many of them at once, and the targets."""

from __future__ import annotations

from twostroke.dataclass import dataclass
from twostroke.errors import ConfigError
from twostroke.planner.memory_check import LARGEST_CONCURRENCY

_DEFAULT_PROMPT = 1000
_DEFAULT_OUTPUT = 300
_LARGEST = 1 << 24


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """A request and how many of them run at once. Units: tokens; seconds."""

    context: int
    concurrency: int
    prompt: int
    output: int
    cached: int = 0
    target_ttft_s: float | None = None
    target_tpot_s: float | None = None


def make_ask(
    *,
    context: int | None = None,
    concurrency: int = 1,
    prompt: int | None = None,
    output: int | None = None,
    cached: int = 0,
    target_ttft_s: float | None = None,
    target_tpot_s: float | None = None,
) -> Ask:
    """Return the question; without a prompt or output length, with a request that fits the context.

    Without a context the plan uses prompt + output, not the model's maximum.
    Raises:
        ConfigError: a number out of range, or a request longer than the context.
    """
    if output is None:
        output = min(_DEFAULT_OUTPUT, max((context or _LARGEST) // 4, 1))
    if prompt is None:
        prompt = min(_DEFAULT_PROMPT, max((context or _LARGEST) - output, 1))
    ask = Ask(
        context=prompt + output if context is None else context,
        concurrency=concurrency,
        prompt=prompt,
        output=output,
        cached=cached,
        target_ttft_s=target_ttft_s,
        target_tpot_s=target_tpot_s,
    )
    _check(ask)
    return ask


def _check(ask: Ask) -> None:
    for name, value, low, high in (
        ("--context", ask.context, 1, _LARGEST),
        ("--concurrency", ask.concurrency, 1, LARGEST_CONCURRENCY),
        ("--prompt", ask.prompt, 1, _LARGEST),
        ("--output", ask.output, 1, _LARGEST),
        ("--cached", ask.cached, 0, ask.prompt - 1),
    ):
        if not low <= value <= high:
            raise ConfigError(f"{name} is out of range", value=value, limit=f"[{low}, {high}]")
    for name, target in (
        ("--target-ttft", ask.target_ttft_s),
        ("--target-tpot", ask.target_tpot_s),
    ):
        if target is not None and not 0 < target < 1e6:
            raise ConfigError(f"{name} cannot be this", value=target, limit="seconds above 0")
    if ask.prompt + ask.output > ask.context:
        raise ConfigError(
            "the request is longer than the context",
            value=f"{ask.prompt} + {ask.output} tokens",
            limit=f"{ask.context} tokens",
            remedy="Raise --context, or lower --prompt or --output.",
        )
