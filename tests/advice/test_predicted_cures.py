"""Cures by prediction: each saving is the difference of two predictions, in order of seconds."""

from __future__ import annotations

import pytest

from twostroke.advice.predicted_cures import cures_for
from twostroke.advice.workload import Workload
from twostroke.predict.cost import CostModel
from twostroke.predict.kv import kv_format
from twostroke.predict.predictor import Predictor
from twostroke.predict.shape import LayerShape, ModelShape, WeightGroup, WeightSizes
from twostroke.predict.speed import given_speed

LAYER = LayerShape(heads=8, kv_heads=8, key_dim=64, value_dim=64)


def predictor(*, bits: float = 16.0, kv: str = "bf16", flops: float | None = 2e12) -> Predictor:
    """A gigavalue model on a device of 100 GB/s."""
    group = WeightGroup(1e9 * bits / 8, {"int8": 1e9})
    sizes = WeightSizes(total_bytes=group.num_bytes, body=group)
    shape = ModelShape(name="m", layers=(LAYER,) * 16, weights=sizes)
    return Predictor(CostModel(shape, kv_format(kv)), given_speed(100e9, flops))


def found(p: Predictor, **asked: object) -> dict[str, float | None]:
    cures = cures_for(p, Workload(**asked))  # type: ignore[arg-type]
    return {c.key: c.saves_low_s for c in cures}


def test_a_prefill_bound_wait_is_cured_by_less_prompt_first() -> None:
    cures = cures_for(predictor(bits=4.5), Workload(prompt=12_000, output=20))
    assert cures[0].key in ("fewer_chunks", "smaller_weights")
    keys = [c.key for c in cures if c.is_predicted]
    assert keys.index("fewer_chunks") < (
        keys.index("shorter_output") if "shorter_output" in keys else len(keys)
    )


def test_quantising_is_no_cure_where_the_rates_of_prefill_do_not_show_it() -> None:
    prefill_bound = found(predictor(), prompt=12_000, output=2)
    decode_bound = found(predictor(), prompt=30, output=500)
    assert "fewer_bits" not in prefill_bound
    assert decode_bound["fewer_bits"] == pytest.approx(499 * 1e9 * (16 - 4.5) / 8 / 100e9, rel=0.02)
    assert "fewer_bits" not in found(predictor(bits=4.5), prompt=30, output=500)


def test_half_the_new_tokens_save_more_than_half_of_their_arithmetic() -> None:
    p = predictor()
    whole = p.prefill(0, 8000, chunk=512)
    assert whole is not None
    saving = found(p, prompt=8000, output=1)["fewer_chunks"]
    assert saving is not None and whole.value / 2 < saving < whole.value * 3 / 4


def test_a_lost_prefix_costs_exactly_its_prefill() -> None:
    p = predictor()
    cold, warm = p.prefill(0, 4000, chunk=512), p.prefill(3500, 4000, chunk=512)
    assert cold is not None and warm is not None
    saving = found(p, prompt=4000, output=1, lost=3500)["stable_head"]
    assert saving == pytest.approx(cold.value - warm.value)


def test_savings_are_of_the_wait_that_was_measured() -> None:
    asked = {"prompt": 4000, "output": 100}
    plain = found(predictor(), **asked)
    slow = found(predictor(), **asked, prefill_scale=2.0)
    assert slow["shorter_output"] == pytest.approx(plain["shorter_output"])
    assert slow["fewer_chunks"] == pytest.approx(2 * (plain["fewer_chunks"] or 0), rel=0.05)


def test_a_queue_that_dominates_comes_first() -> None:
    cures = cures_for(predictor(), Workload(prompt=100, output=10, queue_s=60.0))
    assert cures[0].key == "less_queue" and cures[0].saves_low_s == 60.0


def test_eight_bit_kv_pays_by_depth_and_not_where_it_is_on() -> None:
    deep = found(predictor(bits=4.5), prompt=30_000, output=300)
    assert "kv_8bit" in deep
    assert "kv_8bit" not in found(predictor(bits=4.5, kv="q8"), prompt=30_000, output=300)
    assert "kv_8bit" not in found(predictor(), prompt=20, output=50)


def test_threads_are_named_where_they_are_not_the_cores() -> None:
    few = found(predictor(), prompt=4000, output=10, threads=1, cores=4)
    assert few["more_threads"] == 0.0
    many = found(predictor(), prompt=4000, output=10, threads=8, cores=4)
    assert many["fewer_threads"] is None
    same = found(predictor(), prompt=4000, output=10, threads=4, cores=4)
    assert not {"more_threads", "fewer_threads"} & same.keys()


def test_every_cure_has_arithmetic_and_a_side_effect() -> None:
    asked = Workload(prompt=9000, output=300, lost=800, queue_s=1.0, has_history=True)
    cures = cures_for(predictor(), asked)
    assert {"stable_head", "fewer_chunks", "trim_history", "shorter_output"} <= {
        c.key for c in cures
    }
    for cure in cures:
        assert cure.basis, cure.key
        assert cure.side_effect or not cure.is_predicted, cure.key
    predicted = [c.saves_low_s for c in cures if c.is_predicted]
    assert predicted == sorted(predicted, reverse=True)


def test_an_unknown_device_gives_no_advice() -> None:
    assert cures_for(predictor(flops=None), Workload(prompt=100, output=10)) == ()
