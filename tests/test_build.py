"""The composition root: what it refuses before anything is loaded."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.tiny_models import write_tiny
from twostroke import build
from twostroke.config import EngineConfig, KvType
from twostroke.errors import CapacityError, CorruptCheckpoint, UnsupportedModel
from twostroke.model import loaded
from twostroke.model.loaded import load_model
from twostroke.step import BLOCK_SIZE


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    path = tmp_path / "tiny.gguf"
    write_tiny(path, "llama")
    return path


def test_a_model_larger_than_memory_is_refused_with_the_numbers(
    tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loaded, "free_memory_bytes", lambda: 1000)
    with pytest.raises(CapacityError, match=r"does not fit into memory.*GiB of weights.*GiB free"):
        load_model(str(tiny))


def test_the_kv_pool_is_half_of_free_memory_but_no_more_than_can_be_used(
    tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = load_model(str(tiny))
    built = build.build_engine(model, EngineConfig(backend="reference", max_num_seqs=2))
    context = model.config.context_length
    assert built.num_blocks == 2 * -(-context // BLOCK_SIZE)
    monkeypatch.setattr(build, "free_memory_bytes", lambda: 10 * built.backend.block_bytes)
    small = build.build_engine(model, EngineConfig(backend="reference", max_num_seqs=2))
    assert small.num_blocks == 5


def test_kv_memory_below_one_block_is_refused(tiny: Path) -> None:
    model = load_model(str(tiny))
    with pytest.raises(CapacityError, match="not one block"):
        build.build_engine(model, EngineConfig(backend="reference", kv_memory_bytes=10))


@pytest.mark.parametrize("kv_type", list(KvType))
def test_planned_kv_bytes_are_those_allocated(tiny: Path, kv_type: KvType) -> None:
    model = load_model(str(tiny))
    built = build.build_engine(model, EngineConfig(kv_type=kv_type, max_num_seqs=2))
    planned = built.cost.kv_bytes_per_token * built.num_blocks * BLOCK_SIZE
    allocated = built.new_runner(built.num_blocks * BLOCK_SIZE).model.kv_bytes  # type: ignore[attr-defined]
    assert planned == pytest.approx(allocated, rel=0.02)


def test_a_file_of_an_unknown_family_is_refused_by_name(tmp_path: Path) -> None:
    import gguf

    path = tmp_path / "strange.gguf"
    writer = gguf.GGUFWriter(path, "mamba")
    import numpy as np

    writer.add_tensor("token_embd.weight", np.zeros((32, 64), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(UnsupportedModel, match="mamba"):
        load_model(str(path))


def test_a_cut_file_is_refused_and_nothing_is_left_behind(
    tiny: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TWOSTROKE_CACHE", str(tmp_path / "cache"))
    tiny.write_bytes(tiny.read_bytes()[:-1000])
    with pytest.raises(CorruptCheckpoint):
        load_model(str(tiny))
    assert not list((tmp_path / "cache").rglob("*.packed"))
