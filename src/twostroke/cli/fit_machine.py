"""`predict --calibrate`: measure our engine on a model at a few lengths, fit, and remember."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

from twostroke.build import build_engine
from twostroke.config import KvType
from twostroke.errors import ConfigError
from twostroke.model.loaded import load_model
from twostroke.model.local_models import fits_folder
from twostroke.planner.models import PlannedModel
from twostroke.planner.target import Target
from twostroke.predict.fitted_speed import FittedSpeed
from twostroke.predict.kv import KvFormat
from twostroke.predict.stored import store_fit, stored_fit


def with_stored_fit(planned: PlannedModel, target: Target, kv: KvFormat) -> Target:
    """Return the target with the fit stored for this model; unchanged where there is none."""
    profile, path = target.speed.profile, planned.path
    if not (target.is_here and planned.runs_here) or profile is None or path is None:
        return target
    found = stored_fit(fits_folder(), path, kv.name, profile)
    return target if found is None else replace(target, speed=found)


def calibrate(model: Path, kv: str, *, threads: int | None, chunk: int) -> FittedSpeed:
    """Measure, fit and store. Cost: half a minute of a small model.

    Raises:
        ConfigError: the backend measures no peaks, or too few steps fit the model's context.
    """
    from twostroke.bench.steps import Trial, TurnWatch, fit_engine, trial_config

    def say(trial: Trial) -> None:
        print(
            f"twostroke: {trial.streams} x {trial.prompt} tokens, {trial.steps} steps",
            file=sys.stderr,
        )

    loaded = load_model(str(model))
    config = trial_config(loaded.config, kv_type=KvType(kv), threads=threads, chunk=chunk)
    watch = TurnWatch()
    built = build_engine(loaded, config, observers=(watch,), calibrate=True)
    vocab_size = loaded.config.vocab_size
    speed = fit_engine(built, watch, vocab_size=vocab_size, on_trial=say)
    if speed is None:
        raise ConfigError("too few steps fit the model's context", value=loaded.name)
    profile = built.backend.profile
    assert profile is not None, "a fit is of a measured machine"
    store_fit(fits_folder(), model, kv, profile, speed)
    return speed
