"""The vocabulary of a GGUF file: its tokens and their roles, checked before anything is built.

Knows the bytes of each token, not how text is cut into tokens.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Mapping, Sequence

from twostroke.dataclass import dataclass
from twostroke.errors import CorruptCheckpoint, UnsupportedModel
from twostroke.text.end_tokens import is_end_token, unmarked_end_tokens
from twostroke.text.tokenizer_metadata import PREFIX, number_array, string_array, token_id

SPACE = "\N{LOWER ONE EIGHTH BLOCK}"  # SentencePiece writes a space as U+2581
MAX_VOCAB_SIZE = 1 << 22
# A real piece has at most 93 bytes; longer ones are never cut, so that a hostile file costs no
# quadratic time.
MAX_PIECE_CHARS = 256

_BOS_KEY = "bos_token_id"
_END_KEYS = ("eos_token_id", "eot_token_id", "eom_token_id")


class TokenType(enum.IntEnum):
    """The values of `tokenizer.ggml.token_type`."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


# Plain ints: comparing with a member of an enum is slower, and there are 250,000 tokens and more.
_NORMAL, _UNKNOWN, _CONTROL = map(int, (TokenType.NORMAL, TokenType.UNKNOWN, TokenType.CONTROL))


def _byte_characters() -> dict[str, int]:
    """Return the characters by which byte-level BPE writes each of the 256 bytes.

    Source: Radford et al. 2019 (GPT-2): printable Latin-1 stands for itself, the rest from U+0100
    up in order.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = sorted(set(range(256)) - set(printable))
    table = {chr(byte): byte for byte in printable}
    table.update({chr(0x100 + place): byte for place, byte in enumerate(hidden)})
    return table


BYTE_OF_CHARACTER = _byte_characters()


@dataclass(frozen=True, slots=True, kw_only=True)
class Vocabulary:
    """Tokens by id, and the ids that have a role."""

    tokens: Sequence[str]
    types: Sequence[int]  # TokenType values; empty: every token is normal
    text_ids: Mapping[str, int]  # ids that text may become: all but control tokens
    user_defined: Mapping[str, int]  # found in any text before it is cut
    is_byte_level: bool
    control_ids: Mapping[str, int]  # text -> id of control and unknown tokens
    bos_id: int | None
    eos_id: int | None
    unk_id: int | None
    end_ids: frozenset[int]
    warnings: tuple[str, ...] = ()

    @classmethod
    def from_gguf(cls, metadata: Mapping[str, object]) -> Vocabulary:
        """Check the metadata's vocabulary and find its special tokens.

        Raises:
            UnsupportedModel: a tokenizer model other than gpt2 and llama.
            CorruptCheckpoint: a key missing, of the wrong type, length or range.
        """
        is_byte_level = _model(metadata) == "gpt2"
        tokens = string_array(metadata, "tokens", MAX_VOCAB_SIZE)
        all_ids = _ids_of(tokens)
        types = number_array(metadata, "token_type", len(tokens))
        special = [i for i, kind in enumerate(types) if kind != _NORMAL]
        control = {tokens[i]: i for i in special if types[i] in (_CONTROL, _UNKNOWN)}
        ids = {key: token_id(metadata, key, len(tokens)) for key in (*_END_KEYS, _BOS_KEY)}
        for found in ids.values():
            if found is not None:
                control.setdefault(tokens[found], found)
        unmarked = unmarked_end_tokens(all_ids, control)
        control |= unmarked
        ends = {ids[key] for key in _END_KEYS}
        ends |= {i for text, i in control.items() if is_end_token(text, control)}
        user_defined = (i for i in special if types[i] == TokenType.USER_DEFINED)
        return cls(
            tokens=tokens,
            types=types,
            text_ids=_without_control(all_ids, control, tokens),
            user_defined={
                tokens[i]: i for i in user_defined if tokens[i] and tokens[i] not in control
            },
            is_byte_level=is_byte_level,
            control_ids=control,
            bos_id=ids[_BOS_KEY],
            eos_id=ids["eos_token_id"],
            unk_id=token_id(metadata, "unknown_token_id", len(tokens)),
            end_ids=frozenset(i for i in ends if i is not None),
            warnings=tuple(
                f"token {i} {text!r} is not marked as control: taken as one"
                for text, i in unmarked.items()
            ),
        )

    def type_of(self, token: int) -> int:
        """Return the TokenType value of an id in range."""
        return self.types[token] if self.types else _NORMAL

    def bytes_of(self, token: int, *, with_control: bool = False) -> bytes:
        """Return the bytes of one token, none for an id out of range.

        with_control: whether control tokens have bytes; they are never shown.
        """
        if not 0 <= token < len(self.tokens):
            return b""
        text, kind = self.tokens[token], self.type_of(token)
        if self.control_ids.get(text) == token:
            return _stored_bytes(text) if with_control else b""
        if kind == TokenType.USER_DEFINED:
            return _stored_bytes(text)
        if self.is_byte_level:
            return _byte_level_bytes(text)
        if kind == TokenType.BYTE:
            return _byte_token_value(text)
        return _stored_bytes(text.replace(SPACE, " "))


def _model(metadata: Mapping[str, object]) -> object:
    model = metadata.get(PREFIX + "model")
    if model not in ("gpt2", "llama"):
        raise UnsupportedModel(
            "the tokenizer of this model is not supported",
            value=f"{PREFIX}model = {str(model)[:64]!r}",
            limit="gpt2 (byte-level BPE), llama (SentencePiece BPE)",
        )
    return model


def _ids_of(tokens: Sequence[str]) -> dict[str, int]:
    """Return text -> id.

    Raises:
        CorruptCheckpoint: two tokens are spelt alike.
    """
    ids = dict(zip(tokens, range(len(tokens)), strict=True))
    if len(ids) != len(tokens):
        first = next(i for i, text in enumerate(tokens) if ids[text] != i)
        raise CorruptCheckpoint(
            f"{PREFIX}tokens holds a token twice", value=f"{tokens[first][:64]!r}, id {first}"
        )
    return ids


def _without_control(
    ids: dict[str, int], control: Mapping[str, int], tokens: Sequence[str]
) -> dict[str, int]:
    """Return ids without control tokens and tokens that no text can hold."""
    for text in control:
        ids.pop(text, None)
    ids.pop("", None)
    try:
        "".join(tokens).encode()
    except UnicodeEncodeError:  # a token that is not UTF-8, kept as lone surrogates
        ids = {text: i for text, i in ids.items() if not re.search("[\ud800-\udfff]", text)}
    return ids


def _stored_bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def _byte_level_bytes(text: str) -> bytes:
    try:
        return bytes([BYTE_OF_CHARACTER[character] for character in text])
    except KeyError:
        return _stored_bytes(text)  # an added token, written as plain text


def _byte_token_value(text: str) -> bytes:
    """Return the byte of a `<0xNN>` token."""
    try:
        return bytes([int(text[3:5], 16)]) if len(text) == 6 else _stored_bytes(text)
    except ValueError:
        return _stored_bytes(text)
