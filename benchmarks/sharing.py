"""What a shared prompt head saves: with its cache warm, and for requests in flight together.

    python benchmarks/sharing.py MODEL.gguf [--head 2000] [--new 50] [--repeat 5] [--threads 2]

Warm: a head is computed once, then it comes again with other tokens after it; that request's time
to the first token stands beside that of a cold prompt as long as its new part, taken just before.
In flight: `--together` requests with one cold head and different ends arrive at once. Ids are
seeded and differ from round to round, so that nothing else is ever cached. Times are the records'
own (arrival to first token). The last line of stdout is one JSON object.
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path
from typing import Any

from peers.machine import machine_card

from twostroke.bench.local import seeded_prompt
from twostroke.config import EngineConfig
from twostroke.llm import LLM
from twostroke.record import RequestRecord
from twostroke.request import SamplingParams

ONE_TOKEN = SamplingParams(temperature=0.0, max_tokens=1, ignore_eos=True)
WARM_RATIO, WARM_EXTRA_S = 1.5, 0.010
TOGETHER_RATIO = 1.3

Ids = tuple[int, ...]


class Prompts:
    """Ids that were never used before."""

    def __init__(self, vocab_size: int) -> None:
        self._vocab_size = vocab_size
        self._stream = 0

    def fresh(self, num_tokens: int) -> Ids:
        """Return seeded ids of a stream of their own."""
        self._stream += 1
        return seeded_prompt(num_tokens, self._vocab_size, stream=1000 * self._stream)


def records(llm: LLM, prompts: list[Ids]) -> list[RequestRecord]:
    """Run prompts together to their first token."""
    done = [generation.record for generation in llm.generate(prompts, ONE_TOKEN)]
    return [record for record in done if record is not None]


def ttft_s(record: RequestRecord) -> float:
    """Return the time from arrival to the first token."""
    assert record.ttft_any_s is not None
    return record.ttft_any_s


def warm_round(llm: LLM, prompts: Prompts, head_size: int, new_size: int) -> dict[str, Any]:
    """Return the times of a cold short prompt, of the cold head, and of the warm one."""
    (cold,) = records(llm, [prompts.fresh(new_size)])
    head = prompts.fresh(head_size)
    (first,) = records(llm, [head + prompts.fresh(new_size)])
    (warm,) = records(llm, [head + prompts.fresh(new_size)])
    return {
        "cold_s": ttft_s(cold),
        "head_s": ttft_s(first),
        "warm_s": ttft_s(warm),
        "cached": warm.prompt.cached,
        "computed": warm.prompt.new,
        "look_up_s": warm.phases.cache_s,
    }


def together_round(
    llm: LLM, prompts: Prompts, head_size: int, new_size: int, count: int
) -> dict[str, Any]:
    """Return the first-token times of requests that arrive at once with one cold head."""
    head = prompts.fresh(head_size)
    done = records(llm, [head + prompts.fresh(new_size) for _ in range(count)])
    times = sorted(ttft_s(record) for record in done)
    return {
        "ttft_s": times,
        "last_over_first": times[-1] / times[0],
        "computed": sum(record.prompt.new or 0 for record in done),
        "computed_if_shared_once": head_size + count * new_size,
    }


def document(warm: list[dict[str, Any]], together: list[dict[str, Any]]) -> dict[str, Any]:
    """Return medians, all rounds, and whether the figures that are claimed hold."""
    cold_s, warm_s, head_s = (
        statistics.median(r[name] for r in warm) for name in ("cold_s", "warm_s", "head_s")
    )
    ratio = statistics.median(r["last_over_first"] for r in together)
    return {
        "warm": {
            "median_cold_s": cold_s,
            "median_warm_s": warm_s,
            "median_head_cold_s": head_s,
            "warm_over_cold": warm_s / cold_s,
            "limit_s": WARM_RATIO * cold_s + WARM_EXTRA_S,
            "holds": warm_s <= WARM_RATIO * cold_s + WARM_EXTRA_S,
            "rounds": warm,
        },
        "together": {
            "median_last_over_first": ratio,
            "limit": TOGETHER_RATIO,
            "holds": ratio <= TOGETHER_RATIO
            and all(r["computed"] == r["computed_if_shared_once"] for r in together),
            "rounds": together,
        },
    }


def main() -> None:
    """Measure and print one JSON object."""
    parser = argparse.ArgumentParser(description="Shared prompt heads.")
    parser.add_argument("model")
    parser.add_argument("--head", type=int, default=2000)
    parser.add_argument("--new", type=int, default=50)
    parser.add_argument("--together", type=int, default=4)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path, help="append the JSON object to this file")
    arguments = parser.parse_args()
    llm = LLM(arguments.model, EngineConfig(threads=arguments.threads, max_num_seqs=8))
    llm.built.engine.warm_up()
    prompts = Prompts(llm.model.config.vocab_size)
    sizes = arguments.head, arguments.new
    warm_round(llm, prompts, *sizes)  # untimed
    warm = [warm_round(llm, prompts, *sizes) for _ in range(arguments.repeat)]
    together = [
        together_round(llm, prompts, *sizes, arguments.together) for _ in range(arguments.repeat)
    ]
    given = {"model": arguments.model, "head": arguments.head, "new": arguments.new}
    result = {
        "benchmark": "sharing",
        "machine": machine_card(),
        "engine": llm.built.summary,
        **given,
        **document(warm, together),
    }
    if arguments.out is not None:
        with arguments.out.open("a", encoding="utf-8") as file:
            file.write(json.dumps(result) + "\n")
    print(json.dumps(result))


if __name__ == "__main__":
    main()
