"""The header as a whole: counts, versions, alignment, truncations, and hostile files."""

from __future__ import annotations

import struct
import time
import tracemalloc

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.formats.gguf_bytes import (
    ABSURD,
    ARRAY,
    BOOL,
    F32,
    F32_TYPE,
    Q4_0_TYPE,
    STRING,
    U8,
    U32,
    file_bytes,
    key,
    refusal,
    tensor,
    text,
    u32,
    u64,
)
from twostroke.errors import TwoStrokeError, UnsupportedModel
from twostroke.formats import gguf_reader
from twostroke.formats.gguf_header import parse_header
from twostroke.formats.gguf_reader import TruncatedHeader


def test_the_first_bytes_of_a_remote_file_parse_against_the_real_size() -> None:
    whole = file_bytes(tensors=[tensor("w", (1 << 20,))], data=1 << 22)
    first = whole[:256]
    assert parse_header(first, file_size=len(whole)).tensors[0].nbytes == 1 << 22
    assert "outside the file" in refusal(first)


def test_every_truncation_of_the_header_gives_the_bytes_needed() -> None:
    whole = file_bytes(
        [key("a", STRING, text("value")), key("v", ARRAY, u32(STRING) + u64(1) + text("token"))],
        [tensor("w", (8,))],
        data=32,
    )
    end = parse_header(whole).header_bytes
    for length in range(4, end):
        with pytest.raises(TruncatedHeader) as caught:
            parse_header(whole[:length])
        assert length < caught.value.needed_bytes <= end


def test_other_files_are_refused_by_their_first_bytes() -> None:
    assert "does not begin with 'GGUF'" in refusal(b"PK\x03\x04" + bytes(64))
    assert "GGUF" in refusal(b"")
    assert "Git LFS pointer" in refusal(b"version https://git-lfs.github.com/spec/v1\n" * 3)
    assert "big-endian" in refusal(b"GGUF" + struct.pack(">I", 3) + bytes(64), UnsupportedModel)
    assert "got 1," in refusal(file_bytes(version=1), UnsupportedModel)
    assert "got 4," in refusal(file_bytes(version=4), UnsupportedModel)
    assert "got 0," in refusal(file_bytes(version=0), UnsupportedModel)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (file_bytes(num_keys=ABSURD), "key count is absurd"),
        (file_bytes(num_keys=-1), "key count is absurd"),
        (file_bytes(num_keys=1000), "key count of 1000 cannot fit"),
        (file_bytes(num_tensors=ABSURD), "tensor count is absurd"),
        (file_bytes(num_tensors=100_000), "tensor count of 100000 cannot fit"),
        (file_bytes([key("general.alignment", U32, u32(0))]), "usable alignment"),
        (file_bytes([key("general.alignment", U32, u32(48))]), "usable alignment (got 48"),
        (file_bytes([key("general.alignment", U32, u32(1 << 31))]), "usable alignment"),
        (file_bytes([key("general.alignment", STRING, text("32"))]), "usable alignment"),
        (file_bytes([key("general.alignment", BOOL, b"\1")]), "usable alignment"),
        (file_bytes([key("general.alignment", F32, struct.pack("<f", 32))]), "usable alignment"),
    ],
)
def test_a_broken_header_is_refused_and_the_broken_part_named(data: bytes, words: str) -> None:
    assert words in refusal(data)


def test_hostile_names_reach_no_terminal() -> None:
    data = file_bytes([key("\x1b[2J" + "x" * 500, 13, b"")])
    message = refusal(data)
    assert "\x1b" not in message
    assert len(message) < 250


def test_the_header_as_a_whole_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gguf_reader, "MAX_HEADER_BYTES", 4096)
    assert "too large at key 'k'" in refusal(file_bytes([key("k", STRING, text("x" * 5000))]))
    words = u32(STRING) + u64(600) + text("") * 600
    assert "too large at string" in refusal(file_bytes([key("k", ARRAY, words)]))


@pytest.mark.parametrize(
    "data",
    [
        file_bytes(num_keys=gguf_reader.MAX_KEYS),
        file_bytes(num_tensors=gguf_reader.MAX_TENSORS),
        file_bytes([key("k", ARRAY, u32(STRING) + u64(gguf_reader.MAX_ARRAY_VALUES))]),
        file_bytes([key("k", ARRAY, u32(U8) + u64(gguf_reader.MAX_ARRAY_VALUES))]),
        file_bytes([key("k", STRING, u64(gguf_reader.MAX_STRING_BYTES))]),
    ],
)
def test_the_largest_allowed_counts_reserve_no_memory_before_the_bytes_are_there(
    data: bytes,
) -> None:
    tracemalloc.start()
    try:
        refusal(data)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 1 << 20


SEED_FILE = file_bytes(
    [
        key("general.architecture", STRING, text("llama")),
        key("general.alignment", U32, u32(32)),
        key("llama.block_count", U32, u32(2)),
        key("tokens", ARRAY, u32(STRING) + u64(3) + text("a") + text("bc") + text(b"\xff")),
        key("scores", ARRAY, u32(F32) + u64(2) + bytes(8)),
        key("flag", BOOL, b"\1"),
    ],
    [tensor("a", (64, 2), Q4_0_TYPE), tensor("b", (8,), F32_TYPE, 96)],
    data=128,
)
INTERESTING = [0, 1, 2, 31, 255, 2**31 - 1, 2**31, 2**32 - 1, 2**63 - 1, 2**63, 2**64 - 1]
MUTATION = st.one_of(
    st.tuples(st.just("byte"), st.integers(0, len(SEED_FILE) - 1), st.integers(0, 255)),
    st.tuples(st.just("u64"), st.integers(0, len(SEED_FILE) - 8), st.sampled_from(INTERESTING)),
    st.tuples(st.just("cut"), st.integers(0, len(SEED_FILE)), st.just(0)),
    st.tuples(st.just("repeat"), st.integers(0, len(SEED_FILE)), st.integers(1, 64)),
)


def mutate(data: bytes, mutations: list[tuple[str, int, int]]) -> bytes:
    for kind, at, value in mutations:
        if kind == "byte":
            data = data[:at] + bytes([value]) + data[at + 1 :]
        elif kind == "u64":
            data = data[:at] + u64(value) + data[at + 8 :]
        elif kind == "cut":
            data = data[:at]
        else:
            data = data[:at] + data[max(0, at - value) : at] + data[at:]
    return data


@settings(max_examples=1500, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(MUTATION, min_size=1, max_size=4))
def test_a_mutated_file_parses_soundly_or_is_refused(
    mutations: list[tuple[str, int, int]],
) -> None:
    data = mutate(SEED_FILE, mutations)
    started = time.perf_counter()
    try:
        header = parse_header(data)
    except TwoStrokeError as error:
        assert str(error)
    else:
        for info in header.tensors:
            assert 0 <= info.offset <= info.offset + info.nbytes <= len(data)
    assert time.perf_counter() - started < 1.0


def test_random_bytes_after_the_magic_are_refused() -> None:
    rng = np.random.default_rng(0)
    for _ in range(300):
        tail = rng.integers(0, 256, 200, dtype=np.uint8).tobytes()
        with pytest.raises(TwoStrokeError):
            parse_header(b"GGUF" + u32(3) + tail)
