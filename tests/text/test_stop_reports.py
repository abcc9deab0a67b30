"""Public bug reports about stop strings (rows S*), as far as they need no server."""

from __future__ import annotations

import string
from pathlib import Path

import pytest

from twostroke.errors import InvalidSampling
from twostroke.formats.gguf import open_gguf
from twostroke.request import MAX_STOP_CHARS, MAX_STOPS, SamplingParams
from twostroke.text.detokenizer import Detokenizer
from twostroke.text.stop import StopMatcher
from twostroke.text.tokenizer import Tokenizer


def _stream(stops: tuple[str, ...], chunks: list[str]) -> tuple[list[str], str | None]:
    matcher = StopMatcher(stops)
    shown = []
    for chunk in chunks:
        text, hit = matcher.push(chunk)
        shown.append(text)
        if hit is not None:
            return shown, hit
    return [*shown, matcher.flush()], None


def test_s1_nothing_of_a_stop_is_streamed() -> None:
    shown, hit = _stream(("DEFGHIJ",), list(string.ascii_uppercase))
    assert hit == "DEFGHIJ"
    assert "".join(shown) == "ABC"


def test_s2_a_stop_inside_one_token_is_found_and_cut_there() -> None:
    assert _stream(("DE",), ["ABC", "xDEF"]) == (["ABC", "x"], "DE")


def test_s3_streamed_and_whole_text_are_the_same() -> None:
    text = "Thought: look\nAction: search[cats]\nObservation: many\nObservation:\n"
    stops = ("\nObservation: m", "\nObservation:\n")
    whole = _stream(stops, [text])
    for size in range(1, 20):
        chunks = [text[i : i + size] for i in range(0, len(text), size)]
        shown, hit = _stream(stops, chunks)
        assert ("".join(shown), hit) == ("".join(whole[0]), whole[1])
    assert whole[1] == "\nObservation: m"


def test_s5_only_a_true_prefix_of_a_stop_is_held_back() -> None:
    chunks = ["<th", "ink>", "a", "</think>", "b#", "#c##", "#"]
    shown, hit = _stream(("###",), chunks)
    assert shown[:5] == ["<th", "ink>", "a", "</think>", "b"]
    assert shown[5] == "##c"
    assert hit == "###"


@pytest.mark.parametrize("text", ["<think>x</think>", '{"a": "x"}', "```json\nx", "plain x"])
def test_s7_a_split_stop_is_caught_whatever_the_text_around_it(text: str) -> None:
    before, after = text.split("x")
    shown, hit = _stream(("STOP",), [before + "ST", "OP" + after])
    assert "".join(shown) == before
    assert hit == "STOP"


def test_s10_text_held_back_is_flushed_when_the_run_ends_otherwise() -> None:
    assert _stream(("<end>",), ["done <e", "n"]) == (["done ", "", "<en"], None)


@pytest.mark.weights
def test_s11_a_stop_of_several_tokens_is_found(smollm2_path: Path) -> None:
    with open_gguf(smollm2_path) as file:
        tokenizer = Tokenizer.from_gguf(file.metadata)
    for stop in ("한국어", "\n\nQ:", "ends with 🦖", " a b c"):
        detokenizer = Detokenizer(tokenizer)
        matcher = StopMatcher((stop,))
        shown, hit = "", None
        for token in tokenizer.encode(f"Some words{stop} and more"):
            text, hit = matcher.push(detokenizer.push(token))
            shown += text
            if hit:
                break
        assert (shown, hit) == ("Some words", stop)


@pytest.mark.parametrize(
    "stops", [("",), ("a",) * (MAX_STOPS + 1), ("a",) * 10_000, ("a" * (MAX_STOP_CHARS + 1),)]
)
def test_s11_empty_too_many_or_too_long_stops_are_refused(stops: tuple[str, ...]) -> None:
    with pytest.raises(InvalidSampling) as caught:
        SamplingParams(stop=stops)
    assert caught.value.http_status == 400
    assert caught.value.param == "stop"


@pytest.mark.weights
def test_s12_every_end_token_of_the_model_ends_it(smollm2_path: Path) -> None:
    with open_gguf(smollm2_path) as file:
        tokenizer = Tokenizer.from_gguf(file.metadata)
    assert {tokenizer.token_text(i) for i in tokenizer.end_ids} == {"<|im_end|>", "<|endoftext|>"}
