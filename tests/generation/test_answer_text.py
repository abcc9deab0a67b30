"""Reasoning apart from the answer, stops in the answer only, whatever the chunks."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.tiny_models import write_tiny
from twostroke.formats.gguf import open_gguf
from twostroke.generation.reasoning_text import ReasoningText
from twostroke.text.stream import PlainText
from twostroke.text.tokenizer import Tokenizer

_FOUND: list[Tokenizer] = []


@pytest.fixture(scope="module", autouse=True)
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tokenizer]:
    path: Path = tmp_path_factory.mktemp("reasoning") / "tiny.gguf"
    write_tiny(path, "llama")
    file = open_gguf(path)
    _FOUND.append(Tokenizer.from_gguf(file.metadata))
    yield _FOUND[-1]
    file.close()


def split(
    text: str, stops: tuple[str, ...] = (), *, is_open: bool = False, step: int = 1
) -> tuple[str, str, str | None, int]:
    """Push a text's tokens `step` at a time; return answer, reasoning, stop, reasoning tokens."""
    ids = _FOUND[-1].encode(text)
    stream = ReasoningText(_FOUND[-1], stops, is_open=is_open)
    answer, reasoning, count = "", "", 0
    for i in range(0, len(ids), step):
        part = stream.push(ids[i : i + step])
        answer, reasoning = answer + part.text, reasoning + part.reasoning
        count += part.num_reasoning
        if part.stop is not None:
            return answer, reasoning, part.stop, count
    part = stream.finish()
    return answer + part.text, reasoning + part.reasoning, part.stop, count


@given(
    st.text(alphabet="abc </>\n", max_size=30),
    st.text(alphabet="abc </>", max_size=30),
    st.integers(1, 7),
)
def test_chunks_do_not_matter(thought: str, answer: str, step: int) -> None:
    thought = thought.replace("</think>", "")
    text = f"<think>{thought}</think>{answer}"
    assert split(text, step=step)[:3] == (answer.lstrip("\n"), thought, None)


def test_an_answer_without_a_tag_is_all_answer() -> None:
    for text in ("hello", "<thin", " <b>x</b>", "", "a <think> b </think>"):
        assert split(text)[:2] == (text, "")


def test_an_opened_prompt_begins_with_reasoning() -> None:
    assert split("why not</think>\n\nyes", is_open=True)[:2] == ("yes", "why not")
    assert split("cut sho", is_open=True)[:2] == ("", "cut sho")


def test_s7_s8_stops_count_in_the_answer_only() -> None:
    answer, reasoning, stop, count = split("<think>STOP it</think>go STOP on", ("STOP",))
    assert (answer, reasoning, stop) == ("go ", "STOP it", "STOP")
    assert count > 0
    assert split("<think>a</think>bSTO", ("STOP",))[:3] == ("bSTO", "a", None), "held, then shown"


def test_s5_no_half_of_a_tag_is_shown_while_it_streams() -> None:
    ids = _FOUND[-1].encode("<think>abc</think>d")
    stream = ReasoningText(_FOUND[-1], (), is_open=False)
    shown = [stream.push([i]) for i in ids]
    assert not any("<" in part.reasoning or "<" in part.text for part in shown)


def test_plain_text_counts_no_reasoning() -> None:
    part = PlainText(_FOUND[-1], ("b",)).push(_FOUND[-1].encode("xab"))
    assert (part.text, part.stop, part.num_reasoning) == ("xa", "b", 0)
