"""PREFIX_MISS: a prompt head that was computed before is computed again, and how that is known."""

from __future__ import annotations

from collections.abc import Iterator

from twostroke.advice import Cure, cure, cures
from twostroke.dataclass import dataclass
from twostroke.record import RequestRecord
from twostroke_doctor.evidence import Evidence, fact_lines, record_lines, window_lines
from twostroke_doctor.finding import EvidenceLine, Finding
from twostroke_doctor.runs import Run

MIN_MISS_SHARE = 0.1
_NOT_A_MISS = frozenset({"first_request", "no_match"})
_MIN_HEAD = 256  # tokens: shorter heads are a template's
_MOSTLY = 0.8
_LITTLE = 0.1
_LOST_HALF = 0.5
_GROWTH = 0.3  # a turn adds at most this share of the conversation, or
_GROWTH_TOKENS = 2048
_MIN_TURNS = 2  # pairs that look like turns before that alone is believed
_FULL = 0.95  # of the context: the window slides
_HIT_TIME = 0.3
_MIN_GAIN_S = 0.05
_MAX_FORCED = 32  # lines looked at one by one


_ZERO_CURES = (
    cure.unpredicted("cache_on", "Check that this backend and model have prefix caching on."),
    cure.unpredicted(
        "smaller_blocks", "A block larger than the shared head never hits: smaller blocks."
    ),
    cure.unpredicted(
        "without_drafts", "Try without speculative decoding, which can switch it off."
    ),
    cure.unpredicted("same_salt", "Salt, LoRA and images must be the same for a hit."),
    cures.stable_head(None, None, "last: the text itself may differ"),
)


@dataclass(frozen=True, slots=True)
class _Miss:
    """One request that lost a head. seconds: what that took; tokens: how many, None unknown."""

    record: RequestRecord
    seconds: float
    tokens: int | None = None


@dataclass(frozen=True, slots=True)
class _Case:
    """How the misses are known."""

    misses: list[_Miss]
    says: str
    confidence: str
    evidence: tuple[EvidenceLine, ...] = ()
    cures: tuple[Cure, ...] = ()
    missing: tuple[str, ...] = ()
    is_bound: bool = False  # seconds is an upper bound


def prefix_miss(e: Evidence) -> Finding | None:
    """PREFIX_MISS: the first of the ways to know it that applies."""
    for look in (_probed, _stated, _forced, _windowed, _slid, _repeated, _turns, _flagged):
        case = look(e)
        if case is not None and case.misses:
            return _finding(e, case)
    return _rate_of_zero(e)


def _finding(e: Evidence, case: _Case) -> Finding | None:
    seconds = sum(m.seconds for m in case.misses)
    share = e.share(seconds)
    if share is not None and share < MIN_MISS_SHARE:
        return None
    tokens = [m.tokens for m in case.misses if m.tokens is not None]
    lost = sum(tokens) if len(tokens) == len(case.misses) else None
    head = cures.stable_head(seconds, lost)
    if case.is_bound:
        head = cure.between("stable_head", head.what, 0.0, seconds, "at most this prefill time")
    return Finding(
        code="PREFIX_MISS",
        says=case.says,
        phase="prefill",
        share=share,
        seconds=seconds,
        confidence=case.confidence,
        evidence=record_lines([m.record for m in case.misses]) + case.evidence,
        cures=(head, *case.cures, cures.trim_history()),
        missing=case.missing,
    )


def _probed(e: Evidence) -> _Case | None:
    """The probe sent one prompt twice; the second took as long as an unseen one."""
    by_id = {r.id.removeprefix("probe/"): r for r in e.parsed.records if r.id.startswith("probe/")}
    again = by_id.get("again")
    whole = [by_id[name] for name in ("unseen", "control") if name in by_id]
    short = [by_id[name] for name in ("short", "long") if name in by_id]
    if again is None or not whole or not short:
        return None
    # The least of each: a busy machine only ever adds to a time.
    seen, unseen, floor = again.ttft_any_s or 0.0, _least(whole), _least(short)
    gain = unseen - floor  # the most that a full hit could save
    if gain < max(_MIN_GAIN_S, floor * 0.5) or seen - floor < _LOST_HALF * gain:
        return None
    longest = max(r.ttft_any_s or 0.0 for r in whole)
    return _Case(
        misses=[_Miss(again, min(seen, longest) - floor, again.prompt.total)],
        says=(
            f"a prompt sent again took {seen:.3f} s to its first token, an unseen one of the same "
            f"length {unseen:.3f} s and a short one {floor:.3f} s: the cache gave nothing"
        ),
        confidence="high",
        evidence=record_lines([*whole, *short]),
        cures=_ZERO_CURES[:2],
    )


def _least(records: list[RequestRecord]) -> float:
    return min(r.ttft_any_s or 0.0 for r in records)


def _stated(e: Evidence) -> _Case | None:
    """Our own records say why and at what price."""
    hit = [r for r in e.records if r.cache.price_s and r.cache.reason not in {None, *_NOT_A_MISS}]
    if not hit:
        return None
    reasons = sorted({str(r.cache.reason).replace("_", " ") for r in hit})
    first = hit[0].cache
    where = f", first at token {first.diverged_token:,}" if first.diverged_token else ""
    message = f" in message {first.diverged_message}" if first.diverged_message is not None else ""
    return _Case(
        misses=[_Miss(r, r.cache.price_s or 0.0) for r in hit],
        says=f"{len(hit)} prompts lost a known head ({', '.join(reasons)}){where}{message}",
        confidence="high",
    )


def _forced(e: Evidence) -> _Case | None:
    """The engine says that it computes the whole prompt again, and why."""
    facts = e.facts("full_reprocess")
    if not facts:
        return None
    count = e.parsed.fact_counts.get("full_reprocess", len(facts))
    after = [r for f in facts[:_MAX_FORCED] if (r := _record_after(e, f.file, f.line)) is not None]
    by_id = {id(r): r for r in after}
    for record in sorted(e.records, key=lambda r: -(r.prompt.new or 0)):
        if len(by_id) >= count or not after:
            break
        if (record.prompt.new or 0) >= _MIN_HEAD:
            by_id.setdefault(id(record), record)
    hit = list(by_id.values())
    why = str(facts[-1].value)
    swa = "SWA" in why or "recurrent" in why or "hybrid" in why
    cause = "a sliding-window or recurrent cache cannot go back" if swa else why
    return _Case(
        misses=[_Miss(r, r.phases.prefill_s, r.prompt.new) for r in hit if r.phases.prefill_s],
        says=f"the engine computed whole prompts again, {count} times: {cause}",
        confidence="high",
        evidence=fact_lines(facts[:3]),
        cures=(_SWA_CURE,) if swa else (),
        is_bound=True,
    )


_SWA_CURE = cure.unpredicted(
    "swa_full", "Keep the full cache (--swa-full) or context checkpoints; costs KV memory."
)


def _record_after(e: Evidence, file: str | None, line: int | None) -> RequestRecord | None:
    """Return the first request that ends after a line: the one the line is about."""
    for record in e.records:
        ends = record.meter.lines[-1] if record.meter.lines else None
        if record.meter.file == file and ends is not None and line is not None and ends > line:
            return record
    return None


def _windowed(e: Evidence) -> _Case | None:
    """Prompts at the context limit are computed whole, every turn: the window slides."""
    limit = e.number("n_ctx_slot") or e.number("n_ctx")
    cut = e.facts("prompt_truncated_tokens")
    hit = []
    for record in e.records:
        end = _context(record)
        full = "truncated" in record.meter.flags or (limit and end and end >= _FULL * limit)
        whole = end and (record.prompt.new or 0) >= _MOSTLY * (record.prompt.total or end)
        if full and whole and record.phases.prefill_s:
            hit.append(record)
    if len(hit) < 2:
        return None
    return _Case(
        misses=[_Miss(r, r.phases.prefill_s or 0.0, r.prompt.new) for r in hit[1:]],
        says=(
            f"{len(hit)} prompts filled the context and were computed whole: the window slides, "
            "so every turn changes the head"
        ),
        confidence="medium",
        evidence=fact_lines([e.fact("n_ctx_slot") or e.fact("n_ctx"), *cut[:2]]),
        cures=(cure.unpredicted("larger_context", "A larger context, or cut far more at once."),),
        is_bound=True,
    )


def _context(record: RequestRecord) -> int | None:
    """Tokens in the cache when a request ended."""
    if record.ctx_end is not None:
        return record.ctx_end
    if record.prompt.total is None:
        return None
    return record.prompt.total + (record.output.total or 0)


def _slid(e: Evidence) -> _Case | None:
    """A context that no longer grows is served once from few new tokens and once from all."""
    for run in e.runs:
        for slow, fast in _pairs(run):
            end, other_end = slow.ctx_end, fast.ctx_end
            new, little = slow.prompt.new, fast.prompt.new
            if not end or not other_end or new is None or little is None:
                continue  # unknown, or a log that says nothing was in the cache
            stands_still = abs(end - other_end) < max(little, 1)
            is_shown = new >= _MOSTLY * end and little <= _LITTLE * other_end and stands_still
            if not is_shown or not slow.phases.prefill_s:
                continue
            saved = slow.phases.prefill_s - (fast.phases.prefill_s or 0.0)
            return _Case(
                misses=[_Miss(slow, saved, new - little)],
                says=(
                    f"a context of {end:,} tokens took {new:,} new tokens in one turn and "
                    f"{little:,} in another: the head was lost once"
                ),
                confidence="medium",
                evidence=record_lines([fast]),
                missing=("whether the slow turn was the first of its chat",),
            )
    return None


def _pairs(run: Run) -> Iterator[tuple[RequestRecord, RequestRecord]]:
    """Neighbours in the log, either of which may be the slow one."""
    for one, two in zip(run.records, run.records[1:], strict=False):
        yield one, two
        yield two, one


def _repeated(e: Evidence) -> _Case | None:
    """The same length three times: slow, slow, fast. The second should have been fast."""
    misses, groups = list[_Miss](), 0
    for run in e.runs:
        by_length: dict[int, list[RequestRecord]] = {}
        for record in run.records:
            length = record.prompt.total or record.prompt.new
            if length and length >= _MIN_HEAD and record.phases.prefill_s:
                by_length.setdefault(length, []).append(record)
        for length, same in by_length.items():
            found = _late_hit(length, same)
            groups += bool(found)
            misses += found
    if not misses or (groups < 2 and not e.given.shared_head):
        return None
    return _Case(
        misses=misses,
        says=(
            f"{groups} prompts of one length came several times; a repeat still took the full "
            "time and a later one did not: the cache keeps a prompt only after several sightings"
        ),
        confidence="medium" if e.given.shared_head else "low",
        cures=(_HYBRID_CURE,),
        missing=() if e.given.shared_head else ("that these are the same prompts (--shared-head)",),
    )


_HYBRID_CURE = cure.unpredicted(
    "checkpoints", "For hybrid models: smaller cache blocks, or checkpoints at the first sighting."
)


def _late_hit(length: int, same: list[RequestRecord]) -> list[_Miss]:
    times = [r.phases.prefill_s or 0.0 for r in same]
    if len(times) < 3 or times[-1] > _HIT_TIME * times[0]:
        return []
    late = [(r, t) for r, t in zip(same[1:], times[1:], strict=True) if t >= _MOSTLY * times[0]]
    return [_Miss(r, t - times[-1], length) for r, t in late]


def _turns(e: Evidence) -> _Case | None:
    """Prompts that grow like a conversation and get little of it from the cache."""
    misses = list[_Miss]()
    for run in e.runs:
        misses += _lost_turns(run)
    if len(misses) < _MIN_TURNS:
        return None
    cached = sorted(m.record.prompt.cached or 0 for m in misses)
    return _Case(
        misses=misses,
        says=(
            f"{len(misses)} turns of a growing conversation were computed again from token "
            f"{cached[len(cached) // 2]:,} on"
        ),
        confidence="medium",
        missing=() if e.given.shared_head else ("that these turns share a head (--shared-head)",),
    )


def _lost_turns(run: Run) -> list[_Miss]:
    out = []
    for before, now in zip(run.records, run.records[1:], strict=False):
        total, end = now.prompt.total, _context(before)
        head, cached = before.prompt.total, now.prompt.cached
        if total is None or end is None or head is None or cached is None or head < _MIN_HEAD:
            continue
        grows = head <= total <= end + max(_GROWTH * end, _GROWTH_TOKENS)
        if grows and total > head and cached < _LOST_HALF * head:
            out += _miss(now, head - cached)
    return out


def _miss(record: RequestRecord, lost: int) -> list[_Miss]:
    """Price lost tokens at this prefill's own mean rate."""
    new, seconds = record.prompt.new, record.phases.prefill_s
    if not new or not seconds:
        return []
    lost = min(lost, new)
    return [_Miss(record, seconds * lost / new, lost)]


def _flagged(e: Evidence) -> _Case | None:
    """The user says that the prompts share a head; what of it was computed again counts."""
    if not e.given.shared_head:
        return None
    misses = list[_Miss]()
    for run in e.runs:
        for before, now in zip(run.records, run.records[1:], strict=False):
            head = before.prompt.total or before.prompt.new
            length = now.prompt.total or now.prompt.new
            if head is None or length is None or head < _MIN_HEAD:
                continue
            cached = now.prompt.cached or 0
            shared = min(head, length)
            if cached < _LOST_HALF * shared:
                misses += _miss(now, shared - cached)
    if not misses:
        return None
    starts = [m.record.prompt.cached for m in misses if m.record.prompt.cached]
    at = f" from token {min(starts):,} on" if starts else ""
    return _Case(
        misses=misses,
        says=f"{len(misses)} prompts that share a head with the one before were computed again{at}",
        confidence="medium",
        missing=("the prompts themselves: how long the shared head is",),
        is_bound=True,
    )


def _rate_of_zero(e: Evidence) -> Finding | None:
    """A server's own hit rate stays at nothing while prompts are computed."""
    rated = [w for w in e.windows if w.prefix_hit_rate is not None]
    fed = [w for w in rated if w.prompt_tok_s]
    if not fed or (e.records and not e.given.shared_head):
        return None
    if any(w.prefix_hit_rate for w in rated) and not _hits_elsewhere(e):
        return None
    zero = [w for w in fed if not w.prefix_hit_rate]
    if not zero:
        return None
    proven = e.given.shared_head or _hits_elsewhere(e)
    says = "the prefix cache gave 0.0 % of the prompt tokens"
    if _hits_elsewhere(e):
        best = max(w.prefix_hit_rate or 0.0 for w in rated)
        says += f"; under another set-up the same server reached {best:.1%}"
    return Finding(
        code="PREFIX_MISS",
        says=says,
        phase="prefill",
        confidence="medium" if proven else "low",
        evidence=window_lines(zero),
        cures=_ZERO_CURES,
        missing=() if proven else ("that the prompts share a head (--shared-head)",),
    )


def _hits_elsewhere(e: Evidence) -> bool:
    """Whether one run never hit and another did."""
    best = [
        max((w.prefix_hit_rate for w in run.windows if w.prefix_hit_rate is not None), default=None)
        for run in e.runs
    ]
    known = [rate for rate in best if rate is not None]
    return len(known) > 1 and min(known) == 0.0 and max(known) > 0.0
