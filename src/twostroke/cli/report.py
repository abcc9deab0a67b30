"""The meter for people: a request's record as a few lines, or as one line in a chat."""

from __future__ import annotations

from typing import TYPE_CHECKING

from twostroke.host import usable_cores
from twostroke.record import RequestRecord

if TYPE_CHECKING:
    from twostroke.advice.explain import Explanation
    from twostroke.build import BuiltEngine

UNKNOWN = "unknown"


def _rate(value: float | None) -> str:
    return (
        UNKNOWN
        if value is None
        else f"{value:,.0f} tok/s"
        if value >= 100
        else f"{value:.1f} tok/s"
    )


def _seconds(value: float | None) -> str:
    if value is None:
        return UNKNOWN
    return f"{value * 1e3:.0f} ms" if value < 1 else f"{value:.2f} s"


def _share(value: float | None) -> str | None:
    return None if value is None else f"{100 * value:.0f} %"


def _of_ceiling(rate: float | None, ceiling: float | None) -> str:
    if rate is None or not ceiling:
        return ""
    return f", {100 * rate / ceiling:.0f} % of the ceiling of {_rate(ceiling)}"


def phase_lines(record: RequestRecord) -> list[str]:
    """Return the report of one request: each phase with its time, its share, and its speed beside
    its ceiling.
    """
    p, prompt, output = record.phases, record.prompt, record.output
    total = record.e2e_s
    lines = []
    for name, seconds, detail in (
        ("load", p.load_s, ""),
        ("init", p.init_s, "template and tokenising"),
        ("queue", p.queue_s, ""),
        ("cache", p.cache_s, f"{prompt.cached} of {prompt.total} prompt tokens reused"),
        ("prefill", p.prefill_s, _prefill_detail(record)),
        ("stall", p.stall_s, ""),
        ("decode", p.decode_s, _decode_detail(record)),
        ("tail", p.tail_s, ""),
    ):
        if seconds is None or (seconds < 5e-4 and name not in ("prefill", "decode")):
            continue
        share = f"{100 * seconds / total:5.1f} %" if total else " " * 7
        lines.append(f"  {name:<8}{_seconds(seconds):>9}  {share}  {detail}".rstrip())
    lines.append(
        f"  {'total':<8}{_seconds(total):>9}           first token after "
        f"{_seconds(record.ttft_any_s)}, then {_tpot(record)}; {output.total} tokens,"
        f" finish: {record.finish}"
    )
    return lines


def explanation(
    built: BuiltEngine, record: RequestRecord, num_requests: int = 1
) -> Explanation | None:
    """Return the phase that held a request's wait, and the cures that would have shortened it."""
    from twostroke.advice.explain import explain_record

    return explain_record(
        record,
        built.predictor.current,
        chunk=built.config.prefill_chunk,
        threads=built.config.threads,
        cores=usable_cores(),
        num_requests=num_requests,
    )


def explain_lines(built: BuiltEngine, record: RequestRecord, num_requests: int = 1) -> list[str]:
    """Return the explanation for people, with how well the phases were predicted."""
    found = explanation(built, record, num_requests)
    if found is None:
        return []
    lines = [""]
    for phase in ("prefill", "decode"):
        predicted = getattr(record, f"predicted_{phase}_s")
        error = getattr(record, f"{phase}_error")
        if predicted is not None and error is not None:
            measured = _seconds(getattr(record.phases, f"{phase}_s"))
            lines.append(
                f"{phase} took {measured}, predicted {_seconds(predicted)} ({100 * error:+.0f} %)"
            )
    return [*lines, *found.lines()]


def _tpot(record: RequestRecord) -> str:
    return UNKNOWN if record.tpot_s is None else f"{record.tpot_s * 1e3:.1f} ms a token"


def _prefill_detail(record: RequestRecord) -> str:
    parts = [f"{record.prompt.new} tokens, {_rate(record.prefill_tok_s)}"]
    if mfu := _share(record.prefill_mfu):
        parts.append(f"{mfu} of this machine's peak arithmetic")
    return ", ".join(parts)


def _decode_detail(record: RequestRecord) -> str:
    n = (record.output.total or 0) - 1
    if n < 1:
        return "no token after the first"
    parts = [f"{n} tokens, {_rate(record.decode_tok_s)}"]
    if mbu := _share(record.decode_mbu):
        parts.append(f"{mbu} of this machine's memory bandwidth")
    return ", ".join(parts) + _of_ceiling(record.decode_tok_s, record.decode_ceiling_tok_s)


def chat_line(record: RequestRecord) -> str:
    """Return one line for a chat: both phases, their speeds and their shares of the wait."""
    p = record.phases
    prefill, decode = p.prefill_s or 0.0, p.decode_s or 0.0
    total = record.e2e_s or (prefill + decode) or 1.0
    prefill_peak = _share(record.prefill_mfu)
    text = (
        f"prefill {record.prompt.new} new + {record.prompt.cached} cached tokens in "
        f"{_seconds(p.prefill_s)} ({_rate(record.prefill_tok_s)}"
        + (f", {prefill_peak} of peak)" if prefill_peak else ")")
        + f" · decode {record.output.total} tokens, {_rate(record.decode_tok_s)}"
    )
    if record.decode_tok_s and record.decode_ceiling_tok_s:
        text += f" ({100 * record.decode_tok_s / record.decode_ceiling_tok_s:.0f} % of ceiling)"
    return (
        text
        + f" · wait: {100 * prefill / total:.0f} % prefill, {100 * decode / total:.0f} % decode"
    )
