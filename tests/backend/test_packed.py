"""Repacked weights on disk: written once, mapped afterwards, rebuilt when anything changed."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from twostroke.backend.packed import PackedWeights, cache_key, load_packed
from twostroke.backend.packed_folder import PackedFolder
from twostroke.errors import UnsupportedModel
from twostroke.formats.ggml_types import GGMLType
from twostroke.model.weights import Weight

N, K = 64, 96
NBYTES = N * K


class Packing:
    """Packs by adding one to each byte, and counts how often."""

    def __init__(self, refused: GGMLType | None = None) -> None:
        self.count, self.refused = 0, refused

    def pack(self, out: np.ndarray, weight: Weight) -> None:
        self.count += 1
        out[:] = weight.raw + np.uint8(1)

    def packed_bytes(self, kind: int, n: int, k: int) -> int | None:
        return None if kind == self.refused else n * k


def weight(name: str, fill: int) -> Weight:
    return Weight(name, GGMLType.Q8_0, (N, K), np.full(NBYTES, fill, np.uint8))


WEIGHTS = (weight("a", 3), weight("b", 7), weight("a", 3))


def load(
    folder: PackedFolder | None, packing: Packing, key: str = "k", verify: bool = False
) -> PackedWeights:
    return load_packed(
        WEIGHTS,
        pack=packing.pack,
        packed_bytes=packing.packed_bytes,
        allocate=lambda size: np.zeros(size, np.uint8),
        folder=folder,
        key=key,
        verify=verify,
    )


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[PackedFolder]:
    yield PackedFolder(tmp_path / "packed", 1 << 20)


def check(packed: PackedWeights) -> None:
    assert set(packed.matrices) == {"a", "b"}
    for name, value in (("a", 4), ("b", 8)):
        matrix = packed.matrices[name]
        assert (matrix.n, matrix.k, matrix.format) == (N, K, int(GGMLType.Q8_0))
        assert matrix.data.nbytes == NBYTES and (matrix.data == value).all()


def test_second_start_maps_what_the_first_wrote(folder: PackedFolder) -> None:
    packing = Packing()
    first = load(folder, packing)
    second = load(folder, packing)
    check(first)
    check(second)
    assert packing.count == 2  # each distinct matrix once, by the first start alone
    assert not first.was_cached and second.was_cached
    assert not second.matrices["a"].data.flags.writeable
    assert first.nbytes == 2 * NBYTES


def test_another_source_layout_or_build_has_another_key() -> None:
    keys = {cache_key(*f) for f in (((1, "a"), "x"), ((2, "a"), "x"), ((1, "b"), "x"))}
    keys |= {cache_key((1, "a"), "y"), cache_key((1, "a", ""), "x")}
    assert len(keys) == 5


def test_another_key_is_packed_again(folder: PackedFolder) -> None:
    packing = Packing()
    load(folder, packing, "old")
    check(load(folder, packing, "new"))
    assert packing.count == 4


@pytest.mark.parametrize("size", [0, 10, 4096, 4096 + 2 * NBYTES - 1])
def test_truncated_file_is_rebuilt(folder: PackedFolder, size: int) -> None:
    load(folder, Packing())
    os.truncate(folder.path_of("k"), size)
    packing = Packing()
    check(load(folder, packing))
    assert packing.count == 2
    assert load(folder, packing).was_cached


@pytest.mark.parametrize("position", [0, 16, 20, 24, 70])
def test_damaged_head_is_rebuilt(folder: PackedFolder, position: int) -> None:
    load(folder, Packing())
    path = folder.path_of("k")
    data = bytearray(path.read_bytes())
    data[position] ^= 0xFF
    path.write_bytes(data)
    packing = Packing()
    check(load(folder, packing))
    assert packing.count == 2


def test_verify_finds_a_damaged_matrix(folder: PackedFolder) -> None:
    load(folder, Packing())
    path = folder.path_of("k")
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    packing = Packing()
    assert load(folder, packing).was_cached
    check(load(folder, packing, verify=True))
    assert packing.count == 2
    assert load(folder, packing, verify=True).was_cached


def test_writer_killed_midway_leaves_no_file_to_trust(
    folder: PackedFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(source: str, target: Path) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", killed)
        with pytest.raises(KeyboardInterrupt):
            load(folder, Packing())
    assert list(folder.path.iterdir()) == []
    packing = Packing()
    check(load(folder, packing))
    assert packing.count == 2


def test_stale_temporary_files_are_removed(folder: PackedFolder) -> None:
    folder.path.mkdir()
    stale, fresh = folder.path / ".old.tmp", folder.path / ".new.tmp"
    stale.write_bytes(b"half")
    fresh.write_bytes(b"half")
    os.utime(stale, (0, 0))
    load(folder, Packing())
    assert not stale.exists() and fresh.exists()


def test_folder_is_bounded_and_forgets_the_least_recently_used(tmp_path: Path) -> None:
    folder = PackedFolder(tmp_path, 40_000)  # room for two files
    for age, key in enumerate(("a", "b")):
        load(folder, Packing(), key)
        os.utime(folder.path_of(key), (1000 + age, 1000 + age))
    load(folder, Packing(), "a")  # mapped, so "b" is now the older one
    load(folder, Packing(), "c")
    assert folder.path_of("a").exists() and folder.path_of("c").exists()
    assert not folder.path_of("b").exists()
    assert sum(f.stat().st_size for f in tmp_path.iterdir()) <= 40_000


def test_file_larger_than_the_bound_stays_in_memory(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = PackedFolder(tmp_path, 100)
    with caplog.at_level(logging.WARNING):
        packed = load(folder, Packing())
        load(folder, Packing(), "other")
    check(packed)
    assert packed.path is None and list(tmp_path.iterdir()) == []
    assert len(caplog.records) == 1


def test_folder_that_cannot_be_written_is_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    blocked = tmp_path / "file"
    blocked.write_bytes(b"")
    with caplog.at_level(logging.WARNING):
        packed = load(PackedFolder(blocked / "packed", 1 << 20), Packing())
    check(packed)
    assert packed.path is None and len(caplog.records) == 1


def test_matrix_that_cannot_be_packed_is_refused_by_name_and_type() -> None:
    with pytest.raises(UnsupportedModel, match=r"tensor a .*Q8_0, 64 x 96"):
        load(None, Packing(refused=GGMLType.Q8_0))
