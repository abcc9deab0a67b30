"""Signs of a missed prefix that the probe measured or an engine states."""

from __future__ import annotations

from twostroke.record import RequestRecord
from twostroke_doctor.evidence import Evidence
from twostroke_doctor.finding import Finding
from twostroke_doctor.remedies import unpriced
from twostroke_doctor.rules.prefix_miss import LOST_HALF, MIN_PREFIX, Miss, missed

_NOT_A_MISS = frozenset({"first_request", "no_match"})
_MIN_GAIN_S = 0.05
_MIN_GAIN = 0.5  # of the floor of a first token
_MAX_FORCED = 32  # lines looked at one by one
_PROBE = "probe/"


def probed(e: Evidence) -> Finding | None:
    """The probe sent one prompt twice; the second took as long as an unseen one."""
    by_id = {r.id.removeprefix(_PROBE): r for r in e.parsed.records if r.id.startswith(_PROBE)}
    again = by_id.get("again")
    whole = [by_id[name] for name in ("unseen", "control") if name in by_id]
    short = [by_id[name] for name in ("short", "long") if name in by_id]
    if again is None or not whole or not short:
        return None
    # The least of each: a busy machine only ever adds to a time.
    seen, unseen, floor = _ttft_s(again), min(map(_ttft_s, whole)), min(map(_ttft_s, short))
    gain = unseen - floor  # the most that a full hit could save
    if gain < max(_MIN_GAIN_S, _MIN_GAIN * floor) or seen - floor < LOST_HALF * gain:
        return None
    price = min(seen, max(map(_ttft_s, whole))) - floor
    return missed(
        e,
        [Miss(again, price, again.prompt.total)],
        f"a prompt sent again took {seen:.3f} s to its first token, an unseen one of the same "
        f"length {unseen:.3f} s and a short one {floor:.3f} s: the cache gave nothing",
        confidence="high",
        shown=([*whole, *short],),
        more_cures=unpriced("cache_on", "smaller_blocks"),
    )


def _ttft_s(record: RequestRecord) -> float:
    return record.ttft_any_s or 0.0


def stated(e: Evidence) -> Finding | None:
    """Our own records say why a prefix was lost, and at what price."""
    hit = [r for r in e.records if r.cache.price_s and r.cache.reason not in {None, *_NOT_A_MISS}]
    if not hit:
        return None
    reasons = sorted({str(r.cache.reason).replace("_", " ") for r in hit})
    first = hit[0].cache
    where = f", first at token {first.diverged_token:,}" if first.diverged_token else ""
    message = f" in message {first.diverged_message}" if first.diverged_message is not None else ""
    return missed(
        e,
        [Miss(r, r.cache.price_s or 0.0) for r in hit],
        f"{len(hit)} prompts lost a known prefix ({', '.join(reasons)}){where}{message}",
        confidence="high",
    )


def forced(e: Evidence) -> Finding | None:
    """The engine says that it computes the whole prompt again, and why."""
    facts = e.facts("full_reprocess")
    if not facts:
        return None
    count = e.parsed.fact_counts.get("full_reprocess", len(facts))
    after = [r for f in facts[:_MAX_FORCED] if (r := _record_after(e, f.file, f.line)) is not None]
    hit = {id(r): r for r in after}
    for record in sorted(e.records, key=lambda r: -(r.prompt.new or 0)) if after else ():
        if len(hit) >= count:
            break
        if (record.prompt.new or 0) >= MIN_PREFIX:
            hit.setdefault(id(record), record)
    why = str(facts[-1].value)
    cannot_go_back = any(name in why for name in ("SWA", "recurrent", "hybrid"))
    cause = "a sliding-window or recurrent cache cannot go back" if cannot_go_back else why
    timed = [(r, r.phases.prefill_s) for r in hit.values()]
    return missed(
        e,
        [Miss(r, seconds, r.prompt.new) for r, seconds in timed if seconds],
        f"the engine computed whole prompts again, {count} times: {cause}",
        confidence="high",
        shown=(facts[:3],),
        more_cures=unpriced("swa_full") if cannot_go_back else (),
        is_bound=True,
    )


def _record_after(e: Evidence, file: str | None, line: int | None) -> RequestRecord | None:
    """Return the first request that ends after a line: the one the line is about."""
    for record in e.records:
        ends = record.meter.lines[-1] if record.meter.lines else None
        if record.meter.file == file and ends is not None and line is not None and ends > line:
            return record
    return None
