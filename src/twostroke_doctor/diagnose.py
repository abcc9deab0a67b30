"""From evidence to findings, the one that holds most of the wait first.

Causes are looked for in the order of rules/__init__.py; a phase whose cause is not proven is
named as such; where not even the phase is known the answer is UNKNOWN, with what is missing.
"""

from __future__ import annotations

from collections.abc import Sequence

from twostroke.record import MIN_TOKENS_FOR_PREFILL_RATE
from twostroke_doctor.evidence import Evidence, fact_lines, gather, record_lines
from twostroke_doctor.finding import Diagnosis, Finding
from twostroke_doctor.given import Given
from twostroke_doctor.parsed import Parsed
from twostroke_doctor.rules import GENERIC, LAST, SPECIFIC
from twostroke_doctor.wait import INFERENCE, UNACCOUNTED

MIN_REQUESTS = 3
MIN_SHARE = 0.05  # of the wait: less is noise beside a larger finding
_BOTH_PHASES = frozenset({"SPILL", "OFFLOAD", "KVQ_FALLBACK", "THREADS"})
_OPEN_SHARE = 0.5  # of the wait in a phase that nothing tells about


def diagnose(parsed: Parsed, given: Given | None = None) -> Diagnosis:
    """Return what holds the wait, by what evidence, and what to do about it."""
    e = gather(parsed, given or Given())
    found = [finding for rule in SPECIFIC if (finding := rule(e)) is not None]
    found = _drop_contradicted(found)
    claimed = _claimed(found)
    found += [finding for rule in GENERIC if (finding := rule(e, claimed)) is not None]
    found.sort(key=lambda f: -(f.share if f.share is not None else 0.0))
    found += [finding for rule in LAST if (finding := rule(e)) is not None]
    if not found or _is_open(e, found):
        found.insert(0, _unknown(e))
    return Diagnosis(
        findings=tuple(_without_noise(found)),
        wait=e.wait,
        records=e.records,
        caveats=_caveats(e),
    )


def _drop_contradicted(found: list[Finding]) -> list[Finding]:
    """A healthy verdict on a phase does not stand beside a proven cause in the same phase."""
    codes = {f.code for f in found}
    both = bool(codes & _BOTH_PHASES)
    out = []
    for finding in found:
        causes = {f.code for f in found if f.phase == finding.phase} - {finding.code}
        if finding.code == "EXPECTED" and (both or causes & {"PREFIX_MISS", "PREFILL_CPU"}):
            continue
        if finding.code == "PREFILL_CPU" and "OFFLOAD" in codes:
            continue
        if finding.code in ("DECODE_BW", "LAUNCH") and "SPILL" in codes:
            continue
        out.append(finding)
    return out


def _claimed(found: Sequence[Finding]) -> dict[str, float]:
    """Return the seconds by phase that causes explain; two of one phase may be the same seconds."""
    claimed = {"prefill": 0.0, "decode": 0.0}
    for finding in found:
        if finding.code == "METER":
            continue
        explains = finding.explains or {str(finding.phase): finding.seconds or 0.0}
        for phase in claimed:
            claimed[phase] = max(claimed[phase], explains.get(phase, 0.0))
    return claimed


def _is_open(e: Evidence, found: Sequence[Finding]) -> bool:
    """Whether most of the wait lies where no finding looks."""
    open_s = e.phase_s(INFERENCE) + e.phase_s(UNACCOUNTED)
    share = e.share(open_s) or 0.0
    covered = max((f.share or 0.0 for f in found), default=0.0)
    return share >= _OPEN_SHARE and covered < share


def _without_noise(found: list[Finding]) -> list[Finding]:
    """Drop findings of a few percent beside larger ones."""
    kept = [f for f in found if f.share is None or f.share >= MIN_SHARE]
    return kept or found


def _unknown(e: Evidence) -> Finding:
    missing = _missing(e)
    return Finding(
        code="UNKNOWN",
        says="the cause is not proven by what was read",
        phase=max(e.wait, key=lambda name: e.wait[name]) if e.wait else None,
        share=None,
        confidence="low",
        evidence=record_lines(e.records) or fact_lines(e.parsed.facts[:4]),
        missing=missing,
    )


def _missing(e: Evidence) -> tuple[str, ...]:
    """Name the evidence that would allow a statement."""
    if not e.records and not e.parsed.windows:
        if e.parsed.facts:
            return ("requests with their times",)
        return ("any line of a known engine: a log with timings, or a running endpoint (--url)",)
    if not e.records:
        return ("times of single requests",)
    out = []
    if not e.phase_s("prefill"):
        out.append("the time to the first token")
    if not e.phase_s("decode"):
        out.append("the time and number of output tokens")
    if e.phase_s(UNACCOUNTED) or e.phase_s(INFERENCE):
        out.append("how the engine's total divides into phases")
    return tuple(out) or ("more of the wait: no phase holds a fifth of it",)


def _caveats(e: Evidence) -> tuple[str, ...]:
    """Say why to trust the advice less."""
    out = []
    count = len(e.records)
    if 0 < count < MIN_REQUESTS:
        out.append(f"from {count} request{'s' if count > 1 else ''} only")
    new = [r.prompt.new for r in e.records if r.prompt.new is not None]
    if new and max(new) < MIN_TOKENS_FOR_PREFILL_RATE:
        out.append(f"no prompt has {MIN_TOKENS_FOR_PREFILL_RATE} new tokens: no prefill speed")
    output = [r.output.total for r in e.records if r.output.total is not None]
    if output and max(output) < MIN_TOKENS_FOR_PREFILL_RATE:
        out.append(f"no output has {MIN_TOKENS_FOR_PREFILL_RATE} tokens: decode speed is rough")
    flags = {flag for r in e.records for flag in r.meter.flags}
    if "ttft_as_prefill" in flags:
        out.append("prefill is the time to the first token: queue and init may be in it")
    if "cached_may_be_counted" in flags:
        out.append("this engine may count cached tokens as prompt")
    if dropped := sum(e.parsed.dropped.values()):
        out.append(f"{dropped:,} items beyond the kept ones are not in this diagnosis")
    return tuple(out)
