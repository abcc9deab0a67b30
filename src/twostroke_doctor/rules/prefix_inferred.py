"""Signs of a missed prefix in the lengths and times of requests that follow each other."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise
from statistics import median_high

from twostroke.record import RequestRecord
from twostroke_doctor.evidence import Evidence
from twostroke_doctor.finding import Finding
from twostroke_doctor.remedies import unpriced
from twostroke_doctor.rules.prefix_miss import LOST_HALF, MIN_PREFIX, MOSTLY, Miss, missed, priced
from twostroke_doctor.rules.rates import context_of
from twostroke_doctor.runs import Run

_LITTLE = 0.1
_GROWTH = 0.3  # a turn adds at most this share of the conversation, or
_GROWTH_TOKENS = 2048
_MIN_TURNS = 2  # pairs that look like turns before that alone is believed
_FULL = 0.95  # of the context: the window slides
_HIT_TIME = 0.3
_MIN_SIGHTINGS = 3
_MIN_GROUPS = 2


def windowed(e: Evidence) -> Finding | None:
    """Prompts at the context limit are computed whole, every turn: the window slides."""
    limit = e.fact("n_ctx_slot") or e.fact("n_ctx")
    most = e.number("n_ctx_slot") or e.number("n_ctx")
    hit = [record for record in e.records if _fills(record, most)]
    if len(hit) < 2:
        return None
    return missed(
        e,
        [Miss(r, r.phases.prefill_s or 0.0, r.prompt.new) for r in hit[1:]],
        f"{len(hit)} prompts filled the context and were computed whole: the window slides, "
        "so every turn changes the prefix",
        confidence="medium",
        shown=([limit, *e.facts("prompt_truncated_tokens")[:2]],),
        more_cures=unpriced("larger_context"),
        is_bound=True,
    )


def _fills(record: RequestRecord, limit: float | None) -> bool:
    """Whether a prompt fills the context and was computed whole."""
    end = _known_context(record)
    if not end or not record.phases.prefill_s:
        return False
    is_full = "truncated" in record.meter.flags or bool(limit and end >= _FULL * limit)
    return is_full and (record.prompt.new or 0) >= MOSTLY * (record.prompt.total or end)


def _known_context(record: RequestRecord) -> int | None:
    """Return the tokens in the cache at the end of a request, cached prompt tokens included."""
    is_known = record.ctx_end is not None or record.prompt.total is not None
    return context_of(record) if is_known else None


def slid(e: Evidence) -> Finding | None:
    """A context that no longer grows is served once from few new tokens and once from all."""
    for slow, fast in (pair for run in e.runs for pair in _neighbours(run)):
        end, other_end = slow.ctx_end, fast.ctx_end
        new, little = slow.prompt.new, fast.prompt.new
        if not end or not other_end or new is None or little is None:
            continue  # unknown, or a log that says nothing was in the cache
        stands_still = abs(end - other_end) < max(little, 1)
        is_shown = new >= MOSTLY * end and little <= _LITTLE * other_end and stands_still
        if not is_shown or not slow.phases.prefill_s:
            continue
        saved = slow.phases.prefill_s - (fast.phases.prefill_s or 0.0)
        return missed(
            e,
            [Miss(slow, saved, new - little)],
            f"a context of {end:,} tokens took {new:,} new tokens in one turn and "
            f"{little:,} in another: the prefix was lost once",
            confidence="medium",
            shown=([fast],),
            missing=("whether the slow turn was the first of its chat",),
        )
    return None


def _neighbours(run: Run) -> Iterator[tuple[RequestRecord, RequestRecord]]:
    """Yield requests next to each other in the log, either of which may be the slow one."""
    for one, two in pairwise(run.records):
        yield one, two
        yield two, one


def repeated(e: Evidence) -> Finding | None:
    """The same length three times: slow, slow, fast. The second should have been fast."""
    late = [found for run in e.runs for found in _late_hits(run.records) if found]
    if not late or (len(late) < _MIN_GROUPS and not e.given.shared_head):
        return None
    return missed(
        e,
        [miss for found in late for miss in found],
        f"{len(late)} prompts of one length came several times; a repeat still took the full "
        "time and a later one did not: the cache keeps a prompt only after several sightings",
        confidence="medium" if e.given.shared_head else "low",
        more_cures=unpriced("checkpoints"),
        missing=_unless_shared(e, "that these are the same prompts (--shared-head)"),
    )


def _unless_shared(e: Evidence, missing: str) -> tuple[str, ...]:
    """Name the evidence that --shared-head would give."""
    return () if e.given.shared_head else (missing,)


def _late_hits(records: Iterable[RequestRecord]) -> Iterator[list[Miss]]:
    """Yield, for each length of prompt, the repeats that should have been as fast as the last."""
    by_length: dict[int, list[RequestRecord]] = {}
    for record in records:
        length = _length(record)
        if length and length >= MIN_PREFIX and record.phases.prefill_s:
            by_length.setdefault(length, []).append(record)
    for length, same in by_length.items():
        times = [r.phases.prefill_s or 0.0 for r in same]
        if len(times) >= _MIN_SIGHTINGS and times[-1] <= _HIT_TIME * times[0]:
            later = zip(same[1:], times[1:], strict=True)
            yield [Miss(r, t - times[-1], length) for r, t in later if t >= MOSTLY * times[0]]


def _length(record: RequestRecord) -> int | None:
    return record.prompt.total or record.prompt.new


def turns(e: Evidence) -> Finding | None:
    """Prompts that grow like a conversation and get little of it from the cache."""
    misses = _misses(e, _lost_of_turn)
    if len(misses) < _MIN_TURNS:
        return None
    cached = median_high(miss.record.prompt.cached or 0 for miss in misses)
    return missed(
        e,
        misses,
        f"{len(misses)} turns of a growing conversation were computed again from token "
        f"{cached:,} on",
        confidence="medium",
        missing=_unless_shared(e, "that these turns share a prefix (--shared-head)"),
    )


def _misses(e: Evidence, lost: Callable[[RequestRecord, RequestRecord], int]) -> list[Miss]:
    """Price the tokens that each request lost of the one before it."""
    pairs = (pair for run in e.runs for pair in pairwise(run.records))
    return [miss for before, now in pairs for miss in priced(now, lost(before, now))]


def _lost_of_turn(before: RequestRecord, now: RequestRecord) -> int:
    """Return the tokens of the turn before that its next turn computed again."""
    total, end = now.prompt.total, _known_context(before)
    prefix, cached = before.prompt.total, now.prompt.cached
    if total is None or end is None or prefix is None or cached is None or prefix < MIN_PREFIX:
        return 0
    grows = prefix < total <= end + max(_GROWTH * end, _GROWTH_TOKENS)
    return prefix - cached if grows and cached < LOST_HALF * prefix else 0


def flagged(e: Evidence) -> Finding | None:
    """The user says that the prompts share a prefix; the part computed again counts."""
    if not e.given.shared_head:
        return None
    misses = _misses(e, _lost_of_shared)
    if not misses:
        return None
    starts = [m.record.prompt.cached for m in misses if m.record.prompt.cached]
    at = f" from token {min(starts):,} on" if starts else ""
    return missed(
        e,
        misses,
        (f"{len(misses)} prompts that share a prefix with the one before were computed again{at}"),
        confidence="medium",
        missing=("the prompts themselves: how long the shared prefix is",),
        is_bound=True,
    )


def _lost_of_shared(before: RequestRecord, now: RequestRecord) -> int:
    """Return the tokens that the second prompt computed again if the shorter one is shared."""
    prefix, length = _length(before), _length(now)
    if prefix is None or length is None or prefix < MIN_PREFIX:
        return 0
    shared, cached = min(prefix, length), now.prompt.cached or 0
    return shared - cached if cached < LOST_HALF * shared else 0
