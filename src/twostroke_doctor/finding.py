"""What a diagnosis is made of: codes, evidence, findings.

Holds numbers, file names and line numbers; never a word of any prompt.
"""

from __future__ import annotations

from dataclasses import field
from types import MappingProxyType
from typing import Any

from twostroke.advice import Cure
from twostroke.dataclass import dataclass
from twostroke.record import RequestRecord

# code -> what it means, in a clause that can follow a colon
CODES = MappingProxyType(
    {
        "QUEUE": "requests wait for a place",
        "KV_FULL": "requests wait because the KV cache is full",
        "PREEMPT": "running requests are thrown out of the KV cache and computed again",
        "STATE_POOL": "requests wait because the pool of recurrent state is full",
        "LOAD": "the model is loaded, or its cold pages are read, inside the wait",
        "WARMUP": "the first requests compile or capture what later ones reuse",
        "INIT": "tokenising, template, grammar or images before the model runs",
        "PREFILL": "the prompt is computed",
        "PREFIX_MISS": "a known prompt head is computed again",
        "SMALL_UBATCH": "the prompt is computed in pieces too small for the arithmetic",
        "PREFILL_CPU": "the prompt is computed on a CPU at little more than decode speed",
        "INTERFERENCE": "other requests' prefill holds this decode up",
        "DECODE": "tokens are generated one by one; what bounds it is not proven",
        "DECODE_BW": "decode runs at the memory bandwidth",
        "DECODE_KV": "reading the KV cache dominates decode",
        "OFFLOAD": "part of the model runs on the CPU",
        "SPILL": "memory is over-committed and paged",
        "KVQ_FALLBACK": "the quantised KV cache has no fast kernel here",
        "COMM": "devices wait for each other",
        "THREADS": "more threads than cores that are free",
        "LAUNCH": "launching kernels takes longer than running them",
        "SPEC_BAD": "drafting costs more than its accepted tokens save",
        "REASONING": "hidden reasoning tokens come before the answer",
        "BACKGROUND": "other requests of the same application",
        "TAIL": "the end is held back after the last token",
        "METER": "the number is wrong, or not what it seems",
        "WINDOW": "an average over a window, idle time included: not a speed",
        "EXPECTED": "healthy: the hardware's limit",
        "UNKNOWN": "the log does not hold the evidence",
    }
)
CONFIDENCE = ("low", "medium", "high")


@dataclass(frozen=True, slots=True, kw_only=True)
class EvidenceLine:
    """One stated fact: where it stands and what it says, in numbers."""

    text: str
    file: str | None = None
    line: int | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return plain data, ready for JSON."""
        return {"file": self.file, "line": self.line, "text": self.text}


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
        return {
            "code": self.code,
            "meaning": CODES[self.code],
            "says": self.says,
            "phase": self.phase,
            "share": self.share,
            "seconds": self.seconds,
            "confidence": self.confidence,
            "evidence": [one.to_dict() for one in self.evidence],
            "cures": [one.to_dict() for one in self.cures],
            "missing": list(self.missing),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """The findings in order, the wait they are shares of, and what to keep in mind.

    wait: seconds by phase over all requests, in the order of the phases; caveats: why to trust it
    less.
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
        """Whether the first thing to say is that the evidence is missing."""
        return self.findings[0].code == "UNKNOWN"
