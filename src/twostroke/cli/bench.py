"""twostroke bench: both phases measured apart, each beside its ceiling and a hash of its answer."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, TextIO

from twostroke.cli import bench_url
from twostroke.cli.engine_options import parse_ints
from twostroke.cli.options import JSON, MEASURED_ENGINE, MODEL
from twostroke.cli.table import Option
from twostroke.config import EngineConfig
from twostroke.errors import ConfigError
from twostroke.step import BLOCK_SIZE

if TYPE_CHECKING:
    from twostroke.backend.native import NativeModel, ProfileLine
    from twostroke.backend.runner import ModelRunner
    from twostroke.bench.local import LocalBench, Row

DEFAULT_PROMPTS = "512"
DEFAULT_GENERATED = "128"


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


def _tests(
    bench: LocalBench,
    *,
    prompts: tuple[int, ...],
    generated: tuple[int, ...],
    depths: tuple[int, ...],
    batches: tuple[int, ...],
    repeat: int,
    kv_cache: bool,
) -> Iterator[Row]:
    for depth in depths:
        for n in prompts:
            yield bench.prefill(n, depth=depth, repeat=repeat)
        for n in generated:
            for batch in batches:
                yield bench.decode(n, depth=depth, batch=batch, repeat=repeat)
            if not kv_cache:
                yield bench.decode_without_cache(n, depth=depth, repeat=repeat)


OPTIONS = (
    MODEL,
    Option("prompt", help="Prompt lengths to prefill, such as 512,2048."),
    Option("gen", help="Numbers of tokens to decode, such as 128."),
    Option("depth", help="Tokens already in the cache, such as 0,2048.", default="0"),
    Option("batch", help="Requests decoded together, such as 1,8,32.", default="1"),
    Option("repeat", int, "Runs a row.", 5, low=1, high=1000),
    Option("no_kv_cache", bool, "Also decode by recomputing everything.", False),
    Option("profile", bool, "Show where the time goes, op by op.", False),
    Option("calibrate", bool, "Measure this machine's peaks anew first.", False),
    Option("url", help="Load this OpenAI-compatible endpoint instead; MODEL its name."),
    Option("requests", int, "With --url: how many.", 32, low=1),
    Option("rate", float, "With --url: requests a second, open loop.", low=0.001),
    Option("concurrency", int, "With --url: clients.", 1, low=1, high=1024),
    Option("goodput", help="With --url: goals, such as ttft:0.5,tpot:0.05."),
    *MEASURED_ENGINE,
    JSON,
)


def command(
    model: str,
    *,
    prompt: str | None,
    gen: str | None,
    depth: str,
    batch: str,
    repeat: int,
    no_kv_cache: bool,
    profile: bool,
    calibrate: bool,
    url: str | None,
    requests: int,
    rate: float | None,
    concurrency: int,
    goodput: str | None,
    config: EngineConfig,
    as_json: bool,
) -> None:
    """Measure prefill (pp) and decode (tg) apart, with seeded prompts and greedy tokens.

    Example: twostroke bench smollm2:135m --prompt 512,2048 --gen 128 --batch 1,8
    """
    if prompt is None and gen is None:
        prompt, gen = DEFAULT_PROMPTS, DEFAULT_GENERATED
    prompts = parse_ints(prompt, param="--prompt") if prompt else ()
    generated = parse_ints(gen, param="--gen") if gen else ()
    if url is not None:
        bench_url.run(
            url,
            model,
            requests=requests,
            rate=rate,
            concurrency=concurrency,
            prompt_words=prompts[0] if prompts else int(DEFAULT_PROMPTS),
            max_tokens=generated[0] if generated else int(DEFAULT_GENERATED),
            goodput=goodput,
            as_json=as_json,
        )
        return
    depths = parse_ints(depth, param="--depth", low=0)
    batches = parse_ints(batch, param="--batch", high=1024)
    if no_kv_cache and not generated:
        raise ConfigError("--no-kv-cache needs --gen", remedy="Add --gen 32.")
    config = replace(config, max_num_seqs=max(batches))
    from twostroke.bench.local import LocalBench
    from twostroke.build import build_engine, machine_card
    from twostroke.model.loaded import load_model

    loaded = load_model(model)
    longest = max(depths) + max((*prompts, *generated)) + 1
    if longest > loaded.config.context_length:
        raise ConfigError(
            "a test is longer than the model's context",
            value=f"{longest} tokens",
            limit=f"{loaded.config.context_length} tokens",
        )
    built = build_engine(loaded, config, calibrate=calibrate)
    runner = built.new_runner(max(batches) * (longest + BLOCK_SIZE))
    profiler = _profiler(runner) if profile else None
    local = LocalBench(
        runner,
        vocab_size=loaded.config.vocab_size,
        cost=built.cost,
        profile=built.backend.profile,
        prefill_chunk=config.prefill_chunk,
        after_warm_up=profiler.take_profile if profiler is not None else None,
    )
    out = sys.stderr if as_json else sys.stdout
    results = []
    for row in _tests(
        local,
        prompts=prompts,
        generated=generated,
        depths=depths,
        batches=batches,
        repeat=repeat,
        kv_cache=not no_kv_cache,
    ):
        print(row_text(row), file=out, flush=True)
        result = row.to_dict()
        if profiler is not None:
            lines = profiler.take_profile()
            _print_profile(lines, out)
            result["profile"] = {line.label: line.seconds for line in lines}
        results.append(result)
    if as_json:
        machine = machine_card(built.backend.profile)
        print(json.dumps({"machine": machine, "model": model, "results": results}))


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
