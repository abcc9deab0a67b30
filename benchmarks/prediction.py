"""The distance of predictions from measurements: prefill by length, decode by depth and batch.

    python benchmarks/prediction.py MODEL [MODEL ...] [--calibrate] [--threads 2] [--json FILE]

Predictions come from the fit that `twostroke predict MODEL --calibrate` stores (--calibrate: made
now), on lengths apart from those tested here, and stay as they are during the run. Requests run
through the engine. Each figure is also normalised by a probe run just before it, against the same
probe in the fit's profile: plain reads for decode, int8 arithmetic for prefill.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from twostroke.backend.calibrate import PROBE_BYTES
from twostroke.bench.local import seeded_prompt
from twostroke.bench.steps import POOL_TOKENS, Trial, TurnWatch, run_trial, trial_config
from twostroke.build import BuiltEngine, build_engine
from twostroke.cli.fit_machine import calibrate
from twostroke.config import KvType
from twostroke.model.loaded import load_model
from twostroke.model.local_models import fits_folder
from twostroke.predict.hardware import MachineProfile
from twostroke.predict.predictor import Predictor
from twostroke.predict.stored import stored_fit
from twostroke.request import Request, SamplingParams

PROMPTS = (64, 128, 256, 512, 1024, 2048, 4096, 8000)
DEPTHS = (16, 250, 1000, 2000, 4000)
BATCHES = (1, 2, 4, 8, 16)
MOST_TOKENS = 16_000  # batch x depth of one decode test: its prompts are all computed
STEPS = 16
MOST_STEPS = 500  # of one stream, while the prompts of the others are computed
REPEAT = 3


class Probe:
    """The machine's speed right now over its speed at calibration."""

    def __init__(self, built: BuiltEngine, reference: MachineProfile) -> None:
        self._speed = built.backend.probe()
        self._reference = reference

    def arithmetic(self) -> float:
        return self._speed()[0] / self._reference.int8_ops_per_s

    def reading(self) -> float:
        return self._speed()[1] / self._reference.bandwidth_at(PROBE_BYTES)


def prefill_rows(
    built: BuiltEngine, watch: TurnWatch, predictor: Predictor, probe: Probe, vocab: int
) -> list[dict[str, Any]]:
    rows = []
    longest = built.config.max_model_len or 0
    for prompt in PROMPTS:
        if prompt + 1 > longest:
            continue
        predicted = predictor.prefill(0, prompt, chunk=built.config.prefill_chunk)
        times, probes = [], []
        for i in range(REPEAT):
            probes.append(probe.arithmetic())
            run_trial(built.engine, watch, Trial(prompt), 7000 + prompt + i, vocab)
            times.append(sum(seconds for _, seconds in watch.turns))
            watch.turns.clear()
        rows.append(row(f"pp{prompt}", predicted.value, times, probes))
    return rows


def decode_rows(
    built: BuiltEngine, watch: TurnWatch, predictor: Predictor, probe: Probe, vocab: int
) -> list[dict[str, Any]]:
    rows = []
    longest = built.config.max_model_len or 0
    for depth in DEPTHS:
        for batch in BATCHES:
            if depth * batch > MOST_TOKENS or depth + MOST_STEPS + 1 > longest:
                continue
            reading = probe.reading()
            times, predicted = decode_once(built, watch, predictor, depth, batch, vocab)
            found = statistics.median(predicted)
            rows.append(row(f"tg@d{depth}xb{batch}", found, times, [reading]))
    return rows


def decode_once(
    built: BuiltEngine, watch: TurnWatch, predictor: Predictor, depth: int, batch: int,
    vocab: int,
) -> tuple[list[float], list[float]]:  # fmt: skip
    """Fill `batch` streams of `depth`, then time STEPS steps of all of them; then let them go."""
    engine = built.engine
    watch.pause()
    watch.turns.clear()
    params = SamplingParams(temperature=0.0, max_tokens=MOST_STEPS, ignore_eos=True)
    names = [f"d{depth}-{batch}-{i}" for i in range(batch)]
    for i, name in enumerate(names):
        engine.add(
            Request(
                id=name, prompt_token_ids=seeded_prompt(depth, vocab, stream=90_000 + i),
                params=params, seed=0, end_token_ids=frozenset(), arrival_s=time.monotonic(),
                salt=name,
            )
        )  # fmt: skip
    times: list[float] = []
    predicted: list[float] = []
    while len(times) < STEPS + 1:
        assert engine.has_work, "the streams ended before all were decoding"
        engine.step()
        for plan, seconds in watch.turns:
            if not plan.prefill and len(plan.decode) == batch:
                times.append(seconds)
                predicted.append(predictor.step_s(plan) or 0.0)
        watch.turns.clear()
    for name in names:
        engine.abort(name)
    watch.turns.clear()
    return times[1:], predicted[1:]


def row(test: str, predicted: float, times: list[float], probes: list[float]) -> dict[str, Any]:
    measured = statistics.median(times)
    probe = statistics.median(probes)
    normal = measured * probe
    return {
        "test": test,
        "predicted_s": predicted,
        "measured_s": measured,
        "probe": probe,
        "error": predicted / measured - 1,
        "normalised_error": predicted / normal - 1,
    }


def summary(rows: list[dict[str, Any]], key: str) -> dict[str, float]:
    errors = sorted(abs(r[key]) for r in rows)
    return {
        "median": statistics.median(errors),
        "p95": errors[min(-(-95 * len(errors) // 100), len(errors)) - 1],
        "worst": errors[-1],
    }


def run_model(path: Path, arguments: argparse.Namespace) -> list[dict[str, Any]]:
    if arguments.calibrate:
        calibrate(path, "bf16", threads=arguments.threads, chunk=512)
    model = load_model(str(path))
    config = trial_config(model.config, kv_type=KvType.BF16, threads=arguments.threads, chunk=512)
    pool = (MOST_TOKENS + max(BATCHES) * (MOST_STEPS + 64)) * config.kv_memory_bytes // POOL_TOKENS
    config = replace(config, max_num_seqs=max(BATCHES), kv_memory_bytes=pool)
    watch = TurnWatch()
    built = build_engine(model, config, observers=(watch,))
    speed = stored_fit(fits_folder(), path, "bf16", built.backend.profile)
    if speed is None:
        sys.exit("no fit is stored: run with --calibrate")
    predictor = Predictor(built.cost, speed)
    probe = Probe(built, speed.profile)
    built.engine.warm_up()
    out = []
    vocab = model.config.vocab_size
    for number in (-1, -2, -3):  # touch the whole pool
        run_trial(built.engine, watch, Trial(8000), number, vocab)
    watch.turns.clear()
    for phase, measure in (("prefill", prefill_rows), ("decode", decode_rows)):
        if phase not in arguments.phases.split(","):
            continue
        rows = measure(built, watch, predictor, probe, vocab)
        for r in rows:
            print(
                f"{path.stem[:24]:<26}{r['test']:<16}{r['predicted_s'] * 1e3:>10.2f} ms predicted"
                f"{r['measured_s'] * 1e3:>10.2f} measured  {100 * r['error']:>+6.1f} %"
                f"  (normalised {100 * r['normalised_error']:>+6.1f} %)",
                flush=True,
            )
            out.append({"model": path.stem, "phase": phase, **r})
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="+", type=Path)
    parser.add_argument("--calibrate", action="store_true")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--phases", default="prefill,decode")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    rows = [r for path in arguments.models for r in run_model(path, arguments)]
    for phase in ("prefill", "decode"):
        some = [r for r in rows if r["phase"] == phase]
        if not some:
            continue
        for key in ("error", "normalised_error"):
            found = {k: round(100 * v, 1) for k, v in summary(some, key).items()}
            print(json.dumps({"phase": phase, "figure": key, "tests": len(some), **found}))
    if arguments.json:
        with arguments.json.open("a") as file:
            file.writelines(json.dumps(r) + "\n" for r in rows)


if __name__ == "__main__":
    main()
