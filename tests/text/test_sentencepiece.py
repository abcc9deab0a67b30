"""Merges derived from scores, and the cache that keeps them."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from twostroke.text import sentencepiece
from twostroke.text.sentencepiece import ranked_merges

TOKENS = ["a", "b", "c", "ab", "bc", "abc", "<s>", "cc"]
SCORES = [-9.0, -9.0, -9.0, -2.0, -1.0, -3.0, 0.0, -1.0]
PIECES = {text: i for i, text in enumerate(TOKENS) if text != "<s>"}
MERGES = [("b", "c"), ("c", "c"), ("a", "b"), ("ab", "c"), ("a", "bc")]


def test_merges_go_best_score_first_then_longest_left() -> None:
    assert ranked_merges(TOKENS, SCORES, PIECES, None) == MERGES


def test_the_second_time_merges_come_from_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = tmp_path / "new" / "folder"
    assert ranked_merges(TOKENS, SCORES, PIECES, cache) == MERGES
    assert [p.suffix for p in cache.iterdir()] == [".npz"]
    monkeypatch.setattr(sentencepiece, "_derive", lambda *_: pytest.fail("derived again"))
    assert ranked_merges(TOKENS, SCORES, PIECES, cache) == MERGES


def test_another_vocabulary_has_another_cache_file(tmp_path: Path) -> None:
    ranked_merges(TOKENS, SCORES, PIECES, tmp_path)
    other = [*SCORES[:-1], -5.0]
    assert ranked_merges(TOKENS, other, PIECES, tmp_path)[-1] == ("c", "c")
    assert len(list(tmp_path.iterdir())) == 2


@pytest.mark.parametrize("damage", ["empty", "text", "truncated", "range", "shape", "keys"])
def test_a_damaged_cache_file_is_replaced(tmp_path: Path, damage: str) -> None:
    ranked_merges(TOKENS, SCORES, PIECES, tmp_path)
    (path,) = tmp_path.iterdir()
    good = path.read_bytes()
    one = np.zeros(1, np.int32)
    with open(path, "wb") as file:
        if damage == "range":
            np.savez(file, left=one + 99, right=one)
        elif damage == "shape":
            np.savez(file, left=one, right=np.zeros(2, np.int32))
        elif damage == "keys":
            np.savez(file, left=one)
        else:
            file.write({"empty": b"", "text": b"hello", "truncated": good[:100]}[damage])
    assert ranked_merges(TOKENS, SCORES, PIECES, tmp_path) == MERGES
    assert path.read_bytes() == good


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_that_cannot_be_written_costs_only_time(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    assert ranked_merges(TOKENS, SCORES, PIECES, tmp_path) == MERGES


def test_a_file_in_the_cache_folders_place_costs_only_time(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert ranked_merges(TOKENS, SCORES, PIECES, tmp_path / "file" / "x") == MERGES


def test_a_vocabulary_without_merges_is_fine() -> None:
    assert ranked_merges(["a", "b"], [0.0, 0.0], {"a": 0, "b": 1}, None) == []
