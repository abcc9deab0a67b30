"""GGUF files on disk: tensors, fingerprints, shards, and unreadable files."""

from __future__ import annotations

import os
from pathlib import Path

import gguf
import numpy as np
import pytest

from twostroke.errors import CorruptCheckpoint, ModelError, ModelNotFound, TwoStrokeError
from twostroke.formats.ggml_types import GGMLType
from twostroke.formats.gguf import open_gguf
from twostroke.formats.gguf_shards import shard_paths
from twostroke.formats.quant import dequantize


def write_gguf(path: Path, tensors: dict[str, np.ndarray], **numbers: int) -> Path:
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(2)
    for key, value in numbers.items():
        writer.add_uint16(key.replace("__", "."), value)
    for name, values in tensors.items():
        writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def write_split(folder: Path, *, count: int = 3, says: int | None = None) -> list[Path]:
    paths = []
    for number in range(count):
        path = folder / f"model-{number + 1:05d}-of-{count:05d}.gguf"
        values = {f"w{number}": np.full((2, 4), number, np.float32)}
        facts = {"split__no": number, "split__count": count}
        if number == 0:
            facts["split__tensors__count"] = count if says is None else says
        paths.append(write_gguf(path, values, **facts))
    return paths


def test_tensors_equal_those_of_the_oracle(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    values = rng.standard_normal((6, 64)).astype(np.float32)
    path = tmp_path / "m.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_tensor("plain", values)
    quantised = gguf.quants.quantize(values, gguf.GGMLQuantizationType.Q8_0)
    writer.add_tensor("small", quantised, raw_dtype=gguf.GGMLQuantizationType.Q8_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with open_gguf(path) as model:
        assert model.metadata["general.architecture"] == "llama"
        assert model.tensors["plain"].shape == (6, 64)
        assert np.array_equal(model.data("plain").view(np.float32).reshape(6, 64), values)
        small = model.tensors["small"]
        assert (small.type, small.shape, small.nbytes) == (GGMLType.Q8_0, (6, 64), 6 * 68)
        decoded = dequantize(model.data("small"), small.type, small.shape)
        assert np.array_equal(
            decoded, gguf.quants.dequantize(quantised, gguf.GGMLQuantizationType.Q8_0)
        )


def test_data_is_a_read_only_view_that_outlives_close(tmp_path: Path) -> None:
    model = open_gguf(write_gguf(tmp_path / "m.gguf", {"w": np.arange(8, dtype=np.float32)}))
    view = model.data("w")
    assert not view.flags.owndata
    with pytest.raises(ValueError, match="read-only"):
        view[0] = 1
    model.close()
    assert np.array_equal(view.view(np.float32), np.arange(8, dtype=np.float32))
    with pytest.raises(ModelError, match="is closed"):
        model.data("w")


def test_a_missing_tensor_is_named(tmp_path: Path) -> None:
    model = open_gguf(write_gguf(tmp_path / "m.gguf", {"w": np.zeros(8, np.float32)}))
    with pytest.raises(CorruptCheckpoint, match=r"no tensor 'output\.weight'"):
        model.data("output.weight")


def test_the_fingerprint_follows_size_time_and_header(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "m.gguf", {"w": np.zeros(8, np.float32)})
    first = open_gguf(path).fingerprint()
    assert first == open_gguf(path).fingerprint()
    assert first.size_bytes == path.stat().st_size
    os.utime(path, ns=(1, 1))
    later = open_gguf(path).fingerprint()
    assert later.mtime_ns == 1
    assert later.header_hash == first.header_hash
    other = write_gguf(tmp_path / "n.gguf", {"v": np.zeros(8, np.float32)})
    assert open_gguf(other).fingerprint().header_hash != first.header_hash


@pytest.mark.parametrize("given", [0, 1, 2])
def test_any_shard_opens_the_whole_model(tmp_path: Path, given: int) -> None:
    paths = write_split(tmp_path)
    model = open_gguf(paths[given])
    assert list(model.paths) == paths
    assert {name: info.shard for name, info in model.tensors.items()} == {
        "w0": 0,
        "w1": 1,
        "w2": 2,
    }
    for number in range(3):
        assert model.data(f"w{number}").view(np.float32).tolist() == [number] * 8


def test_the_fingerprint_of_a_split_model_sees_every_shard(tmp_path: Path) -> None:
    paths = write_split(tmp_path)
    before = open_gguf(paths[0]).fingerprint()
    os.utime(paths[1], ns=(5, 5))
    assert open_gguf(paths[0]).fingerprint() != before


def test_a_missing_shard_is_named(tmp_path: Path) -> None:
    paths = write_split(tmp_path)
    paths[1].unlink()
    with pytest.raises(ModelNotFound, match=r"model-00002-of-00003\.gguf"):
        open_gguf(paths[0])


def test_shards_that_contradict_each_other_are_refused(tmp_path: Path) -> None:
    paths = write_split(tmp_path)
    paths[2].write_bytes(paths[1].read_bytes())
    with pytest.raises(CorruptCheckpoint, match="not the shard that its name says"):
        open_gguf(paths[0])


def test_a_renamed_shard_is_refused(tmp_path: Path) -> None:
    path = write_split(tmp_path)[0].rename(tmp_path / "renamed.gguf")
    with pytest.raises(CorruptCheckpoint, match="one of 3 shards, its name says 1"):
        open_gguf(path)


def test_a_wrong_total_of_tensors_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CorruptCheckpoint, match="another number of tensors"):
        open_gguf(write_split(tmp_path, says=7)[0])


def test_one_tensor_in_two_shards_is_refused(tmp_path: Path) -> None:
    for number in range(2):
        write_gguf(
            tmp_path / f"m-{number + 1:05d}-of-00002.gguf",
            {"w": np.zeros(8, np.float32)},
            split__no=number,
            split__count=2,
        )
    with pytest.raises(CorruptCheckpoint, match="'w' appears in two shards"):
        open_gguf(tmp_path / "m-00001-of-00002.gguf")


@pytest.mark.parametrize("name", ["m-00000-of-00002", "m-00003-of-00002", "m-00001-of-99999"])
def test_impossible_shard_names_are_refused(name: str) -> None:
    with pytest.raises(CorruptCheckpoint, match="cannot be"):
        shard_paths(Path(f"{name}.gguf"))


def test_unsplit_names_are_one_path() -> None:
    assert shard_paths(Path("a/model.gguf")) == (Path("a/model.gguf"),)


def test_an_unreadable_path_gets_one_clear_sentence(tmp_path: Path) -> None:
    (tmp_path / "empty.gguf").touch()
    (tmp_path / "text.gguf").write_text("hello world, not a model at all")
    os.mkfifo(tmp_path / "pipe.gguf")
    cases = {
        "missing.gguf": (ModelNotFound, "no such file"),
        "": (ModelError, "is a directory"),
        "empty.gguf": (CorruptCheckpoint, "is empty"),
        "text.gguf": (CorruptCheckpoint, "text.gguf: not a GGUF file"),
        "pipe.gguf": (ModelError, "not a regular file"),
        "a\0b": (ModelError, "cannot be read"),
        "x" * 300: (ModelError, "cannot be read"),
    }
    for name, (kind, words) in cases.items():
        with pytest.raises(kind, match=words) as caught:
            open_gguf(tmp_path / name)
        assert "\n" not in str(caught.value)
        assert isinstance(caught.value, TwoStrokeError)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read every file")
def test_an_unreadable_file_gives_the_reason(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "m.gguf", {"w": np.zeros(8, np.float32)})
    path.chmod(0)
    with pytest.raises(ModelError, match="Permission denied"):
        open_gguf(path)


def test_every_cut_of_a_file_is_refused(tmp_path: Path) -> None:
    whole = write_gguf(tmp_path / "m.gguf", {"w": np.zeros(64, np.float32)}).read_bytes()
    cut = tmp_path / "cut.gguf"
    for length in range(1, len(whole), 7):
        cut.write_bytes(whole[:length])
        with pytest.raises(CorruptCheckpoint):
            open_gguf(cut)


@pytest.mark.weights
def test_the_sample_model_reads_as_the_oracle_reads_it(smollm2_path: Path) -> None:
    theirs = gguf.GGUFReader(smollm2_path)
    with open_gguf(smollm2_path) as ours:
        for key, value in ours.metadata.items():
            assert value == theirs.fields[key].contents(), key
        assert len(ours.tensors) == len(theirs.tensors)
        for tensor in theirs.tensors:
            info = ours.tensors[tensor.name]
            assert info.shape == tuple(reversed(tensor.shape.tolist()))
            assert (int(info.type), info.nbytes) == (int(tensor.tensor_type), tensor.n_bytes)
            assert info.offset == tensor.data_offset
        last = theirs.tensors[-1]
        info = ours.tensors[last.name]
        assert np.array_equal(
            dequantize(ours.data(last.name), info.type, info.shape),
            gguf.quants.dequantize(last.data, last.tensor_type),
        )
