"""DECODE, and its two verdicts against the bandwidth: DECODE_BW at it, LAUNCH far below it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median

from twostroke.advice import Cure, cure, cures
from twostroke.record import RequestRecord
from twostroke_doctor.evidence import Evidence
from twostroke_doctor.finding import Finding
from twostroke_doctor.rules.rates import HEALTHY, DecodeUse, decode_use
from twostroke_doctor.runs import has_decode_rate
from twostroke_doctor.wait import seconds_in

_FAST_BANDWIDTH = 1e12  # bytes/s: below it a step is longer than its launches
_SHORT_STEP_S = 0.010
_TOO_MUCH = 1.05  # of the bandwidth: the stated sizes are wrong


def launch(e: Evidence) -> Finding | None:
    """LAUNCH: far below the bandwidth on a fast device, where a step should take milliseconds."""
    use, bandwidth = decode_use(e), e.given.bandwidth or 0.0
    seconds = e.phase_s("decode")
    if use is None or bandwidth < _FAST_BANDWIDTH or not seconds:
        return None
    if use.share >= HEALTHY or use.floor_s > _SHORT_STEP_S or _is_partly_on_cpu(e):
        return None
    return e.finding(
        "LAUNCH",
        f"a token takes {use.token_s * 1000:.2f} ms where its bytes take "
        f"{use.floor_s * 1000:.2f} ms, {use.share:.0%} of the bandwidth: the device waits for "
        "kernels to be launched",
        seconds=seconds,
        shown=([r for r in e.records if has_decode_rate(r)],),
        cures=(cures.use_graphs(seconds), cures.batch()),
    )


def _is_partly_on_cpu(e: Evidence) -> bool:
    """Whether facts name another reason for bytes to be read slowly."""
    on_gpu, layers = e.number("layers_offloaded"), e.number("layers_total")
    share = e.number("gpu_share")
    too_few = on_gpu is not None and layers is not None and on_gpu < layers
    return too_few or (share is not None and share < 1)


def decode_bw(e: Evidence) -> Finding | None:
    """DECODE_BW: at least 60 % of the speed that the bandwidth allows."""
    use, seconds = decode_use(e), e.phase_s("decode")
    if use is None or use.share < HEALTHY or not e.is_enough("DECODE_BW", seconds):
        return None
    size = e.given.read_bytes
    read = f"{size / use.token_s / 1e9:.0f} GB/s of weights, " if size else ""
    says = (
        f"decode reads {read}{use.share:.0%} of the bandwidth ({use.token_s * 1000:.1f} ms a "
        f"token, at least {use.floor_s * 1000:.1f} ms): this is what the memory allows"
    )
    if use.share > _TOO_MUCH:
        says += ". More than all of it: the stated sizes do not fit what runs"
    records = [r for r in e.records if r.phases.decode_s]
    return e.finding(
        "DECODE_BW",
        says,
        seconds=seconds,
        confidence="high" if use.share <= _TOO_MUCH else "low",
        shown=(records,),
        cures=_decode_cures(records, _fewer_bits(seconds, size, use)),
    )


def _fewer_bits(seconds: float, size: float | None, use: DecodeUse) -> Cure:
    share = min(use.share, 1.0)
    if size:
        return cures.fewer_bits(seconds, size, share)
    what = cures.fewer_bits(seconds, None, None).what
    basis = f"decode runs at {use.share:.0%} of its ceiling; half the bytes halve that part"
    return cure.between("fewer_bits", what, seconds * share / 2, seconds / 2, basis)


def _decode_cures(records: Sequence[RequestRecord], fewer_bits: Cure) -> tuple[Cure, ...]:
    """Return the cures of decode; fewer bits come first where their saving is known."""
    tokens = sum(r.output.total or 0 for r in records)
    shorter = cures.shorter_output(tokens or None, seconds_in("decode", records))
    first = (fewer_bits, shorter) if fewer_bits.is_predicted else (shorter, fewer_bits)
    return (*first, cures.batch(), cures.speculate())


def decode(e: Evidence, claimed: Mapping[str, float]) -> Finding | None:
    """DECODE: the seconds of decode that no cause has claimed."""
    left = e.phase_s("decode") - claimed.get("decode", 0.0)
    if not e.is_enough("DECODE", left):
        return None
    records = [r for r in e.records if r.phases.decode_s]
    rates = [r.decode_tok_s for r in records if r.decode_tok_s]
    use = decode_use(e)
    says = "generating token by token takes the time"
    if rates:
        says += f": {median(rates):.4g} tok/s"
    if use is not None:
        says += f", {use.share:.0%} of what the bandwidth allows"
    needed = "size of the weights and bandwidth (--weights-gb, --device)"
    return e.finding(
        "DECODE",
        says,
        seconds=left,
        shown=(records,),
        cures=_decode_cures(records, cures.fewer_bits(left, None, None)),
        missing=() if use else (needed,),
    )
