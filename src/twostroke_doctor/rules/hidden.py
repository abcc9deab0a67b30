"""REASONING, BACKGROUND, INTERFERENCE: work that the waiting person does not see."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice

from twostroke.record import RequestRecord
from twostroke_doctor.evidence import Evidence
from twostroke_doctor.finding import Finding
from twostroke_doctor.remedies import at_most, exactly, unpriced
from twostroke_doctor.wait import INFERENCE, phase_seconds, seconds_in, total_seconds, wait_of

_MIN_REASONING = 0.5  # of the output tokens
_SHORT_OUTPUT = 64  # tokens of a title, tags, a follow-up question
_MUCH_SHORTER = 4  # times than the answer before it
_FOLLOWS_S = 3.0
_MIN_FOLLOWERS = 2
_MAX_FOLLOWERS = 64  # requests looked at after each
_LONG_GAP = 3.0  # times the median gap between tokens


def reasoning(e: Evidence) -> Finding | None:
    """REASONING: hidden tokens take most of the output's time."""
    hit = [r for r in e.records if _reasoning_share(r) >= _MIN_REASONING]
    seconds = sum(_reasoning_share(r) * _output_s(r) for r in hit)
    if not e.is_enough("REASONING", seconds):
        return None
    hidden, total = (sum(getattr(r.output, k) or 0 for r in hit) for k in ("reasoning", "total"))
    is_mixed = any(r.phases.decode_s is None for r in hit)
    basis = f"{hidden:,} of {total:,} output tokens, at the speed of all"
    saving = exactly("less_reasoning", seconds, basis)
    if is_mixed:
        saving = at_most("less_reasoning", seconds, f"the time of {basis}; prefill is mixed in")
    return e.finding(
        "REASONING",
        f"{hidden:,} of {total:,} output tokens are hidden reasoning before the answer",
        seconds=seconds,
        confidence="medium" if is_mixed else "high",
        shown=(hit,),
        cures=(saving,),
    )


def _reasoning_share(record: RequestRecord) -> float:
    hidden, total = record.output.reasoning, record.output.total
    return hidden / total if hidden and total else 0.0


def _output_s(record: RequestRecord) -> float:
    if record.phases.decode_s is not None:
        return record.phases.decode_s
    return phase_seconds(record).get(INFERENCE, 0.0)


def background(e: Evidence) -> Finding | None:
    """BACKGROUND: short requests that come in a bunch right after each answer."""
    timed = [r for r in e.records if r.t_arrival_s is not None and total_seconds(r) > 0]
    timed.sort(key=lambda r: r.t_arrival_s or 0.0)
    hit, answers = list[RequestRecord](), 0
    for number, answer in enumerate(timed):
        followers = _followers(answer, islice(timed, number + 1, number + 1 + _MAX_FOLLOWERS))
        if len(followers) >= _MIN_FOLLOWERS:
            hit += followers
            answers += 1
    seconds = sum(map(total_seconds, hit))
    if not e.is_enough("BACKGROUND", seconds):
        return None
    return e.finding(
        "BACKGROUND",
        f"{len(hit)} short requests follow {answers} answers within {_FOLLOWS_S:.0f} s: titles, "
        "tags or follow-up questions on the same model",
        seconds=seconds,
        explains=wait_of(hit),
        shown=(hit,),
        cures=(exactly("move_background", seconds, "the time that these requests took"),),
    )


def _followers(answer: RequestRecord, later: Iterable[RequestRecord]) -> list[RequestRecord]:
    """Return the short requests that start as an answer ends."""
    output = answer.output.total or 0
    end = (answer.t_arrival_s or 0.0) + total_seconds(answer)
    if output <= _SHORT_OUTPUT:
        return []
    out = []
    for record in later:
        if (record.t_arrival_s or 0.0) > end + _FOLLOWS_S:
            break
        is_short = 0 < (record.output.total or 0) <= min(_SHORT_OUTPUT, output / _MUCH_SHORTER)
        if is_short and (record.t_arrival_s or 0.0) >= end - _FOLLOWS_S:
            out.append(record)
    return out


def interference(e: Evidence) -> Finding | None:
    """INTERFERENCE: decode waits for, or shares its steps with, other requests' prefill."""
    hit = [r for r in e.records if _held_s(r)]
    seconds = sum(map(_held_s, hit))
    if not e.is_enough("INTERFERENCE", seconds):
        return None
    stalled = seconds_in("stall", hit)
    is_mostly_stall = stalled > seconds / 2
    return e.finding(
        "INTERFERENCE",
        f"{stalled:.2f} s runnable but not in the plan and {seconds - stalled:.2f} s of decode "
        "in steps that held other requests' prefill",
        phase="stall" if is_mostly_stall else "decode",
        seconds=seconds,
        confidence="high" if is_mostly_stall else "medium",
        shown=(hit,),
        cures=(at_most("smaller_slices", seconds, "the time held up"), *unpriced("separate")),
    )


def _held_s(record: RequestRecord) -> float:
    """Return the stall, and the mixed time beyond this request's own prefill: that is decode's."""
    phases, gaps = record.phases, record.itl
    mixed = max((record.mixed_s or 0.0) - (phases.prefill_s or 0.0), 0.0)
    has_long_gap = bool(gaps.max_s and gaps.p50_s and gaps.max_s > _LONG_GAP * gaps.p50_s)
    return (phases.stall_s or 0.0) + (min(mixed, phases.decode_s or 0.0) if has_long_gap else 0.0)
