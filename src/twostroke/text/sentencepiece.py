"""Merges for SentencePiece BPE models, whose files hold only a score for each piece.

SentencePiece joins, at each step, the neighbours whose union has the best score. As ranked merges:
every way to cut a piece into two pieces, best score first. Deriving them for 262k pieces takes
about a second, so they are kept on disk under a hash of the vocabulary.
Source: Kudo and Richardson 2018, arXiv:1808.06226 (SentencePiece); Sennrich et al. 2016,
arXiv:1508.07909 (BPE).
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from twostroke.text.vocabulary import MAX_PIECE_CHARS

Merges = list[tuple[str, str]]
_Ids = npt.NDArray[np.int32]

_CACHE_VERSION = 1
_MAX_CACHE_BYTES = 1 << 27


def ranked_merges(
    tokens: Sequence[str],
    scores: Sequence[float],
    pieces: Mapping[str, int],
    cache_dir: Path | None,
) -> Merges:
    """Return the merges, best first, from the cache when it has them.

    pieces: text -> id of the tokens that merging may make; control and byte tokens are left out.
    """
    path = None
    if cache_dir is not None:
        path = cache_dir / f"merges-{_vocabulary_hash(tokens, scores, pieces)}.npz"
        kept = _read_cache(path, len(tokens))
        if kept is not None:
            return _as_text(tokens, *kept)
    left, right = _derive(tokens, scores, pieces)
    if path is not None:
        _write_cache(path, left, right)
    return _as_text(tokens, left, right)


def _derive(
    tokens: Sequence[str], scores: Sequence[float], pieces: Mapping[str, int]
) -> tuple[_Ids, _Ids]:
    lefts: list[int] = []
    rights: list[int] = []
    wholes: list[int] = []
    find = pieces.get
    for piece, whole in pieces.items():
        if len(piece) > MAX_PIECE_CHARS:
            continue
        for cut in range(1, len(piece)):
            left = find(piece[:cut])
            if left is None:
                continue
            right = find(piece[cut:])
            if right is not None:
                lefts.append(left)
                rights.append(right)
                wholes.append(whole)
    left_ids, right_ids = np.array(lefts, np.int32), np.array(rights, np.int32)
    lengths = np.array([len(token) for token in tokens], np.int32)
    score = np.array(scores, np.float64)[np.array(wholes, np.int64)] if wholes else np.zeros(0)
    # Of several ways to make one piece the longest left part goes first, as in published merges.
    order = np.lexsort((-lengths[right_ids], -lengths[left_ids], -score))
    return left_ids[order], right_ids[order]


def _as_text(tokens: Sequence[str], left: _Ids, right: _Ids) -> Merges:
    text = tokens.__getitem__
    return list(zip(map(text, left.tolist()), map(text, right.tolist()), strict=True))


def _vocabulary_hash(
    tokens: Sequence[str], scores: Sequence[float], pieces: Mapping[str, int]
) -> str:
    digest = hashlib.sha256(f"twostroke merges {_CACHE_VERSION} {len(tokens)}\0".encode())
    for text in ("\0".join(tokens), "\0".join(pieces)):
        digest.update(text.encode("utf-8", "surrogatepass"))
        digest.update(b"\0\0")
    digest.update(np.array(scores, np.float64).tobytes())
    return digest.hexdigest()[:32]


def _read_cache(path: Path, vocab_size: int) -> tuple[_Ids, _Ids] | None:
    """Return the two columns of ids, None when the file is missing or damaged."""
    import zipfile

    try:
        if path.stat().st_size > _MAX_CACHE_BYTES:
            return None
        with open(path, "rb") as file, np.load(file, allow_pickle=False) as stored:
            left, right = stored["left"], stored["right"]
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
        return None
    for ids in (left, right):
        if ids.dtype != np.int32 or ids.ndim != 1 or len(ids) != len(left):
            return None
        if len(ids) and not 0 <= int(ids.min()) <= int(ids.max()) < vocab_size:
            return None
    return left, right


def _write_cache(path: Path, left: _Ids, right: _Ids) -> None:
    """Write atomically; on a full or read-only disk the next start derives the merges again."""
    import tempfile

    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=".merges-", suffix=".npz")
        try:
            with os.fdopen(handle, "wb") as file:
                np.savez(file, left=left, right=right)
            os.replace(name, path)
        except BaseException:
            os.unlink(name)
            raise
