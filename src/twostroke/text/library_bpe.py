"""Builds the `tokenizers` library's BPE models from a checked vocabulary."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, normalizers
from tokenizers.models import BPE

from twostroke.errors import CorruptCheckpoint
from twostroke.text.pretokenizers import PreTokenizer
from twostroke.text.quick_bpe import SentencePieces
from twostroke.text.sentencepiece import Merges, ranked_merges
from twostroke.text.tokenizer_metadata import PREFIX
from twostroke.text.vocabulary import SPACE


def build_byte_level(
    ids: Mapping[str, int], merges: Iterable[str], rule: PreTokenizer, user_defined: Iterable[str]
) -> Tokenizer:
    """Return byte-level BPE.

    Raises:
        CorruptCheckpoint: a merge of tokens that the vocabulary does not have.
    """
    pairs = [tuple(merge.split(" ", 1)) for merge in merges]
    bpe = _new_bpe(ids, pairs, ignore_merges=rule.ignore_merges)  # type: ignore[arg-type]
    bpe.pre_tokenizer = rule.build()
    if (normalizer := rule.normalizer()) is not None:
        bpe.normalizer = normalizer
    return _with_tokens(bpe, user_defined)


def build_sentencepiece(pieces: SentencePieces, cache_dir: Path | None) -> Tokenizer:
    """Return SentencePiece BPE with byte fallback; its merges come from cache_dir if they can."""
    merges = ranked_merges(pieces.tokens, pieces.scores, pieces.mergeable, cache_dir)
    ids, unknown = pieces.ids, None
    if pieces.unk_id is not None:  # reached only by a character that has no byte tokens
        unknown = pieces.tokens[pieces.unk_id]
        ids = {**ids, unknown: pieces.unk_id}
    bpe = _new_bpe(ids, merges, byte_fallback=True, fuse_unk=True, unk_token=unknown)
    steps: list[normalizers.Normalizer] = [normalizers.Replace(" ", SPACE)]
    if pieces.space_prefix:
        steps.insert(0, normalizers.Prepend(SPACE))
    bpe.normalizer = normalizers.Sequence(steps)
    return _with_tokens(bpe, pieces.user_defined)


def _new_bpe(ids: Mapping[str, int], merges: Merges, **options: object) -> Tokenizer:
    try:
        return Tokenizer(BPE(dict(ids), merges, **options))
    except Exception as error:  # the library raises bare Exception
        raise CorruptCheckpoint(
            f"{PREFIX}merges does not fit {PREFIX}tokens", value=str(error)[:200]
        ) from None


def _with_tokens(bpe: Tokenizer, user_defined: Iterable[str]) -> Tokenizer:
    bpe.add_tokens([AddedToken(text, normalized=False) for text in user_defined])
    return bpe
