"""DECODE, and its two verdicts against the bandwidth: DECODE_BW at it, LAUNCH far below it."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import median

from twostroke.advice import cure, cures
from twostroke.advice.cure import Cure
from twostroke.record import RequestRecord
from twostroke_doctor.evidence import Evidence, record_lines
from twostroke_doctor.finding import Finding
from twostroke_doctor.rules.rates import decode_utilisation, read_bytes
from twostroke_doctor.runs import has_decode_rate

MIN_DECODE_SHARE = 0.2
HEALTHY = 0.6
_FAST_BANDWIDTH = 1e12  # bytes/s: below it a step is longer than its launches
_SHORT_STEP_S = 0.010


def _decode_of(records: list[RequestRecord]) -> float:
    return sum(r.phases.decode_s or 0.0 for r in records)


def _shorter(records: list[RequestRecord]) -> Cure:
    tokens = sum(r.output.total or 0 for r in records)
    return cures.shorter_output(tokens or None, _decode_of(records))


def launch(e: Evidence) -> Finding | None:
    """LAUNCH: far below the bandwidth on a fast device, where a step should take milliseconds."""
    found, bandwidth = decode_utilisation(e), e.given.bandwidth or 0.0
    seconds = e.phase_s("decode")
    if found is None or bandwidth < _FAST_BANDWIDTH or not seconds:
        return None
    used, floor, each = found
    if used >= HEALTHY or floor > _SHORT_STEP_S or _has_other_cause(e):
        return None
    return Finding(
        code="LAUNCH",
        says=(
            f"a token takes {each * 1000:.2f} ms where its bytes take {floor * 1000:.2f} ms, "
            f"{used:.0%} of the bandwidth: the device waits for kernels to be launched"
        ),
        phase="decode",
        share=e.share(seconds),
        seconds=seconds,
        confidence="medium",
        evidence=record_lines([r for r in e.records if has_decode_rate(r)]),
        cures=(cures.use_graphs(seconds), cures.batch()),
    )


def _has_other_cause(e: Evidence) -> bool:
    """Whether facts name another reason for bytes to be read slowly."""
    layers = e.number("layers_offloaded"), e.number("layers_total")
    partly = layers[0] is not None and layers[1] is not None and layers[0] < layers[1]
    share = e.number("gpu_share")
    return partly or (share is not None and share < 1)


def decode_bw(e: Evidence) -> Finding | None:
    """DECODE_BW: at least 60 % of what the bandwidth allows."""
    found, seconds = decode_utilisation(e), e.phase_s("decode")
    share = e.share(seconds)
    if found is None or share is None or share < MIN_DECODE_SHARE or found[0] < HEALTHY:
        return None
    used, floor, each = found
    size = read_bytes(e)
    read = f"{size / each / 1e9:.0f} GB/s of weights, " if size else ""
    says = (
        f"decode reads {read}{used:.0%} of the bandwidth ({each * 1000:.1f} ms a token, at least "
        f"{floor * 1000:.1f} ms): this is what the memory allows"
    )
    if used > 1.05:
        says += ". More than all of it: the stated sizes do not fit what runs"
    records = [r for r in e.records if r.phases.decode_s]
    return Finding(
        code="DECODE_BW",
        says=says,
        phase="decode",
        share=share,
        seconds=seconds,
        confidence="high" if used <= 1.05 else "low",
        evidence=record_lines(records),
        cures=(
            cures.fewer_bits(seconds, size or each * 1e9, min(used, 1.0))
            if size
            else cure.between(
                "fewer_bits",
                "Fewer bytes a token: a smaller quantisation, a smaller model, or experts.",
                seconds * min(used, 1.0) / 2,
                seconds / 2,
                f"decode runs at {used:.0%} of its ceiling; half the bytes halve that part",
            ),
            _shorter(records),
            cures.batch(),
            cures.speculate(),
        ),
    )


def decode(e: Evidence, claimed: Mapping[str, float]) -> Finding | None:
    """DECODE: the seconds of decode that no cause has claimed."""
    left = e.phase_s("decode") - claimed.get("decode", 0.0)
    share = e.share(left)
    if share is None or share < MIN_DECODE_SHARE:
        return None
    records = [r for r in e.records if r.phases.decode_s]
    rates = [r.decode_tok_s for r in records if r.decode_tok_s]
    says = "generating token by token takes the time"
    if rates:
        says += f": {median(rates):.4g} tok/s"
    found = decode_utilisation(e)
    if found is not None:
        says += f", {found[0]:.0%} of what the bandwidth allows"
    missing = () if found else ("size of the weights and bandwidth (--weights-gb, --device)",)
    return Finding(
        code="DECODE",
        says=says,
        phase="decode",
        share=share,
        seconds=left,
        confidence="medium",
        evidence=record_lines(records),
        cures=(
            _shorter(records),
            cures.fewer_bits(left, None, None),
            cures.batch(),
            cures.speculate(),
        ),
        missing=missing,
    )
