"""Arrays of strings: those read a window at a time equal those read one by one, and cost little."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import gguf
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.formats.gguf_bytes import ARRAY, STRING, U32, file_bytes, key, text, u32, u64
from twostroke.formats import gguf_strings
from twostroke.formats.gguf_header import parse_header
from twostroke.formats.gguf_reader import TruncatedHeader


@pytest.fixture(scope="module")
def large_vocabulary(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("vocabulary") / "large.gguf"
    tokens = [f"▁word{i}" if i % 3 else f"<{i}>" for i in range(65_536)]
    writer = gguf.GGUFWriter(path, "gemma3")
    writer.add_token_list(tokens)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_a_large_vocabulary_reads_ten_times_faster_than_the_oracle(large_vocabulary: Path) -> None:
    data = large_vocabulary.read_bytes()
    ours = min(_seconds(lambda: parse_header(data)) for _ in range(3))
    header = parse_header(data)
    started = time.perf_counter()
    reader = gguf.GGUFReader(large_vocabulary)
    tokens = reader.fields["tokenizer.ggml.tokens"].contents()
    theirs = time.perf_counter() - started
    assert header.metadata["tokenizer.ggml.tokens"] == tokens
    assert theirs / ours >= 10, f"ours {ours:.3f} s, the package {theirs:.3f} s"


def _seconds(call) -> float:  # type: ignore[no-untyped-def]
    started = time.perf_counter()
    call()
    return time.perf_counter() - started


ODD = [
    b"",
    b"\0",
    b"a\0b",
    b"\0" * 20,
    b"x" * 255,
    b"x" * 256,
    b"x" * 70_000,
    b"\xff\xfe",
    b"\xe2\x96",
]


def strings_key(values: list[bytes]) -> bytes:
    return key("words", ARRAY, u32(STRING) + u64(len(values)) + b"".join(map(text, values)))


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.sampled_from(ODD) | st.binary(max_size=12) | st.text(max_size=9).map(str.encode)),
    st.integers(20, 400),
    st.integers(0, 3),
)
def test_strings_read_many_at_a_time_are_those_read_one_by_one(
    values: list[bytes], window: int, runs: int
) -> None:
    data = file_bytes([strings_key(values), key("after", U32, u32(5))])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gguf_strings, "_WINDOW_BYTES", window)
        patch.setattr(gguf_strings, "_MAX_WINDOWED_RUNS", runs)
        patch.setattr(gguf_strings, "_SINGLE_RUN_STRINGS", 2)
        header = parse_header(data)
    assert header.metadata["words"] == [v.decode("utf-8", "surrogateescape") for v in values]
    assert header.metadata["after"] == 5


def test_a_plain_string_that_ends_with_the_file_is_no_truncation() -> None:
    data = file_bytes([strings_key([b"abc", b"de"])])
    cut = data[: data.index(b"de") + 1]
    with pytest.raises(TruncatedHeader, match="string 1 of key 'words'"):
        parse_header(cut)


def test_a_hostile_array_of_odd_strings_is_looked_at_in_a_few_windows_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    windows = []
    ends = gguf_strings._plain_ends

    def counted(window: Any) -> Any:
        windows.append(len(window))
        return ends(window)

    monkeypatch.setattr(gguf_strings, "_plain_ends", counted)
    header = parse_header(file_bytes([strings_key([b"", b"abc"] * 10_000)]))
    assert header.metadata["words"] == ["", "abc"] * 10_000
    assert 1 < len(windows) <= 2 * gguf_strings._MAX_WINDOWED_RUNS
