"""Text to token ids and back, from a GGUF file's metadata.

Control tokens are found here, not by the BPE model, which does not hold them: text that came from a
user is encoded with `parse_special=False` and can never become one. Knows nothing of chat templates
or of streaming.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from twostroke.text.bpe import Bpe, byte_level_bpe, sentencepiece_bpe
from twostroke.text.finder import TokenFinder
from twostroke.text.pretokenizers import find_pre_tokenizer
from twostroke.text.segments import CutFinder, Segment, check_size, pieces
from twostroke.text.tokenizer_metadata import PREFIX, flag
from twostroke.text.vocabulary import Vocabulary

MAX_PROMPT_BYTES = 16 << 20  # a context of a million tokens at 16 bytes a token


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
            rule, doubts = find_pre_tokenizer(metadata.get(PREFIX + "pre"))
            bpe, warnings = byte_level_bpe(metadata, vocabulary, rule), warnings + doubts
            adds_bos, space_prefix = rule.adds_bos, False
        else:
            space_prefix = flag(metadata, "add_space_prefix", default=True)
            bpe = sentencepiece_bpe(metadata, vocabulary, cache_dir, space_prefix=space_prefix)
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
        """Return the bytes of one token, as `Vocabulary.bytes_of`."""
        return self.vocabulary.bytes_of(token_id, with_control=with_control)

    def build_library(self) -> None:
        """Build the library's model now, not at the first long text: for servers, before requests.

        Raises:
            CorruptCheckpoint: the merges do not fit the tokens.
        """
        self._bpe.library()

    def encode(
        self, text: str, *, add_special: bool = False, parse_special: bool = False
    ) -> list[int]:
        """Return the ids of a text.

        add_special: add BOS and EOS where the model has them. parse_special: control tokens spelt
        in the text count.

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
        """Return the ids, and for each cut the place of the first token at or after it.

        cuts: character positions, ascending.

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
        check_size(parts, self.max_prompt_bytes)
        token_ids: list[int] = []
        if add_special and self.add_bos and self.bos_id is not None:
            token_ids.append(self.bos_id)
        found, position = CutFinder(cuts), 0
        for piece in pieces(parts, self._control):
            found.reach(position, len(token_ids))
            if isinstance(piece, int):
                token_ids.append(piece)
                position += len(self.vocabulary.tokens[piece])
                continue
            piece_ids, starts = self._bpe.encode(piece)
            end = position + len(piece)
            found.pass_piece(position, end, starts, len(token_ids))
            token_ids += piece_ids
            position = end
        cut_tokens = found.finish(len(token_ids))
        if add_special and self.add_eos and self.eos_id is not None:
            token_ids.append(self.eos_id)
        return token_ids, cut_tokens
