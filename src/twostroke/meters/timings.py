"""A record in the fields of other programs: llama.cpp's, Ollama's, the Server-Timing header.

Unknown stays null, but in Ollama's fields, which have no null.
"""

from __future__ import annotations

from typing import Any

from twostroke.record import PHASES, RequestRecord

_NS = 10**9


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1e3, 3)


def _per(seconds: float | None, count: int | None) -> float | None:
    return round(seconds * 1e3 / count, 3) if seconds is not None and count else None


def timings(record: RequestRecord | None) -> dict[str, Any] | None:
    """Return the block that llama.cpp's clients read.

    Units: milliseconds and tokens per second. predicted_n counts all output tokens;
    predicted_per_second is (n - 1) / decode time, since the first token belongs to prefill.
    """
    if record is None:
        return None
    prompt, output, phases = record.prompt, record.output, record.phases
    later = output.total - 1 if output.total else None
    return {
        "cache_n": prompt.cached,
        "prompt_n": prompt.new,
        "prompt_ms": _ms(phases.prefill_s),
        "prompt_per_token_ms": _per(phases.prefill_s, prompt.new),
        "prompt_per_second": record.prefill_tok_s,
        "predicted_n": output.total,
        "predicted_ms": _ms(phases.decode_s),
        "predicted_per_token_ms": _per(phases.decode_s, later),
        "predicted_per_second": record.decode_tok_s,
    }


def server_timing(record: RequestRecord | None) -> dict[str, str]:
    """Return the phases as a Server-Timing header (W3C). Units: milliseconds."""
    if record is None:
        return {}
    known = [(n, getattr(record.phases, f"{n}_s")) for n in PHASES]
    parts = [f"{name};dur={seconds * 1e3:.3f}" for name, seconds in known if seconds is not None]
    if record.e2e_s is not None:
        parts.append(f"total;dur={record.e2e_s * 1e3:.3f}")
    return {"server-timing": ", ".join(parts)}


def ollama_durations(record: RequestRecord | None) -> dict[str, int]:
    """Return Ollama's fields. Units: nanoseconds. prompt_eval_count counts cached tokens too."""
    if record is None:
        return {}
    phases = record.phases
    return {
        "total_duration": round((record.e2e_s or 0.0) * _NS),
        "load_duration": round((phases.load_s or 0.0) * _NS),
        "prompt_eval_count": record.prompt.total or 0,
        "prompt_eval_duration": round((phases.prefill_s or 0.0) * _NS),
        "eval_count": record.output.total or 0,
        "eval_duration": round((phases.decode_s or 0.0) * _NS),
    }
