"""The one per-request record, for our engine and for foreign logs alike.

Unknown is None, never 0 or a guess. Times are seconds, rates tokens per second. A record knows no
prompt text.
Window averages of foreign servers are another type (`WindowRecord`): the two are never mixed.
"""

from __future__ import annotations

from dataclasses import asdict, field
from typing import Any

from twostroke.dataclass import dataclass

SCHEMA_VERSION = 1
MIN_TOKENS_FOR_PREFILL_RATE = 32  # fewer measure fixed costs: docs/formulas.md, Rates
PHASES = ("queue", "load", "init", "cache", "prefill", "stall", "decode", "tail")


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseTimes:
    """Seconds of one request's wall clock by phase; for our own engine they add up to `e2e_s`.

    queue: waiting for admission. load: loading the model. init: template, tokeniser, grammar.
    cache: prefix look-up and copy. prefill, decode: in a step of that phase. stall: runnable, but
    in no step. tail: from the last token to the final output. unaccounted: time that a foreign
    log does not explain.
    """

    queue_s: float | None = None
    load_s: float | None = None
    init_s: float | None = None
    cache_s: float | None = None
    prefill_s: float | None = None
    stall_s: float | None = None
    decode_s: float | None = None
    tail_s: float | None = None
    unaccounted_s: float | None = None

    def known_s(self) -> float:
        """Return the sum of the phases that are known."""
        values: list[float | None] = [getattr(self, f"{name}_s") for name in PHASES]
        return sum(s for s in values if s is not None)


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptTokens:
    """Prompt tokens: total = cached + new."""

    total: int | None = None
    cached: int | None = None
    new: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class OutputTokens:
    """Output tokens: total = reasoning + visible + tool."""

    total: int | None = None
    reasoning: int | None = None
    visible: int | None = None
    tool: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class InterTokenLatency:
    """Gaps between consecutive output tokens, in seconds."""

    p50_s: float | None = None
    p95_s: float | None = None
    max_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheOutcome:
    """Why the prefix cache did not cover more of a prompt, and the price of that in prefill."""

    # first_request, prefix_diverged, ... (docs/laws.md, law 8); None for a full hit
    reason: str | None = None
    diverged_token: int | None = None
    diverged_message: int | None = None
    diverged_char: int | None = None
    matches_again_at_token: int | None = None
    price_s: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Speculation:
    """Draft tokens proposed and accepted, for engines that speculate."""

    drafted: int | None = None
    accepted: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Meter:
    """The source of a record, and flags for values that are doubtful."""

    source: str = "engine"  # engine | client | log
    flags: tuple[str, ...] = ()
    file: str | None = None
    lines: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestRecord:
    """One request, metered by phase.

    Units: times in seconds since the engine's monotonic clock or durations; rates in tokens per
    second; mfu, mbu are shares of this machine's measured peak (0 to 1).
    """

    # Defaults that are records are shared: they are frozen, and a long log makes many of these.
    version: int = SCHEMA_VERSION
    id: str = ""
    t_arrival_s: float | None = None
    model: str | None = None
    engine: str = "twostroke"
    build: str | None = None
    phases: PhaseTimes = PhaseTimes()
    e2e_s: float | None = None
    mixed_s: float | None = None  # part of prefill and decode spent in steps that held both phases
    prompt: PromptTokens = PromptTokens()
    output: OutputTokens = OutputTokens()
    chunks: int | None = None  # prefill slices
    steps: int | None = None  # decode steps
    preemptions: int | None = None
    ttft_any_s: float | None = None
    ttft_visible_s: float | None = None
    tpot_s: float | None = None  # (last - first token) / (output - 1); None under 2 tokens
    itl: InterTokenLatency = InterTokenLatency()
    prefill_tok_s: float | None = None  # new tokens / prefill time; None under 32 new tokens
    decode_tok_s: float | None = None  # (output - 1) / decode time
    tokens_per_step: float | None = None
    batch_mean: float | None = None
    ctx_end: int | None = None
    kv_bytes: int | None = None
    prefill_mfu: float | None = None
    decode_mfu: float | None = None
    prefill_mbu: float | None = None
    decode_mbu: float | None = None
    prefill_ceiling_tok_s: float | None = None
    decode_ceiling_tok_s: float | None = None
    predicted_prefill_s: float | None = None
    predicted_decode_s: float | None = None
    prefill_error: float | None = None  # predicted / measured - 1; None where either is unknown
    decode_error: float | None = None
    advice: tuple[str, ...] = ()  # the changes that would have saved most, by its own numbers
    cache: CacheOutcome = CacheOutcome()
    speculation: Speculation = Speculation()
    # rates as a foreign engine printed them
    reported: dict[str, float] = field(default_factory=dict)
    finish: str | None = None
    meter: Meter = Meter()

    def to_dict(self) -> dict[str, Any]:
        """Return plain data in field order, ready for JSON."""
        return asdict(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowRecord:
    """A server's average over a time window: never one request's speed."""

    version: int = SCHEMA_VERSION
    engine: str
    t_s: float | None = None
    window_s: float | None = None
    prompt_tok_s: float | None = None
    output_tok_s: float | None = None
    running: int | None = None
    waiting: int | None = None
    kv_usage: float | None = None  # 0 to 1
    prefix_hit_rate: float | None = None  # 0 to 1
    preemptions: int | None = None
    facts: dict[str, float | str] = field(default_factory=dict)
    meter: Meter = field(default_factory=lambda: Meter(source="log"))

    def to_dict(self) -> dict[str, Any]:
        """Return plain data in field order, ready for JSON."""
        return asdict(self)
