"""Records leave as JSON lines and as Prometheus text that a plain parser reads back."""

from __future__ import annotations

import json
import re

from tests.simulation import Simulation, tokens
from twostroke.meters.export import Totals, json_line

SAMPLE = re.compile(r'^(twostroke_[a-z0-9_]+)(?:\{([a-z]+)="([^"]+)"\})? (\S+)$')


def parse(text: str) -> dict[tuple[str, str | None], float]:
    samples, types = {}, {}
    for line in text.splitlines():
        if line.startswith("# TYPE "):
            _, _, name, kind = line.split(" ")
            assert name not in types, "a type is declared once"
            types[name] = kind
            continue
        name, _, value, number = SAMPLE.match(line).groups()
        assert any(name.startswith(t) for t in types)
        samples[name, value] = float(number)
    return samples


def served() -> tuple[Simulation, Totals]:
    sim = Simulation()
    totals = Totals()
    sim.meter._on_record = totals.add
    for n in (40, 40, 90):
        sim.answer(tokens(n), max_tokens=5)
    sim.abort(sim.add(tokens(10, seed=5)).id)
    return sim, totals


def test_totals_are_sums_of_the_records() -> None:
    sim, totals = served()
    records = [f.record for f in sim.final.values()]
    s = parse(totals.prometheus({"num_requests_running": 2, "kv_cache_usage_ratio": 0.5}))
    assert s["twostroke_requests_total", "length"] == 3
    assert s["twostroke_requests_total", "cancelled"] == 1
    assert s["twostroke_prompt_tokens_total", "cached"] == 39 + 40
    assert s["twostroke_prompt_tokens_total", "computed"] == 40 + 1 + 50
    assert s["twostroke_generation_tokens_total", None] == 15
    assert s["twostroke_cache_misses_total", "first_request"] == 1
    decode_s = sum(r.phases.decode_s for r in records)
    assert abs(s["twostroke_phase_seconds_total", "decode"] - decode_s) < 1e-9
    assert s["twostroke_num_requests_running", None] == 2
    assert s["twostroke_kv_cache_usage_ratio", None] == 0.5


def test_histograms_are_cumulative_and_leave_the_unknown_out() -> None:
    _, totals = served()
    s = parse(totals.prometheus({}))
    name = "twostroke_time_to_first_token_seconds"
    buckets = [v for (n, _), v in s.items() if n == f"{name}_bucket"]
    assert buckets == sorted(buckets)
    assert buckets[-1] == s[f"{name}_count", None] == 3, "the cancelled one has no first token"
    assert s["twostroke_e2e_request_latency_seconds_count", None] == 4


def test_a_record_is_one_line_of_json() -> None:
    sim, _ = served()
    line = json_line(sim.final["r1"].record)
    assert "\n" not in line
    data = json.loads(line)
    assert data["prompt"] == {"total": 40, "cached": 0, "new": 40}
    assert data["decode_mbu"] is None
