"""`twostroke predict`: how long a request will take on this machine, before it runs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import typer

from twostroke.cli import fit_machine
from twostroke.cli.fit_machine import with_stored_fit
from twostroke.cli.options import JSON
from twostroke.cli.plan import planned_model
from twostroke.cli.table import Option
from twostroke.cli.target_options import (
    BANDWIDTH,
    DEVICE,
    FLOPS,
    MEMORY,
    OPTIONAL_MODEL,
    PREFILL_CHUNK,
    THREADS,
    UNKNOWN_EXIT,
    TargetFlags,
    seconds_text,
)
from twostroke.cli.text_output import print_json, print_rows, size_text
from twostroke.errors import ConfigError
from twostroke.planner.ask import Ask, make_ask
from twostroke.planner.memory import Rules
from twostroke.planner.memory_check import Setup
from twostroke.planner.models import PlannedModel, ShapeFlags
from twostroke.planner.plan import Plan, make_plan
from twostroke.planner.target import Target
from twostroke.predict.formulas import split_by_rates
from twostroke.predict.kv import KvFormat, kv_format

OPTIONS = (
    OPTIONAL_MODEL,
    Option("prompt_tokens", int, "Tokens of the prompt.", 1000, short="-p"),
    Option("max_tokens", int, "Tokens of the answer.", 300, short="-n"),
    Option("cached", int, "Prompt tokens already in the cache.", 0),
    Option("batch", int, "Streams that decode together.", 1),
    Option("kv_type", help="How K and V are stored.", default="bf16"),
    DEVICE,
    BANDWIDTH,
    FLOPS,
    MEMORY,
    THREADS,
    PREFILL_CHUNK,
    Option("prefill_rate", float, "Known prefill speed in tok/s; no MODEL then."),
    Option("decode_rate", float, "Known decode speed in tok/s; no MODEL then."),
    Option("calibrate", bool, "First run MODEL at a few lengths and fit this machine.", False),
    JSON,
)


def command(
    model: str | None,
    *,
    prompt_tokens: int,
    max_tokens: int,
    cached: int,
    batch: int,
    kv_type: str,
    where: TargetFlags,
    prefill_chunk: int,
    prefill_rate: float | None,
    decode_rate: float | None,
    calibrate: bool,
    as_json: bool,
) -> None:
    """Predict the wait of one request in its two phases, with the interval and its sources.

    Exit code: 0 predicted, 3 unknown (this machine was never measured: --calibrate does).

    \b
    Examples:
      twostroke predict smollm2:135m --prompt-tokens 4000 --max-tokens 250
      twostroke predict --prefill-rate 1500 --decode-rate 40 -p 12000 -n 500
    """
    if prefill_rate is not None or decode_rate is not None:
        if prefill_rate is None or decode_rate is None or model is not None:
            raise ConfigError("--prefill-rate and --decode-rate go together and without a MODEL")
        _from_rates(prompt_tokens, max_tokens, prefill_rate, decode_rate, as_json=as_json)
        return
    ask = make_ask(prompt=prompt_tokens, output=max_tokens, cached=cached, concurrency=batch)
    plan = _plan(model, ask, where, kv_format(kv_type), prefill_chunk, calibrate=calibrate)
    if as_json:
        print_json(document(plan))
    else:
        _print(plan)
    if plan.prediction is None or plan.prediction.total is None:
        raise typer.Exit(UNKNOWN_EXIT)


def _plan(
    model: str | None, ask: Ask, where: TargetFlags, kv: KvFormat, chunk: int, *, calibrate: bool
) -> Plan:
    """Return the plan of one request, its speed fitted now or as stored for this model."""
    planned, target = planned_model(model, ShapeFlags()), where.target()
    if calibrate:
        target = _calibrated(planned, target, kv, where.threads, chunk)
    else:
        target = with_stored_fit(planned, target, kv)
    is_ours = planned.runs_here and target.kind in ("cpu", "unknown") and kv.is_ours
    rules = Rules.TWOSTROKE if is_ours else Rules.ANY
    setup = Setup(kv=kv, rules=rules, batch_tokens=chunk)
    return make_plan(planned.shape, setup, target, ask)


def _calibrated(
    planned: PlannedModel, target: Target, kv: KvFormat, threads: int | None, chunk: int
) -> Target:
    """Return the target with a speed fitted now to this model on this machine."""
    if not (target.is_here and planned.runs_here and planned.path and kv.is_ours):
        raise ConfigError("--calibrate needs a local model that runs on this machine")
    speed = fit_machine.calibrate(planned.path, kv.name, threads=threads, chunk=chunk)
    return replace(target, speed=speed)


def document(plan: Plan) -> dict[str, Any]:
    """Return one JSON document: tokens, both phases, KV bytes, fits, and every source."""
    whole = plan.to_dict()
    predicted = whole["predicted"]
    missing = [*plan.memory.missing, *(plan.prediction.missing if plan.prediction else ())]
    return {
        "model": whole["model"],
        "prompt": {
            "total": plan.ask.prompt,
            "cached": plan.ask.cached,
            "new": plan.ask.prompt - plan.ask.cached,
        },
        "max_tokens": plan.ask.output,
        "queue_s": 0.0,  # offline: nobody is ahead
        **{name: predicted[name] for name in ("ttft_s", "tpot_s", "total_s")},
        "prefill_share": predicted["prefill_share"],
        "decode_share": predicted["decode_share"],
        "intervals": predicted.get("intervals"),
        "kv_bytes": whole["kv_bytes"],
        "fits": whole["fits"],
        "missing": missing,
        "device": whole["device"],
    }


def _print(plan: Plan) -> None:
    p, kv = plan.prediction, plan.memory.kv_bytes
    rows = [
        ("prompt", f"{plan.ask.prompt:,} tokens, {plan.ask.cached:,} of them cached"),
        ("prefill", _line(p.ttft if p else None, p.prefill_share if p else None)),
        ("decode", _line(p.decode if p else None, _rest(p.prefill_share if p else None))),
        ("total", _line(p.total if p else None, None)),
        ("KV cache", ("unknown" if kv is None else size_text(round(kv))) + f", {plan.memory.fits}"),
        ("speed from", _speed_text(plan.target)),
    ]
    missing = [*plan.memory.missing, *(p.missing if p else ())]
    rows += [("missing", text) for text in missing]
    if _is_unmeasured(plan.target):
        rows.append(("remedy", "--calibrate measures this machine with this model"))
    print_rows(rows)


def _is_unmeasured(target: Target) -> bool:
    return target.is_here and bool(target.speed.missing)


def _speed_text(target: Target) -> str:
    speed = target.speed
    return speed.name if _is_unmeasured(target) else f"{speed.name} ({speed.source.value})"


def _line(seconds: Any, share: float | None) -> str:
    if seconds is None:
        return "unknown"
    text = f"{seconds_text(seconds.value)} ({seconds_text(seconds.low)} to "
    text += f"{seconds_text(seconds.high)})"
    return text if share is None else f"{text}, {100 * share:.0f} % of the wait"


def _rest(share: float | None) -> float | None:
    return None if share is None else 1.0 - share


def _from_rates(
    prompt: int, output: int, prefill_rate: float, decode_rate: float, *, as_json: bool
) -> None:
    if min(prompt, output) < 0:
        raise ConfigError("a number of tokens cannot be below 0", value=min(prompt, output))
    wait = split_by_rates(prompt, output, prefill_tok_s=prefill_rate, decode_tok_s=decode_rate)
    share = wait.prefill_share if wait.total_s else None
    if as_json:
        print_json(
            {
                "ttft_s": wait.prefill_s,
                "prefill_s": wait.prefill_s,
                "decode_s": wait.decode_s,
                "tpot_s": 1.0 / decode_rate,
                "total_s": wait.total_s,
                "prefill_share": share,
                "decode_share": _rest(share),
                "source": "given",
            }
        )
        return
    percent = "" if share is None else f", {100 * share:.0f} % of the wait"
    rest = "" if share is None else f", {100 * (1 - share):.0f} % of the wait"
    print_rows(
        [
            ("prefill", f"{prompt:,} tokens in {seconds_text(wait.prefill_s)}{percent}"),
            ("decode", f"{output:,} tokens in {seconds_text(wait.decode_s)}{rest}"),
            ("total", seconds_text(wait.total_s)),
        ]
    )
