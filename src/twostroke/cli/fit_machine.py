"""`predict --calibrate`: measure our engine on a model at a few lengths, fit, and remember."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

from twostroke import __version__
from twostroke.bench.local import LocalBench
from twostroke.build import BuiltEngine, build_engine, cache_folder, load_model
from twostroke.config import EngineConfig, KvType
from twostroke.errors import ConfigError
from twostroke.physics.cost import CostModel, Work
from twostroke.physics.fit import FittedSpeed, MeasuredStep, fit_speed
from twostroke.physics.hardware import MachineProfile
from twostroke.physics.kv_format import KvFormat
from twostroke.planner.models import PlannedModel
from twostroke.planner.target import Target

# (new tokens, depth) of prefill and (streams, depth) of decode: apart from round lengths, so that
# what people test with is predicted and not remembered.
_PREFILL = ((48, 0), (160, 0), (448, 0), (160, 600), (448, 1500), (448, 3000))
_DECODE = ((1, 40), (1, 900), (1, 2500), (3, 40), (6, 300), (12, 40), (12, 700))
_STEPS = 12
_REPEAT = 3
_MOST_BYTES = 1 << 16


def fit_path(model: Path, kv: str, profile: MachineProfile) -> Path:
    """Return where the fit of a model, KV type, machine and build is kept."""
    stat = model.stat()
    fields = [str(stat.st_size), model.name, kv, profile.cpu, profile.kernel_set]
    fields += [str(profile.threads), __version__]
    name = hashlib.sha256("\x1f".join(fields).encode()).hexdigest()[:16]
    return cache_folder() / "fits" / f"{name}.json"


def stored_fit(model: Path, kv: str, profile: MachineProfile) -> FittedSpeed | None:
    """Return the fit that was stored, None where there is none or it cannot be read."""
    try:
        path = fit_path(model, kv, profile)
        if path.stat().st_size > _MOST_BYTES:
            return None
        return FittedSpeed.from_dict(json.loads(path.read_text()))
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return None


def with_stored_fit(planned: PlannedModel, target: Target, kv: KvFormat) -> Target:
    """Return the target with the fit stored for this model; unchanged where there is none."""
    profile, path = target.speed.profile, planned.path
    if not (target.is_here and planned.runs_here) or profile is None or path is None:
        return target
    found = stored_fit(path, kv.name, profile)
    return target if found is None else replace(target, speed=found)


def calibrate(model: Path, kv: str, *, threads: int | None, chunk: int) -> FittedSpeed:
    """Measure, fit and store. Cost: half a minute of a small model.

    Raises:
        ConfigError: the backend measures no peaks, or too few steps fit the model's context.
    """
    loaded = load_model(str(model))
    config = EngineConfig(kv_type=KvType(kv), threads=threads, prefill_chunk=chunk)
    built = build_engine(loaded, config, calibrate=True)
    profile = built.machine.profile
    if profile is None:
        raise ConfigError("this backend has no peaks to fit to", remedy="Use the native backend.")
    steps = _measure(built, loaded.config.vocab_size, built.config.max_model_len or 0, chunk)
    speed = fit_speed(profile, steps)
    if speed is None:
        raise ConfigError("too few steps fit the model's context", value=len(steps))
    path = fit_path(model, kv, profile)
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=".", suffix=".tmp", dir=path.parent)
        with os.fdopen(handle, "w") as file:
            json.dump(speed.to_dict(), file)
        os.replace(name, path)
    return speed


def _measure(built: BuiltEngine, vocab_size: int, longest: int, chunk: int) -> list[MeasuredStep]:
    most = max(max(n + depth for n, depth in _PREFILL), max(b * (d + 64) for b, d in _DECODE))
    bench = LocalBench(
        built.new_runner(most + 256),
        vocab_size=vocab_size,
        cost=built.cost,
        profile=None,
        prefill_chunk=chunk,
    )
    steps = []
    for n, depth in _PREFILL:
        if n <= chunk and n + depth <= longest:
            print(f"twostroke: prefill of {n} after {depth}", file=sys.stderr)
            row = bench.prefill(n, depth=depth, repeat=_REPEAT)
            work = built.cost.slice_work(depth, depth + n, logit_rows=1)
            work += built.cost.weights_once(with_head=True, num_tokens=n)
            steps.append(MeasuredStep(work, n / row.tok_per_s))
    for streams, depth in _DECODE:
        if depth + _STEPS <= longest:
            print(f"twostroke: decode of {streams} after {depth}", file=sys.stderr)
            row = bench.decode(_STEPS, depth=depth, batch=streams, repeat=_REPEAT)
            work = _decode_work(built.cost, streams, depth + _STEPS // 2)
            steps.append(MeasuredStep(work, streams / row.tok_per_s))
    return steps


def _decode_work(cost: CostModel, streams: int, context: int) -> Work:
    work = cost.weights_once(with_head=True, num_tokens=streams)
    for _ in range(streams):
        work += cost.slice_work(context, context + 1, logit_rows=1)
    return work
