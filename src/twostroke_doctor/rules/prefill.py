"""PREFILL and its causes: CPU, small batches; EXPECTED where the hardware's limit is reached."""

from __future__ import annotations

from collections.abc import Mapping

from twostroke.advice import arithmetic, cure, cures
from twostroke.record import MIN_TOKENS_FOR_PREFILL_RATE, RequestRecord
from twostroke_doctor.evidence import Evidence, fact_lines, record_lines
from twostroke_doctor.finding import Finding
from twostroke_doctor.rules.memory import is_on_gpu
from twostroke_doctor.rules.rates import decode_utilisation, prefill_utilisation
from twostroke_doctor.rules.start import cold_s
from twostroke_doctor.runs import Run, has_prefill_rate

MIN_PREFILL_SHARE = 0.2
HEALTHY = 0.6  # of the ceiling
_CPU_RATIO = 4.0  # prefill over decode rate: a GPU is far above it
_CPU_TOK_S = 100.0  # slower than this with such a ratio, no GPU did it
_SEQUENTIAL = 1.5
_MIN_PROMPT = 128
_SMALL_CHUNK = 256
_MANY_CHUNKS = 4
_BEND = 0.2  # share of the quadratic term at the longest prompt that is worth a sentence


def _prefill_of(records: list[RequestRecord]) -> float:
    return sum(r.phases.prefill_s or 0.0 for r in records)


def _cures(records: list[RequestRecord]) -> tuple[cure.Cure, ...]:
    """In order of effect on the first token; never fewer bits, which do not speed prefill up."""
    tokens = sum(r.prompt.new or 0 for r in records)
    seconds = _prefill_of(records)
    first = cures.shorter_prompt(tokens or None, seconds) if seconds else None
    rest = (cures.stable_head(None, None), cures.trim_history(), cures.faster_prefill())
    return (first, *rest) if first else rest


def _ratio(run: Run) -> float | None:
    pp, tg = run.prefill_tok_s(), run.decode_tok_s()
    return pp / tg if pp is not None and tg else None


def prefill_cpu(e: Evidence) -> Finding | None:
    """PREFILL_CPU: a batch of prompt tokens gains little over single tokens, at a CPU's speed."""
    hit, says = list[RequestRecord](), ""
    for run in e.runs:
        ratio, pp, tg = _ratio(run), run.prefill_tok_s(), run.decode_tok_s()
        if ratio is None or pp is None or tg is None or is_on_gpu(run):
            continue
        slow = ratio < _CPU_RATIO and pp < _CPU_TOK_S
        if not slow and not (e.given.on_cpu and pp < _CPU_TOK_S):
            continue
        hit += [r for r in run.records if (r.prompt.new or 0) >= _MIN_PROMPT]
        says = says or (
            f"the prompt runs at {pp:.3g} tok/s, {ratio:.1f} times the {tg:.3g} tok/s of decode: "
            "a CPU without fast matrix kernels"
        )
    seconds = _prefill_of(hit)
    share = e.share(seconds)
    if share is None or share < MIN_PREFILL_SHARE:
        return None
    gpu = cure.unpredicted(
        "gpu_prefill", "Then prefill on a GPU, or a build with fast matrix kernels (BLAS, AMX)."
    )
    return Finding(
        code="PREFILL_CPU",
        says=says + _other_set_up(e, hit),
        phase="prefill",
        share=share,
        seconds=seconds,
        confidence="high" if e.given.on_cpu else "medium",
        evidence=fact_lines([e.fact("layers_offloaded")]) + record_lines(hit),
        cures=(*_cures(hit)[:3], gpu),
    )


def _other_set_up(e: Evidence, hit: list[RequestRecord]) -> str:
    """Say when another run prefills faster and decodes the same: only prefill moved."""
    slow = next((r for r in e.runs if r.records and r.records[0] in hit), None)
    if slow is None:
        return ""
    for run in e.runs:
        (pp, tg), (slow_pp, slow_tg) = ((r.prefill_tok_s(), r.decode_tok_s()) for r in (run, slow))
        if not (pp and tg and slow_pp and slow_tg) or pp < 2 * slow_pp:
            continue
        if 0.9 <= tg / slow_tg <= 1.1:
            return (
                f"; {run.name} prefills {pp / slow_pp:.1f} times faster and decodes the same "
                f"({slow_tg:.2f} and {tg:.2f} tok/s): the GPU does prefill only"
            )
    return ""


def small_ubatch(e: Evidence) -> Finding | None:
    """SMALL_UBATCH: a long prompt in pieces under 256 tokens reads all weights for each."""
    hit, sizes = list[RequestRecord](), list[float]()
    stated = e.number("n_ubatch")
    for record in e.records:
        new = record.prompt.new or 0
        if new < _SMALL_CHUNK * _MANY_CHUNKS or not record.phases.prefill_s:
            continue
        chunks = record.chunks or 0
        size = new / chunks if chunks >= _MANY_CHUNKS else stated
        if size is not None and size < _SMALL_CHUNK:
            hit.append(record)
            sizes.append(size)
    seconds = _prefill_of(hit)
    share = e.share(seconds)
    if share is None or share < MIN_PREFILL_SHARE:
        return None
    mean = sum(sizes) / len(sizes)
    what = "Raise the physical batch of prefill (-ub 512 or more, max_num_batched_tokens)."
    return Finding(
        code="SMALL_UBATCH",
        says=f"the prompt is computed {mean:.0f} tokens at a time: each piece reads all weights",
        phase="prefill",
        share=share,
        seconds=seconds,
        confidence="medium",
        evidence=fact_lines([e.fact("n_ubatch")]) + record_lines(hit),
        cures=(
            cure.between("larger_ubatch", what, 0.0, seconds, "at most this prefill time"),
            *_cures(hit),
        ),
    )


def expected(e: Evidence) -> Finding | None:
    """EXPECTED: prefill at the arithmetic's limit, or a first token that costs one pass."""
    return _at_the_roof(e) or _one_pass(e)


def _at_the_roof(e: Evidence) -> Finding | None:
    seconds, found = e.phase_s("prefill"), prefill_utilisation(e)
    share = e.share(seconds)
    if found is None or share is None or share < MIN_PREFILL_SHARE or found[0] < HEALTHY:
        return None
    used, flop, floor = found
    work = f"{flop / 1e15:.2f} PFLOP take at least {floor:.2f} s here; " if flop else ""
    says = f"{work}prefill took {seconds:.2f} s, {used:.0%} of the arithmetic's limit"
    if used > 1:
        says += (
            ". More than all of it: fewer tokens were computed than stated, because the prompt "
            "was shorter or partly cached"
        )
    records = [r for r in e.records if r.phases.prefill_s]
    return Finding(
        code="EXPECTED",
        says=says,
        phase="prefill",
        share=share,
        seconds=seconds,
        confidence="high" if used <= 1 else "medium",
        evidence=record_lines(records),
        cures=_cures(records),
        missing=("how many prompt tokens were really computed",) if used > 1 else (),
    )


def _one_pass(e: Evidence) -> Finding | None:
    """A short prompt's first token takes one pass over the weights, as every later one does."""
    seconds = e.phase_s("prefill")
    share = e.share(seconds)
    short = [r for r in e.records if r.phases.prefill_s and _is_short(r)]
    timed = sum(1 for r in e.records if r.phases.prefill_s)
    if share is None or share < MIN_PREFILL_SHARE or not short or len(short) < timed:
        return None
    found = decode_utilisation(e)
    size, bandwidth = e.given.weights_bytes, e.given.bandwidth
    mean = seconds / len(short)
    if size and bandwidth:
        floor = arithmetic.decode_floor_s(size, 0.0, bandwidth)
    elif found is not None:
        floor = found[1]
    else:
        floor = max((1 / r.decode_tok_s for r in short if r.decode_tok_s), default=0.0)
    if not floor or mean > floor / HEALTHY:
        return None
    return Finding(
        code="EXPECTED",
        says=(
            f"a short prompt's first token takes {mean * 1000:.0f} ms, and one pass over the "
            f"weights takes {floor * 1000:.0f} ms: that is the floor of the first token too"
        ),
        phase="prefill",
        share=share,
        seconds=seconds,
        confidence="high",
        evidence=record_lines(short),
        cures=(cure.unpredicted("smaller_model", "Only fewer bytes a pass make this shorter."),),
    )


def _is_short(record: RequestRecord) -> bool:
    return 0 < (record.prompt.new or record.prompt.total or 0) < MIN_TOKENS_FOR_PREFILL_RATE


def prefill(e: Evidence, claimed: Mapping[str, float]) -> Finding | None:
    """PREFILL: the seconds of prefill that no cause has claimed, with what is known of them."""
    cold = sum(cold_s(r) for r in e.records)
    left = e.phase_s("prefill") - claimed.get("prefill", 0.0) - cold
    share = e.share(left)
    if share is None or share < MIN_PREFILL_SHARE:
        return None
    records = [r for r in e.records if r.phases.prefill_s and not cold_s(r)]
    if not any(_ends_known(r) for r in records):
        return None
    return Finding(
        code="PREFILL",
        says=_speed(e, records) + _shape(records),
        phase="prefill",
        share=share,
        seconds=left,
        confidence="medium" if any(has_prefill_rate(r) for r in records) else "low",
        evidence=record_lines(records),
        cures=_cures(records),
        missing=_missing(e),
    )


def _ends_known(record: RequestRecord) -> bool:
    """Whether the wait beyond prefill is known: it ended, or it is still in its prefill."""
    still_there = record.chunks is not None and "partial" in record.meter.flags
    return bool(record.phases.decode_s or record.e2e_s or record.output.total == 1 or still_there)


def _speed(e: Evidence, records: list[RequestRecord]) -> str:
    timed = [r for r in records if has_prefill_rate(r)]
    tokens, seconds = sum(r.prompt.new or 0 for r in timed), _prefill_of(timed)
    if not tokens or not seconds:
        return "computing the prompt holds the first token"
    rate = tokens / seconds
    says = f"computing the prompt holds the first token: {rate:,.4g} tok/s"
    found = prefill_utilisation(e)
    if found is not None:
        return f"{says}, {found[0]:.0%} of the arithmetic's limit"
    decode_rates = [run.decode_tok_s() for run in e.runs]
    slowest = min((d for d in decode_rates if d), default=None)
    if slowest is not None and rate < _SEQUENTIAL * slowest and tokens >= _MIN_PROMPT:
        return f"{says}, the rate of decode ({slowest:.4g} tok/s): it runs token by token"
    return says


def _shape(records: list[RequestRecord]) -> str:
    """Say how prefill grows with length, where several lengths were seen."""
    timed = [r for r in records if has_prefill_rate(r) and r.prompt.new and r.phases.prefill_s]
    first_of: dict[int, float] = {}
    for r in timed:
        first_of.setdefault(r.prompt.new or 0, r.phases.prefill_s or 0.0)
    fit = arithmetic.fit_prefill(list(first_of), list(first_of.values()))
    if fit is None:
        return ""
    longest = max(first_of)
    bend = fit[1] * longest / (fit[0] + fit[1] * longest)
    if bend < _BEND:
        return ""
    return f"; {bend:.0%} of it grows with the square of the prompt at {longest:,} tokens"


def _missing(e: Evidence) -> tuple[str, ...]:
    out = []
    if prefill_utilisation(e) is None:
        out.append("model size and arithmetic of the device (--model, --device or --flops)")
    if all(r.prompt.cached is None for r in e.records):
        out.append("how many prompt tokens came from the cache")
    return tuple(out)
