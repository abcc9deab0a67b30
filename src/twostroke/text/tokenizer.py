"""Text to token ids and back, from a GGUF file's metadata.

Control tokens are found here, not by the BPE model, which does not even hold them: text that came
from a user is encoded with `parse_special=False` and can never become one. Knows nothing of chat
templates or of
streaming.
"""

from __future__ import annotations

import bisect
import math
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from twostroke.dataclass import dataclass
from twostroke.errors import CorruptCheckpoint, RequestError
from twostroke.text.finder import TokenFinder
from twostroke.text.pretokenizers import PreTokenizer, find_pre_tokenizer
from twostroke.text.quick_bpe import Encoded, QuickBpe, QuickByteLevel, QuickSentencePiece
from twostroke.text.vocabulary import (
    MAX_MERGES,
    PREFIX,
    TokenType,
    Vocabulary,
    flag,
    number_array,
    string_array,
)

if TYPE_CHECKING:
    from tokenizers import Tokenizer as LibraryBpe

# A context of a million tokens at 16 bytes a token.
MAX_PROMPT_BYTES = 16 << 20
# Up to here plain Python takes under 20 ms; building the library's model takes 30 to 700 ms.
QUICK_CHARS = 2048


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
        bpe: Bpe,
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
        self._control = TokenFinder(
            {text: i for text, i in vocabulary.control_ids.items() if not text.isspace()}
        )
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
            bpe, warnings = _byte_level(metadata, vocabulary, rule), warnings + said
            adds_bos, space_prefix = rule.adds_bos, False
        else:
            space_prefix = flag(metadata, "add_space_prefix", default=True)
            bpe = _sentencepiece(metadata, vocabulary, cache_dir, space_prefix=space_prefix)
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

    def build_library(self) -> None:
        """Build now what the first long text would build: for servers, before requests come.

        Raises:
            CorruptCheckpoint: the merges do not fit the tokens.
        """
        self._bpe.library()

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
            piece_ids, piece_starts = self._bpe.encode(piece)
            end = position + len(piece)
            if len(cut_tokens) < len(cuts) and cuts[len(cut_tokens)] < end:
                starts = [position + start for start in piece_starts]
                while len(cut_tokens) < len(cuts) and cuts[len(cut_tokens)] < end:
                    place = bisect.bisect_left(starts, cuts[len(cut_tokens)])
                    cut_tokens.append(len(token_ids) + place)
            token_ids += piece_ids
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
            for _, piece, token in self._control.split(segment.text):
                if token is None:
                    text.append(piece)
                    continue
                if joined := "".join(text):
                    yield joined
                text.clear()
                yield token
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


class Bpe:
    """One vocabulary's BPE: plain Python for short texts, the library's from the first long one."""

    def __init__(self, quick: QuickBpe, build: Callable[[], LibraryBpe]) -> None:
        self._quick = quick
        self._build = build
        self._library: LibraryBpe | None = None
        self._lock = threading.Lock()

    def encode(self, text: str) -> Encoded:
        """Return ids, and the character at which each begins."""
        if self._library is None and len(text) <= QUICK_CHARS:
            encoded = self._quick.encode(text)
            if encoded is not None:
                return encoded
        found = self.library().encode(text, add_special_tokens=False)
        return found.ids, [start for start, _ in found.offsets]

    def library(self) -> LibraryBpe:
        """Return the library's model, built on the first call; every later text goes to it.

        Raises:
            CorruptCheckpoint: the merges do not fit the tokens.
        """
        with self._lock:
            if self._library is None:
                self._library = self._build()
            return self._library


def _byte_level(metadata: Mapping[str, object], vocabulary: Vocabulary, rule: PreTokenizer) -> Bpe:
    written = string_array(metadata, "merges", MAX_MERGES)
    ranks = dict(zip(written, range(len(written)), strict=True))
    for text in vocabulary.control_ids:  # no merge may make one
        for cut in range(1, len(text)):
            ranks.pop(f"{text[:cut]} {text[cut:]}", None)
    ids, added = vocabulary.text_ids, vocabulary.user_defined

    def build() -> LibraryBpe:
        from twostroke.text.library_bpe import build_byte_level

        return build_byte_level(ids, ranks, rule, added)

    return Bpe(QuickByteLevel(ids, ranks, rule, added), build)


def _sentencepiece(
    metadata: Mapping[str, object],
    vocabulary: Vocabulary,
    cache_dir: Path | None,
    *,
    space_prefix: bool,
) -> Bpe:
    tokens, ids, added = vocabulary.tokens, vocabulary.text_ids, vocabulary.user_defined
    scores = number_array(metadata, "scores", len(tokens))
    if not scores or math.isnan(sum(scores)):
        raise CorruptCheckpoint(f"{PREFIX}scores is missing or not numbers")
    byte_kind = TokenType.BYTE
    pieces = dict(ids)
    for i, kind in enumerate(vocabulary.types):
        if kind == byte_kind:
            pieces.pop(tokens[i], None)

    def build() -> LibraryBpe:
        from twostroke.text.library_bpe import build_sentencepiece

        return build_sentencepiece(
            ids,
            pieces,
            tokens,
            scores,
            added,
            unk_id=vocabulary.unk_id,
            space_prefix=space_prefix,
            cache_dir=cache_dir,
        )

    quick = QuickSentencePiece(
        ids, pieces, scores, added, unk_id=vocabulary.unk_id, space_prefix=space_prefix
    )
    return Bpe(quick, build)
