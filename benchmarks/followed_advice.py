"""Advice that was followed: its predicted saving beside its measured one. Two pieces of advice.

    python benchmarks/followed_advice.py MODEL.gguf [--threads 2] [--repeat 5]

Clock: a long system prompt begins with the time, so that every request misses the cache from there
on; the advice is to keep the prefix unchanged, and the clock moves behind the question. Chunks:
twenty retrieved chunks in the prompt become five. Each saving is predicted from the measured
request before the change; the measured saving is the difference of the medians of both. The last
line of stdout is JSON.
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path
from typing import Any

from twostroke.advice.explain import explain_record
from twostroke.advice.predicted_cures import cures_for
from twostroke.advice.workload import Workload
from twostroke.config import EngineConfig
from twostroke.llm import LLM
from twostroke.record import RequestRecord
from twostroke.request import SamplingParams

TEXT = (Path(__file__).parent.parent / "tests" / "golden" / "text.txt").read_text(encoding="utf-8")
PARAMS = SamplingParams(temperature=0.0, max_tokens=16, ignore_eos=True)
CHUNK_WORDS = 110


def words(start: int, count: int) -> str:
    every = TEXT.split()
    return " ".join(every[(start + i) % len(every)] for i in range(count))


def ask(llm: LLM, system: str, question: str) -> RequestRecord:
    messages = [{"role": "system", "content": system}, {"role": "user", "content": question}]
    record = llm.chat(messages, PARAMS)[0].record
    assert record is not None
    return record


def wait_s(record: RequestRecord) -> float:
    p = record.phases
    return (p.cache_s or 0.0) + (p.prefill_s or 0.0) + (p.decode_s or 0.0)


def clock(llm: LLM, repeat: int) -> dict[str, Any]:
    rules = words(0, 1100)
    question = "What is the most important of these rules?"
    before = [ask(llm, f"It is 10:31:{i:02d}. {rules}", question) for i in range(repeat + 1)][1:]
    told = []
    for record in before:
        found = explain_record(record, llm.built.predictor.current)
        assert found is not None
        told += [c.saves_low_s for c in found.cures if c.key == "stable_head"]
    after = [ask(llm, rules, f"{question} It is 10:32:{i:02d}.") for i in range(repeat + 1)][1:]
    return outcome("clock", told, before, after)


def chunks(llm: LLM, repeat: int) -> dict[str, Any]:
    predictor = llm.built.predictor.current

    def prompt(count: int, turn: int) -> str:
        first = turn * 7919
        return "\n".join(f"[{i}] {words(first + 131 * i, CHUNK_WORDS)}" for i in range(count))

    question = "Which source answers it?"
    before = [ask(llm, prompt(20, i), question) for i in range(repeat + 1)][1:]
    after = [ask(llm, prompt(5, 100 + i), question) for i in range(repeat + 1)][1:]
    told = []
    for record in before:
        total, cached = record.prompt.total or 0, record.prompt.cached or 0
        drop = round((total - cached) * 15 / 20)
        workload = Workload(prompt=total, output=16, cached=cached, dropped=drop)
        told += [c.saves_low_s for c in cures_for(predictor, workload) if c.key == "fewer_chunks"]
    return outcome("chunks", told, before, after)


def outcome(
    name: str, told: list[Any], before: list[RequestRecord], after: list[RequestRecord]
) -> dict[str, Any]:
    assert len(told) == len(before), "every request before the change was given the advice"
    predicted = statistics.median(told)
    was, now = (statistics.median(wait_s(r) for r in some) for some in (before, after))
    result = {
        "example": name,
        "told_s": predicted,
        "saved_s": was - now,
        "error": predicted / (was - now) - 1,
        "before": {"wait_s": was, "new_tokens": before[-1].prompt.new},
        "after": {"wait_s": now, "new_tokens": after[-1].prompt.new},
    }
    print(
        f"{name}: told {predicted:.3f} s, saved {was - now:.3f} s ({100 * result['error']:+.1f} %)"
    )
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--repeat", type=int, default=5)
    arguments = parser.parse_args()
    llm = LLM(arguments.model, EngineConfig(threads=arguments.threads, kv_memory_bytes=1 << 30))
    results = [clock(llm, arguments.repeat), chunks(llm, arguments.repeat)]
    print(json.dumps(results))


if __name__ == "__main__":
    main()
