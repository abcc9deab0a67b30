"""A plan as rows of text for people."""

from __future__ import annotations

from typing import Any

import typer

from twostroke.cli.target_options import seconds_text
from twostroke.cli.text_output import print_rows, size_text
from twostroke.planner.plan import Plan


def print_plan(plan: Plan) -> None:
    """Print whether the plan fits, what it takes, and how long its phases are."""
    fit, ask, target = plan.memory, plan.ask, plan.target
    memory = "unknown" if target.memory_bytes is None else size_text(int(target.memory_bytes))
    source = target.memory_source.value if target.memory_source else "no source"
    times = f"{target.num_devices} x " if target.num_devices > 1 else ""
    rows = [
        ("model", f"{plan.shape.name} (shape from {plan.shape.source})"),
        ("device", f"{times}{target.name}, memory {memory} ({source})"),
        ("asked", f"{ask.concurrency} x {ask.context:,} tokens of {plan.setup.kv.name} KV"),
        ("weights", _bytes(fit.weights_bytes)),
        ("KV cache", f"{_bytes(fit.kv_bytes)}, {_bytes(plan.kv_bytes_per_token)} a token"),
        ("state", _bytes(fit.state_bytes)),
        ("compute", _range(fit.compute)),
        ("total", _range(fit.total)),
        ("fits", fit.fits + (f"; missing: {'; '.join(fit.missing)}" if fit.missing else "")),
        ("most context", _count(plan.max_context, " tokens")),
        ("most at once", _count(plan.max_concurrency, " sequences")),
    ]
    rows += _speed_rows(plan)
    rows += [("assumed", note) for note in plan.shape.assumed]
    rows += [("note", note) for note in plan.notes]
    print_rows(rows)
    if plan.table:
        typer.echo()
        _print_table(plan)


def _speed_rows(plan: Plan) -> list[tuple[str, str]]:
    p = plan.prediction
    if p is None:
        return [("speed", "unknown")]
    rows = [
        ("first token", _interval(p.ttft) + f" for {p.prompt_tokens - p.cached_tokens:,} new"),
        ("then", _interval(p.tpot) + f" a token, {p.batch} at once"),
        ("wait", _interval(p.total) + _shares(p.prefill_share)),
        ("speed from", f"{plan.target.speed.name} ({plan.target.speed.source.value} peaks)"),
    ]
    if p.missing:
        rows.append(("missing", "; ".join(p.missing)))
    if plan.capacity is not None:
        c = plan.capacity
        rows.append(("capacity", f"{_count(c.concurrency, ' streams')}, limited by {c.limit}"))
    return rows


def _print_table(plan: Plan) -> None:
    head = ("weights", "KV", "total", "fits", "most context", "first token", "a token")
    body = [
        (
            row["weights"],
            row["kv_type"],
            _bytes(row["total_bytes"]),
            row["fits"],
            _count(row["max_context"], ""),
            seconds_text(row["ttft_s"]),
            seconds_text(row["tpot_s"]),
        )
        for row in plan.table
    ]
    print_rows([head, *body])


def _bytes(value: float | None) -> str:
    return "unknown" if value is None else size_text(round(value))


def _range(value: Any) -> str:
    if value is None:
        return "unknown"
    if round(value.low) == round(value.high):
        return _bytes(value.high)
    causes = f" ({', '.join(value.causes)})" if value.causes else ""
    return f"{_bytes(value.low)} to {_bytes(value.high)}{causes}"


def _count(value: int | None, unit: str) -> str:
    return "unknown" if value is None else f"{value:,}{unit}"


def _interval(seconds: Any) -> str:
    if seconds is None:
        return "unknown"
    text = seconds_text(seconds.value)
    if seconds.low == seconds.high:
        return text
    return f"{text} ({seconds_text(seconds.low)} to {seconds_text(seconds.high)})"


def _shares(prefill: float | None) -> str:
    if prefill is None:
        return ""
    return f": {100 * prefill:.0f} % prefill, {100 * (1 - prefill):.0f} % decode"
