"""Measured steps of a model through its own engine, from which this machine's speed is fitted.

Requests run as a user's would, and the scheduler's time between two steps counts, so the fit
covers the whole wait of a request. No trial has a round length, so that a prediction for one
(512, 1024) is not a measurement given back.
"""

from __future__ import annotations

import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Sequence

from twostroke.backend.calibrate import PROBE_BYTES
from twostroke.bench.local import seeded_prompt
from twostroke.build import BuiltEngine
from twostroke.config import EngineConfig, KvType
from twostroke.dataclass import dataclass
from twostroke.engine.engine import Engine
from twostroke.events import Event, StepDone
from twostroke.model.config import ModelConfig
from twostroke.predict.cost import CostModel
from twostroke.predict.fit import MeasuredStep, fit_speed
from twostroke.predict.fitted_speed import Features, FittedSpeed, step_features
from twostroke.predict.hardware import MachineProfile
from twostroke.predict.kv import KvFormat, kv_bytes_per_token
from twostroke.predict.shape import config_layers
from twostroke.request import Request, SamplingParams
from twostroke.step import StepPlan


@dataclass(frozen=True, slots=True)
class Trial:
    """So many requests at once, each of so many prompt tokens and steps of decode after them."""

    prompt: int
    streams: int = 1
    steps: int = 0


SHORT = tuple(Trial(n) for n in (5, 11, 22, 45, 75, 100, 140, 180, 280, 360, 440, 500))
STREAMS = (
    Trial(30, 1, 30),
    Trial(1100, 1, 16),
    Trial(2600, 1, 16),
    Trial(30, 2, 16),
    Trial(30, 3, 16),
    Trial(700, 3, 24),
    Trial(30, 5, 16),
    Trial(450, 6, 24),
    Trial(30, 7, 16),
    Trial(1100, 6, 30),
    Trial(30, 10, 16),
    Trial(30, 13, 16),
    Trial(300, 13, 30),
    Trial(30, 24, 16),
)
TRIALS = (*SHORT, *STREAMS)
POOL_TOKENS = 8192  # holds the largest trial; blocks are used again, so no page is a fresh one
REPEAT = 3


class TurnWatch:
    """An observer that measures each turn of the engine, from the end of the turn before.

    A first turn counts from its own start. Units: seconds.
    """

    def __init__(self) -> None:
        self.turns: list[tuple[StepPlan, float]] = []
        self._last_s: float | None = None

    def on_event(self, event: Event) -> None:
        """Take note of a step; cold and mixed ones are left out."""
        if not isinstance(event, StepDone):
            return
        start_s = event.result.start_s if self._last_s is None else self._last_s
        self._last_s = event.result.end_s
        if not (event.cold or event.plan.is_mixed):
            self.turns.append((event.plan, event.result.end_s - start_s))

    def pause(self) -> None:
        """Say that the engine stood still."""
        self._last_s = None


def run_trial(engine: Engine, watch: TurnWatch, trial: Trial, number: int, vocab: int) -> None:
    """Run one trial to its end; its prompts share nothing with those of another number."""
    watch.pause()
    params = SamplingParams(temperature=0.0, max_tokens=trial.steps + 1, ignore_eos=True)
    for i in range(trial.streams):
        stream = number * 1000 + i
        engine.add(
            Request(
                id=f"trial-{stream}",
                prompt_token_ids=seeded_prompt(trial.prompt, vocab, stream=stream),
                params=params,
                seed=0,
                end_token_ids=frozenset(),
                arrival_s=time.monotonic(),
                salt=f"trial-{stream}",
            )
        )
    while engine.has_work:
        engine.step()


def trial_config(
    model: ModelConfig, *, kv_type: KvType, threads: int | None, chunk: int
) -> EngineConfig:
    """Return the settings that trials run with: a small pool, and prompts in whole chunks."""
    per_token = kv_bytes_per_token(config_layers(model), KvFormat(kv_type.value))
    return EngineConfig(
        kv_type=kv_type,
        threads=threads,
        prefill_chunk=chunk,
        max_num_seqs=max(t.streams for t in TRIALS),
        kv_memory_bytes=int(per_token * POOL_TOKENS),
        target_tpot_s=60.0,
    )


@dataclass(frozen=True, slots=True)
class _Turn:
    """A measured turn, and how fast the machine was just before. Units: seconds; rates."""

    plan: StepPlan
    seconds: float
    speed: tuple[float, float]


def fit_engine(
    built: BuiltEngine,
    watch: TurnWatch,
    *,
    vocab_size: int,
    trials: Sequence[Trial] = TRIALS,
    repeat: int | None = None,
    on_trial: Callable[[Trial], None] = lambda trial: None,
) -> FittedSpeed | None:
    """Run the trials that fit the context, and fit this machine to their steps.

    A short probe before each trial says how fast the machine was; steps are brought to the median
    of the probes, which becomes the fit's profile. None: too few steps.
    Raises:
        ConfigError: the backend measures no peaks.
    Cost: half a minute of a small model.
    """
    probe = built.backend.probe()
    base = built.backend.profile
    assert base is not None, "a machine with a probe has a profile"
    longest = built.config.max_model_len or 0
    usable = [t for t in trials if t.prompt + t.steps + 1 <= longest]
    built.engine.warm_up()
    for number in (-1, -2):  # the first use of a memory page costs more than a later one
        half = Trial(min(POOL_TOKENS // 2, longest - 1))
        run_trial(built.engine, watch, half, number, vocab_size)
    turns: list[_Turn] = []
    for number in range((repeat or REPEAT) * len(usable)):
        trial = usable[number % len(usable)]
        if number < len(usable):
            on_trial(trial)
        speed = probe()
        watch.turns.clear()
        run_trial(built.engine, watch, trial, number, vocab_size)
        turns.extend(_Turn(plan, turn_s, speed) for plan, turn_s in watch.turns)
    return _fit_turns(turns, base, built.cost) if turns else None


def _fit_turns(turns: Sequence[_Turn], base: MachineProfile, cost: CostModel) -> FittedSpeed | None:
    """Fit to turns that are brought to the median speed of their probes."""
    usual = [statistics.median(t.speed[i] for t in turns) for i in (0, 1)]
    profile = base.at_speed(usual[0], usual[1], PROBE_BYTES)
    seconds: defaultdict[Features, list[float]] = defaultdict(list)
    for turn in turns:
        kind = 0 if turn.plan.prefill else 1  # arithmetic rules prefill, reading rules decode
        features = step_features(profile, cost.step_work(turn.plan))
        seconds[features].append(turn.seconds * turn.speed[kind] / usual[kind])
    steps = [MeasuredStep(f, statistics.median(s)) for f, s in seconds.items()]
    return fit_speed(profile, steps)
