"""From evidence to findings, the one that holds most of the wait first.

Causes are looked for in the order of `rules`; a phase whose cause is not proven is named as such;
where not even the phase is known the answer is UNKNOWN, with the evidence that is missing.
"""

from __future__ import annotations

from collections.abc import Sequence

from twostroke.record import MIN_TOKENS_FOR_PREFILL_RATE
from twostroke_doctor.evidence import Evidence, gather
from twostroke_doctor.finding import Diagnosis, Finding
from twostroke_doctor.given import Given
from twostroke_doctor.parsed import Parsed
from twostroke_doctor.rules import GENERIC, LAST, SPECIFIC
from twostroke_doctor.wait import INFERENCE, UNACCOUNTED

MIN_REQUESTS = 3
MIN_SHARE = 0.05  # of the wait: less is noise beside a larger finding
_OPEN_SHARE = 0.5  # of the wait in a phase that nothing tells about
# code -> causes beside which it says nothing: they explain the same seconds better
_CONTRADICTED_BY = {
    "EXPECTED": {"SPILL", "OFFLOAD", "KVQ_FALLBACK", "THREADS", "PREFIX_MISS", "PREFILL_CPU"},
    "PREFILL_CPU": {"OFFLOAD"},
    "DECODE_BW": {"SPILL"},
    "LAUNCH": {"SPILL"},
}
_CAVEATS = {
    "ttft_as_prefill": "prefill is the time to the first token: queue and init may be in it",
    "cached_may_be_counted": "this engine may count cached tokens as prompt",
}


def diagnose(parsed: Parsed, given: Given | None = None) -> Diagnosis:
    """Return the causes of the wait, their evidence and their cures."""
    e = gather(parsed, given or Given())
    found = [finding for rule in SPECIFIC if (finding := rule(e)) is not None]
    codes = {finding.code for finding in found}
    found = [f for f in found if not codes & _CONTRADICTED_BY.get(f.code, set())]
    claimed = _claimed(found)
    found += [finding for rule in GENERIC if (finding := rule(e, claimed)) is not None]
    found.sort(key=lambda f: -(f.share or 0.0))
    found += [finding for rule in LAST if (finding := rule(e)) is not None]
    if not found or _is_open(e, found):
        found.insert(0, _unknown(e))
    return Diagnosis(
        findings=tuple(_without_noise(found)), wait=e.wait, records=e.records, caveats=_caveats(e)
    )


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
    share = e.share(e.phase_s(INFERENCE) + e.phase_s(UNACCOUNTED)) or 0.0
    covered = max((f.share or 0.0 for f in found), default=0.0)
    return share >= _OPEN_SHARE and covered < share


def _without_noise(found: list[Finding]) -> list[Finding]:
    """Drop findings of a few percent beside larger ones."""
    kept = [f for f in found if f.share is None or f.share >= MIN_SHARE]
    return kept or found


def _unknown(e: Evidence) -> Finding:
    return e.finding(
        "UNKNOWN",
        "the cause is not proven by what was read",
        phase=max(e.wait, key=lambda name: e.wait[name]) if e.wait else None,
        confidence="low",
        shown=(e.records or e.parsed.facts[:4],),
        cures=(),
        missing=_missing(e),
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
    count, enough = len(e.records), MIN_TOKENS_FOR_PREFILL_RATE
    if 0 < count < MIN_REQUESTS:
        out.append(f"from {count} request{'s' if count > 1 else ''} only")
    if _all_under(enough, [r.prompt.new for r in e.records]):
        out.append(f"no prompt has {enough} new tokens: no prefill speed")
    if _all_under(enough, [r.output.total for r in e.records]):
        out.append(f"no output has {enough} tokens: decode speed is rough")
    flags = {flag for r in e.records for flag in r.meter.flags}
    out += [caveat for flag, caveat in _CAVEATS.items() if flag in flags]
    if dropped := sum(e.parsed.dropped.values()):
        out.append(f"{dropped:,} items beyond the kept ones are not in this diagnosis")
    return tuple(out)


def _all_under(least: int, counts: Sequence[int | None]) -> bool:
    known = [count for count in counts if count is not None]
    return bool(known) and max(known) < least
