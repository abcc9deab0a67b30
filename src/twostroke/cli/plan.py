"""`twostroke plan`: will it fit, how long will it take, how many at once; before downloading."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

import typer

from twostroke.cli.engine_options import parse_bytes
from twostroke.cli.fit_machine import with_stored_fit
from twostroke.cli.options import JSON
from twostroke.cli.plan_text import print_plan
from twostroke.cli.table import Option, Settings
from twostroke.cli.target_options import (
    BANDWIDTH,
    DEVICE,
    FLOPS,
    MEMORY,
    NUM_DEVICES,
    OPTIONAL_MODEL,
    PREFILL_CHUNK,
    UNKNOWN_EXIT,
    TargetFlags,
    parse_count,
)
from twostroke.cli.text_output import print_json
from twostroke.errors import ConfigError
from twostroke.planner.ask import Ask, make_ask
from twostroke.planner.memory import Rules
from twostroke.planner.memory_check import OWN_MAX_NUM_SEQS, Setup
from twostroke.planner.models import (
    PlannedModel,
    ShapeFlags,
    find_model,
    shape_of_flags,
)
from twostroke.planner.plan import make_plan
from twostroke.planner.svg import plan_svg
from twostroke.planner.target import Target
from twostroke.predict.kv import KV_FORMATS, KvFormat, kv_format
from twostroke.predict.shape import ModelShape, WeightGroup, WeightSizes

_EXITS = {"yes": 0, "no": 1, "unknown": UNKNOWN_EXIT}


_ask = partial(Option, settings=Settings("ask", make_ask))
_shape = partial(Option, settings=Settings("flags", ShapeFlags))
OPTIONS = (
    OPTIONAL_MODEL,
    DEVICE,
    NUM_DEVICES,
    BANDWIDTH,
    FLOPS,
    MEMORY,
    _ask("context", int, "Tokens kept per sequence (default: the request's)."),
    _ask("concurrency", int, "Sequences at once.", 1),
    _ask("prompt", int, "Prompt tokens of a request (default: 1000)."),
    _ask("output", int, "Output tokens of a request (default: 300)."),
    _ask("cached", int, "Prompt tokens that the prefix cache already has.", 0),
    Option("kv_type", help=f"{', '.join(KV_FORMATS)} (default: bf16)."),
    _ask(
        "target_ttft", float, "Longest time to the first token, in seconds.", field="target_ttft_s"
    ),
    _ask("target_tpot", float, "Longest time per output token, in seconds.", field="target_tpot_s"),
    Option(
        "rules", help="Whose allocation: auto, twostroke, llama.cpp, vllm or any.", default="auto"
    ),
    PREFILL_CHUNK,
    Option(
        "flash_attention",
        bool,
        "Attention without stored scores (other engines' buffers).",
        True,
        flag="--flash-attention/--no-flash-attention",
    ),
    _shape("layers", int, "Shape: layers."),
    _shape("kv_heads", int, "Shape: KV heads."),
    _shape("head_dim", int, "Shape: size of a head."),
    _shape("heads", int, "Shape: query heads."),
    _shape("hidden", int, "Shape: hidden size.", field="hidden_size"),
    _shape("ffn", int, "Shape: intermediate size.", field="intermediate_size"),
    _shape("vocab", int, "Shape: vocabulary.", field="vocab_size"),
    _shape("window", int, "Shape: sliding window."),
    _shape("full_every", int, "Shape: each n-th layer sees everything."),
    _shape(
        "params", help="Shape: parameters, 8.03B.", parse=partial(parse_count, param="--params")
    ),
    _shape("bits", float, "Shape: bits a parameter."),
    _shape(
        "weights",
        help="Bytes of the weights, such as 4.92GB.",
        parse=partial(parse_bytes, param="--weights"),
        field="weights_bytes",
    ),
    Option("plot", Path, "Write an SVG: roofline, wait, throughput."),
    JSON,
)


def command(
    model: str | None,
    *,
    where: TargetFlags,
    ask: Ask,
    kv_type: str | None,
    rules: str,
    prefill_chunk: int,
    flash_attention: bool,
    flags: ShapeFlags,
    plot: Path | None,
    as_json: bool,
) -> None:
    """Say whether a model fits a device, how long its phases take, and how many streams it serves.

    Exit code: 0 it fits, 1 it does not, 3 unknown (the missing evidence is named).

    \b
    Examples:
      twostroke plan smollm2:135m --context 8192
      twostroke plan config.json --device 4090 --context 32768 --kv-type q8_0
      twostroke plan hf:owner/repo:Q4_K_M --device h100 --prompt 4000 --target-ttft 2
    """
    planned = planned_model(model, flags)
    kv = kv_format(kv_type or "bf16")
    target = with_stored_fit(planned, where.target(), kv)
    setup = _setup(planned, target, kv, rules, prefill_chunk, flash_attention)
    shape = planned.shape
    if setup.rules is Rules.TWOSTROKE and planned.path is not None:
        shape, setup = as_allocated(planned.path, shape, setup, ask.concurrency)
    names = ("bf16", "q8") if setup.rules is Rules.TWOSTROKE else ("f16", "q8_0", "q4_0")
    choices = tuple(kv_format(name) for name in names)
    plan = make_plan(shape, setup, target, ask, kv_choices=choices)
    if plot is not None:
        _write(plot, plan_svg(plan))
    if as_json:
        print_json(plan.to_dict())
    else:
        print_plan(plan)
    raise typer.Exit(_EXITS[plan.memory.fits])


def planned_model(name: str | None, flags: ShapeFlags) -> PlannedModel:
    """Return the model of the name; without one the flags tell the shape.

    Raises:
        ConfigError: neither, or shape flags beside a name (--weights alone may stand there).
    """
    shape_flags = replace(flags, weights_bytes=None)
    if name is None:
        if flags.is_empty:
            raise ConfigError("no model", remedy="Give MODEL, or --layers, --kv-heads, --head-dim.")
        return PlannedModel(shape_of_flags(flags))
    if not shape_flags.is_empty:
        raise ConfigError("a MODEL has its own shape: leave out the flags that tell one")
    planned = find_model(name)
    if flags.weights_bytes is None:
        return planned
    return PlannedModel(_with_weights(planned, flags.weights_bytes), planned.path, False)


def _with_weights(planned: PlannedModel, num_bytes: float) -> ModelShape:
    old = planned.shape.weights
    note = "weights as given by --weights"
    if old is None:
        sizes = WeightSizes(total_bytes=num_bytes, body=WeightGroup(num_bytes))
        return planned.shape.with_weights(sizes, note)
    factor = num_bytes / old.total_bytes

    def at(group: WeightGroup) -> WeightGroup:
        return WeightGroup(group.num_bytes * factor, group.values)

    sizes = WeightSizes(
        total_bytes=num_bytes, body=at(old.body), lm_head=at(old.lm_head), experts=at(old.experts)
    )
    return planned.shape.with_weights(sizes, note)


def _setup(
    planned: PlannedModel,
    target: Target,
    kv: KvFormat,
    rules: str,
    chunk: int,
    flash_attention: bool,
) -> Setup:
    """Return how the engine is set up; auto: ours where it runs the file here, else any."""
    if not 1 <= chunk <= 1 << 20:
        raise ConfigError("--prefill-chunk is out of range", value=chunk, limit="[1, 1048576]")
    if rules not in ("auto", *(r.value for r in Rules)):
        known = ", ".join(r.value for r in Rules)
        raise ConfigError("unknown --rules", value=rules, limit=f"auto, {known}")
    is_ours = planned.runs_here and target.kind in ("cpu", "unknown") and kv.is_ours
    chosen = Rules(rules) if rules != "auto" else Rules.TWOSTROKE if is_ours else Rules.ANY
    return Setup(kv=kv, rules=chosen, batch_tokens=chunk, flash_attention=flash_attention)


def as_allocated(
    path: Path, shape: ModelShape, setup: Setup, concurrency: int
) -> tuple[ModelShape, Setup]:
    """Return shape and set-up with the exact bytes of a dry run, where the native library is."""
    from twostroke.cli.dry_run import dry_run

    step_tokens = setup.batch_tokens + max(concurrency, OWN_MAX_NUM_SEQS)
    found = dry_run(path, step_tokens=step_tokens)
    if found is None:
        return shape, setup
    packed = replace(shape, weights=found.weights)
    return packed, replace(setup, arena_bytes=found.arena_bytes)


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError("the plot cannot be written", value=f"{path}: {error.strerror}") from None
