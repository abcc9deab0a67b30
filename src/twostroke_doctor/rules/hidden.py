"""REASONING, BACKGROUND, INTERFERENCE, TAIL: work that the waiting person does not see."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice

from twostroke.advice import cure
from twostroke.record import RequestRecord
from twostroke_doctor.evidence import Evidence, record_lines
from twostroke_doctor.finding import Finding
from twostroke_doctor.wait import INFERENCE, phase_seconds, total_seconds, wait_of

MIN_SHARE = 0.2
_MIN_REASONING = 0.5  # of the output tokens
_SHORT_OUTPUT = 64  # tokens of a title, tags, a follow-up question
_FOLLOWS_S = 3.0
_MIN_FOLLOWERS = 2
_MAX_FOLLOWERS = 64  # requests looked at after each
_MIN_TAIL_SHARE = 0.1
_MIN_TAIL_S = 1.0


def reasoning(e: Evidence) -> Finding | None:
    """REASONING: hidden tokens take most of the output's time."""
    hit = [r for r in e.records if _reasoning_share(r) >= _MIN_REASONING]
    seconds = sum(_reasoning_share(r) * _output_s(r) for r in hit)
    share = e.share(seconds)
    if not hit or share is None or share < MIN_SHARE:
        return None
    hidden, total = (sum(getattr(r.output, k) or 0 for r in hit) for k in ("reasoning", "total"))
    mixed = any(r.phases.decode_s is None for r in hit)
    what = "Switch thinking off or limit its budget; report the first visible token apart."
    basis = f"{hidden:,} of {total:,} output tokens, at the speed of all"
    saving = (
        cure.between("less_reasoning", what, 0.0, seconds, basis + "; prefill is mixed in")
        if mixed
        else cure.exact("less_reasoning", what, seconds, basis)
    )
    return Finding(
        code="REASONING",
        says=f"{hidden:,} of {total:,} output tokens are hidden reasoning before the answer",
        phase="decode",
        share=share,
        seconds=seconds,
        confidence="medium" if mixed else "high",
        evidence=record_lines(hit),
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
    hit, mains = list[RequestRecord](), 0
    for number, main in enumerate(timed):
        followers = _followers(main, islice(timed, number + 1, number + 1 + _MAX_FOLLOWERS))
        if len(followers) >= _MIN_FOLLOWERS:
            hit += followers
            mains += 1
    seconds = sum(map(total_seconds, hit))
    share = e.share(seconds)
    if share is None or share < MIN_SHARE:
        return None
    return Finding(
        code="BACKGROUND",
        says=(
            f"{len(hit)} short requests follow {mains} answers within {_FOLLOWS_S:.0f} s: titles, "
            "tags or follow-up questions on the same model"
        ),
        phase="queue",
        share=share,
        seconds=seconds,
        confidence="medium",
        evidence=record_lines(hit),
        cures=(
            cure.exact(
                "move_background",
                "Switch these off in the application, or give them a small model of their own.",
                seconds,
                "the time that these requests took",
            ),
        ),
        explains=wait_of(hit),
    )


def _followers(main: RequestRecord, later: Iterable[RequestRecord]) -> list[RequestRecord]:
    """Short requests that start as the main one ends."""
    output = main.output.total or 0
    end = (main.t_arrival_s or 0.0) + total_seconds(main)
    if output <= _SHORT_OUTPUT:
        return []
    out = []
    for record in later:
        if (record.t_arrival_s or 0.0) > end + _FOLLOWS_S:
            break
        is_short = 0 < (record.output.total or 0) <= min(_SHORT_OUTPUT, output / 4)
        if is_short and (record.t_arrival_s or 0.0) >= end - _FOLLOWS_S:
            out.append(record)
    return out


def interference(e: Evidence) -> Finding | None:
    """INTERFERENCE: decode waits for, or shares its steps with, other requests' prefill."""
    hit = [r for r in e.records if _held_s(r)]
    seconds = sum(map(_held_s, hit))
    share = e.share(seconds)
    if not hit or share is None or share < MIN_SHARE:
        return None
    stalled = sum(r.phases.stall_s or 0.0 for r in hit)
    return Finding(
        code="INTERFERENCE",
        says=(
            f"{stalled:.2f} s runnable but not in the plan and {seconds - stalled:.2f} s of decode "
            "in steps that held other requests' prefill"
        ),
        phase="stall" if stalled > seconds / 2 else "decode",
        share=share,
        seconds=seconds,
        confidence="high" if stalled > seconds / 2 else "medium",
        evidence=record_lines(hit),
        cures=(
            cure.between(
                "smaller_slices",
                "Smaller prefill slices (--prefill-chunk) or a lower target time a token.",
                0.0,
                seconds,
                "at most the time held up",
            ),
            cure.unpredicted("separate", "Send long prompts to another instance."),
        ),
    )


def _held_s(record: RequestRecord) -> float:
    """Stall, and the mixed time that can only be decode's: what exceeds this request's prefill."""
    mixed, prefill = record.mixed_s or 0.0, record.phases.prefill_s or 0.0
    decode = record.phases.decode_s or 0.0
    slow = (
        record.itl.max_s is not None
        and record.itl.p50_s
        and record.itl.max_s > 3 * record.itl.p50_s
    )
    held = min(max(mixed - prefill, 0.0), decode) if slow else 0.0
    return (record.phases.stall_s or 0.0) + held


def tail(e: Evidence) -> Finding | None:
    """TAIL: the end comes long after the last token."""
    seconds = e.phase_s("tail")
    share = e.share(seconds)
    if share is None or share < _MIN_TAIL_SHARE or seconds < _MIN_TAIL_S:
        return None
    hit = [r for r in e.records if r.phases.tail_s]
    return Finding(
        code="TAIL",
        says=f"{seconds:.2f} s pass between the last token and the end of the reply",
        phase="tail",
        share=share,
        seconds=seconds,
        confidence="high",
        evidence=record_lines(hit),
        cures=(
            cure.exact(
                "close_stream",
                "Close the stream with the last token: look at buffers, stop handling and proxies.",
                seconds,
                "the measured tail",
            ),
        ),
    )
