"""docs/formats.md says what the code does."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import gguf
import numpy as np
import pytest

from twostroke.formats import gguf_reader as header
from twostroke.formats.gguf_shards import MAX_SHARDS
from twostroke.formats.quant import DEQUANTIZABLE

PAGE = (Path(__file__).parents[2] / "docs" / "formats.md").read_text()


def row(label: str) -> list[int]:
    """Return the numbers of a row of the bounds, MiB as bytes."""
    cells = re.search(rf"^\| {re.escape(label)} \| (.*) \|$", PAGE, re.MULTILINE)
    assert cells, label
    found = re.findall(r"([\d,]+)( MiB)?", cells[1])
    return [int(n.replace(",", "")) << (20 if unit else 0) for n, unit in found]


def test_the_bounds_are_those_of_the_code() -> None:
    assert row("header") == [header.MAX_HEADER_BYTES]
    assert row("keys; their names") == [header.MAX_KEYS, header.MAX_NAME_BYTES]
    assert row("one string") == [header.MAX_STRING_BYTES]
    arrays = [header.MAX_ARRAY_VALUES, header.MAX_ALL_ARRAY_VALUES]
    assert row("one array; all arrays") == arrays
    assert row("tensors; dimensions") == [header.MAX_TENSORS, 1, header.MAX_DIMS]
    assert row("alignment") == [header.MAX_ALIGNMENT]
    assert row("shards") == [MAX_SHARDS]


def test_the_decoded_types_are_those_of_the_code() -> None:
    said = re.search(r"Decoded by the reference: (.*?),", PAGE, re.DOTALL)
    assert said
    assert sorted(said[1].split()) == sorted(t.name for t in DEQUANTIZABLE)


def test_the_python_example_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = gguf.GGUFWriter(tmp_path / "model.gguf", "llama")
    writer.add_tensor("token_embd.weight", np.ones((2, 32), np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    monkeypatch.chdir(tmp_path)
    example = re.search(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert example
    (tmp_path / "example.py").write_text(example[1])
    values = runpy.run_path(str(tmp_path / "example.py"))["values"]
    assert isinstance(values, np.ndarray)
    assert values.tolist() == [[1.0] * 32] * 2
