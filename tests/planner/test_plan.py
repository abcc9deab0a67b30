"""Whole plans: the JSON keys, the alternatives, the chart, and this machine's profile."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from tests.predict.test_hf_shape import LLAMA_8B
from twostroke.errors import ConfigError, ModelNotFound
from twostroke.planner.ask import make_ask
from twostroke.planner.memory import Rules
from twostroke.planner.memory_check import Setup
from twostroke.planner.models import ShapeFlags, find_model, shape_of_flags
from twostroke.planner.plan import Plan, make_plan
from twostroke.planner.svg import plan_svg
from twostroke.planner.target import make_target, stored_profile, this_machine
from twostroke.predict.devices import DEVICES
from twostroke.predict.hardware import MachineProfile
from twostroke.predict.hf_shape import shape_of_hf_config
from twostroke.predict.kv import kv_format
from twostroke.predict.shape import requantised

KEYS = {
    "weights_bytes", "kv_bytes", "kv_bytes_per_token", "state_bytes", "compute_bytes",
    "total_bytes", "fits", "missing", "max_context", "max_concurrency", "predicted",
}  # fmt: skip
PREDICTED = {"ttft_s", "tpot_s", "total_s", "prefill_share", "decode_share"}
CHOICES = (kv_format("f16"), kv_format("q8_0"))


def plan(device: str = "h100", **ask: object) -> Plan:
    shape = shape_of_hf_config(LLAMA_8B, name="llama")
    setup = Setup(kv=kv_format("f16"))
    return make_plan(
        shape,
        setup,
        make_target(device),
        make_ask(**ask),
        kv_choices=CHOICES,  # type: ignore[arg-type]
    )


def test_the_document_has_the_promised_keys_and_adds_up() -> None:
    found = json.loads(json.dumps(plan(context=8192, concurrency=4).to_dict()))
    assert set(found) >= KEYS and set(found["predicted"]) >= PREDICTED
    parts = ("weights_bytes", "kv_bytes", "state_bytes", "compute_bytes")
    assert found["total_bytes"] == sum(found[part] for part in parts)
    assert found["kv_bytes_per_token"] == 131_072
    assert found["kv_bytes"] == 4 * 8192 * 131_072
    assert found["fits"] == "yes" and found["missing"] == []
    assert found["device"]["speed"]["source"] == "datasheet"


def test_the_largest_context_and_concurrency_are_the_last_that_fit() -> None:
    found = plan("4090", context=8192)
    most = found.max_concurrency
    assert most is not None and plan("4090", context=8192, concurrency=most).memory.fits == "yes"
    assert plan("4090", context=8192, concurrency=most + 1).memory.fits != "yes"
    context = found.max_context
    assert context is not None and plan("4090", context=context).memory.fits == "yes"


def test_fewer_bits_decode_faster_and_prefill_alike_on_a_gpu() -> None:
    rows = {(r["weights"], r["kv_type"]): r for r in plan(context=8192).table}
    assert len(rows) == 12
    plain, small = rows["as stored", "f16"], rows["Q4_K_M", "f16"]
    assert small["tpot_s"] < 0.5 * plain["tpot_s"]
    assert small["ttft_s"] == pytest.approx(plain["ttft_s"], rel=0.05)
    assert rows["as stored", "q8_0"]["kv_bytes"] / plain["kv_bytes"] == 34 / 64
    whole, four = rows["F16", "f16"]["weights_bytes"], small["weights_bytes"]
    assert whole == plain["weights_bytes"] and four / whole == pytest.approx(4.89 / 16)


def test_requantising_keeps_the_parameters() -> None:
    shape = shape_of_hf_config(LLAMA_8B)
    assert requantised(shape, 8.5).num_values == shape.num_values


def test_a_plan_with_targets_asks_the_scheduler() -> None:
    found = plan(prompt=512, output=32, target_ttft_s=1.0).capacity
    assert found is not None and found.concurrency and found.limit == "target-ttft"


def test_a_row_without_arithmetic_predicts_decode_alone() -> None:
    found = plan("ddr5-5600x2", context=4096)
    assert found.prediction is not None and found.prediction.tpot is not None
    assert found.prediction.ttft is None
    assert "arithmetic rate (flops) of the device" in found.to_dict()["predicted_missing"]
    assert found.memory.fits == "unknown" and "memory of the device" in found.memory.missing


def test_the_chart_is_one_svg_that_parses_and_marks_both_phases() -> None:
    root = ET.fromstring(plan_svg(plan(context=8192)))
    texts = [e.text for e in root.iter() if e.tag.endswith("text")]
    assert {"roofline", "wait", "decode throughput", "decode", "prefill of 1,000"} <= set(texts)
    for element in root.iter():
        for value in element.attrib.values():
            assert "nan" not in value and "inf" not in value
    with pytest.raises(ConfigError, match="nothing to plot"):
        plan_svg(plan("3060", context=4096))


def test_a_hostile_name_stays_text_in_the_chart() -> None:
    shape = shape_of_hf_config(LLAMA_8B, name="<script>alert(1)</script>")
    made = make_plan(shape, Setup(kv=kv_format("f16")), make_target("h100"), make_ask())
    assert "<script>" not in plan_svg(made)


@pytest.mark.parametrize(
    "ask",
    [
        {"context": 100, "prompt": 90, "output": 20},
        {"concurrency": 0},
        {"prompt": 0},
        {"prompt": 10, "cached": 10},
        {"target_ttft_s": 0.0},
        {"target_tpot_s": float("nan")},
    ],
)
def test_an_impossible_question_is_refused(ask: dict[str, float]) -> None:
    with pytest.raises(ConfigError):
        make_ask(**ask)  # type: ignore[arg-type]


def test_the_context_left_out_is_the_requests_own() -> None:
    assert make_ask().context == 1300
    assert make_ask(prompt=5000, output=100).context == 5100
    small = make_ask(context=400)
    assert (small.prompt, small.output) == (300, 100)


def test_a_shape_from_flags_says_what_it_lacks() -> None:
    whole = ShapeFlags(layers=32, kv_heads=8, head_dim=128, params=8.03e9, bits=16)
    shape = shape_of_flags(whole)
    assert shape.missing == () and shape.weights is not None
    assert shape.weights.total_bytes == 16.06e9
    lacking = shape_of_flags(ShapeFlags(layers=32))
    assert "--kv-heads" in lacking.missing and lacking.layers is None
    windowed = shape_of_flags(
        ShapeFlags(layers=6, kv_heads=1, head_dim=64, window=512, full_every=6)
    )
    assert windowed.layers is not None
    assert [layer.window for layer in windowed.layers] == [512] * 5 + [0]
    with pytest.raises(ConfigError, match="--layers"):
        shape_of_flags(ShapeFlags(layers=10**6, kv_heads=8, head_dim=128))


def test_config_files_are_bounded_and_must_be_objects(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(LLAMA_8B))
    assert find_model(str(path)).shape.layers is not None
    for text in ("[]", "{", "[" * 100_000):
        path.write_text(text)
        with pytest.raises(Exception, match="no JSON"):
            find_model(str(path))
    with pytest.raises(ModelNotFound):
        find_model(str(tmp_path / "none.json"))


PROFILE = MachineProfile(
    cpu="Some CPU",
    kernel_set="avx2",
    threads=2,
    int8_ops_per_s=8e11,
    bf16_flops_per_s=4e11,
    fp32_flops_per_s=2e11,
    bandwidth=((1 << 20, 1e11), (1 << 30, 3e10)),
)


def test_a_stored_profile_is_found_by_cpu_and_threads(tmp_path: Path) -> None:
    one = {**PROFILE.to_dict(), "threads": 1}
    (tmp_path / "a.json").write_text(json.dumps(PROFILE.to_dict()))
    (tmp_path / "b.json").write_text(json.dumps(one))
    (tmp_path / "c.json").write_text("{broken")
    (tmp_path / "d.json").write_text("[]")
    assert stored_profile(tmp_path, "Some CPU") == PROFILE
    found = stored_profile(tmp_path, "Some CPU", threads=1)
    assert found is not None and found.threads == 1
    assert stored_profile(tmp_path, "Other CPU") is None
    assert stored_profile(tmp_path / "none", "Some CPU") is None


def test_this_machine_without_a_profile_has_no_speed() -> None:
    unknown = this_machine(None, 8e9)
    assert unknown.speed.missing and unknown.memory_bytes == 8e9
    known = this_machine(PROFILE, 8e9)
    assert known.speed.missing == () and known.to_dict()["speed"]["source"] == "assumed"


def test_numbers_given_win_over_the_table() -> None:
    target = make_target("4090", bandwidth=5e11, memory_bytes=8e9)
    assert target.speed.bandwidth == 5e11 and target.speed.source.value == "given"
    assert target.memory_bytes == 8e9
    with pytest.raises(ConfigError, match="not in the table"):
        make_target("abacus")
    with pytest.raises(ConfigError, match="num-devices"):
        make_target("4090", num_devices=0)


def test_the_page_lists_every_device_and_kv_rule() -> None:
    text = (Path(__file__).parents[2] / "docs" / "plan.md").read_text(encoding="utf-8")
    listed = text.partition("Devices of the table: ")[2].partition(".\n")[0]
    assert [name.strip() for name in listed.split(",")] == list(DEVICES)
    assert all(f"`{rules.value}`" in text for rules in Rules)
    assert all(f"`{key}`" in text for key in KEYS | PREDICTED)
