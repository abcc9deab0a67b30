"""Memory as planned beside the real allocation of an engine with the same settings.

    python benchmarks/planned_memory.py MODEL.gguf [MODEL.gguf ...] [--context 4096]
        [--concurrency 4]

Planned: `twostroke plan`, whose buffers come from a dry run. Real: the bytes of the arrays of a
built engine: packed weights, KV pool, buffers between ops; and by how much the process grew while
it was built and had run one full context (the tokenizer and touched pages of the file included).
The last line of stdout is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

from twostroke.build import build_engine
from twostroke.cli.plan import as_allocated, planned_model
from twostroke.config import EngineConfig
from twostroke.model.loaded import load_model
from twostroke.planner.ask import make_ask
from twostroke.planner.memory import Rules
from twostroke.planner.memory_check import Setup
from twostroke.planner.models import ShapeFlags
from twostroke.planner.plan import make_plan
from twostroke.planner.target import make_target
from twostroke.predict.kv import kv_format
from twostroke.request import Request, SamplingParams


def resident_bytes() -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1]) * 1024
    return 0


def planned(path: Path, context: int, concurrency: int) -> dict[str, Any]:
    model = planned_model(str(path), ShapeFlags())
    setup = Setup(kv=kv_format("bf16"), rules=Rules.TWOSTROKE)
    shape, setup = as_allocated(path, model.shape, setup, concurrency)
    ask = make_ask(context=context, concurrency=concurrency, prompt=context - 8, output=8)
    target = make_target(None, bandwidth=1e9, flops=1e9, memory_bytes=1e12)
    return make_plan(shape, setup, target, ask).to_dict()


def allocated(path: Path, context: int, concurrency: int) -> dict[str, int]:
    before = resident_bytes()
    model = load_model(str(path))
    wanted = planned(path, context, concurrency)["kv_bytes"]
    config = EngineConfig(kv_memory_bytes=wanted, max_model_len=context)
    built = build_engine(model, config)
    backend = built.engine._runner.model
    named = built.backend.packed_bytes
    matrices = sum(named.values())
    small = sum(w.nbytes for w in model.weights.all() if w.name not in named)
    prompt = tuple(i % 1000 + 3 for i in range(context - 8))
    built.engine.add(Request(
        id="full", prompt_token_ids=prompt, params=SamplingParams(temperature=0.0, max_tokens=4),
        seed=0, end_token_ids=frozenset(), arrival_s=time.monotonic(),
    ))  # fmt: skip
    while built.engine.has_work:
        built.engine.step()
    return {
        "weights_bytes": matrices + small,
        "kv_bytes": backend.kv_bytes,
        "compute_bytes": backend.arena_bytes,
        "grown_bytes": resident_bytes() - before,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="+", type=Path)
    parser.add_argument("--context", type=int, default=4096)
    parser.add_argument("--concurrency", type=int, default=4)
    arguments = parser.parse_args()
    results = []
    for path in arguments.models:
        plan = planned(path, arguments.context, arguments.concurrency)
        real = allocated(path, arguments.context, arguments.concurrency)
        row: dict[str, Any] = {"model": path.stem, "grown_bytes": real.pop("grown_bytes")}
        for name, value in real.items():
            row[name] = {"planned": plan[name], "real": value, "error": plan[name] / value - 1}
            print(f"{path.stem:<40}{name:<16}{plan[name]:>14,} planned {value:>14,} real "
                  f"{100 * row[name]['error']:+.2f} %")  # fmt: skip
        total = sum(real.values())
        error = plan["total_bytes"] / total - 1
        row["total"] = {"planned": plan["total_bytes"], "real": total, "error": error}
        print(f"{path.stem:<40}{'total':<16}{plan['total_bytes']:>14,} planned {total:>14,} real "
              f"{100 * error:+.2f} %; the process grew by {row['grown_bytes']:,}")  # fmt: skip
        results.append(row)
    print(json.dumps(results))


if __name__ == "__main__":
    main()
