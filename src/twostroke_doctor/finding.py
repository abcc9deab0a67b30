"""The vocabulary of a diagnosis: codes, lines of evidence, findings.

Holds numbers, file names and line numbers; never a word of any prompt.
"""

from __future__ import annotations

from dataclasses import asdict, field
from types import MappingProxyType
from typing import Any, NamedTuple

from twostroke.advice import Cure
from twostroke.dataclass import dataclass
from twostroke.record import RequestRecord


class Code(NamedTuple):
    """One cause of a wait.

    meaning: a clause that can follow a colon. phase: whose seconds the cause explains, None where
    each finding says so itself. least_share: of the wait; a cause of less is not a finding.
    """

    meaning: str
    phase: str | None = None
    least_share: float = 0.0


CODES = MappingProxyType(
    {
        "QUEUE": Code("requests wait for a place", "queue", 0.2),
        "KV_FULL": Code("requests wait because the KV cache is full", "queue"),
        "PREEMPT": Code(
            "running requests are thrown out of the KV cache and computed again", "queue"
        ),
        "STATE_POOL": Code("requests wait because the pool of recurrent state is full", "queue"),
        "LOAD": Code(
            "the model is loaded, or its cold pages are read, inside the wait", "load", 0.1
        ),
        "WARMUP": Code("the first requests compile or capture what later ones reuse"),
        "INIT": Code("tokenising, template, grammar or images before the model runs", "init", 0.2),
        "PREFILL": Code("the prompt is computed", "prefill", 0.2),
        "PREFIX_MISS": Code("a known prefix of the prompt is computed again", "prefill", 0.1),
        "SMALL_UBATCH": Code(
            "the prompt is computed in pieces too small for the arithmetic", "prefill", 0.2
        ),
        "PREFILL_CPU": Code(
            "the prompt is computed on a CPU at little more than decode speed", "prefill", 0.2
        ),
        "INTERFERENCE": Code("other requests' prefill holds this decode up", None, 0.2),
        "DECODE": Code("tokens are generated one by one; no cause is proven", "decode", 0.2),
        "DECODE_BW": Code("decode runs at the memory bandwidth", "decode", 0.2),
        "DECODE_KV": Code("reading the KV cache dominates decode", "decode", 0.1),
        "OFFLOAD": Code("part of the model runs on the CPU"),
        "SPILL": Code("memory is over-committed and paged"),
        "KVQ_FALLBACK": Code("the quantised KV cache has no fast kernel here", "decode"),
        "COMM": Code("devices wait for each other", "decode"),
        "THREADS": Code("more threads than cores that are free", "decode"),
        "LAUNCH": Code("launching kernels takes longer than running them", "decode"),
        "SPEC_BAD": Code("drafting costs more than its accepted tokens save", "decode"),
        "REASONING": Code("hidden reasoning tokens come before the answer", "decode", 0.2),
        "BACKGROUND": Code("other requests of the same application", "queue", 0.2),
        "TAIL": Code("the end is held back after the last token", "tail", 0.1),
        "METER": Code("the number is wrong, or does not mean a speed"),
        "WINDOW": Code("an average over a window, idle time included: not a speed"),
        "EXPECTED": Code("healthy: the hardware's limit", "prefill", 0.2),
        "UNKNOWN": Code("the log does not hold the evidence"),
    }
)
CONFIDENCE = ("low", "medium", "high")


@dataclass(frozen=True, slots=True, kw_only=True)
class EvidenceLine:
    """One stated fact: its place in a log and its numbers."""

    file: str | None = None
    line: int | None = None
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One cause of the wait.

    phase: whose seconds these are. share: of the wait, 0 to 1, None when unknown. seconds: over all
    requests. missing: the evidence that would prove more. explains: seconds by phase, where
    they are not all of `phase`.
    """

    code: str
    says: str
    phase: str | None = None
    share: float | None = None
    seconds: float | None = None
    confidence: str = "medium"
    evidence: tuple[EvidenceLine, ...] = ()
    cures: tuple[Cure, ...] = ()
    missing: tuple[str, ...] = ()
    explains: dict[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        assert self.code in CODES and self.confidence in CONFIDENCE

    def to_dict(self) -> dict[str, Any]:
        """Return plain data, ready for JSON."""
        fields = asdict(self)
        del fields["explains"]
        return {"code": self.code, "meaning": CODES[self.code].meaning, **fields}


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """The findings in order, the wait they are shares of, and reasons to trust them less.

    wait: seconds by phase over all requests, in the order of the phases.
    """

    findings: tuple[Finding, ...]
    wait: dict[str, float]
    records: tuple[RequestRecord, ...] = ()
    caveats: tuple[str, ...] = ()

    @property
    def total_s(self) -> float:
        """Seconds of all requests' waits."""
        return sum(self.wait.values())

    @property
    def is_unknown(self) -> bool:
        """Whether the first finding is that the evidence is missing."""
        return self.findings[0].code == "UNKNOWN"
