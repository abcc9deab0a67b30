from __future__ import annotations

import io
import struct
import time
import tracemalloc
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from twostroke.errors import CorruptCheckpoint, TwoStrokeError, UnsupportedModel
from twostroke.formats import gguf_header
from twostroke.formats.gguf_header import TruncatedHeader, parse_header

U8, I8, U16, U32, I32, F32, BOOL, STRING, ARRAY, U64, F64 = 0, 1, 2, 4, 5, 6, 7, 8, 9, 10, 12
F32_TYPE, Q4_0_TYPE = 0, 2


def u32(value: int) -> bytes:
    return struct.pack("<I", value)


def u64(value: int) -> bytes:
    return struct.pack("<Q", value & (2**64 - 1))


def text(value: str | bytes) -> bytes:
    raw = value if isinstance(value, bytes) else value.encode()
    return u64(len(raw)) + raw


def key(name: str | bytes, type_id: int, value: bytes) -> bytes:
    return text(name) + u32(type_id) + value


def tensor(name: str, dims: tuple[int, ...], type_id: int = F32_TYPE, offset: int = 0) -> bytes:
    return text(name) + u32(len(dims)) + b"".join(map(u64, dims)) + u32(type_id) + u64(offset)


def file_bytes(
    keys: list[bytes] = [],  # noqa: B006 - never changed
    tensors: list[bytes] = [],  # noqa: B006
    *,
    data: int = 0,
    version: int = 3,
    num_keys: int | None = None,
    num_tensors: int | None = None,
) -> bytes:
    out = io.BytesIO()
    out.write(b"GGUF" + u32(version))
    out.write(u64(len(tensors) if num_tensors is None else num_tensors))
    out.write(u64(len(keys) if num_keys is None else num_keys))
    out.write(b"".join(keys) + b"".join(tensors))
    out.write(bytes(-out.tell() % 32) + bytes(data))
    return out.getvalue()


def refusal(data: bytes, kind: type[TwoStrokeError] = CorruptCheckpoint) -> str:
    with pytest.raises(kind) as caught:
        parse_header(data)
    return str(caught.value)


def test_all_value_types_are_read() -> None:
    header = parse_header(
        file_bytes(
            [
                key("u8", U8, b"\xff"),
                key("i8", I8, b"\xff"),
                key("u16", U16, b"\x01\x02"),
                key("i32", I32, struct.pack("<i", -7)),
                key("f32", F32, struct.pack("<f", 0.5)),
                key("f64", F64, struct.pack("<d", 0.1)),
                key("u64", U64, u64(2**63)),
                key("yes", BOOL, b"\x01"),
                key("s", STRING, text("héllo")),
                key("ints", ARRAY, u32(I32) + u64(2) + struct.pack("<ii", 3, -4)),
                key("flags", ARRAY, u32(BOOL) + u64(2) + b"\x00\x01"),
                key("words", ARRAY, u32(STRING) + u64(2) + text("a") + text("")),
                key("none", ARRAY, u32(STRING) + u64(0)),
            ]
        )
    )
    assert dict(header.metadata) == {
        "u8": 255,
        "i8": -1,
        "u16": 513,
        "i32": -7,
        "f32": 0.5,
        "f64": 0.1,
        "u64": 2**63,
        "yes": True,
        "s": "héllo",
        "ints": [3, -4],
        "flags": [False, True],
        "words": ["a", ""],
        "none": [],
    }
    assert header.metadata["yes"] is True


@pytest.mark.parametrize("version", [2, 3])
def test_shapes_are_rows_first_and_offsets_absolute(version: int) -> None:
    data = file_bytes(
        tensors=[tensor("w", (64, 3), Q4_0_TYPE), tensor("b", (5,), F32_TYPE, 128)],
        data=160,
        version=version,
    )
    w, b = parse_header(data).tensors
    assert (w.shape, w.nbytes, w.offset) == ((3, 64), 3 * 36, len(data) - 160)
    assert (b.shape, b.nbytes, b.offset) == ((5,), 20, len(data) - 32)


def test_strings_that_are_not_utf8_keep_their_bytes() -> None:
    header = parse_header(
        file_bytes([key("words", ARRAY, u32(STRING) + u64(1) + text(b"a\xff\xfe"))])
    )
    words = header.metadata["words"]
    assert isinstance(words, list)
    assert words[0].encode("utf-8", "surrogateescape") == b"a\xff\xfe"


def test_a_head_of_a_remote_file_parses_against_the_real_size() -> None:
    whole = file_bytes(tensors=[tensor("w", (1 << 20,))], data=1 << 22)
    head = whole[:256]
    assert parse_header(head, file_size=len(whole)).tensors[0].nbytes == 1 << 22
    assert "outside the file" in refusal(head)


def test_every_truncation_of_the_header_says_how_much_is_needed() -> None:
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


ABSURD = 2**63


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (file_bytes(num_keys=ABSURD), "key count is absurd"),
        (file_bytes(num_keys=-1), "key count is absurd"),
        (file_bytes(num_keys=1000), "key count of 1000 cannot fit"),
        (file_bytes(num_tensors=ABSURD), "tensor count is absurd"),
        (file_bytes(num_tensors=100_000), "tensor count of 100000 cannot fit"),
        (file_bytes([u64(ABSURD) + bytes(6)]), "name of key 0 is too long"),
        (file_bytes([key("", U8, b"\0")]), "key without a name"),
        (file_bytes([key("k", U8, b"\0"), key("k", U8, b"\0")]), "key 'k' appears twice"),
        (file_bytes([key("k", 13, bytes(8))]), "key 'k' has an unknown value type"),
        (file_bytes([key("k", BOOL, b"\x02")]), "key 'k' is not a boolean"),
        (file_bytes([key("k", STRING, u64(ABSURD))]), "key 'k' is too long"),
        (file_bytes([key("k", STRING, u64(-1))]), "key 'k' is too long"),
        (file_bytes([key("k", STRING, u64(1 << 20))]), "ends inside key 'k'"),
        (file_bytes([key("k", ARRAY, u32(ARRAY) + u64(1))]), "key 'k' has an unsupported item"),
        (file_bytes([key("k", ARRAY, u32(77) + u64(1))]), "key 'k' has an unsupported item"),
        (file_bytes([key("k", ARRAY, u32(U8) + u64(ABSURD))]), "length of key 'k' is absurd"),
        (file_bytes([key("k", ARRAY, u32(U64) + u64(1 << 20))]), "key 'k' of 1048576 cannot fit"),
        (file_bytes([key("k", ARRAY, u32(BOOL) + u64(1) + b"\x05")]), "item that is not a boolean"),
        (
            file_bytes([key("k", ARRAY, u32(STRING) + u64(2) + text("a") + u64(ABSURD))]),
            "ends inside string 1 of key 'k'",
        ),
        (file_bytes([key("general.alignment", U32, u32(0))]), "usable alignment"),
        (file_bytes([key("general.alignment", U32, u32(48))]), "usable alignment (got 48"),
        (file_bytes([key("general.alignment", U32, u32(1 << 31))]), "usable alignment"),
        (file_bytes([key("general.alignment", STRING, text("32"))]), "usable alignment"),
        (file_bytes([key("general.alignment", BOOL, b"\1")]), "usable alignment"),
        (file_bytes([key("general.alignment", F32, struct.pack("<f", 32))]), "usable alignment"),
        (file_bytes(tensors=[tensor("", (8,))], data=32), "tensor without a name"),
        (file_bytes(tensors=[tensor("w", ())], data=32), "tensor 'w' has a bad number"),
        (file_bytes(tensors=[tensor("w", (1,) * 5)], data=32), "'w' has a bad number"),
        (file_bytes(tensors=[text("w") + u32(2**32 - 1) + bytes(40)]), "'w' has a bad number"),
        (file_bytes(tensors=[tensor("w", (8, 0))], data=32), "'w' has an empty dimension"),
        (file_bytes(tensors=[tensor("w", (8,))], data=16), "'w' lies outside the file"),
        (file_bytes(tensors=[tensor("w", (ABSURD, 4))], data=32), "'w' lies outside the file"),
        (file_bytes(tensors=[tensor("w", (2**32,) * 4)], data=32), "'w' lies outside the file"),
        (
            file_bytes(tensors=[tensor("w", (8,), F32_TYPE, 2**64 - 32)], data=32),
            "'w' lies outside the file",
        ),
        (file_bytes(tensors=[tensor("w", (8,), F32_TYPE, 8)], data=64), "'w' is not aligned"),
        (file_bytes(tensors=[tensor("w", (33,), Q4_0_TYPE)], data=64), "not whole Q4_0 blocks"),
        (
            file_bytes(tensors=[tensor("w", (8,)), tensor("w", (8,), F32_TYPE, 32)], data=64),
            "tensor 'w' appears twice",
        ),
        (
            file_bytes(tensors=[tensor("a", (16,)), tensor("b", (8,), F32_TYPE, 32)], data=64),
            "tensors 'a' and 'b' overlap",
        ),
    ],
)
def test_a_broken_header_is_refused_and_the_culprit_named(data: bytes, words: str) -> None:
    assert words in refusal(data)


@pytest.mark.parametrize("type_id", [4, 5, 31, 36, 41, 2**32 - 1])
def test_an_unknown_tensor_type_is_named_with_its_tensor(type_id: int) -> None:
    data = file_bytes(tensors=[tensor("blk.0.w", (8,), type_id)], data=64)
    message = refusal(data, UnsupportedModel)
    assert "'blk.0.w'" in message
    assert f"id {type_id}" in message


def test_hostile_names_reach_no_terminal() -> None:
    data = file_bytes([key("\x1b[2J" + "x" * 500, 13, b"")])
    message = refusal(data)
    assert "\x1b" not in message
    assert len(message) < 250


def test_all_arrays_together_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gguf_header, "MAX_ALL_ARRAY_VALUES", 10)
    arrays = [key(f"k{i}", ARRAY, u32(U8) + u64(4) + bytes(4)) for i in range(3)]
    assert "up to key 'k2' hold too many" in refusal(file_bytes(arrays))


def test_the_header_as_a_whole_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gguf_header, "MAX_HEADER_BYTES", 4096)
    assert "too large at key 'k'" in refusal(file_bytes([key("k", STRING, text("x" * 5000))]))
    words = u32(STRING) + u64(600) + text("") * 600
    assert "too large at string" in refusal(file_bytes([key("k", ARRAY, words)]))


@pytest.mark.parametrize(
    "data",
    [
        file_bytes(num_keys=gguf_header.MAX_KEYS),
        file_bytes(num_tensors=gguf_header.MAX_TENSORS),
        file_bytes([key("k", ARRAY, u32(STRING) + u64(gguf_header.MAX_ARRAY_VALUES))]),
        file_bytes([key("k", ARRAY, u32(U8) + u64(gguf_header.MAX_ARRAY_VALUES))]),
        file_bytes([key("k", STRING, u64(gguf_header.MAX_STRING_BYTES))]),
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
        patch.setattr(gguf_header, "_PLAIN_WINDOW_BYTES", window)
        patch.setattr(gguf_header, "_MOST_PLAIN_RUNS", runs)
        patch.setattr(gguf_header, "_AFTER_A_PLAIN_RUN", 2)
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
    ends = gguf_header._plain_ends

    def counted(window: Any) -> Any:
        windows.append(len(window))
        return ends(window)

    monkeypatch.setattr(gguf_header, "_plain_ends", counted)
    header = parse_header(file_bytes([strings_key([b"", b"abc"] * 10_000)]))
    assert header.metadata["words"] == ["", "abc"] * 10_000
    assert 1 < len(windows) <= 2 * gguf_header._MOST_PLAIN_RUNS
