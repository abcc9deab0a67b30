"""twostroke bench: both phases measured apart, each beside its ceiling and a hash of its answer."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, TextIO

from twostroke.cli import bench_url
from twostroke.cli.engine_options import parse_ints
from twostroke.cli.options import JSON, MEASURED_ENGINE, MODEL
from twostroke.cli.table import Option, Settings
from twostroke.config import EngineConfig
from twostroke.dataclass import dataclass
from twostroke.errors import ConfigError
from twostroke.step import BLOCK_SIZE

if TYPE_CHECKING:
    from twostroke.backend.native import NativeModel, ProfileLine
    from twostroke.backend.runner import ModelRunner
    from twostroke.bench.local import LocalBench, Row
    from twostroke.build import BuiltEngine

DEFAULT_PROMPT = 512
DEFAULT_GENERATED = 128


def _share(value: float | None) -> str:
    return "unknown" if value is None else f"{100 * value:.1f} %"


def row_text(row: Row) -> str:
    """Return one row for people: speed and spread, the ceiling, shares of the peaks, the hash."""
    ceiling = "unknown" if row.ceiling_tok_per_s is None else f"{row.ceiling_tok_per_s:,.0f}"
    spread = f"{min(row.samples):,.1f}-{max(row.samples):,.1f}"
    return (
        f"{row.test:<18}{row.tok_per_s:>10,.1f} tok/s  ({spread})  ceiling {ceiling:>9}  "
        f"mfu {_share(row.mfu):>8}  mbu {_share(row.mbu):>8}  {row.hash}"
    )


def _print_profile(lines: tuple[ProfileLine, ...], out: TextIO) -> None:
    total = sum(line.seconds for line in lines) or 1.0
    for line in lines:
        share = 100 * line.seconds / total
        print(f"    {line.label:<24}{share:6.1f} %  {1e3 * line.seconds:10.2f} ms", file=out)


@dataclass(frozen=True, slots=True, kw_only=True)
class Trials:
    """The tests of one run: each depth with each length and batch. Units: tokens."""

    prompts: tuple[int, ...] = ()
    generated: tuple[int, ...] = ()
    depths: tuple[int, ...]
    batches: tuple[int, ...]
    repeat: int
    no_kv_cache: bool

    @property
    def longest(self) -> int:
        """Most tokens of one sequence."""
        return max(self.depths) + max((*self.prompts, *self.generated)) + 1

    def run(self, bench: LocalBench) -> Iterator[Row]:
        """Measure every test in turn."""
        for depth in self.depths:
            for n in self.prompts:
                yield bench.prefill(n, depth=depth, repeat=self.repeat)
            for n in self.generated:
                for batch in self.batches:
                    yield bench.decode(n, depth=depth, batch=batch, repeat=self.repeat)
                if self.no_kv_cache:
                    yield bench.decode_without_cache(n, depth=depth, repeat=self.repeat)


def make_trials(**fields: Any) -> Trials:
    """Return the tests of the flags; the default lengths where they name none.

    Raises:
        ConfigError: decoding without a cache, and nothing to decode.
    """
    if "prompts" not in fields and "generated" not in fields:
        fields |= {"prompts": (DEFAULT_PROMPT,), "generated": (DEFAULT_GENERATED,)}
    trials = Trials(**fields)
    if trials.no_kv_cache and not trials.generated:
        raise ConfigError("--no-kv-cache needs --gen", remedy="Add --gen 32.")
    return trials


_trial = partial(Option, settings=Settings("trials", make_trials))
OPTIONS = (
    MODEL,
    _trial(
        "prompt",
        help="Prompt lengths to prefill, such as 512,2048.",
        parse=partial(parse_ints, param="--prompt"),
        field="prompts",
    ),
    _trial(
        "gen",
        help="Numbers of tokens to decode, such as 128.",
        parse=partial(parse_ints, param="--gen"),
        field="generated",
    ),
    _trial(
        "depth",
        help="Tokens already in the cache, such as 0,2048.",
        default="0",
        parse=partial(parse_ints, param="--depth", low=0),
        field="depths",
    ),
    _trial(
        "batch",
        help="Requests decoded together, such as 1,8,32.",
        default="1",
        parse=partial(parse_ints, param="--batch", high=1024),
        field="batches",
    ),
    _trial("repeat", int, "Runs a row.", 5, low=1, high=1000),
    _trial("no_kv_cache", bool, "Also decode by recomputing everything.", False),
    Option("profile", bool, "Show where the time goes, op by op.", False),
    Option("calibrate", bool, "Measure this machine's peaks anew first.", False),
    Option("url", help="Load this OpenAI-compatible endpoint instead; MODEL its name."),
    *bench_url.LOAD_OPTIONS,
    *MEASURED_ENGINE,
    JSON,
)


def command(
    model: str,
    *,
    trials: Trials,
    profile: bool,
    calibrate: bool,
    url: str | None,
    load: bench_url.LoadFlags,
    config: EngineConfig,
    as_json: bool,
) -> None:
    """Measure prefill (pp) and decode (tg) apart, with seeded prompts and greedy tokens.

    Example: twostroke bench smollm2:135m --prompt 512,2048 --gen 128 --batch 1,8
    """
    if url is not None:
        bench_url.run(
            url,
            model,
            load,
            prompt_words=next(iter(trials.prompts), DEFAULT_PROMPT),
            max_tokens=next(iter(trials.generated), DEFAULT_GENERATED),
            as_json=as_json,
        )
        return
    from twostroke.build import machine_card

    built, bench, profiler = _prepared(model, trials, config, calibrate=calibrate, profile=profile)
    results = _measure(bench, trials, profiler, sys.stderr if as_json else sys.stdout)
    if as_json:
        machine = machine_card(built.backend.profile)
        print(json.dumps({"machine": machine, "model": model, "results": results}))


def _prepared(
    model: str, trials: Trials, config: EngineConfig, *, calibrate: bool, profile: bool
) -> tuple[BuiltEngine, LocalBench, NativeModel | None]:
    """Return an engine, a bench whose cache holds the longest test, and the model to profile.

    Raises:
        ConfigError: a test is longer than the model's context, or the backend has no profile.
    """
    from twostroke.bench.local import LocalBench
    from twostroke.build import build_engine
    from twostroke.model.loaded import load_model

    loaded = load_model(model)
    if trials.longest > loaded.config.context_length:
        raise ConfigError(
            "a test is longer than the model's context",
            value=f"{trials.longest} tokens",
            limit=f"{loaded.config.context_length} tokens",
        )
    num_seqs = max(trials.batches)
    built = build_engine(loaded, replace(config, max_num_seqs=num_seqs), calibrate=calibrate)
    runner = built.new_runner(num_seqs * (trials.longest + BLOCK_SIZE))
    profiler = _profiler(runner) if profile else None
    bench = LocalBench(
        runner,
        vocab_size=loaded.config.vocab_size,
        cost=built.cost,
        profile=built.backend.profile,
        prefill_chunk=config.prefill_chunk,
        after_warm_up=profiler.take_profile if profiler is not None else None,
    )
    return built, bench, profiler


def _measure(
    bench: LocalBench, trials: Trials, profiler: NativeModel | None, out: TextIO
) -> list[dict[str, Any]]:
    """Run the tests, print a row for each, and return the rows as plain data."""
    results = []
    for row in trials.run(bench):
        print(row_text(row), file=out, flush=True)
        result = row.to_dict()
        if profiler is not None:
            lines = profiler.take_profile()
            _print_profile(lines, out)
            result["profile"] = {line.label: line.seconds for line in lines}
        results.append(result)
    return results


def _profiler(runner: ModelRunner) -> NativeModel:
    """Turn the built-in profile on.

    Raises:
        ConfigError: the backend has none.
    """
    from twostroke.backend.native import NativeModel

    if not isinstance(runner.model, NativeModel):
        raise ConfigError("--profile needs the native backend")
    runner.model.profile(True)
    return runner.model
