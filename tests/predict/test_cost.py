"""Operations and bytes of a slice, against numbers worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest

from twostroke.config import KvType
from twostroke.formats.ggml_types import GGMLType, row_bytes
from twostroke.model.config import ModelConfig, RopeConfig
from twostroke.model.weights import LayerWeights, ModelWeights, Weight
from twostroke.predict.cost import CostModel, Span, Work, visible_keys
from twostroke.predict.hardware import MachineProfile
from twostroke.predict.kv import KvFormat
from twostroke.predict.shape import shape_of_model
from twostroke.step import Phase, Slice, StepPlan

E_, H, K, D, F, V, L = 64, 4, 2, 16, 128, 320, 3


def weight(name: str, type_: GGMLType, *shape: int) -> Weight:
    rows = int(np.prod(shape[:-1]))
    return Weight(name, type_, shape, np.zeros(rows * row_bytes(type_, shape[-1]), np.uint8))


def model(type_: GGMLType) -> tuple[ModelConfig, ModelWeights]:
    config = ModelConfig(
        family="llama", name="tiny", num_layers=L, hidden_size=E_, intermediate_size=F,
        num_heads=H, num_kv_heads=K, head_dim=D, vocab_size=V, context_length=512, norm_eps=1e-5,
        rope=RopeConfig(base=1e4, pairs=D // 2, interleaved=True), attention_scale=0.25,
    )  # fmt: skip

    def layer(i: int) -> LayerWeights:
        norm = weight(f"{i}.norm", GGMLType.F32, E_)
        shapes = {
            "q": (H * D, E_), "k": (K * D, E_), "v": (K * D, E_), "o": (E_, H * D),
            "gate": (F, E_), "up": (F, E_), "down": (E_, F),
        }  # fmt: skip
        matrices = {key: weight(f"{i}.{key}", type_, *shape) for key, shape in shapes.items()}
        absent = ("q_bias", "k_bias", "v_bias", "q_norm", "k_norm", "post_attn_norm")
        return LayerWeights(
            attn_norm=norm, ffn_norm=norm, post_ffn_norm=None,
            **matrices, **dict.fromkeys(absent),
        )  # fmt: skip

    head = weight("embd", GGMLType.Q8_0, V, E_)
    norm = weight("norm", GGMLType.F32, E_)
    layers = tuple(layer(i) for i in range(L))
    return config, ModelWeights(token_embd=head, layers=layers, output_norm=norm, output=head)


def small(type_: GGMLType, kv_type: KvType) -> CostModel:
    return CostModel(shape_of_model(*model(type_)), KvFormat(kv_type.value))


BODY = L * (H * D * E_ + 2 * K * D * E_ + E_ * H * D + 3 * F * E_)


@pytest.mark.parametrize("window", [0, 1, 3, 8, 100])
@pytest.mark.parametrize(("start", "end"), [(0, 1), (0, 10), (5, 9), (7, 8), (20, 40)])
def test_visible_keys_is_the_sum_over_tokens(start: int, end: int, window: int) -> None:
    direct = sum(min(p + 1, window) if window else p + 1 for p in range(start, end))
    assert visible_keys(start, end, window) == direct


def test_a_decode_step_reads_all_weights_once_and_the_whole_context() -> None:
    cost = small(GGMLType.Q4_0, KvType.BF16)
    decode = tuple(Slice(str(i), Phase.DECODE, (1,), 99, (), sample=None) for i in range(2))
    work = cost.step_work(StepPlan(decode=decode)).total
    assert work.weight_bytes == BODY * 4.5 / 8  # Q4_0; no logits, no output matrix
    assert work.kv_bytes == 2 * 100 * L * K * D * 2 * 2
    assert work.int8_ops == 2 * 2 * BODY
    assert work.bf16_flops == 2 * 4 * H * D * 100 * L


def test_the_output_matrix_counts_only_for_rows_whose_logits_are_wanted() -> None:
    cost = small(GGMLType.Q4_0, KvType.BF16)
    wanted = cost.spans_work((Span(0, 10, 1),)).total
    without = cost.spans_work((Span(0, 10, 0),)).total
    assert wanted.int8_ops - without.int8_ops == 2 * V * E_
    assert wanted.weight_bytes - without.weight_bytes == V * E_ * 8.5 / 8


@pytest.mark.parametrize(
    ("kv_type", "unit"),
    [(KvType.BF16, "bf16_flops"), (KvType.F16, "fp32_flops"), (KvType.Q8, "int8_ops")],
)
def test_attention_counts_for_the_unit_of_the_kv_type(kv_type: KvType, unit: str) -> None:
    cost = small(GGMLType.BF16, kv_type)
    short, long = (cost.spans_work((Span(at, at + 1),)).total for at in (0, 100))
    assert getattr(long, unit) - getattr(short, unit) == 4 * H * D * 100 * L


def test_16_bit_weights_count_for_their_own_units() -> None:
    one = (Span(0, 1),)
    assert small(GGMLType.BF16, KvType.F16).spans_work(one).total.bf16_flops
    assert small(GGMLType.F16, KvType.BF16).spans_work(one).total.fp32_flops


def profile() -> MachineProfile:
    return MachineProfile(
        cpu="x", kernel_set="scalar", threads=1, int8_ops_per_s=800e9, bf16_flops_per_s=400e9,
        fp32_flops_per_s=200e9, bandwidth=((1 << 20, 200e9), (1 << 30, 400e9)),
    )  # fmt: skip


def test_8_gb_at_400_gb_per_s_is_50_tokens_per_s() -> None:
    assert 1 / profile().memory_s(Work(weight_bytes=8e9)) == pytest.approx(50)


def test_bandwidth_is_interpolated_between_working_sets() -> None:
    p = profile()
    assert p.bandwidth_at(1) == 200e9
    assert p.bandwidth_at(1 << 25) == pytest.approx(300e9)
    assert p.bandwidth_at(1 << 40) == 400e9


def test_arithmetic_and_reading_are_told_apart() -> None:
    p = profile()
    assert p.arithmetic_s(Work(int8_ops=800e9, weight_bytes=1)) == pytest.approx(1.0)
    assert p.memory_s(Work(int8_ops=1, weight_bytes=400e9)) == pytest.approx(1.0)


def test_a_profile_survives_json_and_a_broken_one_is_refused() -> None:
    p = profile()
    assert MachineProfile.from_dict(p.to_dict()) == p
    with pytest.raises(ValueError, match="not positive"):
        MachineProfile.from_dict({**p.to_dict(), "int8_ops_per_s": 0.0})
