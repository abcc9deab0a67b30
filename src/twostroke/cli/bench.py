"""twostroke bench: both phases measured apart, each beside its ceiling and a hash of its answer."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

from twostroke.cli import options
from twostroke.errors import ConfigError
from twostroke.step import BLOCK_SIZE

if TYPE_CHECKING:
    from twostroke.bench.local import LocalBench, Row

DEFAULT_PROMPTS = "512"
DEFAULT_GENERATED = "128"


def _share(value: float | None) -> str:
    return "unknown" if value is None else f"{100 * value:.1f} %"


def _print_row(row: Row) -> None:
    ceiling = "unknown" if row.ceiling_tok_per_s is None else f"{row.ceiling_tok_per_s:,.0f}"
    spread = f"{min(row.samples):,.1f}-{max(row.samples):,.1f}"
    print(
        f"{row.test:<18}{row.tok_per_s:>10,.1f} tok/s  ({spread})  ceiling {ceiling:>9}  "
        f"mfu {_share(row.mfu):>8}  mbu {_share(row.mbu):>8}  {row.hash}",
        file=sys.stderr,
    )


def _rows(
    bench: LocalBench,
    *,
    prompts: tuple[int, ...],
    generated: tuple[int, ...],
    depths: tuple[int, ...],
    batches: tuple[int, ...],
    repeat: int,
    kv_cache: bool,
) -> list[Row]:
    rows = []

    def add(row: Row) -> None:
        _print_row(row)
        rows.append(row)

    for depth in depths:
        for n in prompts:
            add(bench.prefill(n, depth=depth, repeat=repeat))
        for n in generated:
            for batch in batches:
                add(bench.decode(n, depth=depth, batch=batch, repeat=repeat))
            if not kv_cache:
                add(bench.decode_without_cache(n, depth=depth, repeat=repeat))
    return rows


def command(
    model: options.Model,
    prompt: Annotated[
        str | None, typer.Option("--prompt", help="Prompt lengths to prefill, such as 512,2048.")
    ] = None,
    gen: Annotated[
        str | None, typer.Option("--gen", help="Numbers of tokens to decode, such as 128.")
    ] = None,
    depth: Annotated[
        str, typer.Option("--depth", help="Tokens already in the cache, such as 0,2048.")
    ] = "0",
    batch: Annotated[
        str, typer.Option("--batch", help="Requests decoded together, such as 1,8,32.")
    ] = "1",
    repeat: Annotated[int, typer.Option("--repeat", min=1, max=1000, help="Runs a row.")] = 5,
    no_kv_cache: Annotated[
        bool, typer.Option("--no-kv-cache", help="Also decode by recomputing everything.")
    ] = False,
    calibrate: Annotated[
        bool, typer.Option("--calibrate", help="Measure this machine's peaks anew first.")
    ] = False,
    threads: options.Threads = None,
    prefill_chunk: options.PrefillChunk = 512,
    kv_type: options.KvTypeName = "bf16",
    backend: options.Backend = "auto",
    kernels: options.Kernels = None,
    as_json: options.Json = False,
) -> None:
    """Measure prefill (pp) and decode (tg) apart, with seeded prompts and greedy tokens.

    Example: twostroke bench smollm2:135m --prompt 512,2048 --gen 128 --batch 1,8
    """
    if prompt is None and gen is None:
        prompt, gen = DEFAULT_PROMPTS, DEFAULT_GENERATED
    prompts = options.parse_ints(prompt, param="--prompt") if prompt else ()
    generated = options.parse_ints(gen, param="--gen") if gen else ()
    depths = options.parse_ints(depth, param="--depth", low=0)
    batches = options.parse_ints(batch, param="--batch", high=1024)
    if no_kv_cache and not generated:
        raise ConfigError("--no-kv-cache needs --gen", remedy="Add --gen 32.")
    longest = max(depths) + max((*prompts, *generated))
    config = options.engine_config(
        threads=threads,
        kv_type=kv_type,
        backend=backend,
        kernels=kernels,
        prefill_chunk=prefill_chunk,
        max_num_seqs=max(batches),
    )
    from twostroke.bench.local import LocalBench
    from twostroke.build import build_engine, load_model, machine_card

    loaded = load_model(model)
    built = build_engine(loaded, config, calibrate=calibrate)
    runner = built.new_runner(max(batches) * (longest + BLOCK_SIZE))
    local = LocalBench(
        runner,
        vocab_size=loaded.config.vocab_size,
        cost=built.cost,
        profile=built.machine.profile,
        prefill_chunk=prefill_chunk,
    )
    rows = _rows(
        local,
        prompts=prompts,
        generated=generated,
        depths=depths,
        batches=batches,
        repeat=repeat,
        kv_cache=not no_kv_cache,
    )
    if as_json:
        document: dict[str, Any] = {
            "machine": machine_card(built.machine.profile),
            "model": model,
            "results": [row.to_dict() for row in rows],
        }
        print(json.dumps(document))
