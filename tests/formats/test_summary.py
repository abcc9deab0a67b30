"""Facts of a GGUF header for `show`; unknown is None."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest

from twostroke.formats.gguf import open_gguf
from twostroke.formats.summary import GGUFSummary, TypeShare, summarize


def summary_of(path: Path, architecture: str = "llama", **numbers: object) -> GGUFSummary:
    writer = gguf.GGUFWriter(path, architecture)
    for key, value in numbers.items():
        name = f"{architecture}.{key.replace('__', '.')}"
        if isinstance(value, list):
            writer.add_array(name, value)
        elif isinstance(value, str):
            writer.add_string(name, value)
        else:
            writer.add_uint32(name, value)  # type: ignore[arg-type]
    writer.add_tensor("w", np.zeros((2, 64), np.float32))
    writer.add_tensor("b", np.zeros(64, np.float16))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with open_gguf(path) as model:
        return summarize(model)


SHAPE = {"block_count": 32, "embedding_length": 4096, "attention__head_count": 32}


def test_kv_values_of_llama_3_1_8b(tmp_path: Path) -> None:
    summary = summary_of(tmp_path / "m.gguf", **SHAPE, attention__head_count_kv=8)
    assert summary.kv_values_per_token == 65_536  # 128 KiB a token in bf16 (docs/formulas.md)
    assert summary.num_kv_heads == (8,)
    assert (summary.key_length, summary.value_length) == (128, 128)


def test_heads_may_differ_per_layer_and_k_from_v(tmp_path: Path) -> None:
    summary = summary_of(
        tmp_path / "m.gguf",
        block_count=3,
        attention__head_count=4,
        attention__head_count_kv=[1, 2, 4],
        attention__key_length=64,
        attention__value_length=32,
    )
    assert summary.num_kv_heads == (1, 2, 4)
    assert summary.kv_values_per_token == 7 * (64 + 32)


def test_layers_that_share_k_and_v_are_not_counted(tmp_path: Path) -> None:
    summary = summary_of(tmp_path / "m.gguf", **SHAPE, attention__shared_kv_layers=30)
    assert summary.kv_values_per_token == 2 * 32 * 256


@pytest.mark.parametrize("key", ["attention__kv_lora_rank", "ssm__state_size"])
def test_another_kind_of_state_has_no_figure_a_token(tmp_path: Path, key: str) -> None:
    assert summary_of(tmp_path / "m.gguf", **SHAPE, **{key: 512}).kv_values_per_token is None


@pytest.mark.parametrize(
    "wrong",
    [
        {"block_count": "many"},
        {"block_count": 2**31},
        {"block_count": 0},
        {"attention__head_count": 0},
        {"attention__head_count_kv": [1, 2]},
        {"attention__key_length": "wide", "embedding_length": "wide"},
    ],
)
def test_nonsense_counts_as_unknown(tmp_path: Path, wrong: dict[str, object]) -> None:
    summary = summary_of(tmp_path / "m.gguf", **{**SHAPE, **wrong})
    if "attention__head_count_kv" in wrong:
        assert summary.num_kv_heads == (32,)  # falls back to the query heads
    else:
        assert summary.kv_values_per_token is None


def test_types_are_counted_with_their_bytes(tmp_path: Path) -> None:
    summary = summary_of(tmp_path / "m.gguf")
    assert summary.types == (TypeShare("F32", 1, 512), TypeShare("F16", 1, 128))
    assert summary.num_parameters == 192
    assert summary.file_bytes == (tmp_path / "m.gguf").stat().st_size
    assert summary.context_length is None
    assert not summary.has_chat_template
