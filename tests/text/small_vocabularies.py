"""Vocabularies small enough to check by hand, as GGUF metadata."""

from __future__ import annotations

from twostroke.text.vocabulary import BYTE_OF_CHARACTER, TokenType

PREFIX = "tokenizer.ggml."
CONTROL = ("<|im_start|>", "<|im_end|>", "<|endoftext|>")


def byte_level(
    merges: tuple[str, ...] = ("h e", "l l", "he ll", "hell o", "Ġ w", "Ġ Ġ"),
    *,
    control: tuple[str, ...] = CONTROL,
    user_defined: tuple[str, ...] = (),
    **extra: object,
) -> dict[str, object]:
    """Return a gpt2 vocabulary: the 256 bytes, the merges' results, then the added tokens."""
    made = dict.fromkeys(merge.replace(" ", "") for merge in merges)
    plain = [*BYTE_OF_CHARACTER, *made]
    tokens = [*plain, *control, *user_defined]
    types = [TokenType.NORMAL] * len(plain) + [TokenType.CONTROL] * len(control)
    types += [TokenType.USER_DEFINED] * len(user_defined)
    metadata: dict[str, object] = {
        PREFIX + "model": "gpt2",
        PREFIX + "pre": "gpt-2",
        PREFIX + "tokens": tokens,
        PREFIX + "token_type": [int(kind) for kind in types],
        PREFIX + "merges": list(merges),
    }
    if "<|im_end|>" in control:
        metadata[PREFIX + "eos_token_id"] = tokens.index("<|im_end|>")
    metadata.update({PREFIX + key: value for key, value in extra.items()})
    return metadata


def sentencepiece(
    pieces: tuple[tuple[str, float], ...] = (
        ("▁", -1.0), ("h", -2.0), ("e", -3.0), ("l", -4.0), ("o", -5.0), ("he", -6.0),
        ("ll", -7.0), ("hell", -8.0), ("hello", -9.0), ("▁hello", -10.0),
    ),
    **extra: object,
) -> dict[str, object]:  # fmt: skip
    """Return a llama vocabulary: <unk>, <s>, </s>, the 256 byte tokens, then the pieces."""
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    types = [TokenType.UNKNOWN] + [TokenType.CONTROL] * 2 + [TokenType.BYTE] * 256
    scores = [0.0] * len(tokens)
    for text, score in pieces:
        tokens.append(text)
        types.append(TokenType.NORMAL)
        scores.append(score)
    return {
        PREFIX + "model": "llama",
        PREFIX + "tokens": tokens,
        PREFIX + "token_type": [int(kind) for kind in types],
        PREFIX + "scores": scores,
        PREFIX + "bos_token_id": 1,
        PREFIX + "eos_token_id": 2,
        PREFIX + "unknown_token_id": 0,
        **{PREFIX + key: value for key, value in extra.items()},
    }
