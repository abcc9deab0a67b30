"""Text to token ids and back, from a GGUF file's metadata.

Control tokens are found here, not by the BPE model, which does not even hold them: text that came
from a user is encoded with `parse_special=False` and can never become one. Knows nothing of chat
templates or of
streaming.
"""

from __future__ import annotations

import bisect
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tokenizers import AddedToken, normalizers
from tokenizers import Tokenizer as BpeTokenizer
from tokenizers.models import BPE

from twostroke.errors import CorruptCheckpoint, RequestError
from twostroke.text.pretokenizers import PreTokenizer, find_pre_tokenizer
from twostroke.text.sentencepiece import Merges, ranked_merges
from twostroke.text.vocabulary import (
    MAX_MERGES,
    PREFIX,
    SPACE,
    TokenType,
    Vocabulary,
    flag,
    number_array,
    string_array,
)

# A context of a million tokens at 16 bytes a token.
MAX_PROMPT_BYTES = 16 << 20


@dataclass(frozen=True, slots=True)
class Segment:
    """A piece of a prompt, and whether control tokens count in it: only in the template's own."""

    text: str
    parse_special: bool


class Tokenizer:
    """One model's tokeniser. Immutable after creation, so that threads may share it."""

    def __init__(
        self,
        vocabulary: Vocabulary,
        bpe: BpeTokenizer,
        *,
        add_bos: bool,
        add_eos: bool = False,
        strips_first_space: bool = False,
        warnings: tuple[str, ...] = (),
        max_prompt_bytes: int = MAX_PROMPT_BYTES,
    ) -> None:
        self.vocabulary = vocabulary
        self.add_bos = add_bos
        self.add_eos = add_eos
        self.strips_first_space = strips_first_space
        self.warnings = warnings
        self.max_prompt_bytes = max_prompt_bytes
        self._bpe = bpe
        self._control = _ControlFinder(vocabulary.control_ids)
        self._control_id_set = frozenset(vocabulary.control_ids.values())

    @classmethod
    def from_gguf(
        cls,
        metadata: Mapping[str, object],
        cache_dir: Path | None = None,
        *,
        max_prompt_bytes: int = MAX_PROMPT_BYTES,
    ) -> Tokenizer:
        """Build the tokeniser that a GGUF file describes.

        cache_dir: where derived merges are kept; None: nowhere.

        Raises:
            UnsupportedModel: a tokenizer model or pre-tokeniser that we do not know.
            CorruptCheckpoint: the vocabulary breaks its own format.
        """
        vocabulary = Vocabulary.from_gguf(metadata)
        warnings = vocabulary.warnings
        if vocabulary.is_byte_level:
            rule, said = find_pre_tokenizer(metadata.get(PREFIX + "pre"))
            bpe, warnings = _byte_level_bpe(metadata, vocabulary, rule), warnings + said
            adds_bos, space_prefix = rule.adds_bos, False
        else:
            space_prefix = flag(metadata, "add_space_prefix", default=True)
            bpe = _sentencepiece_bpe(metadata, vocabulary, cache_dir, space_prefix=space_prefix)
            adds_bos = True
        return cls(
            vocabulary,
            bpe,
            add_bos=flag(metadata, "add_bos_token", default=adds_bos),
            add_eos=flag(metadata, "add_eos_token", default=False),
            strips_first_space=space_prefix,
            warnings=warnings,
            max_prompt_bytes=max_prompt_bytes,
        )

    @property
    def vocab_size(self) -> int:
        """Number of ids, control and padding tokens included."""
        return len(self.vocabulary.tokens)

    @property
    def bos_id(self) -> int | None:
        """The id that begins a text, None when the model has none."""
        return self.vocabulary.bos_id

    @property
    def eos_id(self) -> int | None:
        """The id that ends a text, None when the model has none."""
        return self.vocabulary.eos_id

    @property
    def end_ids(self) -> frozenset[int]:
        """Every id that ends an answer: the metadata's and the well-known ones."""
        return self.vocabulary.end_ids

    @property
    def control_texts(self) -> frozenset[str]:
        """The spellings of all control tokens."""
        return frozenset(self.vocabulary.control_ids)

    def is_control(self, token_id: int) -> bool:
        """Whether an id is a control token (never made from user text, never shown)."""
        return token_id in self._control_id_set

    def token_text(self, token_id: int | None) -> str:
        """Return a token as the file spells it; empty for None or out of range."""
        if token_id is None or not 0 <= token_id < self.vocab_size:
            return ""
        return self.vocabulary.tokens[token_id]

    def token_bytes(self, token_id: int, *, with_control: bool = False) -> bytes:
        """Return the bytes of one token; none if out of range, or control unless asked."""
        return self.vocabulary.bytes_of(token_id, with_control=with_control)

    def encode(
        self, text: str, *, add_special: bool = False, parse_special: bool = False
    ) -> list[int]:
        """Return the ids of a text.

        add_special: put BOS and EOS as the model says. parse_special: let the text spell control
        tokens.

        Raises:
            RequestError: longer than max_prompt_bytes, or not valid Unicode.
        """
        return self.encode_segments((Segment(text, parse_special),), add_special=add_special)

    def encode_segments(
        self, segments: Iterable[Segment], *, add_special: bool = False
    ) -> list[int]:
        """Return the ids of segments joined: merges cross their borders, control tokens do not.

        Raises:
            RequestError: as `encode`.
        """
        token_ids, _ = self._encode(segments, add_special=add_special, cuts=())
        return token_ids

    def encode_with_cuts(
        self, segments: Iterable[Segment], cuts: Sequence[int], *, add_special: bool = False
    ) -> tuple[list[int], list[int]]:
        """Return the ids, and for each cut (a character position, ascending) the first token at
        or after it.

        Raises:
            RequestError: as `encode`.
        """
        return self._encode(segments, add_special=add_special, cuts=cuts)

    def decode(self, token_ids: Iterable[int]) -> str:
        """Return the text of ids; control and unknown ids are nothing, invalid bytes U+FFFD."""
        data = b"".join(map(self.vocabulary.bytes_of, token_ids))
        if self.strips_first_space and data.startswith(b" "):
            data = data[1:]
        return data.decode("utf-8", "replace")

    def _encode(
        self, segments: Iterable[Segment], *, add_special: bool, cuts: Sequence[int]
    ) -> tuple[list[int], list[int]]:
        parts = list(segments)
        self._check_size(parts)
        token_ids: list[int] = []
        cut_tokens: list[int] = []
        if add_special and self.add_bos and self.bos_id is not None:
            token_ids.append(self.bos_id)
        position = 0
        for piece in self._pieces(parts):
            while len(cut_tokens) < len(cuts) and cuts[len(cut_tokens)] <= position:
                cut_tokens.append(len(token_ids))
            if isinstance(piece, int):
                token_ids.append(piece)
                position += len(self.vocabulary.tokens[piece])
                continue
            encoded = self._bpe.encode(piece, add_special_tokens=False)
            end = position + len(piece)
            if len(cut_tokens) < len(cuts) and cuts[len(cut_tokens)] < end:
                starts = [position + start for start, _ in encoded.offsets]
                while len(cut_tokens) < len(cuts) and cuts[len(cut_tokens)] < end:
                    place = bisect.bisect_left(starts, cuts[len(cut_tokens)])
                    cut_tokens.append(len(token_ids) + place)
            token_ids += encoded.ids
            position = end
        cut_tokens += [len(token_ids)] * (len(cuts) - len(cut_tokens))
        if add_special and self.add_eos and self.eos_id is not None:
            token_ids.append(self.eos_id)
        return token_ids, cut_tokens

    def _pieces(self, segments: Iterable[Segment]) -> Iterator[str | int]:
        """Yield control ids and the longest runs of text between them."""
        text: list[str] = []
        for segment in segments:
            if not segment.parse_special:
                text.append(segment.text)
                continue
            for piece in self._control.split(segment.text):
                if isinstance(piece, str):
                    text.append(piece)
                    continue
                if joined := "".join(text):
                    yield joined
                text.clear()
                yield piece
        if joined := "".join(text):
            yield joined

    def _check_size(self, segments: Sequence[Segment]) -> None:
        num_chars = sum(len(segment.text) for segment in segments)
        num_bytes = num_chars
        if num_chars <= self.max_prompt_bytes:
            try:
                num_bytes = sum(len(segment.text.encode()) for segment in segments)
            except UnicodeEncodeError as error:
                raise RequestError(
                    "the text is not valid Unicode: it has half of a surrogate pair",
                    value=f"U+{ord(error.object[error.start]):04X} at character {error.start}",
                ) from None
        if num_bytes > self.max_prompt_bytes:
            raise RequestError(
                "the prompt is too long to tokenise",
                value=f"{num_bytes} bytes",
                limit=f"{self.max_prompt_bytes} bytes",
                remedy="Send less text.",
                param="prompt",
            )


class _ControlFinder:
    """Finds control tokens in text: leftmost first, of those the longest."""

    def __init__(self, ids: Mapping[str, int]) -> None:
        self._ids = {text: token for text, token in ids.items() if text and not text.isspace()}
        lengths: defaultdict[str, set[int]] = defaultdict(set)
        for text in self._ids:
            lengths[text[0]].add(len(text))
        self._lengths = {first: sorted(found, reverse=True) for first, found in lengths.items()}

    def split(self, text: str) -> Iterator[str | int]:
        """Yield the pieces in order: a control token as its id, the rest as text."""
        done = 0
        for start, end, token in self.find(text):
            if start > done:
                yield text[done:start]
            yield token
            done = end
        if done < len(text):
            yield text[done:]

    def find(self, text: str) -> Iterator[tuple[int, int, int]]:
        """Yield (start, end, id) of each control token."""
        done = 0
        for start in self._candidates(text):
            if start < done:
                continue
            for length in self._lengths[text[start]]:
                token = self._ids.get(text[start : start + length])
                if token is not None:
                    done = start + length
                    yield start, done, token
                    break

    def _candidates(self, text: str) -> Iterator[int]:
        """Yield, ascending, each place where a control token could start."""
        if len(self._lengths) == 1:  # nearly always: "<"
            (first,) = self._lengths
            place = text.find(first)
            while place >= 0:
                yield place
                place = text.find(first, place + 1)
            return
        for place, character in enumerate(text):
            if character in self._lengths:
                yield place


def _text_vocabulary(vocabulary: Vocabulary) -> dict[str, int]:
    """Return text -> id of every token that text may become.

    Raises:
        CorruptCheckpoint: two tokens are spelt alike.
    """
    ids = {text: place for place, text in enumerate(vocabulary.tokens)}
    if len(ids) != len(vocabulary.tokens):
        first = next(i for i, text in enumerate(vocabulary.tokens) if ids[text] != i)
        raise CorruptCheckpoint(
            f"{PREFIX}tokens holds a token twice",
            value=f"{vocabulary.tokens[first][:64]!r}, id {first}",
        )
    for text in vocabulary.control_ids:
        ids.pop(text, None)
    for text in [t for t in ids if not t or not _is_unicode(t)]:
        del ids[text]
    return ids


def _is_unicode(text: str) -> bool:
    return text.isascii() or not any("\ud800" <= character <= "\udfff" for character in text)


def _byte_level_bpe(
    metadata: Mapping[str, object], vocabulary: Vocabulary, rule: PreTokenizer
) -> BpeTokenizer:
    ids = _text_vocabulary(vocabulary)
    written = string_array(metadata, "merges", MAX_MERGES)
    # Neither side is empty, but a side may begin with a space in vocabularies that are not
    # byte-level inside.
    merges = [(left, right) for left, _, right in map(_cut_merge, written) if left + right in ids]
    bpe = _new_bpe(ids, merges, ignore_merges=rule.ignore_merges)
    bpe.pre_tokenizer = rule.build()
    if (normalizer := rule.normalizer()) is not None:
        bpe.normalizer = normalizer
    _add_user_defined(bpe, vocabulary)
    return bpe


def _cut_merge(merge: str) -> tuple[str, str, str]:
    return merge.partition(" ")


def _sentencepiece_bpe(
    metadata: Mapping[str, object],
    vocabulary: Vocabulary,
    cache_dir: Path | None,
    *,
    space_prefix: bool,
) -> BpeTokenizer:
    scores = number_array(metadata, "scores", len(vocabulary.tokens))
    if not scores:
        raise CorruptCheckpoint(f"{PREFIX}scores is missing: a llama vocabulary needs it")
    ids = _text_vocabulary(vocabulary)
    byte_kind = TokenType.BYTE
    pieces = {text: i for text, i in ids.items() if vocabulary.type_of(i) != byte_kind}
    merges = ranked_merges(vocabulary.tokens, scores, pieces, cache_dir)
    unknown = None
    if vocabulary.unk_id is not None:
        unknown = vocabulary.tokens[vocabulary.unk_id]
        ids[unknown] = vocabulary.unk_id  # reached only by a character that has no byte tokens
    bpe = _new_bpe(ids, merges, byte_fallback=True, fuse_unk=True, unk_token=unknown)
    steps: list[normalizers.Normalizer] = [normalizers.Replace(" ", SPACE)]
    if space_prefix:
        steps.insert(0, normalizers.Prepend(SPACE))
    bpe.normalizer = normalizers.Sequence(steps)
    _add_user_defined(bpe, vocabulary)
    return bpe


def _new_bpe(ids: dict[str, int], merges: Merges, **options: object) -> BpeTokenizer:
    try:
        return BpeTokenizer(BPE(ids, merges, **options))
    except Exception as error:  # the library raises bare Exception
        raise CorruptCheckpoint(
            f"{PREFIX}merges does not fit {PREFIX}tokens", value=str(error)[:200]
        ) from None


def _add_user_defined(bpe: BpeTokenizer, vocabulary: Vocabulary) -> None:
    bpe.add_tokens([AddedToken(text, normalized=False) for text in vocabulary.user_defined()])
